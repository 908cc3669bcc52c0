"""A whole diagnosis of models in memory: what it does with little, odd or unreadable input."""

import json

import numpy as np
import pytest
import timm
import torch
from torch import nn

import vitling.models  # noqa: F401  (registers our families)
from vitling.diagnose.diagnosis import diagnose, diagnose_run
from vitling.errors import UserError

pytestmark = pytest.mark.slow  # draws whole pages


def small_vit(**changes):
    sizes = dict(img_size=8, patch_size=2, embed_dim=16, depth=4, num_heads=2, in_chans=1, num_classes=10)
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **(sizes | changes))


class Plain(nn.Module):
    """A network that is not a sequence of blocks and has no attention."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 10)

    def forward(self, x):
        return self.head(self.conv(x).mean(dim=(2, 3)))


def test_a_model_in_memory_needs_data_and_says_so():
    with pytest.raises(UserError, match="VisionTransformer is not a run, so it needs images: give data"):
        diagnose(small_vit())


def test_the_page_of_a_timm_model_has_its_numbers_beside_it(tmp_path):
    page = diagnose_run(small_vit(), data="digits", images=40, out=tmp_path / "page")
    assert page == tmp_path / "page.html"
    (numbers,) = json.loads((tmp_path / "page.json").read_text())
    assert numbers["images"] == 40
    assert len(numbers["attention"]) == len(numbers["blocks"]) == 4
    assert "not known to be the 10 classes" in " ".join(numbers["notes"])  # it has ten outputs, but whose?
    arrays = np.load(tmp_path / "page.npz")
    assert arrays["VisionTransformer/cka"].shape == (4, 4)
    np.testing.assert_allclose(np.diag(arrays["VisionTransformer/cka"]), 1, atol=1e-6)
    assert "currentColor" in page.read_text()


@pytest.mark.parametrize("images", [1, 3])
def test_too_few_images_for_cka_leave_the_rest_whole(images, tmp_path):
    (result,) = diagnose(small_vit(), data="digits", images=images)
    assert result.cka is None
    assert any("needs 4 of them" in note for note in result.notes)
    assert len(result.measurements.blocks) == 4
    diagnose_run(small_vit(), data="digits", images=images, out=tmp_path / "page.html")


def test_no_images_are_refused():
    with pytest.raises(UserError, match="images=0 is out of range"):
        diagnose(small_vit(), data="digits", images=0)


def test_models_with_other_input_sizes_and_class_counts_are_compared_on_the_same_pictures(tmp_path):
    other = small_vit(img_size=16, in_chans=3, num_classes=3)
    first, second = diagnose(small_vit(), other, "digits", images=70)
    assert first.cka.matrix.shape == (4, 4)
    assert first.pixels.images.shape[1:] == (1, 8, 8)
    assert second.pixels.images.shape[1:] == (3, 16, 16)
    assert second.evaluation is None
    assert "3 outputs" in " ".join(second.notes)
    diagnose_run(small_vit(), other, "digits", images=70, out=tmp_path / "page.html")


def test_both_models_see_the_same_pictures_in_the_same_order():
    first, _ = diagnose(small_vit(), small_vit(), "digits", images=70)
    np.testing.assert_allclose(first.cka.matrix.diag(), 1, atol=1e-6)


def test_a_constant_layer_is_named_and_the_page_still_drawn(tmp_path):
    model = small_vit(class_token=False, global_pool="avg")
    nn.init.zeros_(model.patch_embed.proj.weight)
    (result,) = diagnose(model, data="digits", images=20)
    assert any("constant over the images: blocks.0" in note for note in result.notes)
    diagnose_run(model, data="digits", images=20, out=tmp_path / "page.html")


def test_a_model_whose_attention_cannot_be_read_gets_a_list_of_what_works(tmp_path):
    page = diagnose_run(Plain(), data="digits", images=20, out=tmp_path / "page.html")
    (numbers,) = json.loads(page.with_suffix(".json").read_text())
    assert numbers["works"]["attention"] == "the model has no attention"
    assert "no sequence of blocks" in numbers["works"]["blocks"]
    assert numbers["attention"] == []
    assert "What could not be measured" in page.read_text()


def test_non_square_images_keep_their_grid(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 8, 12, 3), dtype=np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "wide.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    model = small_vit(img_size=(8, 12), in_chans=3)
    (result,) = diagnose(model, data=str(tmp_path / "wide.npz"))
    assert result.measurements.blocks[0].grid == (4, 6)
    assert result.measurements.attention[0].distance is not None
    diagnose_run(model, data=str(tmp_path / "wide.npz"), out=tmp_path / "page.html")


def test_a_name_that_is_neither_a_run_nor_a_model_is_refused_with_near_ones():
    with pytest.raises(UserError, match="vit_tiny_patch16_224"):
        diagnose("vit_tiny_patch16_22", data="digits")


@pytest.mark.parametrize(
    "name", ["dhvt_nano", "t2t_vit_nano", "lvvit_nano", "boot_vit_nano", "diag_vit_nano", "diag_resnet18_nano"]
)
def test_every_family_can_be_diagnosed_and_drawn(name, tmp_path):
    torch.manual_seed(0)
    page = diagnose_run(timm.create_model(name), data="digits", images=8, out=tmp_path / "page.html")
    (numbers,) = json.loads(page.with_suffix(".json").read_text())
    assert numbers["blocks"]
    assert ("head token 1<" in page.read_text()) == (name == "dhvt_nano")
