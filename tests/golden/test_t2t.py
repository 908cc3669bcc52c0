"""T2T-ViT against the authors' release: state dict, outputs, gradients; and what ours does beyond it."""

import pytest
import timm
import torch
import torch.nn.functional as F
from rule import golden, normal

import vitling
from vitling.errors import UserError
from vitling.models.t2t import VARIANTS, T2TViT, TokenPerformer, sinusoid_table

NAMED = {
    "t2t__t2t_vit_7": "t2t_vit_7",
    "t2t__t2t_vit_14": "t2t_vit_14",
    "t2t__t2t_vit_14_resnext": "t2t_vit_14_resnext",
    "t2t__t2t_vit_t_14": "t2t_vit_t_14",
    "t2t__t2t_vit_dense": "t2t_vit_dense",
    "vit__vit_small_patch16_224": "vit_s16",
}
SMALL = {
    "t2t__small_performer": dict(),
    "t2t__small_transformer": dict(),
    "t2t__small_se": dict(se=True),
    "t2t__small_ghost": dict(ghost=True),
}
SIZES = ("num_classes", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias", "tokens_type", "token_dim")
STORED = 1e-5  # the files keep six significant digits


def create(name: str) -> torch.nn.Module:
    if name in NAMED:
        return timm.create_model(NAMED[name])
    file = golden(name)
    return T2TViT(img_size=file["img_size"], **{k: file["config"][k] for k in SIZES}, **SMALL[name])


def fill(file: dict, made: dict) -> dict[str, torch.Tensor]:
    """The authors' state dict that the file's rule gives."""
    rule, state = file["fill"], {}
    for key, shape in file["state_dict"]:
        if key in rule["left_as_made"]:
            state[key] = made[key].clone()
        elif len(shape) >= 2:
            scales = [scale for suffix, scale in rule["suffix_overrides"] if key.endswith(suffix)]
            state[key] = (scales or [rule["default_scale"]])[-1] * normal(key, shape)
        else:
            state[key] = (1 if key.endswith("weight") else 0) + 0.05 * normal(key, shape)
    return state


def images(file: dict) -> torch.Tensor:
    size = (file["batch"], 3, file["img_size"], file["img_size"])
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def close(ours, theirs, noise: float) -> None:
    """Equal to the stored digits and five times the noise that the file measured between float32 and float64."""
    theirs = torch.as_tensor(theirs, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(ours).double(), theirs, rtol=STORED, atol=5 * noise)


@pytest.mark.parametrize("name", [*SMALL, *NAMED])
def test_the_network_is_the_release(name):
    file = golden(name)
    model = create(name).eval()
    parameters = dict(model.named_parameters())
    assert {key: list(value.shape) for key, value in model.state_dict().items()} == dict(file["state_dict"])
    assert sum(p.numel() for p in parameters.values()) == file["param_count"]
    assert sum(p.numel() for p in parameters.values() if p.requires_grad) == file["param_count_trainable"]
    assert {key for key, p in parameters.items() if not p.requires_grad} == set(file["not_trainable"])

    vitling.load_weights(model, fill(file, model.state_dict()))
    outputs = {}
    for part in file["eval"]["intermediate"]:
        model.get_submodule(part).register_forward_hook(lambda _, __, y, part=part: outputs.update({part: y.detach()}))
    with torch.set_grad_enabled("gradients" in file):
        logits = model(images(file))

    theirs, noise = file["eval"], file["eval"]["fp32_vs_fp64_max_abs"]
    close(logits.detach(), theirs["logits"], noise)
    assert logits.argmax(dim=1).tolist() == theirs["argmax"]
    for part, expected in theirs["intermediate"].items():
        y = outputs[part].double()
        assert list(y.shape) == expected["shape"]
        # Before the last norm, numbers are larger than logits and so is their noise.
        spread = max(1.0, expected["std"])
        close(y.flatten()[:8], expected["first8"], noise * spread)
        close(
            torch.stack([y.mean(), y.std(), y.min(), y.max(), y.norm()]),
            [expected[k] for k in ("mean", "std", "min", "max", "l2")],
            noise * spread,
        )

    if "gradients" in file:
        expected = file["gradients"]
        loss = F.cross_entropy(logits, torch.tensor(expected["labels"]))
        loss.backward()
        close(loss.detach(), expected["loss"], noise)
        for key, norm in expected["grad_l2"].items():
            if norm is None:
                assert parameters[key].grad is None, key
            else:
                close(parameters[key].grad.norm(), norm, 0.0)


def test_explicit_attention_gives_the_fused_numbers_and_shows_its_weights():
    file = golden("t2t__small_transformer")
    model = create("t2t__small_transformer").eval()
    vitling.load_weights(model, fill(file, model.state_dict()))
    seen = []
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
            module.attn_drop.register_forward_hook(lambda _, __, weights: seen.append(weights.detach()))
    with torch.no_grad():
        close(model(images(file)), file["eval"]["logits"], file["eval"]["fp32_vs_fp64_max_abs"])
    assert [tuple(w.shape) for w in seen] == [(2, 1, 256, 256), (2, 1, 64, 64)] + 3 * [(2, 4, 17, 17)]
    for weights in seen:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))


def pick(table: torch.Tensor, expected: dict) -> torch.Tensor:
    return table[0][expected["positions"]][:, expected["dims"]]


def test_the_sinusoid_is_the_release_s():
    file = golden("posembed__197x384")
    table = sinusoid_table(file["n_position"], file["d_hid"])
    # Eight digits are stored here.
    torch.testing.assert_close(
        pick(table, file["sinusoid"]), torch.tensor(file["sinusoid"]["values"]), rtol=1e-7, atol=0.0
    )
    close(table.double().sum(), file["sinusoid"]["sum"], 0.0)
    close(table.double().norm(), file["sinusoid"]["l2"], 0.0)


@pytest.mark.parametrize(("img_size", "source"), [(384, "of_sinusoid"), (384, "rule"), (128, "rule")])
def test_a_loaded_position_table_is_resized_as_the_release_does(img_size, source):
    file = golden("posembed__197x384")
    if img_size == 128:
        expected = file["resize_to_8x8 of rule-filled"]
    else:
        key = "of_sinusoid" if source == "of_sinusoid" else "of_rule_filled (key pos_embed, scale 0.05)"
        expected = file["resize_to_24x24"][key]
    small, large = (T2TViT(img_size=size, depth=1) for size in (224, img_size))
    state = small.state_dict()
    if source == "rule":
        state["pos_embed"] = 0.05 * normal("pos_embed", (1, 197, 384))
    vitling.load_weights(large, state)
    assert not large.pos_embed.requires_grad
    close(pick(large.pos_embed, expected), expected["values"], 1e-7)
    close(large.pos_embed.double().norm(), expected["l2"], 0.0)


def test_a_new_input_size_makes_a_fresh_sinusoid_and_resizes_any_other_table():
    fixed = timm.create_model("t2t_vit_test")
    fixed.set_input_size((32, 48))
    assert fixed.grid_size == (8, 12)
    assert torch.equal(fixed.pos_embed, sinusoid_table(97, 24))
    assert not fixed.pos_embed.requires_grad
    fixed.pos_embed.data[:, 1:] = 0.5
    fixed.set_input_size((32, 32))
    assert fixed.pos_embed.shape == (1, 65, 24)
    torch.testing.assert_close(fixed.pos_embed[:, 1:], torch.full((1, 64, 24), 0.5))
    learned = T2TViT(
        tokens_type="patch", pos_embed="learn", img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=2
    )
    before = learned.pos_embed.detach().clone()
    learned.set_input_size(64)
    assert learned.pos_embed.shape == (1, 65, 24)
    assert learned.pos_embed.requires_grad
    assert torch.equal(learned.pos_embed[:, 0], before[:, 0])


# Of the variants without a golden file: all and trainable parameters of the release; the paper's millions, which leave
# the position table out, where the release has no such model.
PUBLISHED = {
    "t2t_vit_10": (5_889_230, 5_834_702),
    "t2t_vit_12": (6_941_902, 6_887_374),
    "t2t_vit_19": (39_177_422, 39_085_070),
    "t2t_vit_24": (64_105_934, 64_000_974),
    "t2t_vit_t_19": (39_172_942, 39_084_686),
    "t2t_vit_t_24": (64_101_454, 64_000_590),
    "t2t_vit_14_wide": (25_156_302, 25_000_910),
    "t2t_vit_14_se": (21_803_598, 21_723_854),
    "t2t_vit_16_ghost": (16_253_262, 16_173_518),
}
PAPER_MILLIONS = {"t2t_vit_c_14": 21.3, "vit_s16_se": 49.2, "vit_s16_resnext": 48.6, "vit_s16_ghost": 32.1}


@pytest.mark.parametrize("name", [*PUBLISHED, *PAPER_MILLIONS, "t2t_vit_nano"])
def test_parameter_counts_are_the_published_ones(name):
    with torch.device("meta"):
        model = T2TViT(**VARIANTS[name])
    total = sum(p.numel() for p in model.parameters())
    if name in PUBLISHED:
        assert (total, sum(p.numel() for p in model.parameters() if p.requires_grad)) == PUBLISHED[name]
    elif name in PAPER_MILLIONS:
        assert round((total - model.pos_embed.numel()) / 1e6, 1) == PAPER_MILLIONS[name]
    else:
        assert total < 1e6


@pytest.mark.parametrize(
    ("splits", "img_size", "grid"),
    [
        (dict(), 224, (14, 14)),
        (dict(), 100, (7, 7)),
        (dict(), (96, 64), (6, 4)),
        (dict(kernels=(3, 3, 3), strides=(2, 2, 1), paddings=(1, 1, 1)), 32, (8, 8)),
        (dict(kernels=(7, 3, 3), strides=(2, 2, 2), paddings=(3, 1, 1)), (64, 96), (8, 12)),
    ],
)
@pytest.mark.parametrize("tokens_type", ["transformer", "performer", "convolution"])
def test_soft_splits_give_the_grid_they_promise(tokens_type, splits, img_size, grid):
    model = T2TViT(
        tokens_type=tokens_type,
        img_size=img_size,
        in_chans=1,
        embed_dim=16,
        depth=1,
        num_heads=2,
        token_dim=4,
        **splits,
    ).eval()
    assert model.grid_size == grid
    with torch.no_grad():
        features, (tokens,) = model.forward_intermediates(torch.randn(1, 1, *model.front_end.img_size), indices=1)
    assert features.shape == (1, 1 + grid[0] * grid[1], 16)
    assert tokens.shape == (1, 16, *grid)


def test_a_soft_split_with_its_projection_is_a_convolution():
    front_end = timm.create_model("t2t_vit_test").tokens_to_token
    x = torch.randn(2, 8, 4, 4)
    tokens = front_end.project(front_end.soft_split(x, 2))
    kernel = front_end.project.weight.unflatten(1, (8, 3, 3))
    conv = F.conv2d(x, kernel, front_end.project.bias, stride=1, padding=1)
    torch.testing.assert_close(tokens, conv.flatten(2).mT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_performer_attends_in_float32_under_autocast_and_stays_finite(dtype):
    torch.manual_seed(0)
    layer = TokenPerformer(27, 16, drop=0.0)
    x = torch.randn(2, 50, 27)
    # Queries so long that their features vanish in half precision, and 1e-8 with them.
    torch.nn.init.normal_(layer.kqv.weight, std=1.5)
    exact = layer.attend(*layer.kqv(layer.norm1(x)).chunk(3, dim=-1))
    with torch.autocast("cpu", dtype):
        kqv = layer.kqv(layer.norm1(x))
        assert kqv.dtype == dtype
        attended = layer.attend(*kqv.chunk(3, dim=-1))
        y = layer(x)
    assert attended.dtype == torch.float32
    assert exact.isfinite().all()
    assert attended.isfinite().all()
    assert y.isfinite().all()
    y.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.requires_grad)
    # From the same rounded queries, keys and values the result is the float32 one to the last digit.
    torch.testing.assert_close(attended, layer.attend(*kqv.float().chunk(3, dim=-1)), rtol=0.0, atol=0.0)


def test_the_performer_drops_as_released_whatever_drop_rate_says_and_can_be_told_not_to():
    x = torch.randn(2, 3, 16, 16)
    model = timm.create_model("t2t_vit_test").train()
    assert not torch.equal(model(x), model(x))
    model = timm.create_model("t2t_vit_test", token_drop_rate=0.0).train()
    assert torch.equal(model(x), model(x))


def test_random_features_are_orthogonal_frozen_and_saved():
    layer = timm.create_model("t2t_vit_14", depth=1).tokens_to_token.attention1
    torch.testing.assert_close(layer.w @ layer.w.T, 32 * torch.eye(32), rtol=1e-4, atol=1e-4)
    assert not layer.w.requires_grad
    assert "w" in layer.state_dict()


def test_linear_layers_start_narrow_and_ghost_factors_wide():
    model = T2TViT(img_size=64, embed_dim=256, depth=1, num_heads=4, ghost=True)
    assert abs(model.blocks[0].mlp.fc2.weight.std().item() - 0.02) < 1e-3
    assert not model.blocks[0].mlp.fc1.bias.any()
    factors = model.blocks[0].mlp.cheap_operation2.weight
    assert -1 <= factors.min() < -0.8 < 0.8 < factors.max() <= 1


def test_dense_takes_a_new_classifier_and_its_stages_the_released_drop_path():
    model = timm.create_model("t2t_vit_dense_test", drop_path_rate=0.11)
    model.reset_classifier(7)
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 7)
    rates = [getattr(block.drop_path, "drop_prob", 0.0) for block in model.blocks if hasattr(block, "drop_path")]
    assert rates == pytest.approx([0.0, 0.0, 0.01])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(img_size=2), "too small"),
        (dict(tokens_type="patch", img_size=8), "smaller than one patch"),
        (dict(tokens_type="perfomer"), "Did you mean performer"),
        (dict(tokens_type="patch", strides=(2, 2, 1)), "has no soft splits"),
        (dict(patch_size=8), "product of its strides"),
        (dict(kernels=(3, 3)), "three numbers"),
        (dict(ghost=True, mlp_ratio=4), "mlp_ratio is 3"),
        (dict(num_heads=7), "num_heads=7"),
        (dict(global_pool="mean"), "unknown global_pool"),
    ],
)
def test_impossible_sizes_are_refused_with_a_reason(arguments, says):
    with pytest.raises(UserError, match=says):
        T2TViT(**{"depth": 1, **arguments})


def test_images_of_another_size_are_refused_with_the_way_out():
    with pytest.raises(UserError, match="set_input_size"):
        timm.create_model("t2t_vit_test")(torch.randn(1, 3, 20, 20))
