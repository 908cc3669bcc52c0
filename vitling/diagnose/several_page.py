"""The page of a run that learns several labels per image: training, test, each label, images with their labels, and how to use it."""

from collections.abc import Sequence
from pathlib import Path

import torch

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.diagnose.run_parts import (
    PAGE,
    SHOWN,
    beginning_facts,
    course_section,
    data_notes,
    quoted,
    speed_section,
    use_sections,
)
from vitling.evaluation.predictions import Predictions, predict_validation
from vitling.evaluation.several import SeveralEvaluation, measure_several
from vitling.evaluation.temperature import calibrate
from vitling.evaluation.thresholds import Thresholds, find_thresholds
from vitling.reports.page import (
    Code,
    Facts,
    Page,
    Picture,
    Section,
    Strip,
    Tab,
    Table,
    Text,
    as_picture,
    kept_sections,
    write_page,
)
from vitling.runs.run import Run

VALIDATION, LABELS, IMAGES = "Validation", "Labels", "Images"
TEST = "evaluation-test.json"


def write_several_page(
    run: Run,
    *,
    predictions: Predictions | None = None,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Path:
    """Write RUN/report.html. `predictions` are those of the best weights on the validation split, where they are known already.

    Without them, what is shown of the validation images is kept from the page that is there, if that is of the same weights.
    """
    digest = run.weights_digest("best")
    kept = {} if predictions else dict(kept_sections(run.path / PAGE, digest))
    if not {VALIDATION, LABELS, IMAGES} <= kept.keys():
        predictions = predictions or predict_validation(run, run.load_model("best"), reading=reading, callback=callback)
        kept = {section.title: section for section in _validation_sections(run, predictions)}
    path = run.path / TEST
    written = write_page(_build(run, kept, SeveralEvaluation.read(path) if path.exists() else None), run.path / PAGE)
    run.publish()
    return written


def _build(run: Run, kept: dict[str, Section], test: SeveralEvaluation | None) -> Page:
    info, recipe = run.info, run.recipe
    lead = "Images that neither trained it nor chose anything: the numbers to report."
    if test is None:
        text = "Not looked at yet: a test split is worth most when it is looked at once, when everything is decided."
        tested = [Section("Test images", [Text(text), Code(f"vitling evaluate {quoted(run)}")], lead)]
    else:
        looks = info.get("test_looks", 1)
        looked = {"looked at": "once" if looks == 1 else f"{looks} times; each look makes the numbers worth less"}
        tested = [
            Section("Test images", [Facts({**test.facts(), **looked}), *_notes(test)], lead),
            Section("Labels of the test images", [label_table(test)]),
        ]
    return Page(
        title=f"{recipe.model} on {info['data']['name']}",
        subtitle=f"Training run {run.path.name}",
        sections=[Section("Summary", [Facts(_summary(run, test)), *data_notes(run)])],
        tabs=[
            Tab("Training", [course_section(run), speed_section(run)]),
            Tab("Test", [*tested, kept[VALIDATION]]),
            Tab("Labels", [kept[LABELS]]),
            Tab("Images", [kept[IMAGES]]),
            Tab("How to use it", use_sections(run)),
        ],
        about=run.weights_digest("best"),
    )


def _summary(run: Run, test: SeveralEvaluation | None) -> dict[str, str]:
    info, recipe, data = run.info, run.recipe, run.info["data"]
    best, score = info["best"], run.score
    facts = {f"validation {score.name}": f"{score.show(best[score.recorded])} on {data['val_images']:,} images"}
    if test is not None:
        facts[f"test {score.name}"] = test.facts()[score.name]
    return {
        **facts,
        **beginning_facts(info),
        "best epoch": f"{best['epoch']} of {info['epochs_trained']}; it was chosen by that number, so expect a little less on new images",
        "model": f"{recipe.model}, {info['parameters'] / 1e6:.2f} M parameters, {recipe.method} training",
        "data": f"{data['name']}: {data['train_images']:,} training and {data['val_images']:,} validation images, {run.target.in_words}",
        "stopped": f"{info['stopped']}, after {info['wall_seconds']:.0f} s",
    }


def _validation_sections(run: Run, seen: Predictions) -> list[Section]:
    temperature = calibrate(run, "best", predictions=seen).temperature
    thresholds = find_thresholds(run, "best", predictions=seen)
    result = measure_several(
        seen.logits,
        seen.targets,
        run.class_names,
        thresholds,
        temperature=temperature,
        data=run.info["data"]["name"],
        split="val",
        groups=seen.groups,
    )
    fitted = {
        "thresholds": "fitted on these images, each for the best F1 of its label, which flatters what depends on them",
        "temperature": f"{temperature:.2f}, fitted on these images too: logits are divided by it before the sigmoid",
    }
    return [
        Section(
            VALIDATION, [Facts({**result.facts(), **fitted}), *_notes(result)], "The images that chose the best epoch."
        ),
        Section(LABELS, [label_table(result)], f"Which labels does it miss? Of {result.images:,} validation images."),
        Section(IMAGES, _pictures(seen, temperature, thresholds, run.class_names), "What does it see?"),
    ]


def _notes(result: SeveralEvaluation) -> list[Text]:
    return [Text(f"Note: {note}.") for note in result.notes]


def label_table(result: SeveralEvaluation) -> Table:
    """A row per label, those that are found worst first."""

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    def between(interval: Sequence[float] | None) -> str:
        return "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"

    rows = sorted(result.per_label, key=lambda row: (row["average_precision"] is None, row["average_precision"]))
    head = (
        "label",
        "positives",
        "average precision",
        "95 % interval",
        "AUROC",
        "95 % interval",
        "threshold",
        "precision",
        "recall",
        "F1",
    )
    return Table(
        head,
        [
            (
                row["name"],
                row["positives"],
                shown(row["average_precision"]),
                between(row["average_precision_interval"]),
                shown(row["auroc"]),
                between(row["auroc_interval"]),
                f"{row['threshold']:.3f}" + ("" if row["fitted"] else ", not fitted"),
                *(shown(row[what]) for what in ("precision", "recall", "f1")),
            )
            for row in rows
        ],
        "Worst first. Average precision and AUROC are of the ranking; precision, recall and F1 at the threshold.",
    )


def _pictures(seen: Predictions, temperature: float, thresholds: Thresholds, names: Sequence[str]) -> list:
    """Images with the most labels wrong, and images with every label right, spread over the split."""
    scores = (seen.logits.double() / temperature).sigmoid()
    called, truth = scores >= torch.tensor(thresholds.values), seen.targets > 0
    errors = (called != truth).sum(dim=1)
    wrong = errors.argsort(descending=True, stable=True)[:SHOWN]
    right = (errors == 0).nonzero().flatten()
    spread = right[torch.linspace(0, len(right) - 1, min(SHOWN, len(right))).long()]
    parts: list = []
    for index, caption in (
        (wrong[errors[wrong] > 0], "The most labels wrong: + was found and is not there, − was missed."),
        (spread, "Every label right, spread over the images."),
    ):
        if not len(index):
            continue
        pixels = next(iter(seen.source.batches([index])))["image"]
        pictures: list[Picture] = [
            as_picture(image, _caption(truth[i].tolist(), called[i].tolist(), names))
            for i, image in zip(index.tolist(), pixels, strict=True)
        ]
        parts.append(Strip([pictures], caption))
    return parts


def _caption(truth: Sequence[bool], called: Sequence[bool], names: Sequence[str]) -> str:
    words = [
        f"{'' if there == found else '+' if found else '−'}{name}"
        for name, there, found in zip(names, truth, called, strict=True)
        if there or found
    ]
    return ", ".join(words) or "no label"
