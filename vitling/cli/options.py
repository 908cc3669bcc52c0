"""Arguments and options that several commands share, and what becomes of them."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitling.cli import completion

if TYPE_CHECKING:
    from vitling.data.pipeline.reading import Reading

DATA_HELP = "digits, cifar100, hf:owner/name, a folder, a CSV, a list or an .npz."
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
Precision = Annotated[
    str, typer.Option(help="no (float32), bf16 or fp16.", autocompletion=completion.one_of("no", "bf16", "fp16"))
]
Seeds = Annotated[str, typer.Option(help="How many, or which: 5, or 0,3,7.")]
EqualTime = Annotated[
    str | None, typer.Option(help="Equal wall time per run, such as 5m; epochs follow from measured speed.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time, each in a process of its own.")]
ThreadsOfEach = Annotated[int | None, typer.Option(min=1, help="CPU threads of each run.")]
Budget = Annotated[
    str | None, typer.Option(help="Time to use, such as 90s, 30m or 2h: fits epochs and schedule to it.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; default: one or all, as is faster.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder that already holds a named dataset.")]
MemoryGb = Annotated[
    float | None, typer.Option(min=0, help="Decoded images may take so much memory; larger data is streamed.")
]
Workers = Annotated[int | None, typer.Option(min=0, help="Processes that read streamed data.")]
SkipBadImages = Annotated[bool, typer.Option("--skip-bad-images", help="Leave unreadable images out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only results and errors.")]


def reading_options(root: Path | None, memory_gb: float | None, workers: int | None) -> "Reading":
    """How data is read, from the options that say so."""
    from vitling.data.pipeline.reading import Reading

    given: dict[str, Any] = {"root": str(root) if root else None, "memory_gb": memory_gb, "workers": workers}
    return Reading(**{name: value for name, value in given.items() if value is not None})


def typed_command() -> str:
    """The command as it was typed, to be repeated."""
    return shlex.join(["vitling", *sys.argv[1:]])


def absolute(data: str) -> str:
    """Paths go into the recipe whole, so that the run can be repeated from anywhere; the name of a dataset stays a name."""
    from vitling.data.sources.named import match_name

    return str(Path(data).resolve()) if Path(data).exists() and not match_name(data) else data
