"""Accuracy over wall time: the house recipe and a plain fast CNN, with equal time and equal cores.

    python benchmarks/scaling.py run --data ten.npz --minutes 1 5 --seeds 3 --anchor fast_cnn.py
    python benchmarks/scaling.py table

The anchor is a script that takes DATA.npz --seconds --width --threads --seed --split --cutmix and prints its accuracy. Its width and its
share of cutmix are chosen for each data and length on its own validation split; the test split is for the final number. Folders of
photographs are given to it as arrays of the pixels that `--side` says. Every result is a line of benchmarks/scaling.jsonl, so a run
that is interrupted continues. Two runs at a time, one thread each.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from results_page import fill

RESULTS = Path(__file__).with_suffix(".jsonl")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scaling.png"
SERIES = ("#3987e5", "#d95926", "#199e70", "#c98500", "#9085e9", "#8a8f98")
WIDTHS = {1: (8, 12, 16), 5: (12, 16, 24), 20: (16, 24, 32), 60: (24, 32)}
CUTMIX = {1: (0.0,), 5: (0.0, 0.5), 20: (0.5,), 60: (0.5,)}
# What a script computes inside it, it computes in bf16 where torch knows how to.
IN_BF16 = "import runpy, sys, torch; torch.autocast('cpu', torch.bfloat16, cache_enabled=False).__enter__(); del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
HOUSE = {  # what is compared, as changes to `vitling train DATA`
    "house": [],
    "house, float32": ["--precision", "no"],
    "no attention": ["model_args.depth=0"],
    "DHVT": ["--recipe", "cifar100/dhvt_nano"],
    "plain ViT": ["--recipe", "yardsticks/vit_nano"],
}


def key(row: dict) -> tuple:
    return row["recipe"], row["data"], row["minutes"], row["seed"], row["split"], row.get("width"), row.get("cutmix")


def known() -> dict[tuple, dict]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {key(row): row for row in map(json.loads, lines)}


def remember(row: dict) -> dict:
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    return row


def train_house(recipe: str, data: Path, minutes: float, seed: int, threads: int) -> dict:
    """A command as a user types it, and one look at the test split."""
    row = dict(recipe=recipe, data=data.stem, minutes=minutes, seed=seed, split="test")
    if found := known().get(key(row)):
        return found
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = ["train", str(data), *HOUSE[recipe], f"seed={seed}", "--budget", f"{minutes}m", "--out", str(run)]
        began = time.monotonic()
        vitling(*command, "--threads", str(threads), "--quiet")
        seconds = time.monotonic() - began
        result = json.loads(vitling("evaluate", str(run), "--json"))
        info = json.loads((run / "run.json").read_text())
        model = re.search(r"^model: (\S+)", (run / "recipe.yaml").read_text(), re.M)
    return remember(
        row
        | dict(
            top1=round(100 * result["top1"], 2),
            val_top1=round(100 * info["best"]["val_top1"], 2),
            seconds=round(seconds, 1),
            epochs=info["epochs_trained"],
            parameters=info["parameters"],
            model=model[1] if model else "",
            threads=threads,
        )
    )


def vitling(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "vitling", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"vitling {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


def run_anchor(
    script: Path, data: Path, name: str, minutes: float, seed: int, threads: int, bf16: bool, **options
) -> dict:
    row = dict(recipe="anchor in bf16" if bf16 else "anchor", data=name, minutes=minutes, seed=seed, **options)
    if found := known().get(key(row)):
        return found
    flags = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    fixed = ["--seconds", str(60 * minutes), "--threads", str(threads), "--seed", str(seed)]
    how = ["-c", IN_BF16] if bf16 else []
    command = [sys.executable, *how, script, data, *fixed, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(
        r"top-1 ([\d.]+) %, with mirrored images ([\d.]+) % \| width \d+, ([\d.]+) M .*?([\d.]+) epochs", done.stdout
    )
    if not found:
        raise SystemExit(f"{script} printed {done.stdout!r}")
    top1, mirrored, parameters, epochs = map(float, found.groups())
    measured = dict(
        top1=top1, mirrored=mirrored, parameters=round(parameters * 1e6), epochs=epochs, seconds=60 * minutes
    )
    return remember(row | measured | dict(threads=threads))


def as_arrays(data: Path, side: int) -> Path:
    """A class-per-folder tree as arrays, for the anchor."""
    from vitling.data.sources.dataset import open_dataset
    from vitling.data.sources.images import load_image

    dataset, arrays = open_dataset(str(data)), {}
    for split, images in dataset.splits.items():
        pixels = [load_image(images, i, (side, side), "resize", 3, dataset.max_value) for i in range(len(images))]
        arrays[f"{split}_images"] = np.stack(pixels).transpose(0, 2, 3, 1)
        arrays[f"{split}_labels"] = np.asarray(images.labels)
    path = Path(tempfile.gettempdir()) / f"{data.stem}-{side}.npz"
    np.savez(path, **arrays)
    return path


def run(args: argparse.Namespace) -> None:
    tasks = []
    for minutes in args.minutes:
        nearest = min(WIDTHS, key=lambda known: abs(known - minutes))
        for data in args.data:
            arrays = data if data.suffix == ".npz" else as_arrays(data, args.side)
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                tasks += [(train_house, (name, data, minutes, seed, args.threads), {}) for name in args.recipes]
            if args.anchor:
                tasks.append((best_anchor, (args, arrays, data.stem, minutes, nearest), {}))
    with ThreadPoolExecutor(args.jobs) as pool:
        for future in [pool.submit(function, *words, **named) for function, words, named in tasks]:
            future.result()


def best_anchor(args: argparse.Namespace, arrays: Path, name: str, minutes: float, nearest: int) -> None:
    """The width and the share of cutmix by validation, one seed; then the test split, every seed."""
    candidates = [
        dict(width=width, cutmix=share)
        for width in args.widths or WIDTHS[nearest]
        for share in args.cutmix or CUTMIX[nearest]
    ]

    def validated(candidate: dict) -> float:
        options = dict(bf16=args.anchor_bf16, split="val", **candidate)
        return run_anchor(args.anchor, arrays, name, minutes, 0, args.threads, **options)["top1"]

    chosen = max(candidates, key=validated) if len(candidates) > 1 else candidates[0]
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        run_anchor(
            args.anchor, arrays, name, minutes, seed, args.threads, bf16=args.anchor_bf16, split="test", **chosen
        )


def interval(values: list[float]) -> str:
    from vitling.evaluation.intervals import confidence_interval

    mean, ci95 = confidence_interval(values)
    return f"{mean:.2f}" + (f" ± {ci95:.2f}" if len(values) > 1 else "")


def table() -> str:
    """The test accuracy of every cell, as Markdown. Ours averages an image and its mirror image, so the anchor's stands there so, too."""
    rows = [row for row in known().values() if row["split"] == "test"]
    lines = [
        "| data | minutes | recipe | test top-1, % | with mirror images | seeds | parameters | epochs |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for cell in sorted({(row["data"], row["minutes"], row["recipe"]) for row in rows}):
        same = [row for row in rows if (row["data"], row["minutes"], row["recipe"]) == cell]
        epochs = np.mean([row["epochs"] for row in same])
        name = f"{cell[2]}, width {same[0]['width']}" if "width" in same[0] else f"{cell[2]}, `{same[0]['model']}`"
        averaged = "width" in same[0] or "--recipe" not in HOUSE[cell[2]]  # named recipes do not mirror
        mirrored = interval([row.get("mirrored", row["top1"]) for row in same]) if averaged else "–"
        lines.append(
            f"| {cell[0]} | {cell[1]:g} | {name} | {interval([row['top1'] for row in same])} | {mirrored} | {len(same)} "
            f"| {same[0]['parameters'] / 1e6:.2f} M | {epochs:.0f} |"
        )
    return "\n".join(lines)


def better(rows: list[dict]) -> list[float]:
    """The accuracies of one cell, with or without mirror images, whichever is better on average."""
    ways = [[row[way] for row in rows] for way in ("top1", "mirrored") if way in rows[0]]
    return max(ways, key=np.mean)


def lead() -> str:
    """By how much ours is ahead of the anchor's better number, as Markdown; over several seeds with the interval of their differences."""
    rows = [row for row in known().values() if row["split"] == "test"]
    house, anchor = (
        {(row["data"], row["minutes"], row["seed"]): row for row in rows if row["recipe"] == recipe}
        for recipe in ("house", "anchor")
    )
    lines = ["| data | minutes | house | fast CNN | difference | seeds |", "|---|---:|---:|---:|---:|---:|"]
    for data, minutes in sorted({cell[:2] for cell in house.keys() & anchor.keys()}):
        seeds = sorted(cell[2] for cell in house.keys() & anchor.keys() if cell[:2] == (data, minutes))
        ours, theirs = (better([found[data, minutes, seed] for seed in seeds]) for found in (house, anchor))
        ahead = interval([own - other for own, other in zip(ours, theirs, strict=True)])
        sign = "" if ahead.startswith("-") else "+"
        lines.append(
            f"| {data} | {minutes:g} | {np.mean(ours):.2f} | {np.mean(theirs):.2f} | {sign}{ahead} | {len(seeds)} |"
        )
    return "\n".join(lines)


def draw() -> None:
    """Accuracy over wall time: one panel per dataset, one curve per recipe, one dot per seed; with mirror images where they help."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    rows = [row for row in known().values() if row["split"] == "test"]
    names = sorted({row["data"] for row in rows})
    recipes = [
        name
        for name in ("house", "anchor", "anchor in bf16", *list(HOUSE)[1:])
        if any(name == row["recipe"] for row in rows)
    ]
    figure = Figure(figsize=(3.1 * len(names), 3.2), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for panel, data in zip(panels, names, strict=True):
        for recipe, colour in zip(recipes, SERIES, strict=False):
            mine = [row for row in rows if (row["data"], row["recipe"]) == (data, recipe)]
            lengths = sorted({row["minutes"] for row in mine})
            values = [better([row for row in mine if row["minutes"] == minutes]) for minutes in lengths]
            means = [np.mean(same) for same in values]
            panel.plot(lengths, means, color=colour, marker="o", markersize=3, label=recipe)
            for minutes, same in zip(lengths, values, strict=True):
                panel.plot([minutes] * len(same), same, ".", color=colour, alpha=0.5)
        panel.set_xscale("log")
        panel.set_xticks(sorted({row["minutes"] for row in rows if row["data"] == data}))
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.minorticks_off()
        panel.set(title=data, xlabel="minutes")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test top-1, %")
    handles = {text: line for panel in panels for line, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(recipes), frameon=False)
    figure.savefig(PICTURE, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--data", type=Path, nargs="+", required=True)
    runner.add_argument("--minutes", type=float, nargs="+", required=True)
    runner.add_argument("--seeds", type=int, default=3)
    runner.add_argument("--first-seed", type=int, default=0)
    runner.add_argument("--recipes", nargs="*", choices=HOUSE, default=["house"])
    runner.add_argument("--anchor", type=Path)
    runner.add_argument(
        "--anchor-bf16", action="store_true", help="the anchor in bf16, which it does not ask for itself"
    )
    runner.add_argument("--widths", type=int, nargs="+", help="of the anchor, in place of those tried for this length")
    runner.add_argument("--cutmix", type=float, nargs="+", help="its shares of cutmix, likewise")
    runner.add_argument("--side", type=int, default=64)
    runner.add_argument("--threads", type=int, default=1)
    runner.add_argument("--jobs", type=int, default=2)
    commands.add_parser("table", help="write the tables and the picture into docs/")
    args = parser.parse_args()
    if args.command == "run":
        run(args)
    else:
        fill("scaling", table())
        fill("lead", lead())
        draw()


if __name__ == "__main__":
    main()
