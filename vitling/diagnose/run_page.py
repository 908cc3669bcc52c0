"""The page of a training run, RUN/report.html: training, test, classes, images, inside, and how to use it.

It is written when a run has been trained, and again when it is evaluated, diagnosed or improved. What it takes predictions to show is
kept from the page that is there, as long as that one is of the same weights.
"""

import shlex
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
from vitling.diagnose.overlay import attention_map, draw_overlay
from vitling.errors import UserError
from vitling.evaluation.calibration import reliability_curve
from vitling.evaluation.intervals import wilson_interval
from vitling.evaluation.metrics import Evaluation, measure
from vitling.evaluation.predictions import Predictions, predict_validation
from vitling.evaluation.temperature import Calibration, calibrate
from vitling.recipes import to_yaml
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
    counted,
    encode,
    kept_sections,
    percent,
    write_page,
)
from vitling.runs.run import FIRST_STAGE, Run
from vitling.training.first_stage import seen_tests
from vitling.validation.documents import read_json

SHOWN = 12  # pictures in a strip
TILE = 96  # CSS pixels
GALLERY_BYTES, GALLERY_IMAGES = 5_000_000, 3000  # at most, of the mistakes: a page is to be sent by mail
PAGE = "report.html"
OF_ANY_LABELS = ("predict", "export", "train", "serve")  # commands that know other labels than classes


class ImprovementRecord(TypedDict, total=False):
    """Of improve.json, what a run's page repeats."""

    sentence: str


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
        from vitling.diagnose.numbers_page import build_numbers_page  # which takes parts of this one

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


# ---------------------------------------------------------------------------------------------------------------------
# Training


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
        rows.append(
            (
                member.path.name,
                info["epochs_trained"],
                f"{held:,}",
                percent(best["val_top1"]),
                f"{100 * low:.1f} to {100 * high:.1f}",
                f"{info['wall_seconds']:.0f} s",
            )
        )
    head = ("network", "epochs", "images held out", "accuracy on them", "95 % interval", "time")
    return Section(
        "Its networks",
        [Table(head, rows)],
        "Each learnt from all the images but its own part. How much do they differ?",
    )


def course_section(run: Run) -> Section:
    return Section("Learning curves", learning_charts(run), "Did it learn, and did it stop learning?")


def speed_section(run: Run) -> Section:
    return Section("Speed", [Facts(speed_facts(run))])


def improvement_sections(run: Run) -> list[Section]:
    """What `vitling improve` made of it, where that lies beside the run under its own name."""
    folder = improvement_folder(run)
    if not (folder / "improve.json").exists():
        return []
    sentence = read_json(folder / "improve.json", ImprovementRecord).get("sentence")
    if not sentence:
        return []
    parts: list = [Text(f"{sentence[0].upper()}{sentence[1:]}.")]
    ways = [
        Link.between(title, folder / name, run.path / PAGE)
        for title, name in (("what was tried", "improve.html"), ("the page of the better run", f"winner/{PAGE}"))
        if (folder / name).exists()
    ]
    parts += [Links(ways)] if ways else []
    return [Section("Improvement", parts, "Is there something better?")]


# ---------------------------------------------------------------------------------------------------------------------
# Test


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


# ---------------------------------------------------------------------------------------------------------------------
# Inside


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


# ---------------------------------------------------------------------------------------------------------------------
# How to use it, and where it belongs


def use_sections(run: Run) -> list[Section]:
    """The commands that take it further, and everything needed to repeat it."""
    recipe, place, seen = run.recipe, quoted(run), run.preprocessing()
    alone = {
        "train it further": f"vitling train {shlex.quote(recipe.data)} --out {place} --more 30m",
        "try what could make it better, on its own data": f"vitling improve {place} --budget 1h",
    }
    commands = {
        f"{'labels' if run.kind == 'several' else 'classes'} and calibrated probabilities, for images or folders": f"vitling predict {place} IMAGE ...",
        "a page to drop images on, on this computer": f"vitling app {place}",
        "one file for other programs, compared with this model first": f"vitling export {place} --to onnx",
        "answers over HTTP": f"vitling serve {place}",
        **({} if run.members else alone),
    }
    if run.kind not in ("classes", "grades"):
        commands = {what: command for what, command in commands.items() if command.split()[1] in OF_ANY_LABELS}
    lines = "\n\n".join(f"# {what}\n{command}" for what, command in commands.items())
    python = f'import vitling\n\nfor prediction in vitling.predict({str(run.place)!r}, ["image.png"]):\n    print(prediction.classes, prediction.probabilities)'
    takes = {
        "images": f"of any size; it sees {'{} x {}'.format(*seen.size)} pixels, {counted(seen.channels, 'channel')}",
        "labels" if run.kind == "several" else "classes": ", ".join(run.class_names[:20])
        + (f" ... ({len(run.class_names)})" if len(run.class_names) > 20 else ""),
    }
    return [
        Section("Commands", [Facts(takes), Code(lines)]),
        Section("From Python", [Code(python)]),
        repeat_section(run),
    ]


def repeat_section(run: Run) -> Section:
    """What a run was made of."""
    info, recipe = run.info, run.recipe
    environment = info["environment"]
    origin = {
        "data fingerprint": info["data"]["fingerprint"],
        "seed": recipe.seed,
        "precision": info["precision"],
        **{name: value for name, value in environment.items() if name != "command"},
    }
    return Section(
        "To repeat it", [Code(environment["command"]), Facts(origin), Code(to_yaml(recipe), "the whole recipe")]
    )


def quoted(run: Run) -> str:
    return shlex.quote(str(run.place))


def run_links(run: Run) -> list[Link]:
    """The pages that it belongs to: its study, its improvement, its diagnoses."""
    here, found = run.path.absolute(), []
    folders = list(here.parents)[:4]  # RUN is runs/NAME/fraction-1/seed-0 of a study
    for title, name, record in (("study", "study.html", "study.json"), ("improvement", "improve.html", "improve.json")):
        found += [(title, folder / name) for folder in folders if (folder / record).exists()][:1]
    beside = improvement_folder(run) / "improve.html"
    found += [("improvement", beside)] if beside.exists() else []
    stage = here / FIRST_STAGE / PAGE
    found += [("first stage, without labels", stage)] if stage.exists() else []
    found += [(page.stem.replace("-", " "), page) for page in sorted(here.glob("diagnosis*.html"))]
    return [Link.between(title, page, here / PAGE) for title, page in found]


def improvement_folder(run: Run) -> Path:
    """Where `vitling improve RUN` puts what it finds, unless it is told otherwise."""
    return run.path.absolute().with_name(f"{run.path.absolute().name}-improved")


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
    if stage := info.get("first_stage"):
        facts["first stage"] = first_stage_fact(stage)
    if seen := info.get("seen_tests"):
        facts["test images"] = f"{seen_tests(seen)}, so a test number is of images it has seen"
    return {
        **facts,
        "data": f"{data['name']}: {data['train_images']:,} training and {data['val_images']:,} validation images, {len(run.class_names)} classes",
        "stopped": f"{info['stopped']}, after {info['wall_seconds']:.0f} s",
    }


def data_notes(run: Run) -> list:
    """What a reader of the numbers should know of the data, as it was said when the training began."""
    return [Text(f"Note: {note}.") for note in run.info["data"].get("notes", [])]


def first_stage_fact(stage: Mapping) -> str:
    """What was learnt from before the labels."""
    left = sum(stage["left_out"].values())
    what = f"{stage['method']} on {counted(stage['images'], 'image')} without labels, in pretraining/"
    what += f"; {counted(left, 'image')} left out that the data validates or tests on" if left else ""
    return (
        f"{what}; test images may be among them (unlabelled_test=true), so a test number is of images it has seen"
        if stage["with_test"]
        else what
    )


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
    records, score = [record for record, _ in run.validations()], run.score
    if len(records) == 1:  # a dot is no curve
        head = ("epoch", "training loss", "validation loss", f"validation {score.name}")
        only = records[0]
        values = (only["epoch"], f"{only.get('train_loss', float('nan')):.3f}", f"{only['val_loss']:.3f}")
        return [Table(head, [(*values, score.show(only[score.recorded]))], "The only validation.")]
    epochs = [record["epoch"] for record in records]
    loss = {"training": [r["train_loss"] for r in records], "validation": [r["val_loss"] for r in records]}
    reached = {"validation": [r[score.recorded] for r in records]}
    for name in (key for key in records[-1] if key.startswith("val_") and key.endswith("_top1") and key != "val_top1"):
        reached[name.removeprefix("val_").removesuffix("_top1")] = [r.get(name) for r in records]
    charts = [
        Chart(plots.lines(epochs, loss, x="epoch", y="loss"), "Loss. Training includes augmentation and mixing."),
        Chart(
            plots.lines(epochs, reached, x="epoch", y=score.name, unit=score.of_images),
            f"{score.name[:1].upper()}{score.name[1:]} on validation.",
        ),
    ]
    gradients = run.gradients()
    if len(gradients) > 1:
        caption = (
            "Gradient norm per layer, at the last step before each validation. Fading or exploding layers stand out."
        )
        charts.append(Chart(plots.gradient_norms(gradients), caption))
    return charts


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
