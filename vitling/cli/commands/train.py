"""`vitling train`."""

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import (
    Budget,
    Changes,
    CheckpointSeconds,
    Data,
    DataRoot,
    MemoryGb,
    NoCache,
    PlannedPrecision,
    Quiet,
    Threads,
    Workers,
    absolute,
    reading_options,
)
from vitling.errors import UserError

if TYPE_CHECKING:
    from vitling.callbacks import Callback
    from vitling.data.sources.dataset import Dataset
    from vitling.planning.plan import Plan
    from vitling.recipes import Recipe
    from vitling.runs.run import Run
    from vitling.training.settings import Settings

STARTED = time.monotonic()  # what a budget counts from
PAGE_SECONDS = 3.0  # of a budget, for the page of the run


def train(
    data: Data,
    settings: Changes = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A name, a YAML file or a run; default: what `vitling plan` says.", autocompletion=completion.recipes
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory. The same one again resumes the run.")] = None,
    budget: Budget = None,
    unlabelled: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGES",
            help="Learn from these first, without labels, for a share of the time (unlabelled_time=): a folder of images, or any DATA.",
            autocompletion=completion.data,
        ),
    ] = None,
    more: Annotated[
        str | None,
        typer.Option(help="Train the finished run in --out further, for so much longer: 30m. DATA is the run's own."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=100,
            help="Train so many networks, each with another part of the images held out, and join them: one number from all the images.",
        ),
    ] = None,
    distill: Annotated[
        bool, typer.Option("--distill", help="With --folds: then train one network that learns from all of them.")
    ] = False,
    precision: PlannedPrecision = "",
    shard: Annotated[
        bool,
        typer.Option(
            "--shard", help="Divide the model among the processes of a launcher (FSDP): for one that does not fit."
        ),
    ] = False,
    threads: Threads = None,
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log to TensorBoard.")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases.")] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log to MLflow.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from scratch; the same command again resumes it."""
    if any(setting.startswith("data=") for setting in settings or []):
        raise UserError("the data is the first argument; leave data= out.")
    if unlabelled is not None:
        if any(setting.partition("=")[0].strip() == "unlabelled" for setting in settings or []):
            raise UserError("--unlabelled and unlabelled= are the same setting; give one of them.")
        settings = [*(settings or []), f"unlabelled={absolute(unlabelled)}"]
    chosen = vitling.override(vitling.load_recipe(recipe), settings or []) if recipe else None
    budget_seconds, more_seconds = terminal.parse_budget(budget), terminal.parse_budget(more, "--more")
    if more_seconds and (settings or recipe or budget):
        raise UserError("--more trains a finished run further as it is; leave recipe, settings and --budget out.")
    if more_seconds and folds:
        raise UserError("--more trains one network further; leave --folds out.")
    if folds and any(setting.startswith(("folds=", "fold=")) for setting in settings or []):
        raise UserError("folds= and fold= train one fold, --folds trains all of them; leave one of the two out.")
    if distill and not folds:
        raise UserError("--distill is for --folds: one network learns from those of all folds.")
    if more_seconds and out is None:
        raise UserError("--more trains a finished run further: say which, with --out.")

    vitling.register_models()  # after the first checks: a typo is answered before torch has loaded

    from vitling.diagnose.paged import write_trained

    reading = reading_options(data_root, memory_gb, workers, no_cache)
    trackers = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
    where = vitling.Settings(
        precision=precision,
        shard=shard,
        threads=threads,
        budget_seconds=budget_seconds,
        reserve_seconds=PAGE_SECONDS,
        began=STARTED,
        checkpoint_seconds=checkpoint_seconds,
        trackers=tuple(tracker for tracker, wanted in trackers.items() if wanted),
        reading=reading,
        page=False,  # it is written below, after what is said of the end
    )
    with terminal.resumable(), terminal.show_training(quiet or os.environ.get("RANK", "0") != "0") as callback:
        if more_seconds and out:
            check_data_of_run(out, absolute(data))
            run = vitling.train_more(out, more_seconds, settings=where, callback=callback)
        elif folds:
            run = train_all_folds(data, settings or [], recipe, chosen, out, folds, distill, where, callback)
        elif chosen and recipe and not settings:  # a recipe as it stands needs no look at the data
            run = train_recipe(chosen, data, out, recipe, where, None, callback)
        elif chosen and recipe:
            planned = vitling.plan(data, settings or [], recipe=chosen, brief=True, reading=reading)
            for line in terminal.plan_lines(planned, data):
                callback.log(line)
            run = train_recipe(planned.recipe, data, out, recipe, where, planned.dataset, callback)
        else:
            run = train_planned(data, settings or [], out, where, callback)
        callback.on_end(run)
        if page := write_trained(run, reading=where.reading, callback=callback, note=terminal.note):
            callback.log(f"page: {page}")


def train_recipe(
    chosen: "Recipe",
    data: str,
    out: Path | None,
    name: str,
    where: "Settings",
    dataset: "Dataset | None",
    callback: "Callback",
) -> "Run":
    """Train the recipe that was given."""
    from vitling.runs.asked import asked_for
    from vitling.runs.run import free_directory

    chosen = with_whole_paths(chosen, data)
    out = out or free_directory(folder_for(data, Path(name).stem), asked_for(chosen, where.budget_seconds))
    return vitling.train(chosen, out, settings=where, dataset=dataset, callback=callback)


def train_planned(data: str, settings: list[str], out: Path | None, where: "Settings", callback: "Callback") -> "Run":
    """Train what is planned for this data, time and machine; a run that was planned before keeps its plan."""
    from vitling.runs.asked import asked_plan
    from vitling.runs.run import Run, free_directory

    asked = asked_plan(absolute(data), settings, where.budget_seconds)
    run = Run(out or free_directory(folder_for(data), asked))
    run.fetch()
    if run.asked == asked and (begun := run.begun_recipe()):
        return vitling.train(begun, run.place, settings=where, asked=asked, callback=callback)
    planned = plan_training(data, settings, where, callback)
    return vitling.train(
        with_whole_paths(planned.recipe, data),
        run.place,
        settings=where,
        dataset=planned.dataset,
        asked=asked,
        planned=planned.record(),
        callback=callback,
    )


def plan_training(data: str, settings: list[str], where: "Settings", callback: "Callback") -> "Plan":
    """What to train, said in a few lines."""
    planned = vitling.plan(
        data,
        settings,
        budget_seconds=where.budget_seconds,
        brief=True,
        threads=where.threads,
        precision=where.precision,
        reading=where.reading,
        callback=callback,
    )
    for line in terminal.plan_lines(planned, data):
        callback.log(line)
    return planned


def train_all_folds(
    data: str,
    settings: list[str],
    name: str | None,
    chosen: "Recipe | None",
    out: Path | None,
    folds: int,
    distill: bool,
    where: "Settings",
    callback: "Callback",
) -> "Run":
    """Train every fold of the recipe that was given, or of what is planned for a fold's part of the time."""
    from vitling.ensembles.folds import begun_members, share
    from vitling.runs.asked import asked_ensemble, asked_for, asked_plan
    from vitling.runs.run import Run, free_directory

    ways: dict[str, Any] = dict(distill=distill, settings=where, callback=callback)
    if chosen and name:
        chosen = with_whole_paths(chosen, data)
        asked = asked_ensemble(asked_for(chosen, where.budget_seconds), folds, distill)
        place = out or free_directory(folder_for(data, Path(name).stem, f"{folds}-folds"), asked)
        return vitling.train_folds(chosen, place, folds, **ways)
    asked = asked_ensemble(asked_plan(absolute(data), settings, where.budget_seconds), folds, distill)
    run = Run(out or free_directory(folder_for(data, f"{folds}-folds"), asked))
    if begun := begun_members(run, asked):
        return vitling.train_folds(begun, run.place, folds, asked=asked, **ways)
    planned = plan_training(data, [*settings, f"folds={folds}"], share(where, folds + distill, first=True), callback)
    recipe = vitling.override(with_whole_paths(planned.recipe, data), {"folds": 0})
    ways |= dict(dataset=planned.dataset, asked=asked, planned=planned.record())
    return vitling.train_folds(recipe, run.place, folds, **ways)


def with_whole_paths(recipe: "Recipe", data: str) -> "Recipe":
    """The recipe on this data; what it names by a path is found from any folder, so that it resumes from there."""
    places = {"data": data, "init": recipe.init, "unlabelled": recipe.unlabelled}
    if images := recipe.method_args.get("unlabelled"):  # what a teacher is asked about
        places |= {"method_args.unlabelled": images, "method_args.teacher": recipe.method_args.get("teacher", "")}
    return vitling.override(recipe, {key: absolute(place) if place else "" for key, place in places.items()})


def folder_for(data: str, *what: str) -> Path:
    """Where a run goes that nobody gave a folder."""
    return Path("runs") / re.sub(r"[^\w.-]+", "-", "-".join([Path(data).stem, *what]))


def check_data_of_run(out: Path, data: str) -> None:
    """A run is trained further on its own data; another one is a typo."""
    own = vitling.load_run(out).recipe.data
    if own != data:
        raise UserError(f"{out} was trained on {own}, not on {data}; --more takes the run's own data.")
