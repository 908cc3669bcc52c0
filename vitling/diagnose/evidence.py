"""What a diagnosis knows of a run besides the inside of its network: its course, its images, what it says of them."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.near_duplicates import allowed_difference, find_near_duplicates
from vitling.data.pipeline.decoding import decode
from vitling.data.pipeline.loader import Resident, generator_for
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import split_training
from vitling.data.probe import Probe, fit_probe
from vitling.data.sources.dataset import Dataset
from vitling.data.sources.images import Images, evenly
from vitling.data.thumbnails import make_thumbnails
from vitling.diagnose.curve import Curve
from vitling.diagnose.rate import RateTrial, can_try, try_rates
from vitling.diagnose.subject import Subject
from vitling.errors import UserError
from vitling.evaluation.loop import predict_logits
from vitling.models.inspect import first_tensor
from vitling.recipes import Recipe
from vitling.runs.run import Run

TRAINED_ON, HELD_OUT = 2000, 4000  # images whose predictions are looked at, at most
LOOKED_AT = 6000  # images of a split that are searched for copies, at most
INPUT_IMAGES = 512  # whose pixels are measured
PROBED = 1500  # images that the linear classifier learns from
FITTED = 0.9  # of what lies between guessing and knowing: who gets that on training images has learnt them
TRIAL_SHARE, LEAST_TRIAL_SECONDS = 0.2, 20.0  # of the run's time, for trying learning rates
FEWEST_LABELS = 2  # classes, below which there is nothing to tell apart


@dataclass(frozen=True)
class Seen:
    """Images of a split as the network takes them, and what it says of them."""

    images: Images
    logits: Tensor
    pixels: Tensor  # uint8

    @property
    def labels(self) -> Tensor:
        return torch.as_tensor(self.images.labels).long()

    @property
    def correct(self) -> int:
        return int((self.logits.argmax(dim=1) == self.labels).sum())

    @property
    def accuracy(self) -> float:
        return self.correct / len(self.labels)

    @property
    def loss(self) -> float:
        return torch.nn.functional.cross_entropy(self.logits.double(), self.labels).item()

    @property
    def probabilities(self) -> Tensor:
        return self.logits.double().softmax(dim=1)


@dataclass(frozen=True)
class Copies:
    """Images of a split that look like a training image: pairs of names, and how many images were looked at."""

    pairs: list[tuple[str, str]]
    images: int


@dataclass
class Evidence:
    """Everything that the rules look at. What a run or its data does not have is None."""

    run: Run
    recipe: Recipe
    class_names: list[str]
    counts: np.ndarray  # training images of each class
    curve: Curve | None
    train: Seen | None = None  # some of the images that it was trained on
    val: Seen | None = None
    probe: Probe | None = None  # on training images
    mirrored: dict[str, float] = field(default_factory=dict)  # the probe's accuracy on images mirrored: hflip, vflip
    unchanged: float | None = None  # and on the same images as they are
    asked: int = 0  # how many those are
    copies: dict[str, Copies] = field(default_factory=dict)  # of train, val and test
    input_mean: np.ndarray | None = None  # of the pixels after normalisation, by channel
    input_std: np.ndarray | None = None
    rates: RateTrial | None = None
    parameters: int = 0
    failure: str = ""  # why the run ended before its end
    best_weights: bool = True  # whether train and val were seen with those, or with the last ones
    notes: list[str] = field(default_factory=list)  # what could not be found out, and why

    @property
    def train_images(self) -> int:
        return int(self.counts.sum())

    @property
    def chance(self) -> float:
        """The accuracy of always naming the largest class."""
        return float(self.counts.max() / self.counts.sum())

    def learnt(self, accuracy: float) -> float:
        """What an accuracy is of the way from guessing to knowing."""
        return (accuracy - self.chance) / max(1 - self.chance, 1e-9)

    @property
    def is_fitted(self) -> bool:
        """Whether the network knows the images that it was trained on."""
        return self.train is not None and self.learnt(self.train.accuracy) >= FITTED


def gather_evidence(
    run: Run,
    subject: Subject | None,
    dataset: Dataset,
    *,
    which: str = "best",
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Evidence:
    """Look at a run and its own data. Without a subject, a network, only at what it logged and at the data."""
    callback, recipe = callback or Callback(), run.recipe
    train, val = split_training(dataset, recipe)
    info = run.info
    evidence = Evidence(
        run=run,
        recipe=recipe,
        class_names=dataset.class_names,
        counts=np.bincount(train.labels, minlength=len(dataset.class_names)),
        curve=Curve.of(run),
        parameters=info.get("parameters", 0),
        failure="" if run.finished else info.get("stopped", ""),
        best_weights=which == "best",
    )
    if subject is not None:
        evidence.train = _see(subject, train, TRAINED_ON, "training images", callback)
        evidence.val = _see(subject, val, HELD_OUT, "validation images", callback)
    _look_at_input(evidence, run, train)
    _look_at_pixels(evidence, dataset, train, val, callback)
    if _rate_is_in_doubt(evidence) and can_try(recipe):
        seconds = max(LEAST_TRIAL_SECONDS, TRIAL_SHARE * info.get("wall_seconds", 0.0))
        try:
            evidence.rates = try_rates(
                recipe,
                seconds=seconds,
                most_steps=int(info.get("steps_trained", 0)),
                dataset=dataset,
                reading=reading,
                callback=callback,
            )
        except UserError as error:  # such as an init= that is gone: everything else can still be said
            evidence.notes.append(f"other learning rates could not be tried: {error}")
    return evidence


def _rate_is_in_doubt(evidence: Evidence) -> bool:
    """Who has learnt the training images had a rate that was right; of all others it is asked first."""
    return len(evidence.class_names) >= FEWEST_LABELS and not evidence.is_fitted


def _some(images: Images, most: int) -> Images:
    if len(images) <= most:
        return images
    chosen = torch.randperm(len(images), generator=generator_for("evidence"))[:most].sort().values
    return images.subset(chosen.numpy())


def _see(subject: Subject, images: Images, most: int, task: str, callback: Callback) -> Seen:
    images = _some(images, most)
    pixels = decode(images, task=f"reading {task}", callback=callback, **subject.preprocessing.fit_args())
    held = Resident(pixels, torch.as_tensor(images.labels))
    logits = predict_logits(_FirstOutput(subject.model), held, subject.preprocessing, callback=callback)
    return Seen(images, logits, pixels)


class _FirstOutput(torch.nn.Module):
    """Of models that return more than logits, the logits."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return first_tensor(self.model(images))


def _look_at_input(evidence: Evidence, run: Run, train: Images) -> None:
    """Mean and deviation of what the network gets, by channel."""
    preprocessing = run.preprocessing()
    pixels = evidence.train.pixels if evidence.train else decode(_some(train, TRAINED_ON), **preprocessing.fit_args())
    some = pixels[evenly(len(pixels), INPUT_IMAGES)]  # of all classes: images often lie in their order
    values = torch.cat([part.float().div(255) for part in some.split(64)])
    mean = values.mean(dim=(0, 2, 3)).numpy()
    std = values.std(dim=(0, 2, 3)).numpy()
    evidence.input_mean = (mean - np.array(preprocessing.mean)) / np.array(preprocessing.std)
    evidence.input_std = std / np.array(preprocessing.std)


def _look_at_pixels(evidence: Evidence, dataset: Dataset, train: Images, val: Images, callback: Callback) -> None:
    """Copies within and between splits, and what a linear classifier makes of the images: as they are, and mirrored.

    Of the test split only the pixels are compared, never a label nor a prediction.
    """
    splits = {"train": train, "val": val} | ({"test": dataset.splits["test"]} if "test" in dataset.splits else {})
    looked, thumbnails = {}, {}
    for split, images in splits.items():
        sample = _some(images, LOOKED_AT)
        thumbnails[split], good = make_thumbnails(
            sample,
            channels=dataset.channels,
            max_value=dataset.max_value,
            task=f"reading {split}",
            callback=callback,
        )
        looked[split] = sample.subset(np.flatnonzero(good))
    limit = allowed_difference(min(train.size(0)), dataset.channels)
    for split, found in thumbnails.items():
        among = None if split == "train" else thumbnails["train"]
        pairs = find_near_duplicates(found, among, max_difference=limit, task=f"copies in {split}", callback=callback)
        names = [(looked[split].names[i], looked["train"].names[j]) for i, j in pairs]
        evidence.copies[split] = Copies(names, len(found))
    labels = torch.as_tensor(looked["train"].labels).long()
    if len(labels) < 2 or len(labels.unique()) < FEWEST_LABELS:
        return
    groups = looked["train"].groups
    evidence.probe = fit_probe(thumbnails["train"], labels, PROBED, groups)
    _look_at_mirrors(evidence, thumbnails["train"], labels, groups)


def _look_at_mirrors(evidence: Evidence, thumbnails: Tensor, labels: Tensor, groups: np.ndarray | None) -> None:
    """What a classifier that never saw a mirrored image makes of mirrored ones: half of the images teach it, half are asked.

    No group is in both halves.
    """
    axes = {"hflip": 3, "vflip": 2}
    half = torch.randperm(len(labels), generator=generator_for("mirrors"))[: 2 * PROBED]
    taught, asked = half.chunk(2)
    if groups is not None:
        first = torch.as_tensor(np.isin(groups, np.unique(groups)[::2]))[half]
        taught, asked = half[first], half[~first]
        if len(taught) < 2 or not len(asked):
            return
    probe = fit_probe(thumbnails[taught], labels[taught], PROBED)

    def accuracy(images: Tensor) -> float:
        return (probe.scores(images).argmax(dim=1) == labels[asked]).float().mean().item()

    evidence.unchanged, evidence.asked = accuracy(thumbnails[asked]), len(asked)
    evidence.mirrored = {name: accuracy(thumbnails[asked].flip(axis)) for name, axis in axes.items()}
