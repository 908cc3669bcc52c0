"""What the files of a run hold, as types with ranges: checked whenever one is read. Further keys may stand beside these."""

from numbers import Real
from typing import Annotated, Any, Literal, TypedDict

from vitling.data.bins import BinsRecord
from vitling.data.targets import Kind
from vitling.plugins import PluginRecord
from vitling.validation.values import Count, CountOrNone, Longest, Range, Seconds, Share

Positive = Annotated[float, Range(above=0, high=1e9)]
Amount = Annotated[int, Range(0, 10**15)]
Loss = Annotated[float, Range(-1e9, 1e9)]
Skill = Annotated[float, Range(high=1)]  # below 0: worse than always saying the training median
Distance = Annotated[float, Range(0, 1e300)]
Name = Annotated[str, Longest(4096)]


class DataRecord(TypedDict, total=False):
    name: Name
    fingerprint: str
    image_fingerprint: str  # the same without the groups
    train_images: Count
    val_images: Count
    skipped: list[str]
    splits: list[str]
    notes: list[str]
    train_groups: Count
    val_groups: Count
    with_test: bool  # images of the test split are learnt from, without labels
    val_known: str  # what it learnt from that had learnt from the validation images


class BestRecord(TypedDict, total=False):
    val_top1: Share
    val_map: Share
    val_skill: Skill
    val_mae: Distance
    val_loss: Loss
    epoch: Count


class AskedPlanRecord(TypedDict):
    data: str
    settings: list[str]


class AskedRecord(TypedDict, total=False):
    recipe: dict[str, Any]
    plan: AskedPlanRecord
    budget: str | None
    ensemble: str  # of how many folds, and whether it is distilled


class EnvironmentRecord(TypedDict, total=False):
    processor: str
    threads: Annotated[int, Range(1, 100_000)]
    command: str


class RunRecord(TypedDict, total=False):
    """run.json."""

    asked: AskedRecord
    status: Annotated[str, Longest(40)]
    stopped: str
    unlabelled: bool  # learnt without labels, so there is no classifier
    first_stage: dict[str, Any]  # what was learnt from before the labels
    seen_tests: CountOrNone  # images of the test split that were learnt from without labels
    preparing: dict[str, Any] | None  # the recipe of a run whose first stage is under way
    class_names: list[Name]
    labels: Kind  # absent: classes
    bins: BinsRecord | None  # of numbers
    preprocessing: dict[str, Any]  # checked where it is used: its keys were renamed once
    data: DataRecord
    parameters: Amount
    environment: EnvironmentRecord
    precision: Literal["no", "bf16", "fp16"]
    processes: Annotated[int, Range(1, 1_000_000)]
    sharded: bool
    wall_seconds: Seconds
    best: BestRecord
    epochs_trained: Annotated[float, Range(0, 10_000_000)]
    steps_trained: Amount
    test_looks: CountOrNone
    members: Annotated[int, Range(1, 1000)]
    member_recipe: dict[str, Any]
    more_seconds: list[Positive]
    parts: list[dict[str, Any]]
    plugins: list[PluginRecord]


class _Measured(TypedDict):
    epoch: Count
    val_loss: Loss


class _Validation(_Measured):
    val_top1: Share


class UnlabelledRecord(_Measured, total=False):
    """A line of metrics.jsonl of a run that learns without labels."""

    part: Count
    step: Amount
    lr: Annotated[float, Range(0, 1e9)]
    train_loss: Loss
    val_neighbours_top1: Share


class ValidationRecord(_Validation, total=False):
    """A line of metrics.jsonl."""

    part: Count
    step: Amount
    lr: Annotated[float, Range(0, 1e9)]
    train_loss: Loss


class _Several(_Measured):
    val_map: Share


class SeveralRecord(_Several, total=False):
    """The same of a run that learns several labels per image."""

    part: Count
    step: Amount
    lr: Annotated[float, Range(0, 1e9)]
    train_loss: Loss


class _Numbers(_Measured):
    val_skill: Skill
    val_mae: Distance


class NumbersRecord(_Numbers, total=False):
    """The same of a run that learns numbers."""

    part: Count
    step: Amount
    lr: Annotated[float, Range(0, 1e9)]
    train_loss: Loss


VALIDATIONS: dict[Kind, Any] = {
    "classes": ValidationRecord,
    "grades": ValidationRecord,
    "several": SeveralRecord,
    "numbers": NumbersRecord,
}


class TimingRecord(TypedDict):
    """A line of timing.jsonl."""

    epoch: Count
    seconds: Seconds
    images_per_second: Annotated[float, Range(0, 1e12)]
    validation_seconds: Seconds


class GradientRecord(TypedDict):
    """A line of gradients.jsonl; a norm may be infinite where a loss scaler skipped the step."""

    step: Amount
    norms: dict[str, Real]


class BudgetRecord(TypedDict):
    """A line of budget.jsonl."""

    step: Amount
    end: Amount


class SpeedRecord(TypedDict):
    fixed: Seconds
    step: Positive
    validation: Seconds
    steps_per_epoch: Count
    validate_every: Count
    threads: Annotated[int, Range(0, 100_000)]


class _FirstBudget(BudgetRecord):
    part: Count
    every: Count
    seconds_allowed: Positive
    speed: SpeedRecord


class FirstBudgetRecord(_FirstBudget, total=False):
    """The line of budget.jsonl with which a part of a run begins."""

    reserve_seconds: Seconds  # not in runs of earlier versions


class CheckpointEntry(TypedDict):
    """An entry of checkpoint/manifest.json: a file in that folder, and nowhere else."""

    file: str
    step: Amount
    sha256: str
