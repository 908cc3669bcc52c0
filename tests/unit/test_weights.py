import argparse
import os
import pickle
import re

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from rule import files, golden, normal
from torch import nn

import vitling
from vitling.errors import UserError
from vitling.models.weights import adapt_state, load_weights, save_for_timm, save_weights

TINY = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_ratio": 1}


def vit(num_classes=10, img_size=16, **kwargs):
    return timm.create_model("vit_tiny_patch16_224", num_classes=num_classes, img_size=img_size, **{**TINY, **kwargs})


def assert_same(model, state, but=()):
    for key, value in model.state_dict().items():
        if key not in but:
            torch.testing.assert_close(value, state[key], rtol=0, atol=0)


# Where the weights are


@pytest.mark.parametrize("entry", ["", "state_dict", "model", "net", "state_dict_ema"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_weights_are_found_under_any_entry_and_wrapper(tmp_path, entry, prefix):
    source = vit()
    state = {prefix + key: value for key, value in source.state_dict().items()}
    args = argparse.Namespace(lr=0.1)
    content = {entry: state, "epoch": 3, "args": args, "acc": np.float64(0.5)} if entry else state
    torch.save(content, tmp_path / "checkpoint.pth.tar")
    target = vit()
    report = load_weights(target, tmp_path / "checkpoint.pth.tar")
    assert_same(target, source.state_dict())
    assert report.loaded == list(source.state_dict())
    assert not any([report.adapted, report.skipped, report.missing, report.unexpected, report.mismatched])
    assert str(report).startswith(f"loaded {len(report.loaded)} of {len(report.loaded)} tensors")
    assert entry in str(report)


def test_averaged_weights_are_taken_when_asked_for(tmp_path):
    plain, averaged = vit(), vit()
    torch.save({"model": plain.state_dict(), "model_ema": averaged.state_dict()}, tmp_path / "both.pth")
    target = vit()
    load_weights(target, tmp_path / "both.pth")
    assert_same(target, plain.state_dict())
    load_weights(target, str(tmp_path / "both.pth"), use_ema=True)
    assert_same(target, averaged.state_dict())
    with pytest.raises(UserError, match="no averaged weights"):
        load_weights(target, plain.state_dict(), use_ema=True)


def test_one_network_is_taken_from_a_joint_checkpoint():
    source = vit()
    joint = {f"models.vit.{key}": value for key, value in source.state_dict().items()}
    joint |= {"models.cnn.linear.weight": torch.zeros(10, 16), "models.cnn.linear.bias": torch.zeros(10)}
    target = vit()
    report = load_weights(target, {"model": joint, "iter": 7})
    assert_same(target, source.state_dict())
    assert list(report.skipped) == ["models.cnn.*"]


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "best/model.safetensors"])
def test_folders_of_hugging_face_and_of_our_runs_are_read(tmp_path, name):
    source, target = vit(), vit()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    if name.endswith("bin"):
        torch.save(source.state_dict(), tmp_path / name)
    else:
        save_weights(source, tmp_path / name)
    load_weights(target, tmp_path)
    assert_same(target, source.state_dict())


def test_the_best_weights_of_a_run_come_before_the_last(tmp_path):
    best, last, target = vit(), vit(), vit()
    save_for_timm(best, tmp_path / "best")
    save_for_timm(last, tmp_path / "last")
    load_weights(target, tmp_path)
    assert_same(target, best.state_dict())
    load_weights(target, tmp_path / "last")
    assert_same(target, last.state_dict())


# What is adapted


def test_a_classifier_for_other_classes_is_left_as_made_and_reported():
    source, target = vit(num_classes=10), vit(num_classes=7)
    made = target.head.weight.clone()
    report = load_weights(target, source.state_dict())
    assert_same(target, source.state_dict(), but=("head.weight", "head.bias"))
    assert torch.equal(target.head.weight, made)
    assert report.skipped == {
        "head.weight": "10 classes in the file, 7 here",
        "head.bias": "10 classes in the file, 7 here",
    }
    assert report.missing == ["head.weight", "head.bias"]


def test_a_model_without_classifier_takes_the_rest_and_gives_it_back():
    source, features, target = vit(), vit(num_classes=0), vit()
    assert set(load_weights(features, source.state_dict()).skipped) == {"head.weight", "head.bias"}
    assert load_weights(target, features.state_dict()).missing == ["head.weight", "head.bias"]
    assert_same(target, source.state_dict(), but=("head.weight", "head.bias"))


def rule_filled_tables():
    """Each resized table of the files that was filled by their rule, and its grid, which is in the name of its entry."""
    for name in files("posembed__"):
        for key, entry in golden(name).items():
            if match := re.match(r"resize_to_(\d+)x(\d+)", key):
                tables = [entry] if "rule-filled" in key else [entry[k] for k in entry if k.startswith("of_rule")]
                for table in tables:
                    yield pytest.param(golden(name), (int(match[1]), int(match[2])), table, id=f"{name}-{match[0]}")


@pytest.mark.parametrize(("file", "grid", "expected"), rule_filled_tables())
def test_position_embeddings_resize_as_in_the_release(file, grid, expected):
    rows, dim = file["n_position"], file["d_hid"]
    target = vit(img_size=tuple(16 * side for side in grid), patch_size=16, embed_dim=dim, num_heads=1, num_classes=0)
    state = target.state_dict() | {"pos_embed": 0.05 * normal("pos_embed", (1, rows, dim))}
    report = load_weights(target, state)
    got = target.pos_embed.detach()[0]
    values = got[expected["positions"]][:, expected["dims"]]
    torch.testing.assert_close(values, torch.tensor(expected["values"]), rtol=1e-4, atol=1e-6)
    assert got.norm().item() == pytest.approx(expected["l2"], rel=1e-5)
    assert report.adapted == {"pos_embed": f"1x{rows}x{dim} -> 1x{1 + grid[0] * grid[1]}x{dim}"}


@pytest.mark.parametrize("img_size", [(16, 24), (8, 32), 12])
def test_a_position_embedding_that_is_linear_stays_so_on_any_grid(img_size):
    """Bicubic interpolation reproduces a constant exactly, and a ramp away from the border."""
    source, target = vit(img_size=64), vit(img_size=img_size)
    state = source.state_dict()
    rows = torch.linspace(-1, 1, 16).add(1 / 15).view(16, 1, 1).expand(16, 16, 16)
    state["pos_embed"] = torch.cat([torch.full((1, 1, 16), 5.0), rows.reshape(1, 256, 16)], dim=1)
    load_weights(target, state)
    h, w = target.patch_embed.grid_size
    assert torch.equal(target.pos_embed[0, 0], torch.full((16,), 5.0))
    grid = target.pos_embed[0, 1:].detach().view(h, w, 16)
    torch.testing.assert_close(grid, grid[:, :1, :1].expand_as(grid))
    assert (grid[1:, 0, 0] > grid[:-1, 0, 0]).all()


def test_position_embeddings_are_read_with_or_without_a_class_row_and_as_a_map():
    with_class, without = vit(), vit(class_token=False, global_pool="avg")
    state = with_class.state_dict()
    patches = state["pos_embed"][:, 1:].clone()
    del state["cls_token"]
    load_weights(without, state | {"fc_norm.weight": torch.ones(16), "fc_norm.bias": torch.zeros(16)}, strict=False)
    torch.testing.assert_close(without.pos_embed, patches)

    made = with_class.pos_embed.detach()[:, 0].clone()
    load_weights(with_class, with_class.state_dict() | {"pos_embed": patches.view(1, 4, 4, 16) + 1})
    torch.testing.assert_close(with_class.pos_embed.detach()[:, 1:], patches + 1)
    assert torch.equal(with_class.pos_embed[:, 0], made)


def test_the_grid_of_a_non_square_checkpoint_is_recorded_or_asked_for(tmp_path):
    source, target = vit(img_size=(16, 36)), vit(img_size=(8, 24))
    with pytest.raises(UserError, match=r"5 rows|61 rows|grid"):
        load_weights(target, vit(img_size=(16, 60)).state_dict())
    save_weights(source, tmp_path / "weights.safetensors")
    save_weights(source, tmp_path / "weights.pth")
    for given in (tmp_path / "weights.safetensors", tmp_path / "weights.pth"):
        load_weights(target, given)
        from_file = target.pos_embed.detach().clone()
        load_weights(target, source.state_dict(), grid=(4, 9))
        assert torch.equal(from_file, target.pos_embed)
    square = vit(img_size=24)  # 36 tokens too, in another arrangement
    report = load_weights(square, tmp_path / "weights.pth")
    assert "pos_embed" in report.adapted
    assert not torch.equal(square.pos_embed[:, 1:], source.pos_embed[:, 1:])


@pytest.mark.parametrize(("there", "here"), [(3, 1), (3, 4), (3, 12), (1, 3), (4, 3), (12, 4)])
def test_the_first_layer_takes_another_number_of_channels(there, here):
    source, target = vit(in_chans=there), vit(in_chans=here)
    report = load_weights(target, source.state_dict())
    assert list(report.adapted) == ["patch_embed.proj.weight"]
    flat = torch.ones(1, 1, 16, 16)
    expected, got = source.patch_embed(flat.expand(1, there, -1, -1)), target.patch_embed(flat.expand(1, here, -1, -1))
    tolerance = 1e-5 if here == 1 or there != 3 or here % 3 == 0 else 1.0  # 3 to 4 repeats a channel: timm's rule
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


# What is refused


def test_a_silent_mismatch_raises_and_names_what_does_not_fit():
    model = vit()
    state = model.state_dict()
    with pytest.raises(UserError, match=re.escape("1 unexpected (extra.weight)")):
        load_weights(model, state | {"extra.weight": torch.zeros(1)})
    with pytest.raises(UserError, match=re.escape("1 missing (norm.bias)")):
        load_weights(model, {key: value for key, value in state.items() if key != "norm.bias"})
    with pytest.raises(UserError, match=re.escape("norm.bias: 17 in the file, 16 here")):
        load_weights(model, state | {"norm.bias": torch.zeros(17)})
    with pytest.raises(UserError, match="holds nothing of this VisionTransformer"):
        load_weights(model, {"layer1.conv.weight": torch.zeros(1)}, strict=False)


def test_a_refused_load_changes_nothing():
    model, other = vit(), vit()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(UserError):
        load_weights(model, other.state_dict() | {"extra": torch.zeros(1)})
    assert_same(model, before)


def test_a_loose_load_takes_what_fits_and_says_the_rest():
    model, other = vit(), vit()
    state = other.state_dict() | {"extra": torch.zeros(1), "norm.bias": torch.zeros(17)}
    report = load_weights(model, state, strict=False)
    assert report.unexpected == ["extra"]
    assert list(report.mismatched) == ["norm.bias"]
    assert_same(model, other.state_dict(), but=("norm.bias",))
    assert "\n" not in str(report)


class Exploit:
    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.parametrize("write", ["zip", "pickle"])
def test_a_pickle_that_wants_code_is_refused(tmp_path, write):
    path = tmp_path / "evil.pth"
    if write == "zip":
        torch.save({"state_dict": vit().state_dict(), "payload": Exploit()}, path)
    else:
        path.write_bytes(pickle.dumps(Exploit(), protocol=2))
    with pytest.raises(UserError, match=r"wants to run code when it is opened \(posix.system\)"):
        load_weights(vit(), path)


def test_a_whole_pickled_model_is_refused(tmp_path):
    torch.save(vit(), tmp_path / "model.pth")
    with pytest.raises(UserError, match="wants to run code"):
        load_weights(vit(), tmp_path / "model.pth")


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth"])
def test_damaged_files_are_refused_in_one_line(tmp_path, name):
    path = tmp_path / name
    save_weights(vit(), path)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:7], b"<html>not found</html>", b"\x00" * 100):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"cannot read .*weights") as error:
            load_weights(vit(), path)
        assert "\n" not in str(error.value)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="is empty"):
        load_weights(vit(), path)


def test_absent_and_weightless_sources_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "weights.pth").touch()
    with pytest.raises(UserError, match=r"no file or folder .*weight.pth. Did you mean weights.pth"):
        load_weights(vit(), tmp_path / "weight.pth")
    with pytest.raises(UserError, match="no weights in the folder"):
        load_weights(vit(), tmp_path / "folder")
    with pytest.raises(UserError, match="no weights, only epoch"):
        load_weights(vit(), {"epoch": 3})
    with pytest.raises(UserError, match="no weights, only nothing"):
        load_weights(vit(), {})
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(UserError, match="holds a list"):
        load_weights(vit(), tmp_path / "list.pt")


# What is written


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "a.pth", "a.pth.tar"])
@pytest.mark.parametrize("naming", ["vitling", "authors"])
def test_saved_weights_come_back_equal(tmp_path, name, naming):
    source, target = vit().to(memory_format=torch.channels_last), vit()
    vitling.save_weights(source, tmp_path / name, naming=naming, metadata={"epoch": 3})
    vitling.load_weights(target, tmp_path / name)
    assert_same(target, source.state_dict())
    assert os.listdir(tmp_path) == [name]


def test_metadata_and_grid_stand_in_the_file(tmp_path):
    save_weights(vit(img_size=(8, 24)), tmp_path / "a.safetensors", metadata={"epoch": 3})
    with safetensors.safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "epoch": "3", "grid": "2x6"}


def test_unknown_formats_and_namings_are_refused(tmp_path):
    with pytest.raises(UserError, match="unknown weights format"):
        save_weights(vit(), tmp_path / "weights.onnx")
    with pytest.raises(UserError, match="Did you mean authors"):
        save_weights(vit(), tmp_path / "weights.pth", naming="author")
    assert os.listdir(tmp_path) == []


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight


@pytest.mark.parametrize("name", ["tied.safetensors", "tied.pth"])
def test_tied_weights_survive(tmp_path, name):
    source, target = Tied(), Tied()
    save_weights(source, tmp_path / name)
    load_weights(target, tmp_path / name)
    assert_same(target, source.state_dict())
    assert target.one.weight is target.two.weight


def test_tied_weights_that_were_stored_once_are_not_missing(tmp_path):
    source, target = Tied(), Tied()
    safetensors.torch.save_model(source, str(tmp_path / "once.safetensors"))
    load_weights(target, tmp_path / "once.safetensors")
    assert_same(target, source.state_dict())


@pytest.mark.parametrize("in_chans", [1, 2, 3, 4, 12])
def test_timm_loads_the_folder_that_we_write(tmp_path, in_chans):
    """With other than three channels timm would silently draw a new first layer, were it named in the config."""
    arguments = dict(TINY, img_size=[16, 24], in_chans=in_chans)
    source = vit(img_size=(16, 24), in_chans=in_chans, num_classes=3)
    save_for_timm(source, tmp_path, model_args=arguments, label_names=["a", "b", "c"], cfg={"mean": [0.5] * in_chans})
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert_same(loaded, source.state_dict())
    assert loaded.pretrained_cfg["label_names"] == ["a", "b", "c"]
    assert loaded.pretrained_cfg["mean"] == [0.5] * in_chans
    assert tuple(loaded.pretrained_cfg["input_size"]) == (in_chans, 16, 24)


def test_adapting_a_state_leaves_it_and_the_model_unchanged():
    source, target = vit(num_classes=3, img_size=32), vit()
    state = source.state_dict()
    shapes = {key: value.shape for key, value in state.items()}
    before = {key: value.clone() for key, value in target.state_dict().items()}
    adapted, report = adapt_state(state, target)
    assert {key: value.shape for key, value in state.items()} == shapes
    assert_same(target, before)
    assert adapted["pos_embed"].shape == target.pos_embed.shape
    assert set(report.skipped) == {"head.weight", "head.bias"}


def test_equal_weights_are_equal_files_whatever_the_order_of_their_metadata(tmp_path):
    model = nn.Linear(3, 5)
    metadata = {f"entry {i}": "ü" * i for i in range(20)}
    contents = set()
    for i in range(5):
        shuffled = dict(sorted(metadata.items(), key=lambda item, i=i: hash((item, i))))
        save_weights(model, tmp_path / "weights.safetensors", metadata=shuffled)
        contents.add((tmp_path / "weights.safetensors").read_bytes())
    assert len(contents) == 1
    with safetensors.safe_open(tmp_path / "weights.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", **metadata}
        assert torch.equal(file.get_tensor("weight"), model.weight)
    assert int.from_bytes(contents.pop()[:8], "little") % 8 == 0  # so that tensors lie where loaders want them


def test_a_distilled_deit_of_timm_is_filled_with_both_of_its_heads():
    """timm returns its classifiers as a pair."""
    sizes = dict(img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=2)
    models = [timm.create_model("deit_tiny_distilled_patch16_224", num_classes=n, **sizes) for n in (5, 5, 3)]
    assert len(vitling.load_weights(models[0], models[1].state_dict()).loaded) == len(models[0].state_dict())
    report = vitling.load_weights(models[0], models[2].state_dict())
    assert {key.rpartition(".")[0] for key in report.skipped} == {"head", "head_dist"}
