"""reproduce(PAPER/TABLE): train the rows of a paper's table as a study, and put our numbers beside the paper's.

scale="paper" trains the published settings, scale="nano" the same comparison with nano models on a small dataset.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from vitling._deprecated import renamed_attribute
from vitling.callbacks import Callback, StudyCallback
from vitling.data.pipeline.training_data import open_recipe_data
from vitling.diagnose.paged import evaluate
from vitling.errors import UserError
from vitling.evaluation.evaluation import read_evaluation
from vitling.evaluation.intervals import confidence_interval
from vitling.evaluation.metrics import Evaluation
from vitling.files import check_writable, json_with, refuse_foreign, starting_with, write_text
from vitling.papers.estimate import Size, count_sizes, estimate_seconds
from vitling.papers.next_steps import NextStep, find_missing, find_next_step
from vitling.papers.plan import SEEDS, Line, Plan, Request, choose_test_split, leave_out_unready
from vitling.papers.structure import read_description
from vitling.papers.table import Description
from vitling.reports import plots
from vitling.reports.page import Chart, Code, Link, Page, Section, Table, Text, is_page, write_page
from vitling.runs.device import default_device
from vitling.runs.run import Run
from vitling.studies.results import Row, evaluation_file, plus_minus
from vitling.studies.study import Study, study
from vitling.training.settings import Settings

is_markdown = starting_with(b"**", mark=b"| row |")
is_numbers = json_with("table", "scale", "paper_measured", "rows")
FEW_COLUMNS, MANY_COLUMNS = 4, 8  # of a Description: so many fit into one cell, more than so many become rows


@dataclass(frozen=True)
class Ours:
    """What our runs of a line reached, in percent."""

    split: str  # of the data: test, or val where that was the test
    scores: list[float]
    mean: float
    ci95: float  # half-width of the 95 % confidence interval; nan with one seed
    difference: float  # to the first line that was trained, paired by seed
    difference_ci95: float
    epochs: int
    seconds: float = math.nan  # of a run, on average
    real: float = math.nan  # mean by ReaL's labels, where the images have some

    half = renamed_attribute("half", "ci95")
    difference_half = renamed_attribute("difference_half", "difference_ci95")


@dataclass(frozen=True)
class Result:
    """A line of the result: the paper's numbers and ours."""

    line: Line
    size: Size | None
    ours: Ours | None = None
    failure: str = ""
    structure: dict[str, Any] | None = None  # our entries, where the table describes
    uncounted: str = ""  # why there are none

    @property
    def reason(self) -> str:
        return self.uncounted or self.line.reason or self.failure


class Reproduction:
    """A table with the paper's numbers and ours; without a study it holds what needs no training."""

    def __init__(
        self,
        plan: Plan,
        sizes: dict[str, Size],
        *,
        study: Study | None = None,
        seconds: dict[str, float] | None = None,
        seeds: int = 0,
        budget_seconds: float | None = None,
        settings: Settings | None = None,
    ):
        self.settings = settings or Settings()
        self.plan, self.study, self.budget_seconds = plan, study, budget_seconds
        self.seconds, self.seeds = seconds or {}, seeds  # estimated, of a run of each recipe, and how many of each
        self.next_step: NextStep | None = None  # of a dry run, with what the published setting lacks
        self.missing: list[str] = []
        self.results = self._collect(sizes)

    def _collect(self, sizes: dict[str, Size]) -> list[Result]:
        rows = {row.name: row for row in self.study.rows()} if self.study else {}
        baseline = next((line for line in self.plan.lines if line.is_trained), None)
        first = _scores(self.study, baseline) if self.study and baseline else {}
        results = []
        for line in self.plan.lines:
            trained = rows.get(line.study_name) if line.is_trained else None
            scores = _scores(self.study, line) if self.study and trained else {}
            described = read_description(line, self.columns, self.settings) if self.columns else (None, "")
            compared = first if line is not baseline else None
            ours = _ours(trained, scores, compared) if trained and scores else None
            if ours and self.study and (real := _real_scores(self.study, line)):
                ours = replace(ours, real=mean(real))
            failure = trained.failure if trained else ""
            if trained and trained.scores and not scores:
                failure = f"its runs keep no {line.row.network}: they were trained by an earlier version"
            results.append(Result(line, sizes.get(line.label), ours, failure, *described))
        return results

    @property
    def columns(self) -> list[str]:
        """What a Description says of each row."""
        table = self.plan.table
        return list(next(iter(table.printed.values()))) if isinstance(table, Description) else []

    # -- as text ---------------------------------------------------------------------------------------------------

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and cells, as the terminal, Markdown and the page show them. Columns that nothing is known for are left out."""
        columns = {
            "row": lambda r: r.line.label,
            "paper's top-1 %": _paper_top1,
            "ours %": lambda r: _ours_text(r.ours),
            "paper's difference": self._paper_difference,
            "our difference": lambda r: _difference_text(r.ours),
            "paper's ReaL %": lambda r: "" if r.line.row.real is None else f"{r.line.row.real:g}",
            "our ReaL %": lambda r: "" if r.ours is None or math.isnan(r.ours.real) else f"{r.ours.real:.2f}",
            "epochs": self._epochs,
            "paper's time": lambda r: "" if r.line.row.hours is None else f"{r.line.row.hours:g} h",
            "our time": self._time,
            "a run": lambda r: _duration(self.seconds.get(r.line.study_name) if r.line.is_trained else None),
            **self._described_columns(),
            "paper's params": lambda r: _paper_size(r, "params", "M"),
            f"{self._here} params": lambda r: f"{r.size.parameters / 1e6:.2f} M" if r.size else "",
            "paper's MACs": lambda r: _paper_size(r, "macs", "G"),
            f"{self._here} MACs": lambda r: f"{r.size.macs / 1e9:.3f} G" if r.size else "",
        }
        cells = [[cell(result) for cell in columns.values()] for result in self.results]
        kept = [i for i in range(len(columns)) if any(row[i] for row in cells)]
        head, cells = [list(columns)[i] for i in kept], [[row[i] or "–" for i in kept] for row in cells]
        if len(self.columns) > MANY_COLUMNS:  # a row for each, as such tables are printed
            head, *cells = (list(entries) for entries in zip(head, *cells, strict=True))
        return head, cells

    def _described_columns(self) -> dict[str, Callable[[Result], str]]:
        """Two columns of a few numbers each; of more, a column each, with ours in brackets where it differs."""
        table, names = self.plan.table, self.columns
        if not isinstance(table, Description):
            return {}
        if len(names) <= FEW_COLUMNS:
            return {
                f"paper's {', '.join(names)}": lambda r: _entries(table.printed.get(r.line.row.label), names),
                "ours": lambda r: _entries(r.structure, names),
            }
        return {name: partial(_described_cell, table, name) for name in names}

    def _time(self, result: Result) -> str:
        """Of a run of ours, in tables that print the paper's."""
        if result.ours is None or not any(row.hours for row in self.plan.table.rows):
            return ""
        return _duration(result.ours.seconds)

    @property
    def _here(self) -> str:
        return "nano" if self.plan.scale == "nano" else "computed"

    def _epochs(self, result: Result) -> str:
        """Those that were trained, or those of the plan; those of a budget are known once the speed has been measured."""
        if result.ours:
            return str(result.ours.epochs)
        recipe = result.line.recipe
        return str(recipe.epochs) if recipe and result.line.is_trained and not self.budget_seconds else ""

    def _paper_difference(self, result: Result) -> str:
        """To the first line, on the paper's own data; where it has several, the first."""
        row = result.line.row
        first = next((r.line.row for r in self.results if r.line.is_trained), None)
        same_data = first and next((r for r in self._rows_of(first.label) if r.data == row.data), None)
        if not same_data or same_data is row or row.top1 is None or same_data.top1 is None:
            return ""
        return f"{row.top1 - same_data.top1:+.2f}"

    def _rows_of(self, label: str) -> list:
        return [row for row in self.plan.table.rows if row.label == label]

    def notes(self) -> list[str]:
        """What has to be read with the table."""
        trained = [result for result in self.results if result.line.is_trained]
        notes = [f"Paper: {self.plan.table.measured}."]
        if self.study:
            seeds = (
                f"{len(self.study.seeds)} seeds, mean ± 95 % confidence interval"
                if len(self.study.seeds) > 1
                else "one seed"
            )
            where = " and ".join(dict.fromkeys(Path(recipe.data).stem for recipe in self.plan.recipes.values()))
            notes.append(
                f"Ours: {seeds}; on {where}, weights chosen on validation images, the test split looked at once per run; "
                f"differences to {trained[0].line.label}, paired by seed."
            )
            notes += self._splits()
            if self.study.budget_seconds:
                notes.append(
                    f"Equal wall time: {_duration(self.study.budget_seconds)} a run; the epochs follow from it."
                )
        if self.plan.scale == "nano" and trained:
            notes.append(
                "Nano: the same choices in networks of under three million parameters on small images; compare differences, not accuracies."
            )
        if self.seconds:
            notes.append(self._estimate())
        if beside := dict.fromkeys(
            r.line.row.network for r in self.results if r.ours and r.line.row.network != "model"
        ):
            names = " and ".join(f"{name}s" for name in beside)
            notes.append(f"Accuracies of {names} are of the epoch whose model was best on the validation images.")
        if any(result.size for result in self.results):
            notes.append("MACs are multiply-adds of one image, the products inside attention included.")
        notes += self._omissions()
        remarks = [(r.line.label, r.line.row.note_at(self.plan.scale)) for r in self.results]
        notes += _grouped("Note", [(label, remark) for label, remark in remarks if remark])
        return notes + self.missing

    def _omissions(self) -> list[str]:
        """Rows without a number of ours, and why."""
        if not self.columns:
            return _grouped("Not trained", [(r.line.label, r.reason) for r in self.results if r.reason])
        reasons = dict.fromkeys(result.line.reason.rstrip(".") for result in self.results)
        uncounted = _grouped("Not counted", [(r.line.label, r.uncounted) for r in self.results if r.uncounted])
        return [*uncounted, *(f"Nothing is trained: {reason}." for reason in reasons)]

    def _splits(self) -> list[str]:
        """What was the test, where that is not the data's test split."""
        on_val = [
            line for line in self.plan.lines if line.is_trained and line.recipe and line.recipe.test_split == "val"
        ]
        if not on_val:
            return []
        data = " and ".join(dict.fromkeys(Path(line.recipe.data).stem for line in on_val if line.recipe))
        papers = all(row.data.test_split == "val" for line in on_val for row in line.rows)
        why = (
            "as in the paper"
            if papers and self.plan.scale == "paper"
            else "since there is no other or it was asked for"
        )
        return [f"The test split is {data}'s val, {why}; the validation images are carved from its train."]

    def _estimate(self) -> str:
        """The time of the whole plan, and how far to trust it."""
        runs, total = len(self.seconds) * self.seeds, sum(self.seconds.values()) * self.seeds
        how = (
            "equal time, so that epochs follow from the speed"
            if self.budget_seconds
            else "measured on a few steps just now"
            if self.plan.scale == "nano"
            else "from the MACs and the speed of a transformer block here; reading and augmenting images come on top, so take it "
            "as an order of magnitude"
        )
        return f"Estimate: {runs} runs, {self.seeds} seeds each, {_duration(total)} in all, one after the other; {how}."

    def to_markdown(self) -> str:
        head, cells = self.table()
        marks = ["---", *["---:"] * (len(head) - 1)]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, marks, *cells)]
        return "\n".join([f"**{self.title}**", "", *lines, "", *(f"- {note}" for note in self.notes())]) + "\n"

    def to_json(self) -> str:
        """Every number, with null where one is not known."""
        rows = [
            {
                "label": r.line.label,
                "paper": [
                    {
                        "data": row.data.name,
                        "top1": row.top1,
                        "params_millions": row.params,
                        "gmacs": row.macs,
                        **({} if row.real is None else {"real_top1": row.real}),
                        **({} if row.hours is None else {"hours": row.hours}),
                    }
                    for row in r.line.rows
                ],
                "recipe": r.line.row.recipe or None if self.plan.scale == "paper" else None,
                "model": r.line.recipe.model if r.line.recipe else r.line.row.model or None,
                "parameters": r.size.parameters if r.size else None,
                "macs": r.size.macs if r.size else None,
                "estimated_run_seconds": self.seconds.get(r.line.study_name) if r.line.is_trained else None,
                "ours": _plain(asdict(r.ours)) if r.ours else None,
                "structure": r.structure,
                "paper_structure": self.plan.table.printed.get(r.line.row.label)
                if isinstance(self.plan.table, Description)
                else None,
                "not_trained": r.reason or None,
                "note": r.line.row.note_at(self.plan.scale) or None,
            }
            for r in self.results
        ]
        tree = {
            "table": self.plan.name,
            "title": self.plan.table.title,
            "scale": self.plan.scale,
            "paper_measured": self.plan.table.measured,
            "seeds": self.study.seeds if self.study else None,
            "rows": rows,
            "missing": self.missing,
            "next": asdict(self.next_step.request) if self.next_step else None,
        }
        return json.dumps(tree, indent=1, ensure_ascii=False)

    @property
    def title(self) -> str:
        return f"{self.plan.name}: {self.plan.table.title}"

    # -- as files --------------------------------------------------------------------------------------------------

    def write(self, command: str = "") -> Path:
        """Write reproduce.html, .md and .json into the study's folder; the path of the page."""
        if self.study is None:
            raise UserError(f"{self.plan.name} has no study, so there is no folder to write to; reproduce trains one.")
        folder = self.study.folder
        write_text(folder / "reproduce.md", self.to_markdown(), ours=is_markdown)
        write_text(folder / "reproduce.json", self.to_json(), ours=is_numbers)
        return write_page(self.page(command), folder / "reproduce.html")

    def page(self, command: str = "") -> Page:
        head, cells = self.table()
        parts: list = [Table(head, cells), *(Text(note) for note in self.notes())]
        if charts := self._charts():
            parts[1:1] = charts
        sections = [Section("Paper and ours", parts, "Does the comparison come out as in the paper?")]
        if command:
            sections.append(Section("To repeat it", [Code(command)]))
        links = [Link("the study: curves, times and runs", "study.html")] if self.study else []
        return Page(self.title, sections, subtitle=f"at {self.plan.scale} scale", links=links)

    def _charts(self) -> list[Chart]:
        ours = [(r.line.label, r.ours.mean, r.ours.ci95) for r in self.results if r.ours]
        printed = [(r.line.label, r.line.row.top1) for r in self.results if r.ours]
        paper = [(label, math.nan if top1 is None else top1, math.nan) for label, top1 in printed]
        if len(ours) < 2:
            return []
        return [
            Chart(plots.intervals(paper, x="top-1 %"), "The paper's numbers."),
            Chart(plots.intervals(ours, x="top-1 %"), "Ours, with 95 % confidence intervals."),
        ]


# ---------------------------------------------------------------------------------------------------------------------


def reproduce(
    name: str,
    folder: str | Path | None = None,
    *,
    scale: str = "paper",
    rows: str = "",
    seeds: int | list[int] = SEEDS,
    data: str | None = None,
    budget_seconds: float | None = None,
    epochs: int | None = None,
    jobs: int | None = None,
    split: str = "",
    engine: str = "local",
    gpus_per_trial: float | None = None,
    settings: Settings | None = None,
    callback: StudyCallback | None = None,
    command: str = "",
) -> Reproduction:
    """Train the rows of a table and write them beside the paper's numbers. The same call again resumes it.

    `rows` picks some by name. `split` is that of the data to measure on, test or val: the paper's own unless given. Without
    `folder` it goes to runs/PAPER-TABLE-SCALE. `jobs`, `engine` and `gpus_per_trial` are those of `study`.
    """
    request = Request(
        name,
        scale=scale,
        rows=rows,
        data=data,
        epochs=epochs,
        seeds=seeds,
        budget_seconds=budget_seconds,
        jobs=jobs,
        on=engine,
        gpus_per_trial=gpus_per_trial,
        command=command,
        split=split,
    )
    return train_table(request, folder, settings=settings, callback=callback)


def train_table(
    request: Request,
    folder: str | Path | None = None,
    *,
    settings: Settings | None = None,
    callback: StudyCallback | None = None,
) -> Reproduction:
    """The same for a request."""
    settings = settings or Settings()
    plan = leave_out_unready(request.plan())
    if plan.recipes:
        check_device(request)
        plan = choose_test_splits(plan, request.split, settings)
    sizes = count_sizes(plan, settings, callback)
    if not plan.recipes:
        return Reproduction(plan, sizes, settings=settings)
    folder = check_writable(Path(folder or default_folder(plan, request.data)))
    refuse_foreign(folder / "reproduce.md", ours=is_markdown)
    refuse_foreign(folder / "reproduce.json", ours=is_numbers)
    refuse_foreign(folder / "reproduce.html", ours=is_page)
    done = study(
        plan.recipes,
        folder,
        seeds=request.seeds,
        budget_seconds=request.budget_seconds,
        jobs=request.jobs,
        engine=request.on,
        gpus_per_trial=request.gpus_per_trial,
        settings=settings,
        callback=callback,
    )
    for line in plan.lines:
        if line.is_trained and line.test_size:
            _measure_at(line.test_size, done, line, settings, callback)
    result = Reproduction(plan, sizes, study=done, settings=settings)
    result.write(request.command)
    return result


def choose_test_splits(plan: Plan, wanted: str, settings: Settings) -> Plan:
    """The plan with the split of each row's data that it is measured on."""
    found: dict[tuple[str, str], Literal["test", "val"]] = {}
    lines = []
    for line in plan.lines:
        if line.recipe and line.is_trained:
            key = line.recipe.data, line.row.data.test_split
            if key not in found:
                dataset = open_recipe_data(line.recipe, settings.reading)
                dataset.target.require_classes("the papers' tables are of", dataset.name)
                found[key] = choose_test_split(wanted, line.row.data, plan.scale, list(dataset.splits), dataset.name)
            line = replace(line, recipe=replace(line.recipe, test_split=found[key]))
        lines.append(line)
    return replace(plan, lines=tuple(lines))


def _measure_at(size: int, study: Study, line: Line, settings: Settings, callback: StudyCallback | None) -> None:
    """Look at the test split once more at another size than the runs were trained at."""
    for (name, *_), run in study.runs.items():
        if name == line.study_name and run.finished and not _evaluation_at(run, size).exists():
            evaluate(run, img_size=size, reading=settings.reading, callback=callback)


def preview(request: Request, *, settings: Settings | None = None, callback: Callback | None = None) -> Reproduction:
    """What `train_table` would train and about how long a run of each row would take here. Trains a few steps, keeps nothing."""
    settings, plan, budget = settings or Settings(), request.plan(), request.budget_seconds
    sizes = count_sizes(plan, settings, callback)
    if plan.draws_published_sizes:
        seconds: dict[str, float] = {}
    else:
        seconds = dict.fromkeys(plan.recipes, budget) if budget else estimate_seconds(plan, sizes, settings, callback)
    result = Reproduction(
        plan, sizes, seconds=seconds, seeds=request.seed_count, budget_seconds=budget, settings=settings
    )
    device = default_device().type
    result.next_step, result.missing = find_next_step(request, device), find_missing(request, device)
    return result


def default_folder(plan: Plan, data: str | None) -> Path:
    return Path("runs") / plan.folder_name(data or ("digits" if plan.scale == "nano" else ""))


def check_device(request: Request) -> None:
    """The published settings take days on one GPU; on a CPU they are refused unless the time is bounded."""
    if request.is_too_long_for(default_device().type):
        raise UserError(
            f"the published setting of {request.name} needs a GPU, and this machine has none; choose scale=nano for the same "
            "comparison on this CPU, or bound the time with a budget or epochs."
        )


# ---------------------------------------------------------------------------------------------------------------------
# Scores


def _scores(study: Study, line: Line) -> dict[int, float]:
    """By seed, the top-1 in percent of a line's network."""
    runs = {seed: run for (name, _, seed), run in study.runs.items() if name == line.study_name and run.finished}
    name = line.row.network
    read = study.score if name == "model" else partial(_companion_score, name)
    read = partial(_score_at, line.test_size) if line.test_size else read
    return {seed: score for seed, run in runs.items() if (score := read(run)) is not None}


def _companion_score(name: str, run: Run) -> float | None:
    """The test accuracy of a network that was trained beside the model; None of runs before 0.2, which kept the model alone."""
    top1 = read_evaluation(run).companions.get(name) if evaluation_file(run).exists() else None
    return None if top1 is None else 100 * top1


def _evaluation_at(run: Run, size: int) -> Path:
    return run.path / f"evaluation-test-{size}x{size}.json"


def _score_at(size: int, run: Run) -> float | None:
    """The test accuracy at another size than the run was trained at."""
    path = _evaluation_at(run, size)
    return 100 * Evaluation.from_json(path.read_text()).top1 if path.exists() else None


def _real_scores(study: Study, line: Line) -> list[float]:
    """By ReaL's labels, in percent, of the runs whose test images have some."""
    runs = [run for (name, *_), run in study.runs.items() if name == line.study_name and run.finished]
    paths = [_evaluation_at(run, line.test_size) if line.test_size else evaluation_file(run) for run in runs]
    found = [Evaluation.from_json(path.read_text()).real_top1 for path in paths if path.exists()]
    return [100 * real for real in found if real is not None]


def _ours(trained: Row, scores: dict[int, float], first: dict[int, float] | None) -> Ours:
    centre, ci95 = confidence_interval(list(scores.values()))
    paired = [scores[seed] - first[seed] for seed in scores if seed in first] if first else []
    difference, difference_ci95 = confidence_interval(paired)
    values, split = list(scores.values()), trained.recipe.test_split
    return Ours(split, values, centre, ci95, difference, difference_ci95, trained.epochs, trained.wall_seconds)


# ---------------------------------------------------------------------------------------------------------------------
# Cells


def _paper_top1(result: Result) -> str:
    rows = [row for row in result.line.rows if row.top1 is not None]
    if len(rows) > 1:
        return ", ".join(f"{row.data.name} {row.top1:g}" for row in rows)
    return f"{rows[0].top1:g}" if rows else ""


def _paper_size(result: Result, name: str, unit: str) -> str:
    value = getattr(result.line.row, name)
    return "" if value is None else f"{value:g} {unit}"


def _ours_text(ours: Ours | None) -> str:
    return "" if ours is None else plus_minus(ours.mean, ours.ci95)


def _difference_text(ours: Ours | None) -> str:
    return "" if ours is None or math.isnan(ours.difference) else plus_minus(ours.difference, ours.difference_ci95, "+")


def _entries(values: dict[str, Any] | None, names: list[str]) -> str:
    return ", ".join(_entry(values.get(name)) for name in names) if values else ""


def _entry(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _described_cell(table: Description, name: str, result: Result) -> str:
    return _both(table.printed[result.line.row.label][name], (result.structure or {}).get(name))


def _both(paper: Any, ours: Any) -> str:
    """The paper's entry, and ours where it is another one."""
    same = ours is None or paper == ours
    return _entry(paper) if same else f"{_entry(paper)} (ours {_entry(ours)})"


def _duration(seconds: float | None) -> str:
    """Two digits at most: an estimate is no better."""
    if seconds is None:
        return ""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{float(f'{seconds / size:.2g}'):,g} {unit}"
    return f"{float(f'{seconds:.2g}'):g} s"


def _grouped(title: str, items: list[tuple[str, str]]) -> list[str]:
    """One note per reason, with all the lines that it is for."""
    reasons: dict[str, list[str]] = {}
    for label, reason in items:
        reasons.setdefault(reason.rstrip("."), []).append(label)
    return [f"{title}: {'; '.join(labels)}: {reason}." for reason, labels in reasons.items()]


def _plain(tree: dict) -> dict:
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in tree.items()}
