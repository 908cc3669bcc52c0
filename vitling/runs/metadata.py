"""A saved model's metadata, so that it can predict without the run it came from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import vitling
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.targets import Kind, Target, check_kind
from vitling.errors import UserError
from vitling.validation.documents import parse_json
from vitling.validation.values import Range, Share, check_fields

if TYPE_CHECKING:  # a run saves its models with this
    from vitling.runs.run import Run


@dataclass(frozen=True)
class ModelMetadata:
    """Class names, preprocessing and temperature; in `config.json` of a folder, in the metadata of an ONNX file."""

    _of_classes: ClassVar[dict[str, Any]] = {"labels": "classes", "thresholds": None}

    architecture: str
    class_names: list[str]
    preprocessing: Preprocessing
    temperature: Annotated[float, Range(above=0, high=1000)] | None  # None: the model was never calibrated
    data: str = ""  # what it was trained on
    input: Literal["pixels", "normalized"] = "pixels"  # an ONNX file takes uint8 pixels, or "normalized" float32
    vitling: str = vitling.__version__
    labels: Kind = "classes"  # what it gives for an image; of several labels, probabilities are sigmoids
    thresholds: list[Share] | None = None  # of each label: from this probability on an image has it; None: not fitted

    def __post_init__(self) -> None:
        check_kind(self.labels)
        if self.thresholds is not None and len(self.thresholds) != len(self.class_names):
            raise UserError(f"there are {len(self.thresholds)} thresholds of {len(self.class_names)} labels")

    @property
    def target(self) -> Target:
        return Target(self.labels, tuple(self.class_names))

    @classmethod
    def of_run(
        cls,
        run: "Run",
        temperature: float | None = None,
        *,
        input: Literal["pixels", "normalized"] = "pixels",
        thresholds: list[float] | None = None,
    ) -> "ModelMetadata":
        data = run.info.get("data", {}).get("name", "")
        return cls(
            run.recipe.model,
            run.class_names,
            run.preprocessing(),
            temperature,
            data,
            input,
            labels=run.kind,
            thresholds=thresholds,
        )

    def to_dict(self) -> dict:
        """All of it; what only models of other labels than classes have is left out of the others."""
        return {name: value for name, value in asdict(self).items() if value != self._of_classes.get(name, ...)}

    @classmethod
    def from_dict(cls, entries: Mapping, source: str) -> "ModelMetadata":
        """Read it back; a file may come from anywhere, so what is missing or invalid is named."""
        if not isinstance(entries, Mapping):
            raise UserError(f"the metadata of {source} (input, classes) is invalid; export it again.")
        needed = [field.name for field in fields(cls) if field.name not in cls._of_classes]
        known = {name: entries[name] for name in cls._of_classes if name in entries}
        if missing := [name for name in needed if name not in entries]:
            raise UserError(
                f"{source} was not exported by vitling: its metadata lacks {', '.join(missing)}; "
                "make one with `vitling export RUN`."
            )
        try:
            preprocessing = Preprocessing.from_dict(entries["preprocessing"])
            metadata = cls(**{**{name: entries[name] for name in needed}, **known, "preprocessing": preprocessing})
            check_fields(metadata)
        except (TypeError, AttributeError, ValueError) as error:
            raise UserError(
                f"the metadata of {source} (input, classes) is invalid: {str(error).rstrip('.')}; export it again."
            ) from None
        if not metadata.class_names or len(set(metadata.class_names)) < len(metadata.class_names):
            raise UserError(
                f"the metadata of {source} (input, classes) is invalid: no names, or equal ones; export it again."
            )
        return metadata

    def to_strings(self) -> dict[str, str]:
        """Text for text, as ONNX wants it: names as they are, everything else as JSON."""
        return {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in self.to_dict().items()
        }

    @classmethod
    def from_strings(cls, strings: Mapping[str, str], source: str) -> "ModelMetadata":
        entries = dict(strings)
        for name in ("class_names", "preprocessing", "temperature", "thresholds"):
            try:
                entries[name] = parse_json(strings[name], Any, source)
            except KeyError:
                continue  # `from_dict` says what is missing
            except UserError:
                entries.pop(name)
        return cls.from_dict(entries, source)
