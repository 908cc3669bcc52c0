"""What is in the data, and the recipe for it with its reasons."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from vitling.cli.terminal.console import console, entry, print_line
from vitling.cli.terminal.words import duration

if TYPE_CHECKING:
    from vitling.planning.plan import Plan
    from vitling.planning.survey import Survey


PUBLISHED = "of everyday photographs, published weights know more than any training from scratch"


def plan_lines(plan: "Plan", data: str) -> list[str]:
    """What `train` says about the recipe that was chosen for it, and about settings that harm each other."""
    chosen = ", ".join(f"{choice.what} {choice.value}" for choice in plan.choices)
    why = (
        [f"planned: {chosen} (`vitling plan {shlex.quote(data)} --why` gives the reasons; --recipe takes another)"]
        if chosen
        else []
    )
    return why + [f"warning: {line}" for line in plan.warnings]


def pretraining_lines(plan: "Plan") -> list[str]:
    """The same of `pretrain`."""
    chosen = ", ".join(f"{choice.what} {choice.value}" for choice in plan.choices)
    return [f"planned: {chosen}", *(f"warning: {line}" for line in plan.warnings)]


def show_plan(plan: "Plan", words: list[str], saved: Path | None, why: bool, device: str | None = None) -> None:
    """What is in the data, what would be trained, time and accuracy, what is wrong, and what to do next; with `why`, the reasons.

    `words` are those of the command, without its name; `device` is one that is elsewhere, as it was called there.
    """
    rows = _survey_rows(plan.survey) if why else [*count_rows(plan.survey), *_problems(plan.survey)]
    for what, text in rows:
        entry(what, text)
    if why:
        console.print()
        for choice in plan.choices:
            entry(choice.what, choice.value, choice.reason, choice.evidence)
    else:
        for what, text in _choice_rows(plan):
            entry(what, text)
    seconds, band = plan.seconds, plan.expected
    assert seconds is not None  # only a brief plan lacks it
    entry("time", f"about {duration(seconds)}", _time_reason(plan) if why else "")
    if facts := plan.survey.numbers:
        median = f"{facts.baseline_mae:.4g}: the mean absolute error of always saying the median, {facts.median:.4g}"
        entry("to beat", median)
    elif band is None:
        entry("expect", "nothing: a band is known of one class per image only; validation says what it reaches")
    else:
        correct = f"{100 * band.low:.0f} to {100 * band.high:.0f} %"
        entry("expect", f"{correct} of new images named correctly (accuracy)", band.reason if why else "")
    console.print()
    for line in plan.warnings:
        print_line(f"warning: {line}")
    if plan.hint:
        print_line(f"note: {plan.hint if why else PUBLISHED}")
    command = shlex.join(words)
    # A recipe says nothing of the precision, and the time above is for this one.
    half = ["--precision", plan.precision] if plan.precision != "no" else []
    there = f"    (on {plan.device}; here it plans for this machine)" if device and not saved else ""
    print_line(
        f"next: vitling train {shlex.join([words[0], '--recipe', str(saved), *half]) if saved else command}{there}"
    )
    again = shlex.join([*words, *(["--device", device] if device else [])])
    if not why:
        print_line(f"why:  vitling plan {again} --why")
    elif not saved:
        print_line(f"      vitling plan {again} --save recipe.yaml    (to change it first)")


def _choice_rows(plan: "Plan") -> list[tuple[str, str]]:
    """What would be trained, in two lines."""
    recipe, chosen = plan.recipe, {choice.what: choice for choice in plan.choices}
    model = chosen["model"].value if "model" in chosen else recipe.model
    size = recipe.img_size
    height, width = size if isinstance(size, tuple) else (size, size)
    pixels = f", on images of {height} x {width} pixels" if size else ""
    changed = chosen.get("augmentation")
    changes = f", changed a little each time: {changed.reason.partition(';')[0]}" if changed else ""
    if changed and changed.value == "none":
        changes = ""
    through = f"{recipe.epochs:,} times through the images"
    if plan.epochs is not None and plan.epochs < 1:
        through = f"{100 * plan.epochs:.2g} % of the images, once"
    first = [("first", chosen["pre-training"].value)] if recipe.unlabelled else []
    return [*first, ("train", f"{model}{pixels}"), ("epochs", f"{through}{changes}")]


def _problems(survey: "Survey") -> list[tuple[str, str]]:
    """What is wrong with the data, counted; the whole story is told with --why."""
    rows = []
    if survey.unreadable:
        rows.append(("unreadable", f"{_images(len(survey.unreadable))}, such as {survey.unreadable[0]}"))
    if survey.copies and survey.copies.count:
        rows.append(("copies", f"{_images(survey.copies.count)} in train, copied from others there"))
    for split, leaks in (survey.leaks or {}).items():
        if leaks.count:
            of = f"{_images(leaks.count)} in {split} that training also shows"
            rows.append(("leaks", f"{of}: remove them, or the accuracy flatters"))
    return rows + [("note", note) for note in survey.notes]


def _images(count: int) -> str:
    return f"{count:,} image" + ("s" if count > 1 else "")


def _time_reason(plan: "Plan") -> str:
    speed = plan.speed
    assert speed is not None
    steps = f"{speed.steps_per_epoch} steps of {1000 * speed.step:.0f} ms in an epoch, {plan.recipe.epochs} epochs"
    where = (
        f"measured on this machine ({plan.device}, threads: {speed.threads}); other programs slow it down"
        if speed.threads
        else f"worked out for {plan.device} in {plan.precision} from multiply-adds, not measured; reading images may take longer"
    )
    return f"{steps}; {where}" + ("; with what the method trains first" if speed.first else "")


def count_rows(survey: "Survey") -> list[tuple[str, str]]:
    """What the data is, one line each."""
    counts = ", ".join(f"{count:,} {split}" for split, count in survey.images.items())
    sizes = [f"{height} x {width}" for height, width in dict.fromkeys((survey.smallest, survey.largest))]
    kind = {1: "grey", 3: "colour"}.get(survey.channels, f"{survey.channels} channels")
    return [
        ("data", f"{survey.name}: {counts} images"),
        _label_row(survey),
        ("images", f"{' to '.join(sizes)} pixels, {kind}, {survey.bits} bits"),
    ]


def _label_row(survey: "Survey") -> tuple[str, str]:
    if facts := survey.numbers:
        scale = ", learnt as log(1 + number)" if facts.scale == "log1p" else ""
        return (
            "numbers",
            f"{facts.lowest:.4g} to {facts.highest:.4g}, median {facts.median:.4g}, standard deviation {facts.spread:.4g}{scale}",
        )
    if survey.labels_per_image is not None:
        return _several_row(survey, survey.labels_per_image)
    least, most = (extreme(survey.class_counts, key=survey.class_counts.__getitem__) for extreme in (min, max))
    few, many = survey.class_counts[least], survey.class_counts[most]
    balance = (
        f"{few:,} training images each" if few == many else f"{few:,} ({least}) to {many:,} ({most}) training images"
    )
    return "grades" if survey.labels == "grades" else "classes", f"{len(survey.class_counts):,}, {balance}"


def _several_row(survey: "Survey", several: dict[str, float]) -> tuple[str, str]:
    """Several labels per image: how many an image has, and which are rare."""
    rare = ", ".join(f"{name} on {survey.class_counts[name]:,}" for name in survey.rarest[:3])
    each = f"{several['mean']:.2g} per image on average and {several['most']:.0f} at most, none on {100 * several['without']:.0f} %"
    return "labels", f"{len(survey.class_counts):,}, {each} of the training images; the rarest: {rare}"


def _survey_rows(survey: "Survey") -> list[tuple[str, str]]:
    """What was found in the data, one line each."""
    rows = count_rows(survey)
    if survey.looked_at is not None and survey.looked_at < survey.total - len(survey.unreadable):
        rows.append(("looked at", f"{survey.looked_at:,} of them, evenly spaced; what follows is about those"))
    if survey.unreadable:
        shown = ", ".join(survey.unreadable[:5]) + (", ..." if len(survey.unreadable) > 5 else "")
        rows.append(("unreadable", f"{len(survey.unreadable):,}: {shown}"))
    if survey.copies and survey.copies.count:
        pairs = "; ".join(f"{copy} = {of}" for copy, of in survey.copies.examples[:3])
        rows.append(("copies", f"of training images among themselves, {survey.copies.count:,}: {pairs}"))
    for split, leaks in (survey.leaks or {}).items():
        if leaks.count:
            pairs = "; ".join(f"{copy} = {of}" for copy, of in leaks.examples[:3])
            text = (
                f"copies of training images in {split}, {leaks.count:,}: {pairs}. Remove them, or the accuracy flatters"
            )
            rows.append(("leaks", text))
    return rows + [("note", note) for note in survey.notes]
