"""Every named recipe builds its model, method, optimiser and schedule, and takes a step on small images."""

from math import ceil

import numpy as np
import pytest
import torch

from vitling.callbacks import Callback
from vitling.methods.token_labeling.relabeling import relabel
from vitling.models import build_model
from vitling.optim import peak_lr
from vitling.recipes import Recipe, named_recipes, replace
from vitling.runs.asked import asked_for
from vitling.runs.run import Run
from vitling.training.beginning import open_loop
from vitling.training.settings import Settings
from vitling.training.setup import create_accelerator
from vitling.training.signals import StopRequest

pytestmark = pytest.mark.slow

SIDE, CLASSES = 32, 4
BATCH = 6
NAMES = sorted(named_recipes())

# What makes a network of this name smaller and leaves its form; more specific names first.
SHRUNK: tuple[tuple[str, dict], ...] = (
    ("t2t_vit_dense", dict(embed_dim=32, growth_rate=16, block_config=[1, 1], num_heads=2)),
    ("t2t_vit_nano", dict(depth=2)),
    ("t2t_vit_14_resnext", dict(embed_dim=64, depth=2)),
    ("t2t_vit", dict(embed_dim=48, depth=2, num_heads=3)),
    ("vit_s16_resnext", dict(embed_dim=64, depth=2)),
    ("vit_s16", dict(embed_dim=48, depth=2, num_heads=2)),
    ("lvvit", dict(embed_dim=48, depth=2, num_heads=2)),
    ("dhvt", dict(depth=2)),
    ("boot_vit", dict(embed_dim=36, depth=3, num_heads=9)),
    ("agent_base_res", dict(embed_dim=36, depth=3, num_heads=6, down_sample=[0, 1])),
    ("agent", dict(embed_dim=36, depth=3, num_heads=9)),
    ("diag_vit", dict(embed_dim=48, depth=2)),
    ("diag_resnet18", dict(width=8)),
    ("vit_", dict(embed_dim=48, depth=2, num_heads=2)),
    ("deit_", dict(embed_dim=48, depth=2, num_heads=2)),
    ("resnet18", dict()),
    ("resnet9", dict()),
    ("resnet", dict(layers=[1, 1, 1, 1])),
    ("seresnet50", dict(layers=[1, 1, 1, 1])),
    ("resnext50", dict(layers=[1, 1, 1, 1])),
    ("densenet", dict(block_config=(1, 1, 1, 1))),
)


def shrink(recipe: Recipe, data: str, maps: str) -> Recipe:
    """The recipe on a handful of small images, its network narrow and shallow, with nothing to start from."""
    smaller = next((args for name, args in SHRUNK if recipe.model.startswith(name)), {})
    model_args = {**recipe.model_args, **{k: v for k, v in smaller.items() if not _is_small(recipe, k)}}
    method_args = dict(recipe.method_args)
    if method_args.get("labels", "truth") != "truth":
        method_args["labels"] = maps
    if method_args.get("relabel") == "auto":
        method_args["annotator_epochs"] = 1
    if method_args.get("agent", "auto").startswith("agent_"):
        method_args["agent_args"] = {**method_args.get("agent_args", {}), **dict(SHRUNK)["agent"]}
    return replace(
        recipe,
        data=data,
        channels=3,
        model_args=model_args,
        method_args=method_args,
        img_size=SIDE,
        train_size=SIDE + 8 if recipe.train_size else None,
        fraction=1.0,
        init="",
        batch_size=BATCH,
        accumulate=1,
        optim=replace(recipe.optim, lr=peak_lr(recipe), lr_per_batch=0),  # as it is with the recipe's own batch
    )


def _is_small(recipe: Recipe, argument: str) -> bool:
    """Whether the recipe itself makes the network small, so that its own number stays."""
    return argument in recipe.model_args and recipe.img_size is None


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 8), ("val", 4)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, SIDE, SIDE, 3)).astype(np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % CLASSES
    path = tmp_path_factory.mktemp("data") / "noise.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture(scope="module")
def maps(data, tmp_path_factory) -> str:
    """Label maps of those images, by a network that was never trained."""
    folder = tmp_path_factory.mktemp("maps") / "maps"
    annotator = build_model("resnet9_test", num_classes=CLASSES, in_chans=3, img_size=(SIDE, SIDE))
    relabel(annotator, data, folder, size=SIDE, fit="crop")
    return str(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_named_recipe_is_built_and_takes_a_step(name, data, maps, tmp_path):
    recipe = shrink(named_recipes()[name](), data, maps)
    settings = Settings(threads=1)
    accelerator = create_accelerator(settings, tmp_path)
    asked = asked_for(recipe, None)
    loop = open_loop(Run(tmp_path / "run"), recipe, asked, settings, Callback(), accelerator, StopRequest())
    before = {key: value.clone() for key, value in loop.setup.method.state_dict().items()}
    loop.training_mode()
    loop.state.step = (ceil(recipe.optim.warmup_epochs) + recipe.optim.schedule_lag_epochs) * loop.setup.steps_per_epoch
    loop.take_step(next(loop.setup.loader.epoch(0)))
    assert np.isfinite(loop.last_loss)
    changed = [key for key, value in loop.setup.method.state_dict().items() if not torch.equal(value, before[key])]
    trained = {key for key, parameter in loop.setup.method.named_parameters() if parameter.requires_grad}
    assert len(trained & set(changed)) > len(trained) / 2
    rates = []
    for epoch in (0, recipe.epochs // 2, recipe.epochs - 1):
        loop.stepper.schedule.set(epoch * loop.setup.steps_per_epoch)
        rates.append(max(group["lr"] for group in loop.setup.optimizer.param_groups))
    assert all(rate > 0 or recipe.optim.min_lr == 0 for rate in rates)
