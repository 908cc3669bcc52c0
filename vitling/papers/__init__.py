"""The tables and figures of the five papers as data: one file per paper, one object per table. Free of torch."""

from vitling.papers import bootstrapping, dhvt, diagnosis, lvvit, t2t
from vitling.papers.table import Figure, Illustration, Table

PAPERS = {"dhvt": dhvt, "bootstrapping": bootstrapping, "t2t": t2t, "lvvit": lvvit, "diagnosis": diagnosis}


def tables() -> dict[str, Table]:
    """Every table and figure by name, such as dhvt/table6 and t2t/fig1."""
    return {
        f"{paper}/{name}": value
        for paper, module in PAPERS.items()
        for name, value in vars(module).items()
        if isinstance(value, Table)
    }


def illustrations() -> dict[str, Illustration]:
    """The drawings of the papers that hold no result, by name."""
    return {
        f"{paper}/{name}": value
        for paper, module in PAPERS.items()
        for name, value in vars(module).items()
        if isinstance(value, Illustration)
    }


def is_figure(name: str) -> bool:
    return isinstance(tables().get(name), Figure)
