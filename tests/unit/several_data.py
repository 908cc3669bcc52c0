"""Made-up images of several labels: each label is a bright corner."""

import numpy as np

NAMES = ["top left", "top right", "low left", "low right"]
SHARES = (0.5, 0.35, 0.25, 0.15)


def corners(count: int, seed: int = 0, side: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Images of (count, side, side, 3), and which labels each has, (count, 4)."""
    rng = np.random.default_rng(seed)
    has = (rng.random((count, 4)) < SHARES).astype(np.uint8)
    images, half = rng.integers(0, 50, (count, side, side, 3)).astype(np.uint8), side // 2
    for image, own in zip(images, has, strict=True):
        for label in np.flatnonzero(own):
            row, column = divmod(int(label), 2)
            image[row * half : (row + 1) * half, column * half : (column + 1) * half, label % 3] += 180
    return images, has


def write_arrays(path, train=160, test=80, **more):
    """MedMNIST's layout of several labels."""
    images, has = corners(train)
    test_images, test_has = corners(test, seed=1)
    arrays = dict(train_images=images, train_labels=has, test_images=test_images, test_labels=test_has)
    np.savez(path, class_names=np.array(NAMES), **(arrays | more))
    return path
