"""The demo: a plain ViT and our default learn handwritten digits. Which is better, is the difference significant, and why?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitling.callbacks import StudyCallback
from vitling.diagnose.diagnosis import diagnose_run
from vitling.diagnose.files import check_page
from vitling.errors import UserError
from vitling.evaluation.comparison import Comparison, compare
from vitling.evaluation.evaluation import read_evaluation
from vitling.evaluation.metrics import Evaluation
from vitling.recipes import Recipe, load_recipe, override, scale_epochs
from vitling.runs.run import Run
from vitling.studies.results import evaluation_file
from vitling.studies.study import study
from vitling.validation.documents import read_json

DATA = "digits"
PLANNED = {  # as `vitling plan digits` changes its recipe for images of eight pixels, which look different when they are moved by one
    "data": DATA,
    "model_args.patch_size": 2,
    "augment.crop": "none",
    "augment.hflip": 0.0,
}


@dataclass(frozen=True)
class Contender:
    """One of the two models, after training."""

    name: str
    run: Run
    evaluation: Evaluation  # on the test split
    verdict: str  # of the diagnosis, in a sentence


@dataclass(frozen=True)
class Story:
    """What the demo found."""

    first: Contender
    second: Contender
    comparison: Comparison
    diagnosis: Path  # the page


def contenders() -> dict[str, Recipe]:
    """The two recipes, with epochs that take about the same time."""
    return {
        "plain ViT": load_recipe("digits/vit_nano"),
        "default": override(scale_epochs(load_recipe("vitling/tiny"), 24), PLANNED),
    }


def run_demo(out: str | Path, *, callback: StudyCallback | None = None) -> Story:
    """Train both as a study of one seed, compare them on the test split image by image, and diagnose them on one page.

    The same call again finds all that is there already.
    """
    page = check_page(Path(out) / "diagnosis.html")
    trained = study(contenders(), out, seeds=1, callback=callback)
    runs = list(trained.runs.values())
    evaluations = [read_evaluation(run) for run in runs]
    if trained.failures:
        raise UserError("; ".join(trained.failures.values()))
    if not page.exists() or page.stat().st_mtime < max(evaluation_file(run).stat().st_mtime for run in runs):
        diagnose_run(runs[0], runs[1], out=page, callback=callback)
    verdicts = [measured["headline"] for measured in read_json(page.with_suffix(".json"), list[dict[str, Any]])]
    first, second = map(Contender, trained.names, runs, evaluations, verdicts)
    return Story(first, second, compare(*evaluations), page)
