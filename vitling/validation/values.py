"""What a value from outside may be: types with ranges, written as annotations, and the one check of a value against them.

Recipes, arguments of methods, settings and the files of a run all declare their values this way. NaN and infinity are never allowed.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from vitling.errors import UserError, did_you_mean, one_line

DEEPEST = 20  # lists and groups inside each other
LONGEST_TEXT = 4096  # characters: as long as a path may be
SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`; `above` and `below` leave the bound itself out."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, number: float) -> bool:
        return (
            (isinstance(number, int) or math.isfinite(number))
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        words = {"at least": self.low, "more than": self.above, "at most": self.high, "less than": self.below}
        return " and ".join(f"{word} {bound:,.15g}" for word, bound in words.items() if bound is not None)


class Ascending:
    """Of two numbers, the second is not the smaller one."""

    def __contains__(self, pair: tuple[float, float]) -> bool:
        return pair[0] <= pair[1]

    def __str__(self) -> str:
        return "a range (low, high)"


@dataclass(frozen=True)
class Longest:
    """Text of at most so many characters."""

    length: int

    def __contains__(self, text: str) -> bool:
        return len(text) <= self.length

    def __str__(self) -> str:
        return f"text of at most {self.length} characters"


Share = Annotated[float, Range(0, 1)]
PartOf = Annotated[float, Range(above=0, high=1)]  # a share that is not nothing
Momentum = Annotated[float, Range(0, below=1)]
Weight = Annotated[float, Range(0, 1e6)]  # of a loss: 0 turns it off
Rate = Annotated[float, Range(0, 1000)]
Temperature = Annotated[float, Range(above=0, high=1000)]
Count = Annotated[int, Range(1, 10_000_000)]
CountOrNone = Annotated[int, Range(0, 10_000_000)]  # 0 turns it off
Side = Annotated[int, Range(1, 16_384)]  # of an image, in pixels
Channels = Annotated[int, Range(1, 4096)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Threads = Annotated[int, Range(1, 1024)]
Processes = Annotated[int, Range(0, 512)]
AspectRatio = Annotated[float, Range(0.01, 100)]
Seconds = Annotated[float, Range(0, 1e9)]  # up to thirty years


def check(value: Any, kind: Any, key: str) -> None:
    """Refuse a value that is not of the annotated type, or out of its range; `key` is what the message calls it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        check(value, arguments[0], key)
        for allowed in arguments[1:]:
            if value not in allowed:
                raise UserError(f"{key}={show(value)} is out of range; it must be {allowed}.")
    elif kind is Any:
        check_plain(value, key)
    elif origin in (types.UnionType, typing.Union):
        _check_union(value, arguments, key)
    elif origin is Literal:
        if not any(value is option or (type(value) is type(option) and value == option) for option in arguments):
            near = did_you_mean(value, arguments, show=0) if isinstance(value, str) else ""
            raise UserError(
                f"{key}={show(value)} is not one of {', '.join(map(str, filter(None, arguments)))}. {near}".rstrip()
            )
    elif origin is dict:
        _require(isinstance(value, dict), value, key, "a group of keys")
        for name, item in value.items():
            check_text(name, f"a key of {key}")
            check(item, arguments[1], f"{key}.{name}")
    elif origin in (list, tuple):
        _check_list(value, origin, arguments, key)
    elif typing.is_typeddict(kind):
        _check_group(value, kind, key)
    else:
        _check_scalar(value, kind, key)


def check_fields(instance: Any, prefix: str = "") -> None:
    """Check every field of a dataclass against its annotation; those that are dataclasses check themselves."""
    of: Any = type(instance)
    kinds = _annotations(of)
    for field in dataclasses.fields(instance):
        if not dataclasses.is_dataclass(kinds[field.name]):
            check(getattr(instance, field.name), kinds[field.name], prefix + field.name)


@cache
def _annotations(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def check_plain(value: Any, key: str, depth: int = 0) -> None:
    """Refuse what is not plain data: text, finite numbers, true and false, none, and lists and groups of these."""
    if depth > DEEPEST:
        raise UserError(f"{key.split('.')[0]} is nested deeper than {DEEPEST} levels; write it flat.")
    if isinstance(value, dict):
        for name, item in value.items():
            check_text(name, f"a key of {key}")
            check_plain(item, f"{key}.{name}", depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            check_plain(item, key, depth + 1)
    elif isinstance(value, str):
        check_text(value, key)
    elif isinstance(value, float):
        _check_scalar(value, float, key)
    else:
        _require(value is None or isinstance(value, bool | int), value, key, "a number, text, true or false")


def check_text(value: Any, key: str) -> None:
    """Refuse what is not text that a file or a path could hold."""
    _require(isinstance(value, str), value, key, "text")
    if "\0" in value or any("\ud800" <= letter <= "\udc7f" or "\udd00" <= letter <= "\udfff" for letter in value):
        raise UserError(f"{key}={show(value)} holds characters that no name may have; leave them out.")


def show(value: Any) -> str:
    """A value in a message: one line, not endless."""
    if isinstance(value, int) and abs(value) > 10**SHOWN:
        return f"an integer of {value.bit_length()} bits"  # writing it out may take forever
    text = one_line(value if isinstance(value, str) else repr(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _check_union(value: Any, options: tuple, key: str) -> None:
    if value is None and type(None) in options:
        return None
    failures = []
    for option in options:
        if option is not type(None):
            try:
                return check(value, option, key)
            except UserError as error:
                failures.append(error)
    raise failures[0]


def _check_list(value: Any, origin: type, arguments: tuple, key: str) -> None:
    _require(isinstance(value, list | tuple), value, key, "a list")
    if origin is tuple and arguments[1:] != (...,):
        _require(len(value) == len(arguments), value, key, f"{len(arguments)} values")
        kinds: Iterable[Any] = arguments
    else:
        kinds = arguments[:1] * len(value)
    for item, kind in zip(value, kinds, strict=True):
        check(item, kind, key)


def _check_group(value: Any, kind: Any, key: str) -> None:
    """A group of known keys; what others wrote beside them is left alone."""
    _require(isinstance(value, dict), value, key, "a group of keys")
    prefix = f"{key}." if key else ""
    known = _annotations(kind)
    for name in kind.__required_keys__:
        if name not in value:
            raise UserError(f"{prefix}{name} is missing.")
    for name, item in value.items():
        if name in known:
            check(item, known[name], f"{prefix}{name}")


def _check_scalar(value: Any, kind: Any, key: str) -> None:
    if kind is str:
        check_text(value, key)
    elif kind is bool:
        _require(isinstance(value, bool), value, key, "true or false")
    elif kind is int:
        _require(isinstance(value, int) and not isinstance(value, bool), value, key, "an integer")
    elif kind is float:
        _require(isinstance(value, int | float) and not isinstance(value, bool), value, key, "a number")
        if value not in Range(-1e300, 1e300):
            raise UserError(f"{key}={show(value)} is out of range; it must be a finite number.")
    elif kind is dict or kind is list:
        _require(isinstance(value, kind), value, key, "a group of keys" if kind is dict else "a list")
        check_plain(value, key)
    else:
        _require(isinstance(value, kind), value, key, f"a {getattr(kind, '__name__', kind)}")


def _require(holds: bool, value: Any, key: str, allowed: str) -> None:
    if not holds:
        raise UserError(f"{key}={show(value)} must be {allowed}.")
