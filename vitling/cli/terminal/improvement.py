"""Progress of an improvement: the table of its trials, live in a terminal and after each round elsewhere; and its result."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from vitling.callbacks import ImproveCallback
from vitling.cli.terminal.console import console, print_line, print_whole
from vitling.cli.terminal.study import LiveStudy, PlainStudy
from vitling.cli.terminal.training import COLUMNS, resumable

if TYPE_CHECKING:
    from vitling.improvement.record import Improvement


class PlainImprovement(PlainStudy, ImproveCallback):
    """Lines, and the table after each round."""

    def on_change(self, improvement: Any) -> None:
        if improvement.rounds and "scores" in improvement.rounds[-1] and not improvement.finished:
            print_whole(*improvement.table())


class TableAndBars(Progress):
    """The table of trials above the bars."""

    head_and_cells: tuple[list[str], list[list[str]]] | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.head_and_cells:
            head, cells = self.head_and_cells
            table = Table(*head[:1], box=box.SIMPLE_HEAD, pad_edge=False)
            for name in head[1:]:
                table.add_column(name, justify="right", overflow="ellipsis", no_wrap=True)
            for row in cells:
                table.add_row(*map(escape, row))
            yield table
        yield from super().get_renderables()


class LiveImprovement(LiveStudy, ImproveCallback):
    """The table moves as rounds begin and end; under it the bars of the runs in progress."""

    def __init__(self, progress: TableAndBars):
        super().__init__(progress)
        self.progress = progress

    def on_change(self, improvement: Any) -> None:
        self.progress.head_and_cells = improvement.table()
        self.progress.refresh()


@contextmanager
def show_improvement(quiet: bool = False) -> Iterator[ImproveCallback]:
    """A callback for `improve`. When interrupted it says how to resume."""
    with resumable(partial(print, file=sys.stderr)):
        if quiet:
            yield ImproveCallback()
        elif console.is_terminal:
            with TableAndBars(*COLUMNS, console=console, transient=True) as progress:
                yield LiveImprovement(progress)
        else:
            yield PlainImprovement()


def show_improvement_result(result: "Improvement") -> None:
    """The table, where everything lies, and the sentence as the last line."""
    print_whole(*result.table())
    print_line("accuracy on the images that choose, in percent; equal wall time in each round")
    print_line(f"page: {result.folder / 'improve.html'}")
    if winner := result.winner:
        print_line(f"run: {winner.path}    recipe for all of the data: {result.folder / 'recipe.yaml'}")
    if result.better and winner:
        print_line(f"next: vitling evaluate {winner.path}    (the test set: look once)")
    print_line(result.sentence, style="bold")
