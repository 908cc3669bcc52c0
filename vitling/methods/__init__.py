"""The list of training methods."""

import inspect

from torch import nn

from vitling.errors import UserError, did_you_mean
from vitling.methods.bootstrap import Bootstrap
from vitling.methods.distillation import Distillation
from vitling.methods.method import Batch, Method
from vitling.methods.supervised import Supervised

METHODS: dict[str, type[Method]] = {
    "supervised": Supervised,
    "bootstrap": Bootstrap,
    "distillation": Distillation,
}


def create_method(name: str, model: nn.Module, *, num_classes: int, class_weights=None, **method_args) -> Method:
    """The method of that name around a model; unknown names and arguments are refused."""
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'. {did_you_mean(name, METHODS)}")
    allowed = set(inspect.signature(METHODS[name]).parameters) - {"model", "num_classes", "class_weights"}
    for key in method_args:
        if key not in allowed:
            raise UserError(f"method={name} has no argument 'method_args.{key}'. {did_you_mean(key, allowed)}")
    return METHODS[name](model, num_classes=num_classes, class_weights=class_weights, **method_args)


__all__ = ["METHODS", "Batch", "Method", "create_method"]
