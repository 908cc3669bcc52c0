"""`vitling doctor`."""

import json

import typer

import vitling
from vitling.cli import terminal
from vitling.cli.options import AsJson


def doctor(as_json: AsJson = False) -> None:
    """Look at this installation and this machine; say what is wrong and what to do. Exit code 1 where something will not work."""
    found = vitling.examine()
    if as_json:
        print(json.dumps([finding.to_dict() for finding in found], indent=1, ensure_ascii=False))
    else:
        terminal.show_checkup(found)
    if any(finding.state == "bad" for finding in found):
        raise typer.Exit(1)
