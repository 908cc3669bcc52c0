"""T2T-ViT against the authors' release: state dict, outputs, gradients; and what ours does beyond it."""

import math
import re

import pytest
import timm
import torch
import torch.nn.functional as F
from rule import assert_stored, every, files, golden, images, normal, overridden

import vitling
from vitling.errors import UserError
from vitling.models.t2t import VARIANTS, T2TViT, T2TViTDense, TokenPerformer, sinusoid_table

ARGUMENTS = (
    "in_chans", "num_classes", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias", "tokens_type", "token_dim",
    "growth_rate", "block_config", "patch_size",
)  # fmt: skip
# The release's classes, as a class here and its switches; a file of a ViT names none.
CLASSES = {
    "T2T_ViT": (T2TViT, dict()),
    "T2T_ViT_SE": (T2TViT, dict(se=True)),
    "T2T_ViT_Ghost": (T2TViT, dict(ghost=True)),
    "T2T_ViT_Dense": (T2TViTDense, dict()),
    "vit": (T2TViT, dict(tokens_type="patch", pos_embed="learn")),
}


VITS = {"vit_small_patch16_224": "vit_s16"}  # timm has another one of that name


def create(file: dict) -> torch.nn.Module:
    """By the variant's name where it has one, else by its sizes."""
    name = file["variant"] if file["family"] == "t2t" else VITS.get(file["variant"], "")
    if timm.is_model(name):
        return timm.create_model(name, img_size=file["img_size"])
    config = file["config"]
    kind = "vit" if file["family"] == "vit" else config.get("cls") or f"T2T_ViT_{config['kind']}"
    model_class, switches = CLASSES[kind]
    return model_class(img_size=file["img_size"], **{k: v for k, v in config.items() if k in ARGUMENTS}, **switches)


def filled(file: dict) -> torch.nn.Module:
    model = create(file).eval()
    vitling.load_weights(model, overridden(file, model.state_dict()))
    return model


@pytest.mark.parametrize("name", [*files("t2t__", "state_dict"), *files("vit__", "state_dict")])
def test_the_network_is_the_release(name):
    file = golden(name)
    model = filled(file)
    parameters, state = dict(model.named_parameters()), model.state_dict()
    assert {key: list(value.shape) for key, value in state.items()} == dict(file["state_dict"])
    # What the release never trains is a parameter there, a buffer here.
    assert sum(value.numel() for value in state.values()) == file["param_count"]
    assert sum(p.numel() for p in parameters.values()) == file["param_count_trainable"]
    assert state.keys() - parameters.keys() == set(file["not_trainable"])

    outputs = {}
    for part in file["eval"]["intermediate"]:
        model.get_submodule(part).register_forward_hook(lambda _, __, y, part=part: outputs.update({part: y.detach()}))
    with torch.set_grad_enabled("gradients" in file):
        logits = model(images(file))

    theirs, noise = file["eval"], file["eval"]["fp32_vs_fp64_max_abs"]
    assert_stored(logits, theirs["logits"], noise)
    assert logits.argmax(dim=1).tolist() == theirs["argmax"]
    for part, expected in theirs["intermediate"].items():
        y = outputs[part].double()
        assert list(y.shape) == expected["shape"]
        spread = expected["std"]
        assert_stored(y.flatten()[:8], expected["first8"], noise, spread)
        statistics = torch.stack([y.mean(), y.std(), y.min(), y.max(), y.norm()])
        assert_stored(statistics, [expected[k] for k in ("mean", "std", "min", "max", "l2")], noise, spread)

    if "gradients" in file:
        expected = file["gradients"]
        loss = F.cross_entropy(logits, torch.tensor(expected["labels"]))
        loss.backward()
        assert_stored(loss, expected["loss"], noise)
        for key, norm in expected["grad_l2"].items():
            if norm is None:
                assert key not in parameters, key
            else:
                assert_stored(parameters[key].grad.norm(), norm, 0.0)


@pytest.mark.parametrize(
    "name", [name for name in files("t2t__", "gradients") if golden(name)["config"]["tokens_type"] == "transformer"]
)
def test_explicit_attention_gives_the_fused_numbers_and_shows_its_weights(name):
    file = golden(name)
    model = filled(file)
    seen = []
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
            module.attn_drop.register_forward_hook(lambda _, __, weights: seen.append(weights.detach()))
    with torch.no_grad():
        assert_stored(model(images(file)), file["eval"]["logits"], file["eval"]["fp32_vs_fp64_max_abs"])
    batch, config = file["batch"], file["config"]
    early = [(batch, 1, math.prod(grid), math.prod(grid)) for grid in model.front_end.grids[:2]]
    tokens = 1 + math.prod(model.grid_size)
    later = config["depth"] * [(batch, config["num_heads"], tokens, tokens)]
    assert [tuple(weights.shape) for weights in seen] == early + later
    for weights in seen:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))


def pick(table: torch.Tensor, expected: dict) -> torch.Tensor:
    return table[0][expected["positions"]][:, expected["dims"]]


@every("posembed__", "sinusoid")
def test_the_sinusoid_is_the_release_s(name):
    file = golden(name)
    table = sinusoid_table(file["n_position"], file["d_hid"])
    # Eight digits are stored here, about as many as float32 has.
    torch.testing.assert_close(
        pick(table, file["sinusoid"]), torch.tensor(file["sinusoid"]["values"]), rtol=2e-7, atol=0.0
    )
    assert_stored(table.double().sum(), file["sinusoid"]["sum"], 0.0)
    assert_stored(table.double().norm(), file["sinusoid"]["l2"], 0.0)


TABLE_SCALE = 0.05  # of a table that the files call rule-filled


def resized_tables():
    """(file, grid, whether the table was filled by the rule, what the release makes of it): the keys of the files say which."""
    for name in files("posembed__"):
        for key, entry in golden(name).items():
            if match := re.match(r"resize_to_(\d+)x(\d+)( of rule-filled)?", key):
                grid, filled = (int(match[1]), int(match[2])), bool(match[3])
                tables = (
                    {"of_rule_filled": entry} if filled else {k: v for k, v in entry.items() if k.startswith("of_")}
                )
                for what, expected in tables.items():
                    by_rule = what.startswith("of_rule")
                    yield pytest.param(name, grid, by_rule, expected, id=f"{name}-{grid}-{what.split()[0]}")


@pytest.mark.parametrize(("name", "grid", "filled_by_rule", "expected"), resized_tables())
def test_a_loaded_position_table_is_resized_as_the_release_does(name, grid, filled_by_rule, expected):
    file = golden(name)
    side = math.isqrt(file["n_position"] - 1)
    sizes = dict(tokens_type="patch", patch_size=16, depth=1, num_heads=1, mlp_ratio=1, embed_dim=file["d_hid"])
    small, large = (T2TViT(img_size=tuple(16 * n for n in grid), **sizes) for grid in ((side, side), grid))
    state = small.state_dict()
    if filled_by_rule:
        state["pos_embed"] = TABLE_SCALE * normal("pos_embed", state["pos_embed"].shape)
    vitling.load_weights(large, state)
    assert not large.pos_embed.requires_grad
    assert_stored(pick(large.pos_embed, expected), expected["values"], 2e-8)
    assert_stored(large.pos_embed.double().norm(), expected["l2"], 0.0)


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
    total = sum(
        value.numel() for value in model.state_dict().values()
    )  # with what the release has as frozen parameters
    if name in PUBLISHED:
        assert (total, sum(p.numel() for p in model.parameters())) == PUBLISHED[name]
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


def test_random_features_are_orthogonal_fixed_and_saved():
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
