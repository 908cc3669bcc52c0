"""What the parts of the bench work on: a few small images, recipes of seconds, and finished runs. Made once, in one folder."""

import io
import random
import shutil
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from torture import injection
from vitling.recipes import Augment, Optim, Recipe, override, save_recipe

CLASSES = ("ant", "bee", "cow")
RECIPE = Recipe(
    model="hybrid_vit_test",
    model_args=dict(drop_path_rate=0.1),
    method_args=dict(mixup=0.2, label_smoothing=0.1),
    img_size=16,
    epochs=3,
    batch_size=16,
    augment=Augment(crop="pad", hflip=0.5, erase=0.25),
    optim=Optim(lr=2e-3, warmup_epochs=1),
)
FRAGILE = "ema_decay=0.9"  # a state beside the weights, which a checkpoint could forget

PLUGIN = '''
from vitling.methods import Supervised, register_method


class Gentle(Supervised):
    """Half of every loss."""

    def forward(self, batch, progress):
        return {name: 0.5 * loss for name, loss in super().forward(batch, progress).items()}


register_method("gentle", Gentle)
'''


class Material:
    """A folder of material. Everything in it is the same whenever it is made."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.arrays, self.photos, self.shard = folder / "data.npz", folder / "photos", folder / "shard.tar"
        self.more_arrays, self.plugin = folder / "more.npz", folder / "plugin_of_the_bench.py"
        draw = np.random.default_rng(0)
        images = {name: self._images(draw, count) for name, count in (("train", 72), ("test", 12))}
        self._save(self.arrays, images)
        self._save(self.more_arrays, {"train": self._images(draw, 160)})  # parts of which can be learnt from
        self.plugin.write_text(PLUGIN)
        for number, (image, label) in enumerate(zip(images["train"]["images"], images["train"]["labels"], strict=True)):
            path = self.photos / CLASSES[label] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        with tarfile.open(self.shard, "w") as shard:
            for number, label in enumerate(images["train"]["labels"]):
                picture = (self.photos / CLASSES[label] / f"{number}.png").read_bytes()
                for name, content in ((f"{number}.png", picture), (f"{number}.cls", CLASSES[label].encode())):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    shard.addfile(entry, io.BytesIO(content))

    @staticmethod
    def _save(path: Path, images: dict[str, dict[str, np.ndarray]]) -> None:
        arrays = {f"{name}_{what}": value for name, both in images.items() for what, value in both.items()}
        np.savez(path, class_names=np.array(CLASSES), **arrays)

    @staticmethod
    def _images(draw: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        labels = np.arange(count) % len(CLASSES)
        noise = draw.integers(0, 100, (count, 12, 12, 3)) + 70 * labels[:, None, None, None]
        return {"images": noise.astype(np.uint8), "labels": labels}

    def recipe(self, name: str, *settings: str) -> Path:
        """The file of a recipe; the same name has the same settings."""
        path = self.folder / f"{name}.yaml"
        if not path.exists():
            save_recipe(override(RECIPE, [f"data={self.arrays}", *settings]), path)
        return path

    def run(self, name: str, *settings: str, data: Path | None = None) -> Path:
        """A finished run, trained when it is first asked for."""
        path = self.folder / f"run-{name}"
        if not path.exists():
            recipe = self.recipe(f"run-{name}", *settings)
            train = ["train", data or self.arrays, "--recipe", recipe, "--out", path.name, "--threads", "1", "--quiet"]
            outcome = injection.run(train, self.folder)
            if outcome.code != 0:
                raise RuntimeError(f"the undisturbed training of {name} failed: {outcome.describe()}")
        return path

    def teacher(self) -> Path:
        return self.run("teacher", "model=resnet9_test", "epochs=2", "model_args.drop_path_rate=0")


def chance(seed: int, *where: object) -> random.Random:
    """The draws of one trial, which depend on the seed and its number alone."""
    return random.Random("/".join(map(str, (seed, *where))))


def empty_folder(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
