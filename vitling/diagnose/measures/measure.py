"""What a measure is: the whole interface between one measurement and the pass, the JSON, the page and the verdict."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from vitling.diagnose.indicator import Finding, Indicator
from vitling.diagnose.measurements import Layer
from vitling.diagnose.result import Diagnosis
from vitling.models.inspect import AttentionLayout, Layout
from vitling.reports import plots
from vitling.reports.page import Chart


class Measure(ABC):
    """Something measured while a model sees the images once. Derive from one of the three kinds below.

    Keep sums, not images: memory should not grow with their number beyond `keep_images`.
    """

    keep_images = 4096  # of how many images something may be kept; set by the pass
    indicators: tuple[Indicator, ...] = ()  # numbers that the verdict compares with the reference runs

    def see_output(self, logits: Tensor, labels: Tensor | None) -> None:  # noqa: B027 (few measures need it)
        """The scores (B, classes) and labels of a batch, after all of its layers."""

    @abstractmethod
    def result(self) -> dict[str, object]:
        """What was found, by field: attributes of the layer. The same fields always, None where one cannot be measured."""

    def note(self) -> str | None:
        """What could not be measured, and why."""
        return None

    @staticmethod
    def as_dict(fields: dict[str, Any]) -> dict[str, object]:
        """The result as it is written to the JSON, where numbers, lists, tensors and dataclasses of them are understood."""
        return fields

    @staticmethod
    def parts(results: list[Diagnosis]) -> list:
        """Charts and tables for the page, of one model or of two side by side."""
        return []

    @staticmethod
    def findings(d: Diagnosis) -> list[Finding]:
        """Sentences for the verdict that bring their own reference; `indicators` get theirs from the reference runs."""
        return []


class BlockMeasure(Measure):
    """Measured of the tokens of each block, by an object for each."""

    @abstractmethod
    def see_tokens(self, tokens: Tensor, layout: Layout) -> None:
        """A batch of tokens (B, N, D) on their grid; class and other prefix tokens are left out."""


class AttentionMeasure(Measure):
    """Measured of the weights of each attention module, by an object for each."""

    @abstractmethod
    def see_weights(self, weights: Tensor, layout: AttentionLayout | None) -> None:
        """A batch of weights (B * windows, H, queries, keys). Without a layout they are not over positions of the image."""


class ModelMeasure(Measure):
    """Measured of the model as a whole, from its output."""


class Mean:
    """Mean over images of a number, or of one per head, that comes batch by batch."""

    def __init__(self):
        self.total: Tensor | None = None
        self.images = 0

    def add(self, value: Tensor, images: int) -> None:
        value = images * value.cpu().double()
        self.total = value if self.total is None else self.total + value
        self.images += images

    @property
    def value(self) -> Any:
        """A tensor; None before anything came."""
        return None if self.total is None else self.total / self.images


def layer_chart(layers: dict[str, list[Layer]], value: Callable[[Layer], float | None], y: str, caption: str) -> list:
    """A chart of one number between 0 and 1 over depth, a line for each network with two layers or more."""
    series = {name: [value(layer) for layer in found] for name, found in layers.items()}
    # One layer is a number, not a curve: it stands in the table of numbers.
    series = {name: values for name, values in series.items() if sum(v is not None for v in values) > 1}
    return [Chart(plots.layer_lines(series, y=y, unit=True), caption)] if series else []


def blocks_of(results: list[Diagnosis]) -> dict[str, list[Layer]]:
    return {d.name: d.measurements.blocks for d in results}
