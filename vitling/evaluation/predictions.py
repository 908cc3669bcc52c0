"""Predictions: a model's logits of a split, so that page and calibration compute them once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.loader import Fitted
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.pipeline.training_data import open_recipe_data, split_training
from vitling.data.sources.dataset import Dataset
from vitling.data.sources.images import Images
from vitling.errors import UserError
from vitling.evaluation.loop import predict_logits
from vitling.runs.run import Run


@dataclass(frozen=True)
class Predictions:
    """Logits of every image of a split, (images, classes), with the images themselves."""

    logits: Tensor
    source: Fitted
    preprocessing: Preprocessing
    names: Sequence[str] = ()  # of the images, where they are known
    groups: np.ndarray | None = None  # that they belong to, likewise

    @property
    def labels(self) -> Tensor:
        return self.source.labels

    @property
    def targets(self) -> Tensor:
        """What was to be learnt where that is no class number."""
        assert self.source.targets is not None, "images of classes have labels"
        return self.source.targets


def predict_images(
    run: Run,
    model: nn.Module,
    images: Images,
    name: str,
    *,
    size: tuple[int, int] | None = None,
    tta: bool = False,
    reading: Reading,
    callback: Callback | None = None,
) -> Predictions:
    """A run's predictions for images, in its own size and by its own views unless others are asked for; `name` is what progress calls them."""
    preprocessing = run.preprocessing()
    preprocessing = replace(preprocessing, size=size) if size else preprocessing
    preprocessing = preprocessing.with_views(run.recipe.augment) if tta else preprocessing
    source = load_split(images, name, reading=reading, callback=callback, **preprocessing.fit_args())
    logits = predict_logits(model, source, preprocessing, callback=callback)
    return Predictions(logits, source, preprocessing, images.names, images.groups)


def predict_validation(
    run: Run, model: nn.Module, *, reading: Reading | None = None, callback: Callback | None = None
) -> Predictions:
    """A run's predictions for the images that it was validated on: of an ensemble, each image by the member that held it out."""
    reading = reading or Reading()
    if members := run.members:
        return predict_out_of_fold(run, members, reading=reading, callback=callback)
    return predict_images(run, model, validation_images(run, reading), "val", reading=reading, callback=callback)


def predict_out_of_fold(
    run: Run, members: Sequence[Run], *, reading: Reading, callback: Callback | None = None
) -> Predictions:
    """Every training image of an ensemble's data, in the data's order, as the one member sees it that did not learn from it.

    Members that were trained just now know their answers already.
    """
    dataset = open_own_data(run, replace(reading, download=False))
    train, rows, logits = dataset.splits["train"], [], []
    for member in members:
        held = split_training(dataset, member.recipe)[1]
        seen = member.validation or predict_images(
            member, member.load_model("best"), held, member.path.name, reading=reading, callback=callback
        )
        rows.append(held.rows)
        logits.append(seen.logits)
    order = np.argsort(np.concatenate(rows), kind="stable")
    by_row = np.argsort(train.rows, kind="stable")
    images = train.subset(by_row[np.searchsorted(train.rows[by_row], np.concatenate(rows)[order])])
    preprocessing = run.preprocessing()
    source = load_split(images, "train", reading=reading, callback=callback, **preprocessing.fit_args())
    return Predictions(torch.cat(logits)[torch.as_tensor(order)], source, preprocessing, images.names, images.groups)


def validation_images(run: Run, reading: Reading) -> Images:
    """The images that the run was validated on; refused where the data is no longer what it was trained on.

    Nothing is downloaded: who predicts one image should not wait for a dataset.
    """
    return split_training(open_own_data(run, replace(reading, download=False)), run.recipe)[1]


def open_own_data(run: Run, reading: Reading) -> Dataset:
    """The data that a run was trained on; refused where it is no longer what it was."""
    run.require("data")
    dataset = open_recipe_data(run.recipe, reading)
    if run.data_fingerprint not in (None, dataset.fingerprint):
        raise UserError(f"{dataset.name} has changed since the training, so its splits of then are unknown.")
    return dataset
