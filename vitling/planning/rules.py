"""The rules behind `vitling plan`: a recipe for data that comes without one.

The time comes first: how many images the machine can show a network of each size before it is over decides which size is taken, and
how often each image is seen decides how much it is changed. Every rule gives its reason and the row behind it, published or measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from typing import Any

from torch import nn

from vitling.data.pipeline.preprocessing import as_size, fitting_views
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset
from vitling.errors import UserError
from vitling.methods import find_method, find_omissions
from vitling.models.macs import count_macs
from vitling.planning.machine import Candidate, Machine, parameters
from vitling.planning.sizes import (
    FULL_SIZE_SIDE,
    build_for,
    largest_patch,
    patch_for_model,
    size_for_model,
    whole_patch,
    whole_size,
)
from vitling.planning.survey import Survey
from vitling.recipes import DEFAULT, Recipe, load_recipe, override, scale_epochs, to_dict
from vitling.runs.opening import run_behind
from vitling.runs.run import Run
from vitling.training.budget import MOST_EPOCHS


@dataclass(frozen=True)
class Rung:
    """A size of the house family, the side at which it sees photographs, and the tokens it wants along a side.

    `least_views`: so many images a machine must be able to show it in the time there is, before it is better than a smaller one that
    could be shown more; or each image so often, `least_epochs`, where few images are soon learnt. `least_images`: so many there must be
    on a GPU, where time is seldom a reason to take a smaller one. `strong`: whether strong augmentation suits it in long runs.
    """

    recipe: str
    photo_side: int
    least_grid: float
    least_views: int
    least_epochs: float
    least_images: int
    strong: bool

    def wanted_views(self, images: int) -> float:
        return min(self.least_views, self.least_epochs * images)


# fmt: off
LADDER = (
    Rung("vitling/nano",   64,  3.5, 0,          0,        0, False),
    Rung("vitling/tiny",   64,  7,   90_000,     10,       0, False),
    Rung("vitling/mini",   64,  7,   350_000,    100,      0, False),
    Rung("vitling/small",  96,  7,   1_500_000,  math.inf, 0, True),
    Rung("vitling/medium", 160, 7,   5_000_000,  math.inf, 2_000, True),
    Rung("vitling/base",   192, 7,   12_000_000, math.inf, 20_000, True),
)
# fmt: on
TRAINING_SHARE = 0.9  # of a budget, that steps are taken in
CPU_EPOCHS = (3_000, 10, 200)  # without a budget: that divided by the root of the image count; least, most
GPU_VIEWS, GPU_EPOCHS = (
    (1_500_000, 15_000_000),
    (30, 300, 1000),
)  # images shown, least and most; least, usual and most epochs

CPU_SIDE = 64  # of photographs, without a budget: a larger size would take days
SIDE_STEP = 16  # pixels: photographs smaller than a rung's are seen at their own size, rounded up to these
TINY_SIDE = 16  # below it, moving an image by a pixel makes another image of it
JITTER_EPOCHS, JITTER = 15, 0.4  # from which changed colours pay
CUTOUT_EPOCHS, CUTOUT = 10, 0.25  # from which a covered square pays
MODERATE_EPOCHS = 50  # from which mixed images and a mild RandAugment pay
STRONG_EPOCHS = (
    300  # from which a stronger RandAugment, erasing and mixup pay too, in networks of more than a million parameters
)
VALIDATIONS = 12  # of a run: enough to watch it, and to see that a late epoch is not worse than an early one
VALIDATION_SHARE, LOOK = 0.05, 0.4  # of the time, at most; a look at an image beside a step on it
MANY_IMAGES, SMALL_VALIDATION = 5_000, 0.05  # from which so small a part is enough to pick the epoch by
UNBALANCED = 10  # images of the largest class per image of the smallest
CHECKED_FILES = 5_000  # so many files are tried before training, and the bad ones left out

MIXED = {"method_args.cutmix": 1.0, "method_args.mix_prob": 0.5}
MILD = {"augment.randaugment": "rand-m5-mstd0.5-inc1", "augment.color_jitter": 0.0}  # which changes colours, too
STRONG = {**MILD, "augment.randaugment": "rand-m9-mstd0.5-inc1", "augment.erase": 0.25, "augment.cutout": 0.0}
STRONG |= {"method_args.mixup": 0.8, "method_args.cutmix": 1.0, "method_args.mix_prob": 1.0}


@dataclass(frozen=True)
class Choice:
    """One decision of a plan: what it does to the recipe, why, and the row that supports it."""

    what: str
    value: str
    reason: str
    evidence: str = ""
    changes: dict[str, Any] = field(default_factory=dict)


def choose(
    dataset: Dataset,
    survey: Survey,
    settings: Sequence[str] = (),
    *,
    machine: Machine,
    budget_seconds: float | None = None,
) -> tuple[Recipe, list[Choice]]:
    """A recipe for this data on this machine in this time, and its choices. What `settings` say comes first; a budget says how many epochs."""
    if budget_seconds:
        settings = [text for text in settings if text.partition("=")[0].strip() != "epochs"]
    asked = {text.partition("=")[0].strip() for text in settings}
    validation = _validation(survey)
    images, held_out = _divided(dataset, validation, settings)
    epochs = _asked_epochs(settings) or _usual_epochs(images, machine.kind)
    named = _rung_of(_with(settings, load_recipe(DEFAULT)).model) if "model" in asked else None
    if begun := pretrained_run(settings):
        base, choices = _model_of_run(begun, settings, asked)
    elif "model" in asked and named is None:
        base, choices = _named_model(survey, settings, asked)
    else:
        ladder = (named,) if named else LADDER
        base, choices = _climb(ladder, survey, settings, asked, machine, epochs, images, budget_seconds)
    batch = _batch(images, base)
    if budget_seconds:
        rate = machine.images_per_second(_candidate(base, batch, survey, settings))
        epochs = min(max(1, round(rate * TRAINING_SHARE * budget_seconds / images)), MOST_EPOCHS)
    size = as_size(_with(settings, base).img_size)
    assert size is not None  # both ways choose one
    augmentation = _augmentation(survey, size, epochs, base, settings)
    views = _test_views(augmentation, settings, base)
    choices += [
        _epochs(epochs, budget_seconds),
        augmentation,
        *validation,
        *_validations(epochs, views * held_out / images),
        _average(base),
        *(choice for choice in _omissions(base, survey.labels) if not (begun and "unlabelled" in choice.changes)),
        *batch,
        *_balance(survey),
        *_labels(dataset, survey, base),
        *_bad_files(survey),
    ]
    choices += [*_precision(machine), *_compile(machine)]
    changes = {key: value for choice in choices for key, value in choice.changes.items() if key != "epochs"}
    recipe = override(override(scale_epochs(base, epochs), changes), list(settings))
    return recipe, [_as_asked(choice, asked, recipe) for choice in choices]


def _validation(survey: Survey) -> list[Choice]:
    """A smaller part for validation, where a test split gives the number and validation only picks the epoch."""
    if "test" not in survey.images or "val" in survey.images or survey.images["train"] < MANY_IMAGES:
        return []
    share = f"{100 * SMALL_VALIDATION:.0f} % of the training images"
    reason = (
        "the test split is there for the number; what picks the epoch can be smaller, and more is left to learn from"
    )
    return [Choice("validation", share, reason, changes={"val_fraction": SMALL_VALIDATION})]


def _validations(epochs: int, looks: float) -> list[Choice]:
    """Not after every one of many epochs: asking about images takes time that is better spent on learning.

    `looks` are those of one validation, for each training image.
    """
    every = max(epochs // VALIDATIONS, math.ceil(LOOK * looks / VALIDATION_SHARE))
    every = min(every, epochs)
    if every < 2:
        return []
    reason = f"about {VALIDATIONS} times in all at most, and in a twentieth of the time; the rest is better spent on learning"
    return [Choice("validated", f"every {every} epochs", reason, changes={"validate_every": every})]


def _test_views(augmentation: Choice, settings: Sequence[str], base: Recipe) -> int:
    """In how many ways an image is looked at when it is validated."""
    changes = {key: value for key, value in augmentation.changes.items() if key.startswith("test_")}
    return count_test_views(_with(settings, override(base, changes)))


def count_test_views(recipe: Recipe) -> int:
    """How often an image passes through the network when it is validated or tested."""
    return (1 + 4 * recipe.test_crops + 2 * recipe.test_shifts) * (1 + recipe.test_mirror)


def _divided(dataset: Dataset, validation: list[Choice], settings: Sequence[str]) -> tuple[int, int]:
    """How many images are left to learn from when validation has its part, and how many that has."""
    base = override(
        load_recipe(DEFAULT), {key: value for choice in validation for key, value in choice.changes.items()}
    )
    splitting = [
        text for text in settings if text.startswith(("fraction", "val_fraction", "fold", "seed", "test_split"))
    ]
    train, val = split_training(dataset, override(base, splitting))
    return len(train), len(val)


def _asked_epochs(settings: Sequence[str]) -> int | None:
    given = [value.strip() for key, _, value in (text.partition("=") for text in settings) if key.strip() == "epochs"]
    # Anything but a positive integer is refused where settings are read.
    return int(given[-1]) if given and given[-1].isdigit() and int(given[-1]) > 0 else None


def _with(settings: Sequence[str], base: Recipe) -> Recipe:
    """The recipe with what the user set; a schedule follows other epochs."""
    return override(scale_epochs(base, _asked_epochs(settings) or base.epochs), list(settings))


def _as_asked(choice: Choice, asked: set[str], recipe: Recipe) -> Choice:
    """The choice, or what the user put in its place."""
    taken = [key for key in choice.changes if key in asked]
    if not taken:
        return choice
    tree = to_dict(recipe)
    values = {key: reduce(getitem, key.split("."), tree) for key in taken}
    shown = [str(value) if len(choice.changes) == 1 else f"{key}={value}" for key, value in values.items()]
    return Choice(choice.what, ", ".join(shown), "as you asked", changes=values)


# --- size -------------------------------------------------------------------------------------------------------------


def _climb(
    ladder: Sequence[Rung],
    survey: Survey,
    settings: Sequence[str],
    asked: set[str],
    machine: Machine,
    epochs: int,
    images: int,
    budget_seconds: float | None,
) -> tuple[Recipe, list[Choice]]:
    """The largest size that is shown enough images in the time there is, and its choices."""
    taken: tuple[Recipe, list[Choice]] | None = None
    macs_per_second = math.inf  # of the size before
    gpu = machine.kind == "gpu"
    for rung in ladder:
        base = load_recipe(rung.recipe)
        if "method" in asked:
            base = override(base, {"method_args": {}})
        sizes = _sizes(base, rung, survey, settings, asked, machine.kind)
        base = override(base, {key: value for choice in sizes for key, value in choice.changes.items()})
        candidate = _candidate(base, _batch(images, base), survey, settings)
        _, model, pixels = candidate
        views = float(epochs * images)
        if budget_seconds:
            macs, seconds = count_macs(model, pixels), TRAINING_SHARE * budget_seconds
            if not gpu and macs_per_second / macs * seconds < rung.wanted_views(images) / 2:
                break  # hopeless: not worth the time to measure it; a GPU does small sizes no faster than larger ones
            rate = machine.images_per_second(candidate)
            views, macs_per_second = rate * seconds, rate * macs
        if taken and gpu and (images < rung.least_images or not machine.images_per_second(candidate)):
            break  # too few to learn from, or it does not fit into the memory there is
        if taken and not gpu and not budget_seconds and rung.photo_side > CPU_SIDE:
            break  # days, which nobody asked for
        if taken and (budget_seconds or not gpu) and views < rung.wanted_views(images):
            break
        taken = base, [_family(base, model, views, images, rung, machine.kind, budget_seconds), *sizes]
    assert taken is not None
    return taken


def _candidate(base: Recipe, batch: Sequence[Choice], survey: Survey, settings: Sequence[str]) -> Candidate:
    """What would be trained, with the batch that so few images get: small ones take more time per image."""
    recipe = _with(settings, override(base, {key: value for choice in batch for key, value in choice.changes.items()}))
    size = as_size(recipe.img_size)
    assert size is not None  # every way to a network chooses one
    return recipe, build_for(recipe, size, survey), (survey.channels, *size)


def _sizes(
    base: Recipe, rung: Rung, survey: Survey, settings: Sequence[str], asked: set[str], kind: str
) -> list[Choice]:
    """Image size and patch for a size of the house family."""
    given = _with(settings, base)
    patch = given.model_args["patch_size"] if "model_args.patch_size" in asked else None
    size = as_size(given.img_size) if "img_size" in asked else None
    if size is None:
        own = math.ceil(max(survey.median) / SIDE_STEP) * SIDE_STEP  # enlarged, photographs show no more
        side = min(rung.photo_side, own)
        size = survey.largest if survey.small else (side, side)
        size = whole_size(size, patch or largest_patch(min(size), rung.least_grid))
    patch = patch or whole_patch(size, rung.least_grid)
    return [_image_size(size, survey, kind), _patch_size(patch, size), *_stem(base, size)]


def _rung_of(model: str) -> Rung | None:
    """The rung whose recipe trains this model, where it is one of the house."""
    return next((rung for rung in LADDER if load_recipe(rung.recipe).model == model), None)


def _named_model(survey: Survey, settings: Sequence[str], asked: set[str]) -> tuple[Recipe, list[Choice]]:
    """Sizes for a model that the user names; rates meant for ours are wrong for it."""
    plain = {"model_args": {}, "optim": to_dict(Recipe())["optim"], "batch_size": 64}
    base = override(load_recipe(DEFAULT), plain)
    if "method" in asked:
        base = override(base, {"method_args": {}})
    given = _with(settings, base)
    size = (as_size(given.img_size) if "img_size" in asked else None) or size_for_model(survey, given.model)
    choices = [
        Choice("model", given.model, "as you asked", changes={"model": given.model}),
        _image_size(size, survey, "", fits_model=True),
    ]
    if patch := patch_for_model(given, size, survey):
        choices.append(_patch_size(patch, size))
    return override(base, {"model": given.model, "img_size": size}), choices


def pretrained_run(settings: Sequence[str]) -> Run | None:
    """The run without labels that these settings begin from, where they name one."""
    given = [value.strip() for key, _, value in (text.partition("=") for text in settings) if key.strip() == "init"]
    if not given or not given[-1]:
        return None
    try:
        run = run_behind(given[-1])
    except UserError:  # said where the weights are loaded
        return None
    if run is None or not run.unlabelled:
        return None
    if not run.finished:
        raise UserError(f"init={given[-1]} is not finished; repeat the command that began it, then train from it.")
    return run


def _model_of_run(run: Run, settings: Sequence[str], asked: set[str]) -> tuple[Recipe, list[Choice]]:
    """The network and image size of a run whose weights are begun from."""
    own = run.recipe
    named = {text.partition("=")[2].strip() for text in settings if text.partition("=")[0].strip() == "model"}
    if named - {own.model}:
        raise UserError(
            f"model={min(named - {own.model})} cannot begin from {run.path}, whose model is {own.model}; leave model= out, or init=."
        )
    rung = _rung_of(own.model)
    base = load_recipe(rung.recipe if rung else DEFAULT)
    if rung is None:  # rates meant for ours are wrong for it
        base = override(base, {"optim": to_dict(Recipe())["optim"], "batch_size": 64})
    if "method" in asked:
        base = override(base, {"method_args": {}})
    size = as_size(own.img_size)
    assert size is not None  # a run is resolved
    taken = {"model": own.model, "model_args": own.model_args, "channels": own.channels}
    reason = f"that of {run.path}, from whose weights it begins; only the classifier is new"
    choices = [
        Choice("model", own.model, reason, changes={"model": own.model, "channels": own.channels}),
        Choice("image size", f"{size[0]} x {size[1]}", "that of the same run", changes={"img_size": size}),
    ]
    return override(base, {**taken, "img_size": size}), choices


def _family(
    recipe: Recipe, model: nn.Module, views: float, images: int, rung: Rung, kind: str, budget_seconds: float | None
) -> Choice:
    larger = next((other for other in LADDER if other.least_views > rung.least_views), None)
    bound, reason = "", f"about {views:,.0f} images can be shown to it in this time"
    if kind == "gpu" and not budget_seconds:
        reason = f"the largest that {images:,} images are enough for and the device's memory holds"
        bound = f"; {larger.recipe} wants {larger.least_images:,}" if larger and larger.least_images > images else ""
    elif larger and (wanted := larger.wanted_views(images)) > views:
        bound = f"; {larger.recipe} wants {wanted:,.0f}"
    return Choice(
        "model",
        f"{recipe.model}, {parameters(model) / 1e6:.2g} M parameters",
        f"a ViT with a convolutional stem; {reason}{bound}",
        "how sure each step of this ladder is: docs/planning.md",
        changes={"model": recipe.model},
    )


def _image_size(size: tuple[int, int], survey: Survey, kind: str, fits_model: bool = False) -> Choice:
    if survey.small:
        reason = "the images' own" + ("" if size == survey.largest else ", rounded up to whole patches")
    elif fits_model:
        reason = "the size that this model was made for, or a little more"
    else:
        reason = f"enough detail for most classes in a time that a {kind.upper()} allows; twice the side costs four times as much"
    return Choice("image size", f"{size[0]} x {size[1]}", reason, changes={"img_size": size})


def _patch_size(patch: int, size: tuple[int, int]) -> Choice:
    tokens = " x ".join(str(-(-side // patch)) for side in size)
    return Choice(
        "patch",
        f"{patch} pixels",
        f"{tokens} tokens; a convolutional stem makes them, so few are enough, and half the patch needs four times the time",
        "CIFAR-100, patch 4 and 2: DHVT-T 80.93 and 83.54, DeiT-T without that stem 67.59 and 65.86 (DHVT paper, table 4)",
        changes={"model_args.patch_size": patch},
    )


def _stem(base: Recipe, size: tuple[int, int]) -> list[Choice]:
    """Of a network that can begin on the full-size map."""
    if "stem_full_size" not in base.model_args:
        return []
    small = min(size) <= FULL_SIZE_SIDE
    value = "full size" if small else "every second pixel"
    reason = "small images have no pixels to spare" if small else "the full-size map would cost more than all the rest"
    return [Choice("stem", value, reason, changes={"model_args.stem_full_size": small})]


# --- length and strength ----------------------------------------------------------------------------------------------


def _usual_epochs(images: int, kind: str) -> int:
    """Without a budget."""
    if kind == "cpu":
        numerator, least, most = CPU_EPOCHS
        return min(max(round(numerator / math.sqrt(images)), least), most)
    least, usual, most = GPU_EPOCHS
    few, many = (round(views / images) for views in GPU_VIEWS)
    return min(max(min(usual, many), few, least), most)


def _epochs(epochs: int, budget_seconds: float | None) -> Choice:
    reason = (
        f"about what {budget_seconds:.0f} s allow; the run looks at the clock and ends in time"
        if budget_seconds
        else "fewer images need more epochs; more epochs, or a time budget, give a better model"
    )
    evidence = "measured here" if budget_seconds else "a rule of thumb; the papers train for 240 to 500 epochs, on GPUs"
    return Choice("epochs", str(epochs), reason, evidence, changes={"epochs": epochs})


def _augmentation(survey: Survey, size: tuple[int, int], epochs: int, base: Recipe, settings: Sequence[str]) -> Choice:
    if min(size) < TINY_SIDE:
        off = {"augment.crop": "none", "augment.hflip": 0.0, "augment.color_jitter": 0.0, "augment.erase": 0.0}
        reason = "moving so small an image by a pixel, or mirroring it, makes another image of it"
        return Choice("augmentation", "none", reason, changes={**off, "augment.randaugment": ""})
    colour, flips = survey.channels == 3, survey.channels > 2  # grey images are often characters
    jitter = JITTER if colour and epochs >= JITTER_EPOCHS else 0.0
    changes: dict[str, Any] = {"augment.hflip": 0.5 if flips else 0.0, "augment.color_jitter": jitter}
    given = _with(settings, override(base, changes))
    if survey.small:
        cutout = CUTOUT if epochs >= CUTOUT_EPOCHS else 0.0
        changes |= {"augment.crop": "pad", "augment.crop_padding_mode": "reflect", "augment.cutout": cutout}
    else:
        changes |= {"augment.crop": "resized", "augment.crop_scale": (0.35, 1.0)}
    views = fitting_views(_with(settings, override(base, changes)).augment)
    changes |= views
    covered = "a covered square" if changes.get("augment.cutout") else ""
    light = ", ".join(filter(None, ["crops", covered, "changed colours" if jitter else ""]))
    asked = "; corners are asked about when predicting" * views["test_crops"]
    asked += "; images are asked about moved by a pixel or so, too" * views["test_shifts"]
    mirrored = (
        f"mirrored too, also when predicting{asked}"
        if flips
        else f"not mirrored: grey images are often characters (else augment.hflip=0.5){asked}"
    )
    mixes = given.method == base.method  # other methods have labels of their own
    rung = _rung_of(base.model)
    if epochs >= STRONG_EPOCHS and mixes and (rung is None or rung.strong):
        reason = f"crops, RandAugment, erasing, mixup and cutmix; {mirrored}"
        return Choice(
            "augmentation", "strong", reason, "the 300-epoch rows of DHVT, T2T-ViT and DeiT", {**changes, **STRONG}
        )
    if epochs >= MODERATE_EPOCHS and mixes:
        shown = ", ".join(filter(None, ["crops", covered]))
        reason = f"{shown}, a mild RandAugment, and cutmix on half of the images; {mirrored}"
        changes |= {**MILD, **MIXED}
        return Choice("augmentation", "moderate", reason, "single runs (docs/results.md)", changes)
    reason = f"{light}, {mirrored}; stronger augmentation pays in longer runs"
    return Choice("augmentation", "light", reason, "single runs (docs/results.md)", changes)


def _average(base: Recipe) -> Choice:
    on = base.ema_decay > 0
    reason = (
        "as is usual in long runs"
        if on
        else "the schedule ends at a rate of almost 0, which does as much in a short run"
    )
    value = f"on, ema_decay={base.ema_decay}" if on else "off"
    return Choice("averaging", value, reason, changes={"ema_decay": base.ema_decay})


def _omissions(recipe: Recipe, labels: str) -> list[Choice]:
    """Methods that one might expect, and why the plan does without them."""
    return [
        Choice(
            left.what,
            "off",
            f"{left.reason}; {left.how or f'method={name} turns it on'}",
            left.evidence,
            {left.key: getattr(recipe, left.key)},
        )
        for name, left in find_omissions().items()
        if find_method(name).unlabelled or labels in find_method(name).target_kinds
    ]


def _batch(images: int, base: Recipe) -> list[Choice]:
    batch = max(2, 2 ** int(math.log2(max(images / 4, 1))))
    if batch >= base.batch_size:
        return []
    return [Choice("batch", str(batch), "at least four steps in an epoch", changes={"batch_size": batch})]


def _balance(survey: Survey) -> list[Choice]:
    if survey.labels not in ("classes", "grades") or survey.imbalance < UNBALANCED:  # of several labels, most are rare
        return []
    reason = (
        f"the largest class has {survey.imbalance:.0f} times the images of the smallest; each is drawn equally often"
    )
    return [Choice("balance", "sampler", reason, changes={"balance": "sampler"})]


def _labels(dataset: Dataset, survey: Survey, base: Recipe) -> list[Choice]:
    """How numbers are learnt; nothing of classes."""
    facts = survey.numbers
    if facts is None:
        return []
    reason = "a number is learnt as a Gaussian over bins, so that mixing and calibration work as with classes"
    if facts.scale == "log1p":
        reason += "; the bins are equally wide in log(1 + number), because the numbers have a long tail"
    smooth = {"method_args.label_smoothing": 0.0} if base.method_args.get("label_smoothing") else {}
    evidence = "HL-Gauss: Imani and White 2018, Farebrother et al. 2024 (docs/grades_and_numbers.md)"
    return [Choice("labels", f"numbers in {facts.bins} bins", reason, evidence, changes=smooth)]


def _bad_files(survey: Survey) -> list[Choice]:
    if survey.total > CHECKED_FILES:
        return []
    reason = "images that cannot be read are left out, counted and named"
    return [Choice("bad files", "skip", reason, changes={"on_bad_image": "skip"})]


def _precision(machine: Machine) -> list[Choice]:
    if machine.precision == "no":
        return []
    reason = "more images in the same time; weights, and validation on a CPU, stay in float32"
    return [Choice("precision", machine.precision, reason, "float32 and bf16 compared: docs/results.md")]


def _compile(machine: Machine) -> list[Choice]:
    if machine.kind == "cpu":
        return []
    return [Choice("compile", "auto", "once enough training is left to repay it", changes={"compile": "auto"})]
