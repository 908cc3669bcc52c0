"""State: where a run stands. What a checkpoint holds, and nothing that could be built again from the recipe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypedDict

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from vitling.errors import UserError, first_line
from vitling.models.shards import gather, split_like
from vitling.runs.asked import recipe_digest
from vitling.runs.records import Amount, Loss
from vitling.runs.run import LOGS, Run
from vitling.training.course import Course
from vitling.training.setup import Setup
from vitling.validation.documents import damaged
from vitling.validation.values import Count, Range, Seconds, Share, check


class CourseRecord(TypedDict):
    length: Count
    turns: list[tuple[Amount, Annotated[float, Range(0, 1e15)], Amount]]


class CheckpointBefore(TypedDict):
    """What a checkpoint has held since 0.2."""

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
    highest: Share
    sums: dict[str, Annotated[float, Range(-1e15, 1e15)]]
    summed_steps: Amount
    seconds: Seconds
    compiled: bool | None
    threads: Annotated[int, Range(1, 100_000)]
    logs: dict[str, Amount]
    log_digests: dict[str, str]
    contents: dict[str, str]
    sharded: bool


class Checkpoint(CheckpointBefore, total=False):
    """What a checkpoint holds."""

    souped: Amount
    best_part: Count


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
    best: tuple[float, float] | None = None  # validation score, and the negative loss that decides between equal ones
    best_epoch: int = 0
    best_part: int = 1
    highest: float = 0.0  # validation score so far; above that of `best` where a later epoch was as good
    sums: dict[str, float] = field(default_factory=dict)  # of the losses since the last validation
    summed_steps: int = 0
    seconds_before: float = 0.0  # of earlier processes that trained this run
    compiled: bool | None = None  # None: not decided yet
    ema: ModelEmaV3 | None = None
    souped: int = 0  # epochs in the mean of the last ones

    @classmethod
    def begin(cls, setup: Setup) -> "State":
        compiled = {"off": False, "on": True, "auto": False if setup.sharded else None}[setup.recipe.compile]
        return cls(Course.straight(setup.total_steps), compiled=compiled, ema=setup.average)

    def begin_part(self, part: int) -> None:
        """The run was finished and is trained further."""
        self.part, self.part_began = part, self.seconds_before
        self.sums, self.summed_steps, self.souped = {}, 0, 0

    def validated_model(self, setup: Setup) -> nn.Module:
        """What is validated and saved: the averaged weights where there are some."""
        averaged = self.ema and (setup.recipe.ema_decay or self.souped)
        return self.ema.module if self.ema and averaged else setup.model

    def average_step(self, setup: Setup) -> None:
        """Bring the weights of a step into the running mean."""
        if self.ema and setup.recipe.ema_decay:
            self.ema.update(setup.model, self.step)

    def average_epoch(self, setup: Setup) -> None:
        """Bring the weights of an epoch into the soup where it is one of the last; each counts alike, batch norms' statistics too."""
        left = (self.course.end - self.step) / setup.steps_per_epoch
        if self.ema and left < setup.recipe.soup_epochs:
            with torch.no_grad():
                self.ema.apply_update_(setup.model, self.souped / (self.souped + 1))
            self.souped += 1

    def accept(
        self, value: float, loss: float, epoch: int, *, images: float, keep: str, error: float | None = None
    ) -> bool:
        """Whether the weights of this validation, on so many images, are the run's from now on.

        By `keep=last_good` they are unless an earlier epoch was better by more than one standard error, the rule of Breiman et
        al. (1984): on few images the highest of many accuracies is a lucky one, and a later epoch has a lower rate. Those of an earlier part
        of the run stay unless these are as good. `error` is that of a score that is no share of the images, as it was estimated for this epoch.
        """
        # A score may be below 0, unlike an accuracy.
        self.highest, score = value if self.best is None else max(self.highest, value), (value, -loss)
        if keep == "last_good":
            share = math.sqrt(self.highest * (1 - self.highest) / images) if error is None else error
            accepted = value >= self.highest - share
            if self.best is not None and self.best_part < self.part:
                accepted = value >= self.best[0]
        else:
            accepted = keep == "last" or self.best is None or score > self.best
        if accepted:
            self.best, self.best_epoch, self.best_part = score, epoch, self.part
        return accepted

    def weights(self, setup: Setup) -> dict:
        """What is learned, whole. Where the setup is sharded, all processes have to ask, and the main one gets it."""
        found = {
            "method": setup.method.state_dict(),
            "optimizer": setup.optimizer.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema else None,
        }
        return gather(found, setup.accelerator.is_main_process) if setup.sharded else found

    def to_checkpoint(self, setup: Setup, weights: dict, run: Run, seconds: float) -> dict:
        scaler = setup.accelerator.scaler
        return {
            **weights,
            "recipe": recipe_digest(setup.recipe),
            "data": setup.data.dataset.fingerprint,
            "contents": setup.data.contents,
            "scaler": scaler.state_dict() if scaler else None,
            "step": self.step,
            "part": self.part,
            "part_began": self.part_began,
            "course": {"length": self.course.length, "turns": self.course.turns},
            "best": self.best,
            "best_epoch": self.best_epoch,
            "best_part": self.best_part,
            "highest": self.highest,
            "sums": self.sums,
            "summed_steps": self.summed_steps,
            "souped": self.souped,
            "seconds": seconds,
            "compiled": self.compiled,
            "threads": torch.get_num_threads(),
            "logs": run.sizes(),
            "log_digests": run.log_digests(run.sizes()),
            "sharded": setup.sharded,
        }

    def restore(self, checkpoint: dict, setup: Setup, threads: int | None) -> None:
        """Bring back the weights and counters of a checkpoint, and the number of threads unless another one is asked for."""
        if checkpoint.get("sharded", False) != setup.sharded:
            how = "without" if setup.sharded else "with"
            raise UserError(f"this run was begun {how} shard; resume it {how} shard, or train into another folder.")
        try:
            _load(setup.method, checkpoint["method"])
            setup.optimizer.load_state_dict(_in_parts(checkpoint["optimizer"], setup.optimizer))
            if self.ema:
                _load(self.ema.module, checkpoint["ema"])
            if setup.accelerator.scaler and checkpoint["scaler"]:
                setup.accelerator.scaler.load_state_dict(checkpoint["scaler"])
        except Exception as error:  # torch raises whatever a foreign state makes it stumble over
            raise UserError(
                f"the checkpoint does not fit the model of its recipe: {first_line(error)} Train into another folder."
            ) from None
        self.step, self.best_epoch, self.sums = checkpoint["step"], checkpoint["best_epoch"], checkpoint["sums"]
        self.best = tuple(checkpoint["best"]) if checkpoint["best"] else None
        self.highest, self.best_part = checkpoint["highest"], checkpoint.get("best_part", 1)
        self.souped = checkpoint.get("souped", 0)  # 0.2 knew no soup
        self.part, self.part_began, self.summed_steps = (
            checkpoint["part"],
            checkpoint["part_began"],
            checkpoint["summed_steps"],
        )
        self.course = Course(checkpoint["course"]["length"], [tuple(turn) for turn in checkpoint["course"]["turns"]])
        self.seconds_before, self.compiled = checkpoint["seconds"], checkpoint["compiled"]
        torch.set_num_threads(threads or checkpoint["threads"])  # another number would round differently


def _load(module: nn.Module, state: Mapping) -> None:
    """Load whole tensors, of which a sharded module takes its parts."""
    own = module.state_dict()
    module.load_state_dict({key: split_like(value, own.get(key, value)) for key, value in state.items()})


def _in_parts(state: Mapping, optimizer: torch.optim.Optimizer) -> dict:
    """An optimiser's state with each tensor of a parameter's shape divided as that parameter is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def divide(value: object, parameter: Tensor) -> object:
        fits = isinstance(value, Tensor) and value.shape == parameter.shape
        return split_like(value, parameter) if fits else value

    divided = {
        number: {name: divide(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": divided}
