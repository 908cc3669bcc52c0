"""What is diagnosed, whatever `open_model` opens, and on which pictures."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.cache import PixelCache
from vitling.data.pipeline.decoding import decode
from vitling.data.pipeline.loader import Resident, generator_for
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset, open_dataset
from vitling.data.sources.images import Images
from vitling.errors import UserError
from vitling.recipes import Recipe
from vitling.runs.opening import Source, find_kind, open_model
from vitling.runs.run import Run


@dataclass
class Subject:
    """A model under diagnosis and how a picture becomes its input."""

    name: str
    model: nn.Module
    preprocessing: Preprocessing
    class_names: list[str] | None = None  # None where the model does not name them
    run: Run | None = None

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


@dataclass
class Pictures:
    """Some images of a split. Every model gets the same ones, in its own size, channels and normalisation."""

    data: str
    split: str
    images: Images
    class_names: list[str]
    cache: PixelCache | None = None
    carved_by: tuple = ()  # the settings that decided what was held out of train; empty where the data brings its own split

    @property
    def labels(self) -> Tensor:
        return torch.as_tensor(self.images.labels)

    def __len__(self) -> int:
        return len(self.images)

    def decoded_for(self, subject: Subject, callback: Callback | None = None) -> Resident:
        told: dict[str, Any] = dict(task=f"reading {self.split}", callback=callback, cache=self.cache)
        pixels = decode(self.images, **told, **subject.preprocessing.fit_args())
        return Resident(pixels, self.labels)

    def name_classes_as(self, subject: Subject) -> bool:
        """Whether the labels number the classes as the model's outputs do."""
        return subject.class_names == self.class_names

    def were_trained_on_by(self, subject: Subject) -> bool:
        """Whether a run on the same data carved its validation split in another way, and so has seen some of these."""
        if subject.run is None or not self.carved_by or subject.run.info["data"]["name"] != self.data:
            return False
        return _carving(subject.run.recipe) != self.carved_by


@dataclass
class Opened:
    """What is diagnosed, and on what."""

    dataset: Dataset
    first: Subject
    second: Subject | None
    pictures: Pictures  # held out
    train: Pictures | None  # that the first one was trained on, where it is a run on its own data


def run_without_weights(source: Source) -> Run | None:
    """The run, where it ended before its first validation: it has a course and data, but no network to look into."""
    kind, place = find_kind(source)
    if kind != "run" or (place.path / "best" / "model.safetensors").exists() or not place.info.get("stopped"):
        return None
    return place


def refuse_labels(*sources: Source | None) -> None:
    """Refuse what learnt other labels than classes."""
    for source in sources:
        if source is not None and find_kind(source)[0] == "run":
            find_kind(source)[1].require_classes("a diagnosis is of")


def open_subjects(
    source: Source,
    other: Source | None,
    data: str | None,
    *,
    images: int,
    which: str = "best",
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Opened:
    """Both models, held-out pictures, and training pictures of the first one where it is a run on its own data.

    The test split is left alone: held-out means the validation split, or the part of train that a run does not see.
    """
    if images < 1:
        raise UserError(f"images={images} is out of range; it must be at least 1.")
    reading = reading or Reading()
    kind, place = find_kind(source)
    run = place if kind == "run" else None
    for subject in (source, other):
        if subject is not None and find_kind(subject)[0] == "run":
            find_kind(subject)[1].refuse_ensemble("a diagnosis looks into")
    if run is None and data is None:
        name = type(source).__name__ if kind == "module" else source
        raise UserError(f"{name} is not a run, so it needs images: give data.")
    own = run is not None and data in (None, run.recipe.data)
    if run and own:
        run.require("data")
    dataset = open_dataset(
        data or (run.recipe.data if run else ""),
        root=reading.root,
        download=reading.download,
        channels=run.preprocessing().channels if run else None,
        on_bad_image=run.recipe.on_bad_image if run else "error",
        class_names=run.class_names if run and not own else None,
        test_split=run.recipe.test_split if run and own else "test",
        group=run.recipe.group if run and own else "",
        labels=run.kind if run else "auto",
    )
    dataset.target.require_classes("a diagnosis is of", dataset.name)
    recipe = run.recipe if run and own else Recipe(data=dataset.name)
    first = _open(source, dataset, which, callback)
    second = (
        None if other is None else _open(other, dataset, which if find_kind(other)[0] == "run" else "best", callback)
    )
    train, held_out, split = _split(dataset, recipe)
    carved_by = () if "val" in dataset.splits or train is None else _carving(recipe)
    cache, names = reading.open_cache(), dataset.class_names
    pictures = Pictures(dataset.name, split, _some(held_out, images), names, cache, carved_by)
    seen = None if not own or train is None else Pictures(dataset.name, "train", _some(train, images), names, cache)
    return Opened(dataset, first, second, pictures, seen)


def _carving(recipe: Recipe) -> tuple:
    first = recipe.fraction if recipe.fraction_rule == "bootstrapping" else 1.0  # taken before the carving
    return recipe.seed, recipe.val_fraction, recipe.folds, recipe.fold, first, recipe.test_split, recipe.group


def _split(dataset: Dataset, recipe: Recipe) -> tuple[Images | None, Images, str]:
    if "train" not in dataset.splits:
        name, images = next(iter(dataset.splits.items()))
        return None, images, name
    return *split_training(dataset, recipe), "val"


def _some(images: Images, count: int) -> Images:
    """A fixed random choice: splits are often sorted by class, and a batch of one class has nothing to compare."""
    return images.subset(torch.randperm(len(images), generator=generator_for("diagnose"))[:count].numpy())


def _open(source: Source, dataset: Dataset, which: str, callback: Callback | None) -> Subject:
    opened = open_model(source, which=which, max_value=dataset.max_value, callback=callback)
    return Subject(opened.name, opened.module, opened.preprocessing, opened.class_names, opened.run)


def distinct_names(first: Subject, second: Subject) -> tuple[str, str]:
    """Names for two of the same name: the folders in which their runs differ, as in a study, or numbers."""
    if first.run and second.run:
        paths = zip(*(reversed(run.path.resolve().parts) for run in (first.run, second.run)), strict=False)
        if differing := next(((a, b) for a, b in paths if a != b), None):
            return differing
    return f"{first.name} (1)", f"{second.name} (2)"
