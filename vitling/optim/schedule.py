"""The learning rate as a function of the step."""

import torch
from timm.scheduler import CosineLRScheduler, PolyLRScheduler, StepLRScheduler

from vitling.errors import UserError
from vitling.recipes import Recipe


def peak_lr(recipe: Recipe) -> float:
    """The learning rate in force after the warm-up."""
    scale = recipe.batch_size / recipe.optim.lr_per_batch if recipe.optim.lr_per_batch else 1.0
    return recipe.optim.lr * scale


class Schedule:
    """The learning rate as a pure function of the step, so that a resumed run needs no schedule state."""

    def __init__(self, optimizer: torch.optim.Optimizer, recipe: Recipe, steps_per_epoch: int):
        optim = recipe.optim
        self.per_epoch = optim.schedule_per == "epoch"
        self.lag, self.steps_per_epoch = optim.schedule_lag_epochs, steps_per_epoch
        unit = 1 if self.per_epoch else steps_per_epoch
        timing = dict(warmup_t=optim.warmup_epochs * unit, warmup_lr_init=optim.warmup_lr, t_in_epochs=False)
        if optim.schedule in ("cosine", "linear"):
            if peak_lr(recipe) < optim.min_lr:
                raise UserError(
                    f"the learning rate {peak_lr(recipe):g} is below optim.min_lr={optim.min_lr:g}, so it would rise; "
                    "lower optim.min_lr."
                )
            span = (recipe.epochs - optim.cooldown_epochs) * unit
            timing["lr_min"] = optim.min_lr
            if optim.schedule == "cosine":
                self.scheduler = CosineLRScheduler(optimizer, t_initial=span, **timing)
            else:  # a triangle: up in the warm-up, down in what is left
                down = span - timing["warmup_t"]
                self.scheduler = PolyLRScheduler(optimizer, t_initial=down, power=1.0, warmup_prefix=True, **timing)
        else:
            rate = optim.decay_rate if optim.schedule == "step" else 1.0
            self.scheduler = StepLRScheduler(optimizer, decay_t=optim.decay_epochs * unit, decay_rate=rate, **timing)

    def set(self, position: float) -> None:
        """Give every group the learning rate of this position, in steps; it lies between two where a budget moved the end."""
        t = max(0, int(position) // self.steps_per_epoch - self.lag) if self.per_epoch else position
        self.scheduler.step_update(t)
