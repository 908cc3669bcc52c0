"""What the command line shows: live progress in a terminal, plain lines elsewhere, tables."""

import csv
import json
import os
import re
import sys
import time
import webbrowser
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from vitling.errors import UserError, did_you_mean
from vitling.listener import Listener, StudyListener

console = Console(highlight=False, emoji=False)  # a class may be called ":ok:"


def parse_duration(text: str) -> float:
    """Seconds in "90s", "30m", "1.5h" or "1h30m"; a bare number is minutes."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip().lower())
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        seconds = float(text) * 60
    else:
        seconds = (
            sum(float(n or 0) * unit for n, unit in zip(parts.groups(), (3600, 60, 1), strict=True)) if parts else 0.0
        )
    if seconds <= 0:
        raise UserError(f"--budget {text} is no time; write 90s, 30m or 2h.")
    return seconds


def parse_seeds(text: str) -> int | list[int]:
    """How many seeds ("5"), or which ("0,3,7")."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts) or (len(parts) == 1 and int(text) < 1):
        raise UserError(f"--seeds {text} is no number of seeds; write 5, or 0,3,7 for these very ones.")
    return int(text) if len(parts) == 1 else [int(part) for part in parts]


def parse_fractions(text: str) -> list[float]:
    """Parts of the data in "0.1,0.5,1"."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d*\.?\d+", part) for part in parts):
        raise UserError(f"--fractions {text} are no parts of the data; write 0.1,0.5,1.")
    return [float(part) for part in parts]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Height and width in "64" or "64x96"."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UserError(f"--size {text} is no image size; write 64, or 64x96 for height x width.")
    return int(parts[0]), int(parts[-1])


def duration(seconds: float) -> str:
    """A time as people say it: 43 s, 12 min 5 s, 3 h 20 min."""
    seconds = round(seconds)
    if seconds < 100:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


class Plain(Listener):
    """One line per validation, for logs and pipes; at most one every two seconds."""

    def __init__(self):
        self.shown_at, self.pending = 0.0, None

    def say(self, text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    def started(self, facts: dict) -> None:
        self.epochs, self.began, self.start_epoch = facts["epochs"], time.monotonic(), facts["start_epoch"]
        channels, height, width = facts["input"]
        self.say(
            f"{facts['model']} ({facts['parameters'] / 1e6:.2f} M parameters, {facts['method']}) on {facts['data']}: "
            f"{facts['train_images']:,} training and {facts['val_images']:,} validation images of {channels} x {height} x {width}, "
            f"{facts['classes']} classes"
        )
        self.say(
            f"{facts['epochs']} epochs of {facts['steps_per_epoch']} steps, learning rate {facts['lr']:g}, on {facts['device']}"
            + (f" x {facts['processes']}" if facts["processes"] > 1 else "")
        )

    def left(self, epoch: int) -> float:
        done = epoch - self.start_epoch
        return (time.monotonic() - self.began) / max(done, 1) * (self.epochs - epoch)

    def line(self, record: dict, timing: dict) -> str:
        return (
            f"epoch {record['epoch']:>4}/{self.epochs}  loss {record['train_loss']:.4f}  "
            f"val {percent(record['val_top1'])} (best {percent(record['best_top1'])})  "
            f"{timing['images_per_second']:,.0f} images/s  {duration(self.left(record['epoch']))} left"
        )

    def validated(self, record: dict, timing: dict) -> None:
        self.pending = self.line(record, timing)
        if time.monotonic() - self.shown_at >= 2 or record["epoch"] == self.epochs:
            self.flush()

    def flush(self) -> None:
        if self.pending:
            self.say(self.pending)
            self.shown_at, self.pending = time.monotonic(), None

    def finished(self, run) -> None:
        self.flush()
        info = run.info
        if "best" not in info:
            return
        best = info["best"]
        self.say(
            f"stopped: {info['stopped']}, after {duration(info['wall_seconds'])}. "
            f"Best validation accuracy {percent(best['val_top1'])} in epoch {best['epoch']}."
        )
        self.say(f"run directory: {run.path}")
        if "test" in info["data"].get("splits", ["test"]):
            self.say(f"next: vitling evaluate {run.path}    (the test set: look once)")
        else:
            self.say(f"next: vitling evaluate {run.path} --split val    (every number; the data has no test set)")
        self.say(f"      vitling diagnose {run.path}    (why this number, and what to try)")
        self.say(f"      vitling predict {run.path} IMAGE...")


class Live(Plain):
    """A moving bar under the lines."""

    def __init__(self, progress: Progress):
        super().__init__()
        self.progress, self.bars = progress, {}

    def say(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True, markup=False)

    def _bar(self, name: str, done: int, total: int, text: str = "") -> None:
        if name not in self.bars:
            self.bars[name] = self.progress.add_task(name, total=total, text=text)
        self.progress.update(self.bars[name], completed=done, total=total, text=text)

    def decoding(self, split: str, done: int, total: int) -> None:
        self._bar(f"reading {split}", done, total, f"{done:,}/{total:,}")
        if done >= total:
            self.progress.remove_task(self.bars.pop(f"reading {split}"))

    def stepped(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        last = getattr(self, "last", "")
        text = f"epoch {epoch + 1}/{self.epochs}  loss {loss:.3f}  {last}  {images_per_second:,.0f} images/s"
        self._bar("training", epoch * steps + step, self.epochs * steps, text)

    def validated(self, record: dict, timing: dict) -> None:
        self.last = f"val {percent(record['val_top1'])}"
        super().validated(record, timing)


def live_progress(console: Console) -> Progress:
    """The bars that `Live` moves, each with a text of its own. All of it fits into 80 columns."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)


@contextmanager
def show_training(quiet: bool = False):
    """A listener for `train`: a live bar in a terminal, plain lines elsewhere. Says how to resume when interrupted."""
    from vitling.train import Interrupted

    try:
        if quiet:
            yield Listener()
        elif console.is_terminal:
            with live_progress(console) as progress:
                yield Live(progress)
        else:
            yield Plain()
    except Interrupted as interruption:
        console.print(str(interruption), soft_wrap=True, markup=False)


@contextmanager
def show_progress(quiet: bool = False):
    """A callback `(name, done, total)` that moves a bar on standard error."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    bars: dict = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:

        def on_progress(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=total)
            progress.update(bars[name], completed=done, total=total)

        yield on_progress


def plan_lines(plan, data: str) -> list[str]:
    """What `train` says about the recipe that was chosen for it, and about settings that harm each other."""
    chosen = ", ".join(f"{choice.what} {choice.value}" for choice in plan.choices)
    why = [f"planned: {chosen} (`vitling plan {data}` says why; --recipe takes another)"] if chosen else []
    return why + [f"warning: {line}" for line in plan.warnings]


def show_plan(plan, data: str, settings: list[str], saved: Path | None) -> None:
    """The data, the choices with their reasons, time and accuracy, warnings, and what to do next."""
    for what, text in _survey_rows(plan.survey):
        _entry(what, text)
    console.print()
    for choice in plan.choices:
        _entry(choice.what, choice.value, choice.reason, choice.evidence)
    pace, band = plan.pace, plan.expected
    steps = f"{pace.steps_per_epoch} steps of {1000 * pace.step:.0f} ms in an epoch, {plan.recipe.epochs} epochs"
    where = f"measured on this machine ({plan.device}, threads: {pace.threads}); other programs slow it down"
    if pace.preparing:
        where += "; what the method trains first comes on top"
    _entry("time", f"about {duration(plan.seconds)}", f"{steps}; {where}")
    _entry("expect", f"{100 * band.low:.0f} to {100 * band.high:.0f} % accuracy", band.reason)
    console.print()
    for line in [f"warning: {line}" for line in plan.warnings] + ([f"note: {plan.hint}"] if plan.hint else []):
        console.print(line, markup=False)
    if saved:
        console.print(f"next: vitling train {data} --recipe {saved}", markup=False, soft_wrap=True)
    else:
        console.print(f"next: vitling train {' '.join([data, *settings])}    (does this)", markup=False, soft_wrap=True)
        console.print(
            f"      vitling plan {data} --save recipe.yaml    (to change it first)", markup=False, soft_wrap=True
        )


def _entry(what: str, *texts: str) -> None:
    """A name on the left and texts beside it, the first one to be seen and the rest to be read."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=12)
    grid.add_column()
    for i, text in enumerate(filter(None, texts)):
        grid.add_row("" if i else what, escape(text), style="dim" if i else "")
    console.print(grid)


def _count_rows(survey) -> list[tuple[str, str]]:
    """What the data is, one line each."""
    counts = ", ".join(f"{count:,} {split}" for split, count in survey.images.items())
    least, most = (extreme(survey.class_counts, key=survey.class_counts.get) for extreme in (min, max))
    few, many = survey.class_counts[least], survey.class_counts[most]
    balance = (
        f"{few:,} training images each" if few == many else f"{few:,} ({least}) to {many:,} ({most}) training images"
    )
    sizes = [f"{height} x {width}" for height, width in dict.fromkeys((survey.smallest, survey.largest))]
    kind = {1: "grey", 3: "colour"}.get(survey.channels, f"{survey.channels} channels")
    return [
        ("data", f"{survey.name}: {counts} images"),
        ("classes", f"{len(survey.class_counts):,}, {balance}"),
        ("images", f"{' to '.join(sizes)} pixels, {kind}, {survey.bits} bits"),
    ]


def _survey_rows(survey) -> list[tuple[str, str]]:
    """What was found in the data, one line each."""
    rows = _count_rows(survey)
    if survey.looked_at < survey.total - len(survey.unreadable):
        rows.append(("looked at", f"{survey.looked_at:,} of them, evenly spaced; what follows is about those"))
    if survey.unreadable:
        shown = ", ".join(survey.unreadable[:5]) + (", ..." if len(survey.unreadable) > 5 else "")
        rows.append(("unreadable", f"{len(survey.unreadable):,}: {shown}"))
    if survey.copies.count:
        pairs = "; ".join(f"{copy} = {of}" for copy, of in survey.copies.examples[:3])
        rows.append(("copies", f"of training images among themselves, {survey.copies.count:,}: {pairs}"))
    for split, leaks in survey.leaks.items():
        if leaks.count:
            pairs = "; ".join(f"{copy} = {of}" for copy, of in leaks.examples[:3])
            text = (
                f"copies of training images in {split}, {leaks.count:,}: {pairs}. Remove them, or the accuracy flatters"
            )
            rows.append(("leaks", text))
    return rows + [("note", note) for note in survey.notes]


def show_evaluation(result, run: Path) -> None:
    low, high = result.top1_interval
    summary = Table(
        title=f"{escape(result.data)}, {result.split} split, {result.images:,} images",
        show_header=False,
        title_justify="left",
    )
    summary.add_row("top-1", f"{percent(result.top1)}   (95 % interval {100 * low:.2f} to {100 * high:.2f})")
    if result.top5 is not None:
        summary.add_row("top-5", percent(result.top5))
    summary.add_row("macro-F1", f"{result.macro_f1:.4f}")
    summary.add_row("cross-entropy", f"{result.loss:.4f}")
    summary.add_row("calibration error (ECE)", f"{result.ece:.4f}")
    console.print(summary)
    rows = sorted((row for row in result.per_class if row["images"]), key=lambda row: row["accuracy"])
    shown = rows if len(rows) <= 20 else rows[:20]
    table = Table(
        "class",
        "images",
        "accuracy",
        "95 % interval",
        title="worst 20 classes" if len(rows) > 20 else "per class, worst first",
        title_justify="left",
    )
    for row in shown:
        table.add_row(
            escape(row["name"]),
            f"{row['images']:,}",
            percent(row["accuracy"]),
            "{:.1f} to {:.1f}".format(*(100 * x for x in row["interval"])),
        )
    console.print(table)
    if len(result.class_names) <= 12:
        confusion = Table("truth \\ seen as", *map(escape, result.class_names), title="confusion", title_justify="left")
        for name, row in zip(result.class_names, result.confusion, strict=True):
            confusion.add_row(escape(name), *(str(n) if n else "." for n in row))
        console.print(confusion)
    for note in result.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    console.print(f"all numbers: {run / result.file_name}", soft_wrap=True, markup=False)


class PlainStudy(StudyListener):
    """Lines about a study: each run when it begins and ends, and every half minute what it does."""

    def __init__(self):
        self.runs = self.finished = self.begun = 0
        self.clock, self.done_before, self.said = time.monotonic(), 0, set()

    def say(self, text: str) -> None:
        if text not in self.said:  # what the data has to say, every run would say again
            self.said.add(text)
            self.print(text)

    def print(self, text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    def measuring(self, done: int, total: int) -> None:
        self.say("measuring how fast the recipes train, in turns")

    def planned(self, runs: int, finished: int) -> None:
        self.runs, self.finished, self.begun, self.done_before = runs, finished, finished, finished
        self.clock = time.monotonic()
        self.print(f"{runs} runs" + (f", {finished} of them finished already" if finished else ""))

    def began(self, label: str) -> Listener:
        self.begun += 1
        self.print(f"run {self.begun} of {self.runs}: {label}")
        return PlainStudyRun(label, self)

    def ended(self, label: str, outcome: str) -> None:
        self.finished += 1
        self.print(f"{label}: {outcome}    ({self.finished} of {self.runs} done, {self.times()})")

    def times(self) -> str:
        elapsed, here, todo = time.monotonic() - self.clock, self.finished - self.done_before, self.runs - self.finished
        left = f", about {duration(elapsed / here * todo)} left" if here and todo else ""
        return f"{duration(elapsed)} elapsed{left}"


class PlainStudyRun(Plain):
    """One run of a study, in few lines."""

    def __init__(self, label: str, study: PlainStudy):
        super().__init__()
        self.label, self.study, self.shown_at = label, study, time.monotonic()

    def say(self, text: str) -> None:
        self.study.say(text)

    def started(self, facts: dict) -> None:
        self.epochs, self.began, self.start_epoch = facts["epochs"], time.monotonic(), facts["start_epoch"]

    def validated(self, record: dict, timing: dict) -> None:
        if time.monotonic() - self.shown_at >= 30:
            self.shown_at = time.monotonic()
            self.study.print(f"{self.label}: {self.line(record, timing)}")


class LiveStudy(PlainStudy):
    """A bar for the study and one for each run in progress, under the lines of finished runs."""

    def __init__(self, progress: Progress):
        super().__init__()
        self.progress, self.bars = progress, {}

    def print(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True, markup=False)

    def bar(self, name: str, done: float, total: float, text: str = "") -> None:
        if name not in self.bars:
            self.bars[name] = self.progress.add_task(escape(name), total=total, text=text)
        self.progress.update(self.bars[name], completed=done, total=total, text=text)

    def remove(self, name: str) -> None:
        if name in self.bars:
            self.progress.remove_task(self.bars.pop(name))

    def measuring(self, done: int, total: int) -> None:
        self.bar("measuring in turns", done, total)

    def planned(self, runs: int, finished: int) -> None:
        self.remove("measuring in turns")
        super().planned(runs, finished)
        self.bar("study", finished, runs, f"{finished} of {runs} runs")

    def began(self, label: str) -> Listener:
        self.begun += 1
        return LiveStudyRun(label, self)

    def ended(self, label: str, outcome: str) -> None:
        self.remove(label)
        super().ended(label, outcome)
        self.bar("study", self.finished, self.runs, f"{self.finished} of {self.runs} runs, {self.times()}")


class LiveStudyRun(PlainStudyRun):
    """One run of a study, as a bar."""

    last = ""

    def decoding(self, split: str, done: int, total: int) -> None:
        self.study.bar(self.label, done, total, f"reading {split}")

    def stepped(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        text = f"epoch {epoch + 1}/{self.epochs}  {self.last}"
        self.study.bar(self.label, epoch * steps + step, self.epochs * steps, text)

    def validated(self, record: dict, timing: dict) -> None:
        self.last = f"val {percent(record['val_top1'])}"


@contextmanager
def show_study(quiet: bool = False):
    """A listener for `study`. When interrupted it says how to go on, and the command ends with code 130."""
    from vitling.train import Interrupted

    try:
        if quiet:
            yield StudyListener()
        elif console.is_terminal:
            with live_progress(console) as progress:
                yield LiveStudy(progress)
        else:
            yield PlainStudy()
    except (Interrupted, KeyboardInterrupt) as interruption:
        print(str(interruption) or "interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)


def show_study_table(study) -> None:
    _print_whole(*study.table())
    for note in study.notes():
        console.print(note, soft_wrap=True, markup=False)
    console.print(
        f"page: {study.folder / 'study.html'}    (beside it: table.md, table.csv)", soft_wrap=True, markup=False
    )
    if study.failures:
        console.print("next: the same command tries the failed runs again", markup=False)
    elif study.split == "val":
        console.print("next: the same command with --split test, once, when the choice is made", markup=False)


def _print_whole(head: list[str], cells: list[list[str]]) -> None:
    """A table whose numbers are never cut off, however narrow the terminal."""
    table = Table(*head[:1], box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in cells:
        table.add_row(*map(escape, row))
    whole = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(width=max(whole, console.width), highlight=False, emoji=False).print(table)


def show_papers(paper: str, as_json: bool = False) -> None:
    """Every table and figure that can be reproduced, a line each."""
    from vitling.papers import tables

    chosen = {name: table for name, table in tables().items() if name.startswith(paper)}
    if not chosen:
        raise UserError(f"no table '{paper}'. {did_you_mean(paper, tables())}")
    if as_json:
        print(json.dumps({name: table.title for name, table in chosen.items()}, indent=1, ensure_ascii=False))
        return
    for name, table in chosen.items():
        trained = sum(bool(row.recipe) for row in table.rows)
        small = sum(row.nano is not None for row in table.rows)
        print(f"{name:<22}{table.title} ({len(table.rows)} rows, {trained} with recipes, {small} at nano scale)")
    print("next: vitling reproduce NAME --dry-run, or --scale nano")


def show_reproduction(result) -> None:
    """A table with the paper's numbers and ours, or what would be trained."""
    console.print(result.title, style="bold", markup=False, soft_wrap=True)
    _print_whole(*result.table())
    for note in result.notes():
        console.print(note, soft_wrap=True, markup=False)
    if result.study:
        console.print(
            f"page: {result.study.folder / 'reproduce.html'}    (beside it: reproduce.md, .json, study.html)",
            soft_wrap=True,
            markup=False,
        )
    elif result.seconds:
        console.print("next: the same command without --dry-run", markup=False)


def show_counting(listener: StudyListener):
    """A callback `(name, done, total)` for what comes before and after a study's runs: a bar among its bars."""

    def on_progress(name: str, done: int, total: int) -> None:
        listener.bar(name, done, total, f"{done} of {total}")
        if done >= total:
            listener.progress.remove_task(listener.bars.pop(name))

    return on_progress if isinstance(listener, LiveStudy) else None


def show_verdict(results: list, page: Path) -> None:
    from vitling.diagnose.verdict import headline

    colours = {"problem": "red", "watch": "yellow", "ok": "green"}
    for diagnosis in results:
        console.print(f"{diagnosis.name}: {headline(diagnosis)}", style="bold", markup=False, soft_wrap=True)
        for finding in diagnosis.findings:
            if finding.state != "ok":
                console.print(f"  [{colours[finding.state]}]{finding.state:<7}[/]", end="  ")
                console.print(f"{finding.sentence} {finding.reference}", markup=False, soft_wrap=True)
                console.print(f"           -> {finding.advice}", markup=False, soft_wrap=True)
        for note in diagnosis.notes:
            console.print(f"  note: {note}", markup=False, soft_wrap=True)
    console.print(f"page: {page}    (numbers beside it: .json, .npz)", markup=False, soft_wrap=True)


def show_demo_plan(plan, quiet: bool = False) -> None:
    """The first part of the demo: what is in the data, and the choice that the rest is about."""
    if quiet:
        return
    _heading(f"1. Look at the data    (vitling plan {plan.recipe.data})")
    for what, text in _count_rows(plan.survey):
        _entry(what, text)
    family = plan.choices[0]
    _entry(family.what, family.reason)
    _heading(
        "\n2. Train a plain ViT, and one with convolutions (DHVT) and an agent that teaches it, for about the same time"
    )


def show_story(story) -> None:
    """The end of the demo: who is better, whether that is certain, why, and what to try next."""
    first, second, comparison = story.first, story.second, story.comparison
    _heading(f"\n3. Compare them on {first.evaluation.images} digits that neither has seen")
    head = ["model", "test accuracy", "95 % interval", "parameters", "epochs", "time"]
    cells = []
    for contender in (first, second):
        info, result = contender.run.info, contender.evaluation
        low, high = result.top1_interval
        measured = [percent(result.top1), f"{100 * low:.1f} to {100 * high:.1f}"]
        cost = [f"{info['parameters']:,}", str(info["epochs_trained"]), duration(info["wall_seconds"])]
        cells.append([contender.name, *measured, *cost])
    _print_whole(head, cells)
    better, worse = (first, second) if comparison.only_first > comparison.only_second else (second, first)
    counts = sorted((comparison.only_first, comparison.only_second), reverse=True)
    certain = (
        f"so {better.name} is better, and that is no luck"
        if comparison.certain
        else "so which is better cannot be told from so few images"
    )
    lines = [
        f"Only {better.name} is right on {counts[0]} digits, only {worse.name} on {counts[1]}: {certain} "
        f"(p = {comparison.p_value:.2g}, McNemar's exact test).",
        "That holds for these two models; another seed makes others, and `vitling study` compares over several.",
    ]
    console.print("\n".join(lines), soft_wrap=True, markup=False)
    _heading("\n4. Say why    (vitling diagnose)")
    best = better.run.path
    lines = [f"{contender.name}: {contender.verdict}" for contender in (first, second)]
    lines += [
        f"page: {story.diagnosis}",
        "",
        "What to try next:",
        f"  vitling evaluate {best}    every number, per class",
        f"  vitling export {best}      ONNX, checked before it is written",
        "  vitling plan path/to/your/images     one subfolder per class; then vitling train, the same way",
        "  vitling list recipes",
    ]
    console.print("\n".join(lines), soft_wrap=True, markup=False)


def _heading(text: str) -> None:
    console.print(text, style="bold", markup=False, soft_wrap=True)


def open_page(page: Path, wanted: bool | None) -> None:
    """Open a page in the browser if that is wanted; if nothing was said, where somebody sits at a screen."""
    screen = sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
    if wanted or (wanted is None and screen and console.is_terminal and "CI" not in os.environ):
        webbrowser.open(page.resolve().as_uri())


def show_predictions(predictions: list, form: str) -> None:
    """Print predictions as a table, JSON or CSV; images that were skipped end up on standard error, with the reason."""
    seen = [p for p in predictions if p.skipped is None]
    if form == "json":
        print(json.dumps([vars(p) for p in predictions], indent=1, ensure_ascii=False))
    elif form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(["path", "class", "probability"])
        for p in seen:
            writer.writerows([p.path, name, share] for name, share in zip(p.classes, p.probabilities, strict=True))
    else:
        table = Table("image", "class", "probability", "then")
        for p in seen:
            then = ", ".join(
                f"{name} {percent(share)}" for name, share in zip(p.classes[1:], p.probabilities[1:], strict=True)
            )
            table.add_row(escape(p.path), escape(p.classes[0]), percent(p.probabilities[0]), escape(then))
        console.print(table)
        if folders := {str(Path(p.attention).parent) for p in seen if p.attention}:
            console.print(f"where it looked: {', '.join(folders)}", soft_wrap=True, markup=False)
    for p in predictions:
        if p.skipped is not None:
            print(f"skipped {p.path}: {p.skipped}", file=sys.stderr)


def note(text: str) -> None:
    """Something to know that is no error, on standard error, so that it never mixes with data."""
    print(f"note: {text}", file=sys.stderr)


def show_exported(exported) -> None:
    size = sum(p.stat().st_size for p in [exported.path, *exported.path.glob("*")] if p.is_file())
    seen, temperature = exported.passport.preprocessing, exported.passport.temperature
    takes = "uint8 pixels" if exported.passport.input == "pixels" else "normalised float32"
    lines = [f"wrote {exported.path} ({size / 1e6:.1f} MB, {exported.to})"]
    if exported.to == "onnx":
        lines.append(f"input: image, {takes}, batch x {seen.channels} x {seen.size[0]} x {seen.size[1]}")
        lines.append("output: logits, probabilities" + (f" (temperature {temperature:.3f})" if temperature else ""))
    lines.append(
        f"checked: logits differ from the run's by at most {exported.difference:.2g} on {exported.checked_on} "
        f"(allowed: {exported.allowed:.2g})"
    )
    lines += [f"note: {text}" for text in exported.notes]
    lines += [f"pushed: {exported.url}"] if exported.url else []
    lines.append(f"next: vitling predict {exported.path} IMAGE...")
    console.print("\n".join(lines), soft_wrap=True, markup=False)


def show_address(address: str, notes: list[str]) -> None:
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    console.print(f"open {address} in a browser and drop an image on it; Ctrl-C ends it", soft_wrap=True, markup=False)


def show_names(what: str, pattern: str, as_json: bool = False) -> None:
    """Names and a line about each; the first line of a docstring is that line."""
    kinds = {"models": _models, "recipes": _recipes, "methods": _methods, "datasets": _datasets}
    if what not in kinds:
        raise UserError(f"there is no list of {what}. {did_you_mean(what, kinds)}")
    rows = [row for row in kinds[what]() if pattern in row[0]]
    if not rows:
        raise UserError(f"no {what} called '{pattern}'; `vitling list {what}` shows all.")
    if as_json:
        print(json.dumps(dict(rows), indent=1, ensure_ascii=False))
        return
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}".rstrip())
    if what == "models":
        print(
            "and every model of timm (timm.list_models()), such as vit_tiny_patch16_224, deit_small_patch16_224, resnet18"
        )


def _first_line(thing) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _models() -> list[tuple[str, str]]:
    from vitling.models import FAMILIES, our_models

    about = {family.__name__.rpartition(".")[2]: _first_line(family) for family in FAMILIES}
    return [(name, about[family]) for name, family in our_models().items()]


def _recipes() -> list[tuple[str, str]]:
    from vitling.recipes import named_recipes

    return [(name, _first_line(function)) for name, function in named_recipes().items()]


def _methods() -> list[tuple[str, str]]:
    from vitling.methods import METHODS

    return [(name, _first_line(method)) for name, method in METHODS.items()]


def _datasets() -> list[tuple[str, str]]:
    from vitling.data.named import NAMES

    return [*NAMES.items()]
