"""What the verdict reads: numbers of a diagnosis, and the sentences it makes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitling.diagnose.result import Diagnosis
from vitling.methods import find_remedies

LOCALITY = ", or ".join(
    ["a network with convolutions in its patches and MLPs (model=dhvt_nano)", *find_remedies("no locality")]
)


@dataclass
class Indicator:
    """One number of a diagnosis, and how to read it; judged by the ranges in references.json under its name."""

    name: str
    value: Callable[[Diagnosis], float | None]
    sentence: str  # what it says, with {value}
    bad: str  # "high" or "low"
    advice: str | Callable[[Diagnosis], str]
    # 95 %; within it, the value gets the benefit of the doubt
    interval: Callable[[Diagnosis], tuple[float, float] | None] | None = None
    of_the_data: bool = False  # depends so much on the data that it is judged on the reference data only
    tokens: bool = True  # judged against networks of the same kind only: tokens and CNN maps are not comparable


@dataclass
class Finding:
    """A sentence of the verdict."""

    name: str
    state: str  # problem | watch | ok
    value: float
    sentence: str
    reference: str  # the range, and where it comes from
    advice: str = ""  # empty where there is nothing to do


def first_quarter(layers: list) -> list:
    """The early layers: a quarter of them, at least one."""
    return layers[: max(1, round(len(layers) / 4))]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of those that were measured."""
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
