"""What the diagnosis measures: capture on every family, CKA of whole networks, attention, features, health, bad input."""

import math
from functools import cache

import pytest
import timm
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import vitling  # noqa: F401  (registers our families)
from vitling import diagnose
from vitling.diagnose.measures.channels import judge_channels
from vitling.errors import UserError
from vitling.models import our_models
from vitling.models.inspect import as_tokens, find_attention_layout

OURS = [name for name in our_models() if name.endswith("_test")]
VITS = [name for name in OURS if not name.startswith(("agent", "diag_resnet", "resnet9"))]
SMALL = dict(num_classes=10)
THEIRS = {
    "vit": lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, **SMALL),
    "vit without class token": lambda: timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, class_token=False, global_pool="avg", **SMALL
    ),
    "deit": lambda: timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, **SMALL
    ),
    "swin": lambda: timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, patch_size=2, window_size=4, embed_dim=12, depths=(2, 2), num_heads=(2, 4), **SMALL
    ),
    "pvt": lambda: timm.create_model("pvt_v2_b0", depths=(1, 1, 1, 1), **SMALL),
    "resnet": lambda: timm.create_model("resnet18", **SMALL),
}  # fmt: skip


@cache
def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return (THEIRS[name]() if name in THEIRS else timm.create_model(name)).eval()


def images_for(model: nn.Module, count: int = 6) -> torch.Tensor:
    side = 16 if model.pretrained_cfg["architecture"] in OURS else 32
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# ---------------------------------------------------------------------------------------------------------------------
# Capture


@pytest.mark.parametrize("name", [*OURS, *THEIRS])
def test_blocks_and_attention_are_captured_and_the_model_is_left_as_it_was(name):
    model = build(name).train()
    images = images_for(model)
    fused = [getattr(m, "fused_attn", None) for m in model.modules()]
    with torch.no_grad():
        plain = model.eval()(images)
    model.train()
    seen = diagnose.capture_batch(model, images)
    assert all(m.training for m in model.modules())
    model.eval()  # it is shared with the other tests
    assert [getattr(m, "fused_attn", None) for m in model.modules()] == fused
    assert hooks_of(model) == 0
    torch.testing.assert_close(seen.logits, plain, atol=1e-5, rtol=1e-4)
    assert len(seen.blocks) >= 2
    for output in seen.blocks.values():
        tokens, layout = as_tokens(model, output, tuple(images.shape[-2:]))
        assert tokens[:, layout.patches].shape[:2] == (len(images), layout.grid[0] * layout.grid[1])
        assert diagnose.token_maps(tokens, layout).shape[2:] == layout.grid
    for weights in seen.attention.values():
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["resnet", "agent_test", "diag_resnet18_test", "resnet9_test"])
def test_a_model_without_attention_says_so_and_keeps_what_works(name):
    works = diagnose.what_works(build(name), images_for(build(name)))
    assert works["blocks"] is None
    assert works["tokens"] is None
    assert works["attention"] == "the model has no attention"


@pytest.mark.parametrize("name", [*VITS, "vit", "vit without class token", "deit"])
def test_a_vit_gives_attention_distance_and_rollout(name):
    works = diagnose.what_works(build(name), images_for(build(name)))
    assert {part for part, reason in works.items() if reason} == (set() if name == "dhvt_test" else {"head tokens"})


@pytest.mark.parametrize("name", ["swin", "pvt"])
def test_a_hierarchical_model_gives_distances_but_no_rollout(name):
    works = diagnose.what_works(build(name), images_for(build(name)))
    assert works["attention"] is None
    assert works["distance"] is None
    assert "share one set of tokens" in works["rollout"]


def test_attention_that_passes_no_attn_drop_is_reported_as_unreadable():
    class HiddenAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            return nn.functional.scaled_dot_product_attention(q, k, v)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(3, 8, 4, stride=4)
            self.blocks = nn.Sequential(*(nn.Sequential(HiddenAttention()) for _ in range(2)))

        def forward(self, x):
            return self.blocks(self.embed(x).flatten(2).mT).mean(dim=1)

    works = diagnose.what_works(Model(), torch.randn(2, 3, 16, 16))
    assert works["tokens"] is None
    assert "attn_drop" in works["attention"]
    with pytest.raises(UserError, match="cannot be read"):
        diagnose.relevance_map(Model(), torch.randn(2, 3, 16, 16))


def test_layouts_are_found_on_non_square_grids_with_prefix_and_head_tokens():
    model = timm.create_model("dhvt_test", img_size=(16, 24)).eval()
    images = torch.randn(2, 3, 16, 24)
    seen = diagnose.capture_batch(model, images)
    weights = seen.attention["blocks.0.attn"]
    layout = find_attention_layout(model, "blocks.0.attn", weights, images)
    assert (layout.queries.grid, layout.queries.prefix_tokens, layout.queries.extra) == ((4, 6), 1, 4)
    maps = diagnose.head_token_maps(weights, (4, 6))
    assert maps.shape == (2, 4, 4, 6)
    own = diagnose.head_token_maps(weights, (4, 6), head="own")
    torch.testing.assert_close(own[:, 2], weights[:, 2, 1 + 24 + 2, 1:25].view(2, 4, 6))
    torch.testing.assert_close(maps[:, 2], weights[:, :, 1 + 24 + 2, 1:25].mean(dim=1).view(2, 4, 6))
    folded = diagnose.fold_head_tokens(weights)
    assert folded.shape == (2, 4, 25, 25)
    torch.testing.assert_close(folded.sum(dim=-1), torch.ones(2, 4, 25))
    assert diagnose.attention_masks([folded, folded], (4, 6)).shape == (2, 2, 4, 6)


def test_hooks_are_removed_and_fused_attention_returns_when_the_model_fails():
    model = build("vit")
    with pytest.raises(AssertionError):
        diagnose.capture_batch(model, torch.randn(2, 3, 48, 48))
    assert hooks_of(model) == 0
    assert model.blocks[0].attn.fused_attn


def test_a_module_that_runs_twice_is_seen_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x))

    seen = []
    model = Twice()
    with diagnose.watch(model, ["layer"], lambda name, x: seen.append(name)):
        model(torch.randn(2, 4))
        model(torch.randn(2, 4))
    assert seen == ["layer", "layer:2"] * 2


# ---------------------------------------------------------------------------------------------------------------------
# CKA


def output_of(model: nn.Module, name: str, images: torch.Tensor) -> torch.Tensor:
    """What a module returns, copied on the spot."""
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda m, args, out: seen.append(out.clone()))
    with torch.no_grad():
        model(images)
    handle.remove()
    return seen[0].double().reshape(len(images), -1)


@pytest.mark.slow  # four pairs of networks
@pytest.mark.parametrize(
    ("one", "other"),
    [("diag_vit_test", "diag_resnet18_test"), ("dhvt_test", "boot_vit_test"), ("vit", "resnet"), ("swin", "deit")],
)
def test_every_layer_of_two_networks_is_compared_as_if_it_were_alone(one, other):
    a, b = build(one), build(other)
    batches = images_for(a, 16).split(8)
    result = diagnose.cka_matrix(a, b, batches)
    assert result.images == 16
    assert hooks_of(a) == hooks_of(b) == 0
    assert "" in result.row_aliases  # the whole model returns what its head returns
    rows, columns = (
        {name: [output_of(model, name, images) for images in batches] for name in names}
        for model, names in (
            (a, [name for name in [*result.rows[::5], *list(result.row_aliases)[::7]] if ":" not in name]),
            (b, [*result.columns[::9], *list(result.column_aliases)[::9]]),
        )
    )
    for row, x in rows.items():
        for column, y in columns.items():
            if column not in result.undefined_columns:
                alone = diagnose.minibatch_cka(zip(x, y, strict=True)).item()
                assert result.value(row, column) == pytest.approx(alone, abs=1e-4)


def test_the_blocks_alone_are_rows_of_the_whole_matrix_and_a_model_is_like_itself():
    model = build("diag_vit_test")
    batches = images_for(model, 16).split(8)
    whole, blocks = (diagnose.cka_matrix(model, model, batches, layers=layers) for layers in ("all", "blocks"))
    assert blocks.rows == blocks.columns == ["blocks.0", "blocks.1", "blocks.2"]
    torch.testing.assert_close(blocks.matrix.diag(), torch.ones(3).double())
    torch.testing.assert_close(blocks.matrix, blocks.matrix.T)
    assert blocks.value("blocks.0", "blocks.2") == pytest.approx(whole.value("blocks.0", "blocks.2"), abs=1e-9)
    assert all("attn_drop" in name for name in whole.skipped_rows)  # fused attention does not pass there


def test_batches_may_be_tensors_pairs_or_dicts():
    model = build("diag_vit_test")
    images, labels = images_for(model, 8), torch.arange(8)
    matrices = [
        diagnose.cka_matrix(model, model, [batch], layers="blocks").matrix
        for batch in (images, (images, labels), {"image": images, "label": labels})
    ]
    assert torch.equal(matrices[0], matrices[1])
    assert torch.equal(matrices[0], matrices[2])
    with pytest.raises(UserError, match="B, C, H, W"):
        diagnose.cka_matrix(model, model, [labels])


def test_a_constant_layer_is_nan_and_named_and_the_rest_stands():
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10).eval()
    result = diagnose.cka_matrix(model, model, [torch.randn(8, 3, 32, 32) + 5])
    constant = [f"layer{stage}.{block}.bn2" for stage in range(1, 5) for block in range(2)]  # timm starts them at zero
    assert result.undefined_rows == result.undefined_columns == constant
    assert result.matrix[result.rows.index("layer1.0.bn2")].isnan().all()
    defined = result.defined()
    assert not defined.matrix.isnan().any()
    assert len(defined.rows) == len(result.rows) - len(constant)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e6])
def test_cka_with_constant_features_is_nan(value):
    x, constant = torch.randn(16, 300), torch.full((16, 300), value) * torch.rand(300)
    assert diagnose.linear_cka(x, constant).isnan()
    assert diagnose.linear_cka(x, constant, unbiased=True).isnan()
    assert not diagnose.linear_cka(x, constant + 1e-3 * max(value, 1) * torch.randn(16, 300)).isnan()


def test_no_feature_outlives_its_layer_so_memory_grows_neither_with_layers_nor_with_images():
    model = build("diag_vit_test")
    features, within, between = [], [], []

    def alive() -> int:
        return sum(not feature.expired() for feature in features)

    def see(name: str, x: torch.Tensor) -> None:
        features.append(StorageWeakRef(x.untyped_storage()))
        within.append(alive())

    def batches():
        for _ in range(3):
            yield images_for(model)
            between.append(len({feature for feature in features if not feature.expired()}))

    with diagnose.watch(model, [name for name, _ in model.named_modules()], see):
        diagnose.cka_matrix(model, model, batches())
    assert len(features) > 200
    assert max(between) <= 1  # the scores
    assert max(within) < 25  # a tensor counts once under each of its names


def test_too_few_images_are_refused_and_a_short_last_batch_is_left_out():
    model = build("diag_vit_test")
    images = images_for(model, 11)
    with pytest.warns(UserWarning, match="left out a batch of 3"):
        result = diagnose.cka_matrix(model, model, images.split(8), layers="blocks")
    assert (result.batches, result.images) == (1, 8)
    with pytest.warns(UserWarning, match="batch of 1"), pytest.raises(UserError, match="no batch had the 4 images"):
        diagnose.cka_matrix(model, model, [images[:1]])
    with pytest.warns(UserWarning, match="batch of 3"), pytest.raises(UserError, match="no batch had the 4 images"):
        diagnose.minibatch_cka([(torch.randn(3, 5), torch.randn(3, 5))])
    with pytest.raises(UserError, match="no batch"):
        diagnose.minibatch_cka([])
    with pytest.raises(UserError, match="one image"):
        diagnose.linear_cka(torch.randn(1, 5), torch.randn(1, 5))
    with pytest.raises(UserError, match="at least 4"):
        diagnose.hsic1(torch.randn(3, 5), torch.randn(3, 5))
    with pytest.raises(UserError, match="same n images"):
        diagnose.linear_cka(torch.randn(5, 5), torch.randn(6, 5))


def test_models_of_other_sizes_and_class_counts_are_compared_through_their_own_preparation():
    small, large = build("diag_vit_test"), timm.create_model("diag_vit_test", img_size=32, num_classes=7).eval()
    images = torch.randn(8, 3, 32, 32)
    with pytest.raises(UserError, match="prepare_a"):
        diagnose.cka_matrix(small, large, [images])
    result = diagnose.cka_matrix(
        small, large, [images], prepare_a=lambda x: nn.functional.interpolate(x, (16, 16), mode="area")
    )
    assert math.isfinite(result.value("head", "head"))
    with pytest.raises(UserError, match="Did you mean head"):
        result.value("haed", "head")
    with pytest.raises(UserError, match="'all' or 'blocks'"):
        diagnose.cka_matrix(small, small, [images], layers="every")


def test_a_matrix_too_small_or_undefined_has_no_match():
    with pytest.raises(UserError, match="quarters"):
        diagnose.match_layers(torch.rand(3, 8))
    with pytest.raises(UserError, match="defined"):
        diagnose.match_layers(torch.full((8, 8), math.nan))
    match = diagnose.match_layers(torch.eye(8))
    assert match.monotonicity == pytest.approx(1)
    assert match.depth_needed == pytest.approx(4 / 7)
    one_column = diagnose.match_layers(torch.eye(8)[:1].expand(8, 8))
    assert math.isnan(one_column.monotonicity)


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def test_distances_of_known_attention():
    identity = torch.eye(12).expand(2, 3, 12, 12)
    assert diagnose.attention_distance(identity, (3, 4)).tolist() == [0, 0, 0]
    uniform = torch.full((1, 1, 4, 4), 0.25)
    assert diagnose.attention_distance(uniform, (2, 2)).item() == pytest.approx((2 + 2**0.5) / 4)
    assert diagnose.attention_distance(uniform[0], (2, 2), patch_size=8).item() == pytest.approx(2 * (2 + 2**0.5))
    # Head tokens behind the patches do not count either.
    framed = torch.zeros(1, 1, 7, 7)
    framed[..., 1:5, 1:5], framed[..., 1:5, 5:] = 0.2, 0.1
    assert diagnose.attention_distance(framed, (2, 2), prefix_tokens=1).item() == pytest.approx((2 + 2**0.5) / 4)
    with pytest.raises(UserError, match="grid of 3x3"):
        diagnose.attention_distance(uniform, (3, 3))


def test_a_query_that_looks_at_no_patch_does_not_count():
    weights = torch.zeros(1, 1, 5, 5)
    weights[..., 0] = 1.0
    weights[0, 0, 1] = torch.tensor([0, 0, 1.0, 0, 0])
    assert diagnose.attention_distance(weights, (2, 2)).item() == 1.0


def test_pooled_keys_lie_at_the_centres_of_their_cells():
    weights = torch.eye(4).repeat_interleave(4, dim=0).view(4, 2, 2, 4)
    weights = (
        weights.reshape(2, 2, 2, 2, 4).permute(0, 2, 1, 3, 4).reshape(1, 1, 16, 4)
    )  # each patch looks at its own cell
    distance = diagnose.attention_distance(weights, (4, 4), key_grid=(2, 2))
    assert distance.item() == pytest.approx(0.5**0.5)


def test_heads_that_do_the_same_have_no_diversity():
    same = torch.rand(2, 1, 9, 9).softmax(dim=-1).expand(2, 4, 9, 9)
    assert diagnose.head_diversity(same).item() == pytest.approx(0, abs=1e-6)
    apart = torch.stack([torch.eye(4), torch.eye(4).roll(1, 0)])[None]
    assert diagnose.head_diversity(apart).item() == pytest.approx(1)
    assert diagnose.attention_entropy(torch.eye(4).expand(1, 2, 4, 4)).tolist() == [0, 0]


def test_attention_that_does_not_fit_together_is_refused():
    with pytest.raises(UserError, match="cannot be multiplied"):
        diagnose.attention_rollout([torch.rand(2, 5, 5), torch.rand(2, 6, 6)])
    with pytest.raises(UserError, match="not a square"):
        diagnose.attention_masks(torch.rand(2, 3, 7, 7))
    with pytest.raises(UserError, match="unknown fusion"):
        diagnose.attention_rollout(torch.rand(2, 3, 5, 5), fusion="median")
    with pytest.raises(UserError, match="own"):
        diagnose.attention_masks(torch.rand(2, 3, 5, 5), scale="all")
    with pytest.raises(UserError, match="only DHVT"):
        diagnose.head_token_maps(torch.rand(2, 3, 17, 17), (4, 4))


@pytest.mark.parametrize("name", ["diag_vit_test", "dhvt_test", "vit without class token"])
def test_relevance_follows_the_class_asked_for(name):
    model = build(name)
    images = images_for(model, 2)
    maps = diagnose.relevance_map(model, images, 3)
    assert maps.shape == (2, 4, 4)
    assert (maps >= 0).all()
    assert not torch.allclose(maps, diagnose.relevance_map(model, images, torch.tensor([5, 5])))
    assert all(p.grad is None for p in model.parameters())


def test_captum_gives_grad_cam_and_integrated_gradients():
    pytest.importorskip("captum", reason="captum is an optional extra")
    model = build("diag_resnet18_test")
    images = images_for(model, 2)
    assert diagnose.grad_cam(model, images).shape == (2, 2, 2)
    gradients = diagnose.integrated_gradients(model, images, 1, steps=24)
    with torch.no_grad():
        rise = (model(images) - model(torch.zeros_like(images)))[:, 1]
    torch.testing.assert_close(gradients.sum(dim=(1, 2, 3)), rise.to(gradients.dtype), atol=0.05, rtol=0.1)
    with pytest.raises(UserError, match="relevance_map"):
        diagnose.grad_cam(build("diag_vit_test"), images)


# ---------------------------------------------------------------------------------------------------------------------
# Features and health


def test_channels_that_explode_are_found_beside_dead_ones():
    x = torch.randn(4, 9, 12)
    x[..., 3] = 0
    x[..., 7] *= 1000
    health = judge_channels(torch.tensor([1.0, 1.0, 1.0, 30.0]))
    assert (health.dead, health.exploding, health.channels) == ([], [3], 4)
    assert 7 in diagnose.channel_health(x, dead=1e-5).exploding
    assert diagnose.channel_health(x, dead=1e-5).dead == [3]
    assert diagnose.channel_health(torch.zeros(2, 3, 4)).dead == [0, 1, 2, 3]


def test_equal_tokens_are_entirely_smooth_and_have_no_rank():
    x = torch.randn(1, 1, 8).expand(3, 5, 8)
    assert diagnose.token_similarity(x).item() == pytest.approx(1)
    assert diagnose.feature_ranks(torch.ones(3, 5, 8)).numerical == 0
    with pytest.raises(UserError, match="have one"):
        diagnose.token_similarity(torch.randn(3, 1, 8))
    with pytest.raises(UserError, match="square"):
        diagnose.fourier_profile(torch.randn(2, 3, 4, 6))


def test_convolution_maps_of_timms_resnet_are_those_of_the_forward_pass():
    maps = diagnose.conv_maps(build("resnet"), torch.randn(2, 3, 64, 64))
    assert len(maps) == 17
    with pytest.raises(UserError, match="bare_chain: 1 takes 8 channels but 0 gives 4"):
        diagnose.conv_maps(
            nn.ModuleList([nn.Conv2d(3, 4, 1), nn.Conv2d(8, 2, 1)]), torch.randn(1, 3, 8, 8), bare_chain=True
        )


def test_calibration_of_a_sure_model_and_bad_probabilities():
    labels = torch.tensor([0, 1, 1, 0])
    sure = torch.eye(2)[torch.tensor([0, 1, 1, 1])]
    assert diagnose.expected_calibration_error(sure, labels).item() == pytest.approx(0.25)
    assert diagnose.reliability_curve(sure, labels).counts[-1] == 4  # a confidence of exactly 1 is in the last bin
    with pytest.raises(UserError, match="softmax"):
        diagnose.expected_calibration_error(3 * torch.randn(4, 2), labels)
    with pytest.raises(UserError, match="labels"):
        diagnose.expected_calibration_error(sure, labels[:3])
    with pytest.raises(UserError, match="norm"):
        diagnose.expected_calibration_error(sure, labels, norm="l3")


def test_mistakes_classes_and_gap():
    probs = torch.tensor([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0], [0.3, 0.7, 0]])
    labels = torch.tensor([0, 0, 1, 1])
    assert diagnose.confident_mistakes(probs, labels).tolist() == [1, 2]
    first, _, none = diagnose.per_class_accuracy(probs, labels)
    assert (first.images, first.accuracy) == (2, 0.5)
    assert first.interval[0] < 0.5 < first.interval[1]
    assert none.accuracy is None
    gap = diagnose.generalisation_gap(95, 100, 70, 100)
    assert gap.difference == pytest.approx(0.25)
    assert 0.1 < gap.interval[0] < 0.25 < gap.interval[1] < 0.4
    with pytest.raises(UserError, match="both sides"):
        diagnose.generalisation_gap(1, 1, 0, 0)


def test_sharpness_puts_the_parameters_back():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, labels = torch.randn(8, 4), torch.arange(8) % 3
    before = {name: p.clone() for name, p in model.named_parameters()}

    def loss():
        return nn.functional.cross_entropy(model(x), labels)

    small, large = (diagnose.loss_sharpness(loss, model.parameters(), rho=rho) for rho in (0.01, 0.1))
    assert 0 < small < large
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    exact = diagnose.Hessian(loss, model.parameters()).trace(probes=100)
    assert diagnose.Hessian(loss, model.parameters()).trace(probes=14) == pytest.approx(exact, rel=0.3)
    with pytest.raises(UserError, match="requires a gradient"):
        diagnose.loss_sharpness(loss, [])


# ---------------------------------------------------------------------------------------------------------------------
# All in one pass


@pytest.mark.parametrize("name", [*OURS, *THEIRS])
def test_one_pass_measures_what_the_single_functions_do(name):
    model = build(name)
    images = images_for(model, 12)
    labels = torch.arange(12) % 3
    result = diagnose.measure(model, [(images[:8], labels[:8]), (images[8:], labels[8:])])
    seen = diagnose.capture_batch(model, images)
    assert result.images == 12
    assert hooks_of(model) == 0
    torch.testing.assert_close(result.logits, seen.logits, atol=1e-5, rtol=1e-4)
    assert [block.name for block in result.blocks] == list(seen.blocks) == result.cka.rows
    for block in result.blocks:
        tokens, layout = as_tokens(model, seen.blocks[block.name], tuple(images.shape[-2:]))
        patches = tokens[:, layout.patches]
        assert block.grid == layout.grid
        assert block.ranks.effective == pytest.approx(diagnose.feature_ranks(patches).effective, rel=1e-3)
        assert block.ranks.stable == pytest.approx(diagnose.feature_ranks(patches).stable, rel=1e-3)
        assert block.channels == diagnose.channel_health(patches)
        if patches.shape[1] > 1:
            assert block.token_similarity == pytest.approx(diagnose.token_similarity(patches).item(), abs=1e-5)
        pooled = patches.mean(dim=1)
        probe = diagnose.ridge_probe(pooled[::2], labels[::2], pooled[1::2], labels[1::2], classes=10)
        assert (block.probe.train_accuracy, block.probe.test_accuracy) == (probe.train_accuracy, probe.test_accuracy)
    assert len(result.attention) == len(seen.attention)
    for layer in result.attention:
        weights = seen.attention[layer.name]
        torch.testing.assert_close(layer.entropy.float(), diagnose.attention_entropy(weights), atol=1e-4, rtol=1e-4)
        assert layer.distance_of_image is not None
        assert (layer.distance_of_image <= 2 * layer.uniform_distance_of_image).all()
        assert layer.distance_of_image.sum() > 0 or layer.uniform_distance_of_image == 0
    assert any("the model has no attention" in note for note in result.notes) == (not seen.attention)


def test_one_pass_compares_with_another_model_and_needs_no_labels():
    vit, cnn = build("diag_vit_test"), build("diag_resnet18_test")
    batches = images_for(vit, 16).split(8)
    result = diagnose.measure(vit, batches, other=cnn)
    torch.testing.assert_close(
        result.cka.matrix, diagnose.cka_matrix(vit, cnn, batches, layers="blocks").matrix, atol=1e-5, rtol=0
    )
    assert result.labels is None
    assert result.blocks[0].probe is None


def test_one_image_is_measured_without_cka_and_no_image_is_refused():
    model = build("diag_vit_test")
    with pytest.warns(UserWarning, match="left out a batch of 1"):
        result = diagnose.measure(model, [images_for(model, 1)])
    assert result.cka is None
    assert len(result.attention) == 3
    with pytest.raises(UserError, match="no images"):
        diagnose.measure(model, [])


def test_a_network_that_diverged_is_still_measured_and_the_blocks_are_named():
    torch.manual_seed(0)
    model = timm.create_model("diag_vit_test").eval()
    model.blocks[1].mlp.fc2.bias.data[3] = math.nan
    result = diagnose.measure(model, [(images_for(model, 8), torch.arange(8) % 2)])
    assert [note.partition(":")[0] for note in result.notes] == ["blocks.1", "blocks.2"]
    assert result.blocks[0].ranks.effective > 1
    assert result.blocks[1].ranks.numerical == 0
    assert result.blocks[1].probe is None
    assert result.cka.undefined_rows == ["blocks.1", "blocks.2"]


def test_a_grid_is_that_of_the_images_even_where_a_model_was_made_for_others():
    model = timm.create_model("dhvt_test", img_size=(16, 24)).eval()
    result = diagnose.measure(model, [torch.randn(4, 3, 24, 16)])
    assert result.blocks[0].grid == (6, 4)


def test_probes_keep_no_more_images_than_asked_for():
    model = build("diag_vit_test")
    images, labels = images_for(model, 16), torch.arange(16) % 2
    batches = list(zip(images.split(6), labels.split(6), strict=True))
    some = diagnose.measure(model, batches, probe_images=8)
    first = diagnose.measure(model, [(images[:8], labels[:8])])
    assert some.images == 16
    torch.testing.assert_close(some.blocks[0].probe.weight, first.blocks[0].probe.weight, atol=1e-4, rtol=1e-3)
