"""Where and how a run happens."""

import time
from dataclasses import dataclass, field
from typing import Annotated

from vitling.data.pipeline.reading import Reading
from vitling.errors import UserError
from vitling.runs.device import default_device
from vitling.validation.values import Range, Seconds, Threads, check_fields


@dataclass(frozen=True)
class Settings:
    """Where and how a run happens; nothing here defines the experiment."""

    precision: str = ""  # no (float32) | bf16 | fp16; empty: what the run began or was planned with, else no
    shard: bool = False  # every process holds a part of the model: FSDP in place of DDP
    threads: Threads | None = None  # None: one or all, whichever is faster for this model
    budget_seconds: Annotated[float, Range(above=0, high=1e9)] | None = None
    reserve_seconds: Seconds = 0.0  # of the budget, for what the caller does with the trained run
    began: float = field(default_factory=time.monotonic)  # what wall time and budget count from
    checkpoint_seconds: Seconds = 60.0
    trackers: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)
    page: bool = True  # whether the trained run gets its page, report.html

    def __post_init__(self) -> None:
        check_fields(self)


def check_precision(precision: str) -> None:
    if precision not in ("", "no", "bf16", "fp16"):
        raise UserError(f"precision={precision} is not one of no, bf16, fp16.")
    if precision == "fp16" and default_device().type == "cpu":
        raise UserError("precision=fp16 needs a GPU; on a CPU use bf16 or no.")
