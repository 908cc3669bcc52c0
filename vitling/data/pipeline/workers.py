"""Processes that read images and die, as of a lack of memory: one line of ours instead of torch's traceback."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from vitling.errors import UserError


def read_batches(loader: DataLoader) -> Iterator[Any]:
    """A pass over a loader, begun now, which ends with a line where one of its workers dies."""
    with _death_explained():  # workers of the pass before are told to begin again
        begun = _start(loader)
    return _explained(begun)


def _explained(begun: Iterator[Any]) -> Iterator[Any]:
    with _death_explained():
        yield from begun


@contextmanager
def _death_explained() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:  # the latter where it dies while it hands over a batch
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker (pid"):
            raise
        raise UserError(
            "a process that reads images died, perhaps because memory ran out; what was saved stays, and the same command goes "
            "on from there. Fewer workers need less memory, workers=0 reads in this process."
        ) from None


def _start(loader: DataLoader) -> Iterator[Any]:
    """Its iterator, without the signal handler by which torch learns of a death at once.

    That handler raises wherever the main process happens to be: in a destructor or a lock the error is lost, and a traceback is
    printed. The iterator finds out by itself when it waits for a worker that is gone.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return iter(loader)  # torch sets none
    before = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
