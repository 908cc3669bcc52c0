"""An exported ONNX file, opened in onnxruntime."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from vitling.errors import UserError
from vitling.runs.metadata import ModelMetadata


class OnnxModel:
    """An exported file, opened in onnxruntime."""

    def __init__(self, source: str | Path | bytes):
        runtime = import_extra("onnxruntime")
        name = "the translated model" if isinstance(source, bytes) else str(source)
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors; they are raised as well
        try:
            content = source if isinstance(source, bytes) else Path(source).read_bytes()
            self.session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has an exception of its own for every status
            reason = (str(error).splitlines() or [type(error).__name__])[0].rpartition(" : ")[2][:160].rstrip(".")
            raise UserError(f"{name} is not an ONNX file that onnxruntime can open ({reason}).") from None
        self.metadata = ModelMetadata.from_strings(self.session.get_modelmeta().custom_metadata_map, name)
        has = {port.name: port.shape[1:] for port in (*self.session.get_inputs(), *self.session.get_outputs())}
        seen, classes = self.metadata.preprocessing, len(self.metadata.class_names)
        if has.get("image") != [seen.channels, *seen.size] or has.get("logits") != [classes]:
            raise UserError(f"{name} does not match its metadata: its inputs and outputs are {has}; export it again.")

    def __call__(self, pixels: Tensor) -> Tensor:
        """Logits of uint8 pixels (B, C, H, W), whichever input the file takes."""
        if self.metadata.input == "normalized":
            pixels = self.metadata.preprocessing.normalize(pixels)
        return torch.from_numpy(self.session.run(["logits"], {"image": pixels.numpy()})[0])


def import_extra(package: str) -> ModuleType:
    """A package of the extra that ONNX needs."""
    try:
        return import_module(package)
    except ImportError:
        raise UserError(f'ONNX needs the package {package}: pip install "vitling[export]".') from None
