"""From a recipe to splits that can be batched: open, carve, choose a size, decode or stream, measure mean and std."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.augment.augment import Augment
from vitling.data.augment.ragged import Ragged
from vitling.data.pipeline.contents import hash_contents
from vitling.data.pipeline.decoding import SAMPLE, channel_statistics, decode
from vitling.data.pipeline.keeping import keep_images, keeping_for
from vitling.data.pipeline.loader import Fitted, Resident, ResidentPictures, Source
from vitling.data.pipeline.preprocessing import Preprocessing, as_size, natural_size
from vitling.data.pipeline.reading import Reading, load_pictures, load_split
from vitling.data.sources.dataset import Dataset, open_dataset
from vitling.data.sources.images import Images
from vitling.data.splits import carve_validation, k_folds, name_some, take_fraction
from vitling.data.targets import Target, lacking
from vitling.errors import UserError
from vitling.recipes import Recipe, to_dict


@dataclass
class TrainingData:
    """The training and validation splits of a run. The test split is not opened here."""

    dataset: Dataset
    train: Source
    val: Fitted
    preprocessing: Preprocessing
    images: dict[str, Images]  # what the two splits were read from

    @cached_property
    def contents(self) -> dict[str, str]:
        """Hashes of what the files hold; made when the run is saved or resumed, because that takes a moment."""
        return {
            name: value
            for split, source in (("train", self.train), ("val", self.val))
            for name, value in hash_contents(self.images[split], source, split).items()
        }

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
    dataset = decide_bins(dataset, train)
    _check_shuffling(recipe, train)
    size = as_size(recipe.img_size) or natural_size(train) or model_size
    args: dict[str, Any] = dict(
        fit=recipe.fit,
        channels=dataset.channels,
        max_value=dataset.max_value,
        interpolation=recipe.interpolation,
    )
    reader: dict[str, Any] = dict(reading=reading, callback=callback)
    train_source, pixels = _load_training(train, recipe, size, args, reader)
    if (recipe.mean is None) != (recipe.std is None):
        raise UserError("mean and std belong together; give both, or neither to take them from the training images.")
    if recipe.mean and recipe.std:
        mean, std = recipe.mean, recipe.std
        for key, values in (("mean", mean), ("std", std)):
            if len(values) != dataset.channels:
                raise UserError(f"{key} has {len(values)} values, but the images have {dataset.channels} channels.")
    else:
        mean, std = map(tuple, channel_statistics(pixels()))
    shown = {name: getattr(recipe, name) for name in ("test_crop", "test_mirror", "test_crops", "test_shifts")}
    preprocessing = Preprocessing(size=size, mean=tuple(mean), std=tuple(std), **shown, **args)
    val_source = load_split(val, "val", **preprocessing.fit_args(), **reader)
    return TrainingData(dataset, train_source, val_source, preprocessing, {"train": train, "val": val})


def create_augment(recipe: Recipe, data: TrainingData) -> Augment:
    """What the recipe does to a training image of this data."""
    seen = data.preprocessing
    spec = {name: value for name, value in to_dict(recipe)["augment"].items() if name != "repeats"}
    if recipe.augment.crop_at == "img_size":
        spec["crop_padding"] = round(spec["crop_padding"] * min(seen.size))
    spec["randaugment"] = spec["randaugment"] or None
    stretched = seen.fit == "resize" and recipe.train_size is None
    return Augment(seen.size, mean=seen.mean, std=seen.std, stretched=stretched, **spec)


def _check_shuffling(recipe: Recipe, train: Images) -> None:
    if train.shards is None and recipe.shuffle_buffer is not None:
        raise UserError(
            f"shuffle_buffer={recipe.shuffle_buffer} is for streams; {recipe.data} can be read in any order and is shuffled as a whole: "
            "leave it out."
        )
    if train.shards is not None and recipe.balance == "sampler":
        raise UserError(
            "balance=sampler draws any image at any time, which a stream cannot give; use balance=loss, or download the data."
        )


def _load_training(
    train: Images, recipe: Recipe, size: tuple[int, int], args: dict[str, Any], reader: dict[str, Any]
) -> tuple[Source, Callable[[], Tensor | Ragged]]:
    """The training images as they are kept, and what their mean and deviation are taken from: of streamed ones, a sample."""
    keeping = keeping_for(recipe, size=size, **args)
    stored = dict(args, size=as_size(recipe.train_size) or size)
    if keeping:
        source = load_pictures(train, "train", keeping, **reader)
    else:
        source = load_split(train, "train", **stored, **reader)

    def pixels() -> Tensor | Ragged:
        if isinstance(source, Resident | ResidentPictures):
            return source.images
        sample = train.subset(train.sample(SAMPLE))
        cache = reader["reading"].open_cache()
        return keep_images(sample, keeping, cache=cache) if keeping else decode(sample, cache=cache, **stored)

    return source, pixels


def open_recipe_data(recipe: Recipe, reading: Reading, *, opened: Dataset | None = None) -> Dataset:
    """The data of a recipe; what was `opened` before, such as for a plan, is used again as far as it is the same."""
    return open_dataset(
        recipe.data,
        root=reading.root,
        download=reading.download,
        channels=recipe.channels,
        on_bad_image=recipe.on_bad_image,
        test_split=recipe.test_split,
        group=recipe.group,
        labels=recipe.labels,
        opened=opened,
    )


def split_training(dataset: Dataset, recipe: Recipe) -> tuple[Images, Images]:
    """Training and validation images: the data's own validation split, a fold, or a part carved from train."""
    train, target = dataset.splits["train"], dataset.target
    names = dataset.class_names if target.has_classes else None
    val = dataset.splits.get("val")
    if recipe.fraction_rule == "bootstrapping":
        target.require_classes("fraction_rule=bootstrapping divides", dataset.name)
        train = _part(train, recipe, target, names)
    if recipe.folds:
        if val is not None:
            raise UserError(
                f"folds={recipe.folds} asks for k-fold, but the data brings a validation split; use folds=0."
            )
        kept, held = k_folds(_strata(target, train), recipe.folds, recipe.seed, class_names=names, groups=train.groups)[
            recipe.fold
        ]
        train, val = train.subset(kept), train.subset(held)
    elif val is None:
        kept, held = carve_validation(
            _strata(target, train),
            fraction=recipe.val_fraction,
            seed=recipe.seed,
            class_names=names,
            groups=train.groups,
        )
        train, val = train.subset(kept), train.subset(held)
    if recipe.fraction_rule == "vitling":  # last, so that every fraction is validated on the same images
        train = _part(train, recipe, target, names)
    if train.targets is not None and target.kind == "several":
        _check_labels_left(train, val, dataset, recipe)
    return train, val


def decide_bins(dataset: Dataset, train: Images) -> Dataset:
    """The data with bins for its numbers, from training images alone; other data as it is."""
    if dataset.target.kind != "numbers":
        return dataset
    target = dataset.target.with_bins(train.targets)
    return replace(dataset, class_names=list(target.names), target=target)


def _strata(target: Target, images: Images) -> np.ndarray:
    return target.strata(images.labels, images.targets, images.groups)


def _check_labels_left(train: Images, val: Images, dataset: Dataset, recipe: Recipe) -> None:
    assert train.targets is not None, "images of several labels have targets"
    assert val.targets is not None, "and so has every split"
    if not val.targets.any():
        raise UserError(
            f"no validation image of {dataset.name} has any label, so that nothing can be measured; set another seed or a larger val_fraction."
        )
    # A part of the images may lack a label: then it is learnt that nothing has it.
    if recipe.fraction == 1 and (gone := lacking(train.targets, dataset.target.names, 1)):
        raise UserError(
            f"no image with {name_some(gone, 'the label', 'the labels')} of {dataset.name} is left to train on; set another seed or fewer "
            "folds, or remove the label."
        )


def _part(train: Images, recipe: Recipe, target: Target, names: list[str] | None) -> Images:
    if recipe.fraction == 1:
        return train
    kept = take_fraction(
        _strata(target, train),
        recipe.fraction,
        recipe.seed,
        recipe.fraction_rule,
        class_names=names,
        groups=train.groups,
    )
    return train.subset(kept)
