"""An exported folder for OpenVINO: model.xml with its metadata, and model.bin beside it."""

import threading
from pathlib import Path

import numpy as np

from vitling.errors import UserError, first_line
from vitling.runs.exported import ExportedModel, import_extra
from vitling.runs.metadata import ModelMetadata

SECTION = "vitling"  # of the file's runtime information, which holds the metadata


class OpenVinoModel(ExportedModel):
    """An exported folder, opened in OpenVINO on the CPU."""

    kind = "an OpenVINO file"

    def __init__(self, path: Path):
        openvino = import_extra("openvino", "OpenVINO", "openvino")
        try:
            model = openvino.Core().read_model(path)
            # As it was compared before it was written: by itself OpenVINO would take bf16 where the processor has it.
            self.compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        except Exception as error:  # OpenVINO has exceptions of its own
            raise UserError(f"{path} is not a file that OpenVINO can open: {first_line(error)}") from None
        held = _plain(model.rt_info[SECTION]) if SECTION in model.rt_info else {}
        strings = {key: str(_plain(value)) for key, value in held.items()} if isinstance(held, dict) else {}
        self.metadata = ModelMetadata.from_strings(strings, str(path))
        ports = (*model.inputs, *model.outputs)
        shapes = {port.any_name: [n.get_length() for n in list(port.partial_shape)[1:]] for port in ports}
        self._check_shapes(str(path), shapes)
        self._threads = threading.local()  # a request belongs to one thread at a time

    def run(self, image: np.ndarray) -> np.ndarray:
        if not hasattr(self._threads, "request"):
            self._threads.request = self.compiled.create_infer_request()
        return np.array(self._threads.request.infer({"image": image})["logits"])


def _plain(value: object) -> object:
    """The text that OpenVINO wraps."""
    return getattr(value, "value", value)
