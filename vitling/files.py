"""Files that are whole or not there, and never in the place of somebody else's: everything we write goes through `replacing`.

What we read is a file, not a device or a pipe.
"""

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitling.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # bytes, on every system that we know
_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISSOCK: "a socket",
}
_URL = re.compile(r"[a-z][a-z0-9+.]+:/")
_TEMPORARY = re.compile(r"\..*\.vitling-[0-9a-f]{8}(\..*)?", re.DOTALL)  # a name that nobody else gives

Ours = Callable[[Path], bool]  # whether a file that exists is one that we wrote


@contextmanager
def replacing(path: str | os.PathLike, ours: Ours | None = None) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends, and is removed when the block fails.

    A reader, or a process killed at any moment, finds the old file or the new one, never a part. The temporary name keeps
    the extension, because many writers choose the format by it.

    `ours` tells our own earlier file, which is replaced, from anybody else's, which is refused. It may only be left out inside
    a folder that is ours altogether: one that was empty when we claimed it, and that is checked before we go on in it.
    """
    path = check_writable(path)
    path = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    temporary = temporary_place(path)
    try:
        with _explained(path, temporary):
            _refuse_special(path)
            if ours is not None:
                refuse_foreign(path, ours=ours)  # before the work, and again after it
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            _sync(temporary)
            if ours is not None:
                refuse_foreign(path, ours=ours)
            os.replace(temporary, path)
            _sync(path.parent)
    finally:
        if temporary.exists():
            temporary.unlink()


def check_writable(path: str | os.PathLike) -> Path:
    """Refuse a URL: it would become folders here that are called so."""
    if _URL.match(os.fspath(path)):
        raise UserError(
            f"cannot write {os.fspath(path)}: only runs and studies are written to other storage; give a path."
        )
    return Path(path)


def temporary_place(path: Path) -> Path:
    """A new name beside `path`, for what takes its place when it is whole."""
    return path.with_name(f".{path.stem[:100]}.vitling-{secrets.token_hex(4)}{path.suffix}")


def is_temporary(name: str) -> bool:
    """Whether a file is half written, or was left so by a process that was killed."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed left half written in a folder. For whoever alone writes there."""
    for path in folder.iterdir():
        if is_temporary(path.name):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _refuse_special(path: Path) -> None:
    """Refuse what is no file, also at the end of a link: a stranger's could lead us to replace a device of the system."""
    if os.path.exists(path) and (other := what_else(path)):
        raise UserError(f"cannot write {path}: it is {other}, not a file.")


def refuse_foreign(*paths: Path, ours: Ours) -> None:
    """Refuse places where something lies that we did not write. Whoever works for long before writing asks first."""
    for path in paths:
        if not os.path.exists(path):
            continue
        if ours is new:
            raise UserError(f"{path} exists already and is not overwritten; remove it, or choose another out.")
        if not (path.is_file() and ours(path)):
            raise UserError(
                f"{path} exists already and was not written by vitling, so it is not overwritten; "
                "move it, or choose another place."
            )


def new(path: Path) -> bool:
    """What is named on a command line to be written must not be there yet: nothing that exists is ours."""
    return False


def json_with(*keys: str) -> Ours:
    """A JSON object, or a list of them, that has these keys."""

    def has_keys(value: Any) -> bool:
        if isinstance(value, list):
            return bool(value) and all(map(has_keys, value))
        return isinstance(value, dict) and set(keys) <= set(value)

    def ours(path: Path) -> bool:
        try:
            return has_keys(json.loads(path.read_bytes()))
        except (ValueError, RecursionError):
            return False

    return ours


def starting_with(*beginnings: bytes, mark: bytes = b"", within: int = 4096) -> Ours:
    """A file that begins so, and has the mark in its first part."""

    def ours(path: Path) -> bool:
        with open(path, "rb") as stream:
            head = stream.read(within)
        return head.startswith(beginnings) and mark in head

    return ours


@contextmanager
def _explained(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """A disk that is full, broken or closed to us is something the user can fix."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(f"no space left on the device for {path}; free some, or write elsewhere.") from error
        # A write or an fsync that fails names no file.
        if error.errno and error.filename in (None, str(temporary), str(path), str(path.parent)):
            raise UserError(f"cannot write {path}: {error.strerror}.") from error
        raise


def append_text(path: str | os.PathLike, text: str) -> None:
    """Add to the end of a log, in one write that is on the disk when this returns."""
    path = Path(path)
    if path.is_fifo():  # it would wait for a reader
        _refuse_special(path)
    with _explained(path), open(path, "ab", buffering=0) as stream:
        stream.write(text.encode())
        os.fsync(stream.fileno())


def write_bytes(path: str | os.PathLike, data: bytes, ours: Ours | None = None) -> None:
    with replacing(path, ours) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike, text: str, ours: Ours | None = None) -> None:
    """Text in UTF-8. The bytes of a file name that are not UTF-8 are written as \\udcXX, which JSON and YAML read back."""
    write_bytes(path, text.encode(errors="backslashreplace"), ours)


def check_path(path: str | os.PathLike) -> Path:
    """A path that the system can be asked about; whether anything is there is another question."""
    text = os.fspath(path)
    try:
        name = os.fsencode(text)
    except UnicodeEncodeError:
        name = b"\0"
    if b"\0" in name:
        raise UserError(f"{text!r:.80} cannot be a path: it holds characters that no file name may have.")
    if len(name) > _LONGEST_PATH or max(map(len, name.split(os.fsencode(os.sep)))) > _LONGEST_NAME:
        raise UserError(
            f"{text[:40]}... cannot be a path: it has {len(text)} characters; names of up to {_LONGEST_NAME} bytes are allowed."
        )
    return Path(path)


def what_else(path: str | os.PathLike) -> str:
    """What lies at a path that is not a file, in words: reading it could take forever. Empty for a file; OSError where nothing is."""
    mode = os.stat(path).st_mode
    return "" if stat.S_ISREG(mode) else next((words for is_kind, words in _KINDS.items() if is_kind(mode)), "no file")


def read_file(path: str | os.PathLike, *, at_most: int | None = None) -> bytes:
    """The content of a file, of at most so many bytes."""
    path = check_path(path)
    try:
        if other := what_else(path):
            raise UserError(f"{path} is {other}, not a file.")
        if at_most is not None and os.path.getsize(path) > at_most:
            raise UserError(f"{path} is corrupted: it has {os.path.getsize(path):,} bytes, more than it ever should.")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is missing.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def _sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows has no such call for folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
