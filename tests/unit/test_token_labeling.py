"""The method: targets of the right images, MixToken on every family, the loss's options, and the papers' recipes."""

from fnmatch import fnmatch

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F

from vitling.data import ArrayImages
from vitling.data.augment.augment import Augment
from vitling.data.pipeline.loader import Resident, TrainLoader
from vitling.data.sources.dataset import Dataset
from vitling.errors import UserError
from vitling.methods import create_method
from vitling.methods.token_labeling import TokenLabeling, token_label_loss
from vitling.methods.token_labeling.label_maps import Header, LabelMaps
from vitling.methods.token_labeling.method import mix_targets, token_shares
from vitling.models import build_model
from vitling.recipes import Optim, Recipe, named_recipes

FAMILIES = {
    "lvvit_test": {},
    "dhvt_test": {},
    "t2t_vit_test": {},
    "t2t_vit_dense_test": {},
    "boot_vit_test": {},
    "diag_vit_test": {},
    "vit_tiny_patch16_224": dict(patch_size=4, embed_dim=24, depth=2, num_heads=2),
}


def method_for(name="lvvit_test", size=16, **options):
    torch.manual_seed(0)
    args = FAMILIES.get(name, {}) | options.pop("model_args", {})
    model = build_model(name, num_classes=5, in_chans=3, img_size=(size, size), **args)
    return create_method("token_labeling", model, num_classes=5, **options)


def batch_of(n=6, size=16):
    torch.manual_seed(1)
    return {"image": torch.randn(n, 3, size, size), "label": torch.arange(n) % 5, "index": torch.arange(n)}


@pytest.fixture
def labelled(tmp_path):
    """Forty pictures whose one grey level encodes their number, and maps whose best score encodes it too."""
    n = 40
    pixels = np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None] * 6, (n, 16, 16, 1))
    images = ArrayImages(pixels, np.arange(n) % 5)
    data = Dataset("grey", [str(i) for i in range(5)], 1, {"train": images}, images.digest().hex())
    header = Header(
        data="grey", fingerprint=data.fingerprint, split="train", images=n, class_names=data.class_names, grid=(4, 4),
        top_k=1, fit="resize", size=(16, 16), annotator="", weights="", raw_scores=True,
    )  # fmt: skip
    maps = LabelMaps.create(tmp_path / "maps", header)
    shape = (n, *header.shape)
    maps.append(
        np.broadcast_to(np.arange(n)[:, None, None, None] / 8, shape),
        np.broadcast_to(images.labels[:, None, None, None], shape),
    )
    return data, LabelMaps.open(tmp_path / "maps")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_picture_of_a_shuffled_carved_split_is_taught_its_own_label(labelled, accumulate):
    data, maps = labelled
    train = data.splits["train"].subset([i for i in range(40) if i % 3])
    maps = maps.of_split(data, train, fit="resize", size=(16, 16))
    source = Resident(torch.tensor(train.array[train.rows].copy()).permute(0, 3, 1, 2), torch.tensor(train.labels))
    augment = Augment(16, mean=(0.0,), std=(1 / 255,), crop="resized", crop_scale=(0.5, 1.0), interpolation="bilinear")
    recipe = Recipe(batch_size=6, accumulate=accumulate)
    model = timm.create_model("lvvit_test", num_classes=5, in_chans=1)
    method = TokenLabeling(model, num_classes=5, maps=maps, label_smoothing=0.0)
    loader = TrainLoader(source, augment, recipe=recipe, device="cpu", with_geometry=method.wants_geometry)
    for step in loader.epoch(0):
        assert len(step) == accumulate
        for batch in step:
            number = (batch["image"].mean(dim=(1, 2, 3)) / 6).round().long()  # which picture this really is
            target = method.targets(batch)
            assert target.shape == (6 // accumulate, 5, 2 + 16)
            expected = F.one_hot(number % 5, 5) * number[:, None] / 8
            torch.testing.assert_close(
                target[:, :, 1:], expected.softmax(1)[:, :, None].expand(-1, -1, 17), atol=2e-3, rtol=0
            )
            torch.testing.assert_close(target[:, :, 0], F.one_hot(number % 5, 5).float())


def test_geometry_is_made_only_for_a_method_that_wants_it(labelled):
    _, maps = labelled
    assert not method_for("vit_tiny_patch16_224").wants_geometry
    assert TokenLabeling(timm.create_model("lvvit_test", num_classes=5), num_classes=5, maps=maps).wants_geometry
    source = Resident(torch.zeros(8, 1, 16, 16, dtype=torch.uint8), torch.zeros(8, dtype=torch.long))
    augment = Augment(16, mean=(0.0,), std=(1.0,))
    [batch] = next(TrainLoader(source, augment, recipe=Recipe(batch_size=8), device="cpu").epoch(0))
    assert "geometry" not in batch


@pytest.mark.parametrize("name", FAMILIES)
def test_a_box_around_everything_exchanges_the_pictures_and_the_outputs_are_put_back(name):
    """Positions stay in place, so tokens that are all exchanged are those of the mirrored batch."""
    method = method_for(name).eval()
    images, everything = batch_of()["image"], (0, 0, *method.grid)
    with torch.no_grad():
        if method.has_own_head:
            cls, dense, _ = method.model.forward_tokens(images, None)
            mixed_cls, mixed_dense, _ = method.model.forward_tokens(images, everything)
        else:
            plain, mixed = (method.mixed_features(images, box) for box in (None, everything))
            torch.testing.assert_close(mixed, plain.flip(0), atol=1e-5, rtol=1e-5)
            method.mix_token = False
            cls, dense, _ = method.forward_tokens(images)
            mixed_cls = method.model.forward_head(mixed)
            mixed_dense = method.dense_head(mixed[:, method.model.num_prefix_tokens :]).flip(0)
    torch.testing.assert_close(mixed_cls, cls.flip(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixed_dense, dense, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n", [1, 5])
def test_every_family_learns_from_batches_of_any_size(name, n):
    method = method_for(name).train()
    losses = method(batch_of(n), 0.0)
    assert losses.keys() == {"loss", "cls_label", "token_labels"}
    losses["loss"].backward()
    silent = [k for k, p in method.named_parameters() if p.requires_grad and p.grad is None]
    assert not silent
    optimised = {id(p) for group in method.parameter_groups(Optim(), 1e-3) for p in group["params"]}
    assert optimised == {id(p) for p in method.parameters() if p.requires_grad}
    assert not any("dense_head" in key for key in method.model.state_dict())


def test_mixing_happens_between_the_patches_and_their_positions():
    method = method_for("vit_tiny_patch16_224", mix_token=True).eval()
    images, box = batch_of()["image"], (1, 0, 3, 2)
    seen = []
    hook = method.model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        method.mixed_features(images, box)
        patches = method.model.patch_embed(images).unflatten(1, (4, 4))
    hook.remove()
    expected = patches.clone()
    expected[:, 1:3, 0:2] = patches.flip(0)[:, 1:3, 0:2]
    expected = expected.flatten(1, 2) + method.model.pos_embed[:, 1:]
    torch.testing.assert_close(seen[0][:, 1:], expected.detach())
    assert not method.model.patch_embed._forward_hooks


def test_the_dense_head_decays_its_weight_and_not_its_bias():
    method = method_for("dhvt_test")
    groups = method.parameter_groups(Optim(weight_decay=0.05, layer_decay=0.5, lr_factors={"blocks.*": 0.1}), 1e-3)
    of = {id(p): group for group in groups for p in group["params"]}
    weight, bias = (of[id(p)] for p in (method.dense_head.weight, method.dense_head.bias))
    assert (weight["weight_decay"], bias["weight_decay"]) == (0.05, 0.0)
    assert weight["lr"] == bias["lr"] == 1e-3


def test_relabeling_teaches_one_label_per_crop():
    method = method_for("lvvit_test", label_tokens=False, model_args=dict(return_dense=False))
    assert method.dense_head is None
    assert method.targets(batch_of()).shape == (6, 5, 2)
    assert method(batch_of(), 0.0).keys() == {"loss", "cls_label"}


def test_without_maps_every_token_learns_the_label_of_its_image():
    target = method_for("lvvit_test").targets(batch_of())
    expected = F.one_hot(batch_of()["label"], 5) * 0.9 + 0.02
    torch.testing.assert_close(target, expected[:, :, None].expand(-1, -1, 18))


def test_the_class_token_may_learn_the_truth_and_the_others_the_map(labelled):
    _, maps = labelled
    model = timm.create_model("lvvit_test", num_classes=5, in_chans=1)
    augment = Augment(16, mean=(0.0,), std=(1.0,))
    pixels, geometry = augment.apply(
        torch.zeros(4, 1, 16, 16, dtype=torch.uint8), augment.draw(4), return_geometry=True
    )
    batch = {"image": pixels, "label": torch.tensor([4, 4, 4, 4]), "index": torch.arange(4), "geometry": geometry}
    by_map, by_truth = (
        TokenLabeling(model, num_classes=5, maps=maps, class_label=which).targets(batch) for which in ("map", "truth")
    )
    assert torch.equal(by_map[:, :, 2:], by_truth[:, :, 2:])
    assert torch.equal(by_truth[:, :, 1], by_truth[:, :, 0])
    assert not torch.equal(by_map[:, :, 1], by_map[:, :, 0])


def test_weights_of_the_two_terms_and_of_classes_count():
    batch, weights = batch_of(), torch.tensor([1.0, 2.0, 1.0, 1.0, 3.0])
    plain = method_for(mix_token=False)(batch, 0.0)
    halved = method_for(mix_token=False, dense_weight=0.5, cls_weight=2.0)(batch, 0.0)
    torch.testing.assert_close(halved["loss"], 2 * plain["cls_label"] + 0.5 * plain["token_labels"])
    weighted = method_for(mix_token=False, class_weights=weights)(batch, 0.0)
    assert not torch.equal(weighted["cls_label"], plain["cls_label"])


def test_a_label_for_the_whole_image_serves_all_its_tokens():
    label = torch.randn(4, 5).softmax(1)
    cls, dense = torch.randn(4, 5), torch.randn(4, 9, 5)
    everywhere = label[:, :, None].expand(-1, -1, 11)
    torch.testing.assert_close(token_label_loss(cls, dense, label), token_label_loss(cls, dense, everywhere))


@pytest.mark.parametrize("grid", [(4, 4), (3, 8)], ids=str)
def test_cutmix_mixes_the_labels_of_the_tokens_that_it_covers(grid):
    boxes = torch.tensor([[2, 3, 11, 14], [0, 0, 24, 24], [5, 5, 5, 5], [0, 0, 0, 0]])
    share = torch.tensor([0.8, 0.0, 1.0, 0.3])
    shares = token_shares(share, boxes, (24, 24), grid)
    mask = torch.ones(4, 1, 24, 24)
    for one, (top, left, bottom, right) in zip(mask, boxes.tolist(), strict=True):
        one[:, top:bottom, left:right] = 0
    expected = F.avg_pool2d(mask, (24 // grid[0], 24 // grid[1])).flatten(1)
    torch.testing.assert_close(shares[:2], expected[:2])
    assert shares[2].eq(1).all()
    torch.testing.assert_close(shares[3], torch.full_like(shares[3], 0.3))
    target = torch.rand(4, 2, 2 + shares.shape[1])
    mixed = mix_targets(target, share, shares)
    torch.testing.assert_close(mixed[0, :, 2], target[0, :, 2] * shares[0, 0] + target[3, :, 2] * (1 - shares[0, 0]))
    torch.testing.assert_close(mixed[1, :, 1], target[2, :, 1])


@pytest.mark.parametrize("mix", [dict(mixup=0.8), dict(cutmix=1.0), dict(mixup=0.8, cutmix=1.0, axes="official")])
def test_image_mixing_goes_together_with_and_without_mixtoken(mix):
    for mix_token in (False, True):
        assert method_for(mix_token=mix_token, **mix)(batch_of(5), 0.0)["loss"].isfinite()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {}, "ResNet has no tokens to label"),
        ("lvvit_test", dict(axes="released"), "axes=released is not one of geometric, official"),
        ("lvvit_test", dict(class_label="both"), "class_label=both is not one of map, truth"),
        ("lvvit_test", dict(label_tokens=False), "would leave the dense head of this model untrained"),
        ("lvvit_test", dict(dense_wieght=1), r"no argument 'method_args.dense_wieght'. Did you mean dense_weight"),
    ],
)
def test_what_cannot_work_is_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        method_for(name, size=32 if name == "resnet18" else 16, **options)


def test_maps_of_another_class_count_are_refused(labelled):
    with pytest.raises(UserError, match="label maps of 5 classes do not fit a model of 7 classes"):
        TokenLabeling(timm.create_model("lvvit_test", num_classes=7), num_classes=7, maps=labelled[1])


@pytest.mark.parametrize("name", [name for name in named_recipes() if name.startswith(("lvvit/", "t2t/"))])
def test_recipes_of_the_two_papers_name_what_exists(name):
    recipe = named_recipes()[name]()
    transformer = "vit" in recipe.model
    size = dict(img_size=recipe.img_size or 32) if transformer else {}
    quick = dict(depth=1) if transformer and "dense" not in recipe.model else {}
    with torch.device("meta"):
        model = timm.create_model(recipe.model, num_classes=100, **size, **recipe.model_args | quick)
        if recipe.method == "token_labeling":
            chosen = {k: v for k, v in recipe.method_args.items() if k not in ("labels", "relabel")}
            create_method("token_labeling", model, num_classes=100, **chosen)
        else:
            create_method(recipe.method, model, num_classes=100, **recipe.method_args)
    names = [key for key, _ in model.named_parameters()]
    for pattern in (*recipe.freeze, *recipe.optim.lr_factors):
        assert any(fnmatch(key, pattern) for key in names), pattern
