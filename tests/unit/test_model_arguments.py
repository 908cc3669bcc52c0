"""Arguments of networks: what reads files, what the data decides and what cannot be built is refused in one line."""

import json

import pytest
import timm
import torch

import vitling
from vitling.errors import UserError
from vitling.inputs.model_arguments import check_model_args
from vitling.models import build_model
from vitling.models.weights import save_for_timm, save_weights
from vitling.recipes import Recipe, override
from vitling.runs.opening import open_model
from vitling.training.setup import check_settings

TINY = dict(patch_size=4, embed_dim=16, depth=1, num_heads=2)


def message(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def build(**arguments):
    return build_model("vit_tiny_patch16_224", num_classes=2, in_chans=3, img_size=(8, 8), **{**TINY, **arguments})


@pytest.mark.parametrize(
    "name",
    ["checkpoint_path", "cache_dir", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict"],
)
def test_arguments_that_make_timm_read_or_download_are_refused(name, tmp_path):
    said = f"model_args.{name} is not allowed"
    assert said in message(override, Recipe(), [f"model_args.{name}=/etc/passwd"])
    assert said in message(build, **{name: str(tmp_path / "x.pt")})
    assert said.replace("model_args", "method_args.agent_args") in message(
        check_model_args, {name: "x"}, "method_args.agent_args"
    )


def test_a_file_named_by_a_stranger_is_not_loaded(tmp_path):
    """Before, model_args.checkpoint_path went through to timm, which unpickled in older versions."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, img_size=8, **TINY)
    save_for_timm(model, tmp_path / "folder", model_args=dict(img_size=8, **TINY))
    save_weights(model, tmp_path / "other.pt")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    config["model_args"]["checkpoint_path"] = str(tmp_path / "other.pt")
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config))
    assert "model_args.checkpoint_path is not allowed" in message(open_model, tmp_path / "folder")
    arguments = dict(architecture="vit_tiny_patch16_224", model_args={"checkpoint_path": "x"})
    assert "model_args.checkpoint_path is not allowed" in message(open_model, tmp_path / "other.pt", **arguments)


@pytest.mark.parametrize("name", ["num_classes", "img_size", "in_chans", "features_only"])
def test_what_the_data_decides_is_refused_before_any_data_is_read(name, tmp_path):
    recipe = override(Recipe(model_args=TINY, data="nowhere"), {f"model_args.{name}": 5})
    assert f"model_args.{name} is not allowed" in message(check_settings, recipe)
    assert f"model_args.{name} is not allowed" in message(vitling.train, recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {"embed_dim": 0},
        {"embed_dim": -16},
        {"embed_dim": 10**9},
        {"embed_dim": "wide"},
        {"embed_dim": 1.5},
        {"embed_dim": None},
        {"embed_dim": [16, 16]},
        {"patch_size": 0},
        {"patch_size": -4},
        {"patch_size": 99},
        {"patch_size": "x"},
        {"depth": 0},
        {"depth": 10**9},
        {"num_heads": 0},
        {"num_heads": 3},
        {"mlp_ratio": 0},
        {"mlp_ratio": float("nan")},
        {"drop_rate": 2},
        {"drop_path_rate": -1},
        {"norm_layer": "x"},
        {"norm_layer": 3},
        {"act_layer": "x"},
        {"block_fn": "x"},
        {"global_pool": "x"},
        {"weight_init": "x"},
        {"no_such_argument": 1},
        {"class_token": "x", "global_pool": []},
        {"": 1},
        {"self": 1},
    ],
)
@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "dhvt_test", "lvvit_test", "t2t_vit_test", "hybrid_vit_test", "resnet18"]
)
def test_a_network_that_cannot_be_built_is_one_line(name, arguments):
    """Or is built, where a family has another use for such an argument; never a traceback."""
    if not timm.is_model(name):
        pytest.skip(f"there is no {name}")
    try:
        model = build_model(name, num_classes=2, in_chans=3, img_size=(16, 16), **arguments)
    except UserError as error:
        said = str(error)
        assert said.count("\n") == 0
    else:
        assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 2)


def test_a_network_larger_than_memory_is_refused_by_counting():
    said = message(build, embed_dim=65536, depth=1000)
    assert "GB for its weights alone" in said


def test_counting_a_network_draws_no_random_numbers():
    torch.manual_seed(0)
    built = build()
    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", num_classes=2, img_size=(8, 8), **TINY)
    assert all(torch.equal(a, b) for a, b in zip(built.parameters(), plain.parameters(), strict=True))
