"""A vitling command in a process of its own, to which something happens at a chosen operation on its files.

The process is forked from this one, which has torch loaded: a command then takes a fraction of a second, and dies as any other process
does. Python reports what it is about to open for writing, rename, remove or make (audit events); writes and fsync are wrapped, because those
it does not report. Only operations below the folder in which the command was started count, so that their number is the same every time.

    python -m torture.injection --kind kill --at 17 -- train digits --out run      # by hand, in the present folder
"""

import argparse
import builtins
import errno
import io
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
# What the operation raises instead of being done. A disk that is full, read-only or broken stays so.
ERRORS = {"full": errno.ENOSPC, "read-only": errno.EROFS, "broken": errno.EIO}
CLOCKS = {"clock forward": ("time", 86_400.0), "clock back": ("time", -86_400.0), "asleep": ("monotonic", 3_600.0)}
KINDS = ("none", *SIGNALS, "half written", *ERRORS, "delete", "reader", "other", *CLOCKS)
NAMED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
NO_SPACE_NEEDED = ("os.rename", "os.remove", "os.rmdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True)
class Disturbance:
    """What happens, and before which operation on files, counted from 1.

    kill, interrupt, terminate: the signal. half written: only half of a write reaches the file, then SIGKILL. full, read-only, broken:
    this operation and all later ones fail. delete: `target` is removed. reader: the processes that read images are killed. other: the
    process of the number `target` is. clock forward, clock back: the time of day is set by a day. asleep: an hour passes in a moment.
    """

    kind: str = "none"
    at: int = 0
    target: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind == "none" else f"{self.kind} at operation {self.at}"


@dataclass
class Outcome:
    """How a command ended."""

    code: int | None  # minus the number of the signal that ended it; None where it had to be ended because it hung
    out: str
    err: str
    operations: int = 0  # on files, where it lived to tell
    happened: bool = False  # whether the disturbance came
    seconds: float = 0.0
    unsynced: list[str] = field(default_factory=list)  # files that took their names before they were on the disk

    @property
    def failed_well(self) -> bool:
        """Exit code 2 and exactly one line, an error."""
        lines = self.err.strip().splitlines()
        return self.code == 2 and len(lines) == 1 and lines[0].startswith("error: ")

    def describe(self) -> str:
        ended = "did not end in time" if self.code is None else f"exit code {self.code}"
        lines = [line for line in self.err.strip().splitlines() if line.strip()]
        shown = lines if len(lines) <= 3 else [lines[0], "...", *lines[-2:]]
        return f"{ended}: {' | '.join(shown)[:600]}" if shown else ended


def load_product() -> None:
    """Load what every command loads, before the first fork."""
    import torch

    import vitling
    import vitling.cli.main
    import vitling.deploy.export
    import vitling.diagnose.run_page
    import vitling.improvement.improvement
    import vitling.reports.plots
    import vitling.studies.study

    torch.set_num_threads(1)
    vitling.register_models()


@dataclass
class Process:
    """A command that was started."""

    pid: int
    folder: Path  # of what it prints
    began: float = field(default_factory=time.monotonic)

    hung: bool = False

    def wait(self, seconds: float = 300.0) -> Outcome:
        """Its end; one that takes longer is killed."""
        pause = 0.002
        while (outcome := self.poll(seconds)) is None:
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return outcome

    def poll(self, seconds: float, since: float | None = None) -> Outcome | None:
        """Its end, if it has come; `seconds` after its beginning, or after a later moment, it is killed."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if not ended:
            if not self.hung and time.monotonic() - (since or self.began) > seconds:
                self.hung = True
                os.kill(self.pid, signal.SIGKILL)
            return None
        code = None if self.hung else os.waitstatus_to_exitcode(status)
        out, err = ((self.folder / name).read_text(errors="replace") for name in ("out", "err"))
        operations = (self.folder / "operations").read_text() if (self.folder / "operations").exists() else ""
        happened = (self.folder / "happened").exists()
        unsynced = (self.folder / "unsynced").read_text().splitlines() if operations else []
        shutil.rmtree(self.folder)
        return Outcome(code, out, err, int(operations or 0), happened, time.monotonic() - self.began, unsynced)


def start(
    arguments: Sequence[str | os.PathLike],
    folder: Path,
    disturbance: Disturbance | None = None,
    *,
    environment: dict[str, str] | None = None,
    extra_memory: int | None = None,
    stdin: bytes = b"",
    constants: dict[str, float] | None = None,
) -> Process:
    """Start `vitling ARGUMENTS` in a folder. `extra_memory` is what it may take more than this process has, in bytes.

    `constants` are other values of constants, by module and name, for that process alone: least times that would take minutes.
    """
    load_product()
    sys.stdout.flush()
    sys.stderr.flush()
    printed = Path(tempfile.mkdtemp(prefix="torture-printed-"))
    (printed / "in").write_bytes(stdin)
    pid = os.fork()
    if pid:
        return Process(pid, printed)
    code = 1
    try:
        os.setsid()
        _redirect(printed)
        os.chdir(folder)
        os.environ.update(environment or {})
        if extra_memory:
            _limit_memory(extra_memory)
        for place, value in (constants or {}).items():
            module, _, name = place.rpartition(".")
            assert hasattr(sys.modules[module], name)
            setattr(sys.modules[module], name, value)
        code = _main([os.fspath(word) for word in arguments], disturbance or Disturbance(), Path.cwd(), printed)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(
    arguments: Sequence[str | os.PathLike],
    folder: Path,
    disturbance: Disturbance | None = None,
    *,
    seconds: float = 300.0,
    **how: Any,
) -> Outcome:
    """Start a command and wait for its end."""
    return start(arguments, folder, disturbance, **how).wait(seconds)


def _main(arguments: list[str], disturbance: Disturbance, folder: Path, printed: Path) -> int:
    """What `python -m vitling` does, in the process that was forked for it."""
    import numpy
    import torch

    from vitling.cli import main
    from vitling.cli.commands import improve, train

    for seed in (random.seed, numpy.random.seed, torch.manual_seed):  # as different as in a process that was not forked
        seed(int.from_bytes(os.urandom(4), "little"))
    train.STARTED = improve.STARTED = time.monotonic()  # it has just begun
    sys.argv = ["vitling", *arguments]
    watch = _Watch(disturbance, folder, printed)
    watch.install()
    try:
        main.main()
        return 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        watch.stop()
        (printed / "unsynced").write_text("\n".join(watch.unsynced))
        (printed / "operations").write_text(str(watch.count))


def _redirect(printed: Path) -> None:
    os.dup2(os.open(printed / "in", os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(printed / name, os.O_WRONLY | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115


def _limit_memory(extra: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if os.path.exists("/proc/self/statm") else None
    if pages is not None:
        limit = pages * resource.getpagesize() + extra
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class _Watch:
    """Counts operations and lets the disturbance happen."""

    def __init__(self, disturbance: Disturbance, folder: Path, printed: Path):
        self.disturbance, self.folder, self.printed = disturbance, f"{folder}{os.sep}", printed
        self.count, self.pid, self.watching = 0, os.getpid(), False
        self.names: dict[int, str] = {}  # of open files, by their descriptor
        self.unwritten: set[str] = set()  # files that are perhaps not on the disk yet
        self.unsynced: list[str] = []

    def install(self) -> None:
        """For as long as this process lives: audit hooks cannot be taken back."""
        self.watching = True
        opening, sync, write = io.open, os.fsync, os.write

        def watched_open(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            stream = opening(file, mode, *rest, **more)
            if isinstance(file, int) or not set(mode) & set("wax+"):
                return stream
            self.names[stream.fileno()] = os.path.abspath(os.fspath(file))
            return _WatchedFile(stream, self)

        def watched_sync(descriptor: int) -> None:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            self.on_operation(self.names.get(number) or _name(number), "fsync")
            sync(descriptor)

        def watched_write(descriptor: int, data: bytes) -> int:
            name = self.names.get(descriptor) or _name(descriptor)
            self.on_operation(name, "write", lambda: write(descriptor, _half(data)))
            return write(descriptor, data)

        builtins.open, io.open, os.fsync, os.write = watched_open, watched_open, watched_sync, watched_write
        sys.addaudithook(self._on_event)

    def stop(self) -> None:
        self.watching = False

    def _on_event(self, event: str, arguments: tuple) -> None:
        if not self.watching:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and isinstance(flags, int) and flags & WRITING:
                self.on_operation(path, event)
        elif event in NAMED:
            if event == "os.rename" and os.path.abspath(os.fsdecode(arguments[0])) in self.unwritten:
                self.unsynced.append(os.path.basename(os.fsdecode(arguments[1])))
            self.on_operation(arguments[1] if event in ("os.rename", "os.symlink", "os.link") else arguments[0], event)

    def on_operation(self, path: Any, event: str, write_half: Callable[[], object] | None = None) -> None:
        """Called before each operation."""
        if not self.watching or os.getpid() != self.pid or isinstance(path, int):
            return
        path = os.path.abspath(os.fsdecode(path))
        if not path.startswith(self.folder):
            return
        if event in ("open", "write"):
            self.unwritten.add(path)
        elif event == "fsync":
            self.unwritten.discard(path)
        self.count += 1
        kind, at = self.disturbance.kind, self.disturbance.at
        if at and self.count == at:
            self._unwatched(self._happen, kind, write_half)
        if at and self.count >= at and kind in ERRORS and not (kind == "full" and event in NO_SPACE_NEEDED):
            number = ERRORS[kind]
            # As the system reports it: a call that names a file names it in its error, a write or an fsync does not.
            raise OSError(number, os.strerror(number), *([] if event in ("write", "fsync") else [path]))

    def _unwatched(self, function: Callable[..., None], *arguments: Any) -> None:
        self.watching = False
        try:
            function(*arguments)
        finally:
            self.watching = True

    def _happen(self, kind: str, write_half: Callable[[], object] | None) -> None:
        (self.printed / "happened").touch()
        if kind in SIGNALS:
            os.kill(self.pid, SIGNALS[kind])
        elif kind == "half written":
            if write_half:
                write_half()
            os.kill(self.pid, signal.SIGKILL)
        elif kind == "delete":
            shutil.rmtree(os.path.join(self.folder, self.disturbance.target))
        elif kind == "reader":
            for reader in multiprocessing.active_children():
                os.kill(reader.pid, signal.SIGKILL)
        elif kind == "other":
            os.kill(int(self.disturbance.target), signal.SIGKILL)
        elif kind in CLOCKS:
            name, jump = CLOCKS[kind]
            clock = getattr(time, name)
            setattr(time, name, lambda: clock() + jump)


class _WatchedFile:
    """A file that reports its writes."""

    def __init__(self, stream: Any, watch: _Watch):
        self._stream, self._watch = stream, watch

    def write(self, data: Any) -> int:
        name = self._watch.names.get(self._stream.fileno(), "")
        self._watch.on_operation(name, "write", lambda: (self._stream.write(_half(data)), self._stream.flush()))
        return self._stream.write(data)

    def __enter__(self) -> "_WatchedFile":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.close()

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _half(data: Any) -> Any:
    return data[: len(data) // 2]


def _name(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torture.injection", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default="none")
    parser.add_argument("--at", type=int, default=0, help="before which operation on files, from 1")
    parser.add_argument("--target", default="", help="what is deleted, below the present folder")
    parser.add_argument("arguments", nargs="+", help="after --: the command without the word vitling")
    given = parser.parse_args()
    outcome = run(given.arguments, Path.cwd(), Disturbance(given.kind, given.at, given.target))
    sys.stdout.write(outcome.out)
    sys.stderr.write(outcome.err)
    print(f"{outcome.describe()}; {outcome.operations} operations on files, {outcome.seconds:.1f} s", file=sys.stderr)
    raise SystemExit(0 if outcome.code == 0 else 1)


if __name__ == "__main__":
    main()
