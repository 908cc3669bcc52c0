"""OpenVINO: a folder with model.xml and model.bin, for Intel's runtime; made from the ONNX file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from vitling.deploy.onnx import OnnxFile
from vitling.deploy.target import Export, new_folder, on_tensors, quiet
from vitling.files import write_bytes
from vitling.runs.exported import INSIDE, import_extra
from vitling.runs.openvino_model import SECTION, OpenVinoModel


class OpenVinoFolder(OnnxFile):
    """Input and outputs as of ONNX; weights stay float32."""

    default_name = "openvino"
    suffix = ""

    def check_packages(self) -> None:
        super().check_packages()
        import_extra("openvino", "OpenVINO", "openvino")

    @contextmanager
    def writing(self, export: Export) -> Iterator[Callable[[Tensor], Tensor]]:
        import openvino  # an extra

        export.callback.on_progress("translating to OpenVINO", 0, None)
        with new_folder(export.out) as folder:
            translated = folder / "model.onnx"
            write_bytes(translated, self.translate(export))
            with quiet():
                model = openvino.convert_model(translated)
                for name, text in export.metadata.to_strings().items():
                    model.set_rt_info(text, [SECTION, name])
                openvino.save_model(model, folder / INSIDE, compress_to_fp16=False)
            translated.unlink()
            yield on_tensors(OpenVinoModel(folder / INSIDE))
