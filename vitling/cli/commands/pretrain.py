"""`vitling pretrain`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.commands.train import PAGE_SECONDS, STARTED, folder_for
from vitling.cli.options import (
    Budget,
    Changes,
    CheckpointSeconds,
    DataRoot,
    MemoryGb,
    NoCache,
    PlannedPrecision,
    Quiet,
    Threads,
    Workers,
    reading_options,
)
from vitling.errors import UserError

if TYPE_CHECKING:
    from vitling.planning.plan import Plan

IMAGES_HELP = "A folder of images, with or without class folders, or any other DATA; labels are ignored."


def pretrain(
    images: Annotated[str, typer.Argument(metavar="IMAGES", help=IMAGES_HELP, autocompletion=completion.data)],
    settings: Changes = None,
    out: Annotated[Path | None, typer.Option(help="The run directory. The same one again resumes the run.")] = None,
    budget: Budget = None,
    precision: PlannedPrecision = "",
    threads: Threads = None,
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    quiet: Quiet = False,
) -> None:
    """Learn from images without labels; `vitling train DATA init=RUN` then begins from there."""
    if any(setting.startswith("data=") for setting in settings or []):
        raise UserError("the images are the first argument; leave data= out.")
    budget_seconds = terminal.parse_budget(budget)

    vitling.register_models()  # after the first checks: a typo is answered before torch has loaded

    from vitling.data.sources.dataset import canonical_name
    from vitling.diagnose.paged import write_trained
    from vitling.planning.pretraining import name_images
    from vitling.runs.asked import asked_plan
    from vitling.runs.run import free_directory

    changes = settings or []
    data, _ = name_images(images, changes)
    if out is None:
        asked = asked_plan(canonical_name(data), changes, budget_seconds)
        out = free_directory(folder_for(images, "pretrained"), asked)
    where = vitling.Settings(
        precision=precision,
        threads=threads,
        budget_seconds=budget_seconds,
        reserve_seconds=PAGE_SECONDS,
        began=STARTED,
        checkpoint_seconds=checkpoint_seconds,
        reading=reading_options(data_root, memory_gb, workers, no_cache),
        page=False,  # it is written below, after what is said of the end
    )
    with terminal.resumable(), terminal.show_training(quiet or os.environ.get("RANK", "0") != "0") as callback:

        def show(planned: "Plan") -> None:
            for line in terminal.pretraining_lines(planned):
                callback.log(line)

        run = vitling.pretrain(images, out, changes, settings=where, callback=callback, on_plan=show)
        callback.on_end(run)
        if page := write_trained(run, reading=where.reading, callback=callback, note=terminal.note):
            callback.log(f"page: {page}")
