"""2,000 training and 2,000 test images of CIFAR-100 in ten classes, for comparisons that take minutes on a CPU.

    python benchmarks/ten_classes.py cifar100_small.npz ten.npz

`cifar100_small.npz` holds 100 training images per class, so each of the ten is a pair of related classes.
"""

import sys
from pathlib import Path

import numpy as np

PAIRS = [
    ("dolphin", "whale"), ("orchid", "rose"), ("bottle", "cup"), ("apple", "orange"), ("bed", "couch"), ("bee", "butterfly"),
    ("bear", "wolf"), ("plain", "sea"), ("maple_tree", "oak_tree"), ("bus", "pickup_truck"),
]  # fmt: skip


def write_ten_classes(source: Path, target: Path, pairs: list[tuple[str, str]] = PAIRS) -> None:
    with np.load(source) as file:
        names = file["class_names"].tolist()
        number = {names.index(name): i for i, pair in enumerate(pairs) for name in pair}
        parts = {"class_names": np.array(["/".join(pair) for pair in pairs])}
        for split in ("train", "test"):
            kept = np.isin(file[f"{split}_labels"], list(number))
            parts[f"{split}_images"] = file[f"{split}_images"][kept]
            parts[f"{split}_labels"] = np.array([number[label] for label in file[f"{split}_labels"][kept]])
    np.savez(target, **parts)


if __name__ == "__main__":
    write_ten_classes(Path(sys.argv[1]), Path(sys.argv[2]))
