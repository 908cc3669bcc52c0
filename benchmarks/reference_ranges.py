"""Measure the ranges that the verdict of `vitling diagnose` compares with, on small runs of our own.

    python benchmarks/reference_ranges.py [--out runs/references] [--small-cifar ../shared/data/cifar100_small.npz]

Trains a plain ViT, a bootstrapped ViT, a DHVT and a CNN on two datasets with two seeds each, on one thread (about fifteen
minutes; runs that are finished are used again), diagnoses every run as the command does, and writes each number with its
provenance to vitling/diagnose/references.json.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from vitling.recipe import Augment, Optim, Recipe, load_recipe, replace
from vitling.train import train

SEEDS = (0, 1)
CLASSES = 10  # of CIFAR-100's, the first ones by name: 1,000 training images


def digits_recipes() -> dict[str, Recipe]:
    """Networks of one width and depth on 8-pixel digits; the plain ViT and the bootstrapped one are trained longer."""
    vit = load_recipe("digits/vit_nano")
    small = dict(patch_size=2, embed_dim=64, depth=4, num_heads=4)
    return {
        "plain ViT": vit,
        "bootstrapped ViT": replace(
            vit, model="boot_vit_nano", model_args={**small, "mlp_ratio": 4.0}, method="bootstrap", epochs=20
        ),
        "DHVT": replace(vit, model="dhvt_nano", model_args=small, epochs=20),
        "CNN": replace(vit, model="diag_resnet18_nano", model_args={}, epochs=10),
    }


def cifar_recipes(data: Path) -> dict[str, Recipe]:
    """The same on 32-pixel photographs with 4-pixel patches."""
    small = dict(patch_size=4, embed_dim=96, depth=4, num_heads=4)
    vit = Recipe(
        model="vit_tiny_patch16_224",
        model_args=small,
        data=str(data),
        epochs=24,
        batch_size=64,
        augment=Augment(crop="pad", hflip=0.5),
        optim=Optim(lr=1e-3, warmup_epochs=3),
    )
    return {
        "plain ViT": vit,
        "bootstrapped ViT": replace(
            vit, model="boot_vit_nano", model_args={**small, "mlp_ratio": 4.0}, method="bootstrap", epochs=12
        ),
        "DHVT": replace(vit, model="dhvt_nano", model_args=small, epochs=12),
        "CNN": replace(vit, model="diag_resnet18_nano", model_args={}, epochs=12),
    }


def write_subset(source: Path, target: Path) -> Path:
    """The first classes of CIFAR-100's small file, as an .npz that `vitling train` takes."""
    if not target.exists():
        held = np.load(source)
        arrays = {"class_names": held["class_names"][:CLASSES]}
        for split in ("train", "test"):
            keep = held[f"{split}_labels"] < CLASSES
            arrays |= {f"{split}_{what}": held[f"{split}_{what}"][keep] for what in ("images", "labels")}
        target.parent.mkdir(parents=True, exist_ok=True)
        np.savez(target, **arrays)
    return target


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/references"))
    parser.add_argument("--small-cifar", type=Path, default=Path("../shared/data/cifar100_small.npz"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    datasets = {"digits": digits_recipes()}
    if args.small_cifar.exists():
        datasets["cifar"] = cifar_recipes(write_subset(args.small_cifar, args.out / "cifar10of100.npz"))
    for dataset, recipes in datasets.items():
        for kind, recipe in recipes.items():
            for seed in SEEDS:
                began = time.monotonic()
                run = train(replace(recipe, seed=seed), args.out / f"{dataset}-{kind.replace(' ', '-')}-{seed}")
                print(dataset, kind, seed, run.info["best"], f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
