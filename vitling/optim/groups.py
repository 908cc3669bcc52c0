"""Parameter groups: by weight decay, by depth, by name."""

from collections.abc import Iterable
from fnmatch import fnmatch

from timm.optim import (
    param_groups_layer_decay,
    param_groups_weight_decay,
)
from torch import nn

from vitling.errors import UserError
from vitling.recipes import Optim


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


def check_patterns(model: nn.Module, patterns: Iterable[str], key: str) -> None:
    """Refuse a name pattern that fits no parameter: it would be ignored in silence."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            tops = sorted({name.split(".")[0] for name in names})
            raise UserError(f"{key}: no parameter is called '{pattern}'. The model's parts are {', '.join(tops)}.")


def _orthogonalises(name: str) -> bool:
    return "muon" in name
