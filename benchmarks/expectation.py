"""How well the accuracy that `vitling plan` expects holds: subsets of every dataset at hand, each planned and then trained.

    python benchmarks/expectation.py run --data ten.npz cifar100_small.npz flowers10 --minutes 0.5
    python benchmarks/expectation.py longer --data ten.npz cifar100_small.npz flowers10
    python benchmarks/expectation.py fit

Of each data: all of it, a third and a tenth of the images, half and a fifth of the classes, and wrong labels (a permutation).
`longer` takes the house runs of benchmarks/scaling.jsonl, which are of whole datasets and of more minutes, and trains nothing. Every
result is a line of benchmarks/expectation.jsonl. `fit` prints the constants of vitling/planning/expectation.py and how often the band
holds the result, each dataset judged by constants that were fitted to the others.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).with_suffix(".jsonl")
SCALING = Path(__file__).with_name("scaling.jsonl")


@dataclass(frozen=True)
class Part:
    """Which classes and which share of their training images; whether the labels are permuted."""

    name: str
    classes: float = 1.0
    images: float = 1.0
    permuted: bool = False


PARTS = (
    Part("all"),
    Part("a third", images=1 / 3),
    Part("a tenth", images=0.1),
    Part("half the classes", classes=0.5),
    Part("a fifth of the classes", classes=0.2, images=0.5),
    Part("wrong labels", images=0.5, permuted=True),
)


def known() -> list[dict]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def write_part(data: Path, part: Part, side: int, folder: Path) -> Path:
    """The part as an .npz; photographs at `side` pixels, so that every part is read alike."""
    from vitling.data.pipeline.preprocessing import natural_size
    from vitling.data.sources.dataset import open_dataset
    from vitling.data.sources.images import load_image

    dataset, rng, arrays = open_dataset(str(data)), np.random.default_rng(0), {}
    count = max(2, round(part.classes * len(dataset.class_names)))
    chosen = np.sort(rng.permutation(len(dataset.class_names))[:count])
    for split, images in dataset.splits.items():
        labels = np.asarray(images.labels)
        kept = np.flatnonzero(np.isin(labels, chosen))
        if split == "train":
            kept = np.sort(np.concatenate([_first(rng, kept[labels[kept] == label], part.images) for label in chosen]))
        size = natural_size(images) or (side, side)
        pixels = [load_image(images, i, size, "resize", dataset.channels, dataset.max_value) for i in kept]
        arrays[f"{split}_images"] = np.stack(pixels).transpose(0, 2, 3, 1)
        labels = np.searchsorted(chosen, labels[kept])
        arrays[f"{split}_labels"] = rng.permutation(labels) if part.permuted else labels
    path = folder / f"{data.stem}-{part.name.replace(' ', '_')}.npz"
    np.savez(path, **arrays)
    return path


def _first(rng: np.random.Generator, rows: np.ndarray, share: float) -> np.ndarray:
    return rng.permutation(rows)[: max(4, round(share * len(rows)))]


def measure(data: Path, part: Part, minutes: float, side: int) -> None:
    if any((row["data"], row["part"], row["minutes"]) == (data.stem, part.name, minutes) for row in known()):
        return
    with tempfile.TemporaryDirectory() as folder:
        path = write_part(data, part, side, Path(folder))
        run = Path(folder) / "run"
        budget = ["--budget", f"{minutes}m", "--threads", "1"]
        plan = json.loads(vitling("plan", str(path), *budget, "--json"))
        vitling("train", str(path), *budget, "--out", str(run), "--quiet")
        result = json.loads(vitling("evaluate", str(run), "--json"))
        info = json.loads((run / "run.json").read_text())
    row = dict(data=data.stem, part=part.name, minutes=minutes)
    remember(row | seen_by(plan) | dict(epochs=info["epochs_trained"], top1=result["top1"]))


def seen_by(plan: dict) -> dict:
    """What a plan knows when it says what to expect."""
    survey = plan["survey"]
    images = survey["images"]
    return dict(
        classes=len(survey["class_counts"]), train=images["train"], test=images["test"], probe=survey["probe_accuracy"]
    )


def remember(row: dict) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def take_longer(args: argparse.Namespace) -> None:
    """The house runs that benchmarks/scaling.py has made, of the data that is given."""
    runs = [row for row in map(json.loads, SCALING.read_text().splitlines()) if row["recipe"] == "house"]
    for data in args.data:
        seen = seen_by(json.loads(vitling("plan", str(data), "--threads", "1", "--json")))
        for run in (run for run in runs if run["data"] == data.stem):
            row = dict(data=data.stem, part=f"all, seed {run['seed']}", minutes=run["minutes"])
            if all((row["data"], row["part"], row["minutes"]) != (r["data"], r["part"], r["minutes"]) for r in known()):
                remember(row | seen | dict(epochs=run["epochs"], top1=run["top1"] / 100))


def vitling(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "vitling", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"vitling {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


def run(args: argparse.Namespace) -> None:
    tasks = [(data, part, minutes, args.side) for minutes in args.minutes for part in PARTS for data in args.data]
    with ThreadPoolExecutor(args.jobs) as pool:
        for future in [pool.submit(measure, *task) for task in tasks]:
            future.result()


def fit() -> None:
    """By how much the log odds of being correct rise with the images shown; the spread about it; how often the band holds."""
    import vitling  # noqa: F401  isort: skip
    from vitling.planning import expectation

    rows = [row for row in known() if row["part"] != "wrong labels"]
    print("constants:", _constants(rows))
    held, widths = [], []
    for data in sorted({row["data"] for row in known()}):
        constants = _constants([row for row in rows if row["data"] != data])
        for row in [row for row in known() if row["data"] == data]:
            band = expectation.band(row["probe"], row["classes"], row["train"] * row["epochs"], row["test"], constants)
            held.append(band.low <= row["top1"] <= band.high)
            widths.append(band.high - band.low)
            mark = " " if held[-1] else "!"
            print(
                f"{mark} {data:16} {row['part']:24} {100 * band.low:5.1f} to {100 * band.high:5.1f}: {100 * row['top1']:5.1f}"
            )
    print(f"held {sum(held)} of {len(held)}, mean width {100 * np.mean(widths):.1f} points")


def _constants(rows: list[dict]) -> tuple[float, float, float]:
    """Intercept and slope of the rise of the log odds over log(images shown), and the half-width that holds nine of ten."""
    from vitling.planning.expectation import log_odds

    x = np.array([math.log10(row["train"] * row["epochs"]) for row in rows])
    y = np.array([log_odds(row["top1"]) - log_odds(row["probe"]) for row in rows])
    slope, intercept = np.polyfit(x, y, 1)
    spread = np.quantile(np.abs(y - slope * x - intercept), 0.9)
    return round(float(intercept), 3), round(float(slope), 3), round(float(spread), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--data", type=Path, nargs="+", required=True)
    runner.add_argument("--minutes", type=float, nargs="+", default=[1.0])
    runner.add_argument("--side", type=int, default=64, help="of photographs")
    runner.add_argument("--jobs", type=int, default=2)
    longer = commands.add_parser("longer", help="take the runs of benchmarks/scaling.py, too")
    longer.add_argument("--data", type=Path, nargs="+", required=True)
    commands.add_parser("fit")
    args = parser.parse_args()
    {"run": run, "longer": take_longer, "fit": lambda _: fit()}[args.command](args)


if __name__ == "__main__":
    main()
