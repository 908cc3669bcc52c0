"""What is in the data, and the recipe for it with its reasons."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitling.cli.terminal.console import console, entry, print_line
from vitling.cli.terminal.words import duration

if TYPE_CHECKING:
    from vitling.planning.plan import Plan
    from vitling.planning.survey import Survey


def plan_lines(plan: "Plan", data: str) -> list[str]:
    """What `train` says about the recipe that was chosen for it, and about settings that harm each other."""
    chosen = ", ".join(f"{choice.what} {choice.value}" for choice in plan.choices)
    why = [f"planned: {chosen} (`vitling plan {data}` says why; --recipe takes another)"] if chosen else []
    return why + [f"warning: {line}" for line in plan.warnings]


def show_plan(plan: "Plan", data: str, settings: list[str], saved: Path | None) -> None:
    """The data, the choices with their reasons, time and accuracy, warnings, and what to do next."""
    for what, text in _survey_rows(plan.survey):
        entry(what, text)
    console.print()
    for choice in plan.choices:
        entry(choice.what, choice.value, choice.reason, choice.evidence)
    speed, band = plan.speed, plan.expected
    assert speed is not None  # only a brief plan lacks it
    assert band is not None
    steps = f"{speed.steps_per_epoch} steps of {1000 * speed.step:.0f} ms in an epoch, {plan.recipe.epochs} epochs"
    where = (
        f"measured on this machine ({plan.device}, threads: {speed.threads}); other programs slow it down"
        if speed.threads
        else f"worked out for {plan.device} in {plan.precision} from multiply-adds, not measured; reading images may take longer"
    )
    if speed.first:
        where += "; with what the method trains first"
    entry("time", f"about {duration(speed.run_seconds(plan.recipe))}", f"{steps}; {where}")
    entry("expect", f"{100 * band.low:.0f} to {100 * band.high:.0f} % accuracy", band.reason)
    console.print()
    for line in [f"warning: {line}" for line in plan.warnings] + ([f"note: {plan.hint}"] if plan.hint else []):
        print_line(line)
    if saved:
        print_line(f"next: vitling train {data} --recipe {saved}")
    else:
        print_line(f"next: vitling train {' '.join([data, *settings])}    (does this)")
        print_line(f"      vitling plan {data} --save recipe.yaml    (to change it first)")


def count_rows(survey: "Survey") -> list[tuple[str, str]]:
    """What the data is, one line each."""
    counts = ", ".join(f"{count:,} {split}" for split, count in survey.images.items())
    least, most = (extreme(survey.class_counts, key=survey.class_counts.__getitem__) for extreme in (min, max))
    few, many = survey.class_counts[least], survey.class_counts[most]
    balance = (
        f"{few:,} training images each" if few == many else f"{few:,} ({least}) to {many:,} ({most}) training images"
    )
    sizes = [f"{height} x {width}" for height, width in dict.fromkeys((survey.smallest, survey.largest))]
    kind = {1: "grey", 3: "colour"}.get(survey.channels, f"{survey.channels} channels")
    return [
        ("data", f"{survey.name}: {counts} images"),
        ("classes", f"{len(survey.class_counts):,}, {balance}"),
        ("images", f"{' to '.join(sizes)} pixels, {kind}, {survey.bits} bits"),
    ]


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
