"""What a diagnosis says: findings, and the numbers of a network's inside that some of them rest on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vitling.diagnose.result import Diagnosis


@dataclass
class Indicator:
    """One number of the inside of a network, and on which side it is bad where references.json can tell that."""

    name: str
    value: Callable[[Diagnosis], float | None]
    sentence: str  # what it says, with {value}
    bad: str  # "high" or "low"
    blocks: int = 1  # fewer than these, and the number says nothing


@dataclass
class Finding:
    """Something that a diagnosis says of a run, with what it rests on and what to do about it."""

    name: str  # the cause, in the same words every time
    state: str  # problem | watch | ok
    value: float
    sentence: str  # in plain words
    reference: str = ""  # the numbers behind it, and why the limit lies where it does
    advice: str = ""  # in plain words; empty where there is nothing to do
    command: str = ""  # the same, to be pasted
    question: str = "training"  # training | data | inside
    confidence: float = 1.0  # from 0 to 1
    gain: float | None = (
        None  # what the advice is expected to bring, in points of accuracy; None where it cannot be said
    )
    details: dict = field(default_factory=dict)  # further numbers, for the JSON and the fold

    @property
    def cause(self) -> str:
        return self.name


def first_quarter(layers: list) -> list:
    """The early layers: a quarter of them, at least one."""
    return layers[: max(1, round(len(layers) / 4))]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of those that were measured."""
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
