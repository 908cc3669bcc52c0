"""Soak: many steps with memory that stays flat, and a hundred thousand files to plan for and to start with."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from statistics import median

from torture import injection
from torture.bench import Part, Tally
from torture.material import Material, empty_folder

MEASURED_EVERY_SECONDS = 0.5
WARM_SHARE = 0.3  # of the steps' time, after which memory counts
ALLOWED_GROWTH = 1.03, 24 * 2**20  # times what it was when warm, and bytes more: allocators breathe
FEW, MANY = 1_000, 100_000
MANY_SECONDS = 40.0  # a shorter soak has only a tenth of the files
BYTES_PER_FILE = 4_000  # of memory, at most: names, labels, sizes


class Soak(Part):
    name = "soak"
    about = "long training with flat memory, resident and streamed; many files: one command to plan, one to start"
    share = 2.0
    trials = 3

    def __init__(self, folder: Path, seed: int, seconds: float):
        super().__init__(folder, seed, seconds)
        self.material = Material(folder / "material")

    def try_one(self, number: int, tally: Tally) -> None:
        if number % self.trials == 2:
            self._open_many(number, tally, MANY if self.seconds >= MANY_SECONDS else MANY // 10)
        else:
            self._train_long(number, tally, streamed=number % self.trials == 1, seconds=max(10.0, 0.3 * self.seconds))

    # -- steps -----------------------------------------------------------------------------------------------------

    def _train_long(self, number: int, tally: Tally, *, streamed: bool, seconds: float) -> None:
        """Steps, validations and checkpoints for so long; then SIGTERM, and everything is saved."""
        kind, folder = "streamed" if streamed else "resident", empty_folder(self.folder / "steps")
        data = self.material.photos if streamed else self.material.arrays
        recipe = self.material.recipe("soak", "epochs=1000000", "ema_decay=0.9")
        reading = ["--memory-gb", "0", "--workers", "1"] if streamed else []
        command = ["train", data, "--recipe", recipe, "--out", "run", "--threads", "1", *reading]
        process = injection.start([*command, "--checkpoint-seconds", "2", "--quiet"], folder)
        metrics, sizes = folder / "run" / "metrics.jsonl", []
        while not metrics.exists() and process.poll(300) is None:
            time.sleep(0.1)
        began = time.monotonic()
        while time.monotonic() - began < seconds and (size := resident_bytes(process.pid)):
            sizes.append(size)
            time.sleep(MEASURED_EVERY_SECONDS)
        os.kill(process.pid, signal.SIGTERM)
        outcome = process.wait(time.monotonic() - process.began + 60)
        if outcome.code != 143:
            tally.count(number, f"{kind} training: {outcome.describe()}", kind)
            return
        steps = _last_step(metrics)
        warm = int(WARM_SHARE * len(sizes))
        width = max(1, len(sizes) // 10)
        at_first, at_last = median(sizes[warm : warm + width]), median(sizes[-width:])
        factor, more = ALLOWED_GROWTH
        growth = f"{at_first / 2**20:,.0f} MB when warm, {at_last / 2**20:,.0f} MB at the end"
        tally.count(number, "" if at_last <= factor * at_first + more else f"{kind} training grows: {growth}", kind)
        tally.figures.append((f"memory over {steps:,} {kind} steps in {seconds / 60:.1f} minutes", growth))

    # -- files -----------------------------------------------------------------------------------------------------

    def _open_many(self, number: int, tally: Tally, count: int) -> None:
        few = self._measure(empty_folder(self.folder / "few"), FEW)
        many = self._measure(empty_folder(self.folder / "many"), count)
        for what in few:
            (_, small), (seconds, large) = few[what], many[what]
            each = (large - small) / (count - FEW)
            problem = "" if each <= BYTES_PER_FILE else f"{what} takes {each:,.0f} bytes of memory for each file"
            tally.count(number, problem, f"{count:,} files")
            figure = f"{seconds:.1f} s, {large / 2**20:,.0f} MB at most ({small / 2**20:,.0f} MB with {FEW:,} files)"
            tally.figures.append((f"{what} {count:,} files", figure))

    def _measure(self, folder: Path, count: int) -> dict[str, tuple[float, float]]:
        """Seconds and most memory, in bytes, of planning for so many files and of starting to train on them."""
        make_files(folder / "images", count)
        recipe = self.material.recipe("many", "img_size=8", "epochs=1", "optim.warmup_epochs=0", "augment.crop=none")
        train = ["train", "images", "--recipe", str(recipe), "--out", "run", "--threads", "1", "--workers", "1"]
        begun = folder / "run" / "recipe.yaml"  # written right before the first step
        return {
            "to plan for": measure(["plan", "images"], folder),
            "to the first step, streamed, on": measure([*train, "--memory-gb", "0"], folder, until=begun.exists),
        }


def measure(command: list[str], folder: Path, until: Callable[[], bool] | None = None) -> tuple[float, float]:
    """Seconds and most memory of a command in a process that shares nothing; `until` says when it has done enough."""
    began = time.monotonic()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "vitling", *command], cwd=folder, stdout=log, stderr=log)
        while until and process.poll() is None and not until():
            time.sleep(0.02)
        seconds = time.monotonic() - began
        if until:
            process.terminate()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 143):
        raise RuntimeError(f"{' '.join(command)} failed: {(folder / 'log').read_text()[-500:]}")
    scale = 1 if sys.platform == "darwin" else 1024
    return seconds if until else time.monotonic() - began, used.ru_maxrss * scale


def make_files(folder: Path, count: int) -> None:
    """So many different PNG files of 8 x 8 pixels, in ten classes."""
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
    head = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    for number in range(count):
        rows = b"".join(b"\0" + struct.pack(">Q", (number * 2_654_435_761 + row * 97) % 2**64) for row in range(8))
        content = head + _chunk(b"IDAT", zlib.compress(rows, 1)) + _chunk(b"IEND", b"")
        with open(folder / str(number % 10) / f"{number}.png", "wb") as file:
            file.write(content)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def resident_bytes(pid: int) -> int:
    """Memory of a process and of those that it started; 0 when it is gone."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return own + sum(resident_bytes(int(child)) for child in children)


def _last_step(metrics: Path) -> int:
    return json.loads(metrics.read_text().splitlines()[-1])["step"]
