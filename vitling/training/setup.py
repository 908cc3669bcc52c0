"""Setup: everything that a run is trained with, built from its recipe and its data. Nothing is trained or written here."""

from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.augment.augment import Augment
from vitling.data.augment.randaugment import RandAugment
from vitling.data.pipeline.loader import TrainLoader
from vitling.data.pipeline.training_data import TrainingData
from vitling.errors import UserError
from vitling.inputs.model_arguments import check_model_args
from vitling.methods import Method, check_method, create_method
from vitling.models import build_model, check_name
from vitling.models.weights import load_weights
from vitling.optim import SAM, check_patterns, create_optimizer, peak_lr
from vitling.recipes import Recipe, to_dict
from vitling.runs.opening import find_weights
from vitling.training.random_state import seed_everything
from vitling.training.settings import Settings, check_precision


@dataclass
class Setup:
    """The parts of a run, in the order in which they are built."""

    recipe: Recipe
    data: TrainingData
    accelerator: Accelerator
    method: Method
    prepared: nn.Module  # the method as accelerate wraps it: what a step calls
    optimizer: torch.optim.Optimizer
    loader: TrainLoader
    sam: SAM | None

    @property
    def model(self) -> nn.Module:
        return self.method.model

    @property
    def steps_per_epoch(self) -> int:
        return self.loader.steps_per_epoch

    @property
    def total_steps(self) -> int:
        return self.recipe.epochs * self.steps_per_epoch

    def change_recipe(self, recipe: Recipe) -> None:
        """Take another number of epochs, or parts of the schedule; what is built stays."""
        self.recipe = self.loader.recipe = recipe


def check_settings(recipe: Recipe) -> None:
    """Refuse, before any data is read, what the recipe alone shows to be impossible beyond its ranges: names, and arguments of methods."""
    check_name(recipe.model)
    check_model_args(recipe.model_args)
    check_method(recipe.method, recipe.method_args)
    if recipe.augment.randaugment:
        RandAugment.parse(recipe.augment.randaugment)


def build_setup(
    recipe: Recipe,
    data: TrainingData,
    accelerator: Accelerator,
    *,
    method_args: dict,
    load_init: bool,
    callback: Callback,
) -> Setup:
    """Model, method, optimiser and batches. `method_args` are the recipe's after the method has prepared itself."""
    seed_everything(recipe.seed, "init")
    model, loaded = create_model(recipe, data, load_init)
    if loaded:
        callback.log(loaded)
    classes = len(data.class_names)
    method = create_method(
        recipe.method,
        model,
        num_classes=classes,
        class_weights=class_weights(data.train.labels, classes) if recipe.balance == "loss" else None,
        **method_args,
    )
    if accelerator.num_processes > 1 and accelerator.device.type != "cpu":
        method = nn.SyncBatchNorm.convert_sync_batchnorm(method)
    lr = peak_lr(recipe)
    optimizer = create_optimizer(method.parameter_groups(recipe.optim, lr), recipe.optim, lr)
    prepared, optimizer = accelerator.prepare(method, optimizer)
    loader = TrainLoader(
        data.train,
        create_augment(recipe, data),
        recipe=recipe,
        device=accelerator.device,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        with_geometry=method.wants_geometry,
    )
    sam = SAM(prepared.parameters(), recipe.optim.sam_rho) if recipe.optim.sam_rho else None
    return Setup(recipe, data, accelerator, accelerator.unwrap_model(prepared), prepared, optimizer, loader, sam)


def create_accelerator(settings: Settings, run_dir: str | Path) -> Accelerator:
    """Devices, precision, processes and trackers, as the settings ask."""
    check_precision(settings.precision)
    for tracker in settings.trackers:
        if find_spec(tracker) is None:
            raise UserError(f'tracker {tracker} needs the package {tracker}: pip install "vitling[trackers]".')
    AcceleratorState._reset_state()  # private: accelerate refuses a second precision in one process, a study needs it
    return Accelerator(
        cpu=not torch.accelerator.is_available(),  # without this, several processes on CPUs do not find each other
        mixed_precision=settings.precision,
        log_with=list(settings.trackers) or None,
        project_dir=str(run_dir),
    )


def create_model(recipe: Recipe, data: TrainingData, with_init: bool = True) -> tuple[nn.Module, str]:
    """The recipe's model for these images, and a line about the weights it starts from where `init` names some."""
    model = build_model(
        recipe.model,
        num_classes=len(data.class_names),
        in_chans=data.preprocessing.channels,
        img_size=data.preprocessing.size,
        **recipe.model_args,
    )
    model.pretrained_cfg = {**model.pretrained_cfg, **saved_config(data)}
    what_was_loaded = load_init(model, recipe.init) if recipe.init and with_init else ""
    freeze(model, recipe.freeze)
    check_patterns(model, recipe.optim.lr_factors, "optim.lr_factors")
    return model, what_was_loaded


def create_augment(recipe: Recipe, data: TrainingData) -> Augment:
    spec = {name: value for name, value in to_dict(recipe)["augment"].items() if name != "repeats"}
    side = min(data.preprocessing.size)
    spec["crop_padding"] = round(spec["crop_padding"] * side)
    spec["randaugment"] = spec["randaugment"] or None
    return Augment(data.preprocessing.size, mean=data.preprocessing.mean, std=data.preprocessing.std, **spec)


def saved_config(data: TrainingData) -> dict:
    """What timm's config of the saved model says about its input, in place of the published weights' values."""
    seen = data.preprocessing
    return {
        "input_size": (seen.channels, *seen.size),
        "mean": seen.mean,
        "std": seen.std,
        "crop_pct": 1.0,
        "crop_mode": {"resize": "squash", "pad": "border", "crop": "center"}[seen.fit],
        "num_classes": len(data.class_names),
    }


def class_weights(labels: Tensor, num_classes: int) -> Tensor:
    """Loss weights inverse to class frequency, with mean 1 over the training images."""
    counts = labels.bincount(minlength=num_classes).clamp(min=1)
    return len(labels) / (num_classes * counts.float())


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Leave the named parameters as they are; "backbone" names all but the classifier."""
    check_patterns(model, [pattern for pattern in patterns if pattern != "backbone"], "freeze")
    head = {id(p) for p in model.get_classifier().parameters()} if "backbone" in patterns else set()
    for name, parameter in model.named_parameters():
        if any(fnmatch(name, pattern) for pattern in patterns) or (
            "backbone" in patterns and id(parameter) not in head
        ):
            parameter.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"freeze={','.join(patterns)} leaves nothing to train; freeze less.")


def load_init(model: nn.Module, source: str) -> str:
    """Start from the weights of whatever `open_model` would open; what was done, in one line."""
    try:
        return f"init={source}: {load_weights(model, find_weights(source))}"
    except UserError as error:
        raise UserError(f"init={source}: {error}") from None
