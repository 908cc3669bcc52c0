"""A run as training leaves it, without a training: noise of two classes, and weights that were never trained."""

from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image

from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.sources.dataset import open_dataset
from vitling.recipes import Recipe
from vitling.runs.run import Run

TINY = dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2)


def make_tiny_run(root: Path, *, channels: int = 3, fit: str = "resize", seed: int = 0, **how) -> Run:
    """`how` goes into the preprocessing."""
    rng = np.random.default_rng(seed)
    for name in ("cat", "dog"):
        folder = root / "data" / name
        folder.mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(0, 256, (12, 10, 3) if channels == 3 else (12, 10), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    dataset = open_dataset(root / "data")
    run = Run(root / "run")
    run.path.mkdir()
    run.save_recipe(Recipe(data=str(root / "data"), model="vit_tiny_patch16_224", model_args=TINY, val_fraction=0.5))
    mean, std = (0.5, 0.4, 0.3, 0.2)[:channels], (0.25, 0.2, 0.1, 0.3)[:channels]
    run.update(
        status="finished",
        class_names=dataset.class_names,
        preprocessing=Preprocessing((8, 8), channels, fit, 255, mean, std, **how),
        data=dict(name=dataset.name, fingerprint=dataset.fingerprint, train_images=20, val_images=20),
    )
    torch.manual_seed(seed)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, in_chans=channels, **TINY)
    torch.nn.init.normal_(model.head.weight)
    run.save_model("best", model, dataset.class_names, {**TINY, "in_chans": channels})
    return run


def images_of(run: Run) -> list[Path]:
    return sorted((run.path.parent / "data").rglob("*.png"))
