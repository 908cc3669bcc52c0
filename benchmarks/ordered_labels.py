"""How numbers and grades are best learnt: bins for numbers, the weight of the distance for grades. Made-up squares in noise, a small CNN.

    python benchmarks/ordered_labels.py bins
    python benchmarks/ordered_labels.py distance

The number of an image is the side of its square, its grade a fifth of their range; of some rows the grades are noisy. Mean absolute error on
1,500 other images, the mean of three seeds, from 100, 400 and 1,600 images. Minutes on one core.
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.data.bins import MARGIN, Bins
from vitling.methods.ordered import squared_emd

SEEDS, IMAGES, STEPS, BATCH = 3, (100, 400, 1600), 300, 64
SMALLEST, LARGEST, GRADES = 3, 12, 5


def make_squares(count: int, seed: int) -> tuple[Tensor, np.ndarray]:
    """Images of 16 x 16 pixels, and the side of the square in each; its last column is as grey as the fraction says."""
    rng = np.random.default_rng(seed)
    images, sides = np.zeros((count, 1, 16, 16), np.float32), rng.uniform(SMALLEST, LARGEST, count)
    for image, side in zip(images, sides, strict=True):
        whole = int(side)
        top, left = rng.integers(0, 16 - whole, 2)
        image[0, top : top + whole, left : left + whole] = 1
        image[0, top : top + whole, left + whole : left + whole + 1] = side - whole
    return torch.tensor(images + rng.normal(0, 0.5, images.shape).astype(np.float32)), sides


def train(images: Tensor, loss_of, outputs: int, seed: int, tested: Tensor) -> np.ndarray:
    """A small CNN, and what it says of the tested images: probabilities."""
    torch.manual_seed(seed)
    stem = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*stem, nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, outputs))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        chosen = torch.randint(len(images), (BATCH,))
        loss = loss_of(model(images[chosen]), chosen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return model(tested).softmax(dim=1).numpy()


def compare_bins() -> None:
    tested, truth = make_squares(1500, 99)
    print("| images | bins inside the range | mean absolute error |\n|---:|---:|---:|")
    for count in IMAGES:
        for inner in (10, 20, 40, 58):
            errors = []
            for seed in range(SEEDS):
                images, sides = make_squares(count, seed)
                width = np.ptp(sides) / inner
                edges = sides.min() + width * np.arange(-MARGIN, inner + MARGIN + 1)
                bins = Bins(tuple(edges.tolist()), float(np.median(sides)))
                targets = torch.from_numpy(bins.distribute(sides))
                found = train(images, lambda o, i, t=targets: F.cross_entropy(o, t[i]), len(bins), seed, tested)
                errors.append(np.abs(bins.mean(found) - truth).mean())
            print(f"| {count} | {inner} | {np.mean(errors):.3f} |", flush=True)


def compare_distances() -> None:
    tested, sides = make_squares(1500, 99)
    truth = grade(sides)
    print(
        "| images | noise of the grades | weight | error of the expected grade | of the likeliest |\n|---:|---:|---:|---:|---:|"
    )
    for count in IMAGES:
        for noise in (0.0, 1.0):
            for weight in (0, 0.3, 1, 3):
                errors = []
                for seed in range(SEEDS):
                    images, sides = make_squares(count, seed)
                    grades = grade(sides + np.random.default_rng(seed).normal(0, noise, count))
                    targets = F.one_hot(torch.from_numpy(grades), GRADES).float()

                    def loss_of(o: Tensor, i: Tensor, t: Tensor = targets, w: float = weight) -> Tensor:
                        return F.cross_entropy(o, t[i]) + w * squared_emd(o, t[i]).mean()

                    found = train(images, loss_of, GRADES, seed, tested)
                    expected, likeliest = found @ np.arange(GRADES), found.argmax(axis=1)
                    errors.append([np.abs(one - truth).mean() for one in (expected, likeliest)])
                both = " | ".join(f"{error:.3f}" for error in np.mean(errors, axis=0))
                print(f"| {count} | {noise:g} | {weight:g} | {both} |", flush=True)


def grade(sides: np.ndarray) -> np.ndarray:
    return np.clip((sides - SMALLEST) // ((LARGEST - SMALLEST) / GRADES), 0, GRADES - 1).astype(int)


if __name__ == "__main__":
    compared = {"bins": compare_bins, "distance": compare_distances}
    if len(sys.argv) != 2 or sys.argv[1] not in compared:
        raise SystemExit(__doc__)
    torch.set_num_threads(1)
    compared[sys.argv[1]]()
