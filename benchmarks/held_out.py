"""Training images divided in two, so that choices can be tested without the test images.

    python benchmarks/held_out.py cifar100_small.npz dev.npz [--share 0.3] [--seed 7]

The new file's test split is that share of the old one's training images; its test images stay where they are.
"""

import argparse
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    arrays = np.load(args.data)
    images, labels = arrays["train_images"], arrays["train_labels"]
    order = np.random.default_rng(args.seed).permutation(len(images))
    train, test = np.split(order, [round((1 - args.share) * len(images))])
    parts = {"train": train, "test": test}
    np.savez(
        args.out,
        **{f"{name}_images": images[part] for name, part in parts.items()},
        **{f"{name}_labels": labels[part] for name, part in parts.items()},
    )


if __name__ == "__main__":
    main()
