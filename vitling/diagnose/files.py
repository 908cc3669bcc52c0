"""The files of a diagnosis: the page, and the numbers beside it."""

import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitling.callbacks import Callback
from vitling.diagnose.page import diagnosis_page
from vitling.diagnose.result import Diagnosis
from vitling.diagnose.verdict import headline, indicators
from vitling.files import json_with, refuse_foreign, replacing, starting_with, write_text
from vitling.reports.page import is_page, write_page

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
    write_page(diagnosis_page(results), page)
    write_text(page.with_suffix(".json"), to_json(results), ours=is_numbers)
    with replacing(page.with_suffix(".npz"), ours=is_arrays) as temporary:
        found: dict[str, Any] = {f"{d.name}/{key}": value for d in results for key, value in arrays(d).items()}
        np.savez_compressed(temporary, **found)
    callback.on_progress("drawing", 1, 1)
    return page


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
    return None if isinstance(value, float) and value != value else value
