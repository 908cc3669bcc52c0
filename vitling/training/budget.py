"""Budget arithmetic: how long a run takes at a measured speed, and how many epochs a time allows."""

from dataclasses import dataclass, replace

from vitling.errors import UserError
from vitling.methods import find_method
from vitling.recipes import Recipe, scale_epochs

MEASURED_STEPS = 12  # of a run with a budget or compile=auto
MEASURED_SHARE = 0.1  # of a budget, at most, for measuring
FIRST_RUN_SHARE = 0.25  # of a budget, for a run that the method trains first
USED_SHARE = 0.92  # of a budget; the rest is for what the first steps do not show
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
        tree = dict(tree)
        first = tree.pop("first", None) or tree.pop("preparing", None)  # its name before 0.2
        return cls(**tree, first=first and cls.from_dict(first))


def fit_to_budget(recipe: Recipe, speed: Speed, seconds: float, fraction: float = 1.0) -> Recipe:
    """The recipe with as many epochs as the time allows, its schedule in proportion; a first run gets its share of it."""
    left, first_epochs = seconds * USED_SHARE - speed.fixed, None
    if first := speed.first:
        first_epoch = first.epoch_seconds(fraction)
        first_epochs = max(1, int((seconds * FIRST_RUN_SHARE - first.fixed) / first_epoch))
        left -= first.fixed + first_epochs * first_epoch
    epochs = min(int(left / speed.epoch_seconds(fraction)), MOST_EPOCHS)
    if epochs < 1:
        raise UserError(
            f"an epoch of {recipe.model} takes about {speed.epoch_seconds(fraction):.1f} s here, and setup leaves "
            f"{max(left, 0):.1f} s of the budget of {seconds:g} s; raise the budget, lower fraction= or choose a smaller model."
        )
    recipe = scale_epochs(recipe, epochs)
    return recipe if first_epochs is None else find_method(recipe.method).with_first_epochs(recipe, first_epochs)
