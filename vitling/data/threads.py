"""Work on many images in threads, in order."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def map_threads(function: Callable, items, threads: int | None = None):
    """Results in order, from a thread pool (Pillow decodes outside the GIL); the first error cancels what is left."""
    with ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1)) as pool:
        try:
            yield from pool.map(function, items)
        finally:
            pool.shutdown(cancel_futures=True)
