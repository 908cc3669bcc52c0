"""Partners of images whose batch lies in several processes, so that they mix as one process alone would mix it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed

from vitling.methods.partners import Partners
from vitling.training.random_state import get_state, seed_everything, set_state


class ProcessPartners(Partners):
    """Process r of w holds every w-th row of the batch, from row r on.

    The partner of a row is at the mirrored place in the whole batch. So the partners of all rows of process r are the rows of
    process w - 1 - r, mirrored: two processes exchange what they have, and nobody else is involved.
    """

    def __init__(self, process: int, processes: int):
        self.process, self.processes = process, processes
        self.stream: tuple | None = None  # where the draws for the whole batch stand: alike in all processes

    def begin_step(self, *parts: object) -> None:
        """Draw for the whole batch from here on what one process alone would draw with this seed, which is set."""
        seed_everything(*parts)
        self.stream = get_state()

    def batch_size(self, rows: int) -> int:
        return rows * self.processes

    def own(self, values: Tensor) -> Tensor:
        return values[self.process :: self.processes]

    def mirror(self, x: Tensor) -> Tensor:
        other = self.processes - 1 - self.process
        return x.flip(0) if other == self.process else _Mirror.apply(x, other)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        assert self.stream is not None, "a step has begun"
        before = get_state()
        set_state(self.stream)
        yield
        self.stream = get_state()
        set_state(before)


class _Mirror(torch.autograd.Function):
    """Mirrored rows of another process. Doing it twice undoes it, so gradients take the same way back."""

    @staticmethod
    def forward(ctx, x: Tensor, other: int) -> Tensor:
        ctx.other = other
        given, taken = x.flip(0).contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        transfers = [
            distributed.P2POp(distributed.isend, given, other),
            distributed.P2POp(distributed.irecv, taken, other),
        ]
        for transfer in distributed.batch_isend_irecv(transfers):
            transfer.wait()
        return taken

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return _Mirror.apply(gradient, ctx.other), None
