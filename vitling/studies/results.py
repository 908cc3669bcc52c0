"""A study's folder: the plan, the runs, and the table of results.

study.json                      the plan, how fast each recipe trains here (with a budget), scores and failures
runs/NAME/fraction-F/seed-S     a run directory each; finished ones are found again and not repeated
table.md  table.csv  study.html
"""

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from vitling._deprecated import renamed_attribute
from vitling.errors import UserError
from vitling.evaluation.intervals import confidence_interval
from vitling.evaluation.metrics import Evaluation
from vitling.files import json_with, refuse_foreign, starting_with, write_text
from vitling.models.macs import count_macs
from vitling.recipes import Recipe, from_dict, to_dict
from vitling.reports.card import render_card
from vitling.reports.frame import make_frame
from vitling.reports.page import is_page
from vitling.runs.asked import asked_for, difference
from vitling.runs.records import Amount, Positive
from vitling.runs.remote import as_url, working_folder
from vitling.runs.run import Run
from vitling.runs.surroundings import environment
from vitling.training.budget import Speed, fit_to_budget
from vitling.training.settings import Settings
from vitling.validation.documents import damaged, read_json
from vitling.validation.values import PartOf, Seed

if TYPE_CHECKING:
    from pandas import DataFrame

RUNS = "runs"
Key = tuple[str, float, int]  # name, fraction, seed

is_study = json_with("names", "seeds", "recipes")
is_markdown_table = starting_with(b"| recipe |")
is_csv_table = starting_with(b"name,fraction,seeds,")


class StudyRecord(TypedDict):
    """study.json."""

    names: list[str]
    seeds: list[Seed]
    fractions: list[PartOf]
    split: Literal["test", "val"]
    budget_seconds: Positive | None
    recipes: dict[str, dict[str, Any]]
    macs: dict[str, Amount]
    environment: dict[str, Any]
    failures: list[tuple[str, PartOf, Seed, str]]


@dataclass(frozen=True)
class Row:
    """One recipe at one fraction of the data. Scores are in percent, times in seconds, both over the seeds that finished."""

    name: str
    recipe: Recipe
    fraction: float
    seeds: list[int]
    scores: list[float]  # one per seed
    mean: float
    ci95: float  # half-width of the 95 % confidence interval; nan with one seed
    difference: float  # to the first recipe at the same fraction, paired by seed
    difference_ci95: float
    epochs: int
    parameters: int
    macs: int
    wall_seconds: float
    images_per_second: float
    failure: str = ""  # why seeds are missing

    half = renamed_attribute("half", "ci95")
    difference_half = renamed_attribute("difference_half", "difference_ci95")


class Study:
    """A study's folder: the plan and the results so far."""

    def __init__(self, folder: str | Path):
        self.url = as_url(folder)
        self.folder = working_folder(self.url) if self.url else Path(folder)
        self.names: list[str] = []
        self.seeds: list[int] = []
        self.fractions: list[float] = []
        self.split = "test"
        self.budget_seconds: float | None = None
        self.by_clock = False
        self.recipes: dict[str, Recipe] = {}  # also those of earlier plans
        self.speeds: dict[str, Speed] = {}
        self.failures: dict[Key, str] = {}
        self.environment: dict[str, Any] = {}
        self._macs: dict[str, int] = {}
        if (self.folder / "study.json").exists():
            self._load()
        elif left := _files_in(self.folder):
            raise UserError(
                f"{self.folder} holds other files ({', '.join(left[:3])} ...) and no study; give another folder."
            )

    # -- the plan --------------------------------------------------------------------------------------------------

    def plan(
        self,
        recipes: dict[str, Recipe],
        seeds: Sequence[int],
        fractions: Sequence[float],
        budget_seconds: float | None,
        split: str,
        by_clock: bool = False,
    ) -> None:
        """Take up a plan. One that only adds to the folder's, or leaves something out, keeps all finished runs."""
        refuse_foreign(self.folder / "table.md", ours=is_markdown_table)  # now, not when all is trained
        refuse_foreign(self.folder / "table.csv", ours=is_csv_table)
        refuse_foreign(self.folder / "study.html", ours=is_page)
        known = (self.folder / "study.json").exists()
        recipes = {name: from_dict(to_dict(recipe)) for name, recipe in recipes.items()}  # as they are read back
        for name, recipe in recipes.items():
            before = asked_for(self.recipes.get(name, recipe), self.budget_seconds if known else budget_seconds)
            now = asked_for(recipe, budget_seconds)
            if before != now:
                raise UserError(
                    f"{self.folder} holds another study of '{name}' ({difference(before, now)}); "
                    "give the recipe another name, or choose another folder."
                )
        self.names, self.seeds, self.fractions = list(recipes), list(seeds), [float(f) for f in fractions]
        self.split, self.budget_seconds, self.by_clock = split, budget_seconds, by_clock
        self.recipes |= recipes
        self.failures, self.environment = {}, environment()

    def run_recipe(self, name: str, fraction: float, seed: int) -> Recipe:
        """What one run trains."""
        recipe = self.recipes[name]
        recipe = replace(recipe, seed=seed, fraction=recipe.fraction * fraction)
        if self.budget_seconds and not self.by_clock:
            recipe = fit_to_budget(recipe, self.speeds[name], self.budget_seconds, fraction)
        return recipe

    def run_settings(self, name: str, settings: Settings) -> Settings:
        """As many threads as the speed was measured with; or the budget, for a run that keeps to it by itself."""
        if not self.budget_seconds:
            return settings
        if self.by_clock:
            return replace(settings, budget_seconds=self.budget_seconds)
        return replace(settings, threads=settings.threads or self.speeds[name].threads)

    def check_runs(self) -> None:
        """Refuse, before anything is trained, a folder whose runs are others than planned."""
        for key, run in self.runs.items():
            run.claim(asked_for(self.run_recipe(*key), self.budget_seconds if self.by_clock else None))

    @property
    def runs(self) -> dict[Key, Run]:
        """Every planned run, whether it has begun or not: all recipes with one seed, then with the next."""
        keys = [(n, f, s) for s in self.seeds for f in self.fractions for n in self.names]
        return {key: Run(self.folder / _below(key)) for key in keys}

    def run_place(self, key: Key) -> str | Path:
        """Where a run is to be trained; on other storage, the run's folder here is only its working copy."""
        return f"{self.url}/{_below(key)}" if self.url else self.folder / _below(key)

    def fetch_runs(self, *keys: Key) -> None:
        """Bring the runs, or some of them, here from other storage, as far as they are there."""
        for key in (keys or self.runs) if self.url else ():
            Run(self.run_place(key)).fetch(checkpoints=False)

    def save(self) -> None:
        scores = {run_label(*key): score for key, run in self.runs.items() if (score := self.score(run)) is not None}
        tree = {
            "names": self.names,
            "seeds": self.seeds,
            "fractions": self.fractions,
            "split": self.split,
            "budget_seconds": self.budget_seconds,
            "by_clock": self.by_clock,
            "recipes": {name: to_dict(recipe) for name, recipe in self.recipes.items()},
            "speeds": {name: asdict(speed) for name, speed in self.speeds.items()},
            "macs": self._macs,
            "environment": self.environment,
            "scores": scores,
            "failures": [[*key, reason] for key, reason in self.failures.items()],
        }
        write_text(self.folder / "study.json", json.dumps(tree, indent=1, ensure_ascii=False), ours=is_study)

    def _load(self) -> None:
        path = self.folder / "study.json"
        tree = read_json(path, StudyRecord)
        self.names, self.seeds, self.fractions = tree["names"], tree["seeds"], tree["fractions"]
        self.split, self.budget_seconds, self._macs = tree["split"], tree["budget_seconds"], dict(tree["macs"])
        self.by_clock = tree.get("by_clock", False) is True
        self.environment = tree["environment"]
        try:
            self.recipes = {name: from_dict(recipe) for name, recipe in tree["recipes"].items()}
            speeds = tree.get("speeds") or tree.get("paces", {})
            self.speeds = {name: Speed.from_dict(speed) for name, speed in speeds.items()}
        except UserError as error:
            raise damaged(str(path), str(error).rstrip(".")) from None
        if unknown := [name for name in self.names if name not in self.recipes]:
            raise damaged(str(path), f"it has no recipe for '{unknown[0]}'")
        self.failures = {(name, fraction, seed): reason for name, fraction, seed, reason in tree["failures"]}

    # -- results ---------------------------------------------------------------------------------------------------

    def score(self, run: Run) -> float | None:
        """Top-1 in percent on the study's split, once that is known."""
        if not run.finished:
            return None
        if self.split == "val":
            return 100 * run.info["best"]["val_top1"]
        return 100 * Evaluation.read(evaluation_file(run)).top1 if evaluation_file(run).exists() else None

    def rows(self) -> list[Row]:
        """The table: fractions in the order given, within each the recipes in theirs."""
        rows = []
        for fraction in self.fractions:
            scores = {name: self._scores(name, fraction) for name in self.names}
            rows += [self._row(name, fraction, scores[name], scores[self.names[0]]) for name in self.names]
        return rows

    def _scores(self, name: str, fraction: float) -> dict[int, float]:
        found = {seed: self.score(self.runs[name, fraction, seed]) for seed in self.seeds}
        return {seed: score for seed, score in found.items() if score is not None}

    def _row(self, name: str, fraction: float, scores: dict[int, float], first: dict[int, float]) -> Row:
        runs = [self.runs[name, fraction, seed] for seed in scores]
        infos = [run.info for run in runs]
        failed = {s: self.failures[name, fraction, s] for s in self.seeds if (name, fraction, s) in self.failures}
        paired = [scores[seed] - first[seed] for seed in scores if seed in first]
        is_first = name == self.names[0]
        centre, ci95 = confidence_interval(list(scores.values()))
        between, between_ci95 = (0.0, math.nan) if is_first else confidence_interval(paired)
        speeds = [mean(timing["images_per_second"] for _, timing in run.validations()) for run in runs]
        return Row(
            name=name,
            recipe=self.recipes[name],
            fraction=fraction,
            seeds=list(scores),
            scores=list(scores.values()),
            mean=centre,
            ci95=ci95,
            difference=between,
            difference_ci95=between_ci95,
            epochs=round(_mean([info["epochs_trained"] for info in infos], 0)),
            parameters=infos[0]["parameters"] if infos else 0,
            macs=self._count_macs(name, runs[0]) if runs else 0,
            wall_seconds=_mean([info["wall_seconds"] for info in infos]),
            images_per_second=_mean(speeds),
            failure="; ".join(f"seed {seed}: {reason}" for seed, reason in failed.items()),
        )

    def _count_macs(self, name: str, run: Run) -> int:
        if name not in self._macs:
            seen = run.preprocessing()
            self._macs[name] = count_macs(run.load_model(), (seen.channels, *seen.size))
        return self._macs[name]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and cells, as the terminal, Markdown and the page show them. A fraction's column only where there are several."""
        several, rows = len(self.fractions) > 1, self.rows()
        score = f"{'test' if self.split == 'test' else 'best validation'} top-1 %"
        head = ["recipe", "data", "epochs", score, "difference", "parameters", "MACs", "time", "images/s"]
        cells = [
            [
                row.name,
                f"{row.fraction:g}",
                str(row.epochs),
                plus_minus(row.mean, row.ci95)
                + ("" if len(row.scores) == len(self.seeds) else f" ({len(row.scores)})"),
                "" if row.name == self.names[0] else plus_minus(row.difference, row.difference_ci95, sign="+"),
                short_number(row.parameters),
                short_number(row.macs),
                f"{row.wall_seconds:,.0f} s",
                f"{row.images_per_second:,.0f}",
            ]
            for row in rows
        ]
        if not several:
            head.pop(1)
            cells = [[row[0], *row[2:]] for row in cells]
        return head, cells

    def notes(self) -> list[str]:
        """What has to be read with the table: how the numbers came about, and which runs are missing."""
        names = "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        interval = "mean" if len(self.seeds) == 1 else "mean ± 95 % confidence interval (Student's t)"
        notes = [f"{names}; {interval}; the difference is to {self.names[0]}, paired by seed."]
        if self.budget_seconds:
            how = "each run keeps to the clock" if self.by_clock else "the epochs follow from it"
            notes.append(f"Equal wall time: {self.budget_seconds:g} s per run; {how}.")
        if self.split == "val":
            notes.append("Best validation accuracy: the epoch was chosen by it, so it is for choices, not for claims.")
        notes += [f"{row.name} at {row.fraction:g}: {row.failure}" for row in self.rows() if row.failure]
        return notes

    def to_markdown(self) -> str:
        head, cells = self.table()
        marks = ["---", *["---:"] * (len(head) - 1)]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, marks, *cells)]
        return "\n".join([*lines, "", *(f"{note}\n" for note in self.notes())]).rstrip() + "\n"

    def to_csv(self) -> str:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        rows = [_flat(row) for row in self.rows()]
        writer.writerow(rows[0])
        writer.writerows([" ".join(map(str, v)) if isinstance(v, list) else v for v in row.values()] for row in rows)
        return buffer.getvalue()

    def to_json(self) -> str:
        """The rows, with null where a number is not known."""
        rows = [
            {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in _flat(row).items()}
            for row in self.rows()
        ]
        plan = {"split": self.split, "seeds": self.seeds, "budget_seconds": self.budget_seconds}
        return json.dumps({**plan, "rows": rows}, indent=1, ensure_ascii=False)

    def to_frame(self) -> "DataFrame":
        """A row per recipe and fraction, as in table.csv; seeds and scores are lists."""
        return make_frame([_flat(row) for row in self.rows()])

    def __repr__(self) -> str:
        return f"Study({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the table, and the intervals."""
        if not self.names:
            return render_card(repr(self), {"status": "nothing is planned yet"})
        from vitling.reports import plots  # matplotlib takes a while to import

        several, svg = len(self.fractions) > 1, ""
        found = [row for row in self.rows() if row.scores]
        if found:
            values = [(f"{row.name} ({row.fraction:g})" if several else row.name, row.mean, row.ci95) for row in found]
            svg = plots.intervals(values, x="accuracy, %")
        images = " and ".join(sorted({self.recipes[name].data for name in self.names}))
        return render_card(
            f"{len(self.names)} recipes on {images}",
            table=self.table(),
            svg=svg,
            caption="Mean and 95 % interval.",
            notes=self.notes(),
        )

    def write_tables(self) -> None:
        write_text(self.folder / "table.md", self.to_markdown(), ours=is_markdown_table)
        write_text(self.folder / "table.csv", self.to_csv(), ours=is_csv_table)


def plus_minus(centre: float, ci95: float, sign: str = "") -> str:
    if math.isnan(centre):
        return "–"
    return f"{centre:{sign}.2f}" + ("" if math.isnan(ci95) else f" ± {ci95:.2f}")


def short_number(number: float) -> str:
    """A count in three digits: 5.20 k, 0.70 M, 1.35 G."""
    for limit, unit, name in ((1e9, 1e9, "G"), (1e5, 1e6, "M"), (1e3, 1e3, "k")):
        if number >= limit:
            scaled = number / unit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {name}"
    return str(number)


def slug(name: str) -> str:
    """A name as a folder."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "-"


def run_label(name: str, fraction: float, seed: int) -> str:
    return f"{name}, seed {seed}" if fraction == 1 else f"{name}, {fraction:g} of the data, seed {seed}"


def evaluation_file(run: Run) -> Path:
    return run.path / "evaluation-test.json"


def _below(key: Key) -> str:
    """The folder of a run, below that of its study."""
    name, fraction, seed = key
    return f"{RUNS}/{slug(name)}/fraction-{fraction:g}/seed-{seed}"


def _files_in(folder: Path) -> list[str]:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another folder.")
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) if folder.exists() else []


def _flat(row: Row) -> dict:
    return {key: value for key, value in vars(row).items() if key != "recipe"}


def _mean(values: Sequence[float], default: float = math.nan) -> float:
    return mean(values) if values else default
