"""What to do after a dry run: a request that works on this machine, and what is missing for the published setting."""

from dataclasses import dataclass, replace

from vitling.errors import UserError
from vitling.papers.plan import Plan, Request, mark_unready
from vitling.papers.table import Figure


@dataclass(frozen=True)
class NextStep:
    """A request that reproduce does not refuse here, and what it does in place of the one that was asked for."""

    request: Request
    what: str = ""


def find_next_step(request: Request, device: str) -> NextStep | None:
    """After a dry run of `request` on a machine whose fastest device is of this type; None where nothing of it works."""
    if works(request, device):
        return NextStep(request)
    if small := _nano(request):
        return NextStep(small, "the same comparison in minutes on this machine")
    short = replace(request, epochs=1, seeds=1)  # without a nano counterpart, a short part of it
    return NextStep(short, "an epoch of each row") if works(short, device) else None


def works(request: Request, device: str) -> bool:
    """Whether reproduce would not refuse this here."""
    try:
        plan = mark_unready(request.plan())
    except UserError:
        return False
    if plan.draws_published_sizes:
        return not (request.budget_seconds or request.epochs)
    if not any(line.recipe for line in plan.lines):  # a table that describes, or only quotes, is printed
        return not isinstance(plan.table, Figure)
    return bool(plan.recipes) and not request.is_too_long_for(device)


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


def find_missing(request: Request, device: str) -> list[str]:
    """What the published setting lacks here, a line for each thing, with the rows that lack it."""
    plan = mark_unready(request.plan())
    if request.scale == "nano" or plan.draws_published_sizes:
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
    if len(labels) == sum(line.recipe is not None for line in plan.lines):
        return "all rows"
    return "; ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
