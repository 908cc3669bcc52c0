"""The page of a training run: curves, confusion, mistakes, attention, and everything needed to repeat it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.loader import Fitted
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.pipeline.reading import Reading
from vitling.diagnose.health import confident_mistakes
from vitling.diagnose.overlay import attention_map, draw_overlay
from vitling.errors import UserError
from vitling.evaluation.calibration import reliability_curve
from vitling.evaluation.metrics import Evaluation, measure
from vitling.evaluation.predictions import Predictions, predict_validation
from vitling.evaluation.temperature import Calibration, calibrate
from vitling.recipes import to_yaml
from vitling.reports import plots
from vitling.reports.page import (
    Chart,
    Code,
    Facts,
    Page,
    Picture,
    Section,
    Strip,
    Table,
    Text,
    as_picture,
    counted,
    percent,
    write_page,
)
from vitling.runs.run import Run

SHOWN = 12  # pictures in a strip
TILE = 96  # CSS pixels


def write_run_page(
    run: Run,
    *,
    predictions: Predictions | None = None,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Path:
    """Write RUN/report.html: curves, confusion, mistakes, attention, and everything needed to repeat the run."""
    page = build_run_page(run, predictions=predictions, reading=reading, callback=callback)
    written = write_page(page, run.path / "report.html")
    run.publish()
    return written


def build_run_page(
    run: Run,
    *,
    predictions: Predictions | None = None,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Page:
    """The page of a run that has validated at least once; pictures and confusion are of its validation split.

    `predictions` are those of the best weights on that split, where they are known already; then no data is opened. Nothing is
    measured on the test split here. What `evaluate` has already measured on it is repeated.
    """
    info, recipe, model = run.info, run.recipe, run.load_model("best")
    predictions = predictions or predict_validation(run, model, reading=reading, callback=callback)
    calibration = calibrate(run, "best", predictions=predictions)
    logits, source, labels = predictions.logits, predictions.source, predictions.labels
    result = measure(logits, labels, run.class_names, data=info["data"]["name"], split="val")
    environment = info["environment"]
    origin = {
        "data fingerprint": info["data"]["fingerprint"],
        "seed": recipe.seed,
        "precision": info["precision"],
        **{name: value for name, value in environment.items() if name != "command"},
    }
    return Page(
        title=f"{recipe.model} on {info['data']['name']}",
        subtitle=f"Training run {run.path.name}: {percent(result.top1)} on validation",
        sections=[
            Section("Summary", [Facts(summary_facts(run, result))]),
            Section("Learning curves", learning_charts(run), "Did it learn, and did it stop learning?"),
            Section("Validation", validation_parts(result), "Which classes does it confuse?"),
            Section(
                "Pictures", picture_parts(logits, source, run.class_names), "What does it get wrong, and what correct?"
            ),
            Section(
                "Attention",
                attention_parts(model, source, predictions.preprocessing, run.class_names),
                "Where does it look?",
            ),
            Section(
                "Calibration",
                calibration_parts(logits, labels, calibration),
                "Is it correct as often as it is confident?",
            ),
            Section("Speed", [Facts(speed_facts(run))]),
            Section(
                "To repeat it", [Code(environment["command"]), Facts(origin), Code(to_yaml(recipe), "the whole recipe")]
            ),
        ],
    )


def summary_facts(run: Run, result: Evaluation) -> dict[str, str]:
    """The few lines that most readers want; the test split is among them only after `evaluate` looked at it."""
    info, recipe = run.info, run.recipe
    best, data = info["best"], info["data"]
    facts = {"validation accuracy": accuracy_with_interval(result.top1, result.top1_interval, result.images)}
    if (known := run.path / "evaluation-test.json").exists():
        test, looks = Evaluation.read(known), info.get("test_looks", 1)
        facts["test accuracy"] = accuracy_with_interval(test.top1, test.top1_interval, test.images)
        facts["test accuracy"] += f", looked at {'once' if looks == 1 else f'{looks} times'}"
    return {
        **facts,
        "best epoch": f"{best['epoch']} of {info['epochs_trained']}; it was chosen by validation accuracy, so expect a little less on new images",
        "model": f"{recipe.model}, {info['parameters'] / 1e6:.2f} M parameters, {recipe.method} training",
        "data": f"{data['name']}: {data['train_images']:,} training and {data['val_images']:,} validation images, {len(run.class_names)} classes",
        "stopped": f"{info['stopped']}, after {info['wall_seconds']:.0f} s",
    }


def accuracy_with_interval(top1: float, interval: Sequence[float], images: int) -> str:
    low, high = interval
    return f"{percent(top1)} of {images:,} images (95 % interval {100 * low:.1f} to {100 * high:.1f})"


def speed_facts(run: Run) -> dict[str, str]:
    """How fast it trained, over all validations: medians, because other programs disturb single ones."""
    timing, info = [timing for _, timing in run.validations()], run.info
    validations = sum(record["validation_seconds"] for record in timing)
    return {
        "training": f"{np.median([record['images_per_second'] for record in timing]):,.0f} images/s (median over {counted(len(timing), 'epoch')} with a validation)",
        "validation": f"{np.median([record['validation_seconds'] for record in timing]):.2f} s each, {validations:.0f} s in all",
        "everything": f"{info['wall_seconds']:.0f} s from the command to the last weights",
        "on": f"{info['environment']['processor']}, {counted(info['environment']['threads'], 'thread')}, {counted(info['processes'], 'process', 'processes')}",
    }


def learning_charts(run: Run) -> list:
    """Loss, accuracy and, where they were logged, gradient norms over the epochs."""
    records = [record for record, _ in run.validations()]
    if len(records) == 1:  # a dot is no curve
        head = ("epoch", "training loss", "validation loss", "validation accuracy")
        only = records[0]
        values = (only["epoch"], f"{only.get('train_loss', float('nan')):.3f}", f"{only['val_loss']:.3f}")
        return [Table(head, [(*values, percent(only["val_top1"]))], "The only validation.")]
    epochs = [record["epoch"] for record in records]
    loss = {"training": [r["train_loss"] for r in records], "validation": [r["val_loss"] for r in records]}
    accuracy = {"validation": [r["val_top1"] for r in records]}
    for name in (key for key in records[-1] if key.startswith("val_") and key.endswith("_top1") and key != "val_top1"):
        accuracy[name.removeprefix("val_").removesuffix("_top1")] = [r.get(name) for r in records]
    charts = [
        Chart(plots.lines(epochs, loss, x="epoch", y="loss"), "Loss. Training includes augmentation and mixing."),
        Chart(plots.lines(epochs, accuracy, x="epoch", y="accuracy", unit=True), "Accuracy on validation."),
    ]
    gradients = run.gradients()
    if len(gradients) > 1:
        caption = (
            "Gradient norm per layer, at the last step before each validation. Fading or exploding layers stand out."
        )
        charts.append(Chart(plots.gradient_norms(gradients), caption))
    return charts


def validation_parts(result: Evaluation) -> list:
    """Confusion matrix, accuracy per class, the pairs confused most often."""
    confusion = np.asarray(result.confusion)
    off = confusion - np.diag(np.diag(confusion))
    pairs = [np.unravel_index(i, off.shape) for i in np.argsort(-off, axis=None, kind="stable")[:8]]
    names = result.class_names
    rows = [(names[i], names[j], int(off[i, j])) for i, j in pairs if off[i, j]]
    parts: list = [
        Chart(
            plots.confusion(confusion, names), "Confusion: truth in rows, prediction in columns, as shares of a row."
        ),
        Chart(
            plots.class_accuracy(result.per_class), "Accuracy per class with 95 % intervals, the worst classes first."
        ),
    ]
    if rows:
        parts.append(Table(("true class", "predicted", "images"), rows, "Confused most often"))
    return parts


def picture_parts(logits: Tensor, source: Fitted, class_names: Sequence[str]) -> list:
    """The most confident mistakes and, as a contrast, correct predictions spread over the split."""
    probabilities = logits.float().softmax(dim=1)
    wrong = confident_mistakes(probabilities, source.labels, count=SHOWN)
    correct = (probabilities.argmax(dim=1) == source.labels).nonzero().flatten()
    shown = torch.linspace(0, len(correct) - 1, min(SHOWN // 2, len(correct))).long()
    parts: list = []
    for index, caption in (
        (wrong, "Most confident mistakes: look here for wrong labels, odd images and missing views."),
        (correct[shown], "Correct predictions, spread over the split."),
    ):
        if len(index):
            parts.append(Strip([labelled_pictures(source, index, probabilities, class_names)], caption))
    if not len(wrong):
        parts.insert(0, Text("No mistakes on these images."))
    return parts


def attention_parts(model: nn.Module, source: Fitted, preprocessing: Preprocessing, class_names: Sequence[str]) -> list:
    """Pictures of different classes, each beside where the model looks; a model that cannot show it says why."""
    firsts = [int((source.labels == label).nonzero()[0]) for label in source.labels.unique()]
    index = torch.tensor([firsts[i] for i in np.linspace(0, len(firsts) - 1, min(SHOWN // 2, len(firsts))).astype(int)])
    pixels = next(iter(source.batches([index])))["image"]
    device = next(model.parameters()).device
    try:
        masks = attention_map(model, preprocessing.normalize(pixels.to(device)))
    except UserError as error:
        return [Text(str(error)[:1].upper() + str(error)[1:])]
    pictures = [
        Picture(np.asarray(draw_overlay(image, mask)), class_names[source.labels[i]], width=2 * TILE)
        for i, image, mask in zip(index.tolist(), pixels, masks, strict=True)
    ]
    caption = "Bright is what the prediction draws on: attention of all layers, rolled out down to the patches. Every layer by itself: vitling diagnose."
    return [Strip([pictures], caption)]


def calibration_parts(logits: Tensor, labels: Tensor, calibration: Calibration) -> list:
    """The reliability diagram, and what the fitted temperature makes of it."""
    verdict = "above 1: the model is overconfident" if calibration.temperature > 1 else "below 1: it is underconfident"
    facts = {
        "calibration error (ECE)": f"{calibration.ece_before:.3f}: the mean distance of confidence and accuracy",
        "temperature": f"{calibration.temperature:.2f}, fitted on these images; {verdict}",
        "after dividing by it": f"{calibration.ece_after:.3f}; vitling predict and vitling app do so",
    }
    caption = "As trained. Bars below the diagonal: the model is overconfident."
    return [Chart(plots.reliability(reliability_curve(logits.double().softmax(dim=1), labels)), caption), Facts(facts)]


def labelled_pictures(
    source: Fitted, index: Tensor, probabilities: Tensor, class_names: Sequence[str]
) -> list[Picture]:
    """Pictures with the truth, the prediction and its probability below."""
    pictures = []
    pixels = next(iter(source.batches([index])))["image"] if len(index) else []
    for i, image in zip(index.tolist(), pixels, strict=True):
        share, guess = probabilities[i].max(dim=0)
        truth, guess = class_names[source.labels[i]], class_names[guess]
        caption = f"{guess} {share:.0%}" if guess == truth else f"{truth}, predicted {guess} {share:.0%}"
        pictures.append(as_picture(image, caption))
    return pictures
