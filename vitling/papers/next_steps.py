"""What to do after a dry run: a command that works on this machine, and what is missing for the published setting."""

import shlex
from dataclasses import replace

from vitling.errors import UserError
from vitling.papers import is_figure
from vitling.papers.plan import Plan, Request, find_table, mark_unready
from vitling.papers.table import Figure


def find_next_steps(request: Request, device: str) -> list[str]:
    """Lines to follow a dry run of `request` on a machine whose fastest device is of this type."""
    plan = mark_unready(request.plan())
    if works(request, device):
        lines = [f"Next: `{command(request)}`."]
    elif small := _nano(request):
        lines = [f"Next: `{command(small)}`, the same comparison in minutes on this machine."]
    elif plan.recipes:  # it has no nano counterpart: a short part of it works here
        lines = [f"Next: `{command(replace(request, epochs=1, seeds=1))}`, an epoch of each row."]
    else:
        lines = []
    return lines + _missing(plan, request, device)


def works(request: Request, device: str) -> bool:
    """Whether reproduce would not refuse this here."""
    try:
        plan = mark_unready(request.plan())
    except UserError:
        return False
    table = plan.table
    if isinstance(table, Figure) and not plan.recipes:
        return table.kind == "sizes" and request.scale == "paper" and not (request.budget_seconds or request.epochs)
    if not any(line.recipe for line in plan.lines):
        return True  # a table that describes, or only quotes, is printed
    needs_no_runs = isinstance(table, Figure) and table.kind == "sizes" and request.scale == "paper"
    return needs_no_runs or (bool(plan.recipes) and not request.is_too_long_for(device))


def _nano(request: Request) -> Request | None:
    """The same at nano scale, with the rows that were picked where they have nano counterparts; None where none has."""
    if request.scale == "nano":
        return None
    small = replace(request, scale="nano", data=None, split="", budget_seconds=None, epochs=None)
    for candidate in (small, replace(small, rows="")):
        try:
            if candidate.plan().recipes:
                return candidate
        except UserError:
            continue  # rows of several datasets are one line at nano scale, under another name
    return None


def _missing(plan: Plan, request: Request, device: str) -> list[str]:
    """What the published setting lacks, a line for each thing, with the rows that lack it."""
    if request.scale == "nano" or is_sizes(request.name):
        return []
    reasons: dict[str, list[str]] = {}
    for line in plan.lines:
        if line.recipe and line.reason and not line.row.why_not:
            reasons.setdefault(line.reason.rstrip("."), []).append(line.label)
    lines = [f"Missing for {_some(labels, plan)}: {reason}." for reason, labels in reasons.items()]
    if any(line.recipe for line in plan.lines) and request.is_too_long_for(device):
        lines.append("Missing for all rows: a GPU; this machine has none. A budget or epochs bound the time on a CPU.")
    return lines


def _some(labels: list[str], plan: Plan) -> str:
    trained = [line for line in plan.lines if line.recipe]
    if len(labels) == len(trained):
        return "all rows"
    return "; ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def is_sizes(name: str) -> bool:
    """Whether it is a figure of accuracies over sizes, which trains nothing at the paper's scale."""
    table = find_table(name)
    return is_figure(name) and isinstance(table, Figure) and table.kind == "sizes"


def command(request: Request) -> str:
    """The command line of a request."""
    words = ["vitling", "reproduce", request.name]
    seeds = request.seeds if isinstance(request.seeds, int) else ",".join(map(str, request.seeds))
    defaults = Request(request.name)
    budget = f"{request.budget_seconds:g}s" if request.budget_seconds else None
    for option, value, default in (
        ("--scale", request.scale, defaults.scale),
        ("--rows", request.rows, ""),
        ("--data", request.data, None),
        ("--split", request.split, ""),
        ("--seeds", seeds, defaults.seeds),
        ("--epochs", request.epochs, None),
        ("--budget", budget, None),
        ("--jobs", request.jobs, defaults.jobs),
    ):
        if value != default:
            words += [option, str(value)]
    return shlex.join(words)
