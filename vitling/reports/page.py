"""One self-contained HTML page: opens offline, in light and dark, on paper and on a phone, and asks the network for nothing.

A page is a list of sections and a section a list of parts: text, facts, findings, tables, charts (inline SVG), strips and galleries
of pictures (data URIs). Where it has tabs, these hold further sections. `vitling.diagnose` builds those of a run and of a diagnosis,
`vitling.studies` that of a study. page.js switches tabs, zooms into curves and filters galleries; without it, a page is one long
document with everything in it. The page's own policy lets no other script run.
"""

import base64
import hashlib
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from html import escape, unescape
from importlib import resources
from pathlib import Path
from urllib.parse import quote

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
    """Rows under a head; numbers are right-aligned, and a `Link` is one."""

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

    @property
    def zooms(self) -> bool:
        """Whether it says what its axes mean, so that the page can zoom into it."""
        return " data-x=" in self.svg[:400]


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
    def height(self) -> int:
        """In CSS pixels, so that a page does not jump when the picture arrives."""
        return max(1, round(self.width * self.pixels.shape[0] / self.pixels.shape[1]))

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


@dataclass(frozen=True)
class Tile:
    """One picture of a gallery: an image as `encode` makes it, its name, its true class, the prediction and that one's share."""

    data_uri: str
    name: str
    truth: str
    guess: str
    share: float
    coarse: bool = False

    @property
    def label(self) -> str:
        return f"{self.truth}, predicted {self.guess} {self.share:.0%}"


@dataclass
class Gallery:
    """Pictures that a reader can filter by true class, prediction and confidence; loaded when they come into view."""

    tiles: list[Tile]
    caption: str = ""
    width: int = 84
    kind = "gallery"


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
    html: str = ""  # the whole section as an earlier page showed it, where that is kept

    @property
    def anchor(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


@dataclass(frozen=True)
class Link:
    """A way to another page, relative to the folder of this one."""

    title: str
    address: str

    @classmethod
    def between(cls, title: str, target: Path, page: Path) -> "Link":
        """The link that the page at `page` needs to lead to `target`."""
        way = os.path.relpath(target.absolute(), page.absolute().parent)
        return cls(title, quote(way.replace(os.sep, "/"), safe="/"))


@dataclass
class Links:
    """Ways to other pages."""

    links: Sequence[Link]
    kind = "links"


@dataclass
class Tab:
    """Sections behind one name."""

    title: str
    sections: list[Section]

    @property
    def anchor(self) -> str:
        return "tab-" + "".join(c if c.isalnum() else "-" for c in self.title.lower())


@dataclass
class Page:
    """A whole page: sections that are always shown, then tabs where there are any."""

    title: str
    sections: list[Section]
    subtitle: str = ""
    tabs: list[Tab] = field(default_factory=list)
    links: Sequence[Link] = ()
    about: str = ""  # what it was made of: sections of an earlier page are kept where that is the same


def render(page: Page) -> str:
    """The page as HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    files = resources.files("vitling.reports")
    template = files.joinpath("template.html.j2").read_text(encoding="utf-8")
    script = files.joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    written = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return environment.from_string(template).render(
        page=page, version=vitling.__version__, written=written, script=script, script_digest=digest
    )


def write_page(page: Page, path: str | Path) -> Path:
    """Write the page; a reader finds the old one or the new one, never a part. Only another page of ours is replaced."""
    write_text(path, render(page), ours=is_page)
    return Path(path)


def kept_sections(path: Path, about: str) -> dict[str, Section]:
    """The sections of a page that is there, by their titles, as they are; none where it is about something else or of another version."""
    if not path.is_file() or not is_page(path):
        return {}
    html = path.read_text(encoding="utf-8", errors="replace")
    head = html.partition("</head>")[0]
    if f'content="vitling {vitling.__version__}"' not in head or f'name="about" content="{escape(about)}"' not in head:
        return {}
    found = re.findall(r"<!-- section (.*?) -->(.*?)<!-- end of section -->", html, re.DOTALL)
    return {unescape(title): Section(unescape(title), html=inner) for title, inner in found}


def as_picture(pixels: ArrayLike, label: str = "", width: int = 96) -> Picture:
    """A (C, H, W) uint8 tensor as a picture; two channels show the first, more than three the first three."""
    pixels = np.asarray(pixels)
    pixels = pixels[0] if len(pixels) < 3 else pixels[:3].transpose(1, 2, 0)
    return Picture(np.ascontiguousarray(pixels), label, width)


def encode(pixels: ArrayLike, width: int) -> str:
    """A (C, H, W) uint8 tensor as a small data URI at most `width` pixels wide: PNG or JPEG, whichever is shorter."""
    image = Image.fromarray(as_picture(pixels).pixels)
    if image.width > width:
        image = image.resize((width, max(1, round(width * image.height / image.width))))
    shortest = ""
    for form, options in (("PNG", {}), ("JPEG", {"quality": 85})):
        image.save(buffer := io.BytesIO(), form, **options)
        uri = f"data:image/{form.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()
        shortest = uri if not shortest or len(uri) < len(shortest) else shortest
    return shortest


def counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
