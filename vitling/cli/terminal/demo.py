"""The demo's story: the data first, then which is better, whether the difference is significant, and why."""

from typing import TYPE_CHECKING

from vitling.cli.terminal.console import entry, heading, print_line, print_whole
from vitling.cli.terminal.plan import count_rows
from vitling.cli.terminal.words import duration, percent

if TYPE_CHECKING:
    from vitling.planning.plan import Plan
    from vitling.studies.demo import Story


def show_demo_plan(plan: "Plan", quiet: bool = False) -> None:
    """The first part of the demo: what is in the data, and the choice that the rest is about."""
    if quiet:
        return
    heading(f"1. Look at the data    (vitling plan {plan.recipe.data})")
    for what, text in count_rows(plan.survey):
        entry(what, text)
    family = plan.choices[0]
    entry(family.what, family.reason)
    heading(
        "\n2. Train a plain ViT, and what `vitling train` takes by default, a ViT between convolutions, for about the same time"
    )


def show_story(story: "Story") -> None:
    """The end of the demo: which is better, whether the difference is significant, why, and what to try next."""
    first, second, comparison = story.first, story.second, story.comparison
    heading(f"\n3. Compare them on {first.evaluation.images} digits that neither has seen")
    head = ["model", "test accuracy", "95 % interval", "parameters", "epochs", "time"]
    cells = []
    for contender in (first, second):
        info, result = contender.run.info, contender.evaluation
        low, high = result.top1_interval
        measured = [percent(result.top1), f"{100 * low:.1f} to {100 * high:.1f}"]
        cost = [f"{info['parameters']:,}", str(info["epochs_trained"]), duration(info["wall_seconds"])]
        cells.append([contender.name, *measured, *cost])
    print_whole(head, cells)
    better, worse = (first, second) if comparison.only_first > comparison.only_second else (second, first)
    counts = sorted((comparison.only_first, comparison.only_second), reverse=True)
    conclusion = (
        f"so {better.name} is better, and the difference is significant"
        if comparison.significant
        else "so the difference is not significant on so few images"
    )
    lines = [
        f"Only {better.name} is correct on {counts[0]} digits, only {worse.name} on {counts[1]}: {conclusion} "
        f"(p = {comparison.p_value:.2g}, McNemar's exact test).",
        "That holds for these two models; another seed makes others, and `vitling study` compares over several.",
    ]
    print_line("\n".join(lines))
    heading("\n4. Say why    (vitling diagnose)")
    best = better.run.path
    lines = [f"{contender.name}: {contender.verdict}" for contender in (first, second)]
    lines += [
        f"page: {story.diagnosis}",
        "",
        "What to try next:",
        f"  vitling evaluate {best}    every number, per class",
        f"  vitling export {best}      ONNX, checked before it is written",
        "  vitling plan path/to/your/images     one subfolder per class; then vitling train, the same way",
        "  vitling list recipes",
    ]
    print_line("\n".join(lines))
