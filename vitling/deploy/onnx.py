"""ONNX: a model as one file that needs neither torch nor vitling; in float32, or with weights of int8.

Input `image` is (batch, C, H, W) of any batch size. Outputs are `logits` and, after the temperature and a softmax,
`probabilities`. What the file is stands in its metadata, as a `ModelMetadata`.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from vitling.deploy.target import Deployed, Export, Target, example_input, on_tensors, quiet
from vitling.files import new, write_bytes
from vitling.runs.exported import import_extra
from vitling.runs.metadata import ModelMetadata
from vitling.runs.onnx_model import OnnxModel


class OnnxFile(Target):
    """One file, with the preprocessing inside unless the caller normalises."""

    default_name = "model.onnx"
    suffix = ".onnx"
    takes_raw_input = True

    def check_packages(self) -> None:
        for package in ("onnxruntime", "onnx", "onnxscript"):
            import_extra(package)

    @contextmanager
    def writing(self, export: Export) -> Iterator[Callable[[Tensor], Tensor]]:
        export.callback.on_progress("translating to ONNX", 0, None)  # torch does not say how far it is
        content = self.translate(export)
        yield on_tensors(OnnxModel(content))
        write_bytes(export.out, content, ours=new)

    def translate(self, export: Export) -> bytes:
        return to_onnx(export.model, export.metadata)


class Int8OnnxFile(OnnxFile):
    """The same with the matrices of its linear layers as int8, a scale per column, and their inputs rounded as they come."""

    default_name = "model-int8.onnx"
    exact = False

    def translate(self, export: Export) -> bytes:
        return to_int8(to_onnx(export.model, export.metadata, AllViews))


class AllViews(Deployed):
    """The same with all views of all images in one batch, so that the graph has the network, and each weight, once.

    Of a network that stands in it once per view, onnxruntime's quantizer transposes the head again for each view (it takes every weight
    to be used by one node), and torch leaves the other weights as outputs of nodes, which the quantizer passes over.
    """

    def score(self, image: Tensor) -> Tensor:
        views: list[Tensor] = []

        def collect(view: Tensor) -> Tensor:
            views.append(view)
            return view

        self.metadata.preprocessing.score(collect, image)  # which asks about each view; the mean of them is not used
        if len(views) == 1:
            return self.model(image)
        return self.model(torch.cat(views)).unflatten(0, (len(views), -1)).mean(dim=0)


def to_onnx(model: nn.Module, metadata: ModelMetadata, deployed: type[Deployed] = Deployed) -> bytes:
    """The content of an ONNX file."""
    with quiet():
        program = torch.onnx.export(
            deployed(model, metadata).eval(),
            (example_input(metadata),),
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


def to_int8(content: bytes) -> bytes:
    """The content of an ONNX file with the weights of its matrix products as int8. Convolutions stay as they are."""
    # An extra, asked for before.
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # onnxruntime quantises from file to file.
    with tempfile.TemporaryDirectory(prefix="vitling-int8-") as folder, quiet():
        path = Path(folder) / "int8.onnx"
        model = onnx.load_model_from_string(content)
        del model.graph.value_info[:]  # shapes inside, which it changes, and finds out again
        quantize_dynamic(model, path, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8)
        return path.read_bytes()
