"""An exported ONNX file, opened in onnxruntime."""

from pathlib import Path

import numpy as np

from vitling.errors import UserError
from vitling.files import read_file
from vitling.runs.exported import ExportedModel, import_extra
from vitling.runs.metadata import ModelMetadata


class OnnxModel(ExportedModel):
    """An exported file, opened in onnxruntime."""

    kind = "an ONNX file"

    def __init__(self, source: str | Path | bytes):
        runtime = import_extra("onnxruntime")
        name = "the translated model" if isinstance(source, bytes) else str(source)
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors; they are raised as well
        try:
            content = source if isinstance(source, bytes) else read_file(source)
            self.session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except UserError:
            raise
        except Exception as error:  # onnxruntime has an exception of its own for every status
            reason = (str(error).splitlines() or [type(error).__name__])[0].rpartition(" : ")[2][:160].rstrip(".")
            raise UserError(f"{name} is not an ONNX file that onnxruntime can open ({reason}).") from None
        self.metadata = ModelMetadata.from_strings(self.session.get_modelmeta().custom_metadata_map, name)
        ports = (*self.session.get_inputs(), *self.session.get_outputs())
        self._check_shapes(name, {port.name: port.shape[1:] for port in ports})

    def run(self, image: np.ndarray) -> np.ndarray:
        return self.session.run(["logits"], {"image": image})[0]
