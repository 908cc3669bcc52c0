"""--shard: every process holds a part of the model, and nothing else changes. Two processes on CPUs."""

import pytest
import torch
from command import vitling as command
from PIL import Image
from processes import NO_DROPOUT, RECIPE, SGD, train_together
from safetensors.torch import load_file

import vitling
from vitling.models import our_models
from vitling.recipes import override
from vitling.training.beginning import train
from vitling.training.settings import Settings

pytestmark = pytest.mark.slow

TOKENS = ["model=lvvit_test", "method_args={labels: truth}"]
AGENT = ["model=boot_vit_test", "model_args={}", "method=bootstrap", NO_DROPOUT]
WITHOUT_DROPOUT = {
    "agent_test": "model_args={mlp_drop_rate: 0}",
    "boot_vit_test": "model_args={}",
    "dhvt_test": "model_args={}",
    "diag_resnet18_test": "model_args={}",
    "diag_vit_test": "model_args={pos_drop_rate: 0, proj_drop_rate: 0}",
    "hybrid_vit_test": "model_args={drop_path_rate: 0}",
    "lvvit_test": "model_args={}",
    "resnet9_test": "model_args={}",
    "t2t_vit_dense_test": "model_args={}",
    "t2t_vit_test": "model_args={}",
}
FAMILIES = {name: override(RECIPE, [f"model={name}", arguments, *SGD]) for name, arguments in WITHOUT_DROPOUT.items()}
PARTS = {
    "ema": override(RECIPE, ["ema_decay=0.9"]),
    "muon": override(RECIPE, ["optim.name=muon"]),
    "sam": override(RECIPE, ["optim.sam_rho=0.05"]),
    "clip": override(RECIPE, ["optim.clip_grad=0.1", "accumulate=2", "optim.name=sgd", "optim.lr=0.1"]),
    "lion": override(RECIPE, ["optim.name=lion", "optim.lr=1e-4"]),
    "nadamw": override(RECIPE, ["optim.name=nadamw", "freeze=patch_embed.*,blocks.0.attn.*"]),
    "momentum": override(RECIPE, ["optim.name=momentum", "optim.layer_decay=0.7", "balance=loss"]),
    "adam": override(RECIPE, ["optim.name=adam", "batch_size=24"]),
    "bootstrap": override(RECIPE, [*AGENT, *SGD, "optim.clip_grad=1"]),
    "token_labeling": override(RECIPE, [*TOKENS, "method=token_labeling"]),
    "token_bootstrap": override(RECIPE, [*TOKENS, "method=token_bootstrap", NO_DROPOUT]),
}
RECIPES = FAMILIES | PARTS


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return train_together(tmp_path_factory.mktemp("sharded"), RECIPES, "shard", "resume")


@pytest.mark.parametrize("name", RECIPES)
def test_shards_learn_what_a_whole_model_learns(name, sharded, tmp_path):
    whole, run = train(RECIPES[name], tmp_path / "one", settings=Settings(threads=1)), sharded[name]
    assert (run.info["processes"], run.info["sharded"]) == (2, True)
    for mine, theirs in zip(run.metrics(), whole.metrics(), strict=True):
        for key in ("train_loss", "val_loss", "val_top1"):
            assert mine[key] == pytest.approx(theirs[key], rel=5e-4), key
    for mine, theirs in zip(run.gradients(), whole.gradients(), strict=True):
        assert mine["norms"] == pytest.approx(theirs["norms"], rel=0.02)


@pytest.mark.parametrize("name", RECIPES)
def test_a_sharded_run_that_is_resumed_repeats_the_uninterrupted_one(name, sharded):
    run, again = sharded[name], vitling.load_run(sharded[name].path.parent / "resumed" / name)
    assert again.metrics() == run.metrics()
    assert again.gradients() == run.gradients()
    files = [file.relative_to(run.path) for file in run.path.rglob("model.safetensors")]
    assert len(files) == (3 if "bootstrap" in name else 2)
    for file in files:
        one, other = load_file(run.path / file), load_file(again.path / file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), file


def test_weights_and_checkpoints_of_shards_are_whole_and_ordinary(sharded, tmp_path):
    run, whole = sharded["ema"], train(PARTS["ema"], tmp_path / "one", settings=Settings(threads=1))
    for which in ("best", "last"):
        mine, theirs = (load_file(found.path / which / "model.safetensors") for found in (run, whole))
        assert {key: value.shape for key, value in mine.items()} == {key: value.shape for key, value in theirs.items()}
    mine, theirs = run.load_checkpoint()[0], whole.load_checkpoint()[0]
    for part in ("method", "ema"):
        assert all(type(value) is torch.Tensor for value in mine[part].values())
        assert mine[part].keys() == theirs[part].keys()
    assert "top-1" in command("evaluate", run.path).lower()
    Image.new("L", (16, 16)).save(tmp_path / "black.png")
    assert "black.png" in command("predict", run.path, tmp_path / "black.png", "--json")
    command("export", run.path, "--to", "timm", "--out", tmp_path / "exported")


def test_every_family_is_trained_in_shards():
    assert {name for name in our_models() if name.endswith("_test")} == set(FAMILIES)
