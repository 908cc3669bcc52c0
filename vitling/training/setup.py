"""Setup: everything that a run is trained with, built from its recipe and its data. Nothing is trained or written here."""

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.augment.augment import Augment
from vitling.data.augment.randaugment import RandAugment
from vitling.data.pipeline.loader import Source, TrainLoader
from vitling.data.pipeline.training_data import TrainingData, create_augment
from vitling.errors import UserError
from vitling.methods import Method, View, check_method, create_method, find_method, find_unlabelled
from vitling.models import build_model, check_name
from vitling.models.contract import classifier_names
from vitling.models.weights import load_weights
from vitling.optim import SAM, check_patterns, create_optimizer, peak_lr
from vitling.recipes import Recipe
from vitling.runs.opening import find_weights
from vitling.training.allocation import keep_freed_memory
from vitling.training.batch_norm import synchronise_batch_norm
from vitling.training.half_precision import keep_attention_whole
from vitling.training.partners import ProcessPartners
from vitling.training.random_state import seed_everything
from vitling.training.settings import Settings, check_precision
from vitling.training.sharding import check_launch, check_sharding, shard_blocks, split_groups
from vitling.validation.model_arguments import check_model_args

MOST_WEIGHT = (
    20.0  # of a positive in the loss, with balance=loss and several labels per image: rarer labels count no more
)
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


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
    partners: ProcessPartners | None = None  # None: one process has the whole batch
    average: ModelEmaV3 | None = None  # of the model's weights
    sharded: bool = False  # blocks lie in parts in the processes, see `sharding`

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
    find_method(recipe.method).refuse(recipe)
    check_unlabelled(recipe)
    if recipe.ema_decay and recipe.soup_epochs:
        raise UserError(
            f"ema_decay={recipe.ema_decay:g} and soup_epochs={recipe.soup_epochs} both say which weights are averaged; leave one out."
        )
    if recipe.augment.randaugment:
        RandAugment.parse(recipe.augment.randaugment)


def check_unlabelled(recipe: Recipe) -> None:
    """Refuse settings of a first stage without labels that contradict each other."""
    if not recipe.unlabelled:
        if recipe.unlabelled_method != Recipe.unlabelled_method:
            raise UserError(
                f"unlabelled_method={recipe.unlabelled_method} says how a first stage learns, and there is none; add unlabelled=IMAGES. "
                f"`vitling pretrain` takes method={recipe.unlabelled_method}."
            )
        if recipe.unlabelled_time != Recipe.unlabelled_time:
            raise UserError(
                f"unlabelled_time={recipe.unlabelled_time:g} is the share of a first stage, and there is none; add unlabelled=IMAGES."
            )
        if recipe.unlabelled_test and not recipe.init:
            raise UserError(
                "unlabelled_test=true lets test images into what is learnt from without labels, and there is nothing of that; add "
                "unlabelled=IMAGES, or leave it out."
            )
        return
    if recipe.init:
        raise UserError(
            f"init={recipe.init} and unlabelled={recipe.unlabelled} both say where the weights begin; leave one out."
        )
    find_unlabelled("unlabelled_method", recipe.unlabelled_method)


def build_setup(
    recipe: Recipe,
    data: TrainingData,
    accelerator: Accelerator,
    *,
    init: str,
    method_args: dict,
    load_init: bool,
    callback: Callback,
    shard: bool = False,
) -> Setup:
    """Model, method, optimiser and batches. `method_args` are the recipe's after the method has prepared itself, `init` the weights to begin from."""
    seed_everything(recipe.seed, "init")
    model, loaded = create_model(recipe, data, init if load_init else "")
    if loaded:
        callback.log(loaded)
    classes = model_classes(recipe, data)
    method = create_method(
        recipe.method,
        model,
        num_classes=classes,
        class_weights=class_weights(data.train, classes) if recipe.balance == "loss" else None,
        target=data.dataset.target,
        **method_args,
    )
    weights = data.images["train"].weights
    if weights is not None and not method.weighs_images:
        raise UserError(
            f"method={recipe.method} does not weigh images; leave class_weight and sample_weight out, or set another method."
        )
    partners = None
    if accelerator.num_processes > 1:
        method = synchronise_batch_norm(method, accelerator.device)
        partners = ProcessPartners(accelerator.process_index, accelerator.num_processes)
        method.mix_with(partners)
    lr = peak_lr(recipe)
    augment = create_augment(recipe, data)
    loader = TrainLoader(
        data.train,
        augment,
        recipe=recipe,
        device=accelerator.device,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        with_geometry=method.wants_geometry,
        weights=None if weights is None else torch.as_tensor(weights, dtype=torch.float32),
        views=[create_view(augment, view) for view in method.views()],
    )
    if shard:
        check_sharding(recipe, accelerator, method.unshardable())
        prepared = accelerator.prepare_model(method, evaluation_mode=True)  # placed, not wrapped
    else:
        optimizer = create_optimizer(method.parameter_groups(recipe.optim, lr), recipe.optim, lr)
        prepared, optimizer = accelerator.prepare(method, optimizer)
    if load_init and not init and hasattr(model, "init_from_images"):
        _init_from_images(model, loader, accelerator)
        method.weights_set()
    average = create_average(model, recipe, shard)
    if shard:
        for value in method.state_dict().values():
            broadcast(value)  # as DDP does
        averaged = [average.module] if average else []
        shard_blocks([model, *method.evaluated().values(), *averaged], accelerator)
        groups = split_groups(method.parameter_groups(recipe.optim, lr))
        optimizer = accelerator.prepare_optimizer(create_optimizer(groups, recipe.optim, lr))
    sam = SAM(prepared.parameters(), recipe.optim.sam_rho) if recipe.optim.sam_rho else None
    return Setup(
        recipe,
        data,
        accelerator,
        accelerator.unwrap_model(prepared),
        prepared,
        optimizer,
        loader,
        sam,
        partners=partners,
        average=average,
        sharded=shard,
    )


def create_average(model: nn.Module, recipe: Recipe, shard: bool) -> ModelEmaV3 | None:
    """The averaged weights, where the recipe wants some; those of `soup_epochs` begin when its epochs come."""
    if not (recipe.ema_decay or recipe.soup_epochs):
        return None
    # One call for all tensors at once does not take shards beside whole ones.
    return ModelEmaV3(model, decay=recipe.ema_decay, use_warmup=recipe.ema_warmup, foreach=not shard)


def create_accelerator(settings: Settings, run_dir: str | Path) -> Accelerator:
    """Devices, precision, processes and trackers, as the settings ask."""
    check_precision(settings.precision)
    check_launch()
    for tracker in settings.trackers:
        if find_spec(tracker) is None:
            raise UserError(f'tracker {tracker} needs the package {tracker}: pip install "vitling[trackers]".')
    if not torch.accelerator.is_available():
        keep_freed_memory()
        if settings.precision == "bf16":
            keep_attention_whole()
    AcceleratorState._reset_state()  # private: accelerate refuses a second precision in one process, a study needs it
    return Accelerator(
        cpu=not torch.accelerator.is_available(),  # without this, several processes on CPUs do not find each other
        mixed_precision=settings.precision or "no",
        log_with=list(settings.trackers) or None,
        project_dir=str(run_dir),
    )


def create_model(recipe: Recipe, data: TrainingData, init: str) -> tuple[nn.Module, str]:
    """The recipe's model for these images, and a line about the weights it starts from where `init` names some."""
    model = build_model(
        recipe.model,
        num_classes=model_classes(recipe, data),
        in_chans=data.preprocessing.channels,
        img_size=data.preprocessing.size,
        **recipe.model_args,
    )
    model.pretrained_cfg = {**model.pretrained_cfg, **saved_config(data, model_classes(recipe, data))}
    what_was_loaded = load_init(model, init) if init else ""
    freeze(model, recipe.freeze)
    check_patterns(model, recipe.optim.lr_factors, "optim.lr_factors")
    return model, what_was_loaded


def _init_from_images(model: nn.Module, loader: TrainLoader, accelerator: Accelerator) -> None:
    """Show the model a first batch, for what it takes from images rather than learns; equal in all processes."""
    [first, *_] = next(loader.epoch(0, stop=1))
    model.init_from_images(accelerator.gather(first["image"]))
    for value in model.state_dict().values():
        broadcast(value)


def model_classes(recipe: Recipe, data: TrainingData) -> int:
    """The outputs of the model's classifier; 0 where it learns without labels and has none."""
    return 0 if find_method(recipe.method).unlabelled else data.dataset.target.outputs


def create_view(augment: Augment, view: View) -> Augment:
    """The augmentation of a further view."""
    changes: dict[str, Any] = {}
    if view.size is not None:
        changes |= {"size": view.size, "crop": "resized"}
    if view.crop_scale is not None:
        changes["crop_scale"] = view.crop_scale
    return replace(augment, **changes)


def saved_config(data: TrainingData, classes: int) -> dict:
    """What timm's config of the saved model says about its input, in place of the published weights' values."""
    seen = data.preprocessing
    return {
        "input_size": (seen.channels, *seen.size),
        "mean": seen.mean,
        "std": seen.std,
        "crop_pct": seen.test_crop or 1.0,
        "interpolation": seen.interpolation,
        "crop_mode": {"resize": "squash", "pad": "border", "crop": "center"}[seen.fit],
        "num_classes": classes,
    }


def class_weights(train: Source, num_classes: int) -> Tensor:
    """Loss weights inverse to class frequency, with mean 1 over the training images.

    Of several labels per image: how many negatives each has per positive, between 1 / MOST_WEIGHT and MOST_WEIGHT.
    """
    labels = train.labels
    if train.targets is not None:
        share = train.targets.mean(dim=0)
        return ((1 - share) / share).clamp(1 / MOST_WEIGHT, MOST_WEIGHT)
    counts = labels.bincount(minlength=num_classes).clamp(min=1)
    return len(labels) / (num_classes * counts.float())


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Leave the named parameters as they are; "backbone" names all but the classifiers."""
    given = [pattern for pattern in patterns if pattern != "backbone"]
    # A table that is no parameter, T2T's sinusoid, stays as it is by itself; statistics of norms do not.
    fixed = [name for name in model.state_dict() if not name.endswith(STATISTICS)]
    check_patterns(model, [pattern for pattern in given if not any(fnmatch(name, pattern) for name in fixed)], "freeze")
    heads = classifier_names(model)
    for name, parameter in model.named_parameters():
        in_backbone = "backbone" in patterns and name.rpartition(".")[0] not in heads
        if in_backbone or any(fnmatch(name, pattern) for pattern in given):
            parameter.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"freeze={','.join(patterns)} leaves nothing to train; freeze less.")


def load_init(model: nn.Module, source: str) -> str:
    """Start from the weights of whatever `open_model` would open; what was done, in one line."""
    try:
        return f"init={source}: {load_weights(model, find_weights(source))}"
    except UserError as error:
        raise UserError(f"init={source}: {error}") from None
