"""Work on many images in threads, in order."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
) -> Iterator[Result]:
    """Results in order, from a thread pool (Pillow decodes outside the GIL); the first error cancels what is left."""
    with ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1)) as pool:
        try:
            yield from pool.map(function, items)
        finally:
            pool.shutdown(cancel_futures=True)
