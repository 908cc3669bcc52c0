"""Dynamic batching: images of many requests go through the model together.

Whatever waits when the model is free becomes the next batch. So a lone request never waits for company, and under load batches
grow by themselves.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class Busy(Exception):
    """More images wait than may."""


class Batcher:
    """The queue before a model. Belongs to one event loop; the model runs in one thread of its own."""

    def __init__(
        self,
        predict: Callable[[np.ndarray], np.ndarray],
        *,
        largest: int,
        most_waiting: int,
        on_batch: Callable[[int], None] = lambda size: None,
    ):
        """`largest` batch, `most_waiting` images; `on_batch` gets the size of each batch."""
        self.predict, self.largest, self.most_waiting, self.on_batch = predict, largest, most_waiting, on_batch
        self._waiting: deque[tuple[np.ndarray, asyncio.Future]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vitling-model")
        self._running: asyncio.Task | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def check_room(self, images: int) -> None:
        """Refuse more images than there is room for; asked before they are decoded, too."""
        if len(self._waiting) + images > self.most_waiting:
            raise Busy

    async def submit(self, images: list[np.ndarray]) -> list[np.ndarray]:
        """What the model gives for each image. Those of one request may go in several batches."""
        self.check_room(len(images))
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in images]
        self._waiting.extend(zip(images, futures, strict=True))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run())
        try:
            return await asyncio.gather(*futures)
        except asyncio.CancelledError:  # who asked has gone: what is not begun is not computed
            for future in futures:
                future.cancel()
            raise

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(self.largest, len(self._waiting)))]
            batch = [(image, future) for image, future in batch if not future.done()]
            if not batch:
                continue
            self.on_batch(len(batch))
            try:
                found = await loop.run_in_executor(self._thread, self._predict, [image for image, _ in batch])
            except Exception as error:  # whatever a runtime raises belongs to those who asked
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for row, (_, future) in zip(found, batch, strict=True):
                if not future.done():
                    future.set_result(row)

    def _predict(self, images: list[np.ndarray]) -> np.ndarray:
        return self.predict(np.stack(images))

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
