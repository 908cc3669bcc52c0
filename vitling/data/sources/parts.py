"""Parts of other data: which of its images are in which split, as a file says. What one part holds out, no run on it has seen.

`part:NAME:FILE` opens the part of that name. FILE is JSON: the data, and for each part its splits as positions in the splits of the data.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from vitling.data.sources.files import Found
from vitling.data.sources.images import Images
from vitling.errors import UserError, did_you_mean
from vitling.files import json_with, write_text
from vitling.validation.documents import damaged, read_json
from vitling.validation.values import CountOrNone

PREFIX = "part:"
is_parts = json_with("data", "digest", "parts")

Rows = Mapping[str, tuple[str, np.ndarray]]  # of a part: split -> where it is taken from, and the positions there


class PartRecord(TypedDict):
    """A split of a part."""

    source: str
    rows: list[CountOrNone]


class PartsRecord(TypedDict):
    """The file of a division."""

    data: str
    digest: str
    parts: dict[str, dict[str, PartRecord]]


def part_name(part: str, file: Path) -> str:
    """What `open_dataset` opens the part by."""
    return f"{PREFIX}{part}:{file.resolve()}"


def write_parts(file: Path, data: str, found: Found, parts: Mapping[str, Rows]) -> None:
    """Write a division of the data down."""
    tree = {
        "data": data,
        "digest": _digest(found),
        "parts": {
            part: {split: {"source": source, "rows": rows.tolist()} for split, (source, rows) in splits.items()}
            for part, splits in parts.items()
        },
    }
    write_text(file, json.dumps(tree), ours=is_parts)


def read_part(name: str, find: Callable[[str], tuple[str, Found]]) -> tuple[str, Found]:
    """The part, and the name of the data that it is of; `find` finds that data."""
    part, _, place = name.removeprefix(PREFIX).partition(":")
    path = Path(place)
    if not place or not path.exists():
        raise UserError(f"no such file: {place or name}, which says what the part '{part}' of the data is; restore it.")
    tree: dict[str, Any] = read_json(path, PartsRecord)
    if part not in tree["parts"]:
        raise UserError(f"{path} has no part '{part}'. {did_you_mean(part, tree['parts'])}")
    if tree["data"].startswith(PREFIX):
        raise damaged(str(path), "it is a part of a part")
    title, found = find(tree["data"])
    if _digest(found) != tree["digest"]:
        raise UserError(
            f"{tree['data']} has changed since {path} divided it; restore the data, or begin in another folder."
        )
    splits: dict[str, Images] = {}
    for split, taken in tree["parts"][part].items():
        images, rows = found.splits.get(taken["source"]), np.array(taken["rows"], dtype=np.int64)
        if images is None or split not in ("train", "val", "test") or (len(rows) and rows.max() >= len(images)):
            raise damaged(str(path), f"its part '{part}' is not one of {tree['data']}")
        splits[split] = images.subset(rows)
    return title, found._replace(splits=splits)


def _digest(found: Found) -> str:
    """Of names and labels: positions mean the same images while these are the same. Pixels are a matter of each run's fingerprint."""
    digest = hashlib.sha256("\0".join(found.class_names).encode("utf-8", "surrogateescape"))
    for split, images in sorted(found.splits.items()):
        digest.update(split.encode() + "\0".join(images.names).encode("utf-8", "surrogateescape"))
        digest.update(images.labels.tobytes())
        if images.targets is not None:
            digest.update(images.targets.tobytes())
    return digest.hexdigest()
