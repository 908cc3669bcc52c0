"""Optimiser, schedule and SAM from a recipe: timm's and torch's parts, put together."""

from vitling.optim.clipping import clip_gradients
from vitling.optim.factory import create_optimizer
from vitling.optim.groups import check_patterns, parameter_groups
from vitling.optim.muon import Muon
from vitling.optim.sam import SAM
from vitling.optim.schedule import Schedule, peak_lr

__all__ = [
    "SAM",
    "Muon",
    "Schedule",
    "check_patterns",
    "clip_gradients",
    "create_optimizer",
    "parameter_groups",
    "peak_lr",
]
