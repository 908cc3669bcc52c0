"""`open_dataset`: names, folders, archives, shards, tables, lists and arrays all become one Dataset."""

import csv
import hashlib
import itertools
import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitling._deprecated import renamed_attribute
from vitling.data.groups import group_notes, is_pattern, match_names, suspect_groups
from vitling.data.sources.archives import ArchiveImages, read_zip, refuse_compressed
from vitling.data.sources.files import read_csv, read_list, read_npz
from vitling.data.sources.images import (
    NO_FILE,
    OTHER_KIND,
    UNKNOWN_SIZE,
    ArrayImages,
    BadImage,
    FileImages,
    Images,
    evenly,
)
from vitling.data.sources.marks import lists_hint
from vitling.data.sources.memory import PREFIX as MEMORY
from vitling.data.sources.memory import read_memory
from vitling.data.sources.named import NAMES, is_saved_table, match_name, read_hub, read_named
from vitling.data.sources.ordered import check_numbers, numbers_hint, order_grades
from vitling.data.sources.parquet import read_parquet
from vitling.data.sources.parts import PREFIX as PART
from vitling.data.sources.parts import read_part
from vitling.data.sources.registered import SOURCES, absolute_source, find_source, read_source
from vitling.data.sources.shards import absolute_pattern, by_split, expand_braces, files_of_kind, read_shards, read_tar
from vitling.data.sources.streams import HUB, is_address, read_hub_stream, read_remote
from vitling.data.sources.tree import DiskTree, Found, read_tree
from vitling.data.sources.unlabelled import (
    NO_LABELS,
    is_unlabelled,
    once_unlabelled,
    read_plain,
    split_prefix,
    usable_labels,
    without_labels,
    without_test,
)
from vitling.data.splits import name_some
from vitling.data.targets import CLASSES, KINDS, Kind, Target, lacking
from vitling.data.threads import map_threads
from vitling.errors import UserError, did_you_mean
from vitling.files import check_path, what_else

ON_BAD_IMAGE = ("error", "skip")
MANY_CHANNELS = 4  # more than these are neither grey nor colour, with or without transparency
MANY_BANDS = 16  # beyond these, and half of the pixels along a side, it may be a volume as well
TEST_SPLITS = ("test", "val")
LONGEST_NAME = 1000  # characters of a class name
HEADS = 2000  # images whose heads are read to learn channels and depth
LISTS = {".csv": read_csv, ".tsv": read_csv, ".txt": read_list, ".lst": read_list}
FILES = {
    ".npz": read_npz,
    ".zip": lambda path, group, labels: read_zip(path),
    ".tar": lambda path, group, labels: read_tar(path),
    ".parquet": lambda path, group, labels: read_parquet(by_split([path]), group, labels),
}
ALLOWED = f"a folder of class folders, of .tar shards or of .parquet tables, and {', '.join((*FILES, *LISTS))} files"
SAMPLED_FILES = 100_000  # files of a split that a look asks for their size
DEPTHS = 256  # 16-bit images that are decoded to learn how many of their bits are used


class Request(NamedTuple):
    """What `open_dataset` was asked for, as far as it decides what comes out."""

    data: str
    root: str | None
    channels: int | None
    on_bad_image: str
    class_names: tuple[str, ...] | None
    test_split: str = "test"
    sampled: bool = False
    group: str = ""
    labels: str = "auto"


@dataclass
class Dataset:
    """Labelled images in splits, with what a model and a reader of its results must know about them."""

    name: str
    class_names: list[str]
    channels: int
    splits: dict[str, Images]  # "train"; "val" and "test" where the source has them
    fingerprint: str
    max_value: int = 255  # the pixel value that becomes 255: more than that for images of 9 to 16 bits
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    request: Request | None = None
    found: Found | None = None  # all that the source holds, bad images too
    image_fingerprint: str = ""  # the fingerprint without the groups, which make no difference to an image
    labelled: bool = (
        True  # False: to learn from without labels; with more than one class there are some to measure with
    )
    with_test: bool = False  # images of the test split are among those to learn from
    target: Target = CLASSES  # what a model is to give for an image

    white = renamed_attribute("white", "max_value")

    def __post_init__(self) -> None:
        self.image_fingerprint = self.image_fingerprint or self.fingerprint
        self.target = self.target if self.target.names else Target(self.target.kind, tuple(self.class_names))


def open_dataset(
    data: str | os.PathLike,
    *,
    root: str | os.PathLike | None = None,
    download: bool = True,
    channels: int | None = None,
    on_bad_image: str = "error",
    class_names: Sequence[str] | None = None,
    test_split: str = "test",
    sampled: bool = False,
    group: str = "",
    labels: str = "auto",
    opened: Dataset | None = None,
) -> Dataset:
    """Find the images and labels that `data` names. Pixels are read later, by `decode` or while streaming.

    `root` is the folder that holds a named dataset, or that the paths of a CSV or text list start from. `channels` is
    learnt from the training images unless given. With on_bad_image="skip" every image is tried now and those that cannot
    be read are left out; otherwise the first one met is an error. `class_names` are those of a trained model: labels are
    numbered as it numbers them, and a part of its classes or a lone test split is enough. With test_split="val" what the data
    calls val is the test split, as papers use ImageNet's, and there is no other. With `sampled`, of very many files only some are asked for
    their size, which is enough for a look; the fingerprint is then another one than training's. `group` says which images belong together,
    such as those of one patient: a column or array, or a pattern for file names (see `vitling.data.groups`). `labels` says what the labels are (see `vitling.data.targets`). `opened` is a dataset that is at
    hand: returned where the same would come out, and not searched for again where it lies in the same place.
    """
    data, root = os.fspath(data), None if root is None else os.fspath(root)
    for path in (data, root or ""):
        check_path(path)
    if on_bad_image not in ON_BAD_IMAGE:
        raise UserError(f"unknown on_bad_image '{on_bad_image}'. {did_you_mean(on_bad_image, ON_BAD_IMAGE)}")
    if channels is not None and channels < 1:
        raise UserError(f"channels={channels} is not possible; leave it out to infer it from the images")
    if test_split not in TEST_SPLITS:
        raise UserError(f"unknown test_split '{test_split}'. {did_you_mean(test_split, TEST_SPLITS)}")
    if labels not in ("auto", *KINDS):
        raise UserError(f"unknown labels '{labels}'. {did_you_mean(labels, ('auto', *KINDS))}")
    classes = None if class_names is None else tuple(class_names)
    request = Request(canonical_name(data), root, channels, on_bad_image, classes, test_split, sampled, group, labels)
    if opened and opened.request:
        request = request._replace(sampled=sampled and opened.request.sampled)  # all of them are enough for a look, too
    if opened and _gives_the_same(opened, request):
        return opened
    if opened and opened.found and _is_found_there(opened, request):
        name, found = opened.name, opened.found
    else:
        name, found = _find(data, root, download, sampled, group, labels)
        request = request._replace(sampled=any(map(_lacks_sizes, found.splits.values())))
    # Copies, because labels and transparency are set below, and another dataset may share what was found.
    splits = {split: copy(found.splits[split]) for split in ("train", "val", "test") if split in found.splits}
    notes = list(found.notes)

    for images in splits.values():
        images.alpha = channels == 4
    skipped: list[str] = []
    if on_bad_image == "skip":
        splits, skipped = _leave_out_bad(splits)
        if skipped:
            total = sum(map(len, found.splits.values()))
            if len(skipped) == total:
                raise UserError(f"{data}: none of its {total} images can be read, the first: {skipped[0]}")
            notes.append(f"{len(skipped)} of {total} images cannot be read and were skipped, the first: {skipped[0]}")
    else:
        _refuse_missing(splits)

    if empty := [
        split for split, images in splits.items() if found.labelled and images.shards is None and not len(images)
    ]:
        raise UserError(
            f"{data} has no image in {name_some(empty, 'the split', 'the splits')}; leave it out, or put images into it"
        )
    if found.labelled and labels == "auto" and found.labels == "numbers":
        raise UserError(f"the labels of {data} are numbers; set labels=numbers")
    if not found.labelled:
        names = found.class_names
        if found.labels != "classes" or not usable_labels(names, splits):  # neighbours are measured by classes
            names, splits = NO_LABELS, without_labels(splits)
        if len(splits["train"]) < 2:
            raise UserError(f"{data} holds {len(splits['train'])} images to learn from; at least two are needed")
    elif class_names is None:
        names = found.class_names
        _check_names(data, names, splits, fewest=1 if found.labels == "numbers" else 2)
        if labels == "grades":
            names = order_grades(data, names, splits)
        CHECKS[found.labels](data, names, splits, notes)
    elif found.labels == "numbers":
        names = found.class_names  # numbers are what they are, whatever the model calls its bins
    else:
        names = list(class_names)
        splits = (_renumber if found.labels == "classes" else _reorder)(data, splits, found, names, notes)
    kind: Kind = "grades" if labels == "grades" and found.labels == "classes" else found.labels
    target = Target(kind if found.labelled else "classes", tuple(names))
    for images in splits.values():
        images.labels = target.strata(images.labels, images.targets, images.groups)
    notes += _shared_images(splits)
    notes += group_notes(splits, found.grouped_by, names if target.has_classes else [])
    if "train" in splits:
        notes += suspect_groups(splits["train"])
    channels, max_value = _look(data, splits.get("train") or next(iter(splits.values())), channels, notes)
    digests = b"".join(split.encode() + images.digest() for split, images in sorted(splits.items()))
    image_fingerprint = fingerprint = hashlib.sha256("\0".join(names).encode() + digests).hexdigest()
    if groups := b"".join(images.group_digest() for _, images in sorted(splits.items())):
        fingerprint = hashlib.sha256(fingerprint.encode() + groups).hexdigest()
    if test_split == "val":
        splits = _test_on_val(data, splits, notes)
    kept = (skipped, notes, request, found, image_fingerprint, found.labelled, found.with_test, target)
    return Dataset(name, names, channels, splits, fingerprint, max_value, *kept)


def _test_on_val(data: str, splits: dict[str, Images], notes: list[str]) -> dict[str, Images]:
    if "val" not in splits:
        raise UserError(
            f"{data} has no val split to be the test split, only {', '.join(splits)}; give it a folder val with a folder per class, "
            "or set test_split=test."
        )
    notes.append("its val split is the test split here" + (", its own test split is left out" * ("test" in splits)))
    return {name: splits[split] for name, split in (("train", "train"), ("test", "val")) if split in splits}


def _lacks_sizes(images: Images) -> bool:
    return isinstance(images, FileImages) and bool((images.sizes == UNKNOWN_SIZE).any())


def _gives_the_same(opened: Dataset, request: Request) -> bool:
    """Whether a request would open this again: channels and class names may be asked for as they turned out to be."""
    if opened.request is None:
        return False
    turned_out = opened.request._replace(
        channels=opened.channels, class_names=tuple(opened.class_names), labels=opened.target.kind
    )
    return all(value in known for value, *known in zip(request, opened.request, turned_out, strict=True))


def _is_found_there(opened: Dataset, request: Request) -> bool:
    """Whether what a dataset was made of is what a request would find."""
    known = opened.request
    if known is None or request.labels not in (known.labels, opened.target.kind):
        return False
    return (known.data, known.root, known.sampled, known.group) == (
        request.data,
        request.root,
        request.sampled,
        request.group,
    )


def canonical_name(data: str | os.PathLike) -> str:
    """One name for all ways to write the same data: the name as we write it, or a path from the root."""
    data = os.fspath(data)
    if is_unlabelled(data):
        prefix, given = split_prefix(data)
        return prefix + canonical_name(given)
    path = Path(data).expanduser()
    if name := match_name(data) or absolute_source(data):
        return name
    return str(path.resolve()) if path.exists() else absolute_pattern(data) or data


def _find(data: str, root: str | None, download: bool, sampled: bool, group: str, labels: str) -> tuple[str, Found]:
    """What a source holds, and the groups of its images."""
    if data.startswith(PART):
        return read_part(data, lambda whole: _find(whole, root, download, False, group, labels))
    if is_unlabelled(data):
        given = once_unlabelled(data)
        plain = read_plain(given, root, "" if is_pattern(group) else group)
        name, found = plain or _find(given, root, download, sampled, group, labels)
        return name, without_test(data, _with_groups(given, found, group))
    if labels == "several" and not _may_have_several(data):
        raise _one_each(data)
    if labels == "numbers" and not _may_have_numbers(data):
        raise _no_numbers(data)
    column = "" if is_pattern(group) else group
    name, found = _find_images(data, root, download, sampled, column, labels)
    if labels == "several" and found.labels != "several":
        raise _one_each(data)
    if labels == "numbers" and found.labels != "numbers":
        raise _no_numbers(data)
    if labels in ("classes", "grades") and found.labels != "classes":
        raise UserError(
            f"labels={labels}: the images of {data} have {found.labels} (labels={found.labels}); leave labels= out, or give other data"
        )
    return name, _with_groups(data, found, group)


def _with_groups(data: str, found: Found, group: str) -> Found:
    """What was found, with the groups that file names say; refused where the column or array of groups is not there."""
    if is_pattern(group):
        match_names(group, found.splits, data)
        return found._replace(grouped_by=group)
    if group and found.grouped_by != group:
        raise UserError(
            f"group={group} names a column or an array, and {data} has none; tables (.csv, .tsv, .parquet, hf:) and .npz files do, and file "
            "names can be searched by group=regex:PATTERN"
        )
    return found


def takes_root(data: str) -> bool:
    """Whether `root` says where such data lies: of named datasets, and of lists of paths; without labels as with them."""
    data = split_prefix(data)[1]
    if name := match_name(data):
        return name != "digits"
    path = Path(data).expanduser()
    return path.suffix.lower() in LISTS and not path.is_dir()


def _may_have_several(data: str) -> bool:
    """Whether it is of a kind whose images can have several labels: known before anything is downloaded."""
    path = Path(data).expanduser()
    if data.startswith(MEMORY) or find_source(data):
        return True
    if match_name(data) or data.startswith((HUB, "hf:")) or is_address(data):
        return False
    if not path.exists():  # which is said where it is read
        return True
    if path.is_dir():
        return not (is_saved_table(path) or files_of_kind(path, ".tar"))
    return path.suffix.lower() in (".npz", ".csv", ".tsv", ".parquet")


def _one_each(data: str) -> UserError:
    return UserError(
        f"labels=several: the images of {data} have one label each, as those of named data, hubs, streams, shards and lists have; several labels "
        "are read from .npz arrays (N, labels) of 0 and 1, tables (.csv, .tsv, .parquet) and folders of links: leave labels= out, or give one of these."
    )


def _may_have_numbers(data: str) -> bool:
    """Whether it is of a kind whose labels can be real numbers: known before anything is downloaded."""
    path = Path(data).expanduser()
    if data.startswith(MEMORY) or find_source(data):
        return True
    if match_name(data) or data.startswith((HUB, "hf:")) or is_address(data):
        return False
    if path.is_dir():
        return bool(files_of_kind(path, ".parquet")) and not is_saved_table(path)
    if len(files := expand_braces(data)) > 1:
        return all(Path(file).suffix.lower() == ".parquet" for file in files)
    return path.suffix.lower() in (".npz", ".parquet", *LISTS) or not path.exists()  # which is said elsewhere


def _no_numbers(data: str) -> UserError:
    return UserError(
        f"labels=numbers: the labels of {data} are the names of classes; numbers are read from tables (.csv, .tsv, .parquet), lists and .npz arrays. "
        "For classes in an order set labels=grades, else leave labels= out"
    )


def _find_images(
    data: str, root: str | None, download: bool, sampled: bool, column: str, labels: str
) -> tuple[str, Found]:
    """Which kind of source it is, and what it holds."""
    name, path = match_name(data), Path(data).expanduser()
    if root is not None and not takes_root(data):
        raise UserError(f"root={root} does not apply to {data}; it is for named datasets and for lists of paths")
    if root is not None and not os.path.isdir(root):
        raise UserError(f"no such folder: root={root}; give the folder that holds the images of {data}")
    if source := find_source(data):
        return data, read_source(*source)
    if data.startswith(HUB):
        return data, read_hub_stream(data[len(HUB) :], download)
    if is_address(data):
        return data, read_remote(data)
    if data.startswith("hf:"):
        return data, read_hub(data[3:], download, column)
    if data.startswith(MEMORY):
        return data, read_memory(data)
    if name:
        found = read_named(name, root, download)
        if path.exists():
            found.notes.append(f"'{data}' is the named dataset; for what lies in this folder write ./{data}")
        return name, found
    if len(expand_braces(data)) > 1 and not path.exists():
        return Path(data).name, _read_pattern(data, column, labels)
    if not data or not path.exists():
        if not data or path.suffix or any(separator in data for separator in "/\\"):
            raise UserError(
                f"no such path: {data}. Give a folder, an archive, shards, a table, a list of paths or an .npz, or a name"
            )
        raise UserError(
            f"unknown dataset '{data}', and no such path. {did_you_mean(data, {**NAMES, **SOURCES}, show=20)}"
        )
    return path.resolve().stem if path.is_file() else path.resolve().name, _read_path(
        path, root, sampled, column, labels
    )


def _read_path(path: Path, root: str | None, sampled: bool, column: str, labels: str) -> Found:
    suffix = path.suffix.lower()
    try:
        if path.is_dir():
            return _read_folder(path, sampled, column, labels)
        if other := what_else(path):
            raise UserError(f"{path} is {other}; {ALLOWED} are allowed")
        refuse_compressed(path)
        if suffix in FILES:
            return FILES[suffix](path, column, labels)
        if suffix in LISTS:
            return LISTS[suffix](path, root, column, labels)
    except UserError:
        raise
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a table in UTF-8 text ({error}); save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be read ({error.strerror or error})") from error
    kind = f"a single {suffix} file" if suffix else "a single file"
    raise UserError(f"{path} is {kind}; {ALLOWED} are allowed")


def _read_folder(path: Path, sampled: bool, column: str, labels: str) -> Found:
    """A folder of class folders, of shards or tables, or one that Hugging Face's save_to_disk wrote."""
    if is_saved_table(path):
        return read_hub(str(path), download=False, group=column)
    if shards := files_of_kind(path, ".tar"):
        return read_shards(by_split(shards))
    if tables := files_of_kind(path, ".parquet"):
        return read_parquet(by_split(tables), column, labels)
    return read_tree(DiskTree(path, SAMPLED_FILES if sampled else None), labels)


def _read_pattern(data: str, column: str, labels: str) -> Found:
    """Shards that a pattern with braces names."""
    paths = [Path(name).expanduser() for name in expand_braces(data)]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise UserError(f"no such file: {missing}, one of the {len(paths)} that {data} stands for")
    endings = {path.suffix.lower() for path in paths}
    if endings == {".tar"}:
        return read_shards(by_split(paths))
    if endings == {".parquet"}:
        return read_parquet(by_split(paths), column, labels)
    raise UserError(f"{data} stands for {len(paths)} files; shards are .tar or .parquet")


def _refuse_missing(splits: dict[str, Images]) -> None:
    """Files that are absent or empty are known without opening any: say so now, and how many they are."""
    bad = [
        (images.shown_name(i), images.sizes[images.rows[i]])
        for images in splits.values()
        if isinstance(images, FileImages | ArchiveImages)
        for i in np.flatnonzero(np.isin(images.sizes[images.rows], (0, NO_FILE, OTHER_KIND))).tolist()
    ]
    if bad:
        path, size = bad[0]
        reasons = {
            0: "the file is empty (0 bytes)",
            NO_FILE: "no such file",
            OTHER_KIND: "it is a folder, a pipe or a device",
        }
        more = f"; {len(bad) - 1} more are missing or empty" if len(bad) > 1 else ""
        raise BadImage(path, reasons[size] + more)


def _leave_out_bad(splits: dict[str, Images]) -> tuple[dict[str, Images], list[str]]:
    """Decode every image once (JPEGs at an eighth of their size) and keep those that can be."""
    kept: dict[str, Images] = {}
    skipped: list[str] = []
    for split, images in splits.items():
        if isinstance(images, ArrayImages):
            kept[split] = images
            continue

        def readable(i: int, images: Images = images) -> bool:
            try:
                images.read(i, at_least=1)
            except BadImage:
                return False
            return True

        good = np.fromiter(map_threads(readable, range(len(images))), bool, len(images))
        skipped += [images.names[i] for i in np.flatnonzero(~good)]
        kept[split] = images.subset(np.flatnonzero(good))
    return kept, skipped


def _check_names(data: str, names: list[str], splits: dict[str, Images], *, fewest: int) -> None:
    """There is a train split, and there are two classes or labels at least, whose names can be written and told apart."""
    if "train" not in splits:
        raise UserError(f"{data} has no train split, only {', '.join(splits)}; rename one of them to train")
    if len(names) < fewest:
        only = f" ('{names[0]}')" if names else ""
        raise UserError(f"{data} has only one class{only}; at least two are needed, each in a folder or with a label")
    if unwritable := next((name for name in names if not _is_writable(name)), None):
        raise UserError(
            f"{data}: the class name {os.fsencode(unwritable)!r:.80} is not UTF-8 text of one line and at most {LONGEST_NAME} characters; "
            "rename it"
        )
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"{data}: {name_some(doubled, 'class name', 'class names')} used more than once; make them differ"
        )


def _check_classes(data: str, names: list[str], splits: dict[str, Images], notes: list[str]) -> None:
    """Every split has every class, and training at least two images of each."""
    hint = numbers_hint(names) or lists_hint(data, names)
    counts = {split: np.bincount(images.labels, minlength=len(names)) for split, images in splits.items()}
    for split in [split for split in splits if split != "train"]:
        # Only one of the two directions is named at a time: fixing the first often fixes the second.
        for here, there in ((split, "train"), ("train", split)):
            differing = [name for name, a, b in zip(names, counts[here], counts[there], strict=True) if a and not b]
            if differing:
                raise UserError(
                    f"{data}: the classes differ between splits; {name_some(differing, 'class', 'classes')} of {here} "
                    f"missing in {there}. Give every split the same classes, or give one split and let vitling carve the others{hint}"
                )
    if absent := [name for name, n in zip(names, counts["train"], strict=True) if n == 0]:
        raise UserError(
            f"{data}: no training images of {name_some(absent, 'class', 'classes')}; each class needs at least two, and "
            "numbered labels count from 0 without gaps"
        )
    if single := [name for name, n in zip(names, counts["train"], strict=True) if n == 1]:
        raise UserError(
            f"{data}: only one training image of {name_some(single, 'class', 'classes')}; at least two are needed, one "
            f"to learn from and one to validate. Add images, or remove the class{hint}"
        )


def _check_several(data: str, names: list[str], splits: dict[str, Images], notes: list[str]) -> None:
    """Every label is on two training images at least, and not on all. Images without any label are allowed."""
    targets = splits["train"].targets
    assert targets is not None, "images of several labels have targets"
    if few := lacking(targets, names, 2):
        raise UserError(
            f"{data}: fewer than two training images have {name_some(few, 'the label', 'the labels')}; each label needs two at least, one to learn "
            "from and one to validate. Add images, or remove the label"
        )
    if everywhere := lacking(1 - targets, names, 1):
        raise UserError(
            f"{data}: every training image has {name_some(everywhere, 'the label', 'the labels')}, so there is nothing to learn; remove it"
        )
    if (targets.sum(axis=1) == 1).all():
        notes.append(
            "every training image has exactly one of the labels: if they exclude each other they are classes, and one column or array of class "
            "names or numbers says so"
        )


def _reorder(
    data: str, splits: dict[str, Images], found: Found, wanted: list[str], notes: list[str]
) -> dict[str, Images]:
    """Order the labels as a trained model does: by name, or by position where the data has only numbers."""
    given = found.class_names
    nameless = given == [str(i) for i in range(len(given))] and not set(given) & set(wanted)
    if nameless and len(given) == len(wanted):
        notes.append(
            f"the labels of {data} have no names; 0 is taken for '{wanted[0]}', and so on in the model's order"
        )
        return splits
    if unknown := [name for name in given if name not in wanted]:
        raise UserError(
            f"{data} has {name_some(unknown, 'the label', 'the labels')} that the model does not know; it knows "
            f"{name_some(wanted, 'the label', 'the labels')}"
        )
    missing = [name for name in wanted if name not in given]
    if missing and not found.listed:
        raise UserError(
            f"{data} does not say which images have {name_some(missing, 'the label', 'the labels')} of the model; add "
            f"{'a column' if len(missing) == 1 else 'columns'} of 0 and 1"
        )
    if missing:
        notes.append(f"no image of {data} has {name_some(missing, 'the label', 'the labels')} of the model")
    place = [given.index(name) if name in given else len(given) for name in wanted]
    for images in splits.values():
        assert images.targets is not None, "images of several labels have targets"
        images.targets = np.pad(images.targets, ((0, 0), (0, 1)))[:, place]
    return splits


def _is_writable(name: str) -> bool:
    """Whether a class name can stand in tables, pages and exported files."""
    return len(name) <= LONGEST_NAME and not any(
        "\ud800" <= letter <= "\udfff" or letter in "\0\r\n" for letter in name
    )


def _renumber(
    data: str, splits: dict[str, Images], found: Found, wanted: list[str], notes: list[str]
) -> dict[str, Images]:
    """Number the labels as a trained model does: by name, or by position where the data has only numbers."""
    given = found.class_names
    place = {name: i for i, name in enumerate(wanted)}
    unknown = [name for name in given if name not in place]
    nameless = given == [str(i) for i in range(len(given))]
    if nameless and len(unknown) == len(given) <= len(wanted):
        notes.append(
            f"the classes of {data} have no names; 0 is taken for '{wanted[0]}', and so on in the model's order"
        )
        return splits
    if unknown:
        raise UserError(
            f"{data} has {name_some(unknown, 'class', 'classes')} that the model does not know; it knows "
            f"{name_some(wanted, 'class', 'classes')}"
        )
    number = np.array([place[name] for name in given], dtype=np.int64)
    for images in splits.values():
        images.labels = number[images.labels]
    return splits


CHECKS = {"classes": _check_classes, "several": _check_several, "numbers": check_numbers}


def _shared_images(splits: dict[str, Images]) -> list[str]:
    """An image in both training and test split makes the test worthless; a list can do that unnoticed."""
    notes = []
    for first, second in itertools.combinations(splits, 2):
        if shared := sorted(set(splits[first].names) & set(splits[second].names)):
            notes.append(f"{len(shared)} images are in both {first} and {second}, the first: {shared[0]}")
    return notes


def _refuse_volumes(data: str, images: Images, i: int, channels: int) -> None:
    """Scans of many layers look like images of many channels: as many as an image has pixels along a side."""
    height, width = images.size(i)
    many = channels > MANY_BANDS and 2 * channels >= min(height, width)
    if many or (channels > MANY_CHANNELS and channels == width):
        raise UserError(
            f"{data}: {images.names[i]} is {height} x {width} x {channels}, which looks like a volume (depth x height x width) and would "
            f"be read as an image of {channels} channels; save its slices as images, (N, height, width), or say channels={channels} "
            "if these are channels"
        )


def _look(data: str, images: Images, wanted: int | None, notes: list[str]) -> tuple[int, int]:
    """The number of channels, and the pixel value that becomes 255."""
    if not len(images):
        raise UserError(f"{data} holds no images that can be read")
    indices = images.sample(1 if isinstance(images, ArrayImages) else HEADS)
    layouts = list(map_threads(images.layout, indices))
    stored = {layout.channels for layout in layouts}
    if wanted is None:
        _refuse_volumes(data, images, indices[0], max(stored))
    channels = wanted or max(stored)
    # Grey and colour turn into each other; other counts must be what is wanted.
    if stored != {channels} and not (stored | {channels} <= {1, 3}):
        i = next(i for i, layout in zip(indices, layouts, strict=True) if layout.channels != channels)
        raise UserError(
            f"{data}: image {images.names[i]} has {images.layout(i).channels} channels where {channels} are wanted; only "
            "grey and colour (1 and 3) are turned into each other"
        )
    if wanted is None and len(stored) > 1:
        notes.append("grey and colour images are mixed; grey ones are repeated to 3 channels")
    if not any(layout.sixteen_bit for layout in layouts):
        return channels, 255
    if isinstance(images, ArrayImages):
        brightest = max(int(images.array[row].max()) for row in images.rows)
    else:
        deep = [i for i, layout in zip(indices, layouts, strict=True) if layout.sixteen_bit]
        brightest = max(map_threads(lambda i: int(images.read(i).max()), [deep[j] for j in evenly(len(deep), DEPTHS)]))
    return channels, 2 ** max(8, brightest.bit_length()) - 1
