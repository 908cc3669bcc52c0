"""SIGTERM and Ctrl-C: stop after the current step, with everything saved."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Interrupted(Exception):
    """SIGTERM or Ctrl-C arrived; the run is saved and can be resumed."""


@dataclass
class StopRequest:
    """Whether the loop should stop after the current step."""

    requested: bool = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGTERM and Ctrl-C into a request; a second Ctrl-C ends at once."""
    stop = StopRequest()

    def request(signum, frame):
        if stop.requested and signum == signal.SIGINT:
            raise KeyboardInterrupt
        stop.requested = True

    try:
        before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread, where no signals arrive
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
