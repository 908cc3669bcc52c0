"""Recipe: everything that defines an experiment, as frozen dataclasses. Load, save, override.

The annotation of a field is its type and its range, and is checked whenever a recipe is made. Where and how a run happens (device,
precision, folders) is not here: those are flags, see `train.Settings`.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from vitling.errors import UserError
from vitling.validation.model_arguments import check_model_args
from vitling.validation.values import (
    Ascending,
    AspectRatio,
    Channels,
    Count,
    CountOrNone,
    Momentum,
    PartOf,
    Range,
    Rate,
    Seed,
    Share,
    Side,
    check_fields,
)

Epochs = Annotated[float, Range(0, 10_000_000)]
Size = Side | tuple[Side, Side]


@dataclass(frozen=True)
class Augment:
    """What happens to a training image, drawn independently for each image."""

    crop: Literal["none", "pad", "resized"] = "pad"
    crop_padding: Share = 0.125  # of the image side
    crop_padding_mode: Literal["zeros", "reflect"] = "zeros"  # what lies there: black, or the image's own reflection
    crop_scale: Annotated[tuple[PartOf, PartOf], Ascending()] = (0.08, 1.0)
    crop_ratio: Annotated[tuple[AspectRatio, AspectRatio], Ascending()] = (0.75, 4 / 3)
    # crop=pad: at the size of the model, or at the image's own, which is enlarged afterwards
    crop_at: Literal["img_size", "original"] = "img_size"
    crop_when: Literal["first", "last"] = "first"  # before flips and RandAugment, or after them
    interpolation: Literal["bilinear", "bicubic", "random"] = "random"  # of crops, rotations, shears and shifts
    hflip: Share = 0.5
    vflip: Share = 0.0
    randaugment: str = ""  # timm's notation, e.g. rand-m9-mstd0.5-inc1
    color_jitter: Share = 0.0
    erase: Share = 0.0
    cutout: Share = 0.0  # side of a grey square over each image, as a share of the image's
    repeats: Annotated[int, Range(1, 100)] = 1  # repeated augmentation: views of each drawn image

    def __post_init__(self) -> None:
        check_fields(self, "augment.")


@dataclass(frozen=True)
class Optim:
    """Optimiser and schedule. Times are in epochs."""

    name: str = "adamw"
    lr: Annotated[float, Range(above=0, high=1000)] = 1e-3
    lr_per_batch: CountOrNone = (
        0  # 512: lr is meant for a batch of 512 and scales linearly with batch_size; 0: lr as it stands
    )
    weight_decay: Rate = 0.05
    decay_all: bool = False  # also biases, norms and what the model asks to leave out
    momentum: Momentum = 0.9
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    eps: Share = 1e-8
    schedule: Literal["cosine", "linear", "step", "constant"] = "cosine"
    schedule_per: Literal["step", "epoch"] = "step"
    schedule_lag_epochs: CountOrNone = 0  # DHVT's release trains its first two epochs at the first epoch's rate
    warmup_epochs: Epochs = 5.0
    warmup_lr: Rate = 1e-6
    min_lr: Rate = 1e-5
    cooldown_epochs: CountOrNone = 0  # the last ones of `epochs`, at min_lr
    decay_epochs: Annotated[float, Range(above=0, high=10_000_000)] = 30.0  # schedule=step
    decay_rate: PartOf = 0.1
    clip_grad: Annotated[float, Range(0, 1e9)] = 0.0
    layer_decay: PartOf = 1.0
    lr_factors: dict[str, Rate] = field(default_factory=dict)  # name pattern -> factor, e.g. {"blocks.*": 0.01}
    sam_rho: Annotated[float, Range(0, 100)] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "optim.")


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
    unlabelled: str = ""  # images to learn from first, without labels; the weights are then where this begins
    unlabelled_method: str = "masked_images"  # how: masked_images or dino
    unlabelled_time: Annotated[float, Range(above=0, below=1)] = (
        0.25  # their share of a budget, or of the images shown: docs/pretraining.md
    )
    unlabelled_test: bool = False  # whether images that are tested on may be among them
    # from what
    data: str = "digits"
    img_size: Size | None = None  # None: the size of the data, or the model's own for photographs
    # training images are fitted to this size before they are cropped; None: resized crops are cut from the picture itself
    train_size: Size | None = None
    channels: Channels | None = None
    fit: Literal["resize", "pad", "crop"] = "resize"
    test_crop: PartOf | None = None  # 0.875: test images are fitted to 256 pixels for 224, and the centre is cut out
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"  # of fitting
    test_mirror: bool = False  # predictions are the mean of an image's and its mirror image's, in twice the time
    test_crops: bool = False  # and of its four corners, in five times the time
    test_shifts: bool = False  # and of the image moved by a pixel or more, twice, in three times the time
    mean: tuple[Share, ...] | None = None  # of pixels from 0 to 1; None: of the training split
    std: tuple[PartOf, ...] | None = None
    fraction: PartOf = 1.0
    # vitling: of what is left when validation has its part; bootstrapping: of all, before validation gets a part of that
    fraction_rule: Literal["vitling", "bootstrapping"] = "vitling"
    # carved from train where the data brings no validation split
    val_fraction: Annotated[float, Range(above=0, below=1)] = 0.1
    # val: the data's val split is the test, and validation is carved from train
    test_split: Literal["test", "val"] = "test"
    folds: CountOrNone = 0  # k-fold: the validation split is fold number `fold` of `folds`
    fold: CountOrNone = 0
    # images that belong together, such as those of one patient, are on one side of every split: the column or array that says which, or
    # regex:PATTERN on file names
    group: str = ""
    # what the labels are: a class per image, several labels per image, ordered grades, numbers; auto: classes, or what alone the data can mean
    labels: Literal["auto", "classes", "several", "grades", "numbers"] = "auto"
    balance: Literal["none", "sampler", "loss"] = "none"
    shuffle_buffer: Count | None = None  # images of a stream that are drawn from; None: 8,192
    on_bad_image: Literal["error", "skip"] = "error"
    # how
    epochs: Count = 100
    batch_size: Count = 128  # images per optimiser step, over all processes
    accumulate: Count = 1  # in so many parts
    augment: Augment = field(default_factory=Augment)
    optim: Optim = field(default_factory=Optim)
    ema_decay: Momentum = 0.0
    ema_warmup: bool = True
    soup_epochs: CountOrNone = (
        0  # the mean of the weights after each of the last so many epochs is validated and saved, once they come
    )
    patience_epochs: CountOrNone = 0  # stop when the validation accuracy has not risen for so long; 0: never
    validate_every: Count = 1
    # which epoch's weights are the run's: of the best validation accuracy, the last that is within one standard error of it, or the last
    keep: Literal["best", "last_good", "last"] = "best"
    compile: Literal["off", "on", "auto"] = "off"
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        check_model_args(self.model_args, own=False)  # what the data decides is refused where there is data
        self._check_folds()
        self._check_schedule()

    def _check_folds(self) -> None:
        if self.fold and not self.folds:
            raise UserError(f"fold={self.fold} needs folds= too, such as folds=5.")
        if self.folds == 1:
            raise UserError("folds=1 is out of range; it must be 0 (off) or at least 2.")
        if self.folds and self.fold >= self.folds:
            raise UserError(
                f"fold={self.fold} is out of range; it must be 0 to {self.folds - 1}, since folds={self.folds}."
            )

    def _check_schedule(self) -> None:
        optim, spare = self.optim, self.epochs - self.optim.cooldown_epochs
        if spare < 1:
            raise UserError(f"optim.cooldown_epochs={optim.cooldown_epochs} leaves nothing of epochs={self.epochs}.")
        if optim.warmup_epochs and optim.warmup_epochs >= spare:
            raise UserError(
                f"optim.warmup_epochs={optim.warmup_epochs:g} leaves nothing of epochs={self.epochs}; "
                "lower warmup_epochs or raise epochs."
            )


# A recipe that learns from labels alone.
NO_FIRST_STAGE: dict[str, Any] = {f.name: f.default for f in fields(Recipe) if f.name.startswith("unlabelled")}


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
