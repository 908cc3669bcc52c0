"""Token bootstrap: token labeling with an agent CNN beside the ViT. None of the papers tried the two together.

The ViT learns the label of every token, as in LV-ViT, while it and its agent learn from each other's predictions, as in
Bootstrapping ViTs. Features are not compared: an agent of any form may be named. MixToken is off, since it mixes inside the
ViT, and the agent would see other images.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.methods.bootstrap import build_agent, companion_agent, kept_agent, mutual_loss
from vitling.methods.method import Batch
from vitling.methods.token_labeling import TokenLabeling
from vitling.optim import parameter_groups
from vitling.recipes import Optim, Recipe, replace
from vitling.validation.values import Temperature, Weight


class TokenBootstrap(TokenLabeling):
    """Token labels for the ViT, the data's labels for its agent, and mutual distillation between them."""

    mixes_tokens = False

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int,
        agent: str = "auto",
        agent_args: dict | None = None,
        temperature: Temperature = 4.0,
        mutual_weight: Weight = 1.0,
        **token_labeling: Any,
    ):
        if token_labeling.pop("mix_token", False):
            raise UserError(
                "method_args.mix_token=true mixes inside the ViT, where an agent cannot follow; leave it out, or mix images "
                "with method_args.cutmix=1."
            )
        super().__init__(model, num_classes=num_classes, mix_token=False, **token_labeling)
        self.temperature, self.mutual_weight = temperature, mutual_weight
        self.agent = build_agent(model, agent, agent_args or {}, share=False, num_classes=num_classes)
        self.agent_args = agent_args or {}

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        losses, images, target, vit = self.token_losses(batch)
        weights = target[:, :, 0].sum(dim=1) if "weight" in batch else None
        agent = self.agent(images)
        losses["agent_label"] = F.cross_entropy(agent.float(), target[:, :, 0], weight=self.class_weights)
        losses["vit_from_agent"] = self.mutual_weight * mutual_loss(vit, agent, self.temperature, weights)
        losses["agent_from_vit"] = self.mutual_weight * mutual_loss(agent, vit, self.temperature, weights)
        return {"loss": sum(losses.values()), **losses}

    @classmethod
    def companions(cls, recipe: Recipe, model: nn.Module) -> dict[str, nn.Module]:
        return {"agent": companion_agent(recipe, model)}

    def parameter_groups(self, optim: Optim, lr: float) -> list[dict]:
        return super().parameter_groups(optim, lr) + parameter_groups(self.agent, replace(optim, lr_factors={}), lr)

    def compile_networks(self) -> None:
        super().compile_networks()
        self.agent.compile()

    def evaluated(self) -> dict[str, nn.Module]:
        return {"agent": self.agent}

    def kept(self) -> dict[str, tuple[nn.Module, dict[str, Any]]]:
        return {"agent": kept_agent(self.agent, self.agent_args)}
