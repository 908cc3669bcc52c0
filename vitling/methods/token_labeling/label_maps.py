"""Label maps on disk: for every image of a split, the best classes and their scores in every cell of a grid.

A folder of two kinds of files. `maps.json` says what the maps are of, which part of the picture they cover and how many are
written. `part-00000.npy`, one for a small dataset and several for a large one, are arrays of records (score, class) of the shape
images x rows x columns x top_k, which NumPy reads anywhere. They are memory-mapped: a batch costs the reading of its own rows.
"""

import copy
import io
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from vitling.data.sources.dataset import Dataset
from vitling.data.sources.images import Images
from vitling.errors import UserError
from vitling.files import check_path, refuse_foreign, remove_leftovers, what_else, write_text
from vitling.validation.documents import read_json
from vitling.validation.values import Range, Side, check, check_fields

PART_BYTES = 2**30
ImageCount = Annotated[int, Range(0, 10**10)]


@dataclass(frozen=True)
class Header:
    """What label maps are of. `fit` and `size` are those of the picture that the annotator saw: a map covers exactly that."""

    data: str
    fingerprint: str
    split: str
    images: ImageCount
    class_names: list[str]
    grid: tuple[Side, Side]
    top_k: Annotated[int, Range(1, 65_536)]
    fit: str
    size: tuple[Side, Side]
    annotator: str
    weights: str  # digest of what made the maps
    raw_scores: bool  # logits as they are; else minus the mean of the classes that are not stored
    format: str = "vitling label maps 1"

    @classmethod
    def of_training_images(cls, dataset: Dataset, **what: Any) -> "Header":
        """The header of maps of a dataset's training images; `what` are the fields that the dataset does not give."""
        return cls(
            data=dataset.name,
            fingerprint=dataset.image_fingerprint,
            split="train",
            images=len(dataset.splits["train"]),
            class_names=list(dataset.class_names),
            **what,
        )

    @property
    def record(self) -> np.dtype:
        """A score and the smallest integer type that holds every class."""
        return np.dtype([("score", "<f2"), ("class", np.min_scalar_type(len(self.class_names) - 1).newbyteorder("<"))])

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.grid, self.top_k)

    @property
    def image_bytes(self) -> int:
        return int(np.prod(self.shape)) * self.record.itemsize

    @property
    def part_images(self) -> int:
        return max(1, PART_BYTES // self.image_bytes)


class LabelMaps:
    """The label maps in a folder; `rows` are the images of this view of them, as in `Images`."""

    def __init__(self, folder: str | os.PathLike, header: Header, done: int):
        self.folder, self.header, self.done = Path(folder), header, done
        self.rows = np.arange(header.images)
        self.central = False  # True: training shows whole pictures, and the maps are only of what has their shape
        self.parts: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def training_settings(self) -> list[str]:
        """What a recipe is told to learn from them."""
        return ["method=token_labeling", f"method_args.labels={self.folder}"]

    # -- writing ---------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: str | os.PathLike, header: Header) -> "LabelMaps":
        """Begin maps in a folder, or resume the same ones after `done` images."""
        folder = Path(folder)
        if folder.is_dir():
            remove_leftovers(folder)
        if (folder / "maps.json").exists():
            known, done = read_header(folder)
            identity = [f.name for f in fields(Header) if f.name not in ("data", "annotator")]  # which are only names
            differing = [name for name in identity if getattr(known, name) != getattr(header, name)]
            if differing:
                raise UserError(
                    f"{folder} already holds other label maps (another {' and '.join(differing)}); "
                    "choose another folder, or remove that one."
                )
            return cls(folder, header, done)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} already holds something else; choose another folder.")
        maps = cls(folder, header, 0)
        maps._record_progress()
        return maps

    def append(self, scores: np.ndarray, classes: np.ndarray) -> None:
        """Write the maps of the next images, (n, rows, columns, top_k), and bring them to the disk."""
        header = self.header
        records = np.empty(scores.shape, header.record)
        records["score"], records["class"] = scores, classes
        while len(records):
            number, place = divmod(self.done, header.part_images)
            room = header.part_images - place
            self._write_part(number, place, records[:room])
            self.done += len(records[:room])
            records = records[room:]
        self._record_progress()

    def _write_part(self, number: int, place: int, records: np.ndarray) -> None:
        header, path = self.header, self.folder / f"part-{number:05d}.npy"
        head = io.BytesIO()
        count = min(header.part_images, header.images - number * header.part_images)
        description = np.lib.format.dtype_to_descr(header.record)
        np.lib.format.write_array_header_1_0(
            head, {"descr": description, "fortran_order": False, "shape": (count, *header.shape)}
        )

        def begun(path: Path) -> bool:
            """A part of these maps, though a kill may have left no more than the beginning of its head."""
            with open(path, "rb") as stream:
                return head.getvalue().startswith(stream.read(len(head.getvalue())))

        refuse_foreign(path, ours=begun)
        try:
            with open(path, "r+b" if place else "wb") as stream:
                stream.write(head.getvalue())
                stream.seek(place * header.image_bytes, os.SEEK_CUR)
                stream.write(records.tobytes())
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise UserError(
                f"cannot write {path}: {error.strerror}; the same command resumes where it stopped."
            ) from error

    def _record_progress(self) -> None:
        write_text(
            self.folder / "maps.json",
            json.dumps({**asdict(self.header), "done": self.done}, indent=1, ensure_ascii=False),
        )

    # -- reading ---------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: str | os.PathLike) -> "LabelMaps":
        """Maps that are complete and whole; anything else is refused with a reason."""
        header, done = read_header(folder)
        if done < header.images:
            raise UserError(
                f"the label maps in {folder} are not complete ({done:,} of {header.images:,} images); "
                "repeat the command that writes them, it resumes where it stopped."
            )
        maps = cls(folder, header, done)
        for number in range(-(-header.images // header.part_images)):
            maps.parts[number] = maps._open_part(number)
        return maps

    def _open_part(self, number: int) -> np.ndarray:
        header, path = self.header, self.folder / f"part-{number:05d}.npy"
        count = min(header.part_images, header.images - number * header.part_images)
        try:
            if other := what_else(path):
                raise ValueError(other)
            part = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # a damaged header makes NumPy raise many kinds
            reason = "missing" if isinstance(error, FileNotFoundError) else "cut short or damaged"
            raise UserError(f"{path} is {reason}; remove {self.folder} and write the label maps again.") from error
        if not isinstance(part, np.ndarray) or part.dtype != header.record or part.shape != (count, *header.shape):
            raise UserError(f"{path} does not match maps.json beside it; remove {self.folder} and write them again.")
        return part

    def subset(self, rows: np.ndarray) -> "LabelMaps":
        """A view of some of the images, in the given order. Nothing is read."""
        view = copy.copy(self)
        view.rows = self.rows[np.asarray(rows)]
        return view

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (float16) and classes (B, rows, columns, top_k) of some images of this view, on the device of `index`."""
        number, place = np.divmod(self.rows[index.cpu().numpy()], self.header.part_images)
        records = np.empty((len(number), *self.header.shape), self.header.record)
        for part in np.unique(number):
            mine = number == part
            records[mine] = self.parts[part][place[mine]]
        classes = records["class"].astype(np.int64)
        if classes.size and classes.max() >= len(self.header.class_names):
            raise UserError(
                f"{self.folder} is corrupted: it names a class {classes.max()} of {len(self.header.class_names)}."
            )
        return tuple(
            torch.from_numpy(part).to(index.device) for part in (np.ascontiguousarray(records["score"]), classes)
        )

    def of_split(
        self, dataset: Dataset, train: Images, *, fit: str, size: tuple[int, int], whole: bool = False
    ) -> "LabelMaps":
        """The maps of `train`, a part of the dataset's split that is shown fitted to `size`, or `whole`; refused unless they are its own.

        Maps belong to images by their place in the whole split, which `rows` remembers through carving and subsets.
        """
        check_owner(self.header, dataset, self.folder)
        check_view(self.header, fit, size, self.folder, whole)
        split = dataset.splits[self.header.split]
        place = np.searchsorted(split.rows, train.rows)
        assert (split.rows[place] == train.rows).all(), "a training image that is not in the split"
        assert (split.labels[place] == train.labels).all(), "a training image with another label"
        view = self.subset(place)
        view.central = whole and self.header.fit == "crop"
        return view

    def covered_shares(self, sizes: Tensor) -> Tensor | None:
        """What shares of width and height, in the middle of pictures of these `sizes` (B, 2), the maps are of; None: all."""
        if not self.central:
            return None
        scales = torch.tensor(self.header.size) / sizes
        return (scales / scales.amax(dim=1, keepdim=True)).flip(1)


def read_header(folder: str | os.PathLike) -> tuple[Header, int]:
    path = check_path(folder) / "maps.json"
    if not path.exists():
        raise UserError(f"no label maps in {folder}; write them there with `vitling relabel RUN DATA`.")
    values = read_json(path)
    try:
        known = {f.name: values[f.name] for f in fields(Header)}
        header = Header(**{**known, "grid": tuple(known["grid"]), "size": tuple(known["size"])})
        check_fields(header)
        check(values["done"], ImageCount, "done")
        if header.format != Header.format or values["done"] > header.images or header.top_k > len(header.class_names):
            raise UserError("its numbers contradict each other")
        return header, values["done"]
    except (UserError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not describe label maps ({str(error).rstrip('.')}); write them again.") from None


def check_owner(header: Header, dataset: Dataset, folder: str | os.PathLike) -> None:
    """Refuse maps of other classes or other images."""
    if len(header.class_names) != len(dataset.class_names):
        raise UserError(
            f"the label maps in {folder} are of {len(header.class_names)} classes, {dataset.name} has "
            f"{len(dataset.class_names)}; write maps for this data with vitling relabel."
        )
    if header.class_names != dataset.class_names:
        pairs = zip(header.class_names, dataset.class_names, strict=True)
        ours, theirs = next((a, b) for a, b in pairs if a != b)
        raise UserError(f"the label maps in {folder} name a class '{ours}' where {dataset.name} has '{theirs}'.")
    images = len(dataset.splits[header.split]) if header.split in dataset.splits else 0
    if header.images != images:
        raise UserError(
            f"the label maps in {folder} are of {header.images:,} images, the {header.split} split of {dataset.name} has "
            f"{images:,}; write maps for this data with vitling relabel."
        )
    if header.fingerprint != dataset.image_fingerprint:
        raise UserError(
            f"the label maps in {folder} are of other images than {dataset.name} (made for {header.data}, fingerprint "
            f"{header.fingerprint[:12]}, not {dataset.image_fingerprint[:12]}); write maps for this data with vitling relabel."
        )


def check_view(header: Header, fit: str, size: tuple[int, int], folder: str | os.PathLike, whole: bool = False) -> None:
    """Refuse maps that cover another part of the picture than training shows.

    A picture that is stretched is always whole; what is cut off or padded depends on the shape it is brought to. Crops of whole
    pictures may leave the central part that maps of fit=crop cover: what lies outside has no label.
    """
    if whole and fit == "crop" and header.fit in ("resize", "crop"):
        return
    same_shape = header.size[0] * size[1] == header.size[1] * size[0]
    if header.fit != fit or (fit != "resize" and not same_shape):
        seen = f"fit={header.fit} at {header.size[0]}x{header.size[1]}"
        raise UserError(
            f"the label maps in {folder} cover pictures as seen with {seen}, but training shows fit={fit} at "
            f"{size[0]}x{size[1]}: labels and pixels would not match. Write maps with fit={fit} and size={size[0]}x{size[1]}, "
            f"or train with fit={header.fit}."
        )
