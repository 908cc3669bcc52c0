"""What folds are worth: the number from all the images beside that of the test split, and the ensemble and its pupil beside a single network.

    python benchmarks/folds.py run --data ten.npz --minutes 3
    python benchmarks/folds.py table

Equal total wall time: one network for all of it, or five folds and a network that is distilled from them, a sixth each. The test split is looked
at once by each. Every result is a line of benchmarks/folds.jsonl, so a series that is interrupted continues. Two runs at a time, one thread each.
"""

import argparse
import json
import math
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from results_page import fill
from scaling import vitling

RESULTS = Path(__file__).with_suffix(".jsonl")
FOLDS = 5
Row = dict


def known() -> list[Row]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def measure(way: str, data: Path, minutes: float, seed: int) -> None:
    row = dict(way=way, data=data.stem, minutes=minutes, seed=seed)
    if any(row.items() <= other.items() for other in known()):
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        folds = ["--folds", str(FOLDS), "--distill"] if way == "folds" else []
        settings = [f"seed={seed}", *folds, "--budget", f"{minutes}m", "--threads", "1", "--quiet"]
        began = time.monotonic()
        vitling("train", str(data), *settings, "--out", str(run))
        row["seconds"] = round(time.monotonic() - began, 1)
        row["test"] = json.loads(vitling("evaluate", str(run), "--json"))["top1"]
        if folds:
            held_out = json.loads(vitling("evaluate", str(run), "--split", "val", "--json"))
            row |= dict(out_of_fold=held_out["top1"], interval=held_out["top1_interval"], images=held_out["images"])
            singles = [json.loads(vitling("evaluate", str(run / f"fold-{k}"), "--json")) for k in range(1, FOLDS + 1)]
            row["singles"] = round(sum(single["top1"] for single in singles) / FOLDS, 4)
            row["distilled"] = json.loads(vitling("evaluate", str(run / "distilled"), "--json"))["top1"]
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def run(args: argparse.Namespace) -> None:
    tasks = [(way, data, args.minutes, seed) for data in args.data for seed in range(args.seeds) for way in args.ways]
    with ThreadPoolExecutor(args.jobs) as pool:
        for future in [pool.submit(measure, *task) for task in tasks]:
            future.result()


def table() -> str:
    lines = [
        "| data | minutes | seed | out of fold, 95 % interval | the five on test, mean | ensemble on test | distilled on test | one network on test |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    rows = {(row["data"], row["minutes"], row["seed"], row["way"]): row for row in known()}
    for data, minutes, seed in sorted({cell[:3] for cell in rows}):
        folds, single = (rows.get((data, minutes, seed, way)) for way in ("folds", "single"))
        if not folds or not single:
            continue
        low, high = folds["interval"]
        number = f"{100 * folds['out_of_fold']:.1f} ({100 * low:.1f} to {100 * high:.1f})"
        tests = " | ".join(
            f"{100 * share:.1f}"
            for share in (folds.get("singles", math.nan), folds["test"], folds["distilled"], single["test"])
        )
        lines.append(f"| {data} | {minutes:g} | {seed} | {number} | {tests} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--data", type=Path, nargs="+", required=True)
    runner.add_argument("--minutes", type=float, default=6)
    runner.add_argument("--seeds", type=int, default=1)
    runner.add_argument("--ways", nargs="+", choices=("folds", "single"), default=["folds", "single"])
    runner.add_argument("--jobs", type=int, default=2)
    commands.add_parser("table", help="write the table into docs/ensembles.md")
    args = parser.parse_args()
    if args.command == "run":
        run(args)
    else:
        fill("folds", table(), Path(__file__).parents[1] / "docs" / "ensembles.md")


if __name__ == "__main__":
    main()
