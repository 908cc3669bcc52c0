"""Token Labeling's own files: one .pt per image, `class/name.pt`, a float16 tensor [2, k, H, W] of scores and classes.

A file's name ends at its first dot, as the release cuts it. Files are read as plain tensors and nothing in them is executed.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.sources.images import Images
from vitling.errors import UserError, first_line
from vitling.files import check_path, refuse_foreign, what_else
from vitling.methods.token_labeling.label_maps import LabelMaps

MOST_CLASSES = 2048  # float16 holds integers exactly up to here


def is_author_folder(folder: str | os.PathLike) -> bool:
    """Whether this is a folder of class folders with .pt files, and no run, which keeps its checkpoints so."""
    folder = check_path(folder)
    return folder.is_dir() and not (folder / "run.json").exists() and next(folder.glob("*/*.pt"), None) is not None


def map_paths(folder: str | os.PathLike, images: Images, class_names: list[str]) -> list[Path]:
    """Where the map of each image lies; two images of a class that would share a file are refused."""
    paths: list[Path] = []
    seen: dict[Path, str] = {}
    for name, label in zip(images.names, images.labels, strict=True):
        kind = class_names[label]
        if os.path.basename(kind) != kind or kind in ("", ".", ".."):  # a class of a table may be called anything
            raise UserError(f"the class '{kind}' cannot be a folder, as the authors' files need it; rename it.")
        path = Path(folder) / kind / f"{os.path.basename(name).split('.')[0]}.pt"
        if path in seen:
            raise UserError(f"images {seen[path]} and {name} would share the label map {path}; rename one of them.")
        seen[path] = name
        paths.append(path)
    return paths


def read_maps(paths: list[Path], num_classes: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Scores and classes of each file, (rows, columns, k); the best class first, as the release writes them."""
    shape = None
    for path in paths:
        try:
            if other := what_else(path):
                raise UserError(f"it is {other}")
            scores, classes = torch.load(path, map_location="cpu", weights_only=True)
            if not (
                isinstance(scores, torch.Tensor) and isinstance(classes, torch.Tensor) and scores.shape == classes.shape
            ):
                raise UserError("it does not hold two tensors of one shape")
        except FileNotFoundError:
            missing = sum(not other.exists() for other in paths)
            more = f" and {missing - 1:,} more are missing" if missing > 1 else " is missing"
            raise UserError(f"label map {path}{more}; every training image needs one.") from None
        except Exception as error:  # a damaged archive makes torch raise many kinds
            raise UserError(f"{path} cannot be read as a label map: {first_line(error)}") from None
        if (
            scores.ndim != 3
            or not scores.numel()
            or not scores.is_floating_point()
            or scores.shape != (shape or scores.shape)
        ):
            raise UserError(
                f"{path} holds {tuple(scores.shape)} {scores.dtype}; [2, k, H, W] floats like the first are allowed."
            )
        shape = scores.shape
        number = classes.round().long()
        if not scores.isfinite().all() or (number != classes).any() or number.min() < 0 or number.max() >= num_classes:
            raise UserError(
                f"{path} does not fit {num_classes} classes: its class numbers run from {classes.min():g} to {classes.max():g}."
            )
        yield scores.permute(1, 2, 0).numpy(), number.permute(1, 2, 0).numpy()


def write_maps(maps: LabelMaps, folder: str | os.PathLike, images: Images, callback: Callback | None = None) -> None:
    """Write label maps as the release's files. Files that hold just these maps stay; any other file in their place is refused first."""
    names = maps.header.class_names
    if len(names) > MOST_CLASSES:
        raise UserError(f"the authors' format holds {MOST_CLASSES} classes at most, these maps have {len(names)}.")
    paths = map_paths(folder, images, names)
    for i, path in enumerate(paths):
        if path.exists():
            refuse_foreign(path, ours=partial(_holds, content=_content(maps, i)))
    for i, path in enumerate(paths):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.stem[:100]}.vitling.pt")
            torch.save(_content(maps, i), temporary)
            os.replace(temporary, path)  # not synced one by one: that would take longer than all the rest
        if callback:
            callback.on_progress("writing .pt files", i + 1, len(images))


def _content(maps: LabelMaps, i: int) -> Tensor:
    """What the file of image i holds."""
    scores, classes = (part[0].permute(2, 0, 1) for part in maps.take(torch.tensor([i])))
    return torch.stack([scores, classes.half()])


def _holds(path: Path, content: Tensor) -> bool:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # what is no archive of torch makes it raise many kinds, and is not ours
        return False
    return isinstance(found, Tensor) and torch.equal(found, content)
