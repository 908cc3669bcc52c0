"""What evaluations of every kind of labels share: a file in their run, and JSON there and back."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from vitling.validation.documents import damaged, parse_json, read_document

Own = TypeVar("Own", bound="KeptEvaluation")


class KeptEvaluation:
    """The numbers of a split, as a dataclass that says their schema."""

    schema: ClassVar[Any]
    kept = True  # in the run; not a field, because what is read from there was

    split: str
    weights: str
    img_size: tuple[int, int] | None
    tta: bool
    own: bool
    data: str

    @property
    def file_name(self) -> str:
        """Where in the run it is written; other data never replaces what the run reached on its own."""
        other = "" if self.own else "-" + re.sub(r"[^\w.-]+", "-", self.data)
        last = "" if self.weights == "best" else f"-{self.weights}"
        size = "-{}x{}".format(*self.img_size) if self.img_size else ""
        views = "-tta" if self.tta else ""
        return f"evaluation-{self.split}{last}{size}{views}{other}.json"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)  # type: ignore[call-overload]  # they are dataclasses

    @classmethod
    def from_json(cls: type[Own], text: str, source: str = "the evaluation") -> Own:
        """Read it back; `source` is the file that it is from, which anything may have happened to."""
        values = cls.translate(parse_json(text, cls.schema, source))
        known: dict[str, Any] = {f.name: values[f.name] for f in fields(cls) if f.name in values}  # type: ignore[arg-type]
        known |= {name: tuple(value) for name, value in known.items() if name.endswith("_interval") and value}
        evaluation = cls(**known)
        if not evaluation.adds_up():
            raise damaged(source, "its numbers contradict each other")
        return evaluation

    @classmethod
    def read(cls: type[Own], path: Path) -> Own:
        return cls.from_json(read_document(path), str(path))

    @classmethod
    def translate(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What earlier versions wrote, in today's names."""
        return values

    def adds_up(self) -> bool:
        """Whether its numbers agree with each other."""
        raise NotImplementedError
