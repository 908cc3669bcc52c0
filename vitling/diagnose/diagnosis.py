"""The whole diagnosis of a model, or of two: every measurement on held-out pictures, the verdict."""

import warnings
from math import ceil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.loader import Resident
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import open_recipe_data, split_training
from vitling.diagnose.cka import SMALLEST_BATCH
from vitling.diagnose.evidence import Evidence, gather_evidence
from vitling.diagnose.files import check_page, write_diagnosis
from vitling.diagnose.growth import LearningCurve
from vitling.diagnose.health import generalisation_gap
from vitling.diagnose.match import Match, match_layers
from vitling.diagnose.measurements import Layer, Measurements
from vitling.diagnose.result import Diagnosis
from vitling.diagnose.sharpness import loss_sharpness
from vitling.diagnose.single_pass import measure
from vitling.diagnose.subject import (
    Pictures,
    Source,
    Subject,
    distinct_names,
    open_subjects,
    refuse_labels,
    run_without_weights,
)
from vitling.diagnose.suspects import SuspectLabels, suspect_labels
from vitling.diagnose.verdict import judge
from vitling.errors import UserError
from vitling.evaluation.calibration import reliability_curve
from vitling.evaluation.loop import evaluate_batches
from vitling.evaluation.metrics import measure as evaluate_logits
from vitling.models.inspect import find_blocks, first_tensor, what_works
from vitling.runs.device import default_device
from vitling.runs.run import Run

IMAGES = 512
BATCH = 64
SHARPNESS_IMAGES = 128


def diagnose(
    source: Source,
    other: Source | None = None,
    data: str | None = None,
    *,
    images: int = IMAGES,
    which: str = "best",
    reading: Reading | None = None,
    learning_curve: LearningCurve | None = None,
    label_errors: SuspectLabels | None = None,
    callback: Callback | None = None,
) -> list[Diagnosis]:
    """Measure one model, or two and their similarity, on the same held-out pictures, and judge them.

    A source is whatever `open_model` opens, besides ONNX. `data` is needed where the first is not a run. What limits a run, and which of its
    images, is asked of the first one where it is a run on its own data. `learning_curve` (`vitling.studies.learning_curve.learn_parts`) and
    `label_errors` (`cross_validate`) are what has been found by training; without the second, only held-out images are suspected.
    """
    refuse_labels(source, other)
    if (broken := run_without_weights(source)) and other is None and data is None:
        return [_without_weights(broken, reading, callback or Callback())]
    opened = open_subjects(source, other, data, images=images, which=which, reading=reading, callback=callback)
    first, second, pictures, train = opened.first, opened.second, opened.pictures, opened.train
    subjects = [subject for subject in (first, second) if subject is not None]
    if second is not None and first.name == second.name:
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
        if diagnosis is result[0] and diagnosis.gap is not None and run is not None:
            diagnosis.evidence = gather_evidence(
                run, diagnosis.subject, opened.dataset, which=which, reading=reading, callback=callback
            )
            diagnosis.notes += diagnosis.evidence.notes
            diagnosis.learning_curve = learning_curve
            diagnosis.label_errors = label_errors or _suspected(diagnosis.evidence)
        diagnosis.findings = judge(diagnosis, next((d for d in result if d is not diagnosis), None))
    return result


def measure_model(source: Source, *, reading: Reading | None = None, callback: Callback | None = None) -> Diagnosis:
    """What a run's network does with held-out pictures, without asking why: enough to draw it, and nothing is trained for it."""
    opened = open_subjects(source, None, None, images=IMAGES, which="best", reading=reading, callback=callback)
    callback = callback or Callback()
    subject, pictures = opened.first, opened.pictures
    return _measure([subject], [pictures.decoded_for(subject, callback)], pictures, callback)


def _suspected(evidence: Evidence) -> SuspectLabels | None:
    """Without training anything: validation images, by the run itself, which did not learn from them."""
    seen = evidence.val
    return None if seen is None else suspect_labels(seen.images, seen.probabilities, "validation")


def _without_weights(run: Run, reading: Reading | None, callback: Callback) -> Diagnosis:
    """Of a run that ended before its first validation: what it logged, its data, and other rates."""
    dataset = open_recipe_data(run.recipe, reading or Reading())
    _, held_out = split_training(dataset, run.recipe)
    nothing = Measurements(0, [], [], Layer(name=run.recipe.model, numbers={}), None, torch.empty(0, 0), None)
    diagnosis = Diagnosis(
        Subject(run.path.name, nn.Identity(), run.preprocessing(), run.class_names, run),
        Pictures(dataset.name, "val", held_out.subset([]), dataset.class_names),
        Resident(torch.empty(0), torch.empty(0, dtype=torch.long)),
        nothing,
        {},
        evidence=gather_evidence(run, None, dataset, reading=reading, callback=callback),
        notes=[f"it has no weights, so there is no network to look into: {run.info['stopped']}"],
    )
    diagnosis.findings = judge(diagnosis)
    return diagnosis


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
    assert result is not None  # asked before
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


def diagnose_run(
    run: Source, other: Source | None = None, data: str | None = None, *, out: str | Path | None = None, **options
) -> Path:
    """Diagnose and write the page: `diagnose` (which takes the options) and `write_diagnosis` in one call."""
    if out:
        check_page(out)  # before the minutes of measuring
    return write_diagnosis(diagnose(run, other, data, **options), out, callback=options.get("callback"))
