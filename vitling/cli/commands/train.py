"""`vitling train`."""

import os
import re
import time
from pathlib import Path
from typing import Annotated

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import (
    Budget,
    Changes,
    Data,
    DataRoot,
    MemoryGb,
    Precision,
    Quiet,
    Threads,
    Workers,
    absolute,
    reading_options,
)
from vitling.errors import UserError

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
    more: Annotated[
        str | None,
        typer.Option(help="Train the finished run in --out further, for so much longer: 30m. DATA is the run's own."),
    ] = None,
    precision: Precision = "no",
    threads: Threads = None,
    data_root: DataRoot = None,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Save for resuming this often.")] = 60.0,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log to TensorBoard.")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases.")] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log to MLflow.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from scratch; the same command again resumes it."""
    if any(setting.startswith("data=") for setting in settings or []):
        raise UserError("the data is the first argument; leave data= out.")
    chosen = vitling.override(vitling.load_recipe(recipe), settings or []) if recipe else None
    budget_seconds, more_seconds = terminal.parse_budget(budget), terminal.parse_budget(more, "--more")
    if more_seconds and (out is None or settings or recipe or budget):
        raise UserError(
            "--more trains a finished run further as it is: give its folder with --out, and no recipe, settings or --budget."
        )

    vitling.register_models()  # after the first checks: a typo is answered before torch has loaded

    from vitling.diagnose.run_page import write_run_page
    from vitling.runs.run import asked_for, free_directory

    reading = reading_options(data_root, memory_gb, workers)
    trackers = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
    where = vitling.Settings(
        precision=precision,
        threads=threads,
        budget_seconds=budget_seconds,
        reserve_seconds=PAGE_SECONDS,
        began=STARTED,
        checkpoint_seconds=checkpoint_seconds,
        trackers=tuple(tracker for tracker, wanted in trackers.items() if wanted),
        reading=reading,
    )
    messages, dataset = [], None
    if not more_seconds and (settings or chosen is None):  # a recipe as it stands needs no look at the data
        planned = vitling.plan(data, settings or [], recipe=chosen, brief=True, reading=reading)
        chosen, messages, dataset = planned.recipe, terminal.plan_lines(planned, data), planned.dataset
    if chosen:
        init = absolute(chosen.init) if chosen.init else ""
        chosen = vitling.override(chosen, {"data": absolute(data), "init": init})
    if out is None:
        base = Path("runs") / re.sub(r"[^\w.-]+", "-", f"{Path(data).stem}-{Path(recipe or chosen.model).stem}")
        out = free_directory(base, asked_for(chosen, budget_seconds))
    with terminal.show_training(quiet or os.environ.get("RANK", "0") != "0") as callback:
        for line in messages:
            callback.log(line)
        if more_seconds:
            check_data_of_run(out, absolute(data))
            run = vitling.train_more(out, more_seconds, settings=where, callback=callback)
        else:
            run = vitling.train(chosen, out, settings=where, dataset=dataset, callback=callback)
        callback.on_end(run)
        if run.finished and os.environ.get("RANK", "0") == "0":
            page = write_run_page(run, predictions=run.validation, reading=where.reading, callback=callback)
            callback.log(f"page: {page}")


def check_data_of_run(out: Path, data: str) -> None:
    """A run is trained further on its own data; another one is a typo."""
    own = vitling.load_run(out).recipe.data
    if own != data:
        raise UserError(f"{out} was trained on {own}, not on {data}; --more takes the run's own data.")
