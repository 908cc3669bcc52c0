"""One self-contained HTML page: opens offline, in light and dark, on paper and on a phone. No script, no request.

A page is a list of sections and a section a list of parts: text, facts, findings, tables, charts (inline SVG) and strips of
pictures (PNG as data URIs). `vitling.diagnose` builds those of a run and of a diagnosis, `vitling.studies` that of a study.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from numpy.typing import ArrayLike
from PIL import Image

import vitling
from vitling.files import starting_with, write_text

is_page = starting_with(b"<!doctype html>", mark=b'<meta name="generator" content="vitling ')

# ---------------------------------------------------------------------------------------------------------------------
# What a page is made of. `kind` names the part's macro in the template.


@dataclass
class Text:
    """A paragraph."""

    text: str
    kind = "text"


@dataclass
class Facts:
    """Names and values, in two columns."""

    facts: Mapping[str, object]
    kind = "facts"


@dataclass
class Findings:
    """Sentences of a verdict, each with its state ("problem", "watch" or "ok"), what to do, and its numbers in a fold."""

    findings: list
    kind = "findings"


@dataclass
class Table:
    """Rows under a head; numbers are right-aligned."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    kind = "table"


@dataclass
class Chart:
    """An SVG of `vitling.reports.plots`, and what to see in it."""

    svg: str
    caption: str
    wide: bool = False  # takes the whole width of the page
    kind = "chart"


@dataclass
class Picture:
    """One small picture: uint8 pixels, (height, width) or (height, width, 3), shown `width` CSS pixels wide."""

    pixels: np.ndarray
    label: str = ""
    width: int = 96

    @property
    def data_uri(self) -> str:
        image, buffer = Image.fromarray(self.pixels), io.BytesIO()
        if image.width > 2 * self.width:  # sharp on any screen, and no larger than that
            image = image.resize((2 * self.width, max(1, round(2 * self.width * image.height / image.width))))
        image.save(buffer, "PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

    @property
    def is_coarse(self) -> bool:
        """Whether it is enlarged so much that its pixels had better be seen as squares."""
        return self.pixels.shape[1] < self.width


@dataclass
class Strip:
    """Rows of pictures side by side; a row wraps where the page is narrow."""

    rows: list[list[Picture]]
    caption: str = ""
    kind = "strip"


@dataclass
class Code:
    """Text to copy: a command, a recipe. Folded away under its title where it has one."""

    text: str
    title: str = ""
    kind = "code"


@dataclass
class Fold:
    """Parts that are shown when the reader asks for them."""

    title: str
    parts: list
    kind = "fold"


@dataclass
class Section:
    """A heading and its parts."""

    title: str
    parts: list = field(default_factory=list)
    lead: str = ""  # one sentence: what the section answers

    @property
    def anchor(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


@dataclass
class Page:
    """A whole page."""

    title: str
    sections: list[Section]
    subtitle: str = ""


def render(page: Page) -> str:
    """The page as HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = resources.files("vitling.reports").joinpath("template.html.j2").read_text(encoding="utf-8")
    written = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return environment.from_string(template).render(page=page, version=vitling.__version__, written=written)


def write_page(page: Page, path: str | Path) -> Path:
    """Write the page; a reader finds the old one or the new one, never a part. Only another page of ours is replaced."""
    write_text(path, render(page), ours=is_page)
    return Path(path)


def as_picture(pixels: ArrayLike, label: str = "", width: int = 96) -> Picture:
    """A (C, H, W) uint8 tensor as a picture; two channels show the first, more than three the first three."""
    pixels = np.asarray(pixels)
    pixels = pixels[0] if len(pixels) < 3 else pixels[:3].transpose(1, 2, 0)
    return Picture(np.ascontiguousarray(pixels), label, width)


def counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
