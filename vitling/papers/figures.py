"""draw_figure(request): the figures of the papers, from a study of the runs that they draw, on one HTML page."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from vitling.callbacks import Callback, StudyCallback
from vitling.data.pipeline.loader import eval_batches
from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.pipeline.training_data import open_recipe_data
from vitling.diagnose import page
from vitling.diagnose.cka import CkaMatrix, cka_matrix
from vitling.diagnose.diagnosis import measure_model
from vitling.diagnose.match import Match, match_layers
from vitling.diagnose.result import Diagnosis
from vitling.errors import UserError
from vitling.evaluation.intervals import confidence_interval
from vitling.files import check_writable, refuse_foreign
from vitling.papers.estimate import Size, count_sizes
from vitling.papers.plan import Line, Plan, Request
from vitling.papers.reproduction import default_folder, train_table
from vitling.papers.table import Figure, holds
from vitling.reports import plots
from vitling.reports.page import Chart, Code, Page, Section, Text, is_page, write_page
from vitling.runs.device import default_device
from vitling.runs.opening import open_model
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
    reading: Reading

    def runs(self, label: str) -> list[Run]:
        """The finished runs of a line, in the order of their seeds."""
        name = next((line.study_name for line in self.plan.lines if line.label == label), None)
        runs = self.study.runs if self.study else {}
        return [run for (of, _, _), run in runs.items() if of == name and run.finished]

    def lines(self, group: str) -> list[Line]:
        """The lines of a series or panel. At nano scale a line stands for rows of several datasets."""
        labels = self.figure.groups[group]
        return [line for line in self.plan.lines if any(holds(labels, row) for row in line.rows)]

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
    folder = check_writable(Path(folder or default_folder(plan, request.data)))
    refuse_foreign(folder / "figure.html", ours=is_page)
    if runs is not None:
        study = _open_study(runs)
    elif plan.draws_published_sizes:
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
    sections = DRAWINGS[figure.kind](Drawn(figure, plan, sizes, study, callback, settings.reading))
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
            name: [p for line in drawn.lines(name) if (p := point(drawn, line, what))] for name in drawn.figure.groups
        }
        series = {name: sorted(points) for name, points in series.items() if points}
        if series:
            hollow = any(not counted for points in series.values() for *_, counted in points)
            caption = f"Top-1 accuracy over {x.split(',')[0]}."
            caption += " Hollow: a network that timm lacks, with the paper's size." if hollow else ""
            loose = [name for name in series if name.startswith("others")]
            charts.append(Chart(plots.sizes(series, x=x, y="top-1 %", loose=loose), caption))
    return charts


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
# Learning curves (Bootstrapping's figure 5, the diagnosis paper's figure 3)


def draw_curves(drawn: Drawn) -> list[Section]:
    charts, shown = [], set()
    for title in drawn.figure.groups:
        lines = drawn.lines(title)
        series = {line.row.label: curve for line in lines if (curve := _curve(drawn.runs(line.label)))}
        names = frozenset(line.study_name for line in lines)
        if series and names not in shown:  # at nano scale there is one dataset, so panels fall together
            shown.add(names)
            title = title.split(", on ")[0] if drawn.plan.scale == "nano" else title
            caption = f"{title.capitalize()}: validation accuracy, mean over the seeds, the band from the lowest to the highest."
            charts.append(Chart(plots.bands(series, x="epoch", y="validation accuracy, %"), caption))
    lead = "How fast does each learn, and where does it end?"
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
# Similarity (the diagnosis paper's figures 6 and 7)

CKA_BATCH = 128  # the release's


def draw_similarity(drawn: Drawn) -> list[Section]:
    """CKA of each ViT with the ResNet of the same data, of the first seed: all layers, the whole test split."""
    sections = []
    lines = [line for line in drawn.plan.lines if line.label.startswith("ViT")]
    for line in lines:
        pair = drawn.runs(line.label)[:1] + drawn.runs(line.label.replace("ViT", "ResNet-18", 1))[:1]
        if len(pair) == 2:
            where = line.label.removeprefix("ViT").removeprefix(", ") or Path(pair[0].recipe.data).stem
            cka, match = _compare_layers(pair[0], pair[1], drawn)
            parts = page.similarity_parts(cka, match, "ViT", "ResNet-18")
            lead = (
                f"{len(cka.rows)} layers of the ViT and {len(cka.columns)} of ResNet-18, norms and activations included, over the "
                f"whole test split in the release's batches of {CKA_BATCH}."
            )
            sections.append(Section(f"ViT and ResNet-18, {where}", parts, lead))
    return sections


def _compare_layers(vit: Run, resnet: Run, drawn: Drawn) -> tuple[CkaMatrix, Match | None]:
    first, second = (open_model(run, callback=drawn.callback) for run in (vit, resnet))
    if first.preprocessing.fit_args() != second.preprocessing.fit_args():
        raise UserError(
            f"{vit.path} and {resnet.path} see images of different sizes, so their layers are not compared."
        )
    dataset = open_recipe_data(vit.recipe, drawn.reading)
    split = "test" if "test" in dataset.splits else "val"
    source = load_split(
        dataset.splits[split],
        split,
        reading=drawn.reading,
        callback=drawn.callback,
        **first.preprocessing.fit_args(),
    )
    pixels = (
        batch["image"] for batch in eval_batches(source, lambda x: x, batch_size=CKA_BATCH, device=default_device())
    )
    cka = cka_matrix(
        first.module,
        second.module,
        pixels,
        layers="all",
        prepare_a=first.preprocessing.normalize,
        prepare_b=second.preprocessing.normalize,
    )
    return cka, match_layers(cka.defined().matrix)


# ---------------------------------------------------------------------------------------------------------------------
# Pictures: attention (the diagnosis paper's figures 4 and 8), head tokens (DHVT's figure 4), features (the diagnosis paper's
# figure 5, T2T-ViT's figure 2). They are of the validation split: what is looked at should not be what is measured on.


def draw_attention(drawn: Drawn) -> list[Section]:
    sections: list[Section | None] = []
    for result in _measured(drawn):
        sections += [page.pictures_of_attention(result, drawn.figure.pictures), page.attention_section([result])]
    return [section for section in sections if section]


def draw_head_tokens(drawn: Drawn) -> list[Section]:
    sections = [page.head_token_section(result, block=1) for result in _measured(drawn)]
    return [section for section in sections if section]


def draw_features(drawn: Drawn) -> list[Section]:
    sections = [page.feature_maps(result, bare_chain=True) for result in _measured(drawn)]
    return [section for section in sections if section]


def _measured(drawn: Drawn) -> Iterator[Diagnosis]:
    """The first run of every line."""
    for line in drawn.plan.lines:
        for run in drawn.runs(line.label)[:1]:
            result = measure_model(run, reading=drawn.reading, callback=drawn.callback)
            result.subject.name = line.label
            yield result


DRAWINGS: dict[str, Callable[[Drawn], list[Section]]] = {
    "sizes": draw_sizes,
    "curves": draw_curves,
    "sensitivity": draw_sensitivity,
    "similarity": draw_similarity,
    "attention": draw_attention,
    "head tokens": draw_head_tokens,
    "features": draw_features,
}
