"""The model card: what a user should know before using an exported model, made from what its run recorded.

Nothing is measured here. Test numbers are those that `vitling evaluate` left in the run; without them the card says so. Paths
of the machine that trained the model stay out of it.
"""

import html
import json
import os
import re
import shlex
from collections.abc import Mapping

import yaml

from vitling.data.bins import COVERAGE
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.sources.images import enlarged
from vitling.data.targets import Kind
from vitling.evaluation.intervals import wilson_interval
from vitling.evaluation.metrics import Evaluation
from vitling.evaluation.numbers import NumbersEvaluation
from vitling.evaluation.several import SeveralEvaluation
from vitling.evaluation.temperature import Calibration
from vitling.models import our_models
from vitling.recipes import to_dict
from vitling.runs.metadata import ModelMetadata
from vitling.runs.run import Run

SHOWN_CLASSES = 20
FITS = {
    "resize": "stretched to",
    "pad": "scaled into, and filled up with black to,",
    "crop": "scaled to cover, and cut in the middle to,",
}
VIEWS = (
    " The accuracies below are of the mean of the logits of an image and of {}, which `vitling predict` takes by itself; "
    "one pass through the network alone is a little less accurate."
)

OUT_OF_FOLD = (
    "\nOut of fold: each image by the one network that did not learn from it. The networks together, which these weights are, are usually "
    "a little better."
)
SHARED = re.compile(r"[\d,]+ (images|groups) are in both train and val\b")  # in a note of the data

# What a prediction calls what it found, and what there is a logit for.
ANSWERS: dict[Kind, tuple[str, str]] = {
    "classes": ("classes", "class"),
    "grades": ("classes", "grade"),
    "several": ("labels", "label"),
    "numbers": ("value", "bin of numbers"),
}


def render_card(run: Run, which: str, metadata: ModelMetadata, calibration: Calibration | None, place: str) -> str:
    """The card of a run's weights as Markdown. `place` is the name that timm loads the model by."""
    if run.kind == "several":
        return _label_card(run, which, metadata, calibration, place)
    if run.kind == "numbers":
        return _number_card(run, which, metadata, calibration, place)
    test = recorded_test(run, which)
    parts = [
        f"# {metadata.architecture} on {_plain(metadata.data)}",
        _first_lines(metadata, place),
        _summary(run, metadata),
        "## Use",
        _use(metadata, place),
        "## Results",
        _results(run, which, test),
        *(["## Per class", _per_class(test)] if test else []),
        "## Calibration",
        _calibration(calibration),
        "## Limits",
        _limits(run, metadata, test),
        "## Training",
        _training(run),
    ]
    return "\n\n".join(parts) + "\n"


def _label_card(run: Run, which: str, metadata: ModelMetadata, calibration: Calibration | None, place: str) -> str:
    """The same of a model of several labels per image."""
    test = _recorded_labels(run, which)
    parts = [
        f"# {metadata.architecture} on {_plain(metadata.data)}",
        _first_lines(metadata, place),
        _summary(run, metadata),
        "## Use",
        _use(metadata, place),
        "## Results",
        _results_in_words(run, which, test),
        *(["## Per label", _per_label(test)] if test else []),
        "## Probabilities and thresholds",
        _label_calibration(metadata, calibration),
        "## Limits",
        _label_limits(run, metadata, test),
        "## Training",
        _training(run),
    ]
    return "\n\n".join(parts) + "\n"


def _number_card(run: Run, which: str, metadata: ModelMetadata, calibration: Calibration | None, place: str) -> str:
    """The same of a model that predicts numbers."""
    path = run.path / _test_file(which)
    test = NumbersEvaluation.read(path) if path.exists() else None
    _, *limits = _limits(run, metadata, None).splitlines()
    parts = [
        f"# {metadata.architecture} on {_plain(metadata.data)}",
        _first_lines(metadata, place),
        _summary(run, metadata),
        "## Use",
        _use(metadata, place),
        "## Results",
        _results_in_words(run, which, test),
        "## Numbers and prediction intervals",
        _number_bins(metadata, calibration),
        "## Limits",
        "\n".join(["- It gives a number for any image, whatever the image shows.", *limits]),
        "## Training",
        _training(run),
    ]
    return "\n\n".join(parts) + "\n"


def _number_bins(metadata: ModelMetadata, calibration: Calibration | None) -> str:
    bins = metadata.target.numbers
    back = "" if bins.scale == "linear" else " on the scale log(1 + number); take exp(x) - 1 of the result"
    text = (
        f"The logits are of {len(bins)} bins, whose edges stand in the metadata. The number is the mean of their softmax over the bins' "
        f"centres{back}."
    )
    if calibration is None:
        return f"{text} Prediction intervals are not calibrated."
    return (
        f"{text} The ends of the {100 * COVERAGE:.0f} % prediction interval are the quantiles of the softmax of the logits divided by a temperature of "
        f"{calibration.temperature:.4f}, which was fitted on {calibration.images:,} validation images."
    )


def _recorded_labels(run: Run, which: str) -> SeveralEvaluation | None:
    path = run.path / _test_file(which)
    return SeveralEvaluation.read(path) if path.exists() else None


def _trust(run: Run, which: str, tested: bool) -> list[str]:
    """What a reader must know of the numbers."""
    looks = run.info.get("test_looks", 1)
    times = "once" if looks == 1 else f"{looks} times"
    return [
        f"\nThe test split was looked at {times}; each look makes a number worth less."
        if tested
        else "\nThe test split was not looked at, or there is none: no test number is known.",
        *(
            ["The weights were chosen by the validation number, so expect a little less on new images."]
            if which == "best" and not run.members
            else []
        ),
    ]


def _validation_notes(run: Run) -> list[str]:
    """Why the validation number is too good, where training noted that. Other notes may name files and patients, and stay out."""
    noted = run.info.get("data", {}).get("notes", [])
    notes = [f"{shared[0]}, so that number is too good" for shared in map(SHARED.search, noted) if shared]
    if run.validation_note:
        _, _, source = run.info["data"]["val_known"].partition("=")
        notes.append(run.validation_note.replace(source, _shorten(source)))
    return [f"\nOf the validation number: {_plain(note)}." for note in notes]


def _results_in_words(run: Run, which: str, test: SeveralEvaluation | NumbersEvaluation | None) -> str:
    record, images = validation_record(run, which), run.info.get("data", {}).get("val_images")
    rows, notes = [], []
    if record and images:
        rows.append(
            f"- validation, {run.score.name}: {run.score.show(record[run.score.recorded])} on {images:,} images"
        )
        notes = _validation_notes(run)
    if test:
        rows += [f"- test, {_plain(name)}: {value}" for name, value in test.facts().items()]
    return "\n".join([*rows, *notes, *_trust(run, which, bool(test))])


def _per_label(test: SeveralEvaluation) -> str:
    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}"

    head = "| label | images with it | average precision | AUROC | threshold | precision | recall | F1 |"
    lines = ["On the test split.", "", head, "|---|---|---|---|---|---|---|---|"]
    numbers = ("average_precision", "auroc", "threshold", "precision", "recall", "f1")
    lines += [
        f"| {_plain(row['name'])} | {row['positives']:,} | {' | '.join(shown(row[what]) for what in numbers)} |"
        for row in test.per_label
    ]
    return "\n".join(lines)


def _label_calibration(metadata: ModelMetadata, calibration: Calibration | None) -> str:
    c = calibration
    first = (
        "Not calibrated: a sigmoid of each logit gives the model's own probabilities."
        if c is None
        else f"Divide the logits by a temperature of {c.temperature:.4f} before the sigmoid of each (`vitling predict` does). It was fitted on "
        f"{c.images:,} validation images and takes their calibration error from {c.ece_before:.4f} to {c.ece_after:.4f}."
    )
    if metadata.thresholds is None:
        return f"{first} No thresholds were fitted: one half is taken for every label."
    shown = ", ".join(
        f"{_plain(name)} {value:.4f}" for name, value in zip(metadata.class_names, metadata.thresholds, strict=True)
    )
    return f"{first} An image has a label from this probability on, fitted on the validation images for the best F1 of each: {shown}."


def _label_limits(run: Run, metadata: ModelMetadata, test: SeveralEvaluation | None) -> str:
    first, *others = _limits(run, metadata, None).splitlines()
    first = f"- It knows its {len(metadata.class_names)} labels and nothing else; an image of something else may be given some of them."
    few = [row["name"] for row in test.per_label if row["positives"] < 30] if test else []
    if few:
        others.insert(0, f"- Labels on fewer than 30 test images: {len(few)}. Their numbers are rough.")
    return "\n".join([first, *others])


def hub_header(run: Run, which: str, metadata: ModelMetadata) -> str:
    """What the Hugging Face hub reads at the head of a card; test numbers only where they were recorded."""
    header: dict = {
        "library_name": "timm",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "timm", "vitling"],
    }
    if run.kind == "numbers":
        header |= {"pipeline_tag": "other", "tags": ["image-regression", "timm", "vitling"]}
        return f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---\n\n"
    if run.kind == "several":
        header["tags"].append("multi-label-image-classification")
        return f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---\n\n"
    if test := recorded_test(run, which):
        measured = [{"type": "accuracy", "name": "top-1", "value": test["top1"]}]
        measured.append({"type": "f1", "name": "macro-F1", "value": test["macro_f1"]})
        result = {
            "task": {"type": "image-classification"},
            "dataset": {"type": metadata.data, "name": metadata.data, "split": "test"},
            "metrics": measured,
        }
        header["model-index"] = [{"name": f"{metadata.architecture} on {metadata.data}", "results": [result]}]
    return f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---\n\n"


def recorded_test(run: Run, which: str) -> dict | None:
    """The evaluation of these weights on the run's own test split, if there was one."""
    path = run.path / _test_file(which)
    return vars(Evaluation.read(path)) if path.exists() else None


def _test_file(which: str) -> str:
    return "evaluation-test.json" if which == "best" else f"evaluation-test-{which}.json"


def validation_record(run: Run, which: str) -> dict | None:
    """The validation at which these weights were saved."""
    records = run.metrics()
    if not records:
        return None
    if which == "last":
        return records[-1]
    # Not always the highest one: keep=last_good takes the last that is nearly as good.
    chosen = run.info.get("best", {}).get("epoch")
    highest = max(records, key=lambda r: (r[run.score.recorded], -r["val_loss"]))
    return next((record for record in reversed(records) if record["epoch"] == chosen), highest)


def _summary(run: Run, metadata: ModelMetadata) -> str:
    names, info, recipe = metadata.class_names, run.info, run.recipe
    start = (
        f"started from {_plain(_shorten(recipe.init))}"
        if recipe.init
        else "trained from scratch, without pre-trained weights"
    )
    size = f" of {info['parameters'] / 1e6:.2f} M parameters" if "parameters" in info else ""
    shown = ", ".join(map(_plain, names[:SHOWN_CLASSES])) + (
        f" and {len(names) - SHOWN_CLASSES} more" if len(names) > SHOWN_CLASSES else ""
    )
    text = f"An image classifier{size}, {start}, by vitling {metadata.vitling}. It has {metadata.target.in_words}: {shown}."
    if metadata.labels == "numbers":
        text = f"A model{size} that predicts a number for an image, {start}, by vitling {metadata.vitling}: {metadata.target.numbers.in_words}."
    if not run.finished:
        text += "\n\n**The training was not finished** when this was exported; " + unfinished(run) + "."
    return text


def unfinished(run: Run) -> str:
    """How far a run got that did not end."""
    records = run.metrics()
    epoch = f"the last validation was after epoch {records[-1]['epoch']} of {run.recipe.epochs}" if records else ""
    return ", ".join(filter(None, [run.info.get("stopped") or f"its status is {run.info.get('status')}", epoch]))


def _first_lines(metadata: ModelMetadata, place: str) -> str:
    """What a reader needs before anything else; a model of ours is unknown to timm until vitling is imported."""
    ours = metadata.architecture in our_models()
    why = "  # after vitling, which adds this model to it" if ours else ""
    model, name = (json.dumps(text, ensure_ascii=False) for text in (place.removeprefix("local-dir:"), place))
    code = (
        f'import vitling\nimport timm{why}\n\nprint(vitling.predict({model}, "IMAGE")[0].{ANSWERS[metadata.labels][0]})\n'
        f"model = timm.create_model({name}, pretrained=True).eval()"
    )
    return f"{_fenced('pip install vitling')}\n\n{_fenced(code, 'python')}"


def _use(metadata: ModelMetadata, place: str) -> str:
    seen = metadata.preprocessing
    model = place.removeprefix("local-dir:")
    command = f"vitling predict {shlex.quote(model)} IMAGE..."
    where = "" if model == place else "Run it, and the lines above, beside this folder, or give its whole path. "
    return (
        f"{_fenced(command)}\n\n"
        f"{where}Input: {seen.channels} x {seen.size[0]} x {seen.size[1]} (channels, height, width). An image is {_fitting(seen)} "
        f"({seen.interpolation}, antialiased), scaled so that a pixel of {seen.max_value} becomes 1, then normalised with mean {_numbers(seen.mean)} and "
        f"standard deviation {_numbers(seen.std)}. Output: a logit per {ANSWERS[metadata.labels][1]}, in the order of `label_names` in config.json."
        f"{_views(seen)}"
    )


def _views(seen: Preprocessing) -> str:
    others = ["its four corners"] * seen.test_crops + ["the image moved a little, twice"] * seen.test_shifts
    if seen.test_mirror:
        others.append("the mirror images of all these" if others else "its mirror image")
    return VIEWS.format(" and ".join(others)) if others else ""


def _fitting(seen: Preprocessing) -> str:
    if seen.test_crop is None:
        return f"{FITS[seen.fit]} that size"
    height, width = enlarged(seen.size, seen.test_crop)
    return f"{FITS[seen.fit]} {height} x {width}, of which the centre of that size is cut out"


def _results(run: Run, which: str, test: dict | None) -> str:
    rows = [
        "| split | images | top-1 | 95 % interval | top-5 | macro-F1 | calibration error |",
        "|---|---|---|---|---|---|---|",
    ]
    record, images = validation_record(run, which), run.info.get("data", {}).get("val_images")
    notes: list[str] = []
    if held_out := _held_out(run):
        over = f", over {held_out['groups']:,} groups" if held_out["groups"] else ""
        rows.append(_row("out of fold", held_out, over))
        notes = [OUT_OF_FOLD, *_validation_notes(run)]
    elif record and images:
        low, high = wilson_interval(round(record["val_top1"] * images), images)
        groups = run.info["data"].get(
            "val_groups"
        )  # images of one are not independent, which that interval takes them for
        between = f"({groups:,} groups)" if groups else _between(low, high)
        rows.append(f"| validation | {images:,} | {_percent(record['val_top1'])} | {between} | | | |")
        notes = _validation_notes(run)
    if test:
        rows.append(_row("test", test))
        facts = [f"- {_plain(name)}: {value}" for name, value in Evaluation(**test).agreement_facts().items()]
        rows += ["", *facts] if facts else []
    return "\n".join([*rows, *notes, *_trust(run, which, bool(test))])


def _held_out(run: Run) -> dict | None:
    """Of an ensemble, what its networks said of the images that each held out; it has no validation of its own."""
    path = run.path / "evaluation-val.json"
    return vars(Evaluation.read(path)) if run.members and path.exists() else None


def _row(split: str, measured: dict, over: str = "") -> str:
    return (
        f"| {split} | {measured['images']:,} | {_percent(measured['top1'])} | {_between(*measured['top1_interval'])}{over} "
        f"| {_percent(measured['top5'])} | {measured['macro_f1']:.4f} | {measured['ece']:.4f} |"
    )


def _per_class(test: dict) -> str:
    rows = sorted((row for row in test["per_class"] if row["images"]), key=lambda row: row["accuracy"])
    head = (
        f"The worst {SHOWN_CLASSES} of {len(rows)} classes on the test split."
        if len(rows) > SHOWN_CLASSES
        else "On the test split, worst first."
    )
    lines = [head, "", "| class | images | accuracy | 95 % interval |", "|---|---|---|---|"]
    lines += [
        f"| {_plain(row['name'])} | {row['images']:,} | {_percent(row['accuracy'])} | {_between(*row['interval'])} |"
        for row in rows[:SHOWN_CLASSES]
    ]
    return "\n".join(lines)


def _calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return "Not calibrated: a softmax of the logits gives the model's own probabilities, which are often overconfident."
    c = calibration
    return (
        f"Divide the logits by a temperature of {c.temperature:.4f} before the softmax (`vitling predict` does). It was fitted on "
        f"{c.images:,} validation images and takes their calibration error from {c.ece_before:.4f} to {c.ece_after:.4f} and their "
        f"cross-entropy from {c.loss_before:.4f} to {c.loss_after:.4f}; on other images it will help less."
    )


def _limits(run: Run, metadata: ModelMetadata, test: dict | None) -> str:
    data = run.info.get("data", {})
    trained_on = f" of {data['train_images']:,} images" if "train_images" in data else ""
    lines = [
        f"- It knows its {len(metadata.class_names)} classes and nothing else: any other image is given one of them too, sometimes with confidence.",
        f"- It learned from the training split{trained_on} of {_plain(metadata.data)}. On images from another camera, place, time or group of people the numbers above do not hold; measure there first.",
        "- The intervals say how far chance in the choice of images moves a number, not how far another training would.",
    ]
    few = [row["name"] for row in test["per_class"] if 0 < row["images"] < 30] if test else []
    if few:
        lines.append(f"- {len(few)} of the classes have fewer than 30 test images; their accuracies are rough.")
    lines.append("- It was not examined for bias, nor for robustness against manipulated images.")
    return "\n".join(lines)


def _training(run: Run) -> str:
    info, environment = run.info, run.info.get("environment", {})
    data = info.get("data", {})
    facts = [f"- {name}: {_plain(str(value))}" for name, value in (
        ("data", data.get("name")),
        ("training images", data.get("train_images")),
        ("validation images", data.get("val_images")),
        ("data fingerprint", data.get("fingerprint")),
        ("epochs", info.get("epochs_trained")),
        ("wall time", f"{info['wall_seconds']:.0f} s" if "wall_seconds" in info else None),
        *((name, environment.get(name)) for name in ("vitling", "torch", "timm", "python", "processor")),
    ) if value is not None]  # fmt: skip
    recipe = yaml.safe_dump(_without_paths(to_dict(run.recipe)), sort_keys=False, allow_unicode=True)
    return "\n".join(facts) + f"\n\nThe whole recipe:\n\n{_fenced(recipe.rstrip(), 'yaml')}"


def _without_paths(value):
    """A card is public: of a path, only the last part is kept."""
    if isinstance(value, Mapping):
        return {key: _without_paths(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_paths(item) for item in value]
    return _shorten(value) if isinstance(value, str) else value


def _shorten(text: str) -> str:
    return os.path.basename(text.rstrip("/\\")) if os.path.isabs(text) or text.startswith("~") else text


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


def _between(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _numbers(values) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def _plain(text: str) -> str:
    """Names come from folders and files, whoever made those: as Markdown they are read as they are, on one line of a table too."""
    escaped = re.sub(r"[\\`*_\[\]|~$:#!@]", r"\\\g<0>", text)
    return " ".join(html.escape(escaped, quote=False).split())


def _fenced(text: str, language: str = "") -> str:
    """A block of code that nothing in it can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
