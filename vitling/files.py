"""Files that are whole or not there: everything we write goes through `replacing`."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitling.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends, and is removed when the block fails.

    A reader, or a process killed at any moment, finds the old file or the new one, never a part. The temporary name keeps
    the extension, because many writers choose the format by it.
    """
    path = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    temporary = path.with_name(f".{path.stem[:100]}.{secrets.token_hex(4)}{path.suffix}")
    try:
        with _explained(path, temporary):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
    finally:
        if temporary.exists():
            temporary.unlink()


@contextmanager
def _explained(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """A disk that is full or closed to us is something the user can fix."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(f"no space left on the device for {path}; free some, or write elsewhere.") from error
        if error.errno in _FORBIDDEN and error.filename in (str(temporary), str(path), str(path.parent)):
            raise UserError(f"cannot write {path}: {error.strerror}.") from error
        raise


def append_text(path: str | os.PathLike, text: str) -> None:
    """Add to the end of a log, in one write that is on the disk when this returns."""
    path = Path(path)
    with _explained(path), open(path, "ab", buffering=0) as stream:
        stream.write(text.encode())
        os.fsync(stream.fileno())


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike, text: str) -> None:
    write_bytes(path, text.encode())


def _sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows has no such call for folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
