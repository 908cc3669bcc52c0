"""What `vitling reproduce PAPER/TABLE` would train: the rows of a table at a scale, and why some are left out. Free of torch."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from vitling.errors import UserError, did_you_mean
from vitling.papers import tables
from vitling.papers.table import Row, Table, nano_on
from vitling.recipes import Recipe, load_recipe, override, scale_epochs

SCALES = ("paper", "nano")
SEEDS = 3
NO_DOWNLOAD = ("", "imagenet")  # the data of recipes where the user has to give it


@dataclass(frozen=True)
class Line:
    """One line of the result. At nano scale the paper's columns of one setting fall together, since there is one dataset."""

    label: str
    rows: tuple[Row, ...]
    recipe: Recipe | None = None
    reason: str = ""  # why it is not trained
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
    jobs: int = 1
    command: str = ""  # as it was typed, for the page

    def plan(self) -> Plan:
        return make_plan(self.name, scale=self.scale, rows=self.rows, data=self.data, epochs=self.epochs)

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
    if name not in known:
        raise UserError(f"no table '{name}'. {did_you_mean(name, known)} `vitling reproduce` lists them all.")
    return known[name]


def _paper_lines(table: Table) -> list[Line]:
    several = len({row.data.name for row in table.rows}) > 1
    lines = []
    for row in table.rows:
        label = f"{row.label}, {row.data.name}" if several else row.label
        recipe = override(load_recipe(row.recipe), row.change) if row.recipe else None
        lines.append(Line(label, (row,), recipe, row.why_not))
    return lines


def _nano_lines(table: Table, data: str) -> list[Line]:
    """Rows of one label and one nano recipe are one line."""
    groups: list[list[Row]] = []
    for row in table.rows:
        same = (g for g in groups if (g[0].label, g[0].nano, g[0].network) == (row.label, row.nano, row.network))
        group = next(same, None)
        groups.append([row]) if group is None else group.append(row)
    labels = [group[0].label for group in groups]
    lines = []
    for group, label in zip(groups, labels, strict=True):
        row = group[0]
        label = label if labels.count(label) == 1 else f"{label}, {row.data.name}"
        recipe = nano_on(row.nano, data) if row.nano else None
        lines.append(Line(label, tuple(group), recipe, "" if recipe else row.why_not or row.no_nano))
    return lines


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
    needing = [line for line in lines if line.recipe and line.recipe.data in NO_DOWNLOAD] or lines
    sources = list(dict.fromkeys(line.row.data.source or line.row.data.name for line in needing if line.recipe))
    if len(sources) > 1:
        raise UserError(
            f"data={data} is one dataset and these rows need {len(sources)}: {', '.join(sources)}; "
            f"pick the rows of one, such as rows={sources[0]}."
        )
    return [
        replace(line, recipe=replace(line.recipe, data=data)) if line.recipe and line in needing else line
        for line in lines
    ]


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
    if plan.scale == "nano" or not plan.recipes:
        return plan
    lines = tuple(replace(line, reason=_missing(line)) if line.is_trained else line for line in plan.lines)
    if not any(line.is_trained for line in lines):
        reason = next(line.reason for line in lines if line.recipe)
        raise UserError(f"no row of {plan.name} can be trained yet: {reason}")
    return replace(plan, lines=lines)


def _missing(line: Line) -> str:
    recipe, data = line.recipe, line.row.data
    assert recipe is not None  # asked of lines that are trained
    if recipe.data in NO_DOWNLOAD:
        return f"{data.source or data.name} cannot be downloaded; give its folder as data."
    from vitling.methods import find_method  # here, because torch takes seconds to import
    from vitling.runs.opening import is_there

    if recipe.init and not is_there(recipe.init):
        return f"it starts from {recipe.init}, which is not there; {line.row.note_at('paper') or 'train that first'}."
    return find_method(recipe.method).missing(recipe)
