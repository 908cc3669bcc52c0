"""The files of a diagnosis: the page, and the numbers beside it."""

import json
import math
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitling.callbacks import Callback
from vitling.diagnose.confusions import mixed_up
from vitling.diagnose.evidence import Evidence
from vitling.diagnose.page import diagnosis_page
from vitling.diagnose.result import Diagnosis
from vitling.diagnose.run_page import update_run_page
from vitling.diagnose.run_parts import PAGE
from vitling.diagnose.suspects import SuspectLabels
from vitling.diagnose.verdict import advised, headline, indicators
from vitling.errors import UserError
from vitling.files import json_with, refuse_foreign, replacing, starting_with, write_text
from vitling.reports.page import Link, is_page, write_page
from vitling.runs.run import Run

is_numbers = json_with("headline", "verdict", "measures")
is_arrays = starting_with(b"PK", mark=b"/logits.npy")


def write_diagnosis(
    results: list[Diagnosis], out: str | Path | None = None, *, callback: Callback | None = None
) -> Path:
    """Write one HTML page with the raw numbers beside it (.json, .npz); the path of the page.

    Without `out` it goes into the first one's run as diagnosis.html, or into the working directory where that is not a run.
    """
    callback = callback or Callback()
    page = check_page(out or _default_path(results))
    callback.on_progress("drawing", 0, 1)
    drawn, runs = diagnosis_page(results), [d.subject.run for d in results if d.subject.run]
    drawn.links = [
        Link.between(f"run {run.path.name}", run.path / PAGE, page) for run in runs if (run.path / PAGE).exists()
    ]
    write_page(drawn, page)
    write_text(page.with_suffix(".json"), to_json(results), ours=is_numbers)
    with replacing(page.with_suffix(".npz"), ours=is_arrays) as temporary:
        found: dict[str, Any] = {f"{d.name}/{key}": value for d in results for key, value in arrays(d).items()}
        np.savez_compressed(temporary, **found)
    callback.on_progress("drawing", 1, 1)
    for run in runs:
        _show_in_run(run, page, callback)
    return page


def _show_in_run(run: Run, page: Path, callback: Callback) -> None:
    """The run's own page again, with the diagnosis in it; one that has none stays without."""
    try:
        if (run.path / PAGE).exists():
            beside = page.absolute().parent == run.path.absolute()
            update_run_page(run, links=() if beside else [Link.between(page.stem, page, run.path / PAGE)])
        run.publish()
    except UserError as error:
        callback.log(f"the page of {run.path.name} was not written again: {error}")


def check_page(out: str | Path) -> Path:
    """The page that `out` names. Refused where it, or a file beside it that would be written too, is somebody else's."""
    page = Path(out)
    page = page / "diagnosis.html" if page.is_dir() else page
    page = page if page.suffix in (".html", ".htm") else page.with_name(f"{page.name}.html")
    refuse_foreign(page, ours=is_page)
    refuse_foreign(page.with_suffix(".json"), ours=is_numbers)
    refuse_foreign(page.with_suffix(".npz"), ours=is_arrays)
    return page


def to_json(results: list[Diagnosis]) -> str:
    """The numbers, as they are written beside the page."""
    return json.dumps([as_dict(d) for d in results], indent=1, ensure_ascii=False)


def _default_path(results: list[Diagnosis]) -> Path:
    name = "diagnosis" if len(results) == 1 else f"diagnosis-with-{results[1].name}"
    folder = results[0].subject.run.path if results[0].subject.run else Path()
    return folder / f"{name if results[0].subject.run else f'{name}-{results[0].name}'}.html".replace(":", "-")


def as_dict(d: Diagnosis) -> dict:
    """Everything that is a number or a short list of them, as plain JSON values; NaN becomes null."""
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
            "advice": [{"advice": f.advice, "command": f.command, "gain": f.gain} for f in advised(d)],
            "evidence": d.evidence and evidence_as_dict(d.evidence),
            "learning_curve": d.learning_curve and {**vars(d.learning_curve), "sentence": d.learning_curve.sentence},
            "label_errors": d.label_errors and suspects_as_dict(d.label_errors, d.pictures.class_names),
            "mixed_up": d.evaluation and mixed_up(d.evaluation),
            "indicators": indicators(d),
            "accuracy": d.evaluation and d.evaluation.top1,
            "accuracy_interval": d.evaluation and d.evaluation.top1_interval,
            "ece": d.evaluation and d.evaluation.ece,
            "per_class": d.evaluation and d.evaluation.per_class,
            "confusion": d.evaluation and d.evaluation.confusion,
            "reliability": d.reliability and vars(d.reliability),
            "gap": d.gap and vars(d.gap),
            "sharpness": d.sharpness,
            "blocks": [block.numbers for block in m.blocks],
            "attention": [module.numbers for module in m.attention],
            "measures": {key: value for key, value in m.model.numbers.items() if key != "name"},
            "match": d.match and vars(d.match),
            "cka_undefined": [*d.cka.undefined_rows, *d.cka.undefined_columns] if d.cka else [],
            "works": d.works,
            "notes": d.notes,
        }
    )


def evidence_as_dict(e: Evidence) -> dict:
    """What the findings about the run and its data rest on."""
    curve = e.curve
    return {
        "class_images": dict(zip(e.class_names, e.counts.tolist(), strict=True)),
        "train_accuracy": e.train and e.train.accuracy,
        "val_accuracy": e.val and e.val.accuracy,
        "probe_accuracy": e.probe and e.probe.accuracy,
        "mirrored_accuracy": e.mirrored,
        "unmirrored_accuracy": e.unchanged,
        "input_mean": None if e.input_mean is None else e.input_mean.tolist(),
        "input_std": None if e.input_std is None else e.input_std.tolist(),
        "rates": e.rates and {f"{factor:g}": loss for factor, loss in e.rates.losses.items()},
        "copies": {split: {"images": c.images, "pairs": c.pairs} for split, c in e.copies.items()},
        "stopped_rising": curve and curve.stopped_rising,
        "lowest_loss_at": curve and curve.lowest_loss_at,
        "loss_rise": curve and curve.loss_rise,
        "late_rise": curve and curve.late_rise,
        "failure": e.failure,
    }


def suspects_as_dict(suspects: SuspectLabels, names: list[str]) -> dict:
    """Every image whose label is probably wrong, the surest first."""
    labels = suspects.images.labels
    return {
        "how": suspects.how,
        "images": suspects.errors.images,
        "share": suspects.errors.share,
        "suspects": [
            {"image": suspects.images.names[i], "label": names[labels[i]], "suggested": names[guess]}
            for i, guess in zip(suspects.errors.index.tolist(), suspects.errors.suggested.tolist(), strict=True)
        ],
    }


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
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if value != value else str(value)
    return value.item() if isinstance(value, np.generic) else value
