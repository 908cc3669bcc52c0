"""2,000 training images of Fashion-MNIST, drawn once, and its 10,000 test images, for comparisons that take minutes on a CPU.

python benchmarks/few_clothes.py fashion2k.npz
"""

import sys

import numpy as np

from vitling.data.sources.dataset import open_dataset

IMAGES = 2000


def main(target: str) -> None:
    arrays = {}
    for split, images in open_dataset("fashion-mnist").splits.items():
        kept = np.arange(len(images))
        if split == "train":
            kept = np.random.default_rng(0).permutation(kept)[:IMAGES]
        arrays[f"{split}_images"] = np.stack([images.read(i)[..., 0] for i in kept])
        arrays[f"{split}_labels"] = np.asarray(images.labels)[kept]
    np.savez(target, **arrays)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
