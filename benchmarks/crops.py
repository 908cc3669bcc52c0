"""What do crops from the picture itself cost, beside crops from images that were fitted to one size first?

    python benchmarks/crops.py flowers10 paintings7

Each folder is trained on by recipes of three kinds, once as before (`train_size`: fitted to that size, then cropped) and once as it is
now (kept as large as the crops need). Both run in this one process on one thread, in turns; the ratio of images per second is taken turn
by turn and its median counts. Memory is that of the decoded training images.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from vitling.data.pipeline.loader import Resident, TrainLoader
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import prepare_training_data
from vitling.recipes import Recipe, load_recipe, override
from vitling.training.setup import create_augment

# What it is, the recipe, and how it was before.
CASES = [
    ("64 px, stretched", "folder/vit_nano", ["train_size=72"]),
    ("224 px, T2T's crops", "t2t/imagenet_14", ["train_size=256"]),
    ("224 px, LV-ViT's order", "lvvit/table3_stem", ["train_size=256", "augment.crop_when=first"]),
]
BATCH = 32


class Side:
    """The training images of a recipe, and its batches without end."""

    def __init__(self, recipe: Recipe):
        began = time.perf_counter()
        data = prepare_training_data(recipe, Reading(memory_gb=8), model_size=(224, 224))
        self.seconds = time.perf_counter() - began
        images = data.train.images
        tensors = [images] if isinstance(data.train, Resident) else images.images
        self.bytes = sum(tensor.numel() for tensor in tensors)
        self.loader = TrainLoader(data.train, create_augment(recipe, data), recipe=recipe, device=torch.device("cpu"))
        self.batches = (batch for epoch in range(10**6) for batch in self.loader.epoch(epoch))

    def images_per_second(self, batches: int) -> float:
        began = time.perf_counter()
        for _ in range(batches):
            next(self.batches)
        return BATCH * batches / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--batches", type=int, default=2, help="per turn")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| images | recipe | MB before | now | ratio | images/s before | now | ratio |\n|---|---|---|---|---|---|---|---|"
    )
    for folder in args.folders:
        for what, name, earlier in CASES:
            common = [f"data={folder}", f"batch_size={BATCH}"]
            recipes = [override(load_recipe(name), [*common, *more]) for more in (earlier, [])]
            sides = [Side(recipe) for recipe in recipes]
            for side in sides:
                side.images_per_second(1)
            turns = [[side.images_per_second(args.batches) for side in sides] for _ in range(args.turns)]
            before, now = (statistics.median(turn[i] for turn in turns) for i in (0, 1))
            ratio = statistics.median(turn[1] / turn[0] for turn in turns)
            old, new = (side.bytes / 1e6 for side in sides)
            memory = f"{old:.0f} | {new:.0f} | {new / old:.2f}"
            print(f"| {folder.name} | {what} | {memory} | {before:.0f} | {now:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
