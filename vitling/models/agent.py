"""Agent CNNs: convolutional counterparts of a ViT, block for block, that teach it while both are trained.

Paper: Zhang et al. 2022, "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training".
Equal to the authors' release in tests/golden/test_bootstrapping_models.py. Deviates: the generalized convolution is a
real convolution, its window may have an even side, and `create_agent` builds an agent for any ViT with the usual blocks.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, calculate_drop_path_rates, to_2tuple
from torch import Tensor, nn

from vitling.errors import UserError, did_you_mean
from vitling.models.contract import LAST_BLOCK, MapContract, stated_grid


class TapWindow:
    """Where the H taps of a generalized convolution lie: head h looks from pixel p at p + offset_h (sec. 3.2.1).

    The window has side s = ceil(sqrt(H)); its taps are counted row by row from the top left and the first H are kept.
    It starts (s - 1) // 2 rows above and columns left of the pixel. For odd s that centres it, as in the release; for even s
    (H = 2..4, 10..16), where the release fails, the odd row and column lie below and to the right, as with torch's
    padding="same". The pixel itself is always among the taps. Rows without any tap are left out: H = 6 is a 2 x 3 window.
    """

    def __init__(self, num_heads: int):
        self.num_heads = num_heads
        self.side = math.ceil(math.sqrt(num_heads))
        self.rows = math.ceil(num_heads / self.side)
        self.before = (self.side - 1) // 2
        # Zeros around the image: what both sides need is left to the convolution, the rest is copied in before it.
        after = [size - 1 - self.before for size in (self.rows, self.side)]
        self.padding = [min(self.before, n) for n in after]
        rows, columns = self.padding
        self.extra = [self.before - columns, after[1] - columns, self.before - rows, after[0] - rows]

    def kernel(self, taps: Tensor) -> Tensor:
        """(..., H) -> (..., rows, side); places without a tap are zero."""
        return F.pad(taps, (0, self.rows * self.side - self.num_heads)).unflatten(-1, (self.rows, self.side))

    def conv(self, x: Tensor, taps: Tensor, bias: Tensor | None = None, groups: int = 1) -> Tensor:
        """Convolve (B, D, h, w) with taps (D_out, D_in, H), zero outside the image."""
        x = F.pad(x, self.extra) if any(self.extra) else x
        return F.conv2d(x, self.kernel(taps), bias, padding=self.padding, groups=groups)


class GeneralizedConv(nn.Module):
    """CONV of the paper: multi-head attention with the attention map of head h replaced by a fixed shift (eq. 3)."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.window = TapWindow(num_heads)
        self.weight = nn.Parameter(torch.empty(dim, dim, num_heads))
        self.bias = nn.Parameter(torch.zeros(dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.window.conv(x, self.weight, self.bias)


class ConvMlp(nn.Module):
    """The MLP of a ViT block as 1x1 convolutions."""

    def __init__(self, dim: int, hidden_dim: int, drop: float):
        super().__init__()
        self.conv1 = nn.Conv2d(dim, hidden_dim, 1)
        self.drop = nn.Dropout(drop)
        self.conv2 = nn.Conv2d(hidden_dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.drop(F.gelu(self.conv1(x))))


class SharedConv(nn.Module):
    """CONV with the tensors of an attention layer: tap h is W_O[:, head h] W_V[head h, :], its bias that of W_O (eq. 4).

    Computed as project, shift each head, project, as attention does: 2 D^2 products per pixel, where a convolution with
    the taps needs H D^2, and no kernel to rebuild in each forward. The bias of W_V is not used, as in the release.
    """

    def __init__(self, attn: nn.Module):
        super().__init__()
        self.lender = (attn,)  # in a tuple, so that the ViT's tensors are not registered a second time
        self.window = TapWindow(attn.num_heads)
        self.register_buffer("shifts", torch.empty(attn.proj.in_features, 1, attn.num_heads), persistent=False)
        self.init_non_persistent_buffers()

    def init_non_persistent_buffers(self) -> None:
        """One tap per head, (H K, 1, H), computed again where timm asks for it."""
        width, _, num_heads = self.shifts.shape
        self.shifts.copy_(torch.eye(num_heads).repeat_interleave(width // num_heads, dim=0)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        (attn,) = self.lender
        values = F.conv2d(x, as_1x1(value_rows(attn)))
        values = self.window.conv(values, self.shifts, groups=values.shape[1])
        return F.conv2d(values, as_1x1(attn.proj.weight), attn.proj.bias)


class SharedMlp(nn.Module):
    """The MLP of a ViT block with that block's own tensors, applied as 1x1 convolutions."""

    def __init__(self, mlp: nn.Module, drop: float):
        super().__init__()
        self.lender = (mlp,)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        fc1, fc2 = mlp_layers(self.lender[0])
        x = self.drop(F.gelu(F.conv2d(x, as_1x1(fc1.weight), fc1.bias)))
        return F.conv2d(x, as_1x1(fc2.weight), fc2.bias)


def as_1x1(weight: Tensor) -> Tensor:
    return weight.flatten(1)[:, :, None, None]


def value_rows(attn: nn.Module) -> Tensor:
    """W_V, the last third of the rows of the joint query-key-value projection."""
    return attn.qkv.weight[-attn.proj.in_features :]


def mlp_layers(mlp: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The expanding and the projecting layer; DHVT's DAFF has 1x1 convolutions in their place."""
    return (mlp.fc1, mlp.fc2) if hasattr(mlp, "fc1") else (mlp.conv1, mlp.conv3)


def plain_block(
    prefix: str, taps: Tensor, bias: Tensor | None, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None
) -> dict[str, Tensor]:
    """What a block without sharing would hold for the tensors that a sharing one borrows; an absent bias is zero."""
    b0, b1, b2 = (w.new_zeros(w.shape[0]) if b is None else b for w, b in ((taps, bias), (w1, b1), (w2, b2)))
    return {
        f"{prefix}cnn_block.weight": taps,
        f"{prefix}cnn_block.bias": b0,
        f"{prefix}mlp_block.conv1.weight": as_1x1(w1),
        f"{prefix}mlp_block.conv1.bias": b1,
        f"{prefix}mlp_block.conv2.weight": as_1x1(w2),
        f"{prefix}mlp_block.conv2.bias": b2,
    }


def shared_taps(w_v: Tensor, w_o: Tensor, num_heads: int) -> Tensor:
    """Tap weights (D, D, H) of the convolution that W_V (H K, D) and W_O (D, H K) make together, head h being tap h."""
    w_v = w_v.unflatten(0, (num_heads, -1))  # (H, K, D)
    w_o = w_o.unflatten(1, (num_heads, -1)).transpose(0, 1)  # (H, D, K)
    return torch.bmm(w_o, w_v).permute(1, 2, 0)


class Block(nn.Module):
    """CONV and MLP, each with a residual; BatchNorm before each (`pre_norm`) or on its output."""

    def __init__(
        self, dim: int, cnn_block: nn.Module, mlp_block: nn.Module, *, pre_norm: bool, drop: float, path: float
    ):
        super().__init__()
        self.cnn_block = cnn_block
        self.mlp_block = mlp_block
        self.norm1 = nn.BatchNorm2d(dim)
        self.norm2 = nn.BatchNorm2d(dim)
        self.pre_norm = pre_norm
        self.drop = nn.Dropout(drop)
        self.drop_path = DropPath(path) if path > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.pre_norm:
            x = x + self.drop_path(self.drop(self.cnn_block(self.norm1(x))))
            return x + self.drop_path(self.drop(self.mlp_block(self.norm2(x))))
        x = x + self.drop_path(self.drop(self.norm1(self.cnn_block(x))))
        return x + self.drop_path(self.drop(self.norm2(self.mlp_block(x))))


class ResStem(nn.Module):
    """ResNet-like input projection: 7x7 conv, BatchNorm, GELU, max-pool, 3x3 conv, each of the three with stride 2.

    For small images a smaller total stride is reached as ResNets are adapted to CIFAR: first the pooling goes (4), then the
    stride and the large kernel of the first convolution (2), then the stride of the last one (1).
    """

    STRIDES = (1, 2, 4, 8)

    def __init__(self, in_chans: int, mid_chans: int, dim: int, stride: int):
        super().__init__()
        kernel, stride1 = (7, 2) if stride >= 4 else (3, 1)
        self.conv1 = nn.Conv2d(in_chans, mid_chans, kernel, stride1, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(mid_chans)
        self.pool = nn.MaxPool2d(3, 2, 1) if stride == 8 else nn.Identity()
        self.conv2 = nn.Conv2d(mid_chans, dim, 3, min(stride, 2), 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.pool(F.gelu(self.norm(self.conv1(x)))))


def stem_grid(img_size: int | tuple[int, int], patch_size: int, stem: str) -> tuple[int, int]:
    """Rows and columns of the map behind the stem: patches that fit, or at half the stride, strides rounded up."""
    height, width = to_2tuple(img_size)
    if stem == "base":
        return height // patch_size, width // patch_size
    return math.ceil(2 * height / patch_size), math.ceil(2 * width / patch_size)


class Agent(MapContract):
    """Input projection, blocks with optional 2x2 pooling after some, BatchNorm, GELU, average pool, classifier.

    `stem="base"` cuts patches as a ViT does (`patch_size`); `stem="res"` is ResNet-like and starts on a grid twice as fine
    (stride `patch_size / 2`), to be pooled after the blocks in `down_sample`. With `shared_with=vit` the blocks borrow the
    ViT's value and output projections and its MLPs (no norms, no LayerScale); parameters and state dict then hold the
    private tensors only.
    """

    blocks_name, norm_name, classifier_name = "layers", "bn", "linear"
    stem_group = r"^input_proj"
    block_groups = ((r"^layers\.(\d+)", None), (r"^bn", LAST_BLOCK))
    coarse_groups = r"^layers\.(\d+)"

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        embed_dim: int = 288,
        depth: int = 6,
        num_heads: int = 9,
        mlp_ratio: float = 4.0,
        *,
        stem: str = "base",
        mid_chans: int = 64,
        down_sample: Sequence[int] = (),
        pre_norm: bool = True,
        drop_rate: float = 0.0,
        mlp_drop_rate: float = 0.1,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        init: str = "sane",
        shared_with: nn.Module | None = None,
    ):
        super().__init__()
        if stem not in ("base", "res"):
            raise UserError(f"unknown stem={stem!r}. {did_you_mean(stem, ('base', 'res'))}")
        if init not in ("sane", "official"):
            raise UserError(f"unknown init={init!r}. {did_you_mean(init, ('sane', 'official'))}")
        if stem == "res" and patch_size not in (2 * stride for stride in ResStem.STRIDES):
            raise UserError(f"stem='res' needs patch_size 2, 4, 8 or 16, not {patch_size}; use stem='base'.")
        if any(not 0 <= i < depth for i in down_sample):
            raise UserError(f"down_sample={tuple(down_sample)} names blocks beyond 0..{depth - 1}.")
        if shared_with is not None:
            lender = read_structure(shared_with, share=True)
            given = dict(depth=depth, embed_dim=embed_dim, num_heads=num_heads, mlp_ratio=mlp_ratio)
            if given != lender:
                raise UserError(
                    f"an agent with {given} cannot share with this ViT, which has {lender}; "
                    "create_agent(vit, share=True) takes the numbers from the ViT."
                )

        self.arguments: dict[str, Any] = {}  # of `create_agent`, to build one of this form again
        self.in_chans = in_chans
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.patch_size = patch_size
        self.down_sample = tuple(down_sample)
        self.stem_stride = patch_size if stem == "base" else patch_size // 2
        self.shared = shared_with is not None
        self.lender = (shared_with,)  # in a tuple, so that the ViT's tensors are not registered a second time

        if stem == "base":
            self.input_proj = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        else:
            self.input_proj = ResStem(in_chans, mid_chans, embed_dim, self.stem_stride)
        self.layers = nn.ModuleList()
        for i, path in enumerate(calculate_drop_path_rates(drop_path_rate, depth)):
            if shared_with is None:
                cnn_block = GeneralizedConv(embed_dim, num_heads)
                mlp_block = ConvMlp(embed_dim, round(embed_dim * mlp_ratio), mlp_drop_rate)
            else:
                cnn_block = SharedConv(shared_with.blocks[i].attn)
                mlp_block = SharedMlp(shared_with.blocks[i].mlp, mlp_drop_rate)
            self.layers.append(
                Block(embed_dim, cnn_block, mlp_block, pre_norm=pre_norm, drop=proj_drop_rate, path=path)
            )
        self.bn = nn.BatchNorm2d(embed_dim)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)

        self.feature_info = []
        reduction = self.stem_stride
        for i in range(depth):
            self.feature_info.append(dict(module=f"layers.{i}", num_chs=embed_dim, reduction=reduction))
            reduction *= 2 if i in self.down_sample else 1
        self.set_input_size(img_size)
        self.init_weights(init)

    @torch.no_grad()
    def init_weights(self, init: str = "sane") -> None:
        official = init == "official"
        for name, module in self.named_modules():
            if not isinstance(module, nn.Conv2d):
                continue
            if name == "input_proj":
                nn.init.normal_(module.weight, std=1.0) if official else nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            else:
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    # The release passes 1e-6 as the mean and so leaves the standard deviation at one.
                    nn.init.normal_(module.bias, 1e-6, 1.0) if official else nn.init.normal_(module.bias, std=1e-6)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Note the size of the images and check that they survive all down-sampling; no weight depends on it."""
        self.img_size = to_2tuple(img_size)
        grid = stem_grid(img_size, self.patch_size, "base" if isinstance(self.input_proj, nn.Conv2d) else "res")
        if min(grid) < 2 ** len(self.down_sample):
            raise UserError(
                f"img_size={self.img_size} is too small for a stem of stride {self.stem_stride} and "
                f"{len(self.down_sample)} down-samplings; use larger images, a smaller patch_size or down_sample=()."
            )
        self.grid_size = grid

    def forward_blocks(
        self, x: Tensor, take: Collection[int] = (), stop: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Outputs are taken before any down-sampling: what the feature loss compares with the ViT's."""
        x = self.input_proj(x)
        taken = []
        for i, layer in enumerate(self.layers[:stop]):
            x = self.run(layer, x)
            if i in take:
                taken.append(x)
            if i in self.down_sample:
                x = F.avg_pool2d(x, 2)
        return x, taken

    def final_norm(self, x: Tensor) -> Tensor:
        return F.gelu(self.bn(x))

    def plain_state(self) -> dict[str, Tensor]:
        """The state of an agent of this form with weights of its own that computes the same."""
        state, (vit,) = self.state_dict(), self.lender
        for i, block in enumerate(vit.blocks if vit is not None else ()):
            attn, (fc1, fc2) = block.attn, mlp_layers(block.mlp)
            taps = shared_taps(value_rows(attn), attn.proj.weight, self.num_heads)
            state |= plain_block(f"layers.{i}.", taps, attn.proj.bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias)
        return state

    def from_authors(self, state: dict) -> dict:
        """Keys and layouts of the release -> ours; of a joint or shared checkpoint, the agent's part.

        From a shared checkpoint a plain agent gets its taps built, a sharing agent its private tensors.
        """
        prefix = "models.cnn."
        if any(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        ours = {}
        for key, value in state.items():
            if ".cnn_block.conv." in key:  # an ordinary 3x3 convolution
                ours[key.replace(".conv.", ".")] = value.flatten(2) if key.endswith("weight") else value
            elif ".mhsa." not in key and ".mlp_block.linear" not in key:
                ours[key] = value
            elif not self.shared and key.endswith("cnn_block.mhsa.linear_out.weight"):
                layer = key.removesuffix("cnn_block.mhsa.linear_out.weight")
                w_v = state[layer + "cnn_block.mhsa.linear_qkv.weight"][-value.shape[1] :]
                mlp = [state[f"{layer}mlp_block.linear{n}.{part}"] for n in (1, 2) for part in ("weight", "bias")]
                taps = shared_taps(w_v, value, self.num_heads)
                ours |= plain_block(layer, taps, state[layer + "cnn_block.mhsa.linear_out.bias"], *mlp)
        return ours

    def to_authors(self, state: dict) -> dict:
        """Our keys and layouts -> those of the release, which writes a full square window as an ordinary convolution."""
        window = TapWindow(self.num_heads)
        if window.side**2 != self.num_heads:
            return dict(state)
        theirs = {}
        for key, value in state.items():
            if key.endswith(".cnn_block.weight"):
                value = window.kernel(value)
            theirs[key.replace(".cnn_block.", ".cnn_block.conv.")] = value
        return theirs

    @classmethod
    def default_cfg(
        cls,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        stem: str = "base",
        down_sample: Sequence[int] = (),
        **variant: Any,
    ) -> dict:
        first_conv = "input_proj.conv1" if stem == "res" else "input_proj"
        pool_size = tuple(side >> len(down_sample) for side in stem_grid(img_size, patch_size, stem))
        return dict(first_conv=first_conv, classifier="linear", pool_size=pool_size)


def read_structure(vit: nn.Module, *, share: bool = False) -> dict:
    """Depth, width, heads and MLP ratio of a ViT with the usual blocks; `share`: also check what sharing borrows."""

    def refuse(why: str) -> UserError:
        needed = "a list `blocks` of one width, each with attn.num_heads"
        if share:
            needed += ", attn.qkv (rows query | key | value), attn.proj and mlp.fc1, mlp.fc2 (or mlp.conv1, mlp.conv3)"
        action = "share weights with an agent" if share else "have an agent built for it"
        return UserError(
            f"{type(vit).__name__} cannot {action}: {why}. Needed: {needed}; such are boot_vit_*, t2t_vit_*, lvvit_*, "
            "dhvt_*, diag_vit_* and timm's vit_* and deit_*."
        )

    blocks = getattr(vit, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or len(blocks) == 0:
        raise refuse("it has no `blocks`")
    if not isinstance(getattr(vit, "embed_dim", None), int):
        raise refuse("its width changes between stages")
    if not all(hasattr(getattr(block, "attn", None), "num_heads") for block in blocks):
        raise refuse("some of its blocks have no attn.num_heads")
    dim, num_heads = vit.embed_dim, blocks[0].attn.num_heads

    for i, block in enumerate(blocks if share else ()):
        try:
            fc1, fc2 = mlp_layers(block.mlp)
            inner, hidden = block.attn.proj.weight.shape[1], fc2.weight.shape[1]
            shapes = [layer.weight.flatten(1).shape for layer in (block.attn.qkv, block.attn.proj, fc1, fc2)]
        except AttributeError as missing:
            raise refuse(f"in blocks.{i}, {missing}") from None
        if shapes != [(3 * inner, dim), (dim, inner), (hidden, dim), (dim, hidden)]:
            raise refuse(f"blocks.{i} has projections of other shapes, {[tuple(shape) for shape in shapes]}")

    try:
        mlp_ratio = mlp_layers(blocks[0].mlp)[1].weight.shape[1] / dim
    except AttributeError:
        mlp_ratio = 4.0  # a foreign MLP; the agent takes the paper's
    return dict(depth=len(blocks), embed_dim=dim, num_heads=num_heads, mlp_ratio=mlp_ratio)


def create_agent(vit: nn.Module, *, stem: str = "auto", share: bool = False, **overrides: Any) -> Agent:
    """An agent with the depth, width, heads, MLP ratio, image size and classes of any ViT with the usual blocks.

    Let the ViT's tokens form a grid of stride p. The base stem gives the agent that grid in all blocks. The res-like stem
    (for p = 2, 4, 8 or 16; then what "auto" takes) starts with stride p / 2 and pools to p and, if the ViT's grid is even,
    to 2 p, so that token counts are 4, 1 and 1/4 times the ViT's. Up to 6 blocks the agent follows Agent-S (pooling after
    blocks 0 and 1, BatchNorm first), above that Agent-B (pooling after 1/4 and 3/4 of the blocks, BatchNorm last). With
    `share` it borrows the ViT's weights and takes over its dropout. `overrides` are arguments of Agent.
    """
    structure = read_structure(vit, share=share)
    grid = stated_grid(vit)
    stride = vit.feature_info[-1]["reduction"] if getattr(vit, "feature_info", None) else None
    if not grid or not stride:
        raise UserError(
            f"{type(vit).__name__} has no token grid (grid_size) or stride (feature_info), so no agent can be "
            "matched to it; name an agent, such as agent_small."
        )
    if stem == "auto":
        stem = "res" if stride in (2, 4, 8, 16) else "base"

    depth, dim, first = structure["depth"], structure["embed_dim"], vit.blocks[0]
    shallow = depth <= 6
    pools = [i for i in ((0, 1) if shallow else (depth // 4 - 1, 3 * depth // 4 - 1)) if i < depth]
    if any(side % 2 for side in grid):
        pools = pools[:1]
    drops = {}
    if share:
        drops["mlp_drop_rate"] = getattr(getattr(first.mlp, "drop1", None), "p", 0.0)
        drops["proj_drop_rate"] = getattr(getattr(first.attn, "proj_drop", None), "p", 0.0)
    arguments = dict(
        structure,
        img_size=(grid[0] * stride, grid[1] * stride),
        patch_size=stride,
        in_chans=getattr(vit, "in_chans", 3),
        num_classes=vit.num_classes,
        stem=stem,
        mid_chans=min(64, max(8, dim // 32 * 8)),
        down_sample=pools if stem == "res" else (),
        pre_norm=shallow,
        shared_with=vit if share else None,
        **drops,
    )
    agent = Agent(**arguments | overrides)
    agent.arguments = {k: v for k, v in (arguments | overrides).items() if k not in ("shared_with", "init")}
    return agent


# fmt: off
SMALL = dict(embed_dim=288, depth=6, num_heads=9)
BASE = dict(embed_dim=384, depth=12, num_heads=6, pre_norm=False)
VARIANTS = {
    "agent_test":      dict(img_size=16, patch_size=4, num_classes=10, embed_dim=36, depth=3, num_heads=9, mlp_ratio=2.0, stem="res", mid_chans=8, down_sample=(0, 1)),
    "agent_nano":      dict(img_size=32, patch_size=4, num_classes=10, embed_dim=108, depth=6, num_heads=9, mlp_ratio=2.0, stem="res", mid_chans=24, down_sample=(0, 1)),
    "agent_small":     SMALL,
    "agent_small_res": dict(SMALL, stem="res", down_sample=(0, 1)),
    "agent_base":      BASE,
    "agent_base_res":  dict(BASE, stem="res", down_sample=(2, 8)),
}
# fmt: on

TABLES = [(Agent, VARIANTS)]
