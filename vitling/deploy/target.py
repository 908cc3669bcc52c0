"""Target: a form in which a run's model is exported. The whole interface, and what several of them need."""

import contextlib
import io
import logging
import os
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.evaluation.temperature import Calibration
from vitling.files import new, refuse_foreign, temporary_place
from vitling.runs.exported import ExportedModel
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
    suffix = ""  # how a file's name has to end; empty: it is a folder
    takes_raw_input = False  # whether its input can be normalised by the caller
    can_be_pushed = False
    exact = True  # whether its logits are the run's; else its accuracy is measured beside the run's
    next_step = "vitling predict {path} IMAGE..."

    def check_packages(self) -> None:  # noqa: B027  (most targets need no extra)
        """Refuse before the work what could not be finished."""

    def check_out(self, out: Path) -> None:
        """Refuse a path that may not be written: nothing that exists is overwritten."""
        if self.suffix and out.suffix != self.suffix:
            better = out / self.default_name if out.is_dir() else f"{out}{self.suffix}"
            raise UserError(f"out={out} must end in {self.suffix}, such as {better}.")
        if self.suffix or not out.is_dir() or any(out.iterdir()):  # an empty folder may be filled
            refuse_foreign(out, ours=new)

    @abstractmethod
    def writing(self, export: Export) -> AbstractContextManager[Callable[[Tensor], Tensor]]:
        """The model as it was translated, as a function from uint8 pixels to logits; it is written when the block ends well."""


class Deployed(nn.Module):
    """A model with what surrounds it in a file: normalisation and other views of the image before it; their mean, temperature and softmax, or sigmoids of several labels, behind it."""

    def __init__(self, model: nn.Module, metadata: ModelMetadata):
        super().__init__()
        self.model, self.metadata = model, metadata

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        if self.metadata.input == "pixels":
            image = self.metadata.preprocessing.normalize(image)
        logits = self.score(image)
        if self.metadata.labels == "several":
            return logits, (logits / (self.metadata.temperature or 1.0)).sigmoid()
        return logits, (logits / (self.metadata.temperature or 1.0)).softmax(dim=1)

    def score(self, image: Tensor) -> Tensor:
        """Logits of normalised images, the mean over their views."""
        return self.metadata.preprocessing.score(self.model, image)


def example_input(metadata: ModelMetadata) -> Tensor:
    """What such a file takes; of two images, because one would be taken for a constant."""
    seen = metadata.preprocessing
    kind = torch.uint8 if metadata.input == "pixels" else torch.float32
    return torch.zeros(2, seen.channels, *seen.size, dtype=kind)


def on_tensors(model: ExportedModel) -> Callable[[Tensor], Tensor]:
    """An exported file as a function of tensors."""
    return lambda pixels: torch.from_numpy(model(pixels.numpy()))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Exporters log much that a user cannot act on; what matters is checked afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends, and is removed when the block fails."""
    path = path.resolve()
    temporary = temporary_place(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
