"""train_folds(recipe, run_dir, folds): one network per fold, and the ensemble of them as a run of its own.

Every image is held out by exactly one fold. What that fold's network says of it gives one honest number from all the images, and the
networks together give the model. The same call again resumes: folds that are finished stay as they are.
"""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from vitling.callbacks import Callback
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.pipeline.training_data import open_recipe_data
from vitling.data.sources.dataset import Dataset
from vitling.diagnose.paged import write_trained
from vitling.ensembles.joining import join
from vitling.errors import UserError
from vitling.methods.distillation import AUTO, taught_by
from vitling.recipes import Recipe, from_dict, to_dict
from vitling.runs.asked import asked_ensemble, asked_for
from vitling.runs.run import FOLD, Run
from vitling.training.beginning import train
from vitling.training.budget import BudgetTooShort
from vitling.training.knowledge import find_knowledge
from vitling.training.settings import Settings
from vitling.training.setup import check_settings
from vitling.validation.values import show

MOST = 100  # folds
DISTILLED = "distilled"  # the folder of the single network
JOINING_SHARE, JOINING_SECONDS = 0.05, 10.0  # of a budget, for what follows the folds; at most so long


def train_folds(
    recipe: Recipe,
    run_dir: str | Path,
    folds: int = 5,
    *,
    distill: bool = False,
    settings: Settings | None = None,
    dataset: Dataset | None = None,
    asked: dict | None = None,
    planned: dict | None = None,
    callback: Callback | None = None,
) -> Run:
    """Train `folds` networks, each with another part of the images held out, and join them; the run is the ensemble.

    With `distill`, one more network of the same size learns from the ensemble and from all images but a validation split; it is the run
    in RUN/distilled. A budget is divided equally among all of them. `asked` and `planned` are those of `vitling.train`.
    """
    settings, callback = settings or Settings(), callback or Callback()
    _check(recipe, folds, settings)
    if distill:
        check_settings(taught_by(recipe, AUTO))  # now, not when all folds are trained; its teacher is not there yet
    run, recipe = Run(run_dir), from_dict(to_dict(recipe))
    asked = asked or asked_ensemble(asked_for(recipe, settings.budget_seconds), folds, distill)
    with run.locked():
        run.claim(asked)
        run.remove_leftovers()
        recipe = begun_members(run, asked) or recipe
        if run.finished:
            callback.log(f"{run.path} is finished already: {run.info['stopped']}.")
        else:
            try:
                dataset = open_recipe_data(recipe, settings.reading, opened=dataset)
                _check_data(recipe, dataset)
            except UserError:
                run.give_back()
                raise
            record = {"plan": planned} if planned else {}
            run.update(asked=asked, status="preparing", member_recipe=to_dict(recipe), **record)
            _Folds(run, recipe, folds, distill, settings, dataset, callback).train_and_join()
        if distill:
            _Folds(run, recipe, folds, distill, settings, dataset, callback).distill_joined()
    if settings.page:
        for written in (run, *([Run(run.path / DISTILLED)] if distill else [])):
            write_trained(written, reading=settings.reading, callback=callback)
    return run


def begun_members(run: Run, asked: dict) -> Recipe | None:
    """What the members are trained by, where this was begun already: planned anew, it might be something else."""
    known = run.info.get("member_recipe")
    return from_dict(known) if known and run.asked == asked else None


def check_folds(folds: int) -> None:
    """Refuse what is no number of folds."""
    if not isinstance(folds, int) or isinstance(folds, bool):
        raise UserError(f"folds={show(folds)} must be a whole number, 2 to {MOST}.")
    if not 2 <= folds <= MOST:
        raise UserError(f"folds={folds} is out of range; it must be 2 to {MOST}.")


def _check(recipe: Recipe, folds: int, settings: Settings) -> None:
    check_folds(folds)
    if recipe.folds or recipe.fold:
        raise UserError(
            f"folds={recipe.folds} fold={recipe.fold} of the recipe train one fold; leave them out where all of them are trained."
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"the folds of an ensemble are trained by one process, not {os.environ['WORLD_SIZE']}; leave the launcher out, or train single "
            "folds with it: folds=5 fold=0 and so on."
        )
    if settings.shard:
        raise UserError("an ensemble is joined in one process; leave shard out, or train single folds with it.")


def _check_data(recipe: Recipe, dataset: Dataset) -> None:
    if "val" in dataset.splits:
        raise UserError(
            f"folds hold out parts of the training images, and {dataset.name} brings validation images of its own; leave folds out, or join "
            "the two splits first."
        )
    dataset.target.require_classes("folds are joined of networks that learnt", dataset.name)
    if reason := find_knowledge(recipe, dataset):
        raise UserError(
            f"{reason}, so no image would be judged by a network that does not know it; leave it out where folds are trained."
        )


@dataclass(frozen=True)
class _Folds:
    """Everything that the trainings of an ensemble have in common."""

    run: Run
    recipe: Recipe
    folds: int
    distilled: bool
    settings: Settings
    dataset: Dataset | None
    callback: Callback

    def train_and_join(self) -> None:
        began = time.monotonic()
        members: list[Run] = []
        for fold in range(self.folds):
            self.callback.log(f"fold {fold + 1} of {self.folds}")
            recipe = replace(self.recipe, folds=self.folds, fold=fold)
            if members:  # one way to see images for all: what differs from fold to fold is a digit of the mean
                recipe = _seen_as(recipe, members[0].preprocessing())
            members.append(self._train(recipe, FOLD.format(fold + 1), first=not fold))
        seconds = time.monotonic() - began
        join(self.run, members, wall_seconds=seconds, reading=self.settings.reading, callback=self.callback)

    def distill_joined(self) -> None:
        """One network of the same size that learns from the ensemble as well."""
        recipe = taught_by(self.recipe, str(self.run.path.absolute()))
        known = self.recipe.method in (Recipe.method, recipe.method)
        others = "" if known else f"; method={self.recipe.method} is of the folds alone"
        self.callback.log(f"one network learns from the labels and from the ensemble{others}")
        self._train(_seen_as(recipe, self.run.preprocessing()), DISTILLED)

    def _train(self, recipe: Recipe, folder: str, *, first: bool = False) -> Run:
        try:
            own = share(self.settings, self.folds + self.distilled, first=first)
            return train(
                recipe,
                self.run.path / folder,
                settings=own,
                dataset=self.dataset,
                planned=self.run.info.get("plan"),
                callback=self.callback,
            )
        except UserError as error:  # of the first fold: nothing has come of it
            self.run.give_back()
            if not isinstance(error, BudgetTooShort):
                raise
            share_of_whole = error.budget / (self.settings.budget_seconds or error.budget)
            raise error.of_whole(share_of_whole, f"one of {self.folds + self.distilled} trainings") from None


def _seen_as(recipe: Recipe, seen: Preprocessing) -> Recipe:
    return replace(recipe, img_size=seen.size, channels=seen.channels, mean=seen.mean, std=seen.std)


def share(settings: Settings, parts: int, *, first: bool) -> Settings:
    """The settings of one of so many trainings, with an equal part of the budget; the first has waited for the command to start."""
    if settings.budget_seconds is None:
        return replace(settings, page=False)
    joining = min(JOINING_SHARE * settings.budget_seconds, JOINING_SECONDS) + settings.reserve_seconds
    seconds = (settings.budget_seconds - joining) / parts
    if seconds <= 0:
        raise UserError(f"a budget of {settings.budget_seconds:g} s leaves nothing for {parts} trainings; give more.")
    began = settings.began if first else time.monotonic()
    return replace(settings, budget_seconds=seconds, reserve_seconds=0.0, began=began, page=False)
