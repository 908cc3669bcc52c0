"""ONNX: a model as one file that needs neither torch nor vitling, and the way back from such a file to predictions.

Input `image` is (batch, C, H, W) of any batch size. Outputs are `logits` and, after the temperature and a softmax,
`probabilities`. What the file is stands in its metadata, as a `ModelMetadata`.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from vitling.deploy.target import Export, Target
from vitling.errors import UserError
from vitling.files import new, write_bytes
from vitling.runs.metadata import ModelMetadata
from vitling.runs.onnx_model import OnnxModel, import_extra


class Deployed(nn.Module):
    """A model with what surrounds it in the file: normalisation before it, temperature and softmax behind it."""

    def __init__(self, model: nn.Module, metadata: ModelMetadata):
        super().__init__()
        self.model, self.metadata = model, metadata

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        if self.metadata.input == "pixels":
            image = self.metadata.preprocessing.normalize(image)
        logits = self.model(image)
        return logits, (logits / (self.metadata.temperature or 1.0)).softmax(dim=1)


class OnnxFile(Target):
    """One file, with the preprocessing inside unless the caller normalises."""

    default_name = "model.onnx"
    takes_raw_input = True

    def check_packages(self) -> None:
        for package in ("onnxruntime", "onnx", "onnxscript"):
            import_extra(package)

    def check_out(self, out: Path) -> None:
        if out.suffix != ".onnx":
            better = out / self.default_name if out.is_dir() else f"{out}.onnx"
            raise UserError(f"out={out} must end in .onnx, such as {better}.")
        super().check_out(out)

    @contextlib.contextmanager
    def writing(self, export: Export) -> Iterator[Callable[[Tensor], Tensor]]:
        export.callback.on_progress("translating to ONNX", 0, None)  # torch does not say how far it is
        content = to_onnx(export.model, export.metadata)
        yield OnnxModel(content)
        write_bytes(export.out, content, ours=new)


def to_onnx(model: nn.Module, metadata: ModelMetadata) -> bytes:
    """The content of an ONNX file."""
    seen = metadata.preprocessing
    kind = torch.uint8 if metadata.input == "pixels" else torch.float32
    example = torch.zeros(2, seen.channels, *seen.size, dtype=kind)  # two, because one would be taken for a constant
    with _quiet():
        program = torch.onnx.export(
            Deployed(model, metadata).eval(),
            (example,),
            input_names=["image"],
            output_names=["logits", "probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    content = program.model_proto
    for entry in (*content.graph.node, *content.graph.value_info, *content.graph.input, *content.graph.output):
        entry.ClearField("metadata_props")  # stack traces: half the file, and paths of this machine
    for name, text in metadata.to_strings().items():
        content.metadata_props.add(key=name, value=text)
    return content.SerializeToString()


@contextlib.contextmanager
def _quiet():
    """torch's exporter logs much that a user cannot act on; what matters is checked afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
