"""Where and how a run happens."""

import time
from dataclasses import dataclass, field

from vitling.data.pipeline.reading import Reading
from vitling.errors import UserError
from vitling.runs.device import default_device


@dataclass(frozen=True)
class Settings:
    """Where and how a run happens; nothing here defines the experiment."""

    precision: str = "no"  # no (float32) | bf16 | fp16
    threads: int | None = None  # None: one or all, whichever is faster for this model
    budget_seconds: float | None = None
    reserve_seconds: float = 0.0  # of the budget, for what the caller does with the trained run
    began: float = field(default_factory=time.monotonic)  # what wall time and budget count from
    checkpoint_seconds: float = 60.0
    trackers: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)


def check_precision(precision: str) -> None:
    if precision not in ("no", "bf16", "fp16"):
        raise UserError(f"precision={precision} is not one of no, bf16, fp16.")
    if precision == "fp16" and default_device().type == "cpu":
        raise UserError("precision=fp16 needs a GPU; on a CPU use bf16 or no.")
