"""Export a run in one of many forms. Compared with the run's model before it is written."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from vitling._deprecated import renamed_attribute
from vitling.callbacks import Callback
from vitling.data.pipeline.decoding import decode
from vitling.data.pipeline.loader import generator_for
from vitling.data.pipeline.reading import Reading
from vitling.deploy import hub
from vitling.deploy.folder import HubFolder, TimmFolder
from vitling.deploy.model_card import unfinished
from vitling.deploy.onnx import Int8OnnxFile, OnnxFile
from vitling.deploy.openvino import OpenVinoFolder
from vitling.deploy.program import ProgramFile
from vitling.deploy.target import Export, Target
from vitling.errors import UserError, did_you_mean
from vitling.evaluation.predictions import validation_images
from vitling.evaluation.temperature import Calibration, calibrate
from vitling.evaluation.thresholds import find_thresholds
from vitling.runs.metadata import ModelMetadata
from vitling.runs.run import Run, check_weights, load_run

TARGETS: dict[str, Target] = {
    "onnx": OnnxFile(),
    "onnx-int8": Int8OnnxFile(),
    "openvino": OpenVinoFolder(),
    "pt2": ProgramFile(),
    "timm": TimmFolder(),
    "hf": HubFolder(),
}
CHECKED_IMAGES = 64
MEASURED_IMAGES = 2048  # of a model that rounds, whose accuracy is measured
LOST = 0.02  # of the images, or one: so many fewer may it get right
AGREEING = 0.9  # of images without labels: so many have to keep their class
TOLERANCE = 1e-4  # of the largest logit, or of 1 where that is larger: what float32 in another order can differ by


@dataclass
class Exported:
    """What was written, and how near it is to the run's own model."""

    path: Path
    to: str
    difference: float  # the largest one between two logits
    allowed: float
    checked_on: str
    metadata: ModelMetadata
    notes: list[str] = field(default_factory=list)
    url: str | None = None  # on the hub
    # Of a model that rounds: the share of these images that it and the run get right, and that both call the same.
    accuracy: float | None = None  # None where the labels are not known
    run_accuracy: float | None = None
    agreement: float | None = None

    passport = renamed_attribute("passport", "metadata")

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "path": str(self.path)}, indent=1, ensure_ascii=False)


def export(
    run: Run | str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    which: str = "best",
    raw_input: bool = False,
    push: str | None = None,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Exported:
    """Write a run's model as ONNX ("onnx", "onnx-int8"), for OpenVINO ("openvino"), as a program of torch.export ("pt2"), or as a
    folder with a model card ("timm", "hf"); by default into the run.

    The result is loaded again and compared with the model on validation images of the run; one that differs is not written, and
    nothing that exists is overwritten. Int8 rounds: its accuracy is measured beside the run's, and one that loses more than two
    points is not written. Files take uint8 pixels; with `raw_input`, floats that the caller has normalised. `push` uploads an "hf"
    folder to OWNER/NAME. A run that did not end can be exported as soon as it has weights; the notes and the card say so.
    """
    if to not in TARGETS:
        raise UserError(f"cannot export to '{to}'. {did_you_mean(to, TARGETS)}")
    target = TARGETS[to]
    check_weights(which)
    if raw_input and not target.takes_raw_input:
        raise UserError(
            f"raw_input is about ONNX, OpenVINO and pt2; a folder for {to} holds the model alone. Leave it out."
        )
    if push:
        if not target.can_be_pushed:
            raise UserError(f"push uploads a folder with a card for the hub; export to hf, not {to}.")
        hub.check_push(push)
    target.check_packages()
    run = run if isinstance(run, Run) else load_run(run)
    if not target.exact:
        run.require_classes(f"to={to} rounds, and what that costs is measured on")
    out = Path(out) if out else run.path / target.default_name
    target.check_out(out)
    model = run.load_model(which)
    # A run without labels is refused here, before anything is fitted and kept in it.
    metadata = ModelMetadata.of_run(run, input="normalized" if raw_input else "pixels")
    notes = [] if run.finished else [f"the training is not finished: {unfinished(run)}"]
    pixels, labels, checked_on = _images_to_check(
        run, reading or Reading(), notes, CHECKED_IMAGES if target.exact else MEASURED_IMAGES
    )
    calibration = _calibration(run, which, reading, notes, callback)
    temperature = calibration.temperature if calibration else None
    thresholds = _thresholds(run, which, reading, notes, callback) if run.kind == "several" else None
    metadata = replace(metadata, temperature=temperature, thresholds=thresholds)
    with torch.inference_mode():
        seen = metadata.preprocessing
        expected = torch.cat([seen.score(model, seen.normalize(part)) for part in pixels.split(CHECKED_IMAGES)])
    result = Exported(out, to, 0.0, TOLERANCE * max(1.0, expected.abs().max().item()), checked_on, metadata, notes)
    exported = Export(run, which, model, metadata, calibration, out, push, callback or Callback())
    with target.writing(exported) as logits:
        found = _predict(logits, pixels)
        result.difference = (found - expected).abs().max().item()
        if target.exact:
            _compare_logits(result)
        else:
            _compare_classes(result, found, expected, labels)
    run.publish()
    if push:
        result.url = hub.push_folder(out, push)
    return result


def _images_to_check(run: Run, reading: Reading, notes: list[str], count: int) -> tuple[Tensor, Tensor | None, str]:
    """Some of the run's validation images and their labels; where its data is gone, noise, and a note that says so."""
    seen = run.preprocessing()
    try:
        images = validation_images(run, reading)
        images = images.subset(images.sample(count))
        return decode(images, **seen.fit_args()), torch.as_tensor(images.labels), f"{len(images)} validation images"
    except UserError as error:
        notes.append(f"compared on noise instead of images, because the run's data cannot be read: {error}")
    noise = torch.randint(0, 256, (CHECKED_IMAGES, seen.channels, *seen.size), generator=generator_for("export"))
    return noise.to(torch.uint8), None, f"{CHECKED_IMAGES} images of noise"


def _calibration(
    run: Run, which: str, reading: Reading | None, notes: list[str], callback: Callback | None
) -> Calibration | None:
    try:
        return calibrate(run, which, reading=reading, callback=callback)
    except UserError as error:
        notes.append(f"exported without a temperature, so probabilities are not calibrated: {error}")
        return None


def _thresholds(
    run: Run, which: str, reading: Reading | None, notes: list[str], callback: Callback | None
) -> list[float] | None:
    try:
        found = find_thresholds(run, which, reading=reading, callback=callback)
    except UserError as error:
        notes.append(f"exported without thresholds, so that every one is one half: {error}")
        return None
    notes += [found.reason] if found.reason else []
    return found.values


def _predict(exported: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """Logits of the translated model, over batches of one, of two and of more."""
    first = min(len(pixels), 3)
    parts = [*pixels[:first].split([1, first - 1] if first > 1 else [1]), *pixels[first:].split(CHECKED_IMAGES)]
    return torch.cat([exported(part) for part in parts if len(part)])


def _compare_logits(result: Exported) -> None:
    """Refuse a model that is another."""
    if not result.difference <= result.allowed:  # NaN is refused too
        raise UserError(
            f"nothing was written: the exported model's logits differ from the run's by {result.difference:.3g} on "
            f"{result.checked_on}, where {result.allowed:.3g} is allowed. Please report it with the recipe."
        )


def _compare_classes(result: Exported, found: Tensor, expected: Tensor, labels: Tensor | None) -> None:
    """Fill in the accuracies; refuse a model that rounding has made much worse than the run's."""
    images, ours, runs = len(found), found.argmax(dim=1), expected.argmax(dim=1)
    result.agreement = (ours == runs).float().mean().item()
    if labels is None:
        if result.agreement < AGREEING or not found.isfinite().all():
            raise UserError(
                f"nothing was written: {result.to} gives the run's class for {100 * result.agreement:.1f} % of "
                f"{result.checked_on}, where {100 * AGREEING:.0f} % are needed. Export to onnx, which does not round."
            )
        return
    right, run_right = (ours == labels).sum().item(), (runs == labels).sum().item()
    result.accuracy, result.run_accuracy = right / images, run_right / images
    if run_right - right > max(1, LOST * images) or not found.isfinite().all():
        raise UserError(
            f"nothing was written: {result.to} is correct on {100 * result.accuracy:.1f} % of {result.checked_on}, the run on "
            f"{100 * result.run_accuracy:.1f} %; at most {100 * LOST:.0f} points fewer are allowed. Export to onnx, which does not round."
        )
