"""How many images per second does our batched augmentation give, beside timm's per-image pipeline with the same policy?

    python benchmarks/augment.py

Both run in this one process on one thread, in turns, from images that lie decoded in memory to normalised float
tensors: crop, flip, RandAugment rand-m9-mstd0.5-inc1, random erasing. The ratio is taken turn by turn, and its median
counts, so that other work on the machine disturbs both equally. At 32 px the goal is 5, at 224 px it is 1.
"""

import vitling  # noqa: F401  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import statistics
import time

import numpy as np
import timm.data.auto_augment as timm_augment
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from timm.data import create_transform
from torchvision.transforms import RandomCrop

from vitling.data.augment.augment import Augment

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POLICY = "rand-m9-mstd0.5-inc1"

# crop, image size, output size, images per turn (our batch), what the ratio has to reach
SETTINGS = [
    ("pad", 32, 32, 512, 5.0),
    ("resized", 32, 32, 512, 5.0),
    ("pad", 224, 224, 64, 1.0),
    ("resized", 224, 224, 64, 1.0),
    ("resized", 256, 224, 64, 1.0),
]


def photos(n: int, side: int) -> torch.Tensor:
    """Random pieces of two photographs, (n, 3, side, side)."""
    rng = np.random.default_rng(0)
    pieces = []
    for i in range(n):
        photo = load_sample_image(("china.jpg", "flower.jpg")[i % 2])
        extent = int(rng.integers(100, 420))
        top, left = rng.integers(0, photo.shape[0] - extent), rng.integers(0, photo.shape[1] - extent)
        piece = Image.fromarray(photo[top : top + extent, left : left + extent])
        pieces.append(np.asarray(piece.resize((side, side), Image.Resampling.BICUBIC)))
    return torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2).contiguous()


def timm_pipeline(crop: str, size: int, interpolation: str):
    transform = create_transform(
        size,
        is_training=True,
        auto_augment=POLICY,
        interpolation=interpolation,
        re_prob=0.25,
        re_mode="pixel",
        mean=MEAN,
        std=STD,
    )
    if crop == "pad":  # as DeiT and DHVT do for small images
        transform.transforms[0] = RandomCrop(size, padding=size // 8)
    return transform


def let_timm_posterize_to_no_bits() -> None:
    """Give timm back what Pillow did before version 13, which refuses: a black image."""
    posterize = timm_augment.NAME_TO_OP["PosterizeIncreasing"]

    def posterize_or_black(image: Image.Image, bits: int, **kwargs) -> Image.Image:
        return posterize(image, bits, **kwargs) if bits > 0 else Image.new(image.mode, image.size)

    timm_augment.NAME_TO_OP["PosterizeIncreasing"] = posterize_or_black


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--interpolation", choices=["random", "bilinear", "bicubic"], default="bicubic")
    args = parser.parse_args()
    torch.set_num_threads(1)
    let_timm_posterize_to_no_bits()

    print(f"{'crop':8} {'image':>5} {'output':>6} {'timm/s':>9} {'vitling/s':>9} {'ratio':>6} {'goal':>5}")
    for crop, side, size, n, goal in SETTINGS:
        batch = photos(n, side)
        images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in batch]
        theirs = timm_pipeline(crop, size, args.interpolation)
        ours = Augment(
            size,
            mean=MEAN,
            std=STD,
            crop=crop,
            crop_padding=size // 8,
            randaugment=POLICY,
            erase=0.25,
            interpolation=args.interpolation,
        )
        generator = torch.Generator().manual_seed(0)
        work = {
            "timm": lambda images=images, theirs=theirs: torch.stack([theirs(image) for image in images]),
            "vitling": lambda batch=batch, ours=ours, generator=generator: ours(batch, generator),
        }
        for warm_up in work.values():
            warm_up()
        turns = [{name: seconds(task) / n for name, task in work.items()} for _ in range(args.turns)]
        ratio = statistics.median(turn["timm"] / turn["vitling"] for turn in turns)
        speed = {name: 1 / statistics.median(turn[name] for turn in turns) for name in work}
        reached = "" if ratio >= goal else "  missed"
        speeds = f"{speed['timm']:9.0f} {speed['vitling']:9.0f}"
        print(f"{crop:8} {side:5} {size:6} {speeds} {ratio:6.2f} {goal:5.1f}{reached}", flush=True)


if __name__ == "__main__":
    main()
