"""Datasets that have a name: scikit-learn's digits, torchvision's, and those of the Hugging Face hub."""

import gzip
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitling.data.groups import as_groups, choose_column, unused_column
from vitling.data.sources.images import ArrayImages, FileImages, HubImages, Images
from vitling.data.sources.tree import SPLITS, Found
from vitling.data.splits import carve_validation
from vitling.errors import UserError

# Where Debian's package dataset-fashion-mnist puts its files.
DEBIAN_FOLDERS = {"fashion-mnist": "/usr/share/datasets/fashion-mnist"}


class Named(NamedTuple):
    """A class of torchvision.datasets and how to ask it for each split."""

    kind: str
    splits: dict[str, dict[str, Any]]
    about: str


_TRAIN_FLAG = {"train": {"train": True}, "test": {"train": False}}
_TWO = {"train": {"split": "train"}, "test": {"split": "test"}}
_THREE = {"train": {"split": "train"}, "val": {"split": "val"}, "test": {"split": "test"}}
_WHOLE: dict[str, dict] = {"train": {}}  # no splits of its own: a validation split is carved, there is no test split

TORCHVISION = {
    "mnist": Named("MNIST", _TRAIN_FLAG, "70,000 handwritten digits, 28 px, grey"),
    "fashion-mnist": Named("FashionMNIST", _TRAIN_FLAG, "70,000 pieces of clothing, 28 px, grey"),
    "kmnist": Named("KMNIST", _TRAIN_FLAG, "70,000 Japanese characters, 28 px, grey"),
    "usps": Named("USPS", _TRAIN_FLAG, "9,298 handwritten digits, 16 px, grey"),
    "cifar10": Named("CIFAR10", _TRAIN_FLAG, "60,000 things and animals in 10 classes, 32 px"),
    "cifar100": Named("CIFAR100", _TRAIN_FLAG, "60,000 things and animals in 100 classes, 32 px"),
    "svhn": Named("SVHN", _TWO, "99,289 house-number digits, 32 px"),
    "stl10": Named("STL10", _TWO, "13,000 things and animals in 10 classes, 96 px"),
    "eurosat": Named("EuroSAT", _WHOLE, "27,000 satellite images in 10 classes, 64 px"),
    "gtsrb": Named("GTSRB", _TWO, "39,270 German traffic signs in 43 classes"),
    "flowers102": Named("Flowers102", _THREE, "8,189 flowers in 102 classes"),
    "oxford-pets": Named(
        "OxfordIIITPet", {"train": {"split": "trainval"}, "test": {"split": "test"}}, "7,349 pets of 37 breeds"
    ),
    "dtd": Named("DTD", _THREE, "5,640 textures in 47 classes"),
    "fgvc-aircraft": Named("FGVCAircraft", _THREE, "10,000 aircraft of 100 variants"),
    "food101": Named("Food101", _TWO, "101,000 dishes in 101 classes"),
    "imagenette": Named(
        "Imagenette", {"train": {"split": "train"}, "test": {"split": "val"}}, "13,394 images of 10 ImageNet classes"
    ),
}
NAMES = {"digits": "1,797 handwritten digits, 8 px, grey; embedded", **{n: row.about for n, row in TORCHVISION.items()}}


def match_name(data: str) -> str | None:
    """The dataset's name as we write it, for any mix of case, '-' and '_'; None if there is no such name."""

    return next((name for name in NAMES if plain_name(name) == plain_name(data)), None)


def plain_name(name: str) -> str:
    return re.sub("[-_ ]", "", name).lower()


def read_named(name: str, root: str | None, download: bool) -> Found:
    if name == "digits":
        return _read_digits()
    if TORCHVISION[name].kind.endswith("MNIST") and (folder := _find_idx(name, root)):
        return _read_idx(name, folder)
    return _read_torchvision(name, root or str(cache_folder()), download)


def cache_folder() -> Path:
    """Where downloads go: $VITLING_DATA, or vitling's folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("VITLING_DATA") or os.path.join(cache, "vitling"))


def _read_digits() -> Found:
    # Read from scikit-learn's file: importing scikit-learn for it would take seconds.
    spec = find_spec("sklearn")
    folders = spec and spec.submodule_search_locations
    assert folders, "scikit-learn is among our requirements"
    path = Path(folders[0], "datasets", "data", "digits.csv.gz")
    with gzip.open(path) as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    pixels = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    images = ArrayImages(pixels, table[:, -1], "digits")
    # scikit-learn has no test split for them. Ours is a fifth of each class and never changes.
    train, test = carve_validation(images.labels, fraction=0.2, seed=0)
    return Found([str(n) for n in range(10)], {"train": images.subset(train), "test": images.subset(test)}, [])


# --- MNIST's own file format ------------------------------------------------------------------------------------------


def _find_idx(name: str, root: str | None) -> Path | None:
    """The folder with the four idx files: given, downloaded by torchvision earlier, or installed by Debian."""
    kind = TORCHVISION[name].kind
    roots = [Path(root)] if root else [cache_folder()]
    folders = [Path(r, *inside) for r in roots for inside in ((kind, "raw"), (name,))]
    folders += [Path(root)] if root else [Path(DEBIAN_FOLDERS[name])] if name in DEBIAN_FOLDERS else []
    return next((folder for folder in folders if all(_idx_files(folder).values())), None)


def _idx_files(folder: Path) -> dict[tuple[str, str], Path | None]:
    found = {}
    for split, word in (("train", "train"), ("test", "t10k")):
        for what in ("images-idx3", "labels-idx1"):
            paths = [folder / f"{word}-{what}-ubyte{suffix}" for suffix in ("", ".gz")]
            found[split, what] = next((path for path in paths if path.is_file()), None)
    return found


def _read_idx(name: str, folder: Path) -> Found:
    import torchvision.datasets  # late: where its wheel does not match torch, it needs what `register_models` declares

    files = {part: path for part, path in _idx_files(folder).items() if path}  # all four: `_find_idx` looked
    splits: dict[str, Images] = {}
    for split in ("train", "test"):
        images, labels = read_idx(files[split, "images-idx3"]), read_idx(files[split, "labels-idx1"])
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise UserError(f"{folder}: {split} has images {images.shape} and labels {labels.shape}; download it again")
        splits[split] = ArrayImages(images, labels, f"{name} {split}")
    return Found(list(getattr(torchvision.datasets, TORCHVISION[name].kind).classes), splits, [f"read from {folder}"])


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in the idx format: two zeros, the type (8: uint8), the rank, the sizes, the bytes."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}); download it again") from error
    rank = data[3] if data[:3] == b"\0\0\x08" and len(data) > 3 else 0
    shape = tuple(np.frombuffer(data, ">u4", min(rank, max(len(data) - 4, 0) // 4), offset=4).tolist()) if rank else ()
    if not rank or len(shape) != rank or len(data) - 4 - 4 * rank != np.prod(shape, dtype=np.int64):
        raise UserError(f"{path} is not a complete idx file of bytes; download it again")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


# --- torchvision ------------------------------------------------------------------------------------------------------


def _read_torchvision(name: str, root: str, download: bool) -> Found:
    opened = {split: _open_torchvision(name, root, download, ask) for split, ask in TORCHVISION[name].splits.items()}
    splits = {split: _torchvision_images(source, f"{name} {split}", root) for split, source in opened.items()}
    count = max(int(images.labels.max()) for images in splits.values()) + 1
    classes = getattr(opened["train"], "classes", None) or [str(c) for c in range(count)]
    # Imagenette gives its classes several names each.
    return Found([c if isinstance(c, str) else c[0] for c in classes], splits, [])


def _open_torchvision(name: str, root: str, download: bool, ask: dict[str, Any]) -> Any:
    import torchvision.datasets  # late: where its wheel does not match torch, it needs what `register_models` declares

    kind = getattr(torchvision.datasets, TORCHVISION[name].kind)
    try:
        return kind(root, **ask)
    except (RuntimeError, OSError):
        why = "download=False"
    try:
        if download:
            os.makedirs(root, exist_ok=True)
            return kind(root, download=True, **ask)
    except (RuntimeError, OSError, HTTPException) as error:
        why = re.sub(r"\s+", " ", str(error))[:160]
    raise UserError(
        f"{name} is not in {root} and was not downloaded ({why}); connect to the network once, or name a folder that has it "
        "as torchvision lays it out (root=FOLDER or VITLING_DATA=FOLDER)"
    )


def _torchvision_images(source: Any, name: str, root: str) -> Images:
    """torchvision's datasets keep either an array or a list of files, each under names of its own."""
    if hasattr(source, "data"):
        array = np.asarray(source.data)
        if type(source).__name__ in ("SVHN", "STL10"):
            array = array.transpose(0, 2, 3, 1)
        return ArrayImages(array, np.asarray(source.targets if hasattr(source, "targets") else source.labels), name)
    # The private names are the only ones: reading item by item would decode every image to learn its label.
    if hasattr(source, "samples") or hasattr(source, "_samples"):
        paths, labels = zip(*(source.samples if hasattr(source, "samples") else source._samples), strict=True)
    else:
        paths, labels = source._images if hasattr(source, "_images") else source._image_files, source._labels
    names = [Path(os.path.relpath(path, root)).as_posix() for path in paths]
    return FileImages(names, labels, root=root)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def read_hub(address: str, download: bool, group: str = "") -> Found:
    """`owner/name`, `owner/name:config`, or a local path: a folder of save_to_disk, or one that load_dataset reads."""
    datasets = import_datasets(f"hf:{address}")
    if not address:
        raise UserError("hf: names no dataset; write hf:owner/name, or hf: and a folder")
    path, config = address, None
    if not os.path.exists(address) and ":" in address:
        path, config = address.rsplit(":", 1)
    with in_hub(datasets, f"hf:{address}"):
        if is_saved_table(path):
            tables = datasets.load_from_disk(path)
        else:
            with _offline(datasets, not download):
                tables = datasets.load_dataset(path, config)
    if isinstance(tables, datasets.Dataset):
        tables = {"train": tables}

    notes, by_split = [], {}
    for given, table in tables.items():
        if (split := SPLITS.get(given.lower())) and split not in by_split:
            by_split[split] = table
        else:
            notes.append(f"split '{given}' of hf:{address} left out")
    if "train" not in by_split:
        raise UserError(f"hf:{address} has no train split; its splits are: {', '.join(tables)}")
    image, label = hub_columns(by_split["train"], f"hf:{address}")
    listed = list(by_split["train"].features)
    column = choose_column(group, listed, f"hf:{address}") if group else None
    if column is None:
        notes += unused_column([name for name in listed if name != label], f"hf:{address}")
    values = {value for table in by_split.values() for value in table.unique(label)}
    class_names, number = hub_classes(by_split["train"].features[label], values)
    splits: dict[str, Images] = {}
    for split, table in by_split.items():
        labels = np.array([number(value) for value in table[label]], dtype=np.int64)
        if len(labels) and (labels < 0).all():
            notes.append(f"split '{split}' of hf:{address} has no labels and was left out")
        elif (labels < 0).any():
            raise UserError(
                f"hf:{address}: {int((labels < 0).sum())} images of split '{split}' have no label in {label}"
            )
        else:
            splits[split] = HubImages(table, image, labels, split)
            if column in table.features:
                splits[split].groups = as_groups(table[column][:], f"hf:{address}: {column}")
    if "train" not in splits:
        raise UserError(f"hf:{address}: no image of its train split has a label in column {label}")
    return Found(class_names, splits, notes, group)


def import_datasets(address: str) -> Any:
    try:
        import datasets  # of the extra hub
    except ImportError:
        raise UserError(f'{address} needs the package datasets; install it with: pip install "vitling[hub]"') from None
    return datasets


@contextmanager
def in_hub(datasets: Any, address: str) -> Iterator[None]:
    """What the package cannot open, in one line."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        why = re.sub(r"\s+", " ", str(error))[:200]
        raise UserError(f"{address} could not be opened ({why}); check the name, the config and the network") from error


def is_saved_table(path: str | os.PathLike) -> bool:
    """Whether a folder was written by save_to_disk."""
    return any(os.path.isfile(os.path.join(path, name)) for name in ("dataset_dict.json", "state.json"))


@contextmanager
def _offline(datasets: Any, offline: bool) -> Iterator[None]:
    """Use only the cache. The package has no argument for it: with any, it still asks the hub first."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def hub_columns(table: Any, address: str) -> tuple[str, str]:
    from datasets import ClassLabel, Image  # of the extra hub

    images = [name for name, feature in table.features.items() if isinstance(feature, Image)]
    classes = [name for name, feature in table.features.items() if isinstance(feature, ClassLabel)]
    usual = [name for name in ("label", "labels", "fine_label", "class", "target") if name in table.features]
    label = next((name for name in usual if name in classes), classes[0] if len(classes) == 1 else None)
    label = label or next(iter(usual), None)
    if not images or label is None:
        missing = "column of images" if not images else "column 'label'"
        raise UserError(f"{address} has no {missing}; its columns are: {', '.join(table.features)}")
    return images[0], label


def hub_classes(feature: Any, values: set[Any]) -> tuple[list[str], Any]:
    """Class names, and the function that numbers a cell; -1 stands for no label."""
    if names := getattr(feature, "names", None):
        return list(names), lambda value: -1 if value is None else value
    known = sorted(value for value in values if value not in (None, -1))
    number = {value: i for i, value in enumerate(known)}
    return [str(value) for value in known], lambda value: number.get(value, -1)
