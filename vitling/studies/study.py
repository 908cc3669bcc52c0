"""study(recipes, folder): a grid of recipes, data fractions and seeds, trained to the end."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch

from vitling.callbacks import Callback, StudyCallback
from vitling.data.pipeline.training_data import open_recipe_data
from vitling.diagnose.paged import write_evaluated, write_trained
from vitling.errors import UserError, did_you_mean
from vitling.evaluation.evaluation import evaluate_and_keep
from vitling.methods import find_method
from vitling.planning.speed import measure_speeds
from vitling.recipes import Recipe
from vitling.reports.page import write_page
from vitling.runs.run import Run
from vitling.studies.engines import Engine, create_engine
from vitling.studies.engines.base import MOST_AT_ONCE
from vitling.studies.page import study_page
from vitling.studies.results import RUNS, Key, Row, Study, evaluation_file, run_label, slug
from vitling.training.beginning import train
from vitling.training.budget import fit_to_budget
from vitling.training.settings import Settings, check_precision
from vitling.training.signals import Interrupted, stop_on_signals
from vitling.validation.values import Range, Seed, check

SPLITS = ("test", "val")
MOST_SEEDS = 10_000


def study(
    recipes: dict[str, Recipe],
    folder: str | Path,
    *,
    seeds: int | Sequence[int] = 3,
    fractions: Sequence[float] = (1.0,),
    budget_seconds: float | None = None,
    by_clock: bool = False,
    split: str = "test",
    jobs: int | None = None,
    engine: str | Engine = "local",
    gpus_per_trial: float | None = None,
    settings: Settings | None = None,
    callback: StudyCallback | None = None,
) -> Study:
    """Train every recipe with every seed on every fraction of the data, then write the table and the page.

    The same call again resumes it. `split="val"` compares best validation accuracies, for making choices;
    `"test"` looks at the test split, once per run. `budget_seconds` is wall time per run, equal for all recipes: epochs that
    follow from speeds measured in turns, the same when it is repeated; or, `by_clock`, a schedule that each run keeps to the clock by itself,
    which is exact in runs of few epochs and needs no measuring.

    `engine` is where runs are trained: local, ray, ray://HOST:PORT, slurm, or an `Engine`. `jobs` is how many at once: one on this
    machine unless given, elsewhere as many as there is room for. `gpus_per_trial` is what each gets of the machine's or cluster's.
    """
    check(seeds if isinstance(seeds, int) else len(seeds), Annotated[int, Range(0, MOST_SEEDS)], "seeds")
    seeds = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    settings, callback = settings or Settings(), callback or StudyCallback()
    engine = create_engine(engine, gpus_per_trial) if isinstance(engine, str) else engine
    if engine.is_here and (jobs or 1) > 1 and not settings.threads:
        settings = replace(settings, threads=max(1, torch.get_num_threads() // (jobs or 1)))
    _check_plan(recipes, seeds, fractions, split, jobs, settings)
    for name, recipe in recipes.items():
        if find_method(recipe.method).unlabelled:
            raise UserError(
                f"{name}: method={recipe.method} learns without labels, so it has no accuracy to compare; leave it out."
            )
        if recipe.unlabelled and budget_seconds and not by_clock:
            raise UserError(
                f"{name}: unlabelled={recipe.unlabelled} is a first stage that goes by the clock; set by_clock, or epochs for all."
            )
    if by_clock and not budget_seconds:
        raise UserError("by_clock is how runs keep a budget; give budget_seconds too.")
    if budget_seconds and not by_clock and not engine.is_here:
        raise UserError(
            "budget_seconds is measured on this machine, and the runs are trained on others; set epochs, or by_clock."
        )
    place = Run(folder)
    if place.mirror:  # each run is mirrored by itself, wherever it is trained
        place.mirror.leave_out = RUNS
    place.fetch()
    result = Study(folder)
    with place.locked():
        result.plan(recipes, seeds, fractions, budget_seconds, split, by_clock)
        _check_data(recipes, split, settings)
        if budget_seconds and not by_clock:
            _measure(result, budget_seconds, settings, callback)
        result.fetch_runs()
        result.check_runs()
        place.remove_leftovers()
        with engine:
            if _todo(result):
                engine.open(result.folder)  # before anything is written: there may be no such cluster
            result.save()
            _complete(result, jobs, engine, settings, callback)
        result.write_tables()
        write_page(study_page(result), result.folder / "study.html")
        result.save()
    return result


def complete_run(recipe: Recipe, path: str | Path, *, split: str, settings: Settings, callback: Callback) -> None:
    """Train to the end and, where that is the study's split, look at the test split: once, whatever happens later."""
    run, dataset = Run(path), None
    if not run.finished:
        settings = replace(settings, began=time.monotonic())
        dataset = open_recipe_data(recipe, settings.reading)
        trained = train(recipe, path, settings=settings, dataset=dataset, callback=callback)
        if settings.page:
            write_trained(trained, reading=settings.reading, callback=callback)
    first = os.environ.get("RANK", "0") == "0"  # of the processes that trained it together
    if first and split == "test" and not evaluation_file(run).exists():
        result, seen = evaluate_and_keep(run, reading=settings.reading, dataset=dataset, callback=callback)
        write_evaluated(run, result, seen, reading=settings.reading, callback=callback)
        if not result.kept:  # a study is made of what its runs keep
            raise UserError(result.notes[-1])


def _todo(study: Study) -> list[Key]:
    return [key for key, run in study.runs.items() if study.score(run) is None]


def _complete(study: Study, jobs: int | None, engine: Engine, settings: Settings, callback: StudyCallback) -> None:
    """Complete every run; what one of them refuses is written down and does not stop the others."""
    todo = _todo(study)
    callback.on_study_start(len(study.runs), len(study.runs) - len(todo))
    jobs = min(jobs or (1 if engine.is_here else max(1, len(todo))), engine.slots)
    is_embedded = engine.is_here and jobs == 1 and engine.gpus is None
    complete = complete_run if is_embedded else engine.complete_run

    def work(key: Key) -> str:
        """Complete one run: the reason where it failed."""
        where = study.run_settings(key[0], settings)
        try:
            recipe, progress = study.run_recipe(*key), callback.on_run_start(run_label(*key))
            complete(recipe, study.run_place(key), split=study.split, settings=where, callback=progress)
            return ""
        except UserError as error:
            return str(error)

    def done(key: Key, reason: str) -> None:
        study.failures |= {key: reason} if reason else {}
        study.fetch_runs(key)
        study.save()
        score = study.score(study.runs[key])
        callback.on_run_end(run_label(*key), reason or f"{score:.2f} %")

    if is_embedded:
        for key in todo:
            done(key, work(key))
        return
    with stop_on_signals() as stop, ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(work, key): key for key in todo}
        try:
            while waiting:
                ended, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                if stop.requested and not engine.stopping:
                    engine.stop()
                for future in ended:
                    key = waiting.pop(future)
                    if not isinstance(future.exception(), Interrupted):
                        done(key, future.result())
        except BaseException:  # a second Ctrl-C, or an error of ours: leave nobody behind
            engine.stop()
            raise
    if engine.stopping:
        raise Interrupted(f"saved the runs of {study.folder}; the same command resumes them", stop.signal_number)


def _measure(study: Study, budget_seconds: float, settings: Settings, callback: StudyCallback) -> None:
    """Measure the recipes that have no speed yet.

    A recipe that joins later is measured in turns with the first one known, and counts as if it had been there then.
    """
    missing = {name: study.recipes[name] for name in study.names if name not in study.speeds}
    if not missing:
        return
    baseline = next(iter(study.speeds), None)
    measured = {**({baseline: study.recipes[baseline]} if baseline else {}), **missing}
    speeds = measure_speeds(
        measured,
        study.folder / ".vitling-measuring",  # is emptied first: a name that nobody else gives
        settings=settings,
        budget_seconds=budget_seconds,
        callback=callback,
    )
    slower = study.speeds[baseline].step / speeds.pop(baseline).step if baseline else 1.0
    study.speeds |= {name: speed.scaled(slower) for name, speed in speeds.items()}
    for name in missing:
        for fraction in study.fractions:
            try:
                fitted = fit_to_budget(study.recipes[name], study.speeds[name], budget_seconds, fraction)
            except UserError as error:
                raise UserError(f"{name}: {error}") from None
            part = "" if fraction == 1 else f", {fraction:g} of the data"
            speed = f"{1000 * study.speeds[name].step:.0f} ms a step"
            callback.log(f"{name}{part}: {speed}, so epochs={fitted.epochs} in {budget_seconds:g} s")


def _check_plan(recipes: dict[str, Recipe], seeds, fractions, split: str, jobs: int | None, settings: Settings) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a study starts its runs itself; leave the launcher out and set jobs for several at once.")
    if settings.budget_seconds:
        raise UserError("a study's budget is its own budget_seconds; leave that of the settings out.")
    check_precision(settings.precision)
    if not recipes:
        raise UserError("a study needs at least one recipe; `vitling list recipes` shows all.")
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'; a study compares test or val. {did_you_mean(split, SPLITS)}")
    for what, values in (("seeds", seeds), ("fractions", list(fractions))):
        if not values or len(set(values)) < len(values):
            raise UserError(f"{what}={','.join(map(str, values)) or 'none'} must be one or more distinct values.")
    for fraction in fractions:
        if not 0 < fraction <= 1:
            raise UserError(f"the fraction {fraction:g} is out of range; it must be more than 0 and at most 1.")
    for seed in seeds:
        check(seed, Seed, "the seed")
    check(1 if jobs is None else jobs, Annotated[int, Range(1, MOST_AT_ONCE)], "jobs")
    folders: dict[str, str] = {}
    for name in recipes:
        other = folders.setdefault(slug(name).lower(), name)
        if other != name:
            raise UserError(f"the names '{other}' and '{name}' map to the same folder; rename one of them.")


def _check_data(recipes: dict[str, Recipe], split: str, settings: Settings) -> None:
    """Open each dataset: what cannot be read, or has no test split, is reported before hours are spent."""
    distinct = {
        (recipe.data, recipe.channels, recipe.test_split, recipe.group, recipe.labels): recipe
        for recipe in recipes.values()
    }
    for recipe in distinct.values():
        dataset = open_recipe_data(recipe, settings.reading)
        dataset.target.require_classes("a study compares accuracies on", dataset.name)
        if split == "test" and "test" not in dataset.splits:
            raise UserError(f"{dataset.name} has no test split; compare on the part held out of training: split=val.")


__all__ = ["Row", "Study", "study"]
