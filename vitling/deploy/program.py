"""Programs of torch.export: one file, .pt2, that torch runs without vitling and without the code of the model."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vitling.deploy.target import Deployed, Export, Target, example_input, quiet
from vitling.files import new, write_bytes
from vitling.runs.metadata import ModelMetadata

METADATA = "vitling.json"  # among the program's extra files


class ProgramFile(Target):
    """Input and outputs as of ONNX; `torch.export.load(path).module()` gives (logits, probabilities)."""

    default_name = "model.pt2"
    suffix = ".pt2"
    takes_raw_input = True
    next_step = "torch.export.load('{path}').module()(images), in Python"

    @contextmanager
    def writing(self, export: Export) -> Iterator[Callable[[Tensor], Tensor]]:
        export.callback.on_progress("translating to a program", 0, None)
        content = to_program(Deployed(export.model, export.metadata).eval(), export.metadata)
        with quiet():
            program = torch.export.load(io.BytesIO(content)).module()  # our own: no stranger's is opened

        def logits(pixels: Tensor) -> Tensor:
            seen = export.metadata.preprocessing
            return program(pixels if export.metadata.input == "pixels" else seen.normalize(pixels))[0]

        yield logits
        write_bytes(export.out, content, ours=new)


def to_program(model: Deployed, metadata: ModelMetadata) -> bytes:
    """The content of a .pt2 file."""
    with quiet(), torch.no_grad():
        shapes = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(model, (example_input(metadata),), dynamic_shapes=shapes)
        for module in program.graph_module.modules():
            for node in getattr(module, "graph", torch.fx.Graph()).nodes:
                node.meta.pop("stack_trace", None)  # paths of this machine
        stream = io.BytesIO()
        torch.export.save(program, stream, extra_files={METADATA: json.dumps(metadata.to_dict(), ensure_ascii=False)})
    return stream.getvalue()
