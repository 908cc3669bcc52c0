"""The page of a training run, RUN/report.html: training, test, classes, images, inside, and how to use it.

It is written when a run has been trained, and again when it is evaluated, diagnosed or improved. What it takes predictions to show is
kept from the page that is there, as long as that one is of the same weights.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.loader import Fitted
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.pipeline.reading import Reading
from vitling.diagnose.health import confident_mistakes
from vitling.diagnose.numbers_page import build_numbers_page
from vitling.diagnose.overlay import attention_map, draw_overlay
from vitling.diagnose.run_parts import (
    PAGE,
    SHOWN,
    TILE,
    beginning_facts,
    course_section,
    data_notes,
    improvement_sections,
    quoted,
    run_links,
    speed_section,
    use_sections,
)
from vitling.errors import UserError
from vitling.evaluation.calibration import reliability_curve
from vitling.evaluation.intervals import wilson_interval
from vitling.evaluation.metrics import Evaluation, measure
from vitling.evaluation.predictions import Predictions, predict_validation
from vitling.evaluation.temperature import Calibration, calibrate
from vitling.reports import plots
from vitling.reports.page import (
    Chart,
    Code,
    Facts,
    Gallery,
    Link,
    Links,
    Page,
    Picture,
    Section,
    Strip,
    Tab,
    Table,
    Text,
    Tile,
    as_picture,
    encode,
    kept_sections,
    percent,
    write_page,
)
from vitling.runs.run import Run
from vitling.validation.documents import read_json

GALLERY_BYTES, GALLERY_IMAGES = 5_000_000, 3000  # at most, of the mistakes: a page is to be sent by mail


class AdviceRecord(TypedDict, total=False):
    advice: str | None
    command: str | None


class DiagnosisRecord(TypedDict, total=False):
    """The same of diagnosis.json."""

    headline: str | None
    advice: list[AdviceRecord] | None


def write_run_page(
    run: Run,
    *,
    predictions: Predictions | None = None,
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Path:
    """Write RUN/report.html, all of it new."""
    page = build_run_page(run, predictions=predictions, reading=reading, callback=callback)
    written = write_page(page, run.path / PAGE)
    run.publish()
    return written


def update_run_page(
    run: Run,
    *,
    test: Predictions | None = None,
    links: Sequence[Link] = (),
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Path:
    """Write RUN/report.html again, with what has come to the run since. `test` are predictions for its test images.

    What is shown of predictions is taken from the page that is there; where there is none of these weights, they are made again.
    """
    kept = kept_sections(run.path / PAGE, run.weights_digest("best"))
    page = build_run_page(run, test=test, kept=kept, links=links, reading=reading, callback=callback)
    written = write_page(page, run.path / PAGE)
    run.publish()
    return written


def build_run_page(
    run: Run,
    *,
    predictions: Predictions | None = None,
    test: Predictions | None = None,
    kept: Mapping[str, Section] | None = None,
    links: Sequence[Link] = (),
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Page:
    """The page of a run that has validated at least once.

    `predictions` are those of the best weights on the validation split, where they are known already; then no data is opened. Nothing is
    measured on the test split here. What `evaluate` has measured on it is repeated, with its pictures where `test` is given or they are
    among the sections that are `kept`.
    """
    if run.kind == "numbers":
        return build_numbers_page(
            run, predictions=predictions, test=test, kept=kept, links=links, reading=reading, callback=callback
        )
    kept = dict(kept or {})
    if "Validation" not in kept:
        model = run.load_model("best")
        predictions = predictions or predict_validation(run, model, reading=reading, callback=callback)
        kept |= {section.title: section for section in validation_sections(run, model, predictions)}
    if test is not None:
        kept["Mistakes"] = mistakes_section(test, run.class_names, "test")
    info, recipe = run.info, run.recipe
    evaluation = Evaluation.read(known) if (known := run.path / "evaluation-test.json").exists() else None
    if evaluation is not None:
        kept["Which classes"] = classes_section(evaluation)
    return Page(
        title=f"{recipe.model} on {info['data']['name']}",
        subtitle=f"Training run {run.path.name}",
        sections=[Section("Summary", [Facts(summary_facts(run, evaluation)), *data_notes(run)])],
        tabs=[
            Tab("Training", training_sections(run)),
            Tab("Test", [test_section(run, evaluation), *other_evaluations(run), kept["Validation"]]),
            Tab("Classes", [kept["Which classes"]]),
            Tab("Images", [kept["Mistakes"], kept["Correct predictions"]]),
            Tab("Inside", [kept["Attention"], *diagnosis_sections(run)]),
            Tab("How to use it", use_sections(run)),
        ],
        links=[*run_links(run), *links],
        about=run.weights_digest("best"),
    )


def validation_sections(run: Run, model: nn.Module, predictions: Predictions) -> list[Section]:
    """What is shown of the validation images, until others are looked at."""
    logits, labels, names = predictions.logits, predictions.labels, run.class_names
    about = dict(data=run.info["data"]["name"], split="val", groups=predictions.groups)
    result = measure(logits, labels, names, grades=run.kind == "grades", **about)
    calibration = calibrate(run, "best", predictions=predictions)
    facts = {name: value for name, value in evaluation_facts(result).items() if "calibration" not in name}
    return [
        Section("Validation", [Facts(facts), *calibration_parts(logits, labels, calibration)], _validated_on(run)),
        classes_section(result),
        mistakes_section(predictions, names, "validation"),
        correct_section(predictions, names),
        Section(
            "Attention",
            attention_parts(model, predictions.source, predictions.preprocessing, names),
            "Where does it look?",
        ),
    ]


def training_sections(run: Run) -> list[Section]:
    if members := run.members:
        return [members_section(run, members)]
    return [course_section(run), *improvement_sections(run), speed_section(run)]


def members_section(run: Run, members: Sequence[Run]) -> Section:
    """Of an ensemble, the networks that it is made of."""
    rows = []
    for member in members:
        info = member.info
        best, held = info["best"], info["data"]["val_images"]
        low, high = wilson_interval(round(best["val_top1"] * held), held)
        # Images of one group are not independent: of a part's few groups no interval is worth much.
        groups = info["data"].get("val_groups")
        rows.append(
            (
                member.path.name,
                info["epochs_trained"],
                f"{held:,}",
                percent(best["val_top1"]),
                f"of {groups:,} groups" if groups else f"{100 * low:.1f} to {100 * high:.1f}",
                f"{info['wall_seconds']:.0f} s",
            )
        )
    head = ("network", "epochs", "images held out", "accuracy on them", "95 % interval", "time")
    return Section(
        "Its networks",
        [Table(head, rows)],
        "Each learnt from all the images but its own part. How much do they differ?",
    )


def test_section(run: Run, evaluation: Evaluation | None) -> Section:
    lead = "Images that neither trained it nor chose anything: the number to report."
    if evaluation is None:
        text = "Not looked at yet: a test split is worth most when it is looked at once, when everything is decided."
        return Section("Test images", [Text(text), Code(f"vitling evaluate {quoted(run)}")], lead)
    looks = run.info.get("test_looks", 1)
    looked = {
        "looked at": "once" if looks == 1 else f"{looks} times; each look makes the number a little less trustworthy"
    }
    return Section("Test images", [Facts({**evaluation_facts(evaluation), **looked})], lead)


def other_evaluations(run: Run) -> list[Section]:
    """What `evaluate` measured on other data, other weights or other sizes."""
    rows = []
    for path in sorted(run.path.glob("evaluation-*.json")):
        if path.name == "evaluation-test.json":
            continue
        one = Evaluation.read(path)
        size = "{} x {}".format(*one.img_size) if one.img_size else "as trained"
        size += ", more views" if one.tta else ""
        rows.append((one.data, one.split, one.weights, size, one.images, *shares(one)))
    head = ("data", "split", "weights", "size", "images", "accuracy", "95 % interval")
    return [Section("Other evaluations", [Table(head, rows)])] if rows else []


def shares(one: Evaluation) -> tuple[str, str]:
    low, high = one.top1_interval
    return percent(one.top1), f"{100 * low:.1f} to {100 * high:.1f}"


def evaluation_facts(one: Evaluation) -> dict[str, object]:
    return {
        "accuracy": accuracy_with_interval(one.top1, one.top1_interval, one.images),
        **({} if one.top5 is None else {"among the first five": percent(one.top5)}),
        "macro-F1": f"{one.macro_f1:.3f}: every class counts the same",
        **one.agreement_facts(),
        "loss": f"{one.loss:.3f}",
        "calibration error (ECE)": f"{one.ece:.3f}: the mean distance of confidence and accuracy, as trained",
    }


def diagnosis_sections(run: Run) -> list[Section]:
    """What `vitling diagnose` found, where its page lies in the run."""
    numbers, page = run.path / "diagnosis.json", run.path / "diagnosis.html"
    found = read_json(numbers, list[DiagnosisRecord]) if numbers.exists() else None
    if not found:
        text = "Not diagnosed yet: what limits it, which images mislead it, and what to do."
        return [Section("Diagnosis", [Text(text), Code(f"vitling diagnose {quoted(run)}")])]
    first = found[0]
    parts: list = [Text(first.get("headline") or "Nothing to do.")]
    for one in first.get("advice") or []:
        parts += [Text(f"→ {one['advice']}")] if one.get("advice") else []
        parts += [Code(one["command"])] if one.get("command") else []
    parts += [Links([Link.between("the whole diagnosis", page, run.path / PAGE)])] if page.exists() else []
    return [Section("Diagnosis", parts, "What limits it?")]


def summary_facts(run: Run, test: Evaluation | None) -> dict[str, str]:
    """The few lines that most readers want; the test split is among them only after `evaluate` looked at it."""
    info, recipe = run.info, run.recipe
    best, data = info["best"], info["data"]
    images = data["val_images"]
    correct = round(best["val_top1"] * images)
    called = "out-of-fold accuracy" if run.members else "validation accuracy"
    if groups := data.get("val_groups"):  # whose interval is over groups, among the numbers of validation
        facts = {called: f"{percent(best['val_top1'])} of {images:,} images of {groups:,} groups"}
    else:
        facts = {called: accuracy_with_interval(best["val_top1"], wilson_interval(correct, images), images)}
    if test is not None:
        looks = info.get("test_looks", 1)
        facts["test accuracy"] = accuracy_with_interval(test.top1, test.top1_interval, test.images)
        facts["test accuracy"] += f", looked at {'once' if looks == 1 else f'{looks} times'}"
    if members := run.members:
        facts["model"] = (
            f"an ensemble of {len(members)} x {members[0].recipe.model}, {info['parameters'] / 1e6:.2f} M parameters in all"
        )
        facts["what to expect"] = (
            "the accuracy above is of single networks, each asked about images it did not learn from; together they are usually a little better"
        )
    else:
        facts["best epoch"] = (
            f"{best['epoch']} of {info['epochs_trained']}; it was chosen by validation accuracy, so expect a little less on new images"
        )
        facts["model"] = f"{recipe.model}, {info['parameters'] / 1e6:.2f} M parameters, {recipe.method} training"
    return {
        **facts,
        **beginning_facts(info),
        "data": f"{data['name']}: {data['train_images']:,} training and {data['val_images']:,} validation images, {len(run.class_names)} classes",
        "stopped": f"{info['stopped']}, after {info['wall_seconds']:.0f} s",
    }


def accuracy_with_interval(top1: float, interval: Sequence[float], images: int) -> str:
    low, high = interval
    return f"{percent(top1)} of {images:,} images (95 % interval {100 * low:.1f} to {100 * high:.1f})"


def _validated_on(run: Run) -> str:
    if run.members:
        return "Every training image, by the network that did not learn from it: is that correct as often as it is confident?"
    return "The images that chose the best epoch: is it correct as often as it is confident?"


def classes_section(result: Evaluation) -> Section:
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
    if any(row.get("specificity") is not None for row in result.per_class):
        head = (
            "class",
            "images",
            "sensitivity",
            "95 % interval",
            "specificity",
            "95 % interval",
            "AUROC",
            "95 % interval",
        )
        caption = "Each class against all others, as screening and diagnosis are judged."
        parts.append(Table(head, [_as_screening(row) for row in result.per_class], caption))
    split = {"val": "validation"}.get(result.split, result.split)
    return Section("Which classes", parts, f"Which classes does it confuse? Of {result.images:,} {split} images.")


def _as_screening(row: dict) -> tuple:
    """A class as a test for it: what it finds, what it leaves alone, how it ranks."""

    def shown(value: float | None, interval: Sequence[float] | None, scale: int, form: str) -> tuple[str, str]:
        if value is None:
            return "", ""
        between = "" if interval is None else f"{scale * interval[0]:{form}} to {scale * interval[1]:{form}}"
        return (percent(value) if scale == 100 else f"{value:{form}}"), between

    return (
        row["name"],
        row["images"],
        *shown(row["accuracy"], row["interval"], 100, ".1f"),
        *shown(row.get("specificity"), row.get("specificity_interval"), 100, ".1f"),
        *shown(row.get("auroc"), row.get("auroc_interval"), 1, ".3f"),
    )


def mistakes_section(seen: Predictions, class_names: Sequence[str], split: str) -> Section:
    """Every mistake, the most confident first, as far as a page has room for them."""
    lead = f"What does it get wrong? Of {len(seen.labels):,} {split} images."
    probabilities = seen.logits.float().softmax(dim=1)
    wrong = confident_mistakes(probabilities, seen.labels, count=len(seen.labels))
    if not len(wrong):
        return Section("Mistakes", [Text("No mistakes on these images.")], lead)
    tiles: list[Tile] = []
    used = 0
    for index in wrong[:GALLERY_IMAGES].split(256):
        pixels = next(iter(seen.source.batches([index])))["image"]
        for i, image in zip(index.tolist(), pixels, strict=True):
            uri = encode(image, TILE)
            used += len(uri)
            if used > GALLERY_BYTES:
                break
            share, guess = probabilities[i].max(dim=0)
            name = str(seen.names[i]) if len(seen.names) else f"image {i}"
            truth = class_names[seen.labels[i]]
            tiles.append(Tile(uri, name, truth, class_names[guess], float(share), image.shape[-1] < TILE))
        if used > GALLERY_BYTES:
            break
    caption = "The most confident first: look here for wrong labels, odd images and missing views."
    if len(tiles) < len(wrong):
        caption += f" {len(tiles):,} of {len(wrong):,}: the page has no room for more."
    return Section("Mistakes", [Gallery(tiles, caption)], lead)


def correct_section(seen: Predictions, class_names: Sequence[str]) -> Section:
    """As a contrast, correct predictions spread over the split."""
    probabilities = seen.logits.float().softmax(dim=1)
    correct = (probabilities.argmax(dim=1) == seen.labels).nonzero().flatten()
    shown = torch.linspace(0, len(correct) - 1, min(SHOWN, len(correct))).long()
    pictures = labelled_pictures(seen.source, correct[shown], probabilities, class_names)
    part = Strip([pictures], "Spread over the validation images.") if pictures else Text("None.")
    return Section("Correct predictions", [part])


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
