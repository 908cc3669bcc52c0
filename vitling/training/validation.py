"""What a validation measures: accuracy and loss, or, of a method without labels, its own loss and now and then what neighbours say."""

import torch
from torch import Tensor, nn

from vitling.data.pipeline.loader import Fitted
from vitling.data.pipeline.reading import Reading, load_split
from vitling.evaluation.loop import autocast_for, validate
from vitling.evaluation.neighbours import nearest, neighbour_accuracy, split_features
from vitling.models.inspect import evaluating
from vitling.runs.device import to_float64
from vitling.training.random_state import seed_everything
from vitling.training.setup import Setup

NEIGHBOURS_EVERY = 5  # validations, and after the last one
NEIGHBOUR_IMAGES = (2000, 1000)  # training and validation images, at most
SHOWN, SHOWN_NEIGHBOURS = 8, 5  # images of a picture, and neighbours of each


def measure(
    setup: Setup, model: nn.Module, *, batches: int | None = None, keep: list[Tensor] | None = None
) -> dict[str, float]:
    """`loss` on the validation split, or on its first batches, of so many `images`, and the target's score where labels are learnt from."""
    data = setup.data
    if setup.method.unlabelled:
        return _measure_images(setup, batches)
    return validate(
        model,
        data.val,
        data.preprocessing,
        setup.accelerator,
        target=setup.method.target,
        batches=batches,
        keep=keep,
        with_error=setup.recipe.keep == "last_good",
    )


def _measure_images(setup: Setup, batches: int | None) -> dict[str, float]:
    """The method's own loss, with draws that are the same every time."""
    accelerator = setup.accelerator
    sums = to_float64(torch.zeros(2, device=accelerator.device))
    for number, batch in enumerate(setup.loader.held_out(setup.data.val)):
        if number == batches:
            break
        seed_everything(setup.recipe.seed, "held out", number, accelerator.process_index)
        with evaluating(setup.method), autocast_for(accelerator):
            loss = setup.method.held_out(batch)["loss"].float()
        count = len(batch["image"])
        sums += torch.stack([to_float64(loss) * count, to_float64(torch.full_like(loss, count))])
    total, images = accelerator.reduce(sums, "sum").tolist()
    return {"loss": total / images, "images": images}


class Neighbourhood:
    """Images of both splits as the model sees them, for what is read off its features. Read when it is first asked for."""

    def __init__(self, setup: Setup, reading: Reading):
        self.setup, self.reading = setup, reading
        self.sources: tuple[Fitted, Fitted] | None = None

    @property
    def measurable(self) -> bool:
        """Whether there are labels to measure with, and images that can be read in any order."""
        data = self.setup.data
        images = data.images.values()
        judged = data.dataset.target.kind == "classes" and len(data.class_names) > 1
        return self.setup.method.unlabelled and judged and all(x.shards is None for x in images)

    def _load(self) -> tuple[Fitted, Fitted]:
        if self.sources is None:
            data = self.setup.data
            train, val = (
                load_split(
                    images.subset(images.sample(most)), split, reading=self.reading, **data.preprocessing.fit_args()
                )
                for (split, images), most in zip(data.images.items(), NEIGHBOUR_IMAGES, strict=True)
            )
            self.sources = (train, val)
        return self.sources

    def accuracy(self, model: nn.Module) -> float:
        """How often the nearest training images say what a validation image is."""
        seen = self.setup.data.preprocessing
        (known, known_labels), (new, labels) = (split_features(model, source, seen) for source in self._load())
        return neighbour_accuracy(new, labels, known, known_labels)

    def rows(self, model: nn.Module) -> list[list[Tensor]]:
        """Some validation images, each with the training images nearest to it, as uint8 (C, H, W)."""
        train, val = self._load()
        seen = self.setup.data.preprocessing
        known, _ = split_features(model, train, seen)
        [first] = val.batches([torch.arange(min(SHOWN, len(val)))])
        device = next(model.parameters()).device
        with evaluating(model):
            images = seen.normalize(first["image"].to(device))
            new = model.forward_head(model.forward_features(images), pre_logits=True).flatten(1).float().cpu()
        _, index = nearest(new, known, SHOWN_NEIGHBOURS)
        [others] = train.batches([index.flatten()])
        beside = others["image"].view(*index.shape, *others["image"].shape[1:])
        return [[image, *row] for image, row in zip(first["image"], beside, strict=True)]


def neighbour_images(setup: Setup) -> float:
    """Images that a validation passes for its neighbours, on average."""
    data = setup.data
    if not Neighbourhood(setup, Reading()).measurable:
        return 0.0
    return (
        sum(min(len(data.images[split]), most) for split, most in zip(("train", "val"), NEIGHBOUR_IMAGES, strict=True))
        / NEIGHBOURS_EVERY
    )


def pictures(setup: Setup, neighbourhood: Neighbourhood, model: nn.Module) -> tuple[str, list[str], list[list[Tensor]]]:
    """What is shown of a method without labels: a name, what stands in each column, and rows of uint8 pictures."""
    method, seen = setup.method, setup.data.preprocessing
    [batch] = setup.data.val.batches([torch.arange(min(SHOWN, len(setup.data.val)))])
    seed_everything(setup.recipe.seed, "pictures")
    with evaluating(method):
        shown = method.pictures({"image": seen.normalize(batch["image"].to(setup.accelerator.device))})
    if shown:
        columns = [_as_pixels(images.float().cpu(), seen.mean, seen.std) for images in shown.values()]
        return "reconstructions", list(shown), [list(row) for row in zip(*columns, strict=True)]
    names = ["image", *(f"neighbour {number}" for number in range(1, SHOWN_NEIGHBOURS + 1))]
    rows = neighbourhood.rows(model)
    return "neighbours", names[: len(rows[0])], rows


def _as_pixels(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalised images as uint8."""
    pixels = images * torch.tensor(std).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)
    return (255 * pixels).round().clamp(0, 255).to(torch.uint8)
