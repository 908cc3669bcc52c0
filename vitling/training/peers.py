"""Processes that train together: they part when their program ends, and when one of them is gone, the others end with a line."""

import atexit
from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import Accelerator
from torch import distributed

from vitling.errors import UserError
from vitling.training.allocation import return_freed_memory


@contextmanager
def lost_peer_explained() -> Iterator[None]:
    """Nobody can go on alone: a step needs every process's part of the batch."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo/" not in str(error):  # gloo raises plain ones
            raise
        raise UserError(
            "another process of this training has ended or cannot be reached, and one alone cannot go on; what was saved stays, and "
            "the same launcher with the same command goes on from there."
        ) from error


def end_training(accelerator: Accelerator) -> None:
    """Close the trackers. The processes stay in touch, for whatever their program trains next, until it ends."""
    for tracker in accelerator.trackers:
        tracker.finish()
    accelerator.wait_for_everyone()
    return_freed_memory()
    atexit.unregister(_part)
    atexit.register(_part)


def _part() -> None:
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
