"""A model to predict with, wherever it comes from: a run, an exported folder, an ONNX file or the hub."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.errors import UserError
from vitling.evaluation.temperature import calibrate
from vitling.runs import hub
from vitling.runs.metadata import Passport
from vitling.runs.onnx_model import OnnxModel
from vitling.runs.run import Run, check_weights, load_run


@dataclass
class Classifier:
    """Pixels in, class probabilities out."""

    name: str
    passport: Passport
    network: nn.Module | OnnxModel
    calibrated: bool

    @property
    def class_names(self) -> list[str]:
        return self.passport.class_names

    @torch.inference_mode()
    def probabilities(self, pixels: Tensor) -> Tensor:
        """(B, classes), on the CPU, of uint8 images in the model's size."""
        temperature = self.passport.temperature if self.calibrated else 1.0
        return (self._logits(pixels) / temperature).softmax(dim=1)

    def _logits(self, pixels: Tensor) -> Tensor:
        if isinstance(self.network, OnnxModel):
            return self.network(pixels)
        device = next(self.network.parameters()).device
        return self.network(self.passport.preprocessing.normalize(pixels.to(device))).float().cpu()


def open_classifier(
    source: Run | str | Path,
    *,
    which: str = "best",
    calibrated: bool = True,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Classifier:
    """Open a run, `FILE.onnx`, an exported folder or `hf-hub:owner/name`.

    With `calibrated`, logits are divided by the model's temperature. Where there is none, the callback is told why, or a
    warning is given, and the probabilities are the model's own.
    """
    check_weights(which)
    log = callback.log if callback else warnings.warn
    if isinstance(source, Run) or (Path(source) / "run.json").exists():
        run = source if isinstance(source, Run) else load_run(source)
        name, network = run.path.name, run.load_model(which)
        temperature = _temperature(run, which, reading, callback) if calibrated else None
        passport = Passport.of_run(run, temperature)
    else:
        if which != "best":
            raise UserError(f"{source} is no run, so it has no {which} weights; leave --weights out.")
        name, network, passport = _open_exported(str(source))
        if calibrated and passport.temperature is None:
            log(f"{name} was exported without a temperature: its probabilities are not calibrated")
    if isinstance(network, nn.Module):
        network = network.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return Classifier(name, passport, network, calibrated and passport.temperature is not None)


def _temperature(run: Run, which: str, reading: Reading | None, callback: Callback | None) -> float | None:
    try:
        return calibrate(run, which, reading=reading, callback=callback).temperature
    except UserError as error:
        (callback.log if callback else warnings.warn)(
            f"probabilities are not calibrated, because the run's validation images cannot be read: {error}"
        )
        return None


def _open_exported(source: str) -> tuple[str, nn.Module | OnnxModel, Passport]:
    if source.startswith(hub.PREFIX):
        return source, *_open_folder(hub.fetch_folder(source), source)
    path = Path(source)
    if path.is_dir():
        return path.name, *_open_folder(path, source)
    if path.is_file():
        model = OnnxModel(path)
        return path.name, model, model.passport
    raise UserError(f"no model at {source}; give a run, an .onnx file, an exported folder or hf-hub:OWNER/NAME.")


def _open_folder(folder: Path, source: str) -> tuple[nn.Module, Passport]:
    import timm

    import vitling.models  # noqa: F401  (registers our families)

    if missing := [name for name in hub.FILES if not (folder / name).is_file()]:
        raise UserError(
            f"{source} is neither a run (no run.json) nor an exported folder (no {' and no '.join(missing)})."
        )
    try:
        config = json.loads((folder / "config.json").read_text())
        entries = config.get("vitling", {}) if isinstance(config, dict) else {}
    except ValueError:
        raise UserError(f"config.json of {source} is no JSON; export or fetch it again.") from None
    passport = Passport.from_dict(entries, source)
    try:
        model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except Exception as error:  # a damaged or foreign file can make the readers raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"the model in {source} cannot be loaded: {reason}") from None
    if model.num_classes != len(passport.class_names):
        raise UserError(
            f"the model in {source} has {model.num_classes} classes, but its config.json names {len(passport.class_names)}."
        )
    return model, passport
