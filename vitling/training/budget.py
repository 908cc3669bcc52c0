"""Budget arithmetic: how long a run takes at a measured speed, how many epochs a time allows, and keeping to it on the way."""

import math
from dataclasses import dataclass, replace

from vitling.errors import UserError
from vitling.methods import find_method
from vitling.recipes import Recipe, scale_epochs
from vitling.runs.records import SpeedRecord
from vitling.training.course import Course
from vitling.validation.values import check

MEASURED_STEPS = 12  # of a run with a budget or compile=auto
MEASURED_SHARE = 0.03  # of a budget, at most, for measuring
FIRST_RUN_SHARE = 0.25  # of a budget, for a run that the method trains first
USED_SHARE = (
    0.92  # of a study's budget: its runs keep their epochs, so the rest is for what the first steps do not show
)
LOOK_SHARE = 0.02  # of a budget, between two looks at the clock
LEAST_STEPS = 20  # that a budget must allow
SPARE = 1.2  # times what is needed, of a budget that would do
MOST_EPOCHS = 100_000


@dataclass(frozen=True)
class Speed:
    """Seconds that training a recipe takes, part by part."""

    fixed: float  # before the first step: reading, building, writing label maps
    step: float
    validation: float
    steps_per_epoch: int
    validate_every: int
    threads: int
    first: "Speed | None" = None  # of the run that the method trains first

    def epoch_seconds(self, fraction: float = 1.0) -> float:
        """An epoch on a part of the training images: fewer steps, the same validation."""
        return max(1, int(fraction * self.steps_per_epoch)) * self.step + self.validation / self.validate_every

    def run_seconds(self, recipe: Recipe) -> float:
        """A whole run, and the one that its method trains first."""
        seconds = self.fixed + recipe.epochs * self.epoch_seconds()
        first = find_method(recipe.method).first_run(recipe)
        if self.first and first:
            seconds += self.first.run_seconds(first)
        return seconds

    def scaled(self, factor: float) -> "Speed":
        """The same on a machine that takes `factor` times as long."""
        times = {name: factor * getattr(self, name) for name in ("fixed", "step", "validation")}
        return replace(self, **times, first=self.first and self.first.scaled(factor))

    @classmethod
    def from_dict(cls, tree: dict) -> "Speed":
        """The speed that `dataclasses.asdict` made this of."""
        check(tree, SpeedRecord, "speed")
        first = tree.get("first") or tree.get("preparing")  # its name before 0.2
        known = {name: tree[name] for name in SpeedRecord.__required_keys__}
        return cls(**known, first=first and cls.from_dict(first))


def fit_to_budget(
    recipe: Recipe, speed: Speed, seconds: float, fraction: float = 1.0, used_share: float = USED_SHARE
) -> Recipe:
    """The recipe with as many epochs as the time allows, its schedule in proportion; a first run gets its share of it."""
    left, first_epochs = seconds * used_share - speed.fixed, None
    if first := speed.first:
        first_epoch = first.epoch_seconds(fraction)
        first_epochs = max(1, int((seconds * FIRST_RUN_SHARE - first.fixed) / first_epoch))
        left -= first.fixed + first_epochs * first_epoch
    epochs = min(int(left / speed.epoch_seconds(fraction)), MOST_EPOCHS)
    if epochs < 1:
        needed = seconds + (speed.epoch_seconds(fraction) - left) / used_share
        raise UserError(
            f"an epoch of {recipe.model} takes about {speed.epoch_seconds(fraction):.1f} s here, and setup leaves "
            f"{max(left, 0):.1f} s of the budget of {seconds:g} s; a budget of {write_budget(needed)} would do, or lower fraction=, or "
            "choose a smaller model."
        )
    recipe = scale_epochs(recipe, epochs)
    return recipe if first_epochs is None else find_method(recipe.method).with_first_epochs(recipe, first_epochs)


def steps_within(speed: Speed, seconds: float) -> int:
    """Steps, with their validations, that a time allows."""
    return int(seconds / seconds_of(speed, 1))


def seconds_of(speed: Speed, steps: int) -> float:
    """The time of so many steps, with their validations."""
    return steps * (speed.step + speed.validation / (speed.steps_per_epoch * speed.validate_every))


def write_budget(seconds: float) -> str:
    """A budget of at least so long, with some to spare, as one would write it: 40s, 15m, 2h."""
    seconds *= SPARE
    for unit, length, step in (("s", 1, 5), ("m", 60, 1), ("h", 3600, 1)):
        if seconds <= 120 * length or unit == "h":
            return f"{step * math.ceil(seconds / length / step)}{unit}"
    raise AssertionError


class BudgetTooShort(UserError):
    """A budget that leaves no room for a few steps, and one that would do."""

    def __init__(
        self,
        model: str,
        speed: Speed,
        *,
        left: float,
        budget: float,
        share: float = 1.0,
        part: str = "trained first",
        kept: str = "",
    ):
        """`share` of the whole budget is `budget`: what a run gets that is only a `part` of what is trained. `kept` is said behind it."""
        self.model, self.speed, self.left, self.budget, self.kept = model, speed, left, budget, kept
        needed = (budget - left + seconds_of(speed, LEAST_STEPS)) / share
        first = "" if share == 1 else f", {part} in {100 * share:.0f} % of the budget,"
        whole = f"the budget of {budget:g} s" if share == 1 else f"these {budget:g} s"
        super().__init__(
            f"a step of {model}{first} takes about {speed.step:.2g} s here, and setup leaves {max(left, 0):.1f} s of {whole}, "
            f"less than {LEAST_STEPS} steps; a budget of {write_budget(needed)} would do, or lower batch_size, or choose a smaller model. "
            f"{kept}".rstrip()
        )

    def of_whole(self, share: float, part: str = "trained first") -> "BudgetTooShort":
        """The same, said of the whole budget, of which this is a share."""
        own = (self.model, self.speed)
        return BudgetTooShort(*own, left=self.left, budget=self.budget, share=share, part=part, kept=self.kept)


class Timekeeper:
    """Keeps a run within its budget: looks at the clock every so many steps, and moves the end of the course.

    Every look is recorded, whether it moved the end or not. A run that was killed after its last checkpoint repeats the
    recorded ones, so it is the same run up to the last look of the process that was killed.

    `reserve` are seconds behind `seconds`, for what follows the training: where steps have become slower, that will be slower too.
    """

    def __init__(
        self,
        course: Course,
        speed: Speed,
        seconds: float,
        *,
        every: int,
        recorded: list[dict],
        reserve: float = 0.0,
    ):
        self.course, self.speed, self.seconds, self.every, self.reserve = course, speed, seconds, every, reserve
        self.recorded = {look["step"]: look["end"] for look in recorded}
        self.last: tuple[int, float] | None = None  # step and time of this process's last look
        self.validating = 0.0  # seconds, since then
        self.rare_share = 0.0  # of a validation, for what only some of them do

    @classmethod
    def begin(cls, course: Course, speed: Speed, seconds: float, reserve: float = 0.0) -> "Timekeeper":
        every = max(1, round(LOOK_SHARE * seconds / speed.step))
        return cls(course, speed, seconds, every=every, recorded=[], reserve=reserve)

    def is_due(self, step: int) -> bool:
        return step < self.course.end and (step - self.course.start) % self.every == 0

    def on_validation(self, seconds: float, rare_seconds: float = 0.0, every: int = 1) -> None:
        """`rare_seconds` of it went into what only every so many validations do; the others are expected to take their share of that."""
        self.validating += seconds
        if rare_seconds:
            self.rare_share = rare_seconds / every
        self.speed = replace(self.speed, validation=seconds - rare_seconds + self.rare_share)

    def look(self, step: int, seconds: float) -> dict | None:
        """Move the end to where the budget will be used up, `seconds` of it being gone; what to record of that, if it is new.

        The first look of a process only starts its stopwatch.
        """
        if self.last is None or step <= max(self.recorded, default=-1):
            known, end = True, self.recorded.get(step, self.course.end)
        else:
            known, end = False, self._affordable_end(step, seconds, *self.last)
        self.last, self.validating = (step, seconds), 0.0
        if end != self.course.end:
            self.course.move_end(step, end)
        return None if known else {"step": step, "end": end, "seconds": round(seconds, 3)}

    def _affordable_end(self, step: int, seconds: float, last_step: int, last_seconds: float) -> int:
        pace = (seconds - last_seconds - self.validating) / (step - last_step)
        slower = max(0.0, pace / self.speed.step - 1)
        left = self.seconds - slower * self.reserve - self.speed.validation - seconds
        return step + max(1, steps_within(replace(self.speed, step=pace), left))
