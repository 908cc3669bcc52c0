"""Groups: images of one patient, slide, field or video. They are alike beyond their class, so no split may divide them.

`group=` says where they are from: the name of a column or array, or a pattern that finds them in file names. Nothing is grouped that nobody
declared; what looks like groups is said in a note.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from vitling.data.splits import name_some
from vitling.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from vitling.data.sources.images import Images

PATTERN = "regex:"
COLUMNS = [
    "group",
    "groups",
    "group_id",
    "patient",
    "patient_id",
    "patientid",
    "subject",
    "subject_id",
    "slide",
    "slide_id",
    "case_id",
    "participant_id",
    "person_id",
    "video_id",
]

# --- declared groups --------------------------------------------------------------------------------------------------


def is_pattern(group: str) -> bool:
    """Whether `group=` is a pattern for file names; anything else is the name of a column or array."""
    return group.startswith(PATTERN) or "(" in group


def match_names(group: str, images: Mapping[str, "Images"], data: str) -> None:
    """Set the groups of every split by a pattern on file names: on the last part of a path, or on all of it where it has a slash."""
    text = group.removeprefix(PATTERN)
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UserError(f"group={group} is not a regular expression ({error}); try group={PATTERN}^(.+)_") from None
    if pattern.groups != 1:
        raise UserError(
            f"group={group} has {pattern.groups} pairs of parentheses; one is needed, around what names the group: try {PATTERN}^(.+)_"
        )
    for of_split in images.values():
        if not of_split.has_file_names:
            raise UserError(
                f"group={group} looks at file names, and the images of {data} have none; name a column or array of groups, or leave it out"
            )
        names = (
            of_split.names if "/" in text else [name.replace("\\", "/").rpartition("/")[2] for name in of_split.names]
        )
        found = [pattern.search(name) for name in names]
        if lacking := [name for name, match in zip(names, found, strict=True) if not match or not match[1]]:
            raise UserError(
                f"{data}: group={group} finds no group in {len(lacking):,} of {len(names):,} file names, the first: {lacking[0]}; "
                "change the pattern so that it matches all of them"
            )
        of_split.groups = np.array([match[1] for match in found if match], dtype=str)


def as_groups(values: Sequence[object] | np.ndarray, what: str) -> np.ndarray:
    """Cells of a column as groups: numbers and words alike. None may be empty."""
    groups = []
    for place, value in enumerate(values.tolist() if isinstance(values, np.ndarray) else values):
        text = (
            value.decode("utf-8", "replace")
            if isinstance(value, bytes)
            else ""
            if value is None
            else str(value).strip()
        )
        if not text or text == "nan":
            raise UserError(f"{what} is empty for image {place}; every image needs a group, if only one of its own")
        groups.append(text)
    return np.array(groups, dtype=str)


def choose_column(group: str, columns: Sequence[str], where: str) -> str:
    """The column that `group=` names, in any case."""
    for column in columns:
        if column.strip().lower() == group.strip().lower():
            return column
    raise UserError(f"group={group}: {where} has no such column. {did_you_mean(group, [c for c in columns if c])}")


def unused_column(columns: Sequence[str], where: str, prefix: str = "") -> list[str]:
    """A note where a column looks like groups and nobody asked for it; arrays have a prefix before the name, that of the split."""
    found = next((column for column in columns if column and column.strip().lower() in COLUMNS), None)
    if found is None:
        return []
    return [
        f"{where} has {f'an array {prefix}' if prefix else 'a column '}{found}, which is not used; group={found} keeps images of one {found} on one side of every split"
    ]


def group_notes(splits: Mapping[str, "Images"], by: str, class_names: Sequence[str]) -> list[str]:
    """What a user should know of the groups there are: how many, those in two splits, and classes that cannot be divided."""
    train = splits.get("train")
    if train is None or train.groups is None:
        return []
    names, sizes = np.unique(train.groups, return_counts=True)
    notes = [
        f"{len(names):,} groups in train, by {by}, of {sizes.min():,} to {sizes.max():,} images: no split divides one"
    ]
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        a, b = (None if split not in splits else splits[split].groups for split in (first, second))
        if a is not None and b is not None and (shared := np.intersect1d(a, b)).size:
            images = int(np.isin(b, shared).sum())
            notes.append(
                f"{len(shared):,} groups are in both {first} and {second} of the data itself ({images:,} images of {second}), the first: "
                f"{shared[0]}; numbers of {second} are too good"
            )
    if lacking := [split for split in splits if splits[split].groups is None]:
        notes.append(f"{' and '.join(lacking)} without groups: intervals there take every image as independent")
    pairs = {(label, group) for label, group in zip(train.labels.tolist(), train.groups.tolist(), strict=True)}
    per_class = Counter(label for label, _ in pairs)
    if single := [name for c, name in enumerate(class_names) if per_class[c] == 1]:
        notes.append(
            f"{name_some(single, 'class', 'classes')} of a single group, which stays in training: validation has none of it"
        )
    return notes


# --- groups that nobody declared --------------------------------------------------------------------------------------

_DATES = re.compile(r"(?<!\d)(?:19|20)\d\d(?:[-_.]?(?:0[1-9]|1[0-2])(?:[-_.]?(?:0[1-9]|[12]\d|3[01]))?)?(?!\d)")
_SIZES = re.compile(r"\d+x\d+|\d+(?:px|um|nm|mm|x)(?![a-z])")
_CHUNKS = re.compile(
    r"(?<![a-z])(?:batch|part|fold|chunk|shard|set|split|class|label|version|train|val|test|v)[-_.]?\d+"
)
_WORDNET = re.compile(r"(?<![a-z0-9])n\d{8}(?!\d)")
_BUCKET = re.compile(r"(?=\d?[a-f])[0-9a-f]{2}")  # a folder for all files whose hash begins so
# What counts the images of a group: 003, slice04, frame12, s3b, a, left.
_MEMBER = re.compile(r"(.*[^-_ ])[-_ ]+(?:[a-z]{0,9}\d{1,6}[a-z]?|[a-z]|left|right|front|back|top|side)", re.DOTALL)
# What says where in a slide a tile lies: x12, row3, x12y40, tile3; or x, row and tile before a number of its own.
_PLACE = re.compile(r"(?:[xyzrc]|row|col|tile|patch|crop|slice|frame)(\d+([xyzc]\d+)?)?")
MOST_NUMBERS = 2  # without a word say a place, as row and column do; one more may be a patient
LONG_NUMBER = 3  # digits of such a number where nothing else speaks for groups: shorter ones may be hours and minutes
MOST_DIGITS = 6
REPEATED_SHARE = 0.5  # of the images must share the beginning of their name with another of their class
LEAST_GROUPS = 4  # such beginnings, and twice as many as there are classes
LOOKED_AT = 20_000  # names, the first ones: neighbours, because images of one group lie together
DEEPEST_FOLDER = 3  # folders below that of a class
SUGGESTION = f"{PATTERN}^(.+)[-_ ]"

Repeated: TypeAlias = dict[tuple[int, str], int]


def name_prefix(name: str) -> str | None:
    """What a file name has before its last counter, if that itself has a number: patient12 of patient12_003.png, nothing of rose_12.jpg."""
    match = _MEMBER.fullmatch(_stem(name))
    return match[1] if match and _is_identity(match[1]) else None


def suspect_groups(images: "Images") -> list[str]:
    """A note where folders inside those of classes, or file names, look as if several images were of one patient, slide or video.

    Conservative: a plain counter behind a word is none, nor is a number that all images of a class share.
    """
    if images.groups is not None or not images.has_file_names:
        return []
    names, labels = [name.replace("\\", "/") for name in images.names[:LOOKED_AT]], images.labels[:LOOKED_AT].tolist()
    what, (repeated, found, pattern) = "folders", _suspect_folders(names, labels)
    if not repeated:
        what, (repeated, found, pattern) = "file names", _suspect_names(names, labels)
    if not repeated:
        return []
    label, group = max(repeated, key=lambda key: (repeated[key], key))
    example = next(name for c, own, name in zip(labels, found, names, strict=True) if (c, own) == (label, group))
    shown = f"are in {example.rpartition('/')[0]}" if what == "folders" else f"begin like {example.rpartition('/')[2]}"
    return [
        f"{what} look as if several images were of one patient, slide or video ({repeated[label, group]} of one class {shown}); "
        f"if so, images of one stand on both sides of every split, and the numbers are too good: set group='{pattern}'"
    ]


def _stem(name: str) -> str:
    return os.path.splitext(name.replace("\\", "/").rpartition("/")[2])[0].lower()


def _is_identity(text: str) -> bool:
    """Whether a text has a number that is no date, size or part of a dataset."""
    text = text.lower()
    for not_an_identity in (_DATES, _SIZES, _CHUNKS, _WORDNET):
        text = not_an_identity.sub("", text)
    return any(letter.isdigit() for letter in text)


def _repeated(labels: Sequence[int], found: Sequence[str | None], *, least: int = 1) -> Repeated:
    """The groups of several images, by class; none where too few images are in such, or where they are too few, `least` over all classes."""
    counts = Counter((label, group) for label, group in zip(labels, found, strict=True) if group)
    repeated = {key: count for key, count in counts.items() if count > 1}
    classes = len({label for label, _ in repeated})
    if sum(repeated.values()) < REPEATED_SHARE * len(found) or len(repeated) < max(LEAST_GROUPS, 2 * classes):
        return {}
    if len({group for _, group in repeated}) < least:
        return {}
    return repeated


def _suspect_names(names: Sequence[str], labels: Sequence[int]) -> tuple[Repeated, list[str | None], str]:
    """Groups by what file names have before their counters, and the pattern that finds them."""
    found = [name_prefix(name) for name in names]
    repeated = _repeated(labels, found)
    digits = 1 if repeated else LONG_NUMBER
    stems = list(map(_stem, names))
    for parts in range(min((_place_parts(stem, digits) for stem in stems), default=0), bool(repeated), -1):
        pattern = SUGGESTION + (parts - 1) * ".*[-_ ]"
        matches = [re.search(pattern.removeprefix(PATTERN), stem) for stem in stems]
        wider = [match[1] if match and _is_identity(match[1]) else None for match in matches]
        larger = _repeated(labels, wider, least=LEAST_GROUPS)
        # Only where it joins what one part alone leaves apart: a simple pattern is easier to check.
        if larger and (not repeated or len(larger) < len(repeated)):
            return larger, wider, pattern
    return repeated, found, SUGGESTION


def _place_parts(stem: str, digits: int) -> int:
    """How many of the last parts of a name say where a tile lies; at least one is left."""
    parts = re.split("[-_ ]", stem)
    count = numbers = 0
    for before, part in reversed(list(pairwise(parts))):
        if part.isdecimal() and not _PLACE.fullmatch(before):
            numbers += 1
            if numbers > MOST_NUMBERS or not digits <= len(part) <= MOST_DIGITS:
                break
        elif not part.isdecimal() and not _PLACE.fullmatch(part):
            break
        count += 1
    return count


def _suspect_folders(names: Sequence[str], labels: Sequence[int]) -> tuple[Repeated, list[str | None], str]:
    """Groups by folders inside those of the classes, at the first depth that looks so, and the pattern that finds them."""
    folders = [name.split("/")[:-1] for name in names]
    shared: dict[int, list[str]] = {}
    for label, own in zip(labels, folders, strict=True):
        both = takewhile(lambda pair: pair[0] == pair[1], zip(shared.get(label, own), own, strict=False))
        shared[label] = [folder for folder, _ in both]
    depth = min(map(len, shared.values()), default=0)
    if not depth or len({tuple(own[:depth]) for own in shared.values()}) < len(shared):
        return {}, [], ""  # classes are no folders
    for inside in range(depth, depth + DEEPEST_FOLDER):
        inner = [own[inside] if inside < len(own) else "" for own in folders]
        found = [name if _is_identity(name) and not _BUCKET.fullmatch(name.lower()) else None for name in inner]
        if repeated := _repeated(labels, found, least=LEAST_GROUPS):
            return repeated, found, f"{PATTERN}^{inside * '[^/]*/'}([^/]+)"
    return {}, [], ""
