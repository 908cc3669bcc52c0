"""Images whose label is probably wrong, found by models that did not learn from it.

Without training, those are the run's own validation images, and training images by a linear classifier that leaves each of them out. By
cross-validation every training image is in the validation split of one of several runs like this one.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import open_recipe_data
from vitling.data.sources.dataset import Dataset
from vitling.data.sources.images import Images
from vitling.data.splits import k_folds
from vitling.diagnose.advice import run_seconds
from vitling.diagnose.label_errors import LabelErrors, find_label_errors, rank_by_doubt
from vitling.errors import UserError
from vitling.evaluation.predictions import predict_images
from vitling.recipes import Recipe, scale_epochs
from vitling.runs.run import Run
from vitling.training.beginning import train
from vitling.training.settings import Settings

FOLDS = 4
FOLDER = "label-errors"


@dataclass(frozen=True)
class SuspectLabels:
    """Images whose label is probably wrong, the surest first, of those that were looked at."""

    images: Images
    probabilities: Tensor  # out of sample
    errors: LabelErrors
    how: str  # "validation" or "cross-validation"

    @property
    def names(self) -> list[str]:
        return [self.images.names[i] for i in self.errors.index.tolist()]

    def ranked(self) -> Tensor:
        """All images, the most doubtful first."""
        return rank_by_doubt(self.probabilities, torch.as_tensor(self.images.labels))


def suspect_labels(images: Images, probabilities: Tensor, how: str) -> SuspectLabels:
    labels = torch.as_tensor(images.labels).long()
    return SuspectLabels(images, probabilities, find_label_errors(probabilities, labels), how)


def cross_validate(
    run: Run,
    *,
    budget_seconds: float | None = None,
    folds: int = FOLDS,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> SuspectLabels:
    """Train the run's recipe on all but one fold, for each fold, and let each say what it thinks of its own.

    It takes the time that the run took, or the budget, and goes on where it was stopped: the trainings lie in the run's label-errors/.
    """
    reading, callback, recipe = reading or Reading(), callback or Callback(), run.recipe
    dataset = open_recipe_data(recipe, reading)
    train_images = dataset.splits["train"]
    groups = train_images.groups
    units = train_images.labels
    if groups is not None:  # as many folds as a class has groups: each is held out whole
        units = np.array([label for label, _ in set(zip(units.tolist(), groups.tolist(), strict=True))])
    smallest = int(np.bincount(units).min())
    folds = max(2, min(folds, smallest)) if smallest > 1 else folds
    share = (budget_seconds or run_seconds(run)) / ((folds - 1) * run_seconds(run))
    shorter = max(1, round(recipe.epochs * min(share, 1.0)))
    recipe = scale_epochs(recipe, shorter) if shorter < recipe.epochs else recipe
    # The data's own validation split would take the folds' place, and none of them needs the test split.
    alone = replace(dataset, splits={"train": train_images})
    probabilities = torch.zeros(len(train_images), len(dataset.class_names), dtype=torch.float64)
    splits = k_folds(train_images.labels, folds, recipe.seed, class_names=dataset.class_names, groups=groups)
    for number, (_, held) in enumerate(splits):
        callback.log(f"training without fold {number + 1} of {folds}")
        one = _train_fold(run, recipe, number, folds, alone, reading, callback)
        predictions = predict_images(
            one, one.load_model("last"), train_images.subset(held), "fold", reading=reading, callback=callback
        )
        probabilities[held] = predictions.logits.double().softmax(dim=1)
    return suspect_labels(train_images, probabilities, "cross-validation")


def _train_fold(
    run: Run, recipe: Recipe, number: int, folds: int, dataset: Dataset, reading: Reading, callback: Callback
) -> Run:
    recipe = replace(recipe, folds=folds, fold=number, fraction=1.0)
    settings = Settings(reading=reading, began=time.monotonic())
    folder = Path(run.path) / FOLDER / f"fold-{number + 1}-of-{folds}"
    try:
        return train(recipe, folder, settings=settings, dataset=dataset, callback=callback)
    except UserError as error:
        raise UserError(f"fold {number + 1} of {folds} could not be trained: {error}") from None
