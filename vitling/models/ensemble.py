"""Ensemble: several networks of one architecture that answer together, by the mean of their probabilities.

No paper's network: it is what `vitling.train_folds` makes of its folds. To timm it is one model with one file of weights, so that
whatever opens, exports or serves a model takes an ensemble as well.
"""

import math
from collections.abc import Mapping
from typing import Any

import timm
import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.models.registry import create_network
from vitling.validation.model_arguments import check_model_args

NAME = "ensemble"
MOST = 100  # members


class Ensemble(nn.Module):
    """`members` networks of timm's `architecture`, each built with `architecture_args`."""

    def __init__(
        self,
        *,
        architecture: str,
        members: int,
        architecture_args: Mapping[str, Any] | None = None,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
    ):
        super().__init__()
        if architecture == NAME or not timm.is_model(architecture):
            raise UserError(f"architecture={architecture} cannot be a member of an ensemble; name a network of timm.")
        if not 1 <= members <= MOST:
            raise UserError(f"members={members} is out of range; it must be 1 to {MOST}.")
        check_model_args(architecture_args or {}, "model_args.architecture_args", own=False)
        args = {**(architecture_args or {}), "num_classes": num_classes, "in_chans": in_chans}
        self.members = nn.ModuleList(create_network(architecture, to_2tuple(img_size), **args) for _ in range(members))
        self.num_classes, self.in_chans = num_classes, in_chans
        self.num_features = sum(member.num_features for member in self.members)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> tuple[Tensor, ...]:
        """Of every member."""
        return tuple(member.forward_features(x) for member in self.members)

    def forward_head(self, x: tuple[Tensor, ...], pre_logits: bool = False) -> Tensor:
        """Logarithms of the mean probabilities, or the members' pooled features side by side."""
        outputs = [
            member.forward_head(part, pre_logits=pre_logits) for member, part in zip(self.members, x, strict=True)
        ]
        if pre_logits:
            return torch.cat([output.flatten(1) for output in outputs], dim=1)
        shares = torch.stack([output.float().log_softmax(dim=1) for output in outputs])
        return shares.logsumexp(dim=0) - math.log(len(outputs))

    def get_classifier(self) -> tuple[nn.Module, ...]:
        return tuple(part for member in self.members for part in _several(member.get_classifier()))

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        pooling = () if global_pool is None else (global_pool,)  # not every family of timm takes None
        for member in self.members:
            member.reset_classifier(num_classes, *pooling)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return {
            f"members.{i}.{name}"
            for i, member in enumerate(self.members)
            for name in getattr(member, "no_weight_decay", set)()
        }

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for member in self.members:
            member.set_grad_checkpointing(enable)

    @classmethod
    def default_cfg(cls, *, architecture: str, members: int, **variant: Any) -> dict:
        """timm's names of first and last layers, of every member."""
        own = timm.get_pretrained_cfg(architecture, allow_unregistered=True)
        found = {key: _several(getattr(own, key, None) or ()) for key in ("first_conv", "classifier")}
        return {
            key: tuple(f"members.{i}.{name}" for i in range(members) for name in names) for key, names in found.items()
        }


def _several(one_or_more: Any) -> tuple:
    return tuple(one_or_more) if isinstance(one_or_more, tuple | list) else (one_or_more,)


VARIANTS = {NAME: dict(architecture="hybrid_vit_test", members=2, img_size=16, num_classes=10)}
