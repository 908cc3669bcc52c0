"""Several processes train what one would train: with mixing, with BatchNorm, with every method."""

import pytest
from processes import NO_DROPOUT, SGD, train_together
from processes import RECIPE as BASE

import vitling
from vitling.recipes import override
from vitling.training.beginning import train
from vitling.training.settings import Settings

pytestmark = pytest.mark.slow

RECIPE = override(BASE, ["fraction=0.25", "augment.hflip=0.5"])
TOKENS = ["model=lvvit_test", "method=token_labeling", "method_args.labels=truth"]
RECIPES = {
    "batch": override(RECIPE, ["ema_decay=0.9"]),
    "pair": override(
        RECIPE, ["model=diag_resnet18_test", "model_args={}", "method_args.mix_mode=pair", "accumulate=2"]
    ),
    "elem": override(RECIPE, ["model=dhvt_test", "method_args.mix_mode=elem"]),
    "mix_token": override(RECIPE, [*TOKENS, "method_args.mixup=0", "method_args.cutmix=0"]),
    "mix_token_by_hook": override(RECIPE, ["model=t2t_vit_test", *TOKENS[1:], "method_args.mixup=0", "accumulate=2"]),
    "bootstrap": override(RECIPE, ["model=boot_vit_test", "model_args={}", "method=bootstrap", NO_DROPOUT, *SGD]),
    "shared": override(
        RECIPE, ["model=boot_vit_test", "model_args={}", "method=bootstrap", "method_args.share=true", *SGD]
    ),
}


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    return train_together(tmp_path_factory.mktemp("two"), RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_that_mix_give_the_losses_of_one(name, together, tmp_path):
    one, two = train(RECIPES[name], tmp_path / "one", settings=Settings(threads=1)), together[name]
    assert vitling.load_run(two.path).info["processes"] == 2
    for mine, theirs in zip(two.metrics(), one.metrics(), strict=True):
        for key in ("train_loss", "val_loss", "val_top1"):
            assert mine[key] == pytest.approx(theirs[key], rel=2e-4), key
