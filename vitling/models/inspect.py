"""Tokens, feature maps and attention of every block, for our families and timm's.

A value is handed over the moment its module returns it, before a later in-place operation can overwrite it, and is not kept:
what a measurement reduces in the hook never grows with the number of images. Attention weights are read where they pass through
the module called `attn_drop`; fused attention, which has no weights to show, is switched off meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.models.contract import stated_grid
from vitling.models.shards import whole

CONTAINERS = (nn.Sequential, nn.ModuleList)

# ---------------------------------------------------------------------------------------------------------------------
# Where to look


def find_blocks(model: nn.Module) -> list[str]:
    """Names of the blocks in order of definition: members of a sequence that are made of layers and hold no such member."""
    found = [
        f"{path}.{name}" if path else name
        for path, container in model.named_modules()
        if isinstance(container, CONTAINERS)
        for name, block in container.named_children()
        if not isinstance(block, CONTAINERS) and _is_composite(block)
    ]
    blocks = [name for name in found if not any(other.startswith(f"{name}.") for other in found)]
    # Networks that name their blocks one by one (timm's RegNet) still say where their stages end.
    return blocks or [info["module"] for info in getattr(model, "feature_info", None) or ()]


def _is_composite(module: nn.Module) -> bool:
    return any(True for child in module.children() for _ in child.parameters())


def find_attention(model: nn.Module) -> list[str]:
    """Names of the attention modules whose weights pass through an `attn_drop`."""
    return [name for name, module in model.named_modules() if isinstance(getattr(module, "attn_drop", None), nn.Module)]


# ---------------------------------------------------------------------------------------------------------------------
# Looking


@contextmanager
def watch(model: nn.Module, names: Iterable[str], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call `see(name, output)` whenever one of the named modules returns; a module's second call in a pass is `name:2`."""
    calls: Counter = Counter()

    def hook(name: str, module: nn.Module, args: tuple, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            calls[name] += 1
            see(name if calls[name] == 1 else f"{name}:{calls[name]}", tensor)

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(lambda module, args: calls.clear()).remove)
        for name in names:
            stack.callback(model.get_submodule(name).register_forward_hook(partial(hook, name)).remove)
        yield


@contextmanager
def watch_attention(model: nn.Module, see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call `see(name, weights)` with the softmax weights of every attention module; fused attention is off meanwhile."""
    names = {f"{name}.attn_drop".lstrip("."): name for name in find_attention(model)}
    fused = [module for module in model.modules() if getattr(module, "fused_attn", False) is True]
    try:
        for module in fused:
            module.fused_attn = False
        with watch(model, names, lambda name, weights: see(name.replace(".attn_drop", "", 1), weights)):
            yield
    finally:
        for module in fused:
            module.fused_attn = True


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each module is in the mode it was in."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        with torch.no_grad():  # not inference mode: its tensors do not count their in-place changes
            yield
    finally:
        for module, training in modes:
            module.training = training


def first_tensor(output: Any) -> Tensor | None:
    """What a module returned, or the first tensor of it; None if there is none."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return next((value for value in values if isinstance(value, Tensor)), None)


def images_of(batch: Any) -> Tensor:
    """The images of a batch: a tensor, the first of (images, labels), or the "image" of a dict."""
    images = batch.get("image") if isinstance(batch, dict) else first_tensor(batch)
    if images is None or images.ndim != 4:
        shape = "no images" if images is None else f"a tensor of shape {tuple(images.shape)}"
        raise UserError(f"a batch holds {shape}; give (B, C, H, W) images, (images, labels), or a dict with 'image'.")
    return images


def labels_of(batch: Any) -> Tensor | None:
    """The labels of a batch, if it has some."""
    if isinstance(batch, dict):
        return batch.get("label")
    return batch[1] if isinstance(batch, list | tuple) and len(batch) > 1 else None


# ---------------------------------------------------------------------------------------------------------------------
# What was seen


@dataclass
class Layout:
    """How tokens lie: `prefix_tokens` (class token and the like), then a grid row by row, then `extra` (DHVT's head tokens)."""

    grid: tuple[int, int]
    prefix_tokens: int = 0
    extra: int = 0

    @property
    def patches(self) -> slice:
        return slice(self.prefix_tokens, self.prefix_tokens + prod(self.grid))


def find_layout(model: nn.Module, tokens: int, image_size: tuple[int, int]) -> Layout | None:
    """The layout of so many tokens, from what the model says of itself or else from the shape of the images."""
    prefix = getattr(model, "num_prefix_tokens", 0)
    own = stated_grid(model)
    made_for = getattr(getattr(model, "patch_embed", None), "img_size", None) or image_size  # some take other sizes too
    if own and tokens == prod(own) + prefix and tuple(made_for) == image_size:
        return Layout(own, prefix)
    for count in dict.fromkeys((prefix, 0, 1, 2)):
        if grid := _grid_of(tokens - count, image_size):
            return Layout(grid, count)
    return None


def _grid_of(tokens: int, image_size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns whose product is the number of tokens, in the proportions of the image."""
    if tokens < 1:
        return None
    rows = round((tokens * image_size[0] / image_size[1]) ** 0.5)
    return (rows, tokens // rows) if rows and tokens % rows == 0 else None


def as_tokens(model: nn.Module, output: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Layout]:
    """A block's output as (B, N, D) tokens: those of a ViT as they are, a map of a CNN or a hierarchical model row by row."""
    if output.ndim == 4:
        if getattr(model, "output_fmt", "NCHW") == "NHWC":  # timm's Swin and its kin
            return output.flatten(1, 2), Layout(tuple(output.shape[1:3]))
        return output.flatten(2).mT, Layout(tuple(output.shape[2:]))
    layout = find_layout(model, output.shape[1], image_size) if output.ndim == 3 else None
    if layout is None:
        raise UserError(
            f"a block returned {tuple(output.shape)}: neither (B, D, height, width) nor (B, N, D) tokens of a grid."
        )
    return output, layout


@dataclass
class Captured:
    """One batch, seen from inside. Blocks and attention are in the order in which they ran."""

    blocks: dict[str, Tensor] = field(default_factory=dict)  # (B, N, D), or (B, D, height, width) of a CNN
    attention: dict[str, Tensor] = field(default_factory=dict)  # (B, H, queries, keys)
    logits: Tensor | None = None


def capture_batch(model: nn.Module, images: Tensor, *, gradients: bool = False) -> Captured:
    """Everything of one small batch, as copies. With `gradients` they stay in the graph, to be differentiated through."""
    seen = Captured()
    keep = (lambda x: x) if gradients else torch.clone
    with (
        evaluating(model),
        torch.set_grad_enabled(gradients),
        watch(model, find_blocks(model), lambda name, x: seen.blocks.update({name: keep(x)})),
        watch_attention(model, lambda name, x: seen.attention.update({name: keep(x)})),
    ):
        seen.logits = first_tensor(model(images))
    return seen


@dataclass
class AttentionLayout:
    """Where the queries and keys of one attention module lie. Windows lie image after image along the batch axis."""

    queries: Layout
    keys: Layout
    windows: int = 1


def find_attention_layout(model: nn.Module, name: str, weights: Tensor, images: Tensor) -> AttentionLayout | None:
    """The layout of captured weights; None where queries and keys are not positions of an image."""
    if weights.ndim != 4 or len(weights) % len(images):
        return None
    size = tuple(images.shape[-2:])
    windows = len(weights) // len(images)
    module = model.get_submodule(name.partition(":")[0])
    Q, K = weights.shape[-2:]
    if windows > 1:
        window = getattr(module, "window_size", None)
        grid = tuple(window) if isinstance(window, list | tuple) and prod(window) == Q else _grid_of(Q, (1, 1))
        return AttentionLayout(Layout(grid), Layout(grid), windows) if grid and Q == K else None
    extra = module.num_heads if hasattr(module, "head_tokens") else 0
    queries, keys = (find_layout(model, tokens - extra, size) for tokens in (Q, K))
    if queries is None or keys is None or queries.prefix_tokens != keys.prefix_tokens:
        return None
    queries.extra = keys.extra = extra
    return AttentionLayout(queries, keys)


def what_works(model: nn.Module, images: Tensor) -> dict[str, str | None]:
    """Which parts of the diagnosis can be done on a model: None where one can, else the reason why not."""
    seen = capture_batch(model, images)
    reasons: dict[str, str | None] = dict.fromkeys(
        ("blocks", "tokens", "attention", "distance", "rollout", "head tokens")
    )
    if not seen.blocks:
        reasons["blocks"] = reasons["tokens"] = "no sequence of blocks was found; cka_matrix(layers='all') still works"
    else:
        try:
            for output in seen.blocks.values():
                as_tokens(model, output, tuple(images.shape[-2:]))
        except UserError as error:
            reasons["tokens"] = str(error)
    if not seen.attention:
        return reasons | dict.fromkeys(("attention", "distance", "rollout", "head tokens"), why_no_attention(model))
    layouts = {name: find_attention_layout(model, name, x, images) for name, x in seen.attention.items()}
    if not any(layouts.values()):
        reasons["distance"] = f"weights of shape {tuple(next(iter(seen.attention.values())).shape)} are not over a grid"
    chain = rollout_chain({name: x for name, x in seen.attention.items() if layouts[name]}, len(images))
    if 2 * len(chain) <= len(layouts):
        reasons["rollout"] = (
            f"only {len(chain)} of {len(layouts)} layers share one set of tokens (windows, pooled keys, a changing grid)"
        )
    if not any(layout and layout.queries.extra for layout in layouts.values()):
        reasons["head tokens"] = "only DHVT has them"
    return reasons


def why_no_attention(model: nn.Module) -> str:
    """The reason why a model of which no weights were seen has shown none."""
    has = any("attention" in type(module).__name__.lower() for module in model.modules())
    return "its attention does not pass through an `attn_drop`" if has else "the model has no attention"


def rollout_chain(attention: dict[str, Tensor], batch: int) -> dict[str, Tensor]:
    """The longest run of layers whose weights are square, over whole images and of one size: those that can be multiplied."""
    chains: list[dict[str, Tensor]] = [{}]
    for name, x in attention.items():
        if x.ndim != 4 or len(x) != batch or x.shape[-1] != x.shape[-2]:
            chains.append({})
            continue
        last = next(reversed(chains[-1].values()), x)
        if last.shape[-1] != x.shape[-1]:
            chains.append({})
        chains[-1][name] = x
    return max(chains, key=len)


def layer_gradient_norms(model: nn.Module) -> dict[str, float]:
    """Norm of the gradient of every layer that has one, in order of definition: each block, and what lies around the blocks.

    Where there are shards, every process has to ask.
    """
    blocks = find_blocks(model)
    squares: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            layer = next((block for block in blocks if name.startswith(f"{block}.")), name.partition(".")[0])
            squares[layer] = squares.get(layer, 0.0) + whole(parameter.grad.norm()).item() ** 2
    return {layer: float(f"{square**0.5:.5g}") for layer, square in squares.items()}
