"""From a recipe to splits that can be batched: open, carve, choose a size, decode or stream, measure mean and std."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vitling.data.decode import channel_statistics, decode
from vitling.data.images import Images, evenly
from vitling.data.loader import Resident, Streamed
from vitling.data.sources import Dataset, open_dataset
from vitling.data.splits import carve_validation, k_folds, take_fraction
from vitling.errors import UserError
from vitling.recipe import Recipe

SMALL_SIDE = 96  # images of one size and no longer than this keep their size; others are photographs
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes what the model sees. Travels with the run, so that prediction repeats it."""

    size: tuple[int, int]
    channels: int
    fit: str
    white: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> float32 with the training split's mean and spread."""
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1) * 255
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1) * 255
        return (images.float() - mean) / std

    def fit_args(self) -> dict:
        return dict(size=self.size, fit=self.fit, channels=self.channels, white=self.white)


@dataclass(frozen=True)
class Reading:
    """Where data lies and how it is read: nothing that changes a result."""

    root: str | None = None
    download: bool = True
    memory_gb: float = field(default_factory=lambda: default_memory_gb())
    workers: int = field(default_factory=lambda: min(8, os.cpu_count() or 1))


def default_memory_gb() -> float:
    """A quarter of the memory there is for us: what decoded images may take before they are streamed instead."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 4.0
    return min([total, *_container_limits()]) / 4 / 2**30


def _container_limits() -> list[int]:
    """Bytes that the container may use, by control groups of version 2 and 1; without a limit they say "max" or a huge number."""
    texts = [path.read_text().strip() for path in CGROUP_LIMITS if os.access(path, os.R_OK)]
    return [int(text) for text in texts if text.isdigit()]


@dataclass
class TrainingData:
    """The training and validation splits of a run. The test split is not opened here."""

    dataset: Dataset
    train: Resident | Streamed
    val: Resident | Streamed
    preprocessing: Preprocessing

    @property
    def class_names(self) -> list[str]:
        return self.dataset.class_names


Progress = Callable[[str, int, int], None]


def prepare_training_data(
    recipe: Recipe, reading: Reading, *, model_size: tuple[int, int], on_progress: Progress | None = None
) -> TrainingData:
    """Open the recipe's data and make its training and validation splits ready."""
    dataset = open_recipe_data(recipe, reading)
    train, val = split_training(dataset, recipe)
    size = as_size(recipe.img_size) or natural_size(train) or model_size
    args = dict(fit=recipe.fit, channels=dataset.channels, white=dataset.white)
    stored = as_size(recipe.train_size) or size
    reader = dict(reading=reading, on_progress=on_progress)
    train_source = load_split(train, "train", size=stored, **args, **reader)
    if (recipe.mean is None) != (recipe.std is None):
        raise UserError("mean and std belong together; give both, or neither to take them from the training images.")
    if recipe.mean and recipe.std:
        mean, std = recipe.mean, recipe.std
        for key, values in (("mean", mean), ("std", std)):
            if len(values) != dataset.channels:
                raise UserError(f"{key} has {len(values)} values, but the images have {dataset.channels} channels.")
    else:
        pixels = train_source.images if isinstance(train_source, Resident) else train
        mean, std = channel_statistics(pixels, size=stored, **args)
    preprocessing = Preprocessing(size=size, mean=tuple(mean), std=tuple(std), **args)
    val_source = load_split(val, "val", size=size, **args, **reader)
    return TrainingData(dataset, train_source, val_source, preprocessing)


def open_recipe_data(recipe: Recipe, reading: Reading) -> Dataset:
    return open_dataset(
        recipe.data,
        root=reading.root,
        download=reading.download,
        channels=recipe.channels,
        on_bad_image=recipe.on_bad_image,
    )


def split_training(dataset: Dataset, recipe: Recipe) -> tuple[Images, Images]:
    """Training and validation images: the data's own validation split, a fold, or a part carved from train."""
    train, names = dataset.splits["train"], dataset.class_names
    val = dataset.splits.get("val")
    if recipe.folds:
        if val is not None:
            raise UserError(
                f"folds={recipe.folds} asks for k-fold, but the data brings a validation split; use folds=0."
            )
        kept, held = k_folds(train.labels, recipe.folds, recipe.seed, class_names=names)[recipe.fold]
        train, val = train.subset(kept), train.subset(held)
    elif val is None:
        kept, held = carve_validation(train.labels, fraction=recipe.val_fraction, seed=recipe.seed, class_names=names)
        train, val = train.subset(kept), train.subset(held)
    if recipe.fraction < 1:
        kept = take_fraction(train.labels, recipe.fraction, recipe.seed, recipe.fraction_rule, class_names=names)
        train = train.subset(kept)
    return train, val


def natural_size(images: Images) -> tuple[int, int] | None:
    """The size that small images share; None for photographs, which take the size that the model was made for."""
    sizes = {images.read(i).shape[:2] for i in evenly(len(images), 16)}
    height, width = next(iter(sizes))
    return (height, width) if len(sizes) == 1 and max(height, width) <= SMALL_SIDE else None


def as_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (size, size) if isinstance(size, int) else size


def load_split(
    images: Images,
    name: str,
    *,
    size: tuple[int, int],
    fit: str,
    channels: int,
    white: int,
    reading: Reading,
    on_progress: Progress | None = None,
) -> Resident | Streamed:
    """Decode a split into memory where it fits the limit; else read it batch by batch."""
    args = dict(size=size, fit=fit, channels=channels, white=white)
    if len(images) * channels * size[0] * size[1] > reading.memory_gb * 2**30:
        return Streamed(images, workers=reading.workers, **args)
    report = (lambda done, total: on_progress(name, done, total)) if on_progress else None
    return Resident(decode(images, on_progress=report, **args), torch.as_tensor(images.labels))
