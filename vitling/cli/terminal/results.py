"""What a model gives: its evaluation, diagnosis, predictions, exported file and page."""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from vitling.cli.terminal.console import console, print_line
from vitling.cli.terminal.numbers import show_number_predictions, show_numbers_evaluation
from vitling.cli.terminal.words import percent

if TYPE_CHECKING:
    from vitling.deploy.export import Exported
    from vitling.deploy.prediction import Prediction
    from vitling.deploy.predictor import LabelPrediction
    from vitling.diagnose.diagnosis import Diagnosis
    from vitling.evaluation.metrics import Evaluation
    from vitling.evaluation.numbers import NumbersEvaluation
    from vitling.evaluation.several import SeveralEvaluation


def show_evaluation(result: "Evaluation | SeveralEvaluation | NumbersEvaluation", run: Path) -> None:
    from vitling.evaluation.numbers import NumbersEvaluation
    from vitling.evaluation.several import SeveralEvaluation

    if isinstance(result, SeveralEvaluation):
        _show_several(result, run)
        return
    if isinstance(result, NumbersEvaluation):
        show_numbers_evaluation(result, run)
        return
    from vitling.evaluation.metrics import describe_point  # which imports torch

    low, high = result.top1_interval
    summary = Table(
        title=f"{escape(result.data)}, {result.split} split, {result.images:,} images",
        show_header=False,
        title_justify="left",
    )
    summary.add_row("top-1", f"{percent(result.top1)}   (95 % interval {100 * low:.2f} to {100 * high:.2f})")
    if result.real_top1 is not None:
        summary.add_row("top-1, ReaL's labels", percent(result.real_top1))
    for name, top1 in result.companions.items():
        summary.add_row(f"top-1 of the {name}", percent(top1))
    if result.top5 is not None:
        summary.add_row("top-5", percent(result.top5))
    summary.add_row("macro-F1", f"{result.macro_f1:.4f}")
    if result.balanced_accuracy is not None:
        agreement = [percent(result.balanced_accuracy)]
        agreement += ["-" if value is None else f"{value:.4f}" for value in (result.kappa, result.auroc)]
        summary.add_row("balanced, kappa, AUROC", "   ".join(agreement))
    if grades := result.grades:
        summary.add_row("MAE, expected grade", _with_ends(grades["mae"], grades["mae_interval"]))
        summary.add_row("MAE, likeliest grade", _with_ends(grades["mae_likeliest"], grades["mae_likeliest_interval"]))
        summary.add_row("kappa, quadratic", _with_ends(result.kappa_quadratic, result.kappa_quadratic_interval))
        summary.add_row("Spearman's rho", _with_ends(grades["spearman"], grades["spearman_interval"]))
        if "kendall" in grades:
            summary.add_row("Kendall's tau-b", _with_ends(grades["kendall"], grades["kendall_interval"]))
    summary.add_row("cross-entropy", f"{result.loss:.4f}")
    summary.add_row("calibration error (ECE)", f"{result.ece:.4f}")
    console.print(summary)
    rows = sorted((row for row in result.per_class if row["images"]), key=lambda row: row["accuracy"])
    shown = rows if len(rows) <= 20 else rows[:20]
    table = Table(
        "class",
        "images",
        "accuracy",
        "95 % interval",
        "specificity",
        "AUROC",
        title="worst 20 classes" if len(rows) > 20 else "per class, worst first",
        title_justify="left",
    )
    for row in shown:
        table.add_row(
            escape(row["name"]),
            f"{row['images']:,}",
            percent(row["accuracy"]),
            "{:.1f} to {:.1f}".format(*(100 * x for x in row["interval"])),
            *(
                "" if row.get(what) is None else form(row[what])
                for what, form in (("specificity", percent), ("auroc", "{:.3f}".format))
            ),
        )
    console.print(table)
    if len(result.class_names) <= 12:
        confusion = Table("truth \\ seen as", *map(escape, result.class_names), title="confusion", title_justify="left")
        for name, counts in zip(result.class_names, result.confusion, strict=True):
            confusion.add_row(escape(name), *(str(n) if n else "." for n in counts))
        console.print(confusion)
    if result.operating_point:
        where, found = describe_point(result.operating_point)
        print_line(f"{result.operating_point['positive']} or not, {where}:")
        print_line(f"  {found}")
    if result.groups:
        print_line(f"intervals are over {result.groups:,} groups: images of one are no independent witnesses")
    for note in result.notes:
        print_line(f"note: {note}")
    if result.kept:
        print_line(f"all numbers: {run / result.file_name}")
    if result.own:
        print_line(f"next: vitling diagnose {run}    (what limits it, and what to try)")


def _with_ends(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "not defined here"
    return f"{value:.4f}" + ("" if interval is None else "   (95 % interval {:.4f} to {:.4f})".format(*interval))


def _show_several(result: "SeveralEvaluation", run: Path) -> None:
    summary = Table(
        title=f"{escape(result.data)}, {result.split} split, {result.images:,} images",
        show_header=False,
        title_justify="left",
    )
    for name, value in result.facts().items():
        summary.add_row(name, value)
    console.print(summary)
    rows = sorted(result.per_label, key=lambda row: (row["average_precision"] is None, row["average_precision"]))
    title = "worst 20 labels" if len(rows) > 20 else "per label, worst first"
    table = Table(title=title, title_justify="left")
    table.add_column("label", overflow="fold", min_width=8)
    for name in ("images", "AP", "AUROC", "from", "precision", "recall", "F1"):
        table.add_column(name)
    for row in rows[:20]:
        low_high = row["average_precision_interval"]
        between = " ({:.2f} to {:.2f})".format(*low_high) if low_high else ""
        numbers = ("-" if row[what] is None else f"{row[what]:.3f}" for what in ("precision", "recall", "f1"))
        table.add_row(
            escape(row["name"]),
            f"{row['positives']:,}",
            "-" if row["average_precision"] is None else f"{row['average_precision']:.3f}{between}",
            "-" if row["auroc"] is None else f"{row['auroc']:.3f}",
            f"{row['threshold']:.3f}" + ("" if row["fitted"] else ", not fitted"),
            *numbers,
        )
    console.print(table)
    for note in result.notes:
        print_line(f"note: {note}")
    if result.kept:
        print_line(f"all numbers: {run / result.file_name}")
    if result.own:
        print_line(f"next: vitling predict {run} IMAGE ...")


SUMMARY_LINES = 8


def show_verdict(results: "list[Diagnosis]", page: Path | None = None) -> None:
    """Eight lines of each diagnosis at most: what it is, what is wrong, what to do; the page has the rest."""
    for diagnosis in results:
        lines = summary_lines(diagnosis, most=SUMMARY_LINES - bool(page))
        print_line(lines[0], style="bold")
        for line in lines[1:]:
            print_line(line)
    if page:
        print_line(f"page: {page}    (all numbers beside it: .json, .npz)")


def summary_lines(diagnosis: "Diagnosis", most: int = SUMMARY_LINES) -> list[str]:
    """The verdict, then findings with their commands, the most important first, then what could not be done."""
    from vitling.diagnose.verdict import advised, headline

    lines = [f"{diagnosis.name}: {headline(diagnosis)}"]
    if diagnosis.learning_curve is not None:
        lines.append(f"  {diagnosis.learning_curve.sentence}")
    for number, finding in enumerate(advised(diagnosis)):
        said = number == 0 and finding.state == "problem"  # by the headline
        advice = finding.advice[:1].upper() + finding.advice[1:]
        needed = 1 + bool(finding.command)
        if len(lines) + needed > most:
            break
        what = "to do" if said else "problem" if finding.state == "problem" else "note"
        lines.append(f"  {what}: {advice if said else f'{finding.sentence} {advice}'}")
        lines += [f"    {finding.command}"] if finding.command else []
    lines += [f"  note: {note}" for note in diagnosis.notes]
    return lines[:most]


def show_predictions(predictions: "list[Prediction]", form: str) -> None:
    """Print predictions as a table, JSON or CSV; images that were skipped end up on standard error, with the reason."""
    from vitling.deploy.predictor import LabelPrediction, NumberPrediction

    numbers = [p for p in predictions if isinstance(p, NumberPrediction)]
    seen = [p for p in predictions if p.skipped is None]
    labelled = [p for p in seen if isinstance(p, LabelPrediction)]
    if numbers:
        show_number_predictions(numbers, form)
    elif form == "json":
        print(json.dumps([vars(p) for p in predictions], indent=1, ensure_ascii=False))
    elif form == "csv":
        csv.writer(sys.stdout).writerows(_label_rows(labelled) if labelled else _class_rows(seen))
    else:
        console.print(_label_table(labelled) if labelled else _class_table(seen))
        if folders := {str(Path(p.attention).parent) for p in seen if p.attention}:
            print_line(f"where it looked: {', '.join(folders)}")
    for p in predictions:
        if p.skipped is not None:
            print(f"skipped {p.path}: {p.skipped}", file=sys.stderr)


def _class_rows(seen: "list[Prediction]") -> Iterator[tuple]:
    """The classes of every image; of grades with the expected one."""
    from vitling.deploy.predictor import GradePrediction

    graded = bool(seen) and isinstance(seen[0], GradePrediction)
    yield "path", "class", "probability", *(["expected"] if graded else [])
    for p in seen:
        expected = [p.expected] if isinstance(p, GradePrediction) else []
        yield from ((p.path, name, share, *expected) for name, share in zip(p.classes, p.probabilities, strict=True))


def _label_rows(seen: "list[LabelPrediction]") -> Iterator[tuple]:
    """Every label of every image, and whether the image has it."""
    yield "path", "label", "probability", "present"
    for p in seen:
        pairs = zip(p.classes, p.probabilities, strict=True)
        yield from ((p.path, name, share, int(name in p.labels)) for name, share in pairs)


def _class_table(seen: "list[Prediction]") -> Table:
    from vitling.deploy.predictor import GradePrediction

    graded = bool(seen) and isinstance(seen[0], GradePrediction)
    table = Table("image", "class", "probability", "then", *(["expected grade"] if graded else []))
    for p in seen:
        then = ", ".join(
            f"{name} {percent(share)}" for name, share in zip(p.classes[1:], p.probabilities[1:], strict=True)
        )
        expected = [f"{p.expected:.4g}"] if isinstance(p, GradePrediction) else []
        table.add_row(escape(p.path), escape(p.classes[0]), percent(p.probabilities[0]), escape(then), *expected)
    return table


def _label_table(seen: "list[LabelPrediction]") -> Table:
    """The labels that each image has, and the others, the likeliest first."""
    table = Table("image", "labels", "others")
    for p in seen:
        known = list(zip(p.classes, p.probabilities, strict=True))
        has, others = (
            ", ".join(f"{name} {percent(share)}" for name, share in known if (name in p.labels) is here)
            for here in (True, False)
        )
        table.add_row(escape(p.path), escape(has) or "none", escape(others))
    return table


def show_exported(exported: "Exported") -> None:
    from vitling.deploy.export import TARGETS  # which imports torch

    target = TARGETS[exported.to]
    size = sum(p.stat().st_size for p in [exported.path, *exported.path.glob("*")] if p.is_file())
    seen, temperature = exported.metadata.preprocessing, exported.metadata.temperature
    takes = "uint8 pixels" if exported.metadata.input == "pixels" else "normalised float32"
    lines = [f"wrote {exported.path} ({size / 1e6:.1f} MB, {exported.to})"]
    if target.takes_raw_input:
        lines.append(f"input: image, {takes}, batch x {seen.channels} x {seen.size[0]} x {seen.size[1]}")
        lines.append("output: logits, probabilities" + (f" (temperature {temperature:.3f})" if temperature else ""))
    if exported.accuracy is not None and exported.run_accuracy is not None:
        accuracies = f"{percent(exported.accuracy)} correct, the run {percent(exported.run_accuracy)}"
        lines.append(
            f"checked: {accuracies}, on {exported.checked_on} (same class: {percent(exported.agreement or 0)})"
        )
    elif exported.agreement is not None:
        lines.append(f"checked: the run's class for {percent(exported.agreement)} of {exported.checked_on}")
    else:
        lines.append(
            f"checked: logits differ from the run's by at most {exported.difference:.2g} on {exported.checked_on} "
            f"(allowed: {exported.allowed:.2g})"
        )
    lines += [f"note: {text}" for text in exported.notes]
    lines += [f"pushed: {exported.url}"] if exported.url else []
    lines.append(f"next: {target.next_step.format(path=exported.path)}")
    print_line("\n".join(lines))


def show_address(address: str, notes: list[str]) -> None:
    for note in notes:
        print_line(f"note: {note}")
    print_line(f"open {address} in a browser and drop an image on it; Ctrl-C ends it")


def show_server(address: str, model: str, *, open_to_all: bool) -> None:
    if open_to_all and not address.startswith(("http://127.", "http://[::1]")):
        print_line("note: there is no token: whoever reaches this address may ask; set VITLING_TOKEN to change that")
    print_line(f"serving {model} at {address} (POST an image to {address}/predict); Ctrl-C ends it")
