"""What a model that predicts numbers gives: its evaluation and its predictions."""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from vitling.cli.terminal.console import console, print_line

if TYPE_CHECKING:
    from vitling.deploy.predictor import NumberPrediction
    from vitling.evaluation.numbers import NumbersEvaluation


def show_numbers_evaluation(result: "NumbersEvaluation", run: Path) -> None:
    title = f"{escape(result.data)}, {result.split} split, {result.images:,} images"
    summary = Table(title=title, show_header=False, title_justify="left")
    for name, value in result.facts().items():
        summary.add_row(name, value)
    console.print(summary)
    if result.groups:
        print_line(f"intervals are over {result.groups:,} groups: images of one are no independent witnesses")
    for note in result.notes:
        print_line(f"note: {note}")
    if result.kept:
        print_line(f"all numbers: {run / result.file_name}")


def show_number_predictions(predictions: "Sequence[NumberPrediction]", form: str) -> None:
    """Print predictions as a table, JSON or CSV."""
    if form == "json":
        shown = [
            {name: value for name, value in asdict(p).items() if name not in ("classes", "probabilities")}
            for p in predictions
        ]
        print(json.dumps(shown, indent=1, ensure_ascii=False))
        return
    seen = [p for p in predictions if p.skipped is None]
    rows = [(p.path, p.value, *(p.interval or (None, None))) for p in seen]
    if form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(["path", "value", "low", "high"])
        writer.writerows(rows)
        return
    table = Table("image", "value", "90 % interval")
    for path, value, low, high in rows:
        table.add_row(escape(path), f"{value:.5g}", f"{low:.5g} to {high:.5g}")
    console.print(table)
    if folders := {str(Path(p.attention).parent) for p in seen if p.attention}:
        print_line(f"where it looked: {', '.join(folders)}")
