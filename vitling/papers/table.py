"""What a table of a paper is made of: rows with the paper's numbers, the recipes that repeat them, and nano counterparts."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitling.recipes import Augment, Optim, Recipe

NANO_SIZE = 16  # pixels: digits are enlarged to this
QUOTED = "quoted from its own paper, trained in another way"
NO_NANO = "it has no nano model"


@dataclass(frozen=True)
class Data:
    """What the paper trained on."""

    name: str
    classes: int
    images: int  # for training
    source: str = ""  # what has to be given as data where it cannot be downloaded; its own name unless it is a part
    test_split: str = "test"  # what the paper measured on
    named: str = ""  # as a recipe names it, where it can be downloaded


IMAGENET = Data("ImageNet", 1000, 1_281_167, test_split="val")
CIFAR10 = Data("CIFAR-10", 10, 50_000, named="cifar10")
CIFAR100 = Data("CIFAR-100", 100, 50_000, named="cifar100")
SVHN = Data("SVHN", 10, 73_257, named="svhn")


@dataclass(frozen=True)
class Row:
    """One number of a table.

    `recipe` (a name) with `change` repeats it as published; without one, `why_not` says why it cannot be repeated, and `model`
    may still name the network to count. `nano` is the same choice in the nano comparison. A row of a Description `describes` a
    recipe by its name, or its "data".
    """

    label: str
    top1: float | None  # the paper's, in %
    recipe: str = ""
    nano: Recipe | None = None
    params: float | None = None  # the paper's, in millions
    macs: float | None = None  # the paper's, in 10^9 multiply-adds, whether it calls them MACs or FLOPs
    data: Data = IMAGENET
    change: dict[str, Any] = field(default_factory=dict)
    network: str = "model"  # whose accuracy: the model's, or that of a network beside it, as its method calls it
    model: str = ""
    img_size: int | None = None
    describes: str = ""
    test_size: int | None = None  # pixels, where it is measured at another size than it was trained at
    nano_test_size: int | None = None
    real: float | None = None  # the paper's accuracy by ReaL's labels, in %
    hours: float | None = None  # the paper's, of training
    why_not: str = ""
    no_nano: str = NO_NANO
    note: str = (
        ""  # where our count or setting differs from the paper's, and why; parts that begin with "nano:" are for nano
    )

    def note_at(self, scale: str) -> str:
        """The parts of the note that are about this scale."""
        parts = self.note.split("; ") if self.note else []
        return "; ".join(part for part in parts if part.startswith("nano:") == (scale == "nano"))


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    title: str
    measured: str  # how the paper got its numbers
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Description(Table):
    """A table about networks, settings or data: nothing is trained, the paper's entries stand beside ours."""

    printed: dict[str, dict[str, Any]] = field(default_factory=dict)  # label -> column -> the paper's entry


@dataclass(frozen=True)
class Figure(Table):
    """A figure of a paper: the rows are the runs that it draws."""

    kind: Literal["sizes", "curves", "sensitivity", "similarity", "attention", "features", "head tokens"] = "curves"
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # a series or panel -> its rows, see `holds`
    pictures: int = 4  # that attention is drawn over


def holds(labels: tuple[str, ...], row: Row) -> bool:
    """Whether a group of a figure names this row: by its label, or by label and data where a label has several."""
    return row.label in labels or f"{row.label}, {row.data.name}" in labels


@dataclass(frozen=True)
class Illustration:
    """A drawing of a paper that holds no result."""

    title: str
    seen_in: str  # what shows the same here


def nano(model: str, *, img_size: int = NANO_SIZE, augment: Augment | None = None, **changes: Any) -> Recipe:
    """The common setting of the nano comparisons: one short schedule, light augmentation, small batches.

    `changes` that are fields of Recipe replace those; all others are arguments of the model.
    """
    settings = {key: changes.pop(key) for key in list(changes) if key in Recipe.__dataclass_fields__}
    recipe = Recipe(
        model=model,
        model_args=changes,
        data="digits",
        img_size=img_size,
        epochs=20,
        batch_size=64,
        augment=augment or Augment(crop="none", hflip=0.0),  # a mirrored digit is none
        optim=Optim(lr=1e-3, warmup_epochs=2),
    )
    return replace(recipe, **settings)


def nano_on(recipe: Recipe, data: str) -> Recipe:
    """A nano recipe on other data than digits: twice the pixels, and the usual crops and flips of photographs."""
    if data == "digits":
        return recipe
    assert isinstance(recipe.img_size, int)  # nano images are square
    augment = replace(recipe.augment, crop="pad", hflip=0.5)
    return replace(recipe, data=data, img_size=2 * recipe.img_size, augment=augment)
