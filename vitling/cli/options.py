"""Arguments and options that several commands share, and what becomes of them."""

import functools
import inspect
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitling.cli import completion
from vitling.files import check_path
from vitling.plugins import import_plugin

if TYPE_CHECKING:
    from vitling.data.pipeline.reading import Reading


def finite(number: float | None) -> float | None:
    """A range lets NaN pass, which is neither below nor above anything."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a finite number.")
    return number


DATA_HELP = "digits, cifar100, hf:owner/name, a folder, a .zip or .tar, shards, a .parquet, a CSV, a list or an .npz."
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, autocompletion=completion.data)]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", autocompletion=completion.runs)]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Changes to the recipe, such as epochs=50.", autocompletion=completion.settings
    ),
]
Split = Annotated[
    str, typer.Option(help="test, val or train.", autocompletion=completion.one_of("test", "val", "train"))
]
Weights = Annotated[str, typer.Option(help="best or last.", autocompletion=completion.one_of("best", "last"))]
AllViews = Annotated[
    bool,
    typer.Option(
        "--tta",
        help="Ask about images as training showed them as well: mirrored, moved or their corners, whatever the run does by itself; six to ten times the time.",
    ),
]
PRECISIONS = completion.one_of("no", "bf16", "fp16")
Precision = Annotated[str, typer.Option(help="no (float32), bf16 or fp16.", autocompletion=PRECISIONS)]
PlannedPrecision = Annotated[
    str,
    typer.Option(
        help="no (float32), bf16 or fp16; default: that of the run, bf16 for what is planned where it is faster, else no.",
        autocompletion=PRECISIONS,
    ),
]
Seeds = Annotated[str, typer.Option(help="How many, or which: 5, or 0,3,7.")]
EqualTime = Annotated[
    str | None, typer.Option(help="Equal wall time per run, such as 5m; epochs follow from measured speed.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, max=512, help="Runs at the same time, each in a process of its own; default: one, on a cluster all."
    ),
]
On = Annotated[
    str,
    typer.Option(
        metavar="ENGINE",
        help="Where runs are trained: local, ray, ray://HOST:10001, or slurm[:partition=NAME,time=MINUTES].",
        autocompletion=completion.one_of("local", "ray", "ray://", "slurm"),
    ),
]
GpusPerTrial = Annotated[
    float | None,
    typer.Option(min=0, max=1024, callback=finite, help="GPUs of each run: a part of one, one, or several."),
]
ThreadsOfEach = Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads of each run.")]
Budget = Annotated[
    str | None, typer.Option(help="Time to use, such as 90s, 30m or 2h: fits epochs and schedule to it.")
]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads; default: one or all, as is faster.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder that already holds a named dataset.")]
MemoryGb = Annotated[
    float | None,
    typer.Option(
        min=0, max=1e6, callback=finite, help="Decoded images may take so much memory; larger data is streamed."
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Neither use nor keep decoded images on disk ($VITLING_CACHE says where).")
]
Workers = Annotated[int | None, typer.Option(min=0, max=512, help="Processes that read streamed data.")]
CheckpointSeconds = Annotated[
    float, typer.Option(min=0, max=1e9, callback=finite, help="Save for resuming this often.")
]
EpochsOfAll = Annotated[
    int | None, typer.Option(min=1, max=10_000_000, help="Epochs of every run; schedules shrink with them.")
]
ImageCount = Annotated[int, typer.Option("--images", min=1, max=10_000_000, help="How many images to look at.")]
Top = Annotated[
    int | None,
    typer.Option(min=1, max=10_000_000, help="Classes per image; by default 3, or every one of several labels."),
]
TopK = Annotated[int, typer.Option(min=1, max=65_536, help="Classes kept per cell.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes any that is free.")]
SkipBadImages = Annotated[bool, typer.Option("--skip-bad-images", help="Leave unreadable images out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILE|MODULE",
        help="Python of your own with models, methods, recipes or data; may be given several times.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only results and errors.")]


def with_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for code of the user's own, which is imported before anything else."""

    @functools.wraps(command)
    def importing(*arguments: Any, plugins: list[str] | None, **options: Any) -> None:
        for plugin in plugins or []:
            import_plugin(plugin)
        command(*arguments, **options)

    signature = inspect.signature(command)
    option = inspect.Parameter("plugins", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
    importing.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    importing.__annotations__ = {**command.__annotations__, "plugins": Plugins}
    return importing


def reading_options(root: Path | None, memory_gb: float | None, workers: int | None, no_cache: bool) -> "Reading":
    """How data is read, from the options that say so."""
    from vitling.data.pipeline.reading import Reading

    given: dict[str, Any] = {"root": str(root) if root else None, "memory_gb": memory_gb, "workers": workers}
    given["cache"] = not no_cache
    return Reading(**{name: value for name, value in given.items() if value is not None})


def typed_command() -> str:
    """The command as it was typed, to be repeated."""
    return shlex.join(["vitling", *sys.argv[1:]])


def absolute(data: str) -> str:
    """Paths go into the recipe whole, so that the run can be repeated from anywhere; the name of a dataset stays a name."""
    from vitling.data.sources.named import match_name
    from vitling.data.sources.registered import absolute_source
    from vitling.data.sources.shards import absolute_pattern

    if match_name(data):
        return data
    if source := absolute_source(data):
        return source
    return str(Path(data).resolve()) if check_path(data).exists() else absolute_pattern(data) or data
