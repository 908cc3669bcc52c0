"""Data sources of plug-ins: NAME, or NAME:WHAT, becomes what a function of theirs finds."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vitling.data.sources.images import Images
from vitling.data.sources.tree import Found
from vitling.errors import UserError
from vitling.plugins import load_installed
from vitling.validation.values import show

OURS = ("hf", "memory", "digits")  # prefixes and names that are taken


class Source(NamedTuple):
    """A function that finds images and labels, and a line about them."""

    read: Callable[[str], Found]
    about: str


SOURCES: dict[str, Source] = {}


def register_source(name: str, read: Callable[[str], Found], about: str = "") -> None:
    """Add a source of data: `read` gets what stands after `NAME:`, or nothing, and gives a `Found`."""
    from vitling.data.sources.named import NAMES, plain_name  # which looks names up here

    if not re.fullmatch(r"[a-zA-Z][\w.-]+", name):
        raise UserError(f"the data source {name!r:.80} needs a name of letters, digits, - and _, such as cell-stacks.")
    known = SOURCES.get(name)
    if plain_name(name) in map(plain_name, (*NAMES, *OURS)) or (known and known.read is not read):
        raise UserError(f"there is data called {name} already; give your source another name.")
    SOURCES[name] = Source(read, about)


def find_source(data: str) -> tuple[str, str] | None:
    """The source that data names, and what it is to read; None where no source of a plug-in has that name."""
    load_installed()
    name, _, what = data.partition(":")
    return (name, what) if name in SOURCES else None


def read_source(name: str, what: str) -> Found:
    """What a source finds, checked: it is code of somebody else."""
    found = SOURCES[name].read(what)
    if not isinstance(found, Found):
        raise UserError(f"the data source {name} gave {show(found)}; it must give a vitling.data.Found.")
    wrong = [split for split, images in found.splits.items() if split not in ("train", "val", "test")]
    if wrong or not found.splits:
        raise UserError(
            f"the data source {name} has {', '.join(map(show, wrong)) or 'no splits'}; train, val and test are allowed."
        )
    for split, images in found.splits.items():
        if not isinstance(images, Images):
            raise UserError(f"{split} of the data source {name} is {show(images)}; it must be vitling.data.Images.")
        outputs = None if images.targets is None else images.targets.shape
        if found.labels != "classes" and outputs != (len(images), len(found.class_names)):
            raise UserError(
                f"{split} of the data source {name} has targets of the shape {outputs}; labels={found.labels} needs ({len(images)}, "
                f"{len(found.class_names)}), a column per name."
            )
        if len(images) and not 0 <= images.labels.min() <= images.labels.max() < len(found.class_names):
            raise UserError(
                f"{split} of the data source {name} has labels from {images.labels.min()} to {images.labels.max()}, but there are "
                f"{len(found.class_names)} class names; labels count from 0."
            )
    return found


def absolute_source(data: str) -> str | None:
    """The same data from any folder, where it names a source: a path after the colon becomes a whole one."""
    found = find_source(data)
    if found is None:
        return None
    name, what = found
    path = Path(what).expanduser()
    return f"{name}:{path.resolve()}" if what and path.exists() else data
