"""WebDataset's tar shards: files of one name are one sample, `0001.jpg` and `0001.cls`. Read where they lie, in any order.

A single tar may as well hold class folders; which of the two it is, its files tell.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from vitling.data.sources.archives import ArchiveImages, ArchiveTree, Member, walk_tar
from vitling.data.sources.tree import SPLITS, Found, is_hidden, is_image, read_tree
from vitling.errors import UserError

LABEL_KEYS = ("label", "cls", "class", "target", "category", "class_name")  # of a sample's .json
LABEL_ENDINGS = (".cls", ".json")
NAME_FILES = ("classnames.txt", "classes.txt")  # beside the shards, a class name per line
MOST_SHARDS = 100_000
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


class Sample(NamedTuple):
    """An image of a shard and its label."""

    name: str
    member: Member
    label: str


def read_tar(path: Path) -> Found:
    """One shard, or a tar of class folders."""
    contents = list(walk_tar(path, LABEL_ENDINGS))
    images = {sample_key(m.name) for m, _ in contents if is_image(m.name)}
    labelled = {sample_key(m.name) for m, _ in contents if m.name.lower().endswith(LABEL_ENDINGS)}
    if images & labelled:
        return _found({split_of(path): [path]}, {path: list(_samples(path, contents))}, [])
    return read_tree(ArchiveTree(path, [member for member, _ in contents]))


def read_shards(splits: dict[str, list[Path]]) -> Found:
    """Many shards, by split."""
    samples = {path: list(_samples(path, walk_tar(path, LABEL_ENDINGS))) for paths in splits.values() for path in paths}
    notes = [f"{len(paths)} shards of {split}" for split, paths in splits.items()]
    return _found(splits, samples, notes)


def _found(splits: dict[str, list[Path]], samples: dict[Path, list[Sample]], notes: list[str]) -> Found:
    everything = [sample for of_shard in samples.values() for sample in of_shard]
    class_names, number = name_classes([sample.label for sample in everything], next(iter(samples)).parent, notes)
    found = {}
    shown = short_names(list(samples))
    for split, paths in splits.items():
        chosen = [(i, sample) for i, path in enumerate(paths) for sample in samples[path]]
        found[split] = ArchiveImages(
            paths,
            [(i, sample.member) for i, sample in chosen],
            [number[sample.label] for _, sample in chosen],
            [f"{shown[paths[i]]}/{sample.name}" for i, sample in chosen],
        )
    return Found(class_names, found, notes)


def name_classes(labels: Sequence[str], folder: Path | None, notes: list[str]) -> tuple[list[str], dict[str, int]]:
    """Class names, and the number of each label: words, or numbers that a file beside the shards may name."""
    different = sorted(set(labels), key=lambda label: (0, int(label), label) if is_number(label) else (1, 0, label))
    if not all(map(is_number, different)) or folder is None:
        return different, {label: i for i, label in enumerate(different)}
    for file in (folder / name for name in NAME_FILES):
        if file.is_file():
            names = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
            if len(names) <= int(different[-1]):
                raise UserError(f"{file} has {len(names)} names, but the labels go up to {different[-1]}; complete it")
            notes.append(f"class names are those of {file}")
            return names, {label: int(label) for label in different}
    return different, {label: i for i, label in enumerate(different)}


def is_number(label: str) -> bool:
    return label.isascii() and label.isdigit() and len(label) < 19


def _samples(path: Path, contents: Iterator[tuple[Member, bytes]] | list[tuple[Member, bytes]]) -> Iterator[Sample]:
    """The samples of a shard. Their files stand together, as WebDataset asks for it."""
    seen: set[str] = set()
    for key, files in group_samples(contents):
        if key in seen:
            raise UserError(f"{path}: the files of sample {key} do not stand together; write the shard again, in order")
        seen.add(key)
        images = [member for member, _ in files if is_image(member.name)]
        if not images:
            continue
        if len(images) > 1:
            raise UserError(
                f"{path}: sample {key} has {len(images)} images ({images[0].name}, {images[1].name}); one is needed"
            )
        label = label_of(path, key, {member.name: content for member, content in files})
        yield Sample(images[0].name, images[0], label)
    if not seen:
        raise UserError(f"{path} holds no samples; expected images beside labels, as in 0001.jpg and 0001.cls")


def group_samples(contents: Any) -> Iterator[tuple[str, list[tuple[Any, bytes]]]]:
    """Files that follow each other and have one key."""
    key = ""
    files: list[tuple[Any, bytes]] = []
    for member, content in contents:
        if any(map(is_hidden, member.name.split("/"))):
            continue
        if files and sample_key(member.name) != key:
            yield key, files
            files = []
        key = sample_key(member.name)
        files.append((member, content))
    if files:
        yield key, files


def sample_key(name: str) -> str:
    """The folder and the name up to its first dot, as WebDataset has it."""
    folder, _, base = name.rpartition("/")
    return f"{folder}/{base.partition('.')[0]}"


def label_of(path: Path | str, key: str, files: dict[str, bytes]) -> str:
    """The label of a sample, from its .cls or its .json."""
    for name, content in files.items():
        if name.lower().endswith(".cls"):
            label = content.decode("utf-8", "replace").strip()
            if label:
                return label
        elif name.lower().endswith(".json"):
            try:
                entries = json.loads(content)
            except (ValueError, RecursionError):
                raise UserError(f"{path}: {name} is not JSON; write the shard again") from None
            found = next((entries[k] for k in LABEL_KEYS if k in entries), None) if isinstance(entries, dict) else None
            if isinstance(found, int | str) and not isinstance(found, bool) and str(found).strip():
                return str(found).strip()
    raise UserError(
        f"{path}: sample {key.lstrip('/')} has no label; give it a file .cls with its class, or a .json with the key label"
    )


# --- which files ------------------------------------------------------------------------------------------------------


def split_of(path: str | os.PathLike) -> str:
    """The split that a file's name tells, as `train` of `imagenet-train-00001.tar`; train where it tells none."""
    words = re.split(r"[-_.]", os.path.basename(os.fspath(path)).lower())
    return next((SPLITS[word] for word in words if word in SPLITS), "train")


def by_split(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Files by split: as the folder they lie in says, or their own name."""
    splits: dict[str, list[Path]] = {}
    for path in sorted(paths):
        splits.setdefault(SPLITS.get(path.parent.name.lower()) or split_of(path), []).append(path)
    return splits


def files_of_kind(folder: Path, ending: str) -> list[Path]:
    """The shards of a folder, its folder `data` and its folders of splits; none where it holds images or classes beside them."""
    places = [folder]
    with os.scandir(folder) as entries:
        inner = [Path(e.path) for e in entries if e.is_dir() and not is_hidden(e.name)]
    if any(place.name.lower() not in (*SPLITS, "data") for place in inner):
        return []
    found = []
    for place in [*places, *inner]:
        with os.scandir(place) as entries:
            seen = [entry for entry in entries if not is_hidden(entry.name)]
        if any(is_image(entry.name) or (place != folder and entry.is_dir()) for entry in seen):
            return []
        found += [Path(e.path) for e in seen if e.name.lower().endswith(ending) and not e.is_dir()]
    return found


def short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """What tells files from each other: their names, with the folders that differ."""
    common = os.path.commonpath([path.absolute().parent for path in paths])
    return {path: os.path.relpath(path.absolute(), common).replace(os.sep, "/") for path in paths}


def absolute_pattern(data: str) -> str | None:
    """A pattern of shards that are here, from the root of the disk; None for anything else."""
    first = expand_braces(data)[0]
    return os.path.abspath(os.path.expanduser(data)) if first != data and os.path.exists(first) else None


def expand_braces(pattern: str) -> list[str]:
    """`train-{000..009}.tar` as the names it stands for; a name without braces stands for itself."""
    ranges = []
    for low, high in _BRACES.findall(pattern):
        if len(high) > 9 or not int(low) <= int(high) or int(high) - int(low) >= MOST_SHARDS:
            raise UserError(f"{{{low}..{high}}} is no range of up to {MOST_SHARDS:,} shards; write it as {{000..009}}")
        ranges.append([str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)])
    if not ranges:
        return [pattern]
    pieces = _BRACES.split(pattern)[::3]
    if len(ranges) > 2:
        raise UserError(f"{pattern} has {len(ranges)} ranges in braces; one or two are allowed")
    return [
        "".join(piece + number for piece, number in zip(pieces, (*numbers, ""), strict=True))
        for numbers in product(*ranges)
    ]
