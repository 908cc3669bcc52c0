"""Does a number hold for patients that were never seen? A made-up dataset where splitting by image says yes, and splitting by patient says no.

Sixty patients, each ill or well, twenty images of each. Every patient's images share a background, as one scanner, slide or skin gives them;
the sign of the illness is weak. Whoever is validated on other images of patients it has learnt from only needs to know the background again.

    python benchmarks/grouped_splits.py        half a minute of one core

It trains the same recipe three times by image and three times by patient (seeds 0, 1, 2), and compares both validation numbers with what the
models reach on sixty new patients, which is what the user will see.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import mean

import numpy as np

import vitling
from vitling.recipes import Recipe, override

PATIENTS, IMAGES, SIDE = 60, 20, 16
SIGN = 55  # how much brighter the lesion of an ill patient is, of 255: as much as its noise, and as patients differ


def make_patients(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels and groups: a background per patient, noise per image, and a faint square in the images of ill patients."""
    images, labels = [], rng.permutation(np.arange(count) % 2)
    for label in labels:
        coarse = rng.integers(40, 216, (4, 4, 3))
        background = coarse.repeat(SIDE // 4, axis=0).repeat(SIDE // 4, axis=1)
        pictures = background + rng.normal(0, 50, (IMAGES, SIDE, SIDE, 3))
        pictures[:, 6:10, 6:10] += SIGN * label
        images.append(pictures.clip(0, 255).astype(np.uint8))
    return np.concatenate(images), labels.repeat(IMAGES), np.arange(count).repeat(IMAGES)


def write_patients(path: Path, seed: int = 0) -> Path:
    """An .npz of sixty patients to learn from and sixty others to test on; the patients are arrays, which group=patient names."""
    rng = np.random.default_rng(seed)
    (images, labels, patients), (others, other_labels, other_patients) = (
        make_patients(PATIENTS, rng) for _ in range(2)
    )
    np.savez(
        path,
        train_images=images,
        train_labels=labels,
        train_patient=patients,
        test_images=others,
        test_labels=other_labels,
        test_patient=other_patients + PATIENTS,
        class_names=np.array(["well", "ill"]),
    )
    return path


def train_both(data: Path, out: Path, seed: int, epochs: int = 15) -> dict[str, tuple[float, float]]:
    """Validation and test accuracy of the same recipe, split by image and by patient."""
    found = {}
    for name, group in (("by image", ""), ("by patient", "patient")):
        recipe = override(
            Recipe(data=str(data), model="hybrid_vit_test", epochs=epochs, batch_size=64, val_fraction=0.25, seed=seed),
            {"group": group, "augment.crop": "none", "optim.lr": 3e-3, "optim.warmup_epochs": 1},
        )
        run = vitling.train(recipe, out / f"{name}-{seed}".replace(" ", "-"), settings=vitling.Settings(page=False))
        found[name] = run.info["best"]["val_top1"], vitling.evaluate(run).top1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="keep the runs here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        data = write_patients(out / "patients.npz")
        found = [train_both(data, out, seed) for seed in range(args.seeds)]
    print("split        validation   new patients")
    for name in found[0]:
        validation, test = (100 * mean(one[name][which] for one in found) for which in (0, 1))
        print(f"{name:12s} {validation:8.1f} % {test:12.1f} %")


if __name__ == "__main__":
    main()
