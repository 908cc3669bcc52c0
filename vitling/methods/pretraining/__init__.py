"""Learning without labels: from images alone, for a classifier that is trained afterwards."""

from vitling.methods.pretraining.dino import Dino, dino_loss
from vitling.methods.pretraining.masked_images import MaskedImages, masked_patch_loss, masked_pixel_loss
from vitling.methods.pretraining.pretraining import Pretraining
from vitling.methods.pretraining.recipe import pretraining_recipe

__all__ = [
    "Dino",
    "MaskedImages",
    "Pretraining",
    "dino_loss",
    "masked_patch_loss",
    "masked_pixel_loss",
    "pretraining_recipe",
]
