"""Sizes: what image size and patch fit given images, and a recipe's network built for them."""

import math

from timm.layers import to_2tuple
from torch import nn

from vitling.errors import UserError
from vitling.models import build_model, default_size
from vitling.planning.survey import Survey
from vitling.recipes import Recipe, override

LEAST_GRID = 7.0  # tokens along the shorter side
MOST_GRID = 32  # along the longer one, of a patch that is smaller than it might be
PATCHES = (2, 16)  # the smallest and the largest
FULL_SIZE_SIDE = 48  # up to here a deep stem begins on the full-size map
LEAST_PHOTO_SIDE = 64


def largest_patch(side: int, least_grid: float = LEAST_GRID) -> int:
    """The largest power of two that leaves enough tokens along a side."""
    return min(max(2 ** int(math.log2(max(side / least_grid, 1))), PATCHES[0]), PATCHES[1])


def whole_patch(size: tuple[int, int], least_grid: float = LEAST_GRID) -> int:
    """The same, or less where that divides the size and does not make thousands of tokens; the smallest divides any."""
    largest = patch = largest_patch(min(size), least_grid)
    while patch > PATCHES[0] and any(side % patch for side in size):
        patch //= 2
    return patch if max(size) <= MOST_GRID * patch else largest


def whole_size(size: tuple[int, int], patch: int) -> tuple[int, int]:
    """The size rounded up to whole patches."""
    height, width = (math.ceil(side / patch) * patch for side in size)
    return height, width


def size_for_model(survey: Survey, model: str) -> tuple[int, int]:
    """For a model that the user names: photographs come at its own size, if that is not tiny."""
    side = max(LEAST_PHOTO_SIDE, *default_size(model)) if not survey.small else 0
    return survey.largest if survey.small else (side, side)


def patch_for_model(recipe: Recipe, size: tuple[int, int], survey: Survey) -> int | None:
    """For a model that the user names: a patch for these images where its own is too large for them and can be set."""
    patch = whole_patch(size)
    if "patch_size" in recipe.model_args or _own_patch(recipe, size, survey) <= patch:
        return None
    smaller = override(recipe, {"model_args.patch_size": patch})
    return patch if _own_patch(smaller, size, survey) == patch else None


def _own_patch(recipe: Recipe, size: tuple[int, int], survey: Survey) -> int:
    """The model's patch; 0 for one without patches, the whole image for one that cannot be built for this size."""
    try:
        model = build_for(recipe, size, survey)
    except UserError:
        return max(size)
    return max(to_2tuple(getattr(getattr(model, "patch_embed", None), "patch_size", 0)))


def build_for(recipe: Recipe, size: tuple[int, int], survey: Survey) -> nn.Module:
    """The recipe's network for images of this size, with the data's classes and channels."""
    classes, channels = survey.outputs, survey.channels
    return build_model(recipe.model, num_classes=classes, in_chans=channels, img_size=size, **recipe.model_args)
