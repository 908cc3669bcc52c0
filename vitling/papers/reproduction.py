"""reproduce(PAPER/TABLE): train the rows of a paper's table as a study, and put our numbers beside the paper's.

scale="paper" trains the published settings, scale="nano" the same comparison with nano models on a small dataset.
"""

import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from vitling._deprecated import renamed_attribute
from vitling.callbacks import Callback, StudyCallback
from vitling.errors import UserError
from vitling.evaluation.intervals import confidence_interval
from vitling.files import write_text
from vitling.papers.estimate import Size, count_sizes, estimate_seconds, read_structure
from vitling.papers.plan import SEEDS, Line, Plan, Request, leave_out_unready
from vitling.reports import plots
from vitling.reports.page import Chart, Code, Page, Section, Table, Text, write_page
from vitling.runs.device import default_device
from vitling.runs.run import Run
from vitling.studies.results import plus_minus
from vitling.studies.study import Study, study
from vitling.training.settings import Settings


@dataclass(frozen=True)
class Ours:
    """What our runs of a line reached, in percent."""

    split: str  # test, or val for a network beside the model: runs keep the model alone
    scores: list[float]
    mean: float
    ci95: float  # half-width of the 95 % confidence interval; nan with one seed
    difference: float  # to the first line that was trained, paired by seed
    difference_ci95: float
    epochs: int

    half = renamed_attribute("half", "ci95")
    difference_half = renamed_attribute("difference_half", "difference_ci95")


@dataclass(frozen=True)
class Result:
    """A line of the result: the paper's numbers and ours."""

    line: Line
    size: Size | None
    ours: Ours | None = None
    failure: str = ""
    structure: dict[str, int] | None = None  # ours, where the table prints the paper's

    @property
    def reason(self) -> str:
        return self.line.reason or self.failure


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
    ):
        self.plan, self.study, self.budget_seconds = plan, study, budget_seconds
        self.seconds, self.seeds = seconds or {}, seeds  # estimated, of a run of each recipe, and how many of each
        self.results = self._collect(sizes)

    def _collect(self, sizes: dict[str, Size]) -> list[Result]:
        rows = {row.name: row for row in self.study.rows()} if self.study else {}
        baseline = next((line for line in self.plan.lines if line.is_trained), None)
        first = _scores(self.study, baseline) if self.study and baseline else {}
        results = []
        for line in self.plan.lines:
            trained = rows.get(line.study_name) if line.is_trained else None
            scores = _scores(self.study, line) if self.study and trained else {}
            structure = read_structure(line) if self.plan.table.structure else None
            compared = first if line is not baseline else None
            ours = _ours(line, scores, compared, trained.epochs) if trained and scores else None
            failure = trained.failure if trained else ""
            results.append(Result(line, sizes.get(line.label), ours, failure, structure))
        return results

    # -- as text ---------------------------------------------------------------------------------------------------

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and cells, as the terminal, Markdown and the page show them. Columns that nothing is known for are left out."""
        columns = {
            "row": lambda r: r.line.label,
            "paper's top-1 %": _paper_top1,
            "ours %": lambda r: _ours_text(r.ours),
            "paper's difference": self._paper_difference,
            "our difference": lambda r: _difference_text(r.ours),
            "epochs": self._epochs,
            "a run": lambda r: _duration(self.seconds.get(r.line.study_name) if r.line.is_trained else None),
            "paper's layers, width, heads": lambda r: _numbers(self.plan.table.structure.get(r.line.row.label)),
            "ours": lambda r: _numbers(r.structure),
            "paper's params": lambda r: _paper_size(r, "params", "M"),
            f"{self._here} params": lambda r: f"{r.size.parameters / 1e6:.2f} M" if r.size else "",
            "paper's MACs": lambda r: _paper_size(r, "macs", "G"),
            f"{self._here} MACs": lambda r: f"{r.size.macs / 1e9:.3f} G" if r.size else "",
        }
        cells = [[cell(result) for cell in columns.values()] for result in self.results]
        kept = [i for i in range(len(columns)) if any(row[i] for row in cells)]
        return [list(columns)[i] for i in kept], [[row[i] or "–" for i in kept] for row in cells]

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
        if beside := dict.fromkeys(r.line.row.network for r in self.results if r.ours and r.ours.split == "val"):
            names = " and ".join(f"{name}s" for name in beside)
            notes.append(f"Accuracies of {names} (val) are of the validation split: a run keeps the model alone.")
        if any(result.size for result in self.results):
            notes.append("MACs are multiply-adds of one image, the products inside attention included.")
        notes += _grouped("Not trained", [(r.line.label, r.reason) for r in self.results if r.reason])
        remarks = [(r.line.label, r.line.row.note_at(self.plan.scale)) for r in self.results]
        notes += _grouped("Note", [(label, remark) for label, remark in remarks if remark])
        return notes

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
                    {"data": row.data.name, "top1": row.top1, "params_millions": row.params, "gmacs": row.macs}
                    for row in r.line.rows
                ],
                "recipe": r.line.row.recipe or None if self.plan.scale == "paper" else None,
                "model": r.line.recipe.model if r.line.recipe else r.line.row.model or None,
                "parameters": r.size.parameters if r.size else None,
                "macs": r.size.macs if r.size else None,
                "estimated_run_seconds": self.seconds.get(r.line.study_name) if r.line.is_trained else None,
                "ours": _plain(asdict(r.ours)) if r.ours else None,
                "structure": r.structure,
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
        write_text(folder / "reproduce.md", self.to_markdown())
        write_text(folder / "reproduce.json", self.to_json())
        return write_page(self.page(command), folder / "reproduce.html")

    def page(self, command: str = "") -> Page:
        head, cells = self.table()
        parts: list = [Table(head, cells), *(Text(note) for note in self.notes())]
        if charts := self._charts():
            parts[1:1] = charts
        sections = [Section("Paper and ours", parts, "Does the comparison come out as in the paper?")]
        if command:
            sections.append(Section("To repeat it", [Code(command), Text("Curves and times of the runs: study.html.")]))
        return Page(self.title, sections, subtitle=f"at {self.plan.scale} scale")

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
    jobs: int = 1,
    settings: Settings | None = None,
    callback: StudyCallback | None = None,
    command: str = "",
) -> Reproduction:
    """Train the rows of a table and write them beside the paper's numbers. The same call again resumes it.

    `rows` picks some by name. Without `folder` it goes to runs/PAPER-TABLE-SCALE.
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
        command=command,
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
        _check_device(plan, request.budget_seconds, request.epochs)
    sizes = count_sizes(plan, settings, callback)
    if not plan.recipes:
        return Reproduction(plan, sizes)
    done = study(
        plan.recipes,
        Path(folder or default_folder(plan, request.data)),
        seeds=request.seeds,
        budget_seconds=request.budget_seconds,
        jobs=request.jobs,
        settings=settings,
        callback=callback,
    )
    result = Reproduction(plan, sizes, study=done)
    result.write(request.command)
    return result


def preview(request: Request, *, settings: Settings | None = None, callback: Callback | None = None) -> Reproduction:
    """What `train_table` would train and about how long a run of each row would take here. Trains a few steps, keeps nothing."""
    settings, plan, budget = settings or Settings(), request.plan(), request.budget_seconds
    sizes = count_sizes(plan, settings, callback)
    seconds = dict.fromkeys(plan.recipes, budget) if budget else estimate_seconds(plan, sizes, settings, callback)
    return Reproduction(plan, sizes, seconds=seconds, seeds=request.seed_count, budget_seconds=budget)


def default_folder(plan: Plan, data: str | None) -> Path:
    return Path("runs") / plan.folder_name(data or ("digits" if plan.scale == "nano" else ""))


def _check_device(plan: Plan, budget_seconds: float | None, epochs: int | None) -> None:
    """The published settings take days on one GPU; on a CPU they are refused unless the time is bounded."""
    if plan.scale == "paper" and default_device().type == "cpu" and not (budget_seconds or epochs):
        raise UserError(
            f"the published setting of {plan.name} needs a GPU, and this machine has none; choose scale=nano for the same "
            "comparison on this CPU, or bound the time with a budget or epochs."
        )


# ---------------------------------------------------------------------------------------------------------------------
# Scores


def _scores(study: Study, line: Line) -> dict[int, float]:
    """By seed, the top-1 in percent of a line's network."""
    runs = {seed: run for (name, _, seed), run in study.runs.items() if name == line.study_name and run.finished}
    name = line.row.network
    read = study.score if name == "model" else partial(_companion_score, name)
    return {seed: score for seed, run in runs.items() if (score := read(run)) is not None}


def _companion_score(name: str, run: Run) -> float | None:
    """The validation accuracy of a network trained beside the model, in the epoch whose model was kept."""
    best = run.info["best"]["epoch"]
    record = next((record for record in run.metrics() if record["epoch"] == best), None)
    if record is None:
        raise UserError(f"{run.path / 'metrics.jsonl'} lacks epoch {best}, the best one; restore it from a copy.")
    return 100 * record[key] if (key := f"val_{name}_top1") in record else None


def _ours(line: Line, scores: dict[int, float], first: dict[int, float] | None, epochs: int) -> Ours:
    mean, ci95 = confidence_interval(list(scores.values()))
    is_model = line.row.network == "model"
    # A companion's validation accuracy is not compared with the test accuracy of the first line.
    paired = [scores[seed] - first[seed] for seed in scores if seed in first] if first and is_model else []
    difference, difference_ci95 = confidence_interval(paired)
    return Ours("test" if is_model else "val", list(scores.values()), mean, ci95, difference, difference_ci95, epochs)


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
    return "" if ours is None else plus_minus(ours.mean, ours.ci95) + (" (val)" if ours.split == "val" else "")


def _difference_text(ours: Ours | None) -> str:
    return "" if ours is None or math.isnan(ours.difference) else plus_minus(ours.difference, ours.difference_ci95, "+")


def _numbers(values: dict[str, int] | None) -> str:
    return ", ".join(map(str, values.values())) if values else ""


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
