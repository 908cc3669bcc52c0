"""Every table and figure of the five papers, and what of each can be run here. Free of torch."""

from vitling.papers import PAPERS, illustrations, tables
from vitling.papers.table import QUOTED, Description, Figure, Illustration, Row, Table

HEAD = ("", "what", "rows", "as published", "nano", "not, and why")
NAMED = 3  # so many rows are named with a reason, more are counted


def coverage_rows() -> list[tuple[str, ...]]:
    """A line for each table and figure, in the papers' order: its rows, those that can be trained, and why the others cannot."""
    known: dict[str, Table | Illustration] = {**tables(), **illustrations()}
    lines: list[tuple[str, ...]] = []
    for paper in PAPERS:
        for name in sorted((name for name in known if name.startswith(f"{paper}/")), key=_place):
            entry = known[name]
            cells = _table_cells(entry) if isinstance(entry, Table) else _drawing_cells(entry)
            lines.append((f"`{name}`", entry.title, *cells))
    return lines


def coverage_markdown() -> str:
    """The same as a table of Markdown."""
    rows = [HEAD, ("---", "---", "---:", "---:", "---:", "---"), *coverage_rows()]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def _place(name: str) -> tuple[bool, int]:
    """Tables before figures, each by its number."""
    kind = name.split("/")[1]
    return kind.startswith("fig"), int(kind.lstrip("abcdefghijklmnopqrstuvwxyz"))


def _drawing_cells(drawing: Illustration) -> tuple[str, str, str, str]:
    return "", "", "", f"a drawing without results; see {drawing.seen_in}"


def _table_cells(table: Table) -> tuple[str, str, str, str]:
    rows = str(len(table.rows))
    if isinstance(table, Description):
        return rows, "printed", "", table.rows[0].why_not
    paper = sum(bool(row.recipe) for row in table.rows)
    small = sum(row.nano is not None for row in table.rows)
    if isinstance(table, Figure) and table.kind == "sizes":
        return rows, "drawn", str(small), _reasons(table, trained_is_needed=False)
    return rows, str(paper), str(small), _reasons(table, trained_is_needed=True)


def _reasons(table: Table, *, trained_is_needed: bool) -> str:
    """Rows that are not trained as published, and rows without a nano counterpart, each with the reason."""
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        if not row.recipe and trained_is_needed:
            groups.setdefault(row.why_not, []).append(row)
    small: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.nano is None and (row.recipe or not trained_is_needed):
            small.setdefault(row.why_not or row.no_nano, []).append(row)
    found = [f"{_names(rows)}: {_reason(reason, len(rows))}" for reason, rows in groups.items()]
    return "; ".join(found + [f"nano: {_names(rows)}: {_reason(reason, len(rows))}" for reason, rows in small.items()])


def _reason(reason: str, rows: int) -> str:
    return "quoted from their own papers, trained in other ways" if reason == QUOTED and rows > 1 else reason


def _names(rows: list[Row]) -> str:
    labels = list(dict.fromkeys(row.label for row in rows))
    return ", ".join(labels) if len(labels) <= NAMED else f"{len(rows)} rows"
