"""What is wrong with a run, and with its data: rules over the evidence, each with its reason, and which of them explain which.

A rule compares two quantities of the same run wherever it can (training with held-out images, its rate with another, an image with its
mirror image), because absolute limits do not travel from one dataset to the next. The limits that are left stand here with their reason.
benchmarks/sick_runs.py makes runs that are sick on purpose and counts what is named.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from vitling.diagnose.advice import (
    changed_recipe,
    further_diagnosis,
    look_at_data,
    more_training,
    planned_run,
    run_seconds,
)
from vitling.diagnose.curve import FEWEST
from vitling.diagnose.evidence import Evidence
from vitling.diagnose.indicator import Finding
from vitling.diagnose.label_errors import ConfidentErrors, confident_errors
from vitling.diagnose.rate import CLEAR
from vitling.evaluation.intervals import newcombe_interval, wilson_interval
from vitling.evaluation.resampling import share_interval
from vitling.optim import peak_lr
from vitling.reports.page import counted

MOST = 5  # pieces of advice
LEAK_SHARE, LEAK_IMAGES = 0.01, 3  # of a split: fewer copies hardly move an accuracy
INPUT_OFF = (
    4.0,
    1 / 8,
    6.0,
)  # mean, smallest and largest deviation of a channel, in units of what normalisation should leave (0 and 1)
MIRROR_LOSS = 1 / 3  # of what the probe knows: photographs lose nothing of it when they are mirrored, letters most
NOISE_FOUND = (
    0.02  # the share of the surest predictions that contradict their label, at least (lower end of its interval)
)
SURE = 0.1  # of the images, that are looked at for it: among more of them even a good classifier errs
KNOWS, KNOWS_WELL = 0.4, 0.6  # of the way from guessing to knowing: who knows less cannot judge labels
FLAT = 0.5  # wrong labels are spread evenly; the mistakes of a weak model vanish where it is surest
FEW_IMAGES, FEW_SHARE = 10, 0.2  # of a class, and as a share of the median class
LARGE = 3000  # parameters per training image: chosen, not measured; our recipes have some hundreds, a ViT-Ti on 1,000 images 5,700
GAP = 0.1  # between training and held-out images, above which a network knows its images rather than its classes
LONG_RISE, LONG_HALF = 0.2, 0.5  # the validation loss rose by a fifth, from before the middle of the run on
SHORT_RISE = 0.02  # of accuracy in the last sixth of a run, and more than chance
SHORT_EPOCHS = 5
FLAT_LOSS = (
    0.03  # the training loss fell by less than this share in the second quarter: there is no room left in the network
)
TINY_SIDE = 16  # pixels, below which moving an image by one makes another image of it
WEAK = 0.02  # of accuracy, by which a class lies below all together at least, with 95 % confidence
CHANGED, CHANGED_IMAGES = (
    0.02,
    2.5,
)  # of accuracy, and in images: the same weights on the same ones give the same, but for rounding


def find_causes(e: Evidence) -> list[Finding]:
    """What is wrong, the surest and costliest first; what another finding explains is left out."""
    found = [finding for rule in RULES for finding in rule(e)]
    names = {finding.name for finding in found if finding.state == "problem"}
    explained = {name for cause, effects in EXPLAINS.items() if cause in names for name in effects}
    return order(finding for finding in found if finding.name not in explained)


def order(findings) -> list[Finding]:
    """Problems first; among them what makes the numbers themselves worthless, then by expected gain times confidence."""

    def key(finding: Finding) -> tuple:
        states = ("problem", "watch", "ok")
        return states.index(finding.state), finding.name not in FIRST, -(finding.gain or 0.0) * finding.confidence

    return sorted(findings, key=key)


# ---------------------------------------------------------------------------------------------------------------------
# Can the numbers be trusted?


def leaks(e: Evidence) -> list[Finding]:
    found = []
    for split in ("test", "val"):
        copies = e.copies.get(split)
        if copies is None or not copies.pairs:
            continue
        count, share = len(copies.pairs), len(copies.pairs) / copies.images
        if count < LEAK_IMAGES or share < LEAK_SHARE:
            continue
        name = {"val": "validation"}.get(split, split)
        found.append(
            Finding(
                name="leak",
                state="problem",
                value=share,
                sentence=f"{count:,} of {copies.images:,} {name} images are copies of training images: its accuracy there is too good to be true.",
                reference=f"Copies are the same but for size, compression or brightness. From {LEAK_SHARE:.0%} on an accuracy moves.",
                advice="take the copies out of the training images and train again; `vitling plan` lists copies too.",
                command=look_at_data(e.run),
                question="data",
                details={"pairs": copies.pairs[:50], "count": count, "split": split},
            )
        )
    return found


def changed(e: Evidence) -> list[Finding]:
    best = e.run.info.get("best", {}).get("val_top1")
    if (
        best is None
        or not e.best_weights
        or e.val is None
        or len(e.val.labels) != e.run.info.get("data", {}).get("val_images")
    ):
        return []
    off = abs(e.val.accuracy - best)
    if off <= max(CHANGED, CHANGED_IMAGES / len(e.val.labels)):
        return []
    return [
        Finding(
            name="changed since training",
            state="problem",
            value=off,
            sentence=f"On its validation images it now reaches {e.val.accuracy:.1%}; when it was trained it was {best:.1%}.",
            reference="The same weights on the same images give the same: pixels, labels, weights or their normalisation have changed.",
            advice="restore data and run from a copy, or train again on the data as it is.",
            command=changed_recipe(e.run, {}, name="again"),
            question="data",
        )
    ]


def interrupted(e: Evidence) -> list[Finding]:
    """A run that was stopped or killed: what it had not learnt by then says nothing about its settings."""
    if e.run.finished or "loss became" in e.failure or e.curve is None:
        return []
    done, asked = e.curve.epochs[-1], e.recipe.epochs
    return [
        Finding(
            name="interrupted",
            state="problem",
            value=float(done),
            sentence=f"It is not finished: it was stopped after {done:.4g} of its {asked:g} epochs, or is still being trained.",
            reference="What it lacks may be what it would have learned in the rest.",
            advice="repeat the command that began it, which goes on where it stopped; where that is lost, begin anew.",
            command=changed_recipe(e.run, {}, name="again"),
            gain=_room(e, 0.5),
        )
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Input, rate, labels, augmentation


def normalisation(e: Evidence) -> list[Finding]:
    if e.input_mean is None or e.input_std is None:
        return []
    if (
        e.recipe.mean is None and e.recipe.std is None
    ):  # they were measured on these images, also where a channel is constant
        return []
    mean, std = float(np.abs(e.input_mean).max()), e.input_std
    if mean <= INPUT_OFF[0] and std.min() >= INPUT_OFF[1] and std.max() <= INPUT_OFF[2]:
        return []
    return [
        Finding(
            name="wrong normalisation",
            state="problem",
            value=mean,
            sentence="The pixels reach the network far from mean 0 and deviation 1: its mean= and std= are not those of these images.",
            reference=f"By channel, mean {_numbers(e.input_mean)} and deviation {_numbers(e.input_std)} after normalisation; allowed, "
            f"by choice, are a mean within {INPUT_OFF[0]:g} and a deviation of {INPUT_OFF[1]:.2g} to {INPUT_OFF[2]:g}.",
            advice="leave mean and std to the training images.",
            command=changed_recipe(e.run, {"mean": "none", "std": "none"}, name="normalised"),
            gain=_room(e, 0.3),
        )
    ]


def rate(e: Evidence) -> list[Finding]:
    trial, lr = e.rates, peak_lr(e.recipe)
    diverged = "loss became" in e.failure
    if trial is None:
        return []
    verdict = trial.verdict
    if verdict in ("right", "unclear") and diverged:
        verdict = "high"
    if verdict in ("right", "unclear") or (not diverged and _got_further(e)):
        return []
    factor = trial.best if trial.best != 1.0 else 0.1
    here = "it diverged" if diverged else f"its loss is {trial.losses[1.0]:.2f}"
    again = f"{trial.losses[factor]:.2f}" if factor in trial.losses else "less"
    return [
        Finding(
            name=f"rate too {verdict}",
            state="problem",
            value=lr,
            sentence=f"Its learning rate of {lr:g} is too {verdict}: the same first steps at {factor:g} times that learn much more.",
            reference=f"Tried, {trial.steps} steps from the run's first weights on its own batches: at its rate {here}, at {factor:g} times it is "
            f"{again} (guessing: {trial.chance:.2f}).",
            advice=f"train at {factor:g} times the rate.",
            command=changed_recipe(e.run, _rate_changes(e, factor), name="rate"),
            confidence=0.95,
            gain=_room(e, 0.5),
            details={"losses": {f"{key:g}": value for key, value in trial.losses.items()}},
        )
    ]


def _got_further(e: Evidence) -> bool:
    """Whether the run knows its training images clearly better than the trial at another rate: then that one only began faster."""
    return (
        e.train is not None
        and e.rates is not None
        and e.train.loss < min(e.rates.losses.values()) - CLEAR * e.rates.chance
    )


def _rate_changes(e: Evidence, factor: float) -> dict:
    """The new rate, and with it whatever must lie below it."""
    optim = e.recipe.optim
    lr = optim.lr * factor
    changes = {"optim.lr": float(f"{lr:.2g}")}
    if optim.min_lr > lr / 10:
        changes["optim.min_lr"] = float(f"{lr / 100:.2g}")
    if optim.warmup_lr > lr:
        changes["optim.warmup_lr"] = float(f"{lr / 100:.2g}")
    return changes


def wrong_labels(e: Evidence) -> list[Finding]:
    noise = label_noise(e)
    if noise is None:
        return []
    low, high = noise.interval
    return [
        Finding(
            name="wrong labels",
            state="problem",
            value=noise.share,
            sentence=f"About {noise.share:.0%} of the labels look wrong (95 % interval {low:.0%} to {high:.0%}).",
            reference=f"Of the {noise.images:,} images of which a classifier that never saw their label is surest, {noise.wrong:,} are labelled "
            "otherwise. On clean labels that goes to zero, however hard the data.",
            advice="find the images by models that did not learn from them, and correct their labels.",
            command=further_diagnosis(e.run, "--label-errors"),
            question="data",
            confidence=0.9,
            gain=100 * noise.share / 2,
        )
    ]


def label_noise(e: Evidence) -> ConfidentErrors | None:
    """How many of the surest predictions contradict their labels; None where that is nothing, or nobody is fit to judge.

    First the linear classifier, since each image is left out of it once. One that knows little needs the run's own voice beside it.
    """
    probe = e.probe and _contradiction(e, e.probe.left_out, e.probe.labels)
    own = [x for seen in (e.train, e.val) if seen and (x := _contradiction(e, seen.probabilities, seen.labels))]
    known = e.learnt(e.probe.accuracy) if e.probe else 0.0
    if probe and (own or known >= KNOWS_WELL * (1 - probe.share)):
        return probe
    return (
        own[1] if len(own) == 2 and known < KNOWS_WELL else None
    )  # who knows the classes and doubts no label is believed


def _contradiction(e: Evidence, scores: torch.Tensor, labels: torch.Tensor) -> ConfidentErrors | None:
    accuracy = (scores.argmax(dim=1) == labels).float().mean().item()
    surest = confident_errors(scores, labels, SURE)
    if surest is None or e.learnt(accuracy) < KNOWS or surest.interval[0] < NOISE_FOUND:
        return None
    half = confident_errors(scores, labels, SURE / 2)
    return surest if half is None or half.share >= FLAT * surest.share else None


def mirroring(e: Evidence) -> list[Finding]:
    if e.unchanged is None or e.learnt(e.unchanged) < KNOWS:
        return []
    names = {"hflip": "left to right", "vflip": "upside down"}
    found = []
    for axis in ("hflip", "vflip"):
        if not getattr(e.recipe.augment, axis) or axis not in e.mirrored:
            continue
        lost = 1 - e.learnt(e.mirrored[axis]) / e.learnt(e.unchanged)
        correct = round(e.mirrored[axis] * e.asked), round(e.unchanged * e.asked)
        if lost < MIRROR_LOSS or newcombe_interval(correct[1], e.asked, correct[0], e.asked)[0] <= 0:
            continue
        found.append(
            Finding(
                name="augmentation destroys the class",
                state="problem",
                value=lost,
                sentence=f"Mirrored {names[axis]}, these images no longer look like their class, yet it is trained on them mirrored.",
                reference=f"A classifier of images as they are is correct for {e.unchanged:.0%} of others, and for {e.mirrored[axis]:.0%} of the "
                "same ones mirrored. Ten classes of CIFAR-100 lose nothing.",
                advice="do not mirror.",
                command=changed_recipe(e.run, {f"augment.{axis}": 0}, name="unmirrored"),
                confidence=0.9,
                gain=_room(e, 0.3),
            )
        )
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Length, size, images


def too_large(e: Evidence) -> list[Finding]:
    """Thousands of parameters per image, and a linear classifier does better. Who beats that one, or begins with what was learnt
    elsewhere, is not too large, however many parameters it has: a ResNet-18 has 11 million, and does well on a thousand images."""
    ratio = e.parameters / max(e.train_images, 1)
    if e.val is None or ratio < LARGE or e.recipe.init or not _behind_probe(e):
        return []
    return [
        Finding(
            name="network too large",
            state="problem",
            value=ratio,
            sentence=f"The network is far too large for {counted(e.train_images, 'training image')}: {ratio:,.0f} parameters for each.",
            reference=f"{_both(e)} Our recipes have some hundreds per image; the limit of {LARGE:,} is chosen, not measured.",
            advice="let a plan choose a network for these images and the time that this one took.",
            command=planned_run(e.run),
            confidence=0.8,
            gain=_room(e, 0.4),
        )
    ]


def too_long(e: Evidence) -> list[Finding]:
    c = e.curve
    if c is None or len(c) < 2 * FEWEST or not e.is_fitted or _gap(e)[0] <= GAP / 2:
        return []
    if c.lowest_loss_at > LONG_HALF or c.loss_rise < LONG_RISE or c.stopped_rising > LONG_HALF:
        return []
    epochs = max(1, round(1.25 * max(c.stopped_rising, c.lowest_loss_at) * c.epochs[-1]))
    warmup = min(e.recipe.optim.warmup_epochs, epochs / 5)
    return [
        Finding(
            name="too long",
            state="problem",
            value=float(c.epochs[-1]),
            sentence=f"It was trained far too long: validation stopped rising after {c.stopped_rising:.0%} of its {c.epochs[-1]:.0f} epochs, and from "
            "then on it learned its training images by heart.",
            reference=f"The validation loss was lowest after {c.lowest_loss_at:.0%} and rose by {c.loss_rise:.0%} since. {_both(e)}",
            advice=f"{epochs} epochs are enough; use the time for augmentation instead."
            if _unused(e)
            else f"{epochs} epochs are enough.",
            command=changed_recipe(
                e.run, {"epochs": epochs, "optim.warmup_epochs": round(warmup, 2), **_unused(e)}, name="shorter"
            ),
            confidence=0.8,
            gain=_room(e, 0.15),
        )
    ]


def overfitting(e: Evidence) -> list[Finding]:
    """A problem where remedies were left unused; else it is the images that are few, which is nobody's fault."""
    if not e.is_fitted or _gap(e)[0] <= GAP:
        return []
    unused = _unused(e)
    if unused:
        return [
            Finding(
                name="overfitting",
                state="problem" if _behind_probe(e) or _gap(e)[0] > 2 * GAP else "watch",
                value=_gap(e)[0],
                sentence="It knows its training images, not the classes, and little was done against that.",
                reference=_both(e),
                advice="augment the images.",
                command=changed_recipe(e.run, unused, name="augmented"),
                confidence=0.7,
                gain=_room(e, 0.15),
            )
        ]
    return [
        Finding(
            name="too little data",
            state="watch",
            value=float(e.train_images),
            sentence="What limits it are the images: it knows those that it was trained on, and does less well on others.",
            reference=_both(e),
            advice="find out what more images would bring.",
            command=further_diagnosis(e.run, "--learning-curve"),
            confidence=0.6,
            gain=_room(e, 0.1),
            question="training",
        )
    ]


def too_short(e: Evidence) -> list[Finding]:
    c = e.curve
    if c is None or e.train is None:
        return []
    rises = c.late_rise > max(SHORT_RISE, c.noise)
    brief = c.epochs[-1] <= SHORT_EPOCHS and not e.is_fitted
    if not rises and not brief:
        return []
    times = 1.0 if c.epochs[-1] >= 20 else min(10.0, 20 / c.epochs[-1])
    return [
        Finding(
            name="too short",
            state="problem",
            value=float(c.epochs[-1]),
            sentence=f"It was trained too briefly: {c.epochs[-1]:.0f} epochs, and it was still learning when they ended."
            if rises
            else f"It was trained too briefly: {c.epochs[-1]:.0f} epochs, and it does not know its training images yet.",
            reference=f"Validation accuracy changed by {100 * c.late_rise:+.1f} points in the last part of the run (chance: ±{100 * c.noise:.1f}). {_both(e)}",
            advice="train it further." if times == 1 else f"train it further, about {times:.0f} times as long.",
            command=more_training(e.run, times),
            confidence=0.8,
            gain=max(100 * c.late_rise, _room(e, 0.2)),
        )
    ]


def too_small(e: Evidence) -> list[Finding]:
    """A problem where a linear classifier does better; else it may be the images that do not tell more, or the augmentation."""
    c = e.curve
    if c is None or e.train is None or e.is_fitted or c.middle_fall is None:
        return []
    if c.middle_fall > FLAT_LOSS or c.late_rise > max(SHORT_RISE, c.noise) or _gap(e)[0] > GAP / 2:
        return []
    if e.rates is None or e.rates.verdict != "right":
        return []
    return [
        Finding(
            name="network too small",
            state="problem" if _behind_probe(e) else "watch",
            value=float(e.parameters),
            sentence="The network is too small: it cannot even learn its training images, and stopped getting better long before the end."
            if _behind_probe(e)
            else "It stopped getting better long before the end, without knowing its training images: a larger network may.",
            reference=f"Its training loss fell by {c.middle_fall:.1%} in the second quarter of the run, at a rate that is right. {_both(e)}",
            advice="let a plan choose a larger network that fits the time.",
            command=planned_run(e.run),
            confidence=0.7,
            gain=_room(e, 0.3),
        )
    ]


def few_images(e: Evidence) -> list[Finding]:
    median = float(np.median(e.counts))
    few = [i for i in np.argsort(e.counts) if e.counts[i] < min(FEW_IMAGES, FEW_SHARE * median)]
    if not few:
        return []
    named = ", ".join(f"'{e.class_names[i]}' ({e.counts[i]})" for i in few[:4])
    more = f" and {len(few) - 4} more" if len(few) > 4 else ""
    balanced = e.recipe.balance != "none"
    return [
        Finding(
            name="too few images of a class",
            state="problem",
            value=float(e.counts[few[0]]),
            sentence=f"{'A class has' if len(few) == 1 else f'{len(few)} classes have'} hardly any images to learn from: {named}{more}; the others have "
            f"about {median:.0f}.",
            reference=f"Below {FEW_IMAGES} images and a fifth of the median class.",
            advice="collect images of it." + ("" if balanced else " Until then, show those that there are more often."),
            command="" if balanced else changed_recipe(e.run, {"balance": "sampler"}, name="balanced"),
            question="data",
            confidence=0.9,
            gain=100 * len(few) / len(e.class_names) / 2,
            details={"classes": {e.class_names[i]: int(e.counts[i]) for i in few}},
        )
    ]


def weak_classes(e: Evidence) -> list[Finding]:
    """Classes that are recognised worse than all together, by more than chance."""
    if e.val is None:
        return []
    correct = e.val.logits.argmax(dim=1) == e.val.labels
    rows = []
    for label, name in enumerate(e.class_names):
        mine = e.val.labels == label
        images = int(mine.sum())
        if images and wilson_interval(int(correct[mine].sum()), images)[1] < e.val.accuracy - WEAK:
            rows.append((int(correct[mine].sum()) / images, images, label, name))
    rows.sort()
    if not rows:
        return []
    share, images, label, name = rows[0]
    wrong = e.val.logits.argmax(dim=1)[(e.val.labels == label) & ~correct]
    taken = e.class_names[int(wrong.bincount().argmax())]
    low, high = wilson_interval(round(share * images), images)
    others = f"; so are {len(rows) - 1} more classes" if len(rows) > 1 else ""
    return [
        Finding(
            name="weak class",
            state="watch",
            value=share,
            sentence=f"Class '{name}' is recognised in {share:.0%} of its {counted(images, 'image')}, less than the rest{others}; it is mostly taken for '{taken}'.",
            reference=f"95 % interval {low:.0%} to {high:.0%}; all classes together: {e.val.accuracy:.0%}.",
            advice="look at its pictures on the page: wrong labels, or views that the training images lack.",
            question="data",
            confidence=0.6,
            gain=100 * sum((e.val.accuracy - row[0]) * row[1] for row in rows) / len(e.val.labels) / 2,
            details={"classes": {row[3]: row[0] for row in rows}},
        )
    ]


def copies_in_train(e: Evidence) -> list[Finding]:
    copies = e.copies.get("train")
    if copies is None or len(copies.pairs) < LEAK_IMAGES or len(copies.pairs) < LEAK_SHARE * copies.images:
        return []
    return [
        Finding(
            name="copies",
            state="watch",
            value=len(copies.pairs) / copies.images,
            sentence=f"{len(copies.pairs):,} of {copies.images:,} training images are copies of another one.",
            reference="They count twice, and a validation split that is carved from train may get one of a pair.",
            advice="keep one of each.",
            command=look_at_data(e.run),
            question="data",
            details={"pairs": copies.pairs[:50]},
        )
    ]


RULES: Sequence[Callable[[Evidence], list[Finding]]] = (
    leaks, changed, interrupted, normalisation, rate, wrong_labels, mirroring, few_images, too_large, too_long, overfitting, too_short, too_small,
    weak_classes, copies_in_train,
)  # fmt: skip
FIRST = ("leak", "changed since training", "interrupted")
_LENGTH = ("too short", "too long", "network too small", "network too large", "overfitting", "too little data")
_RATE = ("rate too high", "rate too low")
EXPLAINS: dict[str, tuple[str, ...]] = {
    "changed since training": (*_LENGTH, *_RATE, "wrong labels", "weak class"),
    "interrupted": (*_LENGTH, *_RATE, "weak class"),
    "wrong normalisation": (*_LENGTH, *_RATE, "weak class"),
    "rate too high": (*_LENGTH, "weak class"),
    "rate too low": (*_LENGTH, "weak class"),
    "wrong labels": (*_LENGTH, "weak class"),
    "augmentation destroys the class": (*_LENGTH, "weak class"),
    "network too large": ("too long", "overfitting", "too little data", "too short", "weak class"),
    "too long": ("overfitting", "too little data"),
    "too few images of a class": ("weak class",),
}


# ---------------------------------------------------------------------------------------------------------------------


def _room(e: Evidence, share: float) -> float:
    """Points to be had: what a linear classifier reaches and this network does not, or else a share of its errors. A guess."""
    accuracy = e.val.accuracy if e.val else e.chance
    ahead = e.probe.accuracy - accuracy if e.probe else 0.0
    return 100 * max(ahead, share * (1 - accuracy))


def _gap(e: Evidence) -> tuple[float, float]:
    """The 95 % interval of accuracy on training images less that on held-out ones."""
    if e.train is None or e.val is None:
        return 0.0, 0.0
    return newcombe_interval(e.train.correct, len(e.train.labels), e.val.correct, len(e.val.labels))


def _behind_probe(e: Evidence) -> bool:
    """Whether a linear classifier on fixed features does better, by more than chance."""
    if e.val is None or e.probe is None:
        return False
    hits = (e.val.logits.argmax(dim=1) == e.val.labels).cpu().numpy()
    return share_interval(hits, e.val.images.groups)[1] < e.probe.accuracy


def _both(e: Evidence) -> str:
    if e.train is None or e.val is None:
        return ""
    probe = f"; a linear classifier on fixed features: {e.probe.accuracy:.1%}" if e.probe else ""
    return f"Accuracy on training images {e.train.accuracy:.1%}, on validation images {e.val.accuracy:.1%}{probe}."


def _unused(e: Evidence) -> dict:
    """Remedies against overfitting that the run did without, and that our measurements do not speak against."""
    augment = e.recipe.augment
    unused: dict[str, object] = {}
    if augment.crop == "none" and min(e.run.preprocessing().size) >= TINY_SIDE:
        unused |= {"augment.crop": "pad", "augment.crop_padding_mode": "reflect"}
    kept = e.mirrored.get("hflip")
    safe = (
        kept is not None and e.unchanged is not None and e.learnt(kept) > (1 - MIRROR_LOSS / 2) * e.learnt(e.unchanged)
    )
    if not augment.hflip and safe:
        unused["augment.hflip"] = 0.5
    return unused


def _numbers(values: np.ndarray) -> str:
    return ", ".join(f"{value:.2g}" for value in values)


__all__ = ["MOST", "Evidence", "find_causes", "label_noise", "order", "run_seconds"]
