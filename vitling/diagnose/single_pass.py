"""Every measurement of a model that needs a forward pass, in a single one: attention, ranks, smoothing, channels, probes, CKA."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from vitling.diagnose.attention import (
    attention_distance,
    attention_entropy,
    head_diversity,
    local_mass,
    uniform_distance,
)
from vitling.diagnose.cka import CkaMatrix, Comparison, layer_names, run
from vitling.diagnose.features import ChannelHealth, Ranks, judge_channels, ranks_of, token_similarity
from vitling.diagnose.probe import Probe, ridge_probe
from vitling.errors import UserError
from vitling.models.inspect import (
    AttentionLayout,
    as_tokens,
    evaluating,
    find_attention_layout,
    find_blocks,
    images_of,
    labels_of,
    watch,
    watch_attention,
    why_no_attention,
)
from vitling.runs.device import to_float64


@dataclass
class BlockMeasures:
    """What a block's tokens hold. Class and other prefix tokens are left out."""

    name: str
    grid: tuple[int, int]
    channels: ChannelHealth
    ranks: Ranks
    token_similarity: float | None  # None where there is one token
    probe: Probe | None = None  # on the mean token; None without labels or with values that are not finite


@dataclass
class AttentionMeasures:
    """What the heads of one attention module look at. None where queries and keys are not positions of the image."""

    name: str
    entropy: Tensor  # (H,), nats
    diversity: float  # of the heads, 0 if all do the same
    distance: Tensor | None = None  # (H,), patches
    distance_of_image: Tensor | None = None  # (H,), as a share of the image's (or window's) side
    uniform_distance_of_image: float | None = None  # of uniform attention
    local_mass: Tensor | None = None  # (H,), share of the attention within one patch
    windows: int = 1  # distances in windows are within a window


@dataclass
class Measurements:
    """One model on one set of images."""

    images: int
    blocks: list[BlockMeasures]
    attention: list[AttentionMeasures]
    cka: CkaMatrix | None
    logits: Tensor  # (images, classes)
    labels: Tensor | None
    notes: list[str] = field(default_factory=list)  # what could not be measured, and why


class BlockReducer:
    """Sums over the tokens of one block; their number does not grow with that of the images, but for the probe's features."""

    def __init__(self, name: str, probe_images: int):
        self.name, self.probe_images = name, probe_images
        self.count = self.images = 0
        self.pooled: list[Tensor] = []

    def add(self, tokens: Tensor, grid: tuple[int, int]) -> None:
        self.grid = grid
        x = tokens.flatten(0, 1).float()
        if not self.count:
            # Any shift leaves a covariance as it is, and one close to the mean keeps its digits.
            self.shift = x.mean(dim=0)
            self.sum = torch.zeros_like(to_float64(self.shift))
            self.products = self.sum.new_zeros(len(self.sum), len(self.sum))
            self.largest = torch.zeros_like(self.shift)
            self.similarity = 0.0
        B = len(tokens)
        self.largest = torch.maximum(self.largest, torch.maximum(x.amax(dim=0), -x.amin(dim=0)))
        x = to_float64(x - self.shift)  # in float32 the squares would hide all but the first few singular values
        self.sum += x.sum(dim=0)
        self.products += x.T @ x
        self.count += len(x)
        if tokens.shape[1] > 1:
            self.similarity += B * token_similarity(tokens).item()
        self.images += B
        if self.probe_images > self.images - B:
            self.pooled.append(tokens.mean(dim=1).float().cpu()[: self.probe_images - self.images + B])

    def is_finite(self) -> bool:
        """Whether no token was NaN or infinite: a network that diverged still has other numbers to show."""
        return bool(self.largest.isfinite().all())

    def result(self) -> BlockMeasures:
        covariance = self.products / self.count - torch.outer(self.sum, self.sum) / self.count**2
        if self.is_finite():
            singular = torch.linalg.eigvalsh(covariance).clamp(min=0).sqrt()
        else:
            singular = covariance.new_empty(0)
        return BlockMeasures(
            name=self.name,
            grid=self.grid,
            channels=judge_channels(self.largest),
            ranks=ranks_of(singular, smallest=1e-6),  # below lies the rounding of the features
            token_similarity=self.similarity / self.images if self.grid != (1, 1) else None,
        )


class AttentionReducer:
    """Means over images of what one attention module does."""

    def __init__(self, name: str, layout: AttentionLayout | None):
        self.name, self.layout = name, layout
        self.images = 0
        self.sums: dict[str, Tensor] = {}

    def add(self, weights: Tensor, images: int) -> None:
        values = {"entropy": attention_entropy(weights), "diversity": head_diversity(weights)}
        if self.layout is not None:
            queries, keys = self.layout.queries, self.layout.keys
            where = dict(prefix_tokens=queries.prefix_tokens)
            values["distance"] = attention_distance(weights, queries.grid, key_grid=keys.grid, **where)
            if queries.grid == keys.grid:
                values["local_mass"] = local_mass(weights, queries.grid, **where)
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + images * value.cpu().double()
        self.images += images

    def result(self) -> AttentionMeasures:
        means = {name: total / self.images for name, total in self.sums.items()}
        measures = AttentionMeasures(self.name, means["entropy"], means["diversity"].item())
        if self.layout is not None:
            rows, columns = self.layout.queries.grid
            side = (rows * columns) ** 0.5
            measures.distance = means["distance"]
            measures.distance_of_image = means["distance"] / side
            measures.uniform_distance_of_image = uniform_distance((rows, columns)) / side
            measures.local_mass = means.get("local_mass")
            measures.windows = self.layout.windows
        return measures


def measure(
    model: nn.Module,
    batches: Iterable,
    *,
    other: nn.Module | None = None,
    layers: str = "blocks",
    prepare: Callable[[Tensor], Tensor] | None = None,
    prepare_other: Callable[[Tensor], Tensor] | None = None,
    probe_images: int = 4096,
) -> Measurements:
    """Measure a model on batches of images, with labels for the probes; CKA is with `other`, or else with itself.

    Each batch passes each model once. Of every image only its scores and, for the first `probe_images`, the mean token of each
    block are kept; `layers` are those of CKA ("blocks" or "all").
    """
    models = [model] if other is None or other is model else [model, other]
    prepares = [prepare, prepare_other][: len(models)]
    comparison = Comparison(same=len(models) == 1)
    blocks: dict[str, BlockReducer] = {}
    attention: dict[str, AttentionReducer] = {}
    notes: dict[str, None] = {}
    logits: list[Tensor] = []
    labels: list[Tensor] = []
    images = torch.empty(0)  # of the present batch, for the hooks

    def see_block(name: str, x: Tensor) -> None:
        try:
            tokens, layout = as_tokens(model, x, tuple(images.shape[-2:]))
        except UserError as error:
            notes[f"{name}: {error}"] = None
            return
        reducer = blocks.setdefault(name, BlockReducer(name, probe_images))
        reducer.add(tokens[:, layout.patches], layout.grid)

    def see_attention(name: str, weights: Tensor) -> None:
        if name not in attention:
            layout = find_attention_layout(model, name, weights, images)
            if layout is None:
                notes[f"{name}: weights of shape {tuple(weights.shape)} are not over a grid; no distance."] = None
            if weights.ndim != 4:
                return
            attention[name] = AttentionReducer(name, layout)
        attention[name].add(weights, len(images))

    with ExitStack() as stack:
        stack.enter_context(evaluating(*models))
        stack.enter_context(watch(model, find_blocks(model), see_block))
        stack.enter_context(watch_attention(model, see_attention))
        for side, network in enumerate(models):
            stack.enter_context(watch(network, layer_names(network, layers), partial(comparison.add, side)))
        for batch in batches:
            comparison.begin_batch(len(images_of(batch)))
            scores = []
            for network, change in zip(models, prepares, strict=True):
                images = images_of(batch) if change is None else change(images_of(batch))
                scores.append(run(network, images))
            comparison.end_batch()
            logits.append(scores[0].float().cpu())
            if (truth := labels_of(batch)) is not None:
                labels.append(truth.cpu())
    if not logits:
        raise UserError("no images were given; give at least one batch.")
    for name, reducer in blocks.items():
        if not reducer.is_finite():
            notes[f"{name}: some values are NaN or infinite; no ranks, no probe."] = None
    if not attention:
        notes[f"no attention weights could be read: {why_no_attention(model)}."] = None
    result = Measurements(
        images=sum(map(len, logits)),
        blocks=[reducer.result() for reducer in blocks.values()],
        attention=[reducer.result() for reducer in attention.values()],
        cka=comparison.result() if comparison.batches else None,
        logits=torch.cat(logits),
        labels=torch.cat(labels) if labels else None,
        notes=list(notes),
    )
    if labels:
        _probe(result, blocks)
    return result


def _probe(result: Measurements, blocks: dict[str, BlockReducer]) -> None:
    """Fit a probe to every other image and test it on the rest."""
    classes = max(result.logits.shape[1], int(result.labels.max()) + 1)
    for measures in result.blocks:
        pooled = torch.cat(blocks[measures.name].pooled)
        labels = result.labels[: len(pooled)]
        if len(pooled) > 1 and pooled.isfinite().all():
            measures.probe = ridge_probe(pooled[::2], labels[::2], pooled[1::2], labels[1::2], classes=classes)
