"""Sizes of a plan's networks, counted without computing anything, and the time that its runs would take."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from timm.models.vision_transformer import Block
from torch import nn

from vitling.callbacks import Callback
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.training_data import open_recipe_data
from vitling.methods import find_method
from vitling.models import default_size
from vitling.models.macs import count_macs
from vitling.models.registry import create_network
from vitling.papers.plan import Line, Plan, described_recipe
from vitling.papers.table import Data
from vitling.planning.speed import measure_speeds
from vitling.recipes import Recipe
from vitling.runs.device import default_device, synchronize
from vitling.training.budget import MEASURED_SHARE
from vitling.training.settings import Settings

MEASURED_SECONDS = 1.0  # of a nano recipe's turns, on average
RATE_SECONDS = 0.5
BACKWARD = 2  # a backward pass costs two forward passes
PARTS = (8, 197, 384, 6)  # images, tokens, width and heads of the block that the speed is measured on


@dataclass(frozen=True)
class Size:
    """A network's parameters and the multiply-adds of one image, attention included."""

    parameters: int
    macs: int


def count_sizes(plan: Plan, settings: Settings, callback: Callback | None = None) -> dict[str, Size]:
    """By label, the network that a line trains here; of rows that are not trained, the paper's where timm has it."""
    classes, channels = None, 3
    if plan.scale == "nano" and plan.recipes:
        dataset = open_recipe_data(next(iter(plan.recipes.values())), settings.reading)
        classes, channels = len(dataset.class_names), dataset.channels
    sizes: dict[str, Size] = {}
    known: dict[str, Size] = {}
    for number, line in enumerate(plan.lines):
        recipe = line.recipe or (described_recipe(line.row) if plan.scale == "paper" else None)
        if recipe is not None:
            if line.test_size:
                recipe = replace(recipe, img_size=line.test_size)
            asked = (recipe.model, recipe.model_args, recipe.img_size, classes or line.row.data.classes, channels)
            key = repr((*asked, None if line.row.network == "model" else recipe.method_args))
            if key not in known:
                model = build_on_meta(recipe, *asked[3:])
                beside = {} if line.row.network == "model" else find_method(recipe.method).companions(recipe, model)
                known[key] = _count({"model": model, **beside}[line.row.network])
            sizes[line.label] = known[key]
        if callback:
            callback.on_progress("counting", number + 1, len(plan.lines))
    return sizes


def build_on_meta(recipe: Recipe, classes: int, channels: int) -> nn.Module:
    """The recipe's network without memory or initialisation."""
    size = as_size(recipe.img_size) or default_size(recipe.model)
    with torch.device("meta"):
        network = create_network(recipe.model, size, num_classes=classes, in_chans=channels, **recipe.model_args)
    network.pretrained_cfg = {**network.pretrained_cfg, "input_size": (channels, *size)}
    return network


def _count(network: nn.Module) -> Size:
    network.requires_grad_(False)  # torch's counter trips over parameters that are handed from module to module
    macs = count_macs(network, network.pretrained_cfg["input_size"])
    return Size(sum(p.numel() for p in network.parameters()), macs)


# ---------------------------------------------------------------------------------------------------------------------
# Time


def estimate_seconds(
    plan: Plan, sizes: dict[str, Size], settings: Settings, callback: Callback | None = None
) -> dict[str, float]:
    """Seconds of one run of each recipe: measured on a few steps at nano scale, from the MACs and this device's rate else."""
    callback = callback or Callback()
    if not plan.recipes:
        return {}
    if plan.scale == "nano":
        return _measured(plan.recipes, settings, callback)
    callback.on_progress("measuring the speed", 0, 1)
    rate = training_rate()
    callback.on_progress("measuring the speed", 1, 1)
    return {
        line.study_name: training_macs(line.recipe, line.row.data, _model_size(line, sizes)) / rate
        for line in plan.lines
        if line.recipe and line.is_trained
    }


def _measured(recipes: dict[str, Recipe], settings: Settings, callback: Callback) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="vitling-") as folder:
        speeds = measure_speeds(
            recipes,
            Path(folder) / "measuring",
            settings=settings,
            budget_seconds=MEASURED_SECONDS / MEASURED_SHARE,
            callback=callback,
        )
    return {name: speeds[name].run_seconds(recipe) for name, recipe in recipes.items()}


def training_rate() -> float:
    """Multiply-adds per second of this device in the training of a block of ViT-S."""
    device = default_device()
    images, tokens, width, heads = PARTS
    block = Block(width, heads).to(device)
    x = torch.randn(images, tokens, width, device=device)
    macs = images * tokens * (12 * width**2 + 2 * tokens * width)
    block(x).sum().backward()
    synchronize(device)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < RATE_SECONDS:
        block(x).sum().backward()
        done += 1
    synchronize(device)
    return (1 + BACKWARD) * macs * done / (time.perf_counter() - began)


def _model_size(line: Line, sizes: dict[str, Size]) -> Size | None:
    return sizes[line.label] if line.row.network == "model" and not line.test_size else None


def training_macs(recipe: Recipe, data: Data, size: Size | None = None) -> float:
    """Multiply-adds of a run, with the networks beside its model and the run that its method trains first.

    `size` is that of the model, where it has been counted already.
    """
    recipe = replace(recipe, img_size=as_size(recipe.img_size) or default_size(recipe.model))
    method, model = find_method(recipe.method), build_on_meta(recipe, data.classes, 3)
    beside = method.companions(recipe, model)  # before counting, which lets nothing of the model learn any more
    an_image = (1 + BACKWARD) * (size or _count(model)).macs
    for network in beside.values():
        learns = any(p.requires_grad for p in network.parameters())
        an_image += (1 + BACKWARD if learns else 1) * _count(network).macs
    passes = 2 if recipe.optim.sam_rho else 1
    images = data.images * (1 - recipe.val_fraction) * recipe.epochs
    first = method.first_run(recipe)
    return passes * an_image * images + (training_macs(first, data) if first else 0.0)
