"""The rules behind `vitling plan`: a recipe for data that comes without one, and what is known to go wrong.

Every rule gives its reason and the row behind it, published or measured. What depends on the data alone gives the same recipe
each time, so that the same command resumes a run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from typing import Any

from timm.layers import to_2tuple
from torch import nn

from vitling.data.pipeline.preprocessing import SMALL_SIDE, as_size
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset
from vitling.errors import UserError
from vitling.methods import find_method
from vitling.models import build_model, default_size
from vitling.planning.survey import Survey
from vitling.recipes import DEFAULT, Recipe, load_recipe, override, scale_epochs, to_dict

PHOTO_SIDE = {"cpu": 64, "gpu": 128}
TINY_SIDE = 16  # below it, moving an image by a pixel makes another image of it
LEAST_GRID = 7  # tokens along the shorter side
HOUSE_GRID = 4  # the same where a convolutional stem has looked at the pixels before
PATCHES = (2, 16)  # the smallest and the largest
EPOCHS = {
    "cpu": (3_000, 10, 200),
    "gpu": (30_000, 100, 300),
}  # that divided by the root of the image count; least, most
STRONG_EPOCHS, STRONG_VIEWS = 100, 1_000_000  # epochs and images shown from which strong augmentation pays
UNBALANCED = 10  # images of the largest class per image of the smallest
CHECKED_FILES = 5_000  # so many files are tried before training, and the bad ones left out
FEW_PHOTOS = 20_000

STRONG = {"augment.randaugment": "rand-m9-mstd0.5-inc1", "augment.erase": 0.25}
STRONG |= {"method_args.mixup": 0.8, "method_args.cutmix": 1.0}


@dataclass(frozen=True)
class Choice:
    """One decision of a plan: what it does to the recipe, why, and the row that supports it."""

    what: str
    value: str
    reason: str
    evidence: str = ""
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Band:
    """The accuracy to expect, as shares, and what that rests on."""

    low: float
    high: float
    reason: str


def choose(
    dataset: Dataset, survey: Survey, settings: Sequence[str] = (), *, device: str
) -> tuple[Recipe, list[Choice]]:
    """A recipe for this data on this kind of device ("cpu" or another), and its choices. What `settings` say comes first."""
    kind = "cpu" if device == "cpu" else "gpu"
    asked = {text.partition("=")[0].strip() for text in settings}
    base = load_recipe(DEFAULT)
    if "model" in asked:  # sizes and rates meant for one model are wrong for another
        base = override(base, {"model_args": {}, "optim": to_dict(Recipe())["optim"], "batch_size": 64})
    if "method" in asked:
        base = override(base, {"method_args": {}})
    images = _training_images(dataset, base, settings)
    epochs = _epochs(images, kind, settings)
    base = scale_epochs(base, epochs.changes["epochs"])
    given = override(base, list(settings))

    size = as_size(given.img_size) if "img_size" in asked else None
    if "model" in asked:
        size = size or _size_for_model(survey, given.model)
        sizes = [_image_size(size, survey, kind, fits_model=True), *_smaller_patch(given, size, survey)]
    else:
        patch = given.model_args["patch_size"] if "model_args.patch_size" in asked else None
        size = size or _size(survey, kind, patch)
        patch = patch or _whole_patch(size, HOUSE_GRID)
        sizes = [_image_size(size, survey, kind), _patch_size(patch, size), _width(given, patch, size, survey)]
    choices = [_family(given), *sizes, epochs, _augmentation(survey, size, epochs.changes["epochs"], images, asked)]
    choices += [_agent(given), *_batch(images, base), *_balance(survey), *_bad_files(survey)]
    changes = {key: value for choice in choices for key, value in choice.changes.items()}
    recipe = override(override(base, changes), list(settings))
    return recipe, [_as_asked(choice, asked, recipe) for choice in choices]


def _training_images(dataset: Dataset, base: Recipe, settings: Sequence[str]) -> int:
    """Those that are left to learn from when validation has its part."""
    splitting = [text for text in settings if text.startswith(("fraction", "val_fraction", "fold", "seed"))]
    return len(split_training(dataset, override(base, splitting))[0])


def _as_asked(choice: Choice, asked: set[str], recipe: Recipe) -> Choice:
    """The choice, or what the user put in its place."""
    taken = [key for key in choice.changes if key in asked]
    if not taken:
        return choice
    tree = to_dict(recipe)
    values = {key: reduce(getitem, key.split("."), tree) for key in taken}
    shown = [str(value) if len(choice.changes) == 1 else f"{key}={value}" for key, value in values.items()]
    return Choice(choice.what, ", ".join(shown), "as you asked", changes=values)


# --- the rules --------------------------------------------------------------------------------------------------------


def _family(recipe: Recipe) -> Choice:
    return Choice(
        "family",
        recipe.model,
        "a ViT with convolutions: a plain one has to learn from few images what neighbouring pixels mean",
        "100 images of each class of CIFAR-100, three minutes: this hybrid 38.3, a fast CNN 32.5, a plain ViT 11.4 (docs/results.md); "
        "CIFAR-100, 300 epochs: DHVT-T 80.93, DeiT-T 67.59 (DHVT paper, table 4)",
        changes={"model": recipe.model},
    )


def _size(survey: Survey, kind: str, patch: int | None) -> tuple[int, int]:
    """The images' own size where they share a small one, in whole patches; else one for photographs."""
    size = survey.largest if survey.small else (PHOTO_SIDE[kind], PHOTO_SIDE[kind])
    patch = patch or _patch(min(size), HOUSE_GRID)
    height, width = (math.ceil(side / patch) * patch for side in size)
    return height, width


def _size_for_model(survey: Survey, model: str) -> tuple[int, int]:
    """The same for a model that the user names: photographs come at its own size, if that is not tiny."""
    side = max(PHOTO_SIDE["cpu"], *default_size(model)) if not survey.small else 0
    return survey.largest if survey.small else (side, side)


def _image_size(size: tuple[int, int], survey: Survey, kind: str, fits_model: bool = False) -> Choice:
    if survey.small:
        reason = "the images' own" + ("" if size == survey.largest else ", rounded up to whole patches")
    elif fits_model:
        reason = "the size that this model was made for, or a little more"
    else:
        reason = f"enough detail for most classes in a time that a {kind.upper()} allows; twice the side costs four times as much"
    return Choice("image size", f"{size[0]} x {size[1]}", reason, changes={"img_size": size})


def _patch(side: int, least_grid: int = LEAST_GRID) -> int:
    """The largest power of two that leaves enough tokens along a side."""
    return min(max(2 ** int(math.log2(max(side / least_grid, 1))), PATCHES[0]), PATCHES[1])


def _whole_patch(size: tuple[int, int], least_grid: int = LEAST_GRID) -> int:
    """The same or less, so that it divides the size where any does."""
    patch = _patch(min(size), least_grid)
    while patch > PATCHES[0] and any(side % patch for side in size):
        patch //= 2
    return patch


def _patch_size(patch: int, size: tuple[int, int]) -> Choice:
    tokens = " x ".join(str(-(-side // patch)) for side in size)
    return Choice(
        "patch",
        f"{patch} pixels",
        f"{tokens} tokens; a convolutional stem makes them, so few are enough, and half the patch needs four times the time",
        "CIFAR-100, patch 4 and 2: DHVT-T 80.93 and 83.54, DeiT-T without that stem 67.59 and 65.86 (DHVT paper, table 4)",
        changes={"model_args.patch_size": patch},
    )


def _smaller_patch(recipe: Recipe, size: tuple[int, int], survey: Survey) -> list[Choice]:
    """For a model that the user names: a patch for these images where its own is too large for them and can be set."""
    patch = _whole_patch(size)
    if "patch_size" in recipe.model_args or _own_patch(recipe, size, survey) <= patch:
        return []
    smaller = override(recipe, {"model_args.patch_size": patch})
    return [_patch_size(patch, size)] if _own_patch(smaller, size, survey) == patch else []


def _own_patch(recipe: Recipe, size: tuple[int, int], survey: Survey) -> int:
    """The model's patch; 0 for one without patches, the whole image for one that cannot be built for this size."""
    try:
        model = _build(recipe, size, len(survey.class_counts), survey.channels)
    except UserError:
        return max(size)
    return max(to_2tuple(getattr(getattr(model, "patch_embed", None), "patch_size", 0)))


def _width(recipe: Recipe, patch: int, size: tuple[int, int], survey: Survey) -> Choice:
    sized = override(recipe, {"model_args.patch_size": patch})
    width = _build(sized, size, len(survey.class_counts), survey.channels).embed_dim
    return Choice(
        "width",
        str(width),
        "small: a wider hybrid gains little for much time, a wider plain ViT loses",
        "CIFAR-100, width 192 and 384: DHVT 80.93 and 82.91 at 4 times the computation, DeiT 67.59 and 66.55 (DHVT paper, "
        "table 4)",
        changes={"model_args.embed_dim": width},
    )


def _epochs(images: int, kind: str, settings: Sequence[str]) -> Choice:
    """What the user set, else the rule. Either way the parts of the schedule will follow."""
    numerator, least, most = EPOCHS[kind]
    epochs = min(max(round(numerator / math.sqrt(images)), least), most)
    given = [value.strip() for key, _, value in (text.partition("=") for text in settings) if key.strip() == "epochs"]
    if given and given[-1].isdigit() and int(given[-1]) > 0:  # anything else is refused where settings are read
        epochs = int(given[-1])
    return Choice(
        "epochs",
        str(epochs),
        "fewer images need more epochs; more epochs, or a time budget, give a better model",
        "a rule of thumb; the papers train for 300 (DHVT) to 500 epochs (diagnosis), on GPUs",
        changes={"epochs": epochs},
    )


def _augmentation(survey: Survey, size: tuple[int, int], epochs: int, images: int, asked: set[str]) -> Choice:
    if min(size) < TINY_SIDE:
        off = {"augment.crop": "none", "augment.hflip": 0.0, "augment.color_jitter": 0.0, "augment.erase": 0.0}
        reason = "moving so small an image by a pixel, or mirroring it, makes another image of it"
        return Choice("augmentation", "none", reason, changes={**off, "augment.randaugment": "", "train_size": None})
    colour = survey.channels == 3
    changes: dict[str, Any] = {"augment.hflip": 0.5 if colour else 0.0} | (
        {} if colour else {"augment.color_jitter": 0.0}
    )
    if survey.small:
        changes |= {"augment.crop": "pad", "train_size": None}
    else:
        changes |= {"augment.crop": "resized", "augment.crop_scale": (0.35, 1.0)}
        changes |= {"train_size": tuple(side * 9 // 8 for side in size)}
    mirrored = "mirrored too" if colour else "not mirrored: grey images are often characters (else augment.hflip=0.5)"
    if epochs >= STRONG_EPOCHS and epochs * images >= STRONG_VIEWS and "method" not in asked:
        reason = f"crops, RandAugment, erasing, mixup and cutmix; {mirrored}"
        evidence = "as all 300-epoch rows of DHVT, T2T-ViT and DeiT"
        return Choice("augmentation", "strong", reason, evidence, changes={**changes, **STRONG})
    reason = f"crops, {mirrored}; strong augmentation pays in longer runs"
    return Choice("augmentation", "moderate", reason, f"that of the recipe {DEFAULT}", changes=changes)


def _agent(recipe: Recipe) -> Choice:
    return Choice(
        "agent",
        "off",
        "it multiplies the time, and helps plain ViTs more than those with convolutions; method=bootstrap turns it on",
        "ten classes: plain ViT 57.5, with agent 60.1 in 4.6 times the time; this hybrid with two blocks in 70 s: 24.0, with agent 13.0 "
        "(docs/results.md). "
        "CIFAR-100, 240 epochs: 61.25 and 76.19 (Bootstrapping paper, table 1)",
        changes={"method": recipe.method},
    )


def _batch(images: int, base: Recipe) -> list[Choice]:
    batch = max(2, 2 ** int(math.log2(max(images / 4, 1))))
    if batch >= base.batch_size:
        return []
    return [Choice("batch", str(batch), "at least four steps in an epoch", changes={"batch_size": batch})]


def _balance(survey: Survey) -> list[Choice]:
    if survey.imbalance < UNBALANCED:
        return []
    reason = (
        f"the largest class has {survey.imbalance:.0f} times the images of the smallest; each is drawn equally often"
    )
    return [Choice("balance", "sampler", reason, changes={"balance": "sampler"})]


def _bad_files(survey: Survey) -> list[Choice]:
    if survey.total > CHECKED_FILES:
        return []
    reason = "images that cannot be read are left out, counted and named"
    return [Choice("bad files", "skip", reason, changes={"on_bad_image": "skip"})]


# --- what is known to go wrong ----------------------------------------------------------------------------------------


def find_conflicts(recipe: Recipe, size: tuple[int, int], *, classes: int, channels: int) -> list[str]:
    """Settings that are known to harm each other, one line each with the row that shows it."""
    lines = find_method(recipe.method).conflicts(recipe)
    model = _build(recipe, size, classes, channels)
    stem = getattr(model, "patch_embed", getattr(model, "tokens_to_token", None))
    if stem is None or not hasattr(model, "blocks"):
        return lines  # no ViT: nothing is known to go wrong
    plain, width = not _overlaps(model), getattr(model, "embed_dim", model.num_features)
    patch, rule = max(to_2tuple(getattr(stem, "patch_size", size))), _patch(min(size))
    if not _overlaps(stem) and patch < rule:
        lines.append(
            f"patches of {patch} pixels are small for images of {size[0]} x {size[1]} and help only with a convolutional stem, "
            f"which {recipe.model} has not; take model_args.patch_size={rule}, or model=dhvt_nano (CIFAR-100, patch 4 to 2: "
            "DeiT-T 67.59 to 65.86, DHVT-T 80.93 to 83.54; DHVT paper, table 4)"
        )
    if plain and width >= 384:
        lines.append(
            f"a larger plain ViT is worse on small data, and {recipe.model} is {width} wide; stay at 192 or below, or take "
            "model=dhvt_nano (CIFAR-100: ViT-S 61.25, ViT-B 53.07, Bootstrapping paper, table 1; DeiT-T 67.59, DeiT-S 66.55, DHVT "
            "paper, table 4)"
        )
    if plain and not _has_positions(model):
        lines.append(
            f"without position embeddings {recipe.model} cannot know where a patch lies; drop them only with convolutions "
            "(CIFAR-100, without positions: 67.59 to 58.72, with convolutions 79.47 to 79.75; DHVT paper, table 5)"
        )
    return lines


def _build(recipe: Recipe, size: tuple[int, int], classes: int, channels: int) -> nn.Module:
    return build_model(recipe.model, num_classes=classes, in_chans=channels, img_size=size, **recipe.model_args)


def _overlaps(module: nn.Module) -> bool:
    """Whether neighbouring pixels or tokens meet in it: a convolution or an unfolding wider than its stride."""
    return any(
        max(to_2tuple(part.kernel_size)) > max(to_2tuple(part.stride))
        for part in module.modules()
        if isinstance(part, (nn.Conv2d, nn.Unfold))
    )


def _has_positions(model: nn.Module) -> bool:
    """Whether anything encodes positions: an embedding, a relative bias, a rotation. Those of DHVT's head tokens do not."""
    names = [
        name for name, _ in (*model.named_parameters(), *model.named_buffers()) if not name.endswith("attn.pos_embed")
    ]
    return any("pos" in name or "rel" in name for name in names) or getattr(model, "rope", None) is not None


def pretrained_hint(survey: Survey, recipe: Recipe) -> str:
    """A line where starting from published weights would serve better, else nothing."""
    photographs = survey.channels == 3 and survey.bits == 8 and max(survey.median) > SMALL_SIDE
    if not photographs or survey.images["train"] > FEW_PHOTOS or recipe.init:
        return ""
    return (
        "if these are everyday photographs and published weights may be used, they will serve better than any training from "
        "scratch on so few: add model=vit_tiny_patch16_224 init=timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k optim.lr=1e-4 "
        "(CIFAR-100: the same ViT-S from scratch 61.25, pre-trained 80.91; Bootstrapping paper, table 1)"
    )


def expect(survey: Survey) -> Band:
    """Where the accuracy will probably lie: above what needs no learning, below what the best rows gained over that."""
    neighbour, per_class = survey.neighbour_accuracy, survey.images["train"] / len(survey.class_counts)
    assert neighbour is not None, "nothing is expected of a brief survey"
    left = 0.25 if per_class >= 500 else 0.4 if per_class >= 50 else 0.6
    tested = survey.images.get("test") or survey.images.get("val") or survey.images["train"] / 10
    low, high = max(neighbour - 0.05, 1 / len(survey.class_counts)), 1 - (1 - neighbour) * left
    low, high = (
        share + sign * 1.96 * math.sqrt(share * (1 - share) / tested) for share, sign in ((low, -1), (high, 1))
    )
    reason = (
        f"a nearest-neighbour vote on thumbnails gets {100 * neighbour:.0f} % without learning anything, and with {per_class:.0f} "
        f"images per class training leaves {100 * left:.0f} % of such errors or more; widened by what chance does with "
        f"{tested:.0f} images to test on"
    )
    return Band(max(low, 0.0), min(high, 1.0), reason)
