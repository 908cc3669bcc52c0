"""Every measurement of a model that needs a forward pass, in a single one: what is in MEASURES, and CKA."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitling.diagnose.cka import Comparison, layer_names, run
from vitling.diagnose.measurements import Layer, Measurements
from vitling.diagnose.measures import MEASURES
from vitling.diagnose.measures.measure import AttentionMeasure, BlockMeasure, ModelMeasure
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


class Watched:
    """A layer while it is being measured: an object of every measure of its kind."""

    def __init__(self, name: str, kind: type, keep_images: int):
        self.name = name
        self.facts: dict[str, object] = {}
        self.measures: list[Any] = [measure() for measure in MEASURES if issubclass(measure, kind)]
        for measure in self.measures:
            measure.keep_images = keep_images

    def notes(self) -> list[str]:
        return [f"{self.name}: {note}" for measure in self.measures if (note := measure.note())]

    def result(self) -> Layer:
        fields, numbers = {"name": self.name, **self.facts}, {"name": self.name, **self.facts}
        for measure in self.measures:
            found = measure.result()
            assert not found.keys() & fields.keys(), f"{type(measure).__name__} gives a field that is there already"
            fields |= found
            numbers |= measure.as_dict(found)
        return Layer(**fields, numbers=numbers)


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
    whole = Watched(type(model).__name__, ModelMeasure, probe_images)
    blocks: dict[str, Watched] = {}
    attention: dict[str, Watched] = {}
    layouts: dict[str, AttentionLayout | None] = {}
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
        if name not in blocks:
            blocks[name] = Watched(name, BlockMeasure, probe_images)
        blocks[name].facts["grid"] = layout.grid
        for one in blocks[name].measures:
            one.see_tokens(tokens[:, layout.patches], layout)

    def see_attention(name: str, weights: Tensor) -> None:
        if name not in attention:
            layouts[name] = find_attention_layout(model, name, weights, images)
            if layouts[name] is None:
                notes[f"{name}: weights of shape {tuple(weights.shape)} are not over a grid; no distance."] = None
            if weights.ndim != 4:
                return
            attention[name] = Watched(name, AttentionMeasure, probe_images)
        for one in attention[name].measures:
            one.see_weights(weights, layouts[name])

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
            truth = labels_of(batch)
            if truth is not None:
                labels.append(truth.cpu())
            for watched in (*blocks.values(), *attention.values(), whole):
                for one in watched.measures:
                    one.see_output(logits[-1], None if truth is None else labels[-1])
    if not logits:
        raise UserError("no images were given; give at least one batch.")
    for watched in (*blocks.values(), *attention.values(), whole):
        notes |= dict.fromkeys(watched.notes())
    if not attention:
        notes[f"no attention weights could be read: {why_no_attention(model)}."] = None
    return Measurements(
        images=sum(map(len, logits)),
        blocks=[watched.result() for watched in blocks.values()],
        attention=[watched.result() for watched in attention.values()],
        model=whole.result(),
        cka=comparison.result() if comparison.batches else None,
        logits=torch.cat(logits),
        labels=torch.cat(labels) if labels else None,
        notes=list(notes),
    )
