"""A saved model's metadata, so that it can predict without the run it came from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import vitling
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.sources.images import FITS, INTERPOLATIONS
from vitling.errors import UserError

if TYPE_CHECKING:  # a run saves its models with this
    from vitling.runs.run import Run

INPUTS = ("pixels", "normalized")


@dataclass(frozen=True)
class ModelMetadata:
    """Class names, preprocessing and temperature; in `config.json` of a folder, in the metadata of an ONNX file."""

    architecture: str
    class_names: list[str]
    preprocessing: Preprocessing
    temperature: float | None  # None: the model was never calibrated
    data: str = ""  # what it was trained on
    input: str = "pixels"  # an ONNX file takes uint8 pixels, or "normalized" float32
    vitling: str = vitling.__version__

    @classmethod
    def of_run(cls, run: "Run", temperature: float | None = None, *, input: str = "pixels") -> "ModelMetadata":
        data = run.info.get("data", {}).get("name", "")
        return cls(run.recipe.model, run.class_names, run.preprocessing(), temperature, data, input)

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, entries: Mapping, source: str) -> "ModelMetadata":
        """Read it back; a file may come from anywhere, so what is missing or invalid is named."""
        needed = [field.name for field in fields(cls)]
        if missing := [name for name in needed if name not in entries]:
            raise UserError(
                f"{source} was not exported by vitling: its metadata lacks {', '.join(missing)}; "
                "make one with `vitling export RUN`."
            )
        try:
            preprocessing = Preprocessing.from_dict(entries["preprocessing"])
            metadata = cls(**{**{name: entries[name] for name in needed}, "preprocessing": preprocessing})
            sensible = metadata._is_sensible()
        except (TypeError, AttributeError, ValueError):
            sensible = False
        if not sensible:
            raise UserError(f"the metadata of {source} (input, classes) is invalid; export it again.")
        return metadata

    def _is_sensible(self) -> bool:
        seen, names = self.preprocessing, self.class_names
        return (
            isinstance(names, list)
            and len(names) > 0
            and all(isinstance(name, str) for name in names)
            and self.input in INPUTS
            and seen.fit in FITS
            and seen.interpolation in INTERPOLATIONS
            and (seen.test_crop is None or 0 < seen.test_crop <= 1)
            and len(seen.size) == 2
            and min(*seen.size, seen.channels, seen.max_value) > 0
            and len(seen.mean) == len(seen.std) == seen.channels
            and min(seen.std) > 0
            and (self.temperature is None or 0 < self.temperature < float("inf"))
        )

    def to_strings(self) -> dict[str, str]:
        """Text for text, as ONNX wants it: names as they are, everything else as JSON."""
        return {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in self.to_dict().items()
        }

    @classmethod
    def from_strings(cls, strings: Mapping[str, str], source: str) -> "ModelMetadata":
        entries = dict(strings)
        for name in ("class_names", "preprocessing", "temperature"):
            try:
                entries[name] = json.loads(strings[name])
            except KeyError:
                continue  # `from_dict` says what is missing
            except json.JSONDecodeError:
                entries.pop(name)
        return cls.from_dict(entries, source)
