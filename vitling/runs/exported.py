"""Exported files as models: pixels in, logits out, by NumPy. Free of torch, which takes longer to load than such a file to predict."""

import os
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from vitling.errors import UserError
from vitling.files import check_path
from vitling.runs.metadata import ModelMetadata

# How an exported file ends -> the class that opens it.
CLASSES = {
    ".onnx": ("vitling.runs.onnx_model", "OnnxModel"),
    ".xml": ("vitling.runs.openvino_model", "OpenVinoModel"),
}
PROGRAM = ".pt2"
INSIDE = "model.xml"  # of a folder that OpenVINO reads


class ExportedModel(ABC):
    """An exported file, opened by the runtime that it was made for. May be called by several threads at once."""

    kind: str  # in words
    metadata: ModelMetadata

    @abstractmethod
    def run(self, image: np.ndarray) -> np.ndarray:
        """Logits of what the file takes."""

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Logits of uint8 pixels (B, C, H, W), whichever input the file takes."""
        if self.metadata.input == "normalized":
            pixels = self.metadata.preprocessing.normalize_array(pixels)
        return self.run(pixels)

    def _check_shapes(self, name: str, shapes: dict[str, list]) -> None:
        """Refuse a file whose inputs and outputs, without the batch, are not those of its metadata."""
        seen, classes = self.metadata.preprocessing, len(self.metadata.class_names)
        if shapes.get("image") != [seen.channels, *seen.size] or shapes.get("logits") != [classes]:
            raise UserError(
                f"{name} does not match its metadata: its inputs and outputs are {shapes}; export it again."
            )


def find_exported(source: Any) -> Path | None:
    """The exported file that a source names, if it names one that lies here. Programs of torch.export are refused."""
    if not isinstance(source, str | os.PathLike):
        return None
    path = check_path(os.fspath(source))
    if path.is_dir():
        is_other = any((path / name).exists() for name in ("run.json", "config.json"))
        return path / INSIDE if (path / INSIDE).is_file() and not is_other else None
    if path.suffix == PROGRAM and path.is_file():
        raise UserError(
            f"{path} is a program of torch.export, which torch opens by unpickling it, and vitling unpickles nothing; "
            "open it with torch.export.load if you made it, or give the run or an .onnx file."
        )
    return path if path.suffix in CLASSES and path.is_file() else None


def open_exported(path: Path) -> ExportedModel:
    """Open an exported file by the way it ends."""
    module, name = CLASSES[path.suffix]
    return getattr(import_module(module), name)(path)


def import_extra(package: str, what: str = "ONNX", extra: str = "export") -> ModuleType:
    """A package of the extra that a format needs."""
    try:
        return import_module(package)
    except ImportError:
        raise UserError(f'{what} needs the package {package}: pip install "vitling[{extra}]".') from None
