"""Standard output and error as they are: piped into `head`, on a full disk, or closed. That ends the printing, not the work."""

import errno
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_GONE = (errno.EPIPE, errno.EIO, errno.EBADF)  # nobody reads any more: a pipe, a terminal, a descriptor


class Lasting:
    """A stream that stops to print where it cannot, and raises nothing: hours of training do not end with their log."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.failure: OSError | None = None  # what was lost though somebody wanted it

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if error.errno not in _GONE:
            self.failure = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self.stream.fileno())  # what is buffered, and what others print, goes there too
        except (OSError, ValueError):
            self.stream = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
        finally:
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def lasting_streams() -> Iterator[Lasting]:
    """Both streams as `Lasting` ones, for as long as the command runs; standard output is given."""
    for descriptor in (0, 1, 2):  # a closed one would be given to the next file that is opened, and be printed into
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    out, err = (Lasting(stream or open(os.devnull, "w")) for stream in before)  # noqa: SIM115
    sys.stdout, sys.stderr = out, err
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def others_silenced() -> Iterator[None]:
    """Nobody can act on warnings of Pillow, torch or timm, and one line of ours must not drown in them; `python -W` shows them."""
    if sys.warnoptions:
        yield
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of its C++ part
    show, last = warnings.showwarning, logging.lastResort
    level = last.level if last else logging.WARNING
    warnings.showwarning = lambda *_, **__: None  # the filters stay: what they make an error is one
    if last:
        last.setLevel(logging.ERROR)
    try:
        yield
    finally:
        warnings.showwarning = show
        if last:
            last.setLevel(level)
