"""Bootstrapping ViT: the plain pre-norm ViT that the agent CNNs of agent.py teach, with softmax or entmax attention.

Paper: Zhang et al. 2022, "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training".
Equal to the authors' release in tests/golden/test_bootstrapping_models.py. Deviates: tokens are batch-first and named as
in timm; `init="official"` draws weights as the release does, the default avoids its two slips (patch embedding and MLP
biases with a standard deviation of one).
"""

from functools import partial
from typing import Any

import torch
from timm.layers import Attention, LayerNorm, maybe_add_mask, resolve_self_attn_mask
from torch import Tensor, nn

from vitling.errors import UserError, did_you_mean
from vitling.models.contract import TimmViT, rename_keys


class Entmax(torch.autograd.Function):
    """Alpha-entmax over the last axis: p = [(alpha - 1) x - tau]_+ ^ (1 / (alpha - 1)), tau such that p sums to one.

    Bisection finds tau; the gradient is that of the exact solution (Correia et al. 2019, "Adaptively Sparse
    Transformers", proposition 1), so nothing of the search is kept for the backward pass.
    """

    @staticmethod
    def forward(x: Tensor, alpha: Tensor, halvings: int) -> Tensor:
        power = 1 / (alpha - 1)
        x = x * (alpha - 1)
        # At the lower end the largest entry alone has mass one; at the upper end all entries together have at most that.
        tau = x.amax(dim=-1, keepdim=True) - 1
        width = 1 - x.shape[-1] ** (1 - alpha)
        for _ in range(halvings):
            width = width / 2
            mass = (x - (tau + width)).clamp(min=0).pow(power).sum(dim=-1, keepdim=True)
            tau = torch.where(mass >= 1, tau + width, tau)
        p = (x - tau).clamp(min=0).pow(power)
        return p / p.sum(dim=-1, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        alpha, p = ctx.saved_tensors
        on_support = p > 0
        slope = torch.where(on_support, p.pow(2 - alpha), 0)
        share = slope / slope.sum(dim=-1, keepdim=True)
        grad_x = slope * (grad - (grad * share).sum(dim=-1, keepdim=True))
        grad_alpha = None
        if ctx.needs_input_grad[1]:
            p_log_p = torch.where(on_support, p * p.log(), 0)
            by_alpha = (p - share) / (alpha - 1) ** 2
            by_alpha = by_alpha - (p_log_p - share * p_log_p.sum(dim=-1, keepdim=True)) / (alpha - 1)
            grad_alpha = (grad * by_alpha).sum()
        return grad_x, grad_alpha, None


@torch.fx.wrap  # one node of a traced graph, like softmax
def entmax(x: Tensor, alpha: Tensor) -> Tensor:
    """Sparse softmax over the last axis; alpha is a scalar above 1 (1: softmax in the limit, 2: sparsemax)."""
    if x.dtype == torch.float64:
        return Entmax.apply(x, alpha, 50)
    # The release halves 50 times; a float32 threshold no longer moves after 30. Half precision would stop at 3 digits.
    return Entmax.apply(x.float(), alpha, 30).to(x.dtype)


class EntmaxAttention(Attention):
    """Self-attention whose weights are the entmax of the scores, with one learned alpha per layer."""

    def __init__(self, dim: int, **kwargs: Any):
        super().__init__(dim, **kwargs)
        self.fused_attn = False  # no fused kernel knows entmax
        self.alpha = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        B, N, _ = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = (self.q_norm(q) * self.scale) @ self.k_norm(k).transpose(-2, -1)
        scores = maybe_add_mask(scores, resolve_self_attn_mask(N, scores, attn_mask, is_causal))
        x = self.attn_drop(entmax(scores, self.alpha)) @ v
        x = self.norm(x.transpose(1, 2).reshape(B, N, self.attn_dim))
        return self.proj_drop(self.proj(x))


ATTENTION = {"softmax": Attention, "entmax": EntmaxAttention}


class BootstrappingViT(TimmViT):
    """timm's ViT with the release's sizes, initialisation and key names. Further arguments are those of timm's ViT."""

    def __init__(
        self,
        *,
        embed_dim: int = 288,
        depth: int = 6,
        num_heads: int = 9,
        attention: str = "softmax",
        init: str = "sane",
        norm_eps: float = 1e-5,
        **kwargs: Any,
    ):
        if attention not in ATTENTION:
            raise UserError(f"unknown attention={attention!r}. {did_you_mean(attention, ATTENTION)}")
        if init not in ("sane", "official"):
            raise UserError(f"unknown init={init!r}. {did_you_mean(init, ('sane', 'official'))}")
        super().__init__(
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            attn_layer=ATTENTION[attention],
            norm_layer=partial(LayerNorm, eps=norm_eps),
            weight_init="skip",
            **kwargs,
        )
        self.init = init
        self.init_weights(needs_reset=False)

    @torch.no_grad()
    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        official = (mode or self.init) == "official"
        if needs_reset:
            for module in self.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
        for table in (self.cls_token, self.reg_token, self.pos_embed):
            if table is not None:
                nn.init.normal_(table, std=0.02)
        patches = self.patch_embed.proj
        nn.init.normal_(patches.weight, std=1.0) if official else nn.init.trunc_normal_(patches.weight, std=0.02)
        if patches.bias is not None:
            nn.init.zeros_(patches.bias)
        for name, module in self.blocks.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None and ".mlp." in name:
                    # The release passes 1e-6 as the mean and so leaves the standard deviation at one.
                    nn.init.normal_(module.bias, 1e-6, 1.0) if official else nn.init.normal_(module.bias, std=1e-6)
                elif module.bias is not None:
                    nn.init.zeros_(module.bias)

    def from_authors(self, state: dict) -> dict:
        """Keys and layouts of the release -> ours; of a joint or shared checkpoint, the ViT's part."""
        prefix = "models.vit."
        if any(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        ours = rename_keys(state, AUTHORS_NAMES)
        if "pos_embed.pos_embed" in state:
            ours["pos_embed"] = ours["pos_embed"].transpose(0, 1)
        return ours

    def to_authors(self, state: dict) -> dict:
        """Our keys and layouts -> those of the release."""
        theirs = rename_keys(state, [(ours, theirs) for theirs, ours in AUTHORS_NAMES])
        if "pos_embed" in state:
            theirs["pos_embed.pos_embed"] = state["pos_embed"].transpose(0, 1).contiguous()
        return theirs

    @classmethod
    def default_cfg(cls, **variant: Any) -> dict:
        return dict(first_conv="patch_embed.proj", classifier="head", fixed_input_size=True)


AUTHORS_NAMES = [
    ("pos_embed.pos_embed", "pos_embed"),
    ("transformer.norm.", "norm."),
    ("transformer.layers.", "blocks."),
    (".attention.softmax.alpha", ".attn.alpha"),
    (".attention.linear_qkv.", ".attn.qkv."),
    (".attention.linear_out.", ".attn.proj."),
    (".mlp.linear1.", ".mlp.fc1."),
    (".mlp.linear2.", ".mlp.fc2."),
    ("cls_head.", "head."),
]


# fmt: off
VARIANTS = {
    "boot_vit_test":  dict(img_size=16, patch_size=4, num_classes=10, embed_dim=36, depth=3, num_heads=9, mlp_ratio=2.0),
    "boot_vit_nano":  dict(img_size=32, patch_size=4, num_classes=10, embed_dim=108, depth=6, num_heads=9, mlp_ratio=2.0),
    "boot_vit_small": dict(embed_dim=288, depth=6, num_heads=9, norm_eps=1e-5, proj_drop_rate=0.1, attn_drop_rate=0.1),
    "boot_vit_base":  dict(embed_dim=384, depth=12, num_heads=6, norm_eps=1e-6),
}
# fmt: on

TABLES = [(BootstrappingViT, VARIANTS)]
