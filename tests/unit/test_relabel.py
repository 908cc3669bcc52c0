"""Relabel: score maps of any model, resumable, refused where labels would be wrong, and the authors' files both ways."""

import pickle
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from recorder import Recorder
from tiny_run import TINY, make_tiny_run
from torch import nn

from vitling.callbacks import Callback
from vitling.data import open_dataset
from vitling.data.sources.dataset import Dataset
from vitling.errors import UserError
from vitling.methods.token_labeling.author_maps import write_maps
from vitling.methods.token_labeling.label_maps import LabelMaps
from vitling.methods.token_labeling.method import TokenLabeling
from vitling.methods.token_labeling.relabeling import best_classes, export_to_authors, look_at, relabel, score_map
from vitling.models import build_model
from vitling.recipes import Recipe, load_recipe
from vitling.runs.opening import open_model


def small_cnn(classes=3, chans=1):
    torch.manual_seed(0)
    return timm.create_model("diag_resnet18_test", img_size=16, num_classes=classes, in_chans=chans).eval()


@pytest.fixture
def folder(tmp_path):
    """Thirty pictures of three classes, each of its own size."""
    rng = np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 256, (20 + i, 40 - i), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{name}_{i}.png")
    return tmp_path / "data"


@pytest.mark.parametrize("name", ["diag_resnet18_test", "agent_test", "resnet18", "convnext_atto", "efficientnet_b0"])
def test_the_map_of_a_network_that_pools_averages_to_its_prediction_or_has_its_head_at_every_place(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, in_chans=3).eval()
    x = torch.randn(2, 3, 64, 64)
    maps = score_map(model, x)
    with torch.no_grad():
        features = model.forward_features(x)
        assert maps.shape == (2, *features.shape[2:], 7)
        if name != "convnext_atto":  # whose head normalises what it pooled
            torch.testing.assert_close(maps.mean(dim=(1, 2)), model(x), atol=1e-5, rtol=1e-4)
        corner = model.forward_head(features[:, :, -1:, :1])
        torch.testing.assert_close(maps[:, -1, 0], corner, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("name", ["dhvt_test", "t2t_vit_test", "boot_vit_test", "vit_tiny_patch16_224"])
def test_a_transformer_is_asked_about_each_of_its_tokens(name, pool):
    torch.manual_seed(0)
    size = dict(patch_size=4, embed_dim=24, depth=2, num_heads=2) if name.startswith("vit") else {}
    model = timm.create_model(name, img_size=(16, 32), num_classes=5, in_chans=3, global_pool=pool, **size).eval()
    x = torch.randn(2, 3, 16, 32)
    maps = score_map(model, x)
    with torch.no_grad():
        tokens = model.forward_features(x)[:, model.num_prefix_tokens :]
        own = getattr(model, "fc_norm", nn.Identity())(tokens)
        torch.testing.assert_close(maps.flatten(1, 2), model.get_classifier()(own), atol=1e-5, rtol=1e-5)
    assert maps.shape[1:3] == (4, 8)


def test_lvvit_answers_with_its_own_head_for_tokens_and_swin_with_its_channels_last():
    model = timm.create_model("lvvit_test").eval()
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(score_map(model, x).flatten(1, 2), model.forward_tokens(x)[1].detach())
    swin = dict(img_size=32, patch_size=2, window_size=4, embed_dim=12, depths=(1, 1), num_heads=(2, 2))
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=4, **swin).eval()
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(score_map(model, x).mean(dim=(1, 2)), model(x).detach(), atol=1e-5, rtol=1e-4)


def test_a_stored_class_has_the_probability_that_all_scores_give_it():
    logits = 3 * torch.randn(4, 5, 5, 50)
    scores, classes = best_classes(logits, 5)
    dense = torch.zeros_like(logits).scatter(-1, classes, scores.float())
    exact = logits.softmax(-1).gather(-1, classes)
    torch.testing.assert_close(dense.softmax(-1).gather(-1, classes), exact, atol=2e-3, rtol=2e-3)
    raw = best_classes(logits, 5, raw_scores=True)[0]
    torch.testing.assert_close(raw.float(), logits.topk(5).values, atol=1e-2, rtol=1e-3)
    few = best_classes(logits[..., :3], 3)[0]
    torch.testing.assert_close(
        few.float().softmax(-1), logits[..., :3].sort(descending=True).values.softmax(-1), atol=2e-3, rtol=2e-3
    )


def test_a_map_is_of_the_whole_picture_and_says_so(folder, tmp_path):
    model = small_cnn()
    recorder = Recorder()
    maps = relabel(model, str(folder), tmp_path / "maps", size=(16, 32), top_k=2, callback=recorder)
    head = maps.header
    assert (head.fit, head.size, head.grid, head.top_k, head.images) == ("resize", (16, 32), (2, 4), 2, 30)
    assert head.class_names == ["ant", "bee", "cat"]
    assert re.fullmatch(r"30 label maps of 2 x 4 cells with 2 of 3 classes: 1.44 KB in .*", recorder.messages[0])
    assert (tmp_path / "maps" / "part-00000.npy").stat().st_size - 128 == 1440
    with Image.open(folder / "bee" / "bee_4.png") as image:
        pixels = np.array(image.resize((32, 16), Image.Resampling.BICUBIC))
    expected = score_map(model, (torch.tensor(pixels)[None, None].float() / 255 - 0.5) / 0.5)
    scores, classes = maps.take(torch.tensor([14]))
    assert torch.equal(classes, expected.topk(2).indices)
    # With one class left over, its own score is the mean of the rest.
    torch.testing.assert_close(
        scores.float(), expected.topk(2).values - expected.amin(-1, keepdim=True), atol=2e-3, rtol=2e-3
    )


def test_an_interrupted_relabeling_goes_on_and_ends_the_same(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["vitling.methods.token_labeling.relabeling"], "CHUNK_BYTES", 1)
    data = open_dataset(folder)
    relabel(small_cnn(), data, tmp_path / "whole", batch_size=4)

    class Stop(Callback):
        def on_progress(self, task, done, total):
            if done > 15:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        relabel(small_cnn(), data, tmp_path / "parts", batch_size=4, callback=Stop())
    recorder = Recorder()
    relabel(small_cnn(), data, tmp_path / "parts", batch_size=4, callback=recorder)
    assert "resuming after 12 images" in recorder.messages
    assert [done for _, done, _ in recorder.progress] == [16, 20, 24, 28, 30]
    assert (tmp_path / "parts" / "part-00000.npy").read_bytes() == (tmp_path / "whole" / "part-00000.npy").read_bytes()
    with pytest.raises(UserError, match="already holds other label maps"):
        relabel(small_cnn(), data, tmp_path / "parts", top_k=1)


def test_an_annotator_with_its_classes_in_another_order_is_understood(folder, tmp_path):
    model = small_cnn()
    straight = relabel(model, str(folder), tmp_path / "a", top_k=3, raw_scores=True).take(torch.arange(30))
    order = [2, 0, 1]
    with torch.no_grad():
        model.linear.weight.copy_(model.linear.weight[order])
        model.linear.bias.copy_(model.linear.bias[order])
    model.pretrained_cfg["label_names"] = ["cat", "ant", "bee"]
    turned = relabel(model, str(folder), tmp_path / "b", top_k=3, raw_scores=True).take(torch.arange(30))
    assert torch.equal(straight[1], turned[1])
    torch.testing.assert_close(straight[0], turned[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: small_cnn(classes=4), "has 4 classes, data has 3"),
        (lambda: "resnet18", "resnet18 has 1000 classes, data has 3"),
        (lambda: "resnet_18", "no model at resnet_18; .* Did you mean resnet18"),
    ],
)
def test_an_annotator_of_other_classes_is_refused(folder, tmp_path, model, message):
    with pytest.raises(UserError, match=message):
        relabel(model(), str(folder), tmp_path / "maps")
    assert not (tmp_path / "maps").exists()


def test_class_names_that_differ_are_named(folder, tmp_path):
    model = small_cnn()
    model.pretrained_cfg["label_names"] = ["ant", "bee", "dog"]
    with pytest.raises(UserError, match="'cat', which it does not know"):
        relabel(model, str(folder), tmp_path / "maps")


def test_settings_that_cannot_be_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"unknown fit 'strech'"):
        relabel(small_cnn(), str(folder), tmp_path / "maps", fit="strech")
    with pytest.raises(UserError, match="top_k=0 is out of range"):
        relabel(small_cnn(), str(folder), tmp_path / "maps", top_k=0)


@pytest.fixture
def ensemble(tmp_path):
    """A run of two networks, which are the runs of its folds."""
    run = make_tiny_run(tmp_path / "made")
    for number in (1, 2):
        shutil.copytree(run.path, run.path / f"fold-{number}", ignore=shutil.ignore_patterns("fold-*"))
    own = {key: value for key, value in TINY.items() if key != "img_size"}
    args = dict(architecture="vit_tiny_patch16_224", members=2, architecture_args=own)
    model = build_model("ensemble", num_classes=2, in_chans=3, img_size=(8, 8), **args)
    run.save_recipe(replace(run.recipe, model="ensemble", model_args=args))
    run.save_model("best", model, ["cat", "dog"], {**args, "in_chans": 3, "img_size": [8, 8]})
    run.update(members=2)
    return run


def test_an_ensemble_is_refused_with_what_takes_it(ensemble, tmp_path):
    with pytest.raises(UserError) as caught:
        relabel(ensemble.path, str(tmp_path / "made" / "data"), tmp_path / "maps")
    text = str(caught.value)
    assert text.startswith(
        f"label maps are made by one network, and {ensemble.path} is an ensemble; give the run of one"
    )
    assert str(ensemble.path / "fold-1") in text
    assert f"method=self_training method_args.teacher={ensemble.path} method_args.unlabelled=IMAGES" in text
    assert "\n" not in text
    assert not (tmp_path / "maps").exists()


@pytest.mark.parametrize("kind", ["folder", "splits", "list"])
def test_images_without_labels_are_refused_with_what_takes_them(ensemble, tmp_path, kind):
    plain = tmp_path / "plain"
    place = plain / "train" if kind == "splits" else plain
    place.mkdir(parents=True)
    for i in range(4):
        Image.fromarray(np.full((9, 9, 3), 20 * i, np.uint8)).save(place / f"{i}.png")
    if kind == "list":
        plain = tmp_path / "plain.txt"
        plain.write_text("plain/0.png\nplain/1.png\n")
    for annotator in (ensemble.path, ensemble.path / "fold-1"):
        with pytest.raises(UserError) as caught:
            relabel(annotator, str(plain), tmp_path / "maps")
        assert f"method=self_training method_args.teacher={annotator} method_args.unlabelled={plain}" in str(
            caught.value
        )
        assert "\n" not in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as caught:
        relabel(ensemble.path, str(tmp_path / "empty"), tmp_path / "maps")
    assert "self_training" not in str(caught.value)


# -- the authors' files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 1, (16, 7), 0, 100_000])
def test_a_size_that_gives_no_map_is_refused(folder, tmp_path, size):
    vit = timm.create_model("boot_vit_test", img_size=16, num_classes=3, in_chans=1).eval()
    for annotator in (small_cnn(), vit):
        with pytest.raises(UserError, match="size=") as error:
            relabel(annotator, str(folder), tmp_path / "maps", size=size)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "maps").exists()


def test_a_larger_size_gives_a_finer_map(folder, tmp_path):
    assert relabel(small_cnn(), str(folder), tmp_path / "maps", size=32).header.grid == (4, 4)


def test_maps_survive_the_way_through_the_authors_files(folder, tmp_path):
    maps = relabel(small_cnn(), str(folder), tmp_path / "maps", fit="crop", size=24, raw_scores=True)
    export_to_authors(maps, str(folder), tmp_path / "pt")
    first = torch.load(tmp_path / "pt" / "ant" / "ant_0.pt", weights_only=True)
    assert (first.dtype, tuple(first.shape)) == (torch.float16, (2, 3, 3, 3))
    again = relabel(tmp_path / "pt", str(folder), tmp_path / "again")
    for a, b in zip(maps.take(torch.arange(30)), again.take(torch.arange(30)), strict=True):
        assert torch.equal(a, b)
    assert (again.header.fit, again.header.raw_scores) == ("crop", True)


def test_files_of_the_authors_that_are_missing_or_wrong_are_named(folder, tmp_path):
    export_to_authors(relabel(small_cnn(), str(folder), tmp_path / "maps"), str(folder), tmp_path / "pt")
    path = tmp_path / "pt" / "bee" / "bee_7.pt"
    good = torch.load(path, weights_only=True)
    path.unlink()
    with pytest.raises(UserError, match=r"1 of 30 images have no label map in .*, the first: .*bee_7.pt"):
        relabel(tmp_path / "pt", str(folder), tmp_path / "new")
    for bad, message in (
        (good[:, :1], r"bee_7.pt holds \(1, 2, 2\) torch.float16; \[2, k, H, W\] floats like the first"),
        (torch.stack([good[0], good[1] + 1]), "does not fit 3 classes: its class numbers run from 1 to 3"),
        (torch.stack([good[0], good[1] + 0.5]), "does not fit 3 classes"),
        (torch.stack([good[0] * torch.inf, good[1]]), "does not fit 3 classes"),
    ):
        torch.save(bad, path)
        with pytest.raises(UserError, match=message):
            relabel(tmp_path / "pt", str(folder), tmp_path / "new")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match=r"bee_7.pt cannot be read as a label map"):
        relabel(tmp_path / "pt", str(folder), tmp_path / "new")


class Bomb:
    def __reduce__(self):
        return (open, ("exploded.txt", "w"))


def test_a_file_with_code_in_it_is_not_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export_to_authors(relabel(small_cnn(), str(folder), tmp_path / "maps"), str(folder), tmp_path / "pt")
    (tmp_path / "pt" / "ant" / "ant_0.pt").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match=r"ant_0.pt cannot be read as a label map"):
        relabel(tmp_path / "pt", str(folder), tmp_path / "new")
    assert not (tmp_path / "exploded.txt").exists()


def test_two_images_that_would_share_a_file_and_too_many_classes_are_refused(folder, tmp_path):
    maps = relabel(small_cnn(), str(folder), tmp_path / "maps")
    names = maps.header.class_names
    images = open_dataset(folder).splits["train"]
    images.names[1] = "ant/ant_0.second.png"
    with pytest.raises(UserError, match=r"would share the label map .*ant_0.pt"):
        write_maps(maps, tmp_path / "pt", images)
    names += [str(i) for i in range(2048)]
    with pytest.raises(UserError, match="holds 2048 classes at most"):
        write_maps(maps, tmp_path / "pt", images)


def test_maps_for_other_data_are_refused_when_they_are_exported(folder, tmp_path):
    maps = relabel(small_cnn(), str(folder), tmp_path / "maps")
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(folder / "ant" / "ant_3.png")
    with pytest.raises(UserError, match="are of other images than data"):
        export_to_authors(maps, str(folder), tmp_path / "pt")


def test_what_was_written_can_be_opened_again(folder, tmp_path):
    data = open_dataset(folder)
    assert isinstance(data, Dataset)
    maps = relabel(small_cnn(), data, tmp_path / "maps")
    again = LabelMaps.open(tmp_path / "maps").of_split(data, data.splits["train"], fit="resize", size=(24, 24))
    index = torch.tensor([3, 29])
    assert torch.equal(maps.take(index)[0], again.take(index)[0])


def test_a_map_is_of_all_that_the_fit_shows_whatever_share_the_annotator_is_tested_at():
    maps = []
    for share in (None, 0.5):
        annotator = open_model(small_cnn())
        annotator = replace(annotator, preprocessing=replace(annotator.preprocessing, test_crop=share))
        assert look_at(annotator, (16, 16), "crop").preprocessing.test_crop is None
        maps.append(look_at(annotator, None, None).preprocessing)
    assert maps[0] == maps[1]


def test_what_lacks_label_maps_says_how_to_write_them_as_the_release_does():
    released, own = load_recipe("lvvit/imagenet_s"), Recipe(method_args=dict(labels="labels/mine"))
    assert TokenLabeling.missing(released).endswith(
        "labels/imagenet; write them there with `vitling relabel`, fit=crop and raw_scores."
    )
    assert TokenLabeling.missing(own).endswith("labels/mine; write them there with `vitling relabel`, fit=resize.")
