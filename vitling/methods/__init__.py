"""The list of training methods."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from torch import Tensor, nn

from vitling._deprecated import keep_old_names
from vitling.data.targets import CLASSES, Target
from vitling.errors import UserError, did_you_mean
from vitling.methods.bootstrap import Bootstrap
from vitling.methods.distillation import Distillation
from vitling.methods.method import Batch, Method, Omission, Trial, View
from vitling.methods.preparation import Preparation
from vitling.methods.pretraining import Dino, MaskedImages
from vitling.methods.self_training import SelfTraining
from vitling.methods.supervised import Supervised
from vitling.methods.token_bootstrap import TokenBootstrap
from vitling.methods.token_labeling import TokenLabeling
from vitling.plugins import load_installed
from vitling.validation.values import check, show

METHODS: dict[str, type[Method]] = {
    "supervised": Supervised,
    "bootstrap": Bootstrap,
    "distillation": Distillation,
    "token_labeling": TokenLabeling,
    "token_bootstrap": TokenBootstrap,
    "self_training": SelfTraining,
    "masked_images": MaskedImages,
    "dino": Dino,
}


def register_method(name: str, method: type[Method]) -> None:
    """Add a method of one's own under a name of its own."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise UserError(f"the method {name} must be a class that extends vitling.methods.Method, not {show(method)}.")
    if METHODS.get(name, method) is not method:
        raise UserError(f"there is a method {name} already; give yours another name.")
    METHODS[name] = method


def check_method(name: str, method_args: dict) -> None:
    """Refuse an unknown method, and arguments that it does not have or that are not of their annotated type and range."""
    method = find_method(name)
    _check_arguments(name, method_args, _parameters(method) | _parameters(method.prepare))


def prepare_method(name: str, preparation: Preparation, method_args: dict) -> dict:
    """What `create_method` gets for the arguments of a recipe, after the method has prepared what it needs."""
    check_method(name, method_args)
    return METHODS[name].prepare(preparation, **method_args)


def create_method(
    name: str,
    model: nn.Module,
    *,
    num_classes: int,
    class_weights: Tensor | None = None,
    target: Target = CLASSES,
    **method_args: Any,
) -> Method:
    """The method of that name around a model; unknown names and arguments are refused, and what it cannot learn."""
    check_target(name, target)
    _check_arguments(name, method_args, _parameters(find_method(name)))
    try:
        method = METHODS[name](model, num_classes=num_classes, class_weights=class_weights, **method_args)
    except TypeError as error:
        shown = ", ".join(f"method_args.{key}={value}" for key, value in method_args.items())
        raise UserError(f"method={name} cannot be made with {shown}: {error}.") from error
    method.target = CLASSES if method.unlabelled else target
    return method


def check_target(name: str, target: Target) -> None:
    """Refuse a method that does not learn what the labels are."""
    method = find_method(name)
    if not method.unlabelled and target.kind not in method.target_kinds:
        able = [known for known, other in METHODS.items() if target.kind in other.target_kinds]
        raise UserError(
            f"method={name} does not learn labels={target.kind}; use {' or '.join(f'method={known}' for known in able) or 'labels=classes'}."
        )


def find_method(name: str) -> type[Method]:
    """The class of that name."""
    load_installed()
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'. {did_you_mean(name, METHODS)}")
    return METHODS[name]


def find_unlabelled(key: str, name: str) -> type[Method]:
    """The class of that name, which `key` says; refused where it learns from labels."""
    method = find_method(name)
    if not method.unlabelled:
        able = [known for known, other in METHODS.items() if other.unlabelled]
        raise UserError(
            f"{key}={name} learns from labels; without them there are {', '.join(able)}. {did_you_mean(name, able)}"
        )
    return method


def find_omissions() -> dict[str, Omission]:
    """The methods that a plan mentions though it does without them, and why."""
    load_installed()
    return {name: method.omission for name, method in METHODS.items() if method.omission}


def find_trials() -> dict[str, Trial]:
    """The methods that an improvement tries, and how."""
    return {name: method.trial for name, method in METHODS.items() if method.trial and "trial" in vars(method)}


def _parameters(function: Callable) -> dict[str, Any]:
    """The arguments that a recipe may give, with their annotations; of a method that builds on another one, the other's too."""
    functions = (
        [vars(cls).get("__init__") for cls in function.__mro__[::-1]] if inspect.isclass(function) else [function]
    )
    kinds: dict[str, Any] = {}
    for written in filter(inspect.isroutine, functions):
        hints = get_type_hints(written, include_extras=True) if hasattr(written, "__annotations__") else {}
        found = inspect.signature(written).parameters.values()
        kinds |= {p.name: hints.get(p.name, Any) for p in found if p.kind is p.KEYWORD_ONLY}
    return {name: kind for name, kind in kinds.items() if name not in ("num_classes", "class_weights")}


def _check_arguments(name: str, given: dict, allowed: dict[str, Any]) -> None:
    for key, value in given.items():
        if key not in allowed:
            raise UserError(f"method={name} has no argument 'method_args.{key}'. {did_you_mean(key, allowed)}")
        check(value, allowed[key], f"method_args.{key}")


__all__ = [
    "METHODS",
    "Batch",
    "Method",
    "Omission",
    "Preparation",
    "Trial",
    "View",
    "check_method",
    "check_target",
    "create_method",
    "find_method",
    "find_omissions",
    "find_trials",
    "prepare_method",
    "register_method",
]

keep_old_names(__name__)
