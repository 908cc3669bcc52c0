"""A run's learning curve: its recipe on parts of its training images, as a study that can be stopped and goes on."""

import time
from dataclasses import replace
from pathlib import Path

from vitling.callbacks import StudyCallback
from vitling.data.pipeline.reading import Reading
from vitling.diagnose.growth import PARTS, LearningCurve, Part, fit_learning_curve
from vitling.errors import UserError
from vitling.recipes import scale_epochs
from vitling.runs.run import Run
from vitling.studies.study import study
from vitling.training.settings import Settings

FOLDER = "learning-curve"
LEAST_IMAGES = 32  # to learn from in the smallest part


def learn_parts(
    run: Run,
    *,
    budget_seconds: float | None = None,
    jobs: int = 1,
    reading: Reading | None = None,
    callback: StudyCallback | None = None,
) -> LearningCurve:
    """Train the run's recipe on an eighth, a quarter and half of its images, and say where that leads with twice as many.

    Every part gets the run's epochs, so they take less time than the run took, and the run itself is the last point. A budget that is shorter
    takes fewer epochs for all of them, the whole included. The study lies in the run's learning-curve/, and the same call resumes it.
    """
    if not run.finished:
        raise UserError(
            f"{run.path} is not finished; train it to its end before parts of its data are compared with it."
        )
    began, recipe, info = time.monotonic(), run.recipe, run.info
    images, tested = info["data"]["train_images"], info["data"]["val_images"]
    parts = [part for part in PARTS if part * images >= LEAST_IMAGES]
    if len(parts) < 2:
        raise UserError(
            f"{images} training images are too few for a learning curve; parts of them would have less than {LEAST_IMAGES}."
        )
    share = (budget_seconds or info["wall_seconds"]) / (info["wall_seconds"] * (sum(parts) + 1))
    whole = budget_seconds is None or budget_seconds >= sum(parts) * info["wall_seconds"]
    if not whole:
        recipe, parts = scale_epochs(recipe, max(1, int(share * recipe.epochs))), [*parts, 1.0]
    name = f"{recipe.epochs} epochs"
    trained = study(
        {name: replace(recipe, validate_every=min(recipe.validate_every, recipe.epochs))},
        Path(run.path) / FOLDER,
        seeds=[recipe.seed],
        fractions=parts,
        split="val",
        jobs=jobs,
        settings=Settings(reading=reading or Reading(), page=False),
        callback=callback,
    )
    if trained.failures:
        raise UserError(f"a part could not be trained: {next(iter(trained.failures.values()))}")
    found = [
        Part(one.info["data"]["train_images"], one.info["best"]["val_top1"], one.info["data"]["val_images"])
        for (_, fraction, _), one in trained.runs.items()
        if fraction in parts
    ]
    if whole:
        found.append(Part(images, info["best"]["val_top1"], tested))
    return fit_learning_curve(found, seconds=time.monotonic() - began)
