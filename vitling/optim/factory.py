"""Optimiser, schedule and SAM from a recipe: timm's and torch's parts, put together."""

import inspect
from typing import Any

import torch
from timm.optim import (
    create_optimizer_v2,
    get_optimizer_class,
    get_optimizer_info,
    list_optimizers,
)

from vitling.errors import UserError, did_you_mean
from vitling.models.shards import is_shard
from vitling.optim.muon import Muon
from vitling.recipes import Optim


def create_optimizer(groups: list[dict], optim: Optim, lr: float) -> torch.optim.Optimizer:
    """The optimiser of that name over groups that are already made: timm's, fused where torch has it, and our Muon."""
    if optim.name not in list_optimizers():
        raise UserError(f"unknown optimiser optim.name={optim.name}. {did_you_mean(optim.name, list_optimizers())}")
    if optim.name == "muon":
        return Muon(
            groups, lr=lr, weight_decay=optim.weight_decay, momentum=optim.momentum, betas=optim.betas, eps=optim.eps
        )
    try:
        return create_optimizer_v2(
            groups,
            opt=optim.name,
            lr=lr,
            weight_decay=optim.weight_decay,
            momentum=optim.momentum,
            **_further_arguments(optim, any(is_shard(p) for group in groups for p in group["params"])),
        )
    except (TypeError, ImportError, AssertionError, ValueError) as error:
        raise UserError(f"optim.name={optim.name} cannot be made here: {error}") from None


def _further_arguments(optim: Optim, shards: bool) -> dict[str, Any]:
    """What this optimiser takes beside rate, decay and momentum; torch's fused SGD does not take shards."""
    accepted = inspect.signature(get_optimizer_class(optim.name, bind_defaults=False)).parameters
    arguments = {key: getattr(optim, key) for key in ("betas", "eps") if key in accepted}
    if "betas" in accepted and len(accepted["betas"].default) != len(optim.betas):
        del arguments["betas"]  # Adan has three
    if "nesterov" in accepted and get_optimizer_info(optim.name).has_momentum and not optim.momentum:
        arguments["nesterov"] = False  # without momentum there is nothing to look ahead along, and torch refuses it
    if optim.name in ("adam", "adamw") or (optim.name in ("sgd", "momentum") and not shards):
        arguments["fused"] = True
    return arguments
