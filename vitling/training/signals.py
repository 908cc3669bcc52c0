"""SIGTERM and Ctrl-C: stop after the current step, with everything saved."""

import signal
from contextlib import contextmanager


class Interrupted(Exception):
    """SIGTERM or Ctrl-C arrived; the run is saved and can be resumed."""


@contextmanager
def interruption():
    """Turn SIGTERM and Ctrl-C into a wish that the loop grants after the current step; a second Ctrl-C ends at once."""

    class Wish:
        asked = False

    def ask(signum, frame):
        if Wish.asked and signum == signal.SIGINT:
            raise KeyboardInterrupt
        Wish.asked = True

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread, where no signals arrive
        before = {}
    try:
        yield Wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
