"""`vitling.pretrain`: learning from images without labels, with the network that a training on them would get."""

import os
from collections.abc import Callable, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.sources.dataset import canonical_name
from vitling.data.sources.memory import Kept, array_images, is_list_of_images, keep, list_images
from vitling.data.sources.unlabelled import NO_LABELS, PREFIX, WITH_TEST, split_prefix
from vitling.diagnose.paged import train
from vitling.errors import UserError
from vitling.methods import find_method
from vitling.methods.pretraining.recipe import METHOD, pretraining_recipe
from vitling.planning.plan import Plan, plan
from vitling.planning.rules import Choice
from vitling.recipes import override, to_dict
from vitling.runs.asked import asked_plan
from vitling.runs.run import Run
from vitling.training.settings import Settings
from vitling.training.setup import check_settings
from vitling.validation.values import show

ImagesLike: TypeAlias = "str | os.PathLike | np.ndarray | Sequence"
LATER = ("method", "augment.", "optim.")  # what the method decides, not the plan


def pretrain(
    images: ImagesLike,
    run_dir: str | Path,
    changes: Sequence[str] = (),
    *,
    settings: Settings | None = None,
    callback: Callback | None = None,
    on_plan: Callable[[Plan], None] | None = None,
) -> Run:
    """Learn from images without labels, into a run directory; `train` then begins from it with `init=`. The same call again resumes it.

    `images` is any data, a folder without class folders, a list of paths or Pillow images, or an array; labels are ignored but for a
    number now and then, and the test split is left alone. `changes` are settings of the recipe, such as "method=dino". `on_plan` is
    called with what was planned, where the run is new.
    """
    settings, callback = settings or Settings(), callback or Callback()
    data, kept = name_images(images, changes)
    asked = asked_plan(canonical_name(data), list(changes), settings.budget_seconds)
    run = Run(run_dir)
    run.fetch()
    if run.asked == asked and (begun := run.begun_recipe()):
        return train(begun, run.place, settings=settings, asked=asked, callback=callback)
    planned = plan_pretraining(
        data,
        changes,
        budget_seconds=settings.budget_seconds,
        threads=settings.threads,
        precision=settings.precision,
        reading=settings.reading,
        callback=callback,
    )
    if on_plan:
        on_plan(planned)
    recipe = override(planned.recipe, {"data": canonical_name(data)})
    how: dict[str, Any] = dict(settings=settings, dataset=planned.dataset, asked=asked, planned=planned.record())
    trained = train(recipe, run.place, callback=callback, **how)
    del kept  # arrays have a name while this lives
    return trained


def plan_pretraining(
    data: str,
    changes: Sequence[str] = (),
    *,
    budget_seconds: float | None = None,
    threads: int | None = None,
    precision: str = "",
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Plan:
    """What would be pre-trained on `unlabelled:` data: the network that a training on it would get, and the method's own settings."""
    asked = {key.strip(): value.strip() for key, _, value in (text.partition("=") for text in changes)}
    method = asked.get("method", METHOD)
    sizing = [text for text in changes if not text.strip().startswith((*LATER, "unlabelled_test"))]
    planned = plan(
        data,
        sizing,
        budget_seconds=budget_seconds and budget_seconds / find_method(method).passes,
        brief=True,
        threads=threads,
        precision=precision,
        reading=reading,
        callback=callback,
    )
    recipe = pretraining_recipe(planned.recipe, method, channels=planned.dataset.channels)
    recipe = override(recipe, [text for text in changes if not text.strip().startswith("unlabelled_test")])
    check_settings(recipe)
    reason = "as you asked" if "method" in asked else find_method(method).teaches
    choices = [choice for choice in planned.choices if _stands(choice, to_dict(recipe))]
    chosen = Choice("method", method, reason, "both compared: docs/pretraining.md", {"method": method})
    first = next((i for i, choice in enumerate(choices) if choice.what == "epochs"), len(choices))
    changed = [*choices[:first], chosen, *choices[first:]]
    return Plan(
        planned.survey,
        recipe,
        changed,
        planned.warnings,
        "",
        planned.device,
        planned.precision,
        planned.measured,
        planned.dataset,
    )


def _stands(choice: Choice, tree: dict) -> bool:
    """Whether the recipe still says what the choice decided."""

    def same(key: str, value: Any) -> bool:
        try:
            return reduce(getitem, key.split("."), tree) == value
        except KeyError:
            return False

    return choice.what not in ("augmentation", "averaging", "pre-training") and all(
        same(key, value) for key, value in choice.changes.items()
    )


def name_images(images: ImagesLike, changes: Sequence[str] = ()) -> tuple[str, Kept | None]:
    """What `open_dataset` opens them by, and what must live as long as that name is used."""
    asked = [text.partition("=")[2].strip() for text in changes if text.partition("=")[0].strip() == "unlabelled_test"]
    if asked and asked[-1] not in ("true", "false"):
        raise UserError(f"unlabelled_test={show(asked[-1])} must be true or false.")
    prefix = WITH_TEST if asked and asked[-1] == "true" else PREFIX
    if isinstance(images, str | os.PathLike):
        text = os.fspath(images)
        known, given = split_prefix(text)
        if not given:
            raise UserError(f"'{text}' names no images; give a folder, a list of paths, an .npz, or any other data.")
        return (prefix if asked else known or prefix) + given, None
    kept = keep_images(images)
    return prefix + kept.name, kept


def keep_images(images: Any) -> Kept:
    """Arrays, Pillow images or paths under a name of their own."""
    if is_list_of_images(images):
        return keep(list_images(images, np.zeros(len(images), np.int64)), NO_LABELS)
    try:
        pixels = np.asarray(images)
    except ValueError:  # of several shapes
        raise UserError(
            "images of several sizes are no array; give Pillow images or paths, or bring them to one size."
        ) from None
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
        raise UserError(
            f"images of type {pixels.dtype} and shape {pixels.shape} cannot be learnt from; give uint8 of (N, H, W) or (N, H, W, C), "
            "a list of paths, or a folder."
        )
    return keep(array_images(pixels, np.zeros(len(pixels), np.int64)), NO_LABELS)
