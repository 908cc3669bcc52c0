"""The console that everything is printed to, and the ways of printing: a line, a heading, a named entry, a whole table."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

console = Console(highlight=False, emoji=False)  # a class may be called ":ok:"


def print_line(text: str, **style: Any) -> None:
    """A line as it is: users' names are not markup, and a long path stays whole, to be copied."""
    console.print(text, soft_wrap=True, markup=False, **style)


def heading(text: str) -> None:
    print_line(text, style="bold")


def entry(what: str, *texts: str) -> None:
    """A name on the left and texts beside it, the first one to be seen and the rest to be read."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=12)
    grid.add_column()
    for i, text in enumerate(filter(None, texts)):
        grid.add_row("" if i else what, escape(text), style="dim" if i else "")
    console.print(grid)


def print_whole(head: list[str], cells: list[list[str]]) -> None:
    """A table whose numbers are never cut off, however narrow the terminal."""
    table = Table(*head[:1], box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in cells:
        table.add_row(*map(escape, row))
    whole = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(width=max(whole, console.width), highlight=False, emoji=False).print(table)


def note(text: str) -> None:
    """A note that is not an error, on standard error, so that it never mixes with data."""
    print(f"note: {text}", file=sys.stderr)


def open_page(page: Path, wanted: bool | None) -> None:
    """Open a page in the browser if that is wanted; by default, where there is a screen."""
    screen = sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
    if wanted or (wanted is None and screen and console.is_terminal and "CI" not in os.environ):
        webbrowser.open(page.resolve().as_uri())
