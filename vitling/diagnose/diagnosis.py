"""The whole diagnosis of a model, or of two: every measurement on held-out pictures, the verdict, the files."""

import json
import warnings
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.pipeline.loader import Resident
from vitling.data.pipeline.reading import Reading
from vitling.diagnose.cka import SMALLEST_BATCH, CkaMatrix
from vitling.diagnose.health import Gap, generalisation_gap
from vitling.diagnose.match import Match, match_layers
from vitling.diagnose.sharpness import loss_sharpness
from vitling.diagnose.single_pass import Measurements, measure
from vitling.diagnose.subject import Pictures, Source, Subject, distinct_names, open_subjects
from vitling.errors import UserError
from vitling.evaluation.calibration import Reliability, reliability_curve
from vitling.evaluation.loop import evaluate_batches
from vitling.evaluation.metrics import Evaluation
from vitling.evaluation.metrics import measure as evaluate_logits
from vitling.files import replacing, write_text
from vitling.models.inspect import find_blocks, first_tensor, what_works
from vitling.runs.device import default_device

IMAGES = 512
BATCH = 64
SHARPNESS_IMAGES = 128


@dataclass
class Diagnosis:
    """Everything measured on one model."""

    subject: Subject
    pictures: Pictures
    pixels: Resident  # the pictures as this model takes them, before normalisation
    measurements: Measurements
    works: dict[str, str | None]  # parts of the diagnosis; the reason where one cannot be done
    evaluation: Evaluation | None = None  # None where labels and outputs do not name the same classes
    reliability: Reliability | None = None
    gap: Gap | None = None
    sharpness: float | None = None  # of the loss on training pictures
    match: Match | None = None  # how its layers meet those of the other model
    findings: list = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.subject.name

    @property
    def cka(self) -> CkaMatrix | None:
        return self.measurements.cka

    @property
    def has_attention(self) -> bool:
        return bool(self.measurements.attention)

    def normalized(self, index: Tensor) -> Tensor:
        """Some of the pictures, as the model takes them."""
        return self.subject.preprocessing.normalize(self.pixels.images[index].to(default_device()))


def diagnose(
    source: Source,
    other: Source | None = None,
    data: str | None = None,
    *,
    images: int = IMAGES,
    which: str = "best",
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> list[Diagnosis]:
    """Measure one model, or two and their similarity, on the same held-out pictures, and judge them.

    A source is whatever `open_model` opens, besides ONNX. `data` is needed where the first is not a run.
    """
    from vitling.diagnose.verdict import judge

    first, second, pictures, train = open_subjects(
        source, other, data, images=images, which=which, reading=reading, callback=callback
    )
    subjects = [subject for subject in (first, second) if subject is not None]
    if len(subjects) == 2 and first.name == second.name:
        first.name, second.name = distinct_names(first, second)
    callback = callback or Callback()
    pixels = [pictures.decoded_for(subject, callback) for subject in subjects]
    result = [_measure(subjects, pixels, pictures, callback)]
    if second is not None:
        result.append(_measure([second], pixels[1:], pictures, callback))
        result[1].match = _match(result[1], result[0].cka and result[0].cka.defined().matrix.T)
    for diagnosis in result:
        run = diagnosis.subject.run
        if train is not None and diagnosis.evaluation is not None and run and run.info["data"]["name"] == train.data:
            _look_at_training(diagnosis, train, callback)
        diagnosis.findings = judge(diagnosis, next((d for d in result if d is not diagnosis), None))
    return result


def _measure(subjects: list[Subject], pixels: list[Resident], pictures: Pictures, callback: Callback) -> Diagnosis:
    """One pass of the first model over the pictures, its CKA with the second one if there is one.

    A batch carries the numbers of its pictures; each model looks them up in its own size.
    """
    subject = subjects[0]
    parts = torch.arange(len(pictures)).tensor_split(ceil(len(pictures) / BATCH))
    seen = pictures.were_trained_on_by(subject)
    labels = pictures.labels if pictures.name_classes_as(subject) and not seen else None
    done = 0

    def batches():
        nonlocal done
        for index in parts:
            numbers = index.view(-1, 1, 1, 1)
            yield (numbers,) if labels is None else (numbers, labels[index])
            done += len(index)
            callback.on_progress(f"measuring {subject.name}", done, len(pictures))

    def look_up(one: Subject, held: Resident):
        return lambda numbers: one.preprocessing.normalize(held.images[numbers.flatten()].to(default_device()))

    prepares = [look_up(one, held) for one, held in zip(subjects, pixels, strict=True)]
    layers = "blocks" if all(find_blocks(one.model) for one in subjects) else "all"
    with warnings.catch_warnings():  # the note below says it better
        warnings.filterwarnings("ignore", message="left out a batch")
        measurements = measure(
            subject.model,
            batches(),
            other=None if len(subjects) == 1 else subjects[1].model,
            layers=layers,
            prepare=prepares[0],
            prepare_other=prepares[-1],
        )
    works = what_works(subject.model, prepares[0](torch.arange(min(2, len(pictures)))))
    diagnosis = Diagnosis(subject, pictures, pixels[0], measurements, works, notes=list(measurements.notes))
    if seen:
        diagnosis.notes.append(
            f"{subject.name} was trained on some of these pictures (its seed or split differs): its accuracy would mislead, and "
            "is left out with calibration, mistakes and probes."
        )
    else:
        _score(diagnosis, labels)
    cka = diagnosis.cka
    if cka is None:
        diagnosis.notes.append(
            f"CKA compares images with each other and needs {SMALLEST_BATCH} of them; there are {len(pictures)}."
        )
    elif undefined := list(dict.fromkeys([*cka.undefined_rows, *cka.undefined_columns])):
        names = ", ".join(undefined[:6])
        diagnosis.notes.append(f"CKA is undefined for layers that are constant over the images: {names}.")
    if len(subjects) == 2 and cka is not None:
        diagnosis.match = _match(diagnosis, cka.defined().matrix)
    return diagnosis


def _score(diagnosis: Diagnosis, labels: Tensor | None) -> None:
    subject, pictures = diagnosis.subject, diagnosis.pictures
    logits = diagnosis.measurements.logits
    if labels is None or logits.shape[1] != len(pictures.class_names):
        diagnosis.notes.append(
            f"{subject.name} has {logits.shape[1]} outputs that are not known to be the {len(pictures.class_names)} classes of "
            f"{pictures.data}: accuracy, calibration, mistakes and probes are left out."
        )
        return
    diagnosis.evaluation = evaluate_logits(
        logits, labels, pictures.class_names, data=pictures.data, split=pictures.split
    )
    diagnosis.reliability = reliability_curve(logits.double().softmax(dim=1), labels)


def _match(diagnosis: Diagnosis, matrix: Tensor | None) -> Match | None:
    if matrix is None:
        return None
    try:
        return match_layers(matrix)
    except UserError as error:
        diagnosis.notes.append(f"no best-match summary: {error}")
        return None


def _look_at_training(diagnosis: Diagnosis, train: Pictures, callback: Callback) -> None:
    """Accuracy on pictures that the model was trained on, and how sharp the loss is there."""
    subject, held = diagnosis.subject, train.decoded_for(diagnosis.subject)
    batches = evaluate_batches(
        subject.model,
        held,
        subject.preprocessing,
        function=lambda images: first_tensor(subject.model(images)),
        batch_size=BATCH,
        task="training pictures",
        callback=callback,
    )
    correct = sum(int((logits.argmax(dim=1) == labels).sum()) for logits, labels in batches)
    result = diagnosis.evaluation
    diagnosis.gap = generalisation_gap(correct, len(held), round(result.top1 * result.images), result.images)
    diagnosis.sharpness = _sharpness(subject, held)


def _sharpness(subject: Subject, held: Resident) -> float | None:
    images = subject.preprocessing.normalize(held.images[:SHARPNESS_IMAGES].to(default_device()))
    labels = held.labels[:SHARPNESS_IMAGES].to(default_device())
    if not any(p.requires_grad for p in subject.model.parameters()):
        return None
    with torch.enable_grad():
        return loss_sharpness(
            lambda: F.cross_entropy(first_tensor(subject.model(images)), labels), subject.model.parameters()
        )


# ---------------------------------------------------------------------------------------------------------------------
# Files


def diagnose_run(
    run: Source, other: Source | None = None, data: str | None = None, *, out: str | Path | None = None, **options
) -> Path:
    """Diagnose and write the page: `diagnose` (which takes the options) and `write_diagnosis` in one call."""
    return write_diagnosis(diagnose(run, other, data, **options), out, callback=options.get("callback"))


def write_diagnosis(
    results: list[Diagnosis], out: str | Path | None = None, *, callback: Callback | None = None
) -> Path:
    """Write one HTML page with the raw numbers beside it (.json, .npz); the path of the page.

    Without `out` it goes into the first one's run as diagnosis.html, or into the working directory where that is not a run.
    """
    from vitling.diagnose.page import diagnosis_page
    from vitling.reports.page import write_page

    callback = callback or Callback()
    page = Path(out) if out else _default_path(results)
    page = page / "diagnosis.html" if page.is_dir() else page
    page = page if page.suffix in (".html", ".htm") else page.with_name(f"{page.name}.html")
    callback.on_progress("drawing", 0, 1)
    write_page(diagnosis_page(results), page)
    write_text(page.with_suffix(".json"), json.dumps([as_dict(d) for d in results], indent=1, ensure_ascii=False))
    with replacing(page.with_suffix(".npz")) as temporary:
        np.savez_compressed(
            temporary, **{f"{d.name}/{key}": value for d in results for key, value in arrays(d).items()}
        )
    callback.on_progress("drawing", 1, 1)
    return page


def _default_path(results: list[Diagnosis]) -> Path:
    name = "diagnosis" if len(results) == 1 else f"diagnosis-with-{results[1].name}"
    folder = results[0].subject.run.path if results[0].subject.run else Path()
    return folder / f"{name if results[0].subject.run else f'{name}-{results[0].name}'}.html".replace(":", "-")


def as_dict(d: Diagnosis) -> dict:
    """Everything that is a number or a short list of them, as plain JSON values; NaN becomes null."""
    from vitling.diagnose.verdict import headline, indicators

    m = d.measurements
    return _plain(
        {
            "name": d.name,
            "model": type(d.subject.model).__name__,
            "parameters": d.subject.parameters,
            "data": d.pictures.data,
            "split": d.pictures.split,
            "images": m.images,
            "headline": headline(d),
            "verdict": [vars(finding) for finding in d.findings],
            "indicators": indicators(d),
            "accuracy": d.evaluation and d.evaluation.top1,
            "accuracy_interval": d.evaluation and d.evaluation.top1_interval,
            "ece": d.evaluation and d.evaluation.ece,
            "per_class": d.evaluation and d.evaluation.per_class,
            "confusion": d.evaluation and d.evaluation.confusion,
            "reliability": d.reliability and vars(d.reliability),
            "gap": d.gap and vars(d.gap),
            "sharpness": d.sharpness,
            "blocks": [
                {
                    "name": b.name,
                    "grid": b.grid,
                    "channels": b.channels.channels,
                    "dead": b.channels.dead,
                    "exploding": b.channels.exploding,
                    "ranks": vars(b.ranks),
                    "token_similarity": b.token_similarity,
                    "probe_accuracy": b.probe and b.probe.test_accuracy,
                }
                for b in m.blocks
            ],
            "attention": [vars(a) for a in m.attention],
            "match": d.match and vars(d.match),
            "cka_undefined": [*d.cka.undefined_rows, *d.cka.undefined_columns] if d.cka else [],
            "works": d.works,
            "notes": d.notes,
        }
    )


def arrays(d: Diagnosis) -> dict[str, np.ndarray]:
    """What is too long for JSON."""
    found = {"logits": d.measurements.logits.numpy(), "labels": d.pixels.labels.numpy()}
    if d.cka is not None:
        found |= {
            "cka": d.cka.matrix.cpu().numpy(),
            "cka_rows": np.array(d.cka.rows),
            "cka_columns": np.array(d.cka.columns),
        }
    for block in d.measurements.blocks:
        if block.probe is not None:
            found[f"probe/{block.name}"] = block.probe.weight.numpy()
    return found


def _plain(value):
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and value != value else value
