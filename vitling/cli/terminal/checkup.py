"""What `vitling doctor` found."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitling.cli.terminal.console import console, entry, print_line

if TYPE_CHECKING:
    from vitling.planning.checkup import Finding

SIGNS = {"good": "", "note": "note: ", "bad": "wrong: "}


def show_checkup(found: Sequence["Finding"]) -> None:
    """Each finding with its advice, and the sum of it."""
    for finding in found:
        entry(finding.what, SIGNS[finding.state] + finding.found, finding.advice)
    console.print()
    wrong = [finding.what for finding in found if finding.state == "bad"]
    print_line(f"wrong: {', '.join(wrong)}; see above" if wrong else "everything needed works; next: vitling demo")
