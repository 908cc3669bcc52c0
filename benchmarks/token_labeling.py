"""What do label targets cost, and what do they bring?

    python benchmarks/token_labeling.py speed
    python benchmarks/token_labeling.py accuracy --data ../shared/data/cifar100_small.npz --epochs 30 --seeds 3

Speed: the time to read, move and mix the labels of a batch, as a share of the whole training step, in turns; at most 10 % is
allowed. Accuracy: for each seed a small CNN, then a nano LV-ViT with and without its labels for every token and, between the
two, with its labels for crops only; mean and 95 % confidence interval go into docs/results.md between the markers, whichever way
they fall.
"""

import vitling  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import timm
import torch
from results_page import fill

from vitling.data.augment.augment import Augment
from vitling.methods.token_labeling import TokenLabeling
from vitling.methods.token_labeling.label_maps import Header, LabelMaps
from vitling.methods.token_labeling.method import annotator_recipe
from vitling.recipes import Recipe, load_recipe, replace

ALLOWED = 0.10

# model, image size, classes, cells of the maps on a side, batch
STEPS = [("lvvit_t", 224, 1000, 18, 8), ("lvvit_nano", 32, 100, 4, 64), ("lvvit_nano", 32, 100, 8, 64)]


def random_maps(folder: Path, images: int, classes: int, cells: int) -> LabelMaps:
    header = Header(
        data="noise",
        fingerprint="",
        split="train",
        images=images,
        class_names=[str(i) for i in range(classes)],
        grid=(cells, cells),
        top_k=5,
        fit="resize",
        size=(cells, cells),
        annotator="",
        weights="",
        raw_scores=False,
    )
    rng = np.random.default_rng(0)
    maps = LabelMaps.create(folder, header)
    shape = (images, *header.shape)
    maps.append(rng.normal(5, 2, shape), rng.integers(0, classes, shape))
    return LabelMaps.open(folder)


def one_turn(method: TokenLabeling, optimizer, augment: Augment, images: torch.Tensor) -> tuple[float, float]:
    """Seconds of a whole step, augmentation included, and of the labels within it."""
    began = time.perf_counter()
    pixels, geometry = augment.apply(images, augment.draw(len(images)), return_geometry=True)
    index = torch.randint(0, len(method.maps), (len(images),))
    batch = {"image": pixels, "label": index % method.num_classes, "index": index, "geometry": geometry}
    method(batch, 0.0)["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    step = time.perf_counter() - began
    began = time.perf_counter()
    method.targets(batch)
    return step, time.perf_counter() - began


def measure_speed(turns: int) -> None:
    print(f"{'model':11} {'size':>4} {'classes':>7} {'map':>5} {'step ms':>8} {'labels ms':>9} {'share':>6}")
    for name, size, classes, cells, batch_size in STEPS:
        with tempfile.TemporaryDirectory() as folder:
            maps = random_maps(Path(folder) / "maps", 4 * batch_size, classes, cells)
            model = timm.create_model(name, img_size=size, num_classes=classes, in_chans=3)
            method = TokenLabeling(model, num_classes=classes, maps=maps)
            optimizer = torch.optim.AdamW(method.parameters(), fused=True)
            normal = dict(mean=(0.5,) * 3, std=(0.25,) * 3)
            augment = Augment(size, crop="resized", randaugment="rand-m9-mstd0.5-inc1", erase=0.25, **normal)
            images = torch.randint(0, 256, (batch_size, 3, size, size), dtype=torch.uint8)
            one_turn(method, optimizer, augment, images)
            measured = [one_turn(method, optimizer, augment, images) for _ in range(turns)]
        step, labels = (statistics.median(times) for times in zip(*measured, strict=True))
        share = statistics.median(label / whole for whole, label in measured)
        verdict = "" if share <= ALLOWED else f"  more than the allowed {ALLOWED:.0%}"
        print(
            f"{name:11} {size:4} {classes:7} {cells:2}x{cells:<2} {1000 * step:8.1f} {1000 * labels:9.2f} {share:6.1%}{verdict}",
            flush=True,
        )


def train_rows(base: Recipe, seed: int, folder: Path) -> dict[str, tuple[float, float]]:
    """Test accuracy and training seconds of each row for one seed."""

    base = replace(base, seed=seed)
    annotator = vitling.train(annotator_recipe(base), folder / f"annotator-{seed}")
    maps = vitling.relabel(annotator, base.data, folder / f"labels-{seed}")
    token_labels = dict(labels=str(maps.folder))
    rows = {
        "nano LV-ViT, labels of the data": base,
        "nano LV-ViT, one label per crop": replace(
            base,
            model_args=dict(return_dense=False),
            method="token_labeling",
            method_args=dict(**token_labels, label_tokens=False),
        ),
        "nano LV-ViT, a label per token": replace(base, method="token_labeling", method_args=token_labels),
        "the same without MixToken": replace(
            base, method="token_labeling", method_args=dict(**token_labels, mix_token=False)
        ),
    }
    runs = {"annotator (small ResNet-18)": annotator}
    for number, (name, recipe) in enumerate(rows.items()):
        runs[name] = vitling.train(recipe, folder / f"row{number}-{seed}")
    found = {name: (vitling.evaluate(run).top1, run.info["wall_seconds"]) for name, run in runs.items()}
    for name, (top1, seconds) in found.items():
        print(f"seed {seed}  {name:34} {top1:7.2%}  {seconds:6.0f} s", flush=True)
    return found


def interval(values: list[float]) -> str:
    """Mean and 95 % confidence interval by Student's t."""
    from scipy import stats

    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{100 * mean:.2f}"
    ci95 = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{100 * mean:.2f} ± {100 * ci95:.2f}"


def measure_accuracy(args) -> None:
    recipe = load_recipe("lvvit/nano")
    base = replace(
        recipe,
        data=str(Path(args.data).resolve()) if Path(args.data).exists() else args.data,
        epochs=args.epochs,
        fraction=args.fraction,
        optim=replace(recipe.optim, warmup_epochs=min(5, args.epochs / 10)),
    )
    seeds = [train_rows(base, seed, Path(args.out)) for seed in range(args.seeds)]
    share = "" if args.fraction == 1 else f", {args.fraction:.0%} of the training images"
    lines = [
        f"Test accuracy on {Path(args.data).stem}{share} at 32 px after {args.epochs} epochs (annotator: {min(args.epochs, 50)}), "
        f"mean ± 95 % confidence interval over {args.seeds} seeds:",
        "",
        "| | top-1 % | training, s |",
        "|---|---|---|",
    ]
    for name in seeds[0]:
        times = statistics.mean(seed[name][1] for seed in seeds)
        lines.append(f"| {name} | {interval([seed[name][0] for seed in seeds])} | {times:.0f} |")
    fill("token labeling", "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speed", "accuracy"])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs/token_labeling_benchmark", help="runs go here; again: resumed or reused")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "speed":
        measure_speed(args.turns)
    else:
        measure_accuracy(args)


if __name__ == "__main__":
    main()
