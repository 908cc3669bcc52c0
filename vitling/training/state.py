"""State: where a run stands. What a checkpoint holds, and nothing that could be built again from the recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypedDict

import torch
from timm.utils import ModelEmaV3
from torch import nn

from vitling.errors import UserError, first_line
from vitling.runs.records import Amount, Loss
from vitling.runs.run import LOGS, Run, recipe_digest
from vitling.training.course import Course
from vitling.training.setup import Setup
from vitling.validation.documents import damaged
from vitling.validation.values import Count, Range, Seconds, Share, check


class CourseRecord(TypedDict):
    length: Count
    turns: list[tuple[Amount, Annotated[float, Range(0, 1e15)], Amount]]


class Checkpoint(TypedDict):
    """What a checkpoint holds."""

    recipe: str
    data: str
    method: Mapping
    optimizer: Mapping
    ema: Mapping | None
    scaler: Mapping | None
    step: Amount
    part: Count
    part_began: Seconds
    course: CourseRecord
    best: tuple[Share, Loss] | None
    best_epoch: Amount
    sums: dict[str, Annotated[float, Range(-1e15, 1e15)]]
    summed_steps: Amount
    seconds: Seconds
    compiled: bool | None
    threads: Annotated[int, Range(1, 100_000)]
    logs: dict[str, Amount]
    log_digests: dict[str, str]
    contents: dict[str, str]


def check_checkpoint(checkpoint: dict, run: Run) -> None:
    """Refuse a state that no run could have written."""
    source = str(run.last_checkpoint())
    try:
        check(checkpoint, Checkpoint, "")
    except UserError as error:
        raise damaged(source, str(error).rstrip(".")) from None
    turns, step = checkpoint["course"]["turns"], checkpoint["step"]
    if not turns or any(end <= begin for begin, _, end in turns) or not turns[0][0] <= step <= turns[-1][2]:
        raise damaged(source, f"step {step} is not on its course")
    if unknown := set(checkpoint["logs"]) - set(LOGS):
        raise damaged(source, f"it names logs that a run does not have, {', '.join(sorted(unknown))[:60]}")


@dataclass
class State:
    """Counters and sums of a run, and its averaged weights; the other weights live in the setup.

    Everything random in a step is a function of (seed, step), so a checkpoint holds no generator states.
    """

    course: Course  # where it is heading
    step: int = 0
    part: int = 1  # 2 and more where a finished run is trained further
    part_began: float = 0.0  # seconds of this run at the part's start
    best: tuple[float, float] | None = (
        None  # validation accuracy, and the negative loss that decides between equal ones
    )
    best_epoch: int = 0
    sums: dict[str, float] = field(default_factory=dict)  # of the losses since the last validation
    summed_steps: int = 0
    seconds_before: float = 0.0  # of earlier processes that trained this run
    compiled: bool | None = None  # None: not decided yet
    ema: ModelEmaV3 | None = None

    @classmethod
    def begin(cls, setup: Setup) -> "State":
        recipe = setup.recipe
        average = (
            ModelEmaV3(setup.model, decay=recipe.ema_decay, use_warmup=recipe.ema_warmup) if recipe.ema_decay else None
        )
        course = Course.straight(setup.total_steps)
        return cls(course, compiled={"off": False, "on": True, "auto": None}[recipe.compile], ema=average)

    def begin_part(self, part: int) -> None:
        """The run was finished and is trained further."""
        self.part, self.part_began = part, self.seconds_before
        self.sums, self.summed_steps = {}, 0

    def validated_model(self, setup: Setup) -> nn.Module:
        """What is validated and saved: the averaged weights where there are some."""
        return self.ema.module if self.ema else setup.model

    def to_checkpoint(self, setup: Setup, run: Run, seconds: float) -> dict:
        scaler = setup.accelerator.scaler
        return {
            "recipe": recipe_digest(setup.recipe),
            "data": setup.data.dataset.fingerprint,
            "contents": setup.data.contents,
            "method": setup.method.state_dict(),
            "optimizer": setup.optimizer.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema else None,
            "scaler": scaler.state_dict() if scaler else None,
            "step": self.step,
            "part": self.part,
            "part_began": self.part_began,
            "course": {"length": self.course.length, "turns": self.course.turns},
            "best": self.best,
            "best_epoch": self.best_epoch,
            "sums": self.sums,
            "summed_steps": self.summed_steps,
            "seconds": seconds,
            "compiled": self.compiled,
            "threads": torch.get_num_threads(),
            "logs": run.sizes(),
            "log_digests": run.log_digests(run.sizes()),
        }

    def restore(self, checkpoint: dict, setup: Setup, threads: int | None) -> None:
        """Bring back the weights and counters of a checkpoint, and the number of threads unless another one is asked for."""
        try:
            setup.method.load_state_dict(checkpoint["method"])
            setup.optimizer.load_state_dict(checkpoint["optimizer"])
            if self.ema:
                self.ema.module.load_state_dict(checkpoint["ema"])
            if setup.accelerator.scaler and checkpoint["scaler"]:
                setup.accelerator.scaler.load_state_dict(checkpoint["scaler"])
        except Exception as error:  # torch raises whatever a foreign state makes it stumble over
            raise UserError(
                f"the checkpoint does not fit the model of its recipe: {first_line(error)} Train into another folder."
            ) from None
        self.step, self.best_epoch, self.sums = checkpoint["step"], checkpoint["best_epoch"], checkpoint["sums"]
        self.best = tuple(checkpoint["best"]) if checkpoint["best"] else None
        self.part, self.part_began, self.summed_steps = (
            checkpoint["part"],
            checkpoint["part_began"],
            checkpoint["summed_steps"],
        )
        self.course = Course(checkpoint["course"]["length"], [tuple(turn) for turn in checkpoint["course"]["turns"]])
        self.seconds_before, self.compiled = checkpoint["seconds"], checkpoint["compiled"]
        torch.set_num_threads(threads or checkpoint["threads"])  # another number would round differently
