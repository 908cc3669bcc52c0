"""The folder in which the commands of the documentation are run: small stand-ins for everything that they name."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from vitling import load_recipe, train
from vitling.recipes import override

CLASSES = ("cat", "dog", "fox")
PHOTOGRAPHS = ("DATA", "photos", "path/to/folder", "my_images", "IMAGENET", "data/flowers", "flowers10")
RUNS = ("RUN", "RUN2", "runs/mine")
SHORT = ["epochs=1", "optim.warmup_epochs=0", "optim.cooldown_epochs=0"]


def make_folder(folder: Path) -> Path:
    """Photographs, tables, arrays and a run under every name that the pages use for their examples."""
    _photographs(folder / "DATA")
    recipe = override(
        load_recipe("folder/vit_nano_small"),
        [*SHORT, f"data={folder / 'DATA'}", "img_size=16", "batch_size=16", "model_args={}", "model=dhvt_test"],
    )
    train(recipe, folder / "RUN")
    for name in PHOTOGRAPHS[1:]:
        shutil.copytree(folder / "DATA", folder / name)
    for name in RUNS[1:]:
        shutil.copytree(folder / "RUN", folder / name)
    shutil.copytree(folder / "RUN" / "best", folder / "FOLDER")
    shutil.copytree(folder / "DATA" / "test" / "fox", folder / "new")
    shutil.copyfile(folder / "new" / "0.png", folder / "IMAGE")
    Image.open(folder / "IMAGE").save(folder / "new" / "1.jpg")
    _tables(folder)
    _arrays(folder / "ten.npz")
    shutil.copyfile(folder / "ten.npz", folder / "cells.npz")
    return folder


def _photographs(root: Path) -> None:
    """Digits as colour photographs of 32 pixels, a folder per class, with a test split."""
    digits = load_digits()
    for number, name in enumerate(CLASSES):
        chosen = digits.images[digits.target == number][:15]
        for i, image in enumerate(np.kron(chosen, np.ones((4, 4)))):
            split, place = ("test", i) if i < 3 else ("train", i)
            path = root / split / name / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            grey = (15.9 * image).astype(np.uint8)
            Image.fromarray(np.stack([grey, grey // 2, 255 - grey], axis=-1)).save(path)


def _tables(folder: Path) -> None:
    images = sorted((folder / "DATA" / "train").rglob("*.png"))
    rows = [f"{path.relative_to(folder)},{path.parent.name}" for path in images]
    (folder / "labels.csv").write_text("\n".join(["path,label", *rows]))
    patients = [f"{row},p{i // 2:02d}" for i, row in enumerate(rows)]
    (folder / "patients.csv").write_text("\n".join(["path,label,patient", *patients]))
    rows = [f"{path.relative_to(folder)} {CLASSES.index(path.parent.name)}" for path in images]
    (folder / "clipart_train.txt").write_text("\n".join(rows))


def _arrays(path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 30), ("test", 9)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % 3
    np.savez(path, **arrays, class_names=np.array(CLASSES))


def break_things(folder: Path) -> None:
    """What the page on troubleshooting has trouble with."""
    train = folder / "DATA" / "train"
    shutil.copytree(train / "cat", folder / "loose")
    (folder / "papers" / "one").mkdir(parents=True)
    (folder / "papers" / "one" / "report.pdf").write_bytes(b"%PDF-1.7")
    for name in ("rare", "damaged", "unlike"):
        shutil.copytree(folder / "DATA", folder / name)
    for path in sorted((folder / "rare" / "train" / "fox").iterdir())[1:]:
        path.unlink()
    (folder / "damaged" / "train" / "cat" / "10.png").write_bytes(b"\x89PNG and no more")
    (folder / "unlike" / "test" / "fox").rename(folder / "unlike" / "test" / "foxes")
    shutil.copytree(folder / "DATA", folder / "birds")
    for split in ("train", "test"):
        (folder / "birds" / split / "fox").rename(folder / "birds" / split / "owl")
    (folder / "table.csv").write_text("picture,kind\nDATA/train/cat/3.png,cat\n")
    np.savez(folder / "floats.npz", train_images=np.zeros((4, 8, 8)), train_labels=np.arange(4) % 2)
