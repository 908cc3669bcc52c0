"""`vitling.train`, `vitling.train_more` and `vitling.evaluate` as Python calls them: the run gets its page, and gets it again."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.sources.dataset import Dataset
from vitling.diagnose.run_page import update_run_page, write_run_page
from vitling.diagnose.run_parts import PAGE
from vitling.diagnose.several_page import write_several_page
from vitling.diagnose.unlabelled_page import write_unlabelled_page
from vitling.errors import UserError
from vitling.evaluation.evaluation import evaluate_and_keep
from vitling.evaluation.metrics import Evaluation
from vitling.evaluation.numbers import NumbersEvaluation
from vitling.evaluation.operating_point import Wanted
from vitling.evaluation.predictions import Predictions
from vitling.evaluation.several import SeveralEvaluation
from vitling.recipes import Recipe
from vitling.runs.run import Run, load_run
from vitling.training import beginning
from vitling.training.settings import Settings


def train(
    recipe: Recipe,
    run_dir: str | Path,
    *,
    settings: Settings | None = None,
    dataset: Dataset | None = None,
    asked: dict | None = None,
    planned: dict | None = None,
    callback: Callback | None = None,
) -> Run:
    """Train a recipe into a run directory; into the same directory again, resume it. Then its page is written, RUN/report.html.

    `dataset` is the recipe's data where it has been opened already, as by `vitling.plan`. `asked` is what was asked for where that is
    not the recipe itself, but data to plan one for; `planned` is the record of that plan, which the run keeps. The best weights'
    predictions on the validation images are passed on in the run that is returned. `Settings(page=False)` leaves the page out.
    """
    settings = settings or Settings()
    run = beginning.train(
        recipe, run_dir, settings=settings, dataset=dataset, asked=asked, planned=planned, callback=callback
    )
    if settings.page:
        write_trained(run, reading=settings.reading, callback=callback)
    return run


def train_more(
    run_dir: str | Path,
    seconds: float,
    *,
    settings: Settings | None = None,
    dataset: Dataset | None = None,
    callback: Callback | None = None,
) -> Run:
    """Train a finished run further: a new schedule of so many seconds from its last weights. Interrupted, the same call resumes.

    The run keeps everything: its logs grow, each part of it stands in run.json, and `best` stays the best of all parts. Its page is
    written again.
    """
    settings = settings or Settings()
    run = beginning.train_more(run_dir, seconds, settings=settings, dataset=dataset, callback=callback)
    if settings.page:
        write_trained(run, reading=settings.reading, callback=callback)
    return run


def evaluate(
    run: Run | str | Path,
    data: str | None = None,
    *,
    split: str = "test",
    which: str = "best",
    img_size: int | tuple[int, int] | None = None,
    tta: bool = False,
    group: str = "",
    positive: str | None = None,
    sensitivity: float | None = None,
    specificity: float | None = None,
    reading: Reading | None = None,
    dataset: Dataset | None = None,
    callback: Callback | None = None,
) -> Evaluation:
    """Measure a run on a split of its own data, or of other data with the same classes; of one that learnt several labels per image, its labels; of one
    that learnt numbers, those.

    With `img_size` it sees images of another size than in training, its positions resized; with `tta` corners and mirror images are
    asked about as well. Companions are then left out.
    `dataset` is that data where it has been opened already, as for the training. The numbers are written into the run and its page, and a
    look at its own test split is counted there, because a number is worth less with each look; where the run cannot be written, a note
    of the result says so. `group` says which images of other data belong together, as the recipe's group= does for its own. With `positive`, a
    class, and a `sensitivity` or `specificity`, the threshold that reaches it is fitted on the run's validation images, and the result says what
    it gives here.
    """
    run = run if isinstance(run, Run) else load_run(run)
    point = None
    if positive is not None:
        point = Wanted(positive, sensitivity, specificity)
    elif sensitivity is not None or specificity is not None:
        raise UserError("a sensitivity or specificity is of a class; say which one is positive.")
    result, seen = evaluate_and_keep(
        run,
        data,
        split=split,
        which=which,
        img_size=img_size,
        tta=tta,
        group=group,
        point=point,
        reading=reading,
        dataset=dataset,
        callback=callback,
    )
    write_evaluated(run, result, seen, reading=reading, callback=callback)
    # Of several labels and of numbers it is the evaluation of those; to a type checker, programs about classes are what they were.
    return cast(Evaluation, result)


def write_trained(
    run: Run, *, reading: Reading, callback: Callback | None = None, note: Callable[[str], None] | None = None
) -> Path | None:
    """The page of a run that has just been trained, or was before; None, and a line, where it cannot be written."""
    if not run.finished or os.environ.get("RANK", "0") != "0":
        return None
    try:
        if run.unlabelled:
            return write_unlabelled_page(run)
        if (stage := run.first_stage) and stage.finished:
            write_unlabelled_page(stage)
        if run.kind == "several":
            return write_several_page(run, predictions=run.validation, reading=reading, callback=callback)
        if run.validation is None:
            return update_run_page(run, reading=reading, callback=callback)
        return write_run_page(run, predictions=run.validation, reading=reading, callback=callback)
    except UserError as error:  # the run is whole: what follows in a program may go on
        (note or (callback or Callback()).log)(f"the page was not written: {error}")
        return None


def write_evaluated(
    run: Run,
    result: Evaluation | SeveralEvaluation | NumbersEvaluation,
    seen: Predictions,
    *,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> None:
    """The page of a run again, after it has been evaluated; nothing where it has none, or does not keep its numbers."""
    if not result.kept or not (run.path / PAGE).exists():
        return
    if isinstance(result, SeveralEvaluation):
        try:
            write_several_page(run, reading=reading, callback=callback)
        except UserError as error:
            result.notes.append(f"the page was not written again: {error}")
        return
    own_test = (
        result.own and result.split == "test" and result.weights == "best" and not (result.img_size or result.tta)
    )
    try:
        update_run_page(run, test=seen if own_test else None, reading=reading, callback=callback)
    except UserError as error:
        result.notes.append(f"the page was not written again: {error}")
