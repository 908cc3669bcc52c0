"""What `vitling improve` gains: from nothing on each dataset, first on the images that confirm, then once on the test split.

    python benchmarks/improve.py --data ten.npz flowers10 paintings7 --minutes 20 --out improve-runs [--jobs 2] [--threads 1]

The table goes into docs/improving.md between its markers. The same command again goes on where it stopped, and looks at no test split twice.
"""

import argparse
from pathlib import Path

from results_page import fill

import vitling
from vitling.evaluation.comparison import compare
from vitling.evaluation.evaluation import read_evaluation
from vitling.evaluation.intervals import paired_interval
from vitling.evaluation.metrics import Evaluation
from vitling.improvement.record import Improvement
from vitling.runs.run import Run

PAGE = Path(__file__).parents[1] / "docs" / "improving.md"
HEAD = [
    "data",
    "budget",
    "used",
    "tried",
    "left out",
    "winner",
    "on the images that confirm",
    "test, start",
    "test, winner",
    "gain on test",
]


def look_once(run: Run) -> Evaluation | None:
    """The test split of a run, where the data has one: what is written there already is read."""
    if "test" not in run.info["data"]["splits"]:
        return None
    return read_evaluation(run) if (run.path / "evaluation-test.json").exists() else vitling.evaluate(run)


def row(data: str, result: Improvement) -> list[str]:
    """A line of the table."""
    record, winner = result.record, result.winner
    tried = len({name for entry in result.rounds for name in entry["names"]}) - 1
    cells = [
        Path(data).stem,
        f"{record['asked']['budget_seconds'] / 60:g} min",
        f"{record['spent_seconds'] / 60:.1f} min",
    ]
    cells += [str(tried), str(len(record["omitted"]))]
    if winner is None:
        return [*cells, "none", result.sentence, "", "", ""]
    found = record["confirmation"]
    ci95 = (found["high"] - found["low"]) / 2
    cells += [record["winner"], f"{found['difference']:+.1f} ± {ci95:.1f} ({found['images']:,})"]
    before, after = look_once(Run(Path(record["start"]["run"]))), look_once(winner)
    if before is None or after is None:
        return [*cells, "no test split", "", ""]
    pairs = compare(after, before)
    low, high = paired_interval(pairs.only_first, pairs.only_second, after.images)
    gain = f"{100 * (after.top1 - before.top1):+.1f} ± {50 * (high - low):.1f} ({after.images:,})"
    return [*cells, f"{100 * before.top1:.1f}", f"{100 * after.top1:.1f}", gain]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--out", type=Path, default=Path("improve-runs"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dry", action="store_true", help="print the table and leave the page as it is")
    given = parser.parse_args()
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for data in given.data:
        folder = given.out / f"{Path(data).stem}-{given.minutes:g}m"
        name = str(Path(data).resolve()) if Path(data).exists() else data
        settings = vitling.Settings(threads=given.threads)
        result = vitling.improve(name, 60 * given.minutes, folder, jobs=given.jobs, settings=settings)
        print(f"{data}: {result.sentence}", flush=True)
        lines.append("| " + " | ".join(row(data, result)) + " |")
    table = "\n".join(lines)
    if given.dry:
        print(table)
    else:
        fill("improve", table, PAGE)


if __name__ == "__main__":
    main()
