"""The list of training methods."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from vitling._deprecated import keep_old_names
from vitling.errors import UserError, did_you_mean
from vitling.methods.bootstrap import Bootstrap
from vitling.methods.distillation import Distillation
from vitling.methods.method import Batch, Method, Omission
from vitling.methods.preparation import Preparation
from vitling.methods.supervised import Supervised
from vitling.methods.token_bootstrap import TokenBootstrap
from vitling.methods.token_labeling import TokenLabeling

METHODS: dict[str, type[Method]] = {
    "supervised": Supervised,
    "bootstrap": Bootstrap,
    "distillation": Distillation,
    "token_labeling": TokenLabeling,
    "token_bootstrap": TokenBootstrap,
}


def prepare_method(name: str, preparation: Preparation, method_args: dict) -> dict:
    """What `create_method` gets for the arguments of a recipe, after the method has prepared what it needs."""
    _check_arguments(name, method_args, _parameters(find_method(name).prepare) | _parameters(METHODS[name]))
    return METHODS[name].prepare(preparation, **method_args)


def create_method(
    name: str, model: nn.Module, *, num_classes: int, class_weights: Tensor | None = None, **method_args: Any
) -> Method:
    """The method of that name around a model; unknown names and arguments are refused."""
    _check_arguments(name, method_args, _parameters(find_method(name)))
    try:
        return METHODS[name](model, num_classes=num_classes, class_weights=class_weights, **method_args)
    except TypeError as error:
        shown = ", ".join(f"method_args.{key}={value}" for key, value in method_args.items())
        raise UserError(f"method={name} cannot be made with {shown}: {error}.") from error


def find_method(name: str) -> type[Method]:
    """The class of that name."""
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'. {did_you_mean(name, METHODS)}")
    return METHODS[name]


def find_remedies(finding: str) -> list[str]:
    """The methods that help against a finding of a diagnosis, as settings with the reason."""
    known = {name: method.remedies for name, method in METHODS.items()}
    return [f"method={name}, {remedies[finding]}" for name, remedies in known.items() if finding in remedies]


def find_omissions() -> dict[str, Omission]:
    """The methods that a plan mentions though it does without them, and why."""
    return {name: method.omission for name, method in METHODS.items() if method.omission}


def _parameters(function: Callable) -> set[str]:
    """The arguments that a recipe may give; of a method that builds on another one, the other's too."""
    functions = [vars(cls).get("__init__") for cls in function.__mro__] if inspect.isclass(function) else [function]
    kinds = [p for f in functions if f for p in inspect.signature(f).parameters.values()]
    return {p.name for p in kinds if p.kind is p.KEYWORD_ONLY} - {"num_classes", "class_weights"}


def _check_arguments(name: str, given: dict, allowed: set[str]) -> None:
    for key in given:
        if key not in allowed:
            raise UserError(f"method={name} has no argument 'method_args.{key}'. {did_you_mean(key, allowed)}")


__all__ = [
    "METHODS",
    "Batch",
    "Method",
    "Omission",
    "Preparation",
    "create_method",
    "find_method",
    "find_omissions",
    "find_remedies",
    "prepare_method",
]

keep_old_names(__name__)
