"""Measure the ranges that the verdict of `vitling diagnose` compares with, on small runs of our own.

    python benchmarks/reference_ranges.py [--out runs/references] [--small-cifar ../shared/data/cifar100_small.npz]

Trains a plain ViT, a DHVT and a CNN on two datasets, and a bootstrapped ViT on the first, with two seeds each on one thread (about
ten minutes; runs that are finished are used again), diagnoses every run as the command does, and writes each number with its
provenance to vitling/diagnose/references.json.
"""

import vitling  # noqa: F401  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import json
import time
from datetime import date
from pathlib import Path

import numpy as np
import timm
import torch

from vitling.diagnose import verdict
from vitling.diagnose.diagnosis import diagnose
from vitling.diagnose.verdict import indicators
from vitling.files import write_text
from vitling.recipes import Augment, Optim, Recipe, load_recipe, replace
from vitling.runs.run import Run
from vitling.training.beginning import train

SEEDS = (0, 1)
CLASSES = 10  # of CIFAR-100's, the first ones by name: 1,000 training images


def digits_recipes() -> dict[str, Recipe]:
    """The recipes of the demo's digits, 8 pixels wide, and a bootstrapped ViT of the plain one's size."""
    vit = load_recipe("digits/vit_nano")
    bootstrapped = {**vit.model_args, "mlp_ratio": 4.0}
    return {
        "plain ViT": vit,
        "bootstrapped ViT": replace(vit, model="boot_vit_nano", model_args=bootstrapped, method="bootstrap", epochs=15),
        "DHVT": load_recipe("digits/dhvt_nano"),
        "CNN": replace(load_recipe("digits/resnet18_nano"), epochs=10),
    }


def cifar_recipes(data: Path) -> dict[str, Recipe]:
    """Three of them on 32-pixel photographs with 4-pixel patches; the plain ViT is trained twice as long."""
    small = dict(patch_size=4, embed_dim=64, depth=4, num_heads=4)
    vit = Recipe(
        model="vit_tiny_patch16_224",
        model_args=small,
        data=str(data),
        epochs=14,
        batch_size=64,
        augment=Augment(crop="pad", hflip=0.5),
        optim=Optim(lr=1e-3, warmup_epochs=3),
    )
    return {
        "plain ViT": vit,
        "DHVT": replace(vit, model="dhvt_nano", model_args=small, epochs=7),
        "CNN": replace(vit, model="diag_resnet18_nano", model_args={}, epochs=7),
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


def measure_dataset(name: str, title: str, runs: dict[str, list[Run]]) -> dict:
    """Diagnose every run alone, and every ViT together with the CNN of its seed."""
    entries = []
    for kind, seeds in runs.items():
        for number, run in enumerate(seeds):
            cnn = None if kind == "CNN" else runs["CNN"][number]
            diagnosis = diagnose(run, cnn)[0]
            values = indicators(diagnosis)
            if diagnosis.match is not None:
                values["peak with CNN"] = 1 - diagnosis.match.unmatched_top_quarter
            entries.append(
                {
                    "kind": kind,
                    "seed": run.recipe.seed,
                    "model": run.recipe.model,
                    "model_args": run.recipe.model_args,
                    "method": run.recipe.method,
                    "epochs": run.recipe.epochs,
                    "parameters": run.info["parameters"],
                    "accuracy": diagnosis.evaluation.top1,
                    "images": diagnosis.measurements.images,
                    "indicators": {key: value if value is None else round(value, 5) for key, value in values.items()},
                }
            )
            print(name, kind, run.recipe.seed, entries[-1]["indicators"], flush=True)
    side = max(diagnosis.subject.preprocessing.size)
    return {"name": name, "title": title, "image_size": side, "runs": entries}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/references"))
    parser.add_argument("--small-cifar", type=Path, default=Path("../shared/data/cifar100_small.npz"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    datasets = {"digits": ("8-pixel digits, 1,294 training images", digits_recipes())}
    if args.small_cifar.exists():
        title = "ten classes of CIFAR-100 at 32 pixels, 900 training images"
        datasets["cifar10of100"] = (title, cifar_recipes(write_subset(args.small_cifar, args.out / "cifar10of100.npz")))
    measured = []
    for name, (title, recipes) in datasets.items():
        runs = {}
        for kind, recipe in recipes.items():
            runs[kind] = []
            for seed in SEEDS:
                began = time.monotonic()
                run = train(replace(recipe, seed=seed), args.out / f"{name}-{kind.replace(' ', '-')}-{seed}")
                print(name, kind, seed, run.info["best"], f"{time.monotonic() - began:.0f} s", flush=True)
                runs[kind].append(run)
        measured.append(measure_dataset(name, title, runs))
        provenance = {
            "command": "python benchmarks/reference_ranges.py",
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "timm": timm.__version__,
            "note": "accuracy and indicators are of the validation split; the recipes are in the script",
        }
        text = json.dumps({"provenance": provenance, "datasets": measured}, indent=1)
        write_text(Path(verdict.__file__).with_name("references.json"), text + "\n")


if __name__ == "__main__":
    main()
