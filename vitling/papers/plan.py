"""What `vitling reproduce PAPER/TABLE` would train: the rows of a table at a scale, and why some are left out. Free of torch."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vitling.errors import UserError, did_you_mean
from vitling.papers import illustrations, tables
from vitling.papers.table import Data, Figure, Row, Table, nano_on
from vitling.recipes import Recipe, load_recipe, override, scale_epochs

SCALES = ("paper", "nano")
SPLITS = ("test", "val")
SEEDS = 3
NO_DOWNLOAD = ("", "imagenet")  # the data of recipes where the user has to give it


@dataclass(frozen=True)
class Line:
    """One line of the result. At nano scale the paper's columns of one setting fall together, since there is one dataset."""

    label: str
    rows: tuple[Row, ...]
    recipe: Recipe | None = None
    reason: str = ""  # why it is not trained
    data: str = ""  # of a row that describes data: what is counted
    test_size: int | None = None  # pixels, where it is measured at another size than it was trained at
    study_name: str = ""  # two lines may read two networks of one run

    @property
    def row(self) -> Row:
        return self.rows[0]

    @property
    def is_trained(self) -> bool:
        return self.recipe is not None and not self.reason


@dataclass(frozen=True)
class Plan:
    """A table at a scale."""

    name: str
    table: Table
    scale: str
    lines: tuple[Line, ...]

    @property
    def recipes(self) -> dict[str, Recipe]:
        """What a study has to train, by name."""
        return {line.study_name: line.recipe for line in self.lines if line.recipe and line.is_trained}

    @property
    def draws_published_sizes(self) -> bool:
        """Accuracies over sizes: at the paper's scale they are the paper's, and nothing is trained."""
        return isinstance(self.table, Figure) and self.table.kind == "sizes" and self.scale == "paper"

    def folder_name(self, data: str) -> str:
        """The default folder of its study."""
        parts = [self.name, self.scale, *([Path(data).stem] if data else [])]
        return re.sub(r"[^\w.-]+", "-", "-".join(parts))


@dataclass(frozen=True)
class Request:
    """What is asked of a table or figure: its rows and scale, and how their study is trained."""

    name: str
    scale: str = "paper"
    rows: str = ""  # names or parts of names, with commas between; empty for all
    data: str | None = None
    epochs: int | None = None
    seeds: int | list[int] = SEEDS
    budget_seconds: float | None = None
    jobs: int | None = None
    on: str = "local"  # the engine
    gpus_per_trial: float | None = None
    command: str = ""  # as it was typed, for the page
    split: str = ""  # of the data that accuracies are measured on; empty for the paper's own, where the data has it

    def plan(self) -> Plan:
        if self.split and self.split not in SPLITS:
            raise UserError(f"split={self.split} is not one of {', '.join(SPLITS)}.")
        return make_plan(self.name, scale=self.scale, rows=self.rows, data=self.data, epochs=self.epochs)

    def is_too_long_for(self, device: str) -> bool:
        """Whether the published setting would run on a CPU without an end in sight."""
        here = self.on.partition(":")[0] == "local"  # what other machines have is not known
        return here and self.scale == "paper" and device == "cpu" and not (self.budget_seconds or self.epochs)

    @property
    def seed_count(self) -> int:
        return self.seeds if isinstance(self.seeds, int) else len(self.seeds)


def make_plan(
    name: str, *, scale: str = "paper", rows: str = "", data: str | None = None, epochs: int | None = None
) -> Plan:
    """The lines of a table; `rows` picks some, as names or parts of names with commas between."""
    if scale not in SCALES:
        raise UserError(f"scale={scale} is not one of {', '.join(SCALES)}.")
    table = find_table(name)
    lines = _nano_lines(table, data or "digits") if scale == "nano" else _paper_lines(table)
    if rows:
        lines = _pick(lines, rows, name)
    if scale == "paper" and data:
        lines = _given_data(lines, data)
    if epochs:
        lines = [replace(line, recipe=line.recipe and _with_epochs(line.recipe, epochs)) for line in lines]
    return Plan(name, table, scale, tuple(_name_runs(lines)))


def find_table(name: str) -> Table:
    known = tables()
    if name in illustrations():
        drawing = illustrations()[name]
        raise UserError(
            f"{name} ({drawing.title}) is a drawing and holds no result; the same is to be seen in {drawing.seen_in}."
        )
    if name not in known:
        raise UserError(f"no table '{name}'. {did_you_mean(name, known)} `vitling reproduce` lists them all.")
    return known[name]


def _paper_lines(table: Table) -> list[Line]:
    several = len({row.data.name for row in table.rows}) > 1
    lines = []
    for row in table.rows:
        label = f"{row.label}, {row.data.name}" if several and row.label != row.data.name else row.label
        recipe = override(load_recipe(row.recipe), row.change) if row.recipe else None
        counted = row.data.named if row.describes == "data" else ""
        lines.append(Line(label, (row,), recipe, row.why_not, counted, row.test_size))
    return lines


def described_recipe(row: Row) -> Recipe | None:
    """A recipe of the network that a row describes, or that it names without training it."""
    if row.describes and row.describes != "data":
        recipe = load_recipe(row.describes)
        return replace(recipe, img_size=row.img_size) if row.img_size else recipe
    return Recipe(model=row.model, img_size=row.img_size) if row.model else None


def _nano_lines(table: Table, data: str) -> list[Line]:
    """Rows of one label and one nano recipe are one line."""
    groups: list[list[Row]] = []
    for row in table.rows:
        same = (g for g in groups if _nano_key(g[0]) == _nano_key(row))
        group = next(same, None)
        groups.append([row]) if group is None else group.append(row)
    labels = [group[0].label for group in groups]
    lines = []
    for group, label in zip(groups, labels, strict=True):
        row = group[0]
        label = label if labels.count(label) == 1 else f"{label}, {row.data.name}"
        recipe = nano_on(row.nano, data) if row.nano else None
        size = (row.nano_test_size or 0) * (1 if data == "digits" else 2) or None
        lines.append(Line(label, tuple(group), recipe, "" if recipe else row.why_not or row.no_nano, test_size=size))
    return lines


def _nano_key(row: Row) -> tuple:
    return row.label, row.nano, row.network, row.nano_test_size


def _pick(lines: list[Line], wanted: str, table: str) -> list[Line]:
    names = [line.label for line in lines]
    chosen: set[str] = set()
    for text in (
        part.strip() for part in re.split(r",(?!\s)(?![^\[]*\])", wanted)
    ):  # names hold ", " and [7,8] themselves
        exact = [name for name in names if name.lower() == text.lower()]
        found = exact or [name for name in names if text and text.lower() in name.lower()]
        if not found:
            raise UserError(f"{table} has no row '{text}'. {did_you_mean(text, names, show=30)}")
        chosen |= set(found)
    return [line for line in lines if line.label in chosen]


def _given_data(lines: list[Line], data: str) -> list[Line]:
    """Put the user's data into the rows that need it: those without a download where there are some, else all."""
    needing = [line for line in lines if _needs_data(line)] or lines
    takers = [line for line in needing if line.recipe or line.row.describes == "data"]
    sources = list(dict.fromkeys(line.row.data.source or line.row.data.name for line in takers))
    if len(sources) > 1:
        raise UserError(
            f"data={data} is one dataset and these rows need {len(sources)}: {', '.join(sources)}; "
            f"pick the rows of one, such as rows={sources[0]}."
        )
    return [_with_data(line, data) if line in takers else line for line in lines]


def _needs_data(line: Line) -> bool:
    if line.row.describes == "data":
        return not line.data
    return line.recipe is not None and line.recipe.data in NO_DOWNLOAD


def _with_data(line: Line, data: str) -> Line:
    return replace(line, recipe=replace(line.recipe, data=data)) if line.recipe else replace(line, data=data)


def _with_epochs(recipe: Recipe, epochs: int) -> Recipe:
    if epochs < 1:
        raise UserError(f"epochs={epochs} is out of range; it must be at least 1.")
    return scale_epochs(recipe, epochs)


def _name_runs(lines: list[Line]) -> list[Line]:
    """Lines of equal recipes share a run, under the name of the first."""
    named: list[Line] = []
    for line in lines:
        first = next((other for other in named if line.recipe and other.recipe == line.recipe), line)
        named.append(replace(line, study_name=first.study_name or line.label))
    return named


def leave_out_unready(plan: Plan) -> Plan:
    """The plan without rows whose data, starting weights or label maps are not there; refuses one that has none left."""
    ready = mark_unready(plan)
    if plan.recipes and not ready.recipes:
        reason = next(line.reason for line in ready.lines if line.recipe)
        raise UserError(f"no row of {plan.name} can be trained yet: {reason}")
    return ready


def mark_unready(plan: Plan) -> Plan:
    """The plan in which those rows say what is missing."""
    if plan.scale == "nano":
        return plan
    lines = tuple(replace(line, reason=_missing(line)) if line.is_trained else line for line in plan.lines)
    return replace(plan, lines=lines)


def choose_test_split(
    wanted: str, data: Data, scale: str, splits: Collection[str], name: str
) -> Literal["test", "val"]:
    """Which split of the data is measured on: what is wanted, else the paper's own, else the one that there is."""
    paper = data.test_split if scale == "paper" else "test"
    candidates = [wanted] if wanted else [paper, *(split for split in SPLITS if split != paper)]
    found = next((split for split in candidates if split in splits), None)
    if found is None:
        raise UserError(
            f"{name} has no {' or '.join(candidates)} split to measure on, only {', '.join(splits)}; add a folder "
            f"{candidates[0]} with a folder per class, as in train."
        )
    return "val" if found == "val" else "test"


def _missing(line: Line) -> str:
    recipe, data = line.recipe, line.row.data
    assert recipe is not None  # asked of lines that are trained
    from vitling.data.sources.named import match_name  # here and below, because torch takes seconds to import
    from vitling.data.sources.registered import find_source

    if recipe.data in NO_DOWNLOAD:
        return f"{data.source or data.name} cannot be downloaded; give its folder as data."
    if not (
        match_name(recipe.data)
        or find_source(recipe.data)
        or recipe.data.startswith("hf:")
        or Path(recipe.data).expanduser().exists()
    ):
        return f"{recipe.data} is not there; give the folder of {data.source or data.name} as data."
    from vitling.methods import find_method  # as above
    from vitling.runs.opening import is_there

    if recipe.init and not is_there(recipe.init):
        return f"it starts from {recipe.init}, which is not there; {line.row.note_at('paper') or 'train that first'}."
    return find_method(recipe.method).missing(recipe)
