"""Random state: everything random in a run is a function of (seed, step), and the caller's generators are left alone."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from vitling.data.pipeline.loader import step_seed
from vitling.runs.device import default_device


def seed_everything(*parts: object) -> None:
    """Seed torch, NumPy and Python from the parts."""
    seed = step_seed(*parts)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def get_state() -> tuple:
    """Where torch's generator of the CPU, NumPy's and Python's stand."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def set_state(state: tuple) -> None:
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])


@contextmanager
def callers_state_kept() -> Iterator[None]:
    """Give torch, NumPy and Python back the random state, and torch the number of threads, that they had before."""
    device = default_device().type
    devices = range(torch.accelerator.device_count()) if device != "cpu" else ()
    state, threads = get_state(), torch.get_num_threads()
    with torch.random.fork_rng(devices, device_type=device):
        try:
            yield
        finally:
            set_state(state)
            torch.set_num_threads(threads)
