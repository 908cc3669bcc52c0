"""Memory on a CPU: what a step frees, the next one takes again, instead of asking the system for it."""

import ctypes
import platform
from functools import cache

# Of glibc's mallopt: blocks from this size on are mapped one by one, and each page of them is cleared when it is first touched.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGEST_KEPT = 2**25  # bytes; the most that glibc takes
NEVER = 2**31 - 1
GROWTH = 2**26  # bytes that the heap grows by


@cache
def keep_freed_memory() -> bool:
    """From now on this process keeps the memory that it frees; whether it can.

    A training step allocates the same activations again and again. By default glibc returns the large ones to the system, which gives them
    back as cleared pages: a tenth of a step in bf16 (benchmarks/allocation.py). Nothing happens with another allocator.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    options = {M_MMAP_THRESHOLD: LARGEST_KEPT, M_TRIM_THRESHOLD: NEVER, M_TOP_PAD: GROWTH}
    accepted = {option: libc.mallopt(option, value) for option, value in options.items()}
    return all(accepted.values())


def return_freed_memory() -> None:
    """Give the system what a training has left: a notebook, or a program that fits an estimator, goes on to other things."""
    if keep_freed_memory.cache_info().currsize and keep_freed_memory():
        ctypes.CDLL(None).malloc_trim(0)
