"""The console that everything is printed to, and the ways of printing: a line, a heading, a named entry, a whole table."""

import os
import re
import shutil
import sys
import textwrap
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

console = Console(highlight=False, emoji=False)  # a class may be called ":ok:"
LEAST_COLUMN = 30  # characters that text beside a name needs
# What is copied as it stands: "next: vitling ...", "page: ...", up to four spaces, behind which it is explained.
COMMAND = re.compile(r"\s*((next|page|run|then): |vitling |pip install )(?:(?!    ).)*")


def print_line(text: str, **style: Any) -> None:
    """A line: users' names are not markup, and a long path or command stays whole, to be copied.

    On a terminal that is narrower, prose is broken between its words, and what stands behind a command goes below it.
    """
    for line in fold(text, console.width) if console.is_terminal else [text]:
        console.print(line, soft_wrap=True, markup=False, **style)


def fold(text: str, width: int) -> list[str]:
    """Text in lines of this width, broken between words; a path or a command is never broken."""
    lines = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
        elif command := COMMAND.match(line):
            rest = line[command.end() :].strip()
            lines += [line[: command.end()].rstrip(), *(f"  {one}" for one in fold(rest, width - 2) if rest)]
        else:
            indent = " " * (len(line) - len(line.lstrip()))
            lines += textwrap.wrap(
                line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            ) or [line]
    return lines


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and texts beside them; on a terminal that is too narrow for that, below them."""
    column = max(len(name) for name, _ in pairs) + 2
    for name, text in pairs:
        beside = f"{name:<{column}}{text}".rstrip()
        if not console.is_terminal or len(beside) <= console.width:
            print(beside)
            continue
        if console.width - column >= LEAST_COLUMN:
            first, *more = fold(text, console.width - column)
            print(f"{name:<{column}}{first}")
            print(*(" " * column + line for line in more), sep="\n", end="\n" * bool(more))
        else:
            print(name, *(f"    {line}" for line in fold(text, console.width - 4)), sep="\n")


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
    """A table whose numbers are never cut off; on a terminal that is too narrow for it, a record for each row."""
    table = Table(*head[:1], box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in cells:
        table.add_row(*map(escape, row))
    whole = console.measure(table, options=console.options.update(max_width=1000)).maximum
    if not console.is_terminal or whole <= console.width:
        Console(width=max(whole, console.width), highlight=False, emoji=False).print(table)
        return
    column = max(map(len, head[1:])) + 2
    for row in cells:
        heading(row[0])
        for name, value in zip(head[1:], row[1:], strict=True):
            if value:
                first, *more = fold(value, max(console.width - column - 2, LEAST_COLUMN))
                print_line(f"  {name:<{column}}{first}")
                for line in more:
                    print_line(f"  {'':<{column}}{line}")
    print_line("")


def note(text: str) -> None:
    """A note that is not an error, on standard error, so that it never mixes with data."""
    print_error(f"note: {text}")


def print_error(text: str) -> None:
    """A line on standard error; on a terminal, broken between words."""
    lines = fold(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else [text]
    print(*lines, sep="\n", file=sys.stderr)


def open_page(page: Path, wanted: bool | None) -> None:
    """Open a page in the browser if that is wanted; by default, where there is a screen."""
    screen = sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
    if wanted or (wanted is None and screen and console.is_terminal and "CI" not in os.environ):
        webbrowser.open(page.resolve().as_uri())
