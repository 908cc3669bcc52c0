"""draw_figure(request): the figures of the papers, from a study of the runs that they draw, on one HTML page."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from vitling.callbacks import Callback, StudyCallback
from vitling.diagnose import diagnosis, page
from vitling.errors import UserError
from vitling.evaluation.intervals import confidence_interval
from vitling.files import refuse_foreign
from vitling.papers.estimate import Size, count_sizes
from vitling.papers.plan import Line, Plan, Request
from vitling.papers.reproduction import default_folder, train_table
from vitling.papers.table import Figure
from vitling.reports import plots
from vitling.reports.page import Chart, Code, Page, Section, Text, is_page, write_page
from vitling.runs.run import Run
from vitling.studies.study import Study
from vitling.training.settings import Settings


@dataclass(frozen=True)
class Drawn:
    """What a drawing may use."""

    figure: Figure
    plan: Plan
    sizes: dict[str, Size]
    study: Study | None
    callback: Callback | None

    def runs(self, label: str) -> list[Run]:
        """The finished runs of a line, in the order of their seeds."""
        name = next((line.study_name for line in self.plan.lines if line.label == label), None)
        runs = self.study.runs if self.study else {}
        return [run for (of, _, _), run in runs.items() if of == name and run.finished]

    def scores(self, label: str) -> list[float]:
        """The scores of a line's finished runs."""
        scores = [self.study.score(run) for run in self.runs(label)] if self.study else []
        return [score for score in scores if score is not None]


def draw_figure(
    request: Request,
    folder: str | Path | None = None,
    *,
    runs: str | Path | None = None,
    settings: Settings | None = None,
    callback: StudyCallback | None = None,
) -> Path:
    """Draw a figure from the study in `runs`, or from one that is trained now; the path of its page.

    Accuracy against size at the paper's scale needs no runs: it shows the paper's numbers over sizes that are counted now.
    """
    settings, plan, name = settings or Settings(), request.plan(), request.name
    figure = plan.table
    if not isinstance(figure, Figure):
        raise UserError(f"{name} is a table; reproduce trains those, and draw_figure draws figures.")
    folder = Path(folder or default_folder(plan, request.data))
    refuse_foreign(folder / "figure.html", ours=is_page)
    if runs is not None:
        study = _open_study(runs)
    elif figure.kind == "sizes" and plan.scale == "paper":
        if request.budget_seconds or request.epochs:
            raise UserError(
                f"{name} trains nothing at the paper's scale; leave the budget and epochs out, or choose scale=nano."
            )
        study = None
    else:
        study = train_table(replace(request, command=""), folder, settings=settings, callback=callback).study
        if study is None:
            raise UserError(
                f"{name} cannot be drawn at this scale: {plan.lines[0].reason}; try scale=nano, or give the runs of a study."
            )
    sizes = count_sizes(plan, settings, callback) if figure.kind == "sizes" else {}
    sections = DRAWINGS[figure.kind](Drawn(figure, plan, sizes, study, callback))
    if not sections:
        raise UserError(
            f"{study.folder if study else folder} holds no finished run of {name}; its rows are {_labels(plan)}."
        )
    if request.command:
        sections.append(Section("To repeat it", [Code(request.command)]))
    title = f"{name}: {plan.table.title}"
    return write_page(Page(title, sections, subtitle=_subtitle(study, plan.scale)), folder / "figure.html")


def _subtitle(study: Study | None, scale: str) -> str:
    """Whose numbers these are, and on what."""
    if study is None:
        return "the paper's numbers over sizes counted now"
    data = " and ".join(sorted({Path(study.recipes[name].data).stem for name in study.names}))
    return f"our runs: {scale} scale, on {data}, {len(study.seeds)} seed{'s' * (len(study.seeds) != 1)}"


def _open_study(folder: str | Path) -> Study:
    if not (Path(folder) / "study.json").exists():
        raise UserError(f"no study at {folder}; give a folder that `vitling study` or `vitling reproduce` wrote.")
    return Study(folder)


def _labels(plan: Plan) -> str:
    return ", ".join(line.label for line in plan.lines)


# ---------------------------------------------------------------------------------------------------------------------
# Accuracy against size (T2T-ViT's and LV-ViT's figure 1)


def draw_sizes(drawn: Drawn) -> list[Section]:
    published = _size_charts(drawn, _paper_point) if drawn.plan.scale == "paper" else []
    sections = [Section("The paper's accuracies", [*published, Text(f"Paper: {drawn.figure.measured}.")])]
    if drawn.study:
        ours = _size_charts(drawn, _our_point)
        sections.append(Section("Our accuracies", ours, "Means over seeds, over the sizes of our networks."))
    return [section for section in sections if any(isinstance(part, Chart) for part in section.parts)]


Point = tuple[float, float, str, bool]  # size, accuracy, label, whether the size was counted now


def _size_charts(drawn: Drawn, point: Callable[[Drawn, Line, str], Point | None]) -> list[Chart]:
    charts = []
    for what, x in (("macs", "MACs, 10^9"), ("parameters", "parameters, millions")):
        series = {
            name: [p for line in _lines_of(drawn, name) if (p := point(drawn, line, what))]
            for name in drawn.figure.groups
        }
        series = {name: sorted(points) for name, points in series.items() if points}
        if series:
            hollow = any(not counted for points in series.values() for *_, counted in points)
            caption = f"Top-1 accuracy over {x.split(',')[0]}."
            caption += " Hollow: a network that timm lacks, with the paper's size." if hollow else ""
            loose = [name for name in series if name.startswith("others")]
            charts.append(Chart(plots.sizes(series, x=x, y="top-1 %", loose=loose), caption))
    return charts


def _lines_of(drawn: Drawn, group: str) -> list[Line]:
    return [line for line in drawn.plan.lines if line.label in drawn.figure.groups[group]]


def _paper_point(drawn: Drawn, line: Line, what: str) -> Point | None:
    size, row = drawn.sizes.get(line.label), line.row
    printed = row.macs if what == "macs" else row.params
    counted = size and (size.macs / 1e9 if what == "macs" else size.parameters / 1e6)
    shown = counted or printed
    if row.top1 is None or not shown:
        return None
    return shown, row.top1, line.label, bool(counted)


def _our_point(drawn: Drawn, line: Line, what: str) -> Point | None:
    size = drawn.sizes.get(line.label)
    scores = drawn.scores(line.label)
    if not size or not scores:
        return None
    return (size.macs / 1e9 if what == "macs" else size.parameters / 1e6), mean(scores), line.label, True


# ---------------------------------------------------------------------------------------------------------------------
# Learning curves (Bootstrapping's figure 5)


def draw_curves(drawn: Drawn) -> list[Section]:
    charts = []
    for title, labels in drawn.figure.groups.items():
        series = {label: curve for label in labels if (curve := _curve(drawn.runs(label)))}
        if series:
            caption = f"{title.capitalize()}: validation accuracy, mean over the seeds, the band from the lowest to the highest."
            charts.append(Chart(plots.bands(series, x="epoch", y="validation accuracy, %"), caption))
    lead = "Does the ViT learn faster with an agent, and from what?"
    return [Section("Learning curves", charts, lead)] if charts else []


def _curve(runs: list[Run]) -> tuple | None:
    logs = [run.metrics() for run in runs]
    if not logs:
        return None
    length = min(map(len, logs))
    accuracy = [[100 * log[i]["val_top1"] for log in logs] for i in range(length)]
    return [log["epoch"] for log in logs[0][:length]], *(
        [how(values) for values in accuracy] for how in (mean, min, max)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Sensitivity (Bootstrapping's figure 6)


def draw_sensitivity(drawn: Drawn) -> list[Section]:
    charts = []
    for setting, labels in drawn.figure.groups.items():
        points = []
        for label in labels:
            scores = drawn.scores(label)
            if scores:
                centre, ci95 = confidence_interval(scores)
                ci95 = 0.0 if math.isnan(ci95) else ci95
                points.append((float(label.split()[-1]), centre, centre - ci95, centre + ci95))
        if points:
            name = setting.replace("_", " ")
            values, centres, lows, highs = zip(*points, strict=True)
            svg = plots.bands({name: (values, centres, lows, highs)}, x=name, y="top-1 %", dots=True)
            charts.append(Chart(svg, f"The {name}; mean and 95 % interval. The others are the paper's."))
    lead = "How much does the accuracy depend on each setting?"
    return [Section("Sensitivity", charts, lead)] if charts else []


# ---------------------------------------------------------------------------------------------------------------------
# Similarity and attention (the diagnosis paper's figures 4, 6 and 7)


def draw_similarity(drawn: Drawn) -> list[Section]:
    """CKA of each ViT with the ResNet of the same data, seed by seed the first."""
    sections = []
    lines = [line for line in drawn.plan.lines if line.label.startswith("ViT")]
    for line in lines:
        pair = drawn.runs(line.label)[:1] + drawn.runs(line.label.replace("ViT", "ResNet-18", 1))[:1]
        if len(pair) == 2:
            vit, resnet = pair
            results = diagnosis.diagnose(vit, resnet, callback=drawn.callback)
            results[0].subject.name, results[1].subject.name = "ViT", "ResNet-18"
            section = page.similarity_section(results)
            if section:
                where = line.label.removeprefix("ViT").removeprefix(", ") or Path(vit.recipe.data).stem
                section.title = f"ViT and ResNet-18, {where}"
                sections.append(section)
    return sections


def draw_attention(drawn: Drawn) -> list[Section]:
    sections = []
    for line in drawn.plan.lines:
        for run in drawn.runs(line.label)[:1]:
            result = diagnosis.diagnose(run, callback=drawn.callback)
            result[0].subject.name = line.label
            sections += [page.pictures_of_attention(result[0]), page.attention_section(result)]
    return [section for section in sections if section]


DRAWINGS: dict[str, Callable[[Drawn], list[Section]]] = {
    "sizes": draw_sizes,
    "curves": draw_curves,
    "sensitivity": draw_sensitivity,
    "similarity": draw_similarity,
    "attention": draw_attention,
}
