"""SIGTERM and Ctrl-C: stop after the current step, with everything saved."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Interrupted(Exception):
    """SIGTERM or Ctrl-C arrived; the run is saved and can be resumed."""

    def __init__(self, message: str, signal_number: int = signal.SIGINT):
        super().__init__(message)
        self.signal_number = int(signal_number)

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM: what a shell gives a program that the signal ended."""
        return 128 + self.signal_number


@dataclass
class StopRequest:
    """The signal after which the loop should stop when the current step is done; 0 where none has come."""

    signal_number: int = 0

    @property
    def requested(self) -> bool:
        return self.signal_number != 0


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGTERM and Ctrl-C into a request; a second Ctrl-C ends at once."""
    stop = StopRequest()

    def request(signum, frame):
        if stop.requested and signum == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal_number = stop.signal_number or signum

    try:
        before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread, where no signals arrive
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
