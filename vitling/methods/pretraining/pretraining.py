"""Pretraining: what the methods without labels share."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitling.data.sources.unlabelled import is_plain, is_unlabelled, split_prefix
from vitling.errors import UserError
from vitling.methods.method import Batch, Method
from vitling.optim import parameter_groups
from vitling.recipes import Optim, Recipe


class Pretraining(Method):
    """A method around a model without a classifier. What it adds to the model is thrown away in the end."""

    unlabelled = True
    defaults: ClassVar[dict[str, Any]] = {}  # of a recipe that does not say otherwise

    def __init__(self, model: nn.Module, *, num_classes: int = 0, class_weights: Tensor | None = None):
        super().__init__(model, num_classes=num_classes, class_weights=class_weights)
        channels, *size = model.pretrained_cfg["input_size"]
        self.channels, self.size = int(channels), (int(size[0]), int(size[1]))

    def added(self) -> list[nn.Module]:
        """What learns beside the model."""
        raise NotImplementedError

    def parameter_groups(self, optim: Optim, lr: float) -> list[dict]:
        own = replace(optim, lr_factors={}, layer_decay=1.0)  # names and depths are the model's
        return super().parameter_groups(optim, lr) + [
            group for part in self.added() for group in parameter_groups(part, own, lr)
        ]

    def unshardable(self) -> str:
        return "learning without labels, which asks the model for more than its output; train without shard."

    def compile_networks(self) -> None:
        raise AssertionError("refused with the recipe")

    def leave_out_unused(self) -> None:
        """Freeze what no loss reaches, such as a norm behind the pooling: several processes wait for every gradient that there could be."""
        batch: Batch = {"image": torch.zeros(2, self.channels, *self.size)}
        for number, view in enumerate(self.views(), start=1):
            batch[f"view_{number}"] = torch.zeros(2, self.channels, *(view.size or self.size))
        learning = [parameter for parameter in self.parameters() if parameter.requires_grad]
        with torch.random.fork_rng(devices=[]):
            self.eval()
            loss = self.forward(batch, 0.0)["loss"]
            self.train()
        for parameter, found in zip(learning, torch.autograd.grad(loss, learning, allow_unused=True), strict=True):
            parameter.requires_grad_(found is not None)

    @classmethod
    def refuse(cls, recipe: Recipe) -> None:
        """Settings that go by labels or by accuracy, which there are none of."""
        name = f"method={recipe.method} learns without labels"
        if recipe.keep != "last":
            raise UserError(
                f"{name}, so no accuracy chooses the weights: set keep=last, or use `vitling pretrain`, which does."
            )
        wrong = {
            "balance": recipe.balance != "none",
            "patience_epochs": recipe.patience_epochs,
            "ema_decay": recipe.ema_decay,
            "soup_epochs": recipe.soup_epochs,
            "optim.sam_rho": recipe.optim.sam_rho,
            "compile": recipe.compile != "off",
            "unlabelled": recipe.unlabelled,
            "test_mirror": recipe.test_mirror,
            "test_crops": recipe.test_crops,
            "test_shifts": recipe.test_shifts,
            "labels=grades": recipe.labels == "grades",
        }
        if given := [key for key, is_set in wrong.items() if is_set]:
            raise UserError(f"{name} and does not go with {given[0]}; leave it out.")
        # Tables, and folders of links, are read as labels= says, with labels or without.
        if recipe.labels != "auto" and is_unlabelled(recipe.data) and is_plain(images := split_prefix(recipe.data)[1]):
            raise UserError(
                f"{name} and reads none from {images}, so labels={recipe.labels} would be ignored; leave it out."
            )
