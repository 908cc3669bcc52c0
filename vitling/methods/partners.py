"""Partners: where each image of a batch finds the one that it is mixed with. A batch may lie in several processes; a method cannot tell."""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor


class Partners:
    """The image at the mirrored place in the batch, where this process holds all of it."""

    def batch_size(self, rows: int) -> int:
        """Of the whole batch, of which `rows` are here."""
        return rows

    def own(self, values: Tensor) -> Tensor:
        """Of values for the whole batch, those of the rows that are here."""
        return values

    def mirror(self, x: Tensor) -> Tensor:
        """For each row its partner's row."""
        return x.flip(0)

    def drawing(self) -> AbstractContextManager[None]:
        """What is drawn in here is drawn for the whole batch."""
        return nullcontext()
