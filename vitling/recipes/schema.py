"""Recipe: everything that defines an experiment, as frozen dataclasses. Load, save, override.

Where and how a run happens (device, precision, folders) is not here: those are flags, see `train.Settings`.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitling.errors import UserError


@dataclass(frozen=True)
class Augment:
    """What happens to a training image, drawn independently for each image."""

    crop: Literal["none", "pad", "resized"] = "pad"
    crop_padding: float = 0.125  # of the image side
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    hflip: float = 0.5
    vflip: float = 0.0
    randaugment: str = ""  # timm's notation, e.g. rand-m9-mstd0.5-inc1
    color_jitter: float = 0.0
    erase: float = 0.0
    repeats: int = 1  # repeated augmentation: views of each drawn image


@dataclass(frozen=True)
class Optim:
    """Optimiser and schedule. Times are in epochs."""

    name: str = "adamw"
    lr: float = 1e-3
    lr_per_batch: int = 0  # 512: lr is meant for a batch of 512 and scales linearly with batch_size; 0: lr as it stands
    weight_decay: float = 0.05
    decay_all: bool = False  # also biases, norms and what the model asks to leave out
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    schedule_per: Literal["step", "epoch"] = "step"
    schedule_lag_epochs: int = 0  # DHVT's release trains its first two epochs at the first epoch's rate
    warmup_epochs: float = 5.0
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    cooldown_epochs: int = 0  # the last ones of `epochs`, at min_lr
    decay_epochs: float = 30.0  # schedule=step
    decay_rate: float = 0.1
    clip_grad: float = 0.0
    layer_decay: float = 1.0
    lr_factors: dict[str, float] = field(default_factory=dict)  # name pattern -> factor, e.g. {"blocks.*": 0.01}
    sam_rho: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """One experiment. Every default is a value that trains."""

    # what learns
    model: str = "vit_tiny_patch16_224"
    model_args: dict[str, Any] = field(default_factory=dict)
    method: str = "supervised"
    method_args: dict[str, Any] = field(default_factory=dict)
    init: str = ""  # a run, a weights file or a hub name to start from
    freeze: tuple[
        str, ...
    ] = ()  # name patterns of parameters that stay as they are; "backbone" is all but the classifiers
    # from what
    data: str = "digits"
    img_size: int | tuple[int, int] | None = None  # None: the size of the data, or the model's own for photographs
    train_size: int | tuple[int, int] | None = None  # training images are kept at this size before a resized crop
    channels: int | None = None
    fit: Literal["resize", "pad", "crop"] = "resize"
    mean: tuple[float, ...] | None = None  # None: of the training split
    std: tuple[float, ...] | None = None
    fraction: float = 1.0
    fraction_rule: Literal["vitling", "bootstrapping"] = "vitling"
    val_fraction: float = 0.1  # carved from train where the data brings no validation split
    folds: int = 0  # k-fold: the validation split is fold number `fold` of `folds`
    fold: int = 0
    balance: Literal["none", "sampler", "loss"] = "none"
    on_bad_image: Literal["error", "skip"] = "error"
    # how
    epochs: int = 100
    batch_size: int = 128  # images per optimiser step, over all processes
    accumulate: int = 1  # in so many parts
    augment: Augment = field(default_factory=Augment)
    optim: Optim = field(default_factory=Optim)
    ema_decay: float = 0.0
    ema_warmup: bool = True
    patience_epochs: int = 0  # stop when the validation accuracy has not risen for so long; 0: never
    validate_every: int = 1
    compile: Literal["off", "on", "auto"] = "off"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "validate_every"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "an integer of at least 1")
        for name in ("seed", "patience_epochs", "folds", "fold"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "an integer of at least 0")
        for name in ("weight_decay", "warmup_epochs", "min_lr", "cooldown_epochs", "clip_grad", "sam_rho"):
            _check(f"optim.{name}", getattr(self.optim, name), getattr(self.optim, name) >= 0, "at least 0")
        for name in ("img_size", "train_size"):
            size = getattr(self, name)
            sides = size if isinstance(size, tuple) else (size,)
            _check(name, size, size is None or min(sides) > 0, "more than 0")
        if self.optim.cooldown_epochs >= self.epochs:
            raise UserError(
                f"optim.cooldown_epochs={self.optim.cooldown_epochs} leaves nothing of epochs={self.epochs}."
            )
        if self.fold and not self.folds:
            raise UserError(f"fold={self.fold} needs folds= too, such as folds=5.")
        _check("fraction", self.fraction, 0 < self.fraction <= 1, "more than 0 and at most 1")
        _check("val_fraction", self.val_fraction, 0 < self.val_fraction < 1, "between 0 and 1")
        _check("ema_decay", self.ema_decay, 0 <= self.ema_decay < 1, "at least 0 and less than 1")
        _check("optim.lr", self.optim.lr, self.optim.lr > 0, "more than 0")
        _check("augment.repeats", self.augment.repeats, self.augment.repeats >= 1, "at least 1")
        if self.folds:
            _check("folds", self.folds, self.folds >= 2, "0 (off) or at least 2")
            _check("fold", self.fold, 0 <= self.fold < self.folds, f"0 to {self.folds - 1}, since folds={self.folds}")
        spare = self.epochs - self.optim.cooldown_epochs
        if self.optim.warmup_epochs and self.optim.warmup_epochs >= spare:
            raise UserError(
                f"optim.warmup_epochs={self.optim.warmup_epochs:g} leaves nothing of epochs={self.epochs}; "
                "lower warmup_epochs or raise epochs."
            )


def _check(key: str, value: Any, holds: bool, allowed: str) -> None:
    if not holds:
        raise UserError(f"{key}={value} is out of range; it must be {allowed}.")


def scale_epochs(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe with another number of epochs, and the parts of its schedule in proportion."""
    share, optim = epochs / recipe.epochs, recipe.optim
    optim = replace(
        optim,
        warmup_epochs=round(share * optim.warmup_epochs, 3),
        decay_epochs=max(round(share * optim.decay_epochs, 3), 1e-3),
        cooldown_epochs=int(share * optim.cooldown_epochs),
    )
    return replace(recipe, epochs=epochs, optim=optim)
