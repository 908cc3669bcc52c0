"""Preparation: what a method may use to get ready, before it is built around its model."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitling._deprecated import renamed_attribute
from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import TrainingData
from vitling.recipes import NO_FIRST_STAGE, Optim, Recipe
from vitling.runs.run import Run


@dataclass(frozen=True)
class Preparation:
    """The run that a method will be trained in. What a method writes into `folder` it finds again when the run resumes."""

    recipe: Recipe
    data: TrainingData
    folder: Path
    callback: Callback
    train: Callable[[Recipe, str], Run]  # another recipe, into a subfolder; resumed or reused if it is there
    once: Callable[[Callable[[], Any]], Any]  # call in one process first; the others call it then and find its files
    reading: Reading = field(default_factory=Reading)  # where data lies and how it is read

    say = renamed_attribute("say", "callback.log")
    on_progress = renamed_attribute("on_progress", "callback.on_progress")


def cnn_recipe(recipe: Recipe, *, model: str, epochs: int, optim: Optim, **changes: Any) -> Recipe:
    """A plain training of a CNN on the same images, with the same ones held out: what teaches must not know the validation split."""
    return replace(
        recipe,
        model=model,
        model_args={},
        method="supervised",
        method_args=dict(label_smoothing=0.1),
        init="",
        **NO_FIRST_STAGE,
        freeze=(),
        epochs=epochs,
        batch_size=min(recipe.batch_size, 128),
        accumulate=1,
        optim=optim,
        ema_decay=0.0,
        soup_epochs=0,
        patience_epochs=0,
        compile="off",
        **changes,
    )
