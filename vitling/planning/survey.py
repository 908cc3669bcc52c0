"""What a dataset is like, before anything is trained on it: counts, balance, sizes, bad files, copies, leaks."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.bins import Bins
from vitling.data.grades import find_grades
from vitling.data.near_duplicates import allowed_difference, find_near_duplicates
from vitling.data.pipeline.cache import PixelCache
from vitling.data.pipeline.preprocessing import SMALL_SIDE
from vitling.data.probe import probe_accuracy
from vitling.data.sources.dataset import Dataset
from vitling.data.sources.images import ArrayImages, BadImage, Images
from vitling.data.sources.named import match_name
from vitling.data.sources.ordered import read_number
from vitling.data.targets import Kind, positives
from vitling.data.threads import map_threads
from vitling.data.thumbnails import make_thumbnails

HEADS = 2000  # images of the training split whose size is read
MOST_FILES, MOST_ROWS = 20_000, 60_000  # images that are looked at: files must be decoded, arrays hardly
SHOWN = 5  # pairs of copies that are named
MOST_COUNTED = 7  # classes called 0, 1, 2 ...: so few may be grades


@dataclass(frozen=True)
class Copies:
    """Images that look like another one: how many, and the first pairs by name."""

    count: int
    examples: list[tuple[str, str]]


@dataclass(frozen=True)
class NumberFacts:
    """The training numbers, in their own unit."""

    lowest: float
    median: float
    highest: float
    spread: float  # standard deviation
    baseline_mae: float  # mean absolute error of always saying the median
    bins: int
    scale: str  # on which the bins are equally wide


@dataclass(frozen=True)
class Survey:
    """Facts about a dataset. What a brief look leaves out is None."""

    name: str
    images: dict[str, int]  # of each split
    class_counts: dict[str, int]  # training images of each class, or with each label
    channels: int
    bits: int
    smallest: tuple[int, int]  # height and width, by area
    median: tuple[int, int]
    largest: tuple[int, int]
    unreadable: list[str]
    notes: list[str] = field(default_factory=list)
    looked_at: int | None = None  # images whose pixels were read
    copies: Copies | None = None  # inside the training split
    leaks: dict[str, Copies] | None = None  # of each other split: its images that look like one of the training split
    labels: Kind = "classes"
    labels_per_image: dict[str, float] | None = (
        None  # of several: on average, at most, and the share of images without any
    )
    numbers: NumberFacts | None = None  # where the labels are numbers
    probe_accuracy: float | None = (
        None  # of a linear classifier on fixed features of thumbnails, inside the training split
    )

    @property
    def total(self) -> int:
        return sum(self.images.values())

    @property
    def small(self) -> bool:
        """Whether the images share one small size, which is then the model's; others are photographs."""
        return self.smallest == self.largest and max(self.largest) <= SMALL_SIDE

    @property
    def imbalance(self) -> float:
        """Images of the largest class per image of the smallest."""
        if not self.class_counts:
            return 1.0
        return max(self.class_counts.values()) / min(self.class_counts.values())

    @property
    def rarest(self) -> list[str]:
        """The classes or labels that the fewest images have."""
        return sorted(self.class_counts, key=self.class_counts.__getitem__)[:SHOWN]

    @property
    def outputs(self) -> int:
        """Of a network for this data."""
        return self.numbers.bins if self.numbers else len(self.class_counts)


def survey_data(
    dataset: Dataset, *, brief: bool = False, cache: PixelCache | None = None, callback: Callback | None = None
) -> Survey:
    """Look at a dataset; a brief look reads heads only, so that it takes no time."""
    train = dataset.splits["train"]
    several = train.targets if dataset.target.kind == "several" else None
    sizes = sorted(_sizes(train), key=lambda size: size[0] * size[1])
    facts: dict[str, Any] = dict(
        name=dataset.name,
        images={split: len(images) for split, images in dataset.splits.items()},
        class_counts=_count_classes(dataset),
        labels=dataset.target.kind,
        labels_per_image=None if several is None else _labels_per_image(several),
        numbers=_describe_numbers(train) if dataset.target.kind == "numbers" else None,
        channels=dataset.channels,
        bits=dataset.max_value.bit_length(),
        smallest=sizes[0],
        median=sizes[len(sizes) // 2],
        largest=sizes[-1],
        # Those that were skipped are listed by name.
        notes=[*(note for note in dataset.notes if "were skipped" not in note), *_order_notes(dataset)],
    )
    if brief:
        return Survey(unreadable=list(dataset.skipped), **facts)
    return Survey(**facts, **_look_at_pixels(dataset, min(sizes[0]), cache, callback or Callback()))


def _count_classes(dataset: Dataset) -> dict[str, int]:
    if dataset.target.kind == "numbers":
        return {}
    train = dataset.splits["train"]
    counts = (
        np.bincount(train.labels, minlength=len(dataset.class_names))
        if train.targets is None
        else positives(train.targets)
    )
    return dict(zip(dataset.class_names, counts.tolist(), strict=True))


def _order_notes(dataset: Dataset) -> list[str]:
    """A note where classes are called by numbers, and nobody said what these mean."""
    if dataset.target.kind != "classes" or find_grades(dataset.class_names) is None:
        return []
    if dataset.request and (dataset.request.labels == "classes" or match_name(dataset.request.data)):
        return []  # what has a name is known: digits are no grades
    if len(dataset.class_names) > MOST_COUNTED and dataset.class_names == [
        str(i) for i in range(len(dataset.class_names))
    ]:
        return []  # counted, as arrays without names are
    if any(not float(name).is_integer() for name in dataset.class_names if read_number(name) is not None):
        return [
            "the classes are called by numbers; set labels=numbers to predict numbers, or labels=grades if these are all there are"
        ]
    return ["the class names look like grades; if their order matters, set labels=grades, if not, labels=classes"]


def _describe_numbers(train: Images) -> NumberFacts:
    assert train.targets is not None, "images of numbers have targets"
    numbers = train.targets.astype(np.float64)
    bins = Bins.of(numbers)
    return NumberFacts(
        float(numbers.min()),
        bins.median,
        float(numbers.max()),
        float(numbers.std()),
        bins.baseline(numbers),
        len(bins),
        bins.scale,
    )


def _labels_per_image(targets: np.ndarray) -> dict[str, float]:
    counts = (targets > 0).sum(axis=1)
    return {"mean": float(counts.mean()), "most": int(counts.max()), "without": float((counts == 0).mean())}


def _sizes(images: Images) -> list[tuple[int, int]]:
    """Heights and widths of evenly spaced images; those without a readable head are counted elsewhere."""

    def size(i: int) -> tuple[int, int] | None:
        try:
            height, width = images.size(i)
            return int(height), int(width)
        except BadImage:
            return None

    indices = images.sample(1 if isinstance(images, ArrayImages) else HEADS)
    return [size for size in map_threads(size, indices) if size]


def _look_at_pixels(dataset: Dataset, short_side: int, cache: PixelCache | None, callback: Callback) -> dict[str, Any]:
    unreadable, seen, thumbnails = list(dataset.skipped), {}, {}
    total = sum(map(len, dataset.splits.values()))
    for split, images in dataset.splits.items():
        most = MOST_ROWS if isinstance(images, ArrayImages) else MOST_FILES
        sample = images.subset(images.sample(max(1, most * len(images) // total)))
        thumbnails[split], good = make_thumbnails(
            sample,
            channels=dataset.channels,
            max_value=dataset.max_value,
            task=f"reading {split}",
            cache=cache,
            callback=callback,
        )
        unreadable += [sample.names[i] for i in np.flatnonzero(~good)]
        seen[split] = sample.subset(np.flatnonzero(good))

    limit = allowed_difference(short_side, dataset.channels)

    def copies(split: str, among: Tensor | None = None) -> Copies:
        where = "copies" if among is None else f"leaks of {split}"
        pairs = find_near_duplicates(
            thumbnails[split], among, max_difference=limit, task=f"looking for {where}", callback=callback
        )
        named = [(seen[split].names[i], seen["train"].names[j]) for i, j in pairs[:SHOWN]]
        return Copies(len(pairs), named)

    others = [split for split in dataset.splits if split != "train"]
    return dict(
        unreadable=unreadable,
        looked_at=sum(map(len, seen.values())),
        copies=copies("train"),
        leaks={split: copies(split, thumbnails["train"]) for split in others},
        probe_accuracy=_probe(dataset, thumbnails["train"], seen["train"]),
    )


def _probe(dataset: Dataset, thumbnails: Tensor, train: Images) -> float | None:
    if not dataset.target.has_classes:
        return None
    return probe_accuracy(thumbnails, torch.as_tensor(train.labels), train.groups)
