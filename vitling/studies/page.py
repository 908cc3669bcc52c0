"""The page of a study: the table first, then the curves that explain it."""

import math
from statistics import mean

from vitling.diagnose.run_parts import PAGE
from vitling.recipes import to_yaml
from vitling.reports import plots
from vitling.reports.page import Chart, Code, Facts, Fold, Link, Page, Section, Table, Text
from vitling.studies.results import Row, Study


def study_page(study: Study) -> Page:
    """The page of a study, of whatever has finished so far."""
    rows = [row for row in study.rows() if row.scores]
    sections = [result_section(study, rows)]
    if len(study.fractions) > 1:
        sections.append(data_efficiency(study, rows))
    sections += [learning_curves(study, fraction) for fraction in study.fractions]
    sections += [runs_section(study), repeat_section(study)]
    images = {study.recipes[name].data for name in study.names}
    return Page(
        title=f"{len(study.names)} recipes on {' and '.join(sorted(images))}",
        subtitle=f"A study with {len(study.seeds)} seed{'s' * (len(study.seeds) != 1)}, {_score_name(study)}",
        sections=[section for section in sections if section.parts],
    )


def result_section(study: Study, rows: list[Row]) -> Section:
    parts = [Table(*study.table()), *map(Text, study.notes())]
    if any(not math.isnan(row.ci95) for row in rows):  # of one seed there are only dots, which the table has as numbers
        values = [(_row_name(study, row), row.mean, row.ci95) for row in rows]
        parts.append(Chart(plots.intervals(values, x=f"{_score_name(study)}, %"), "Mean and 95 % interval."))
    compared = [row for row in rows if row.name != study.names[0] and not math.isnan(row.difference)]
    if any(not math.isnan(row.difference_ci95) for row in compared):
        values = [(_row_name(study, row), row.difference, row.difference_ci95) for row in compared]
        svg = plots.intervals(values, x=f"points more than {study.names[0]}", zero=True)
        caption = "Paired difference and its 95 % interval. An interval that contains 0 shows no difference at this number of seeds."
        parts.append(Chart(svg, caption))
    return Section("Result", parts, "Which recipe is better, and is the difference significant?")


def data_efficiency(study: Study, rows: list[Row]) -> Section:
    series = {}
    for name in study.names:
        own = sorted((row for row in rows if row.name == name), key=lambda row: row.fraction)
        widths = [0.0 if math.isnan(row.ci95) else row.ci95 for row in own]
        means = [row.mean for row in own]
        low, high = ([m + sign * width for m, width in zip(means, widths, strict=True)] for sign in (-1, 1))
        series[name] = ([row.fraction for row in own], means, low, high)
    svg = plots.bands(series, x="part of the training images", y=f"{_score_name(study)}, %", dots=True)
    return Section("Data efficiency", [Chart(svg, "Mean and 95 % interval.")], "How much do more images help?")


def learning_curves(study: Study, fraction: float) -> Section:
    """Validation accuracy per epoch and per second."""
    by_epoch, by_second = {}, {}
    for name in study.names:
        runs = [study.runs[name, fraction, seed] for seed in study.seeds]
        curves = [run.validations() for run in runs if run.finished]
        if not curves:
            continue
        length = min(map(len, curves))  # patience_epochs ends runs early
        if length < 2:  # a dot is no curve
            continue
        accuracy = [[100 * curve[i][0]["val_top1"] for curve in curves] for i in range(length)]
        middle, low, high = ([how(values) for values in accuracy] for how in (mean, min, max))
        by_epoch[name] = ([record["epoch"] for record, _ in curves[0][:length]], middle, low, high)
        by_second[name] = ([mean(curve[i][1]["seconds"] for curve in curves) for i in range(length)], middle, low, high)
    if not by_epoch:
        return Section("Learning curves")
    caption = "Validation accuracy over {}: mean over the seeds, the band from the lowest to the highest."
    parts = [
        Chart(plots.bands(series, x=x, y="validation accuracy, %"), caption.format(what))
        for series, x, what in ((by_epoch, "epoch", "epochs"), (by_second, "seconds", "wall time"))
    ]
    part = f"{fraction:g} of the data" if fraction < 1 else "all of the data"
    title = f"Learning curves, {part}" if len(study.fractions) > 1 else "Learning curves"
    return Section(title, parts, "Which recipe learns fast, and which is still learning?")


def runs_section(study: Study) -> Section:
    """Every run, with the way to its page."""
    here, rows = study.folder / "study.html", []
    for (name, fraction, seed), run in study.runs.items():
        score = study.score(run)
        shown = "" if score is None else f"{score:.2f}"
        report = run.path / PAGE
        page = Link.between("page", report, here) if report.exists() else ""
        rows.append((name, f"{fraction:g}", seed, shown, page))
    head = ("recipe", "part of the data", "seed", f"{_score_name(study)}, %", "")
    return Section("Runs", [Fold(f"{len(rows)} run{'s' * (len(rows) != 1)}", [Table(head, rows)])] if rows else [])


def repeat_section(study: Study) -> Section:
    origin = {name: value for name, value in study.environment.items() if name != "command"}
    recipes = [Code(to_yaml(study.recipes[name]), f"recipe {name}") for name in study.names]
    return Section("To repeat it", [Code(study.environment["command"]), Facts(origin), *recipes])


def _score_name(study: Study) -> str:
    return "test accuracy" if study.split == "test" else "best validation accuracy"


def _row_name(study: Study, row: Row) -> str:
    return f"{row.name} ({row.fraction:g})" if len(study.fractions) > 1 else row.name
