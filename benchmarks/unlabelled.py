"""Whether learning from unlabelled images first pays: a few labelled images per class, the rest without labels, equal total time.

    python benchmarks/unlabelled.py shares --data cifar100_small.npz flowers10 --minutes 5
    python benchmarks/unlabelled.py run --data cifar100_small.npz flowers10 --minutes 15 --seeds 2 --labels 10
    python benchmarks/unlabelled.py table

Of the training images, so many per class are labelled and all are there without labels, those that validate excepted; the test split is looked
at once. Every way has the same wall time from command to last weights: the labels alone, or half of it for each pre-training or for the teacher
of a self-training, and half for the labels. `shares` gives the images without labels more of the time and less of it, and looks at a third of
the training images instead, which neither stage sees: what it finds is a setting. Every result is a line of benchmarks/unlabelled.jsonl, so a
series that is interrupted continues. Two runs at a time, one thread each.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from results_page import fill

RESULTS = Path(__file__).with_suffix(".jsonl")
MASKED = ["unlabelled={images}", "unlabelled_method=masked_images"]
WAYS = {  # what is compared, as changes to `vitling train DATA`; "{images}" are all training images
    "labels only": [],
    "masked images first": [*MASKED, "unlabelled_time=0.5"],
    "masked images first, for a quarter": [*MASKED, "unlabelled_time=0.25"],
    "DINO first": ["unlabelled={images}", "unlabelled_method=dino", "unlabelled_time=0.5"],
}
SHARES = {
    f"masked images for {100 * share:.0f} %": [*MASKED, f"unlabelled_time={share}"] for share in (0.25, 0.5, 0.75)
}
SELF_TRAINING = "self-training"
TAUGHT = ["method=self_training", "method_args.unlabelled={images}", "method_args.teacher={teacher}"]
HELD_OUT = 0.2  # of the labelled images, to validate on: two of ten
JUDGED = 1 / 3  # of the training images, to choose a setting by
Row = dict


def key(row: Row) -> tuple:
    return tuple(row[name] for name in ("way", "data", "labels", "minutes", "seed"))


def known() -> dict[tuple, Row]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {key(row): row for row in map(json.loads, lines)}


def divide(data: Path, labels: int, seed: int, judged: bool, folder: Path) -> tuple[str, str]:
    """What is trained on with labels, so many of each class, and all training images: two parts of the data.

    The first is tested on the test split, or on training images that are in neither where a setting is `judged`.
    """
    import vitling
    from vitling.data.sources.dataset import canonical_name, open_dataset
    from vitling.data.sources.parts import part_name, write_parts
    from vitling.data.splits import carve_validation

    vitling.register_models()
    opened = open_dataset(str(data))
    found, train = opened.found, opened.splits["train"]
    everything = np.arange(len(train))
    if judged:
        everything, held = carve_validation(train.labels, fraction=JUDGED, seed=0, class_names=opened.class_names)
        tested = ("train", held)
    elif "test" in opened.splits:
        tested = ("test", np.arange(len(opened.splits["test"])))
    else:
        raise SystemExit(f"{data} has no test split to compare on")
    chosen = []
    for c in range(len(opened.class_names)):
        members = everything[train.labels[everything] == c]
        chosen.append(np.random.default_rng([seed, c]).permutation(members)[:labels])
    few = np.sort(np.concatenate(chosen))
    parts = {"few": {"train": ("train", few), "test": tested}, "all": {"train": ("train", everything)}}
    write_parts(folder / "parts.json", canonical_name(data), found, parts)
    return part_name("few", folder / "parts.json"), part_name("all", folder / "parts.json")


def measure(way: str, data: Path, labels: int, minutes: float, seed: int) -> Row:
    """A command as a user types it, and one look at the test split, or at held-out training images where shares are compared."""
    row = dict(way=way, data=data.stem, labels=labels, minutes=minutes, seed=seed)
    if found := known().get(key(row)):
        return found
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, everything = divide(data, labels, seed, way in SHARES, folder)
        run = folder / "run"
        settings = [f"seed={seed}", f"val_fraction={HELD_OUT}", "--threads", "1", "--quiet"]
        began = time.monotonic()
        if way == SELF_TRAINING:
            teacher = str(folder / "teacher")
            vitling("train", few, *settings, "--budget", f"{30 * minutes:g}s", "--out", teacher)
            changes = [text.format(images=everything, teacher=teacher) for text in TAUGHT]
            left = max(1.0, 60 * minutes - (time.monotonic() - began))
        else:
            changes, left = [text.format(images=everything) for text in (WAYS | SHARES)[way]], 60 * minutes
        vitling("train", few, *changes, *settings, "--budget", f"{left:.0f}s", "--out", str(run))
        seconds = time.monotonic() - began
        result = json.loads(vitling("evaluate", str(run), "--json"))
        info = json.loads((run / "run.json").read_text())
        stages = {"images": info["first_stage"]["images"]} if "first_stage" in info else {}
    row |= dict(top1=round(100 * result["top1"], 2), seconds=round(seconds, 1), epochs=info["epochs_trained"], **stages)
    row |= dict(parameters=info["parameters"], test_images=result["images"])
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    return row


def vitling(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "vitling", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"vitling {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


def run(args: argparse.Namespace) -> None:
    tasks: list[Callable[[], Row]] = [
        partial(measure, way, data, labels, args.minutes, seed)
        for data in args.data
        for labels in args.labels
        for seed in range(args.seeds)
        for way in args.ways
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        for done in [pool.submit(task) for task in tasks]:
            done.result()


def table(ways: Iterable[str]) -> str:
    """Each seed and the mean, in Markdown."""
    groups: dict[tuple, list[Row]] = {}
    for row in known().values():
        if row["way"] in ways:
            groups.setdefault((row["data"], row["labels"], row["minutes"], row["way"]), []).append(row)
    order = list(ways)
    lines = [
        "| data | labels per class | minutes | way | top-1 of each seed, % | mean | epochs of labels | parameters, M |",
        "|---|---:|---:|---|---|---:|---|---|",
    ]
    for (data, labels, minutes, way), rows in sorted(
        groups.items(), key=lambda cell: (*cell[0][:3], order.index(cell[0][3]))
    ):
        rows = sorted(rows, key=lambda row: row["seed"])
        top1 = [row["top1"] for row in rows]
        epochs = ", ".join(f"{row['epochs']:.0f}" for row in rows)
        seeds = ", ".join(f"{value:.1f}" for value in top1)
        sizes = ", ".join(f"{row['parameters'] / 1e6:.1f}" for row in rows)
        lines.append(
            f"| {data} | {labels} | {minutes:g} | {way} | {seeds} | {np.mean(top1):.1f} | {epochs} | {sizes} |"
        )
    return "\n".join(lines)


def write_tables(args: argparse.Namespace) -> None:
    page = Path(__file__).parents[1] / "docs" / "pretraining.md"
    fill("unlabelled", table([*WAYS, SELF_TRAINING]), page)
    fill("shares", table(SHARES), page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for command, minutes, seeds, ways in (("run", 15, 2, [*WAYS, SELF_TRAINING]), ("shares", 5, 1, [*SHARES])):
        running = commands.add_parser(command)
        running.add_argument("--data", type=Path, nargs="+", required=True)
        running.add_argument("--minutes", type=float, default=minutes)
        running.add_argument("--seeds", type=int, default=seeds)
        running.add_argument("--labels", type=int, nargs="+", default=[10])
        running.add_argument("--ways", nargs="+", choices=ways, default=ways)
        running.add_argument("--jobs", type=int, default=2)
        running.set_defaults(do=run)
    commands.add_parser("table", help="write the tables into docs/pretraining.md").set_defaults(do=write_tables)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
