"""Parts that pages of runs share, whatever their labels are: how fast it was, what came to it, how to use it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from vitling.recipes import to_yaml
from vitling.reports import plots
from vitling.reports.page import (
    Chart,
    Code,
    Facts,
    Link,
    Links,
    Section,
    Table,
    Text,
    counted,
)
from vitling.runs.run import FIRST_STAGE, Run
from vitling.training.first_stage import seen_tests
from vitling.validation.documents import read_json

SHOWN = 12  # pictures in a strip
TILE = 96  # CSS pixels
PAGE = "report.html"
OF_ANY_LABELS = ("predict", "export", "train", "serve")  # commands that know other labels than classes


class ImprovementRecord(TypedDict, total=False):
    """Of improve.json, what a run's page repeats."""

    sentence: str


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


def data_notes(run: Run) -> list:
    """What a reader of the numbers should know of the data, as it was said when the training began."""
    notes = [*run.info["data"].get("notes", []), *([run.validation_note] if run.validation_note else [])]
    return [Text(f"Note: {note}.") for note in notes]


def beginning_facts(info: Mapping) -> dict[str, str]:
    """What was learnt from before the labels, and whether images that are tested on were among it."""
    facts = {}
    if stage := info.get("first_stage"):
        facts["first stage"] = _first_stage(stage, "pretraining/ of each fold" if "members" in info else "pretraining/")
    if seen := info.get("seen_tests"):
        facts["test images"] = f"{seen_tests(seen)}, so a test number is of images it has seen"
    return facts


def _first_stage(stage: Mapping, place: str) -> str:
    left = sum(stage["left_out"].values())
    what = f"{stage['method']} on {counted(stage['images'], 'image')} without labels, in {place}"
    what += f"; {counted(left, 'image')} left out that the data validates or tests on" if left else ""
    return (
        f"{what}; test images may be among them (unlabelled_test=true), so a test number is of images it has seen"
        if stage["with_test"]
        else what
    )


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
