"""From a recipe to splits that can be batched: open, carve, choose a size, decode or stream, measure mean and std."""

from dataclasses import dataclass
from typing import Any

from vitling.callbacks import Callback
from vitling.data.pipeline.decoding import channel_statistics
from vitling.data.pipeline.loader import Resident, Streamed
from vitling.data.pipeline.preprocessing import Preprocessing, as_size, natural_size
from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.sources.dataset import Dataset, open_dataset
from vitling.data.sources.images import Images
from vitling.data.splits import carve_validation, k_folds, take_fraction
from vitling.errors import UserError
from vitling.recipes import Recipe


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


def prepare_training_data(
    recipe: Recipe,
    reading: Reading,
    *,
    model_size: tuple[int, int],
    dataset: Dataset | None = None,
    callback: Callback | None = None,
) -> TrainingData:
    """Open the recipe's data, unless `dataset` is just that, and make its training and validation splits ready."""
    dataset = open_recipe_data(recipe, reading, opened=dataset)
    train, val = split_training(dataset, recipe)
    size = as_size(recipe.img_size) or natural_size(train) or model_size
    args: dict[str, Any] = dict(fit=recipe.fit, channels=dataset.channels, max_value=dataset.max_value)
    stored = as_size(recipe.train_size) or size
    reader: dict[str, Any] = dict(reading=reading, callback=callback)
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
        mean, std = map(tuple, channel_statistics(pixels, size=stored, **args))
    preprocessing = Preprocessing(size=size, mean=tuple(mean), std=tuple(std), **args)
    val_source = load_split(val, "val", size=size, **args, **reader)
    return TrainingData(dataset, train_source, val_source, preprocessing)


def open_recipe_data(recipe: Recipe, reading: Reading, *, opened: Dataset | None = None) -> Dataset:
    """The data of a recipe; what was `opened` before, such as for a plan, is used again as far as it is the same."""
    return open_dataset(
        recipe.data,
        root=reading.root,
        download=reading.download,
        channels=recipe.channels,
        on_bad_image=recipe.on_bad_image,
        test_split=recipe.test_split,
        opened=opened,
    )


def split_training(dataset: Dataset, recipe: Recipe) -> tuple[Images, Images]:
    """Training and validation images: the data's own validation split, a fold, or a part carved from train."""
    train, names = dataset.splits["train"], dataset.class_names
    val = dataset.splits.get("val")
    if recipe.fraction_rule == "bootstrapping":
        train = _part(train, recipe, names)
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
    if recipe.fraction_rule == "vitling":  # last, so that every fraction is validated on the same images
        train = _part(train, recipe, names)
    return train, val


def _part(train: Images, recipe: Recipe, names: list[str]) -> Images:
    if recipe.fraction == 1:
        return train
    kept = take_fraction(train.labels, recipe.fraction, recipe.seed, recipe.fraction_rule, class_names=names)
    return train.subset(kept)
