"""Batches of a stream: one thread reads its shards from beginning to end, others decode, and images wait until their batch is due.

The order of an epoch is known beforehand, see `buffered_order`. So a training that resumes asks for the rest of the same order, and only
the shards of which images are still due are read again.
"""

import queue
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.data.pipeline.keeping import Keeping
from vitling.data.sources.images import load_image
from vitling.data.sources.streams import StreamImages
from vitling.errors import UserError

AHEAD = 4  # batches that are read and decoded before they are asked for
PATIENCE_SECONDS = 0.2  # how often the reader asks whether it is still wanted

Item = tuple[list[int], list[Future]] | BaseException | None


def buffered_order(shards: Tensor, buffer: int, generator: torch.Generator) -> Tensor:
    """The images of a stream, shuffled as far as one can that is read from the beginning: `shards` says where each of them lies.

    Shards come in random order. Of what they give, `buffer` images wait; a random one of them comes next, and its place is taken.
    """
    numbers = shards.unique()
    rank = torch.empty(int(numbers.max()) + 1, dtype=torch.long)
    rank[numbers[torch.randperm(len(numbers), generator=generator)]] = torch.arange(len(numbers))
    stream = rank[shards].argsort(stable=True).tolist()
    waiting, order = stream[:buffer], []
    draws = torch.randint(max(1, len(waiting)), (len(stream) - len(waiting),), generator=generator).tolist()
    for place, following in zip(draws, stream[buffer:], strict=True):
        order.append(waiting[place])
        waiting[place] = following
    return torch.tensor(order + [waiting[i] for i in torch.randperm(len(waiting), generator=generator).tolist()])


class Sequential:
    """A stream, read and fitted batch by batch. Its threads end with this object."""

    def __init__(self, images: StreamImages, *, workers: int, keeping: Keeping | None = None, **fit_args: Any):
        self.labels = torch.as_tensor(images.labels)
        self.shards = torch.as_tensor(images.shards)
        self.images, self.workers, self.keeping, self.fit_args = images, max(1, workers), keeping, fit_args
        self.plan: list[list[int]] = []
        self.begun: _Pass | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: list[Tensor]) -> Iterator[tuple[list[int], list[np.ndarray]]]:
        """The images of each batch of a plan."""
        if self.begun is None or self.plan != [index.tolist() for index in plan]:
            self.read_ahead(plan)
        assert self.begun is not None
        begun, self.begun = self.begun, None
        yield from begun.batches()

    def read_ahead(self, plan: list[Tensor]) -> None:
        """Begin a pass: its first batches are read while the caller does something else."""
        self.plan = [index.tolist() for index in plan]
        load = _Load(self.images, self.keeping, self.fit_args)
        self.begun = _Pass(self.images, self.plan, load, self.workers)


class _Load:
    """Decodes and fits an image of which the bytes are here."""

    def __init__(self, images: StreamImages, keeping: Keeping | None, fit_args: dict[str, Any]):
        self.images, self.keeping, self.fit_args = images, keeping, fit_args

    def __call__(self, i: int, data: bytes | None) -> np.ndarray:
        image = self.images.fetched(i, data)
        return self.keeping.load(image, 0) if self.keeping else load_image(image, 0, **self.fit_args)


class _Pass:
    """One way through a plan. The thread that reads holds no reference to it, so that it ends with who wanted it."""

    def __init__(self, images: StreamImages, plan: list[list[int]], load: _Load, workers: int):
        self.queue: queue.Queue[Item] = queue.Queue(AHEAD)
        stop = threading.Event()
        weakref.finalize(self, stop.set)
        threading.Thread(
            target=_read, args=(images, plan, load, workers, self.queue, stop), name="shards", daemon=True
        ).start()

    def batches(self) -> Iterator[tuple[list[int], list[np.ndarray]]]:
        while (item := self.queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            indices, loading = item
            yield indices, [future.result() for future in loading]


def _read(
    images: StreamImages, plan: list[list[int]], load: _Load, workers: int, out: queue.Queue, stop: threading.Event
) -> None:
    """Read what a plan needs, and hand its batches over in order."""

    def put(item: Item) -> bool:
        while not stop.is_set():
            try:
                out.put(item, timeout=PATIENCE_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    with ThreadPoolExecutor(workers) as pool:
        try:
            for indices, encoded in _encoded_batches(images, plan, stop.is_set):
                loading = [pool.submit(load, i, data) for i, data in zip(indices, encoded, strict=True)]
                if not put((indices, loading)):
                    break
            put(None)
        except BaseException as error:  # it is raised where the batches are taken
            put(error)
        finally:
            pool.shutdown(cancel_futures=stop.is_set())


def _encoded_batches(
    images: StreamImages, plan: list[list[int]], ended: Callable[[], bool]
) -> Iterator[tuple[list[int], list[bytes | None]]]:
    due = Counter(i for batch in plan for i in batch)  # an image may be shown several times
    arriving = _arrivals(images, plan, due)
    waiting: dict[int, bytes | None] = {}
    for batch in plan:
        missing = set(batch) - waiting.keys()
        while missing and not ended():
            i, data = next(arriving)
            waiting[i] = data
            missing.discard(i)
        if ended():
            return
        yield batch, [waiting[i] for i in batch]
        for i in batch:
            due[i] -= 1
            if not due[i]:
                del waiting[i]


def _arrivals(images: StreamImages, plan: list[list[int]], due: Counter[int]) -> Iterator[tuple[int, bytes | None]]:
    """The images that are due, in the order in which their shards are read: those first that are due first."""
    order = np.array([i for batch in plan for i in batch], np.int64)
    shards = images.shards
    shard_of = shards[order]
    mean_place = {shard: np.flatnonzero(shard_of == shard).mean() for shard in np.unique(shard_of).tolist()}
    index_of = {int(images.rows[i]): i for i in due}
    left_in = Counter(shards[list(due)].tolist())
    for shard in sorted(mean_place, key=mean_place.__getitem__):
        left = left_in[shard]
        for row, data in images.walk(shard):
            if row in index_of:
                yield index_of[row], data
                left -= 1
                if not left:
                    break
    raise UserError("the stream ended before all of its images were read; it has changed since its labels were read")
