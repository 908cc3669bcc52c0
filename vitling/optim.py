"""Optimiser, schedule and SAM from a recipe: timm's and torch's parts, put together."""

import inspect
from fnmatch import fnmatch

import torch
from timm.optim import (
    create_optimizer_v2,
    get_optimizer_class,
    list_optimizers,
    param_groups_layer_decay,
    param_groups_weight_decay,
)
from timm.scheduler import CosineLRScheduler, StepLRScheduler
from torch import nn

from vitling.errors import UserError, did_you_mean
from vitling.muon import Muon
from vitling.recipe import Optim, Recipe


def peak_lr(recipe: Recipe) -> float:
    """The learning rate in force after the warm-up."""
    scale = recipe.batch_size / recipe.optim.lr_per_batch if recipe.optim.lr_per_batch else 1.0
    return recipe.optim.lr * scale


def parameter_groups(model: nn.Module, optim: Optim, lr: float) -> list[dict]:
    """Groups by weight decay, by depth (layer_decay) and by name (lr_factors), each with its own `lr`."""
    kept = set() if optim.decay_all else set(getattr(model, "no_weight_decay", set)())
    common = dict(
        weight_decay=optim.weight_decay, no_weight_decay_list=kept, weight_decay_exclude_1d=not optim.decay_all
    )
    if _orthogonalises(optim.name):
        # Muon is for the matrices inside: embeddings and the classifier get its AdamW.
        classifier = model.pretrained_cfg.get("classifier", ()) if hasattr(model, "pretrained_cfg") else ()
        classifier = (classifier,) if isinstance(classifier, str) else classifier
        common["fallback_list"] = {*kept, *(f"{name}.*" for name in classifier), "*pos_embed*", "*cls_token*"}
    if optim.layer_decay != 1.0:
        groups = param_groups_layer_decay(model, layer_decay=optim.layer_decay, **common)
    else:
        groups = param_groups_weight_decay(model, **common)
    return [part for group in groups for part in _split_by_factor(model, group, optim.lr_factors, lr)]


def _split_by_factor(model: nn.Module, group: dict, factors: dict[str, float], lr: float) -> list[dict]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parts: dict[float, list] = {}
    for parameter in group["params"]:
        factor = next((f for pattern, f in factors.items() if fnmatch(names[id(parameter)], pattern)), 1.0)
        parts.setdefault(factor, []).append(parameter)
    return [{**group, "params": parameters, "lr": lr * factor} for factor, parameters in parts.items()]


def check_patterns(model: nn.Module, patterns, key: str) -> None:
    """Refuse a name pattern that fits no parameter: it would be ignored in silence."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            tops = sorted({name.split(".")[0] for name in names})
            raise UserError(f"{key}: no parameter is called '{pattern}'. The model's parts are {', '.join(tops)}.")


def _orthogonalises(name: str) -> bool:
    return "muon" in name


def create_optimizer(groups: list[dict], optim: Optim, lr: float) -> torch.optim.Optimizer:
    """The optimiser of that name over groups that are already made: timm's, fused where torch has it, and our Muon."""
    if optim.name not in list_optimizers():
        raise UserError(f"unknown optimiser optim.name={optim.name}. {did_you_mean(optim.name, list_optimizers())}")
    if optim.name == "muon":
        return Muon(
            groups, lr=lr, weight_decay=optim.weight_decay, momentum=optim.momentum, betas=optim.betas, eps=optim.eps
        )
    accepted = inspect.signature(get_optimizer_class(optim.name, bind_defaults=False)).parameters
    extra = {key: getattr(optim, key) for key in ("betas", "eps") if key in accepted}
    if optim.name in ("adam", "adamw", "sgd", "momentum"):
        extra["fused"] = True
    try:
        return create_optimizer_v2(
            groups, opt=optim.name, lr=lr, weight_decay=optim.weight_decay, momentum=optim.momentum, **extra
        )
    except (TypeError, ImportError, AssertionError, ValueError) as error:
        raise UserError(f"optim.name={optim.name} cannot be made here: {error}") from None


class Schedule:
    """The learning rate as a pure function of the step, so that a resumed run needs no schedule state."""

    def __init__(self, optimizer: torch.optim.Optimizer, recipe: Recipe, steps_per_epoch: int):
        optim = recipe.optim
        self.per_epoch = optim.schedule_per == "epoch"
        self.lag, self.steps_per_epoch = optim.schedule_lag_epochs, steps_per_epoch
        unit = 1 if self.per_epoch else steps_per_epoch
        timing = dict(warmup_t=optim.warmup_epochs * unit, warmup_lr_init=optim.warmup_lr, t_in_epochs=False)
        if optim.schedule == "cosine":
            if peak_lr(recipe) < optim.min_lr:
                raise UserError(
                    f"the learning rate {peak_lr(recipe):g} is below optim.min_lr={optim.min_lr:g}, so it would rise; "
                    "lower optim.min_lr."
                )
            span = (recipe.epochs - optim.cooldown_epochs) * unit
            self.scheduler = CosineLRScheduler(optimizer, t_initial=span, lr_min=optim.min_lr, **timing)
        else:
            rate = optim.decay_rate if optim.schedule == "step" else 1.0
            self.scheduler = StepLRScheduler(optimizer, decay_t=optim.decay_epochs * unit, decay_rate=rate, **timing)

    def set(self, step: int) -> None:
        """Give every group the learning rate of this step."""
        t = max(0, step // self.steps_per_epoch - self.lag) if self.per_epoch else step
        self.scheduler.step_update(t)


class SAM:
    """Sharpness-aware minimisation (Foret et al. 2021): climb to w + ρ g/||g||, take the gradient there, come back."""

    def __init__(self, parameters, rho: float):
        self.parameters, self.rho = [p for p in parameters if p.requires_grad], rho

    @torch.no_grad()
    def climb(self) -> None:
        self.moved = [p for p in self.parameters if p.grad is not None]
        gradients = [p.grad for p in self.moved]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        self.before = [p.clone() for p in self.moved]
        torch._foreach_add_(self.moved, torch._foreach_mul(gradients, self.rho / (norm + 1e-12)))

    @torch.no_grad()
    def descend(self) -> None:
        torch._foreach_copy_(self.moved, self.before)
        self.moved = self.before = None
