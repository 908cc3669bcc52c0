"""What timm asks of every model and is the same in each family: classifier, intermediates, checkpointing, parameter groups.

A family writes its architecture and one `forward_blocks`, from images to the stream behind the last block, and names its parts
in class attributes. `TokenContract` is for streams of tokens, `MapContract` for those of feature maps; what extends timm's
VisionTransformer has nearly all of it from there.
"""

from collections.abc import Collection, Iterable
from math import isqrt, prod
from typing import Any, ClassVar

import torch
from timm.layers import create_classifier, get_device_dtype, global_pool_nlc, resample_abs_pos_embed, to_2tuple

# Private, but there is no other name for what all of timm's families read `indices` with.
from timm.models._features import feature_take_indices
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitling.errors import UserError, did_you_mean
from vitling.models.layers import checkpoint_block, init_linear

# Regular expressions for the names of parameters, by which timm groups them into layers.
Groups = str | tuple[tuple[str, tuple[int, ...] | None], ...]
LAST_BLOCK = (99999,)  # timm's sign for "in the group of the block before"


class Contract(nn.Module):
    """What token models and convolutional networks share."""

    blocks_name = "blocks"
    norm_name: str | None = "norm"  # of the layer behind the blocks
    classifier_name = "head"
    stem_group: str
    block_groups: Groups
    coarse_groups: Groups
    undecayed: ClassVar[frozenset[str]] = frozenset()
    grad_checkpointing = False
    num_features: int
    num_classes: int

    def forward_blocks(
        self, x: Tensor, take: Collection[int] = (), stop: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The stream after the last block, or after `stop` blocks, and the outputs of those in `take`."""
        raise NotImplementedError

    def final_norm(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        raise NotImplementedError

    def forward_features(self, x: Tensor) -> Tensor:
        return self.final_norm(self.forward_blocks(x)[0])

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def run(self, block: nn.Module, *args: Any) -> Tensor:
        """A block's output; with gradient checkpointing, computed a second time when its gradient is wanted."""
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint_block(block, *args)
        return block(*args)

    def run_blocks(
        self, x: Tensor, *args: Any, take: Collection[int] = (), stop: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """One block after another, each with the same further arguments: what most `forward_blocks` end in."""
        taken = []
        for i, block in enumerate(getattr(self, self.blocks_name)[:stop]):
            x = self.run(block, x, *args)
            if i in take:
                taken.append(x)
        return x, taken

    def no_weight_decay(self) -> set[str]:
        return {name for name in self.undecayed if isinstance(getattr(self, name), nn.Parameter)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return dict(stem=self.stem_group, blocks=self.coarse_groups if coarse else self.block_groups)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        return getattr(self, self.classifier_name)

    def place(self, part: nn.Module) -> nn.Module:
        """A new part, on the device, in the precision and in the mode of the others."""
        return part.to(**get_device_dtype(self)).train(self.training)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what the chosen intermediates do not need; returns their indices."""
        take, last = feature_take_indices(len(getattr(self, self.blocks_name)), indices)
        self.keep_blocks(last + 1)
        if prune_norm and self.norm_name:
            setattr(self, self.norm_name, nn.Identity())
        if prune_head:
            self.reset_classifier(0, "")
        return take

    def keep_blocks(self, count: int) -> None:
        setattr(self, self.blocks_name, getattr(self, self.blocks_name)[:count])

    def take_blocks(
        self, x: Tensor, indices: int | list[int] | None, stop_early: bool, output_fmt: str
    ) -> tuple[Tensor, list[Tensor], bool]:
        """The final stream, the chosen outputs in order of depth, and whether the last block's is among them."""
        if output_fmt not in ("NCHW", "NLC"):
            raise UserError(f"output_fmt={output_fmt!r} is unknown; use 'NCHW' or 'NLC'.")
        count = len(getattr(self, self.blocks_name))
        take, last = feature_take_indices(count, indices)
        x, taken = self.forward_blocks(x, take, last + 1 if stop_early else None)
        return x, taken, last == count - 1


class TokenContract(Contract):
    """Class token, patch tokens, blocks, norm and linear classifier, as in timm's VisionTransformer."""

    stem_group = r"^cls_token|pos_embed|patch_embed"
    block_groups: Groups = ((r"^blocks\.(\d+)", None), (r"^norm", LAST_BLOCK))
    coarse_groups: Groups = block_groups
    undecayed = frozenset({"cls_token", "pos_embed"})
    num_prefix_tokens = 1
    pools = ("token", "avg", "avgmax", "max", "")
    global_pool: str
    pos_embed: Tensor | None

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool is not None:
            self.global_pool = check_pool(global_pool, self.pools)
        self.num_classes = num_classes
        self.head = self.new_head() if num_classes > 0 else self.place(nn.Identity())

    def new_head(self) -> nn.Module:
        head = nn.Linear(self.num_features, self.num_classes)
        init_linear(head)
        return self.place(head)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        """Take images or patches of another size; a position embedding is resized."""
        old_grid = token_grid(self)
        self.patch_embed.set_input_size(img_size=img_size, patch_size=patch_size)
        if self.pos_embed is not None:
            self.pos_embed = resize_positions(self.pos_embed, old_grid, token_grid(self), self.num_prefix_tokens)

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """The token grid of these images, which for most models is that of all."""
        return token_grid(self)

    def check_size(self, x: Tensor, size: tuple[int, int], what: str = "images") -> None:
        check_size(x, size, what)

    def final_norm(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def pool(self, x: Tensor) -> Tensor:
        return self.head_drop(global_pool_nlc(x, self.global_pool, self.num_prefix_tokens))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.pool(x)
        return x if pre_logits else self.head(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:  # maps, or pairs with prefix tokens; alone, or behind the final tokens
        """The token maps after the chosen blocks, as timm's VisionTransformer returns them."""
        grid = self.grid_of(x)
        x, taken, _ = self.take_blocks(x, indices, stop_early, output_fmt)
        if norm:
            taken = [self.fitting_norm(y) for y in taken]
        prefixes = [y[:, : self.num_prefix_tokens] for y in taken]
        maps = [y[:, self.num_prefix_tokens :] for y in taken]
        if output_fmt == "NCHW":
            maps = [y.mT.unflatten(2, grid).contiguous() for y in maps]
        intermediates = list(zip(maps, prefixes, strict=True)) if return_prefix_tokens else maps
        return intermediates if intermediates_only else (self.fitting_norm(x), intermediates)

    def fitting_norm(self, x: Tensor) -> Tensor:
        """The last norm, where it is of this width: early blocks of T2T's dense variant are narrower."""
        return self.final_norm(x) if x.shape[-1] == self.num_features else x


class MapContract(Contract):
    """Stages or blocks of feature maps, pooling and classifier, as in timm's convolutional networks."""

    global_pool: nn.Module

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        pool_type = self.global_pool.pool_type if global_pool is None else global_pool
        self.global_pool, classifier = create_classifier(
            self.num_features, num_classes, pool_type=pool_type, **get_device_dtype(self)
        )
        setattr(self, self.classifier_name, classifier)

    def final_norm(self, x: Tensor) -> Tensor:
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.global_pool(x))
        return x if pre_logits else self.get_classifier()(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Final features and the outputs of the chosen blocks; `norm` is for the last one, the only one that it fits.

        `final, outputs = model.forward_intermediates(x); logits = model.forward_head(final)` needs one pass for both.
        """
        x, taken, has_last = self.take_blocks(x, indices, stop_early, output_fmt)
        if norm and has_last:
            taken[-1] = self.final_norm(taken[-1])
        if output_fmt == "NLC":
            taken = [y.flatten(2).mT for y in taken]
        return taken if intermediates_only else (self.final_norm(x), taken)


class TimmViT(VisionTransformer):
    """timm's ViT, whose position embedding is resized as `load_weights` does it."""

    def no_weight_decay(self) -> set[str]:
        return {name for name in super().no_weight_decay() if getattr(self, name, None) is not None}

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        old_grid, table = self.patch_embed.grid_size, self.pos_embed
        super().set_input_size(img_size, patch_size)
        if table is not None:
            prefix = 0 if self.no_embed_class else self.num_prefix_tokens
            # Registered, not assigned: the annotation that mypy then asks for is one that TorchScript cannot read.
            self.register_parameter("pos_embed", resize_positions(table, old_grid, self.patch_embed.grid_size, prefix))


def model_cfg(model: nn.Module) -> dict:
    """timm's `pretrained_cfg`; a model built from its class alone has only its family's defaults."""
    if cfg := getattr(model, "pretrained_cfg", None):
        return cfg
    default_cfg = getattr(type(model), "default_cfg", None)
    return default_cfg() if callable(default_cfg) else {}


def classifier_names(model: nn.Module) -> tuple[str, ...]:
    """Names of all layers that give class scores: LV-ViT has a second one for its tokens, a distilled DeiT one for its teacher.

    timm's config names them, also where a model has none at present; `get_classifier` returns one of them, or several.
    """
    named = model_cfg(model).get("classifier") or ()
    heads = model.get_classifier() if hasattr(model, "get_classifier") else ()
    parts = {id(part) for head in (heads if isinstance(heads, tuple | list) else (heads,)) for part in head.modules()}
    found = [name for name, module in model.named_modules() if id(module) in parts]
    return ((named,) if isinstance(named, str) else tuple(named)) + tuple(found)


def stated_grid(model: nn.Module) -> tuple[int, int] | None:
    """Rows and columns of a model's tokens or last map, where it says so."""
    for owner in (model, getattr(model, "patch_embed", None)):
        if (grid := getattr(owner, "grid_size", None)) is not None:
            return to_2tuple(grid)
    return None


def token_grid(model: nn.Module, tokens: int | None = None) -> tuple[int, int]:
    """Rows and columns of a model's tokens, which must be so many."""
    grid = stated_grid(model)
    if grid is None or (tokens is not None and prod(grid) != tokens):
        raise UserError(f"{type(model).__name__} has no patch_embed.grid_size, so its token grid is unknown.")
    return grid


@torch.fx.wrap  # a traced graph asks like the model itself, and needs no size while it is traced
def check_size(x: Tensor, size: tuple[int, int], what: str) -> None:
    """Refuse images, or the maps made of them, of another size than the positions of a model are made for."""
    given = tuple(x.shape[-2:])
    if given != tuple(size):
        raise UserError(
            f"the images give {what} of {given}, but the model is made for {tuple(size)}; "
            "call model.set_input_size(img_size), pass img_size when it is built, or resize the images."
        )


def square_grid(tokens: int) -> tuple[int, int] | None:
    """Rows and columns of so many tokens in a square; None where they form none."""
    side = isqrt(max(tokens, 0))
    return (side, side) if side * side == tokens else None


def resize_positions(
    table: Tensor, old_grid: tuple[int, int], new_grid: tuple[int, int], num_prefix_tokens: int
) -> Tensor:
    """A position embedding for another token grid, without antialiasing: so do the releases, and `load_weights`."""
    if tuple(old_grid) == tuple(new_grid):
        return table
    resized = resample_abs_pos_embed(table.detach(), new_grid, old_grid, num_prefix_tokens, antialias=False)
    return nn.Parameter(resized, requires_grad=table.requires_grad) if isinstance(table, nn.Parameter) else resized


def check_pool(global_pool: str, pools: Iterable[str]) -> str:
    if global_pool not in pools:
        raise UserError(f"unknown global_pool={global_pool!r}. {did_you_mean(repr(global_pool), map(repr, pools))}")
    return global_pool


def rename_keys(state: dict[str, Tensor], names: Iterable[tuple[str, str]]) -> dict[str, Tensor]:
    """Replace, in each key, the beginning `old` or the inner part `.old.` by `new`, for every pair in turn."""
    renamed = {}
    for key, value in state.items():
        for old, new in names:
            if key.startswith(old) or old.startswith("."):
                key = key.replace(old, new, 1)
        renamed[key] = value
    return renamed
