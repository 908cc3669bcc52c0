"""Target: a form in which a run's model is exported. The whole interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.evaluation.temperature import Calibration
from vitling.files import new, refuse_foreign
from vitling.runs.metadata import ModelMetadata
from vitling.runs.run import Run


@dataclass(frozen=True)
class Export:
    """What is exported, and where to."""

    run: Run
    which: str
    model: nn.Module
    metadata: ModelMetadata
    calibration: Calibration | None
    out: Path
    push: str | None
    callback: Callback


class Target(ABC):
    """One form; its name on the command line is its key in `export.TARGETS`."""

    default_name: str  # of the file or folder in the run
    takes_raw_input = False  # whether its input can be normalised by the caller
    can_be_pushed = False

    def check_packages(self) -> None:  # noqa: B027  (most targets need no extra)
        """Refuse before the work what could not be finished."""

    def check_out(self, out: Path) -> None:
        """Refuse a path that may not be written: nothing that exists is overwritten."""
        refuse_foreign(out, ours=new)

    @abstractmethod
    def writing(self, export: Export) -> AbstractContextManager[Callable[[Tensor], Tensor]]:
        """The model as it was translated, as a function from uint8 pixels to logits; it is written when the block ends well."""
