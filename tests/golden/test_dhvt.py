"""DHVT against the authors' release: state dict, outputs, gradients and BatchNorm statistics."""

from fnmatch import fnmatch

import pytest
import timm
import torch
import torch.nn.functional as F
from rule import about, golden, normal
from timm.optim import param_groups_weight_decay

import vitling
from vitling.models.dhvt import DAFF, DHVT, SOPE, Block, HeadInteractedAttention

NAMED = ["dhvt_tiny_cifar_patch4", "dhvt_small_cifar_patch2", "dhvt_tiny_imagenet_patch16"]
ABLATIONS = [
    "ablation_T_p4_pe",
    "ablation_T_p4_nope_sope",
    "ablation_T_p4_nope_sope_daff",
    "ablation_T_p4_pe_daff",
    "ablation_T_p4_pe_ht",
]
SWITCHES = ("sope", "daff", "head_tokens", "abs_pos_embed")
SIZES = ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias")


def fill(keys: list, scale: float) -> dict[str, torch.Tensor]:
    """The state dict that the files' rule gives; counters keep what the model makes."""
    state = {}
    for key, shape, _ in keys:
        t = normal(key, shape)
        if key.endswith(".alpha") and shape:
            state[key] = 1 + 0.05 * t
        elif len(shape) >= 2:
            state[key] = scale * t
        else:
            state[key] = about(key, t)
    return state


def build(file: dict) -> DHVT:
    if file["variant"] in NAMED:
        model = timm.create_model(file["variant"])
    else:
        arguments = {k: v for k, v in file["config"].items() if k in SIZES + SWITCHES}
        model = DHVT(img_size=file["img_size"], num_classes=file["num_classes"], **arguments)
    vitling.load_weights(model, fill(file["keys"], file["fill"]["scale"]))
    return model.eval()


def images(file: dict) -> torch.Tensor:
    return torch.randn(file["input"]["shape"], generator=torch.Generator().manual_seed(file["input"]["seed"]))


def assert_close(actual: torch.Tensor, expected, spread: float | None = None):
    """The strict tolerance of the files; `spread` is the scale of the values where the files give another one."""
    expected = torch.tensor(expected)
    spread = expected.std().item() if spread is None else spread
    torch.testing.assert_close(actual, expected, atol=3e-5 * max(1.0, spread), rtol=2e-5)


def assert_norms(actual: dict[str, torch.Tensor], expected: dict[str, float]):
    assert actual.keys() == expected.keys()
    norms = {key: value.norm().item() for key, value in actual.items()}
    wrong = {k: (norms[k], value) for k, value in expected.items() if abs(norms[k] - value) > 3e-5 + 2e-5 * value}
    assert not wrong


@pytest.mark.parametrize("variant", NAMED + ABLATIONS + ["micro_p4_d48_h4"])
def test_keys_and_outputs_equal_the_release(variant):
    file = golden(f"dhvt__{variant}")
    model = build(file)
    assert [[k, list(v.shape)] for k, v in model.state_dict().items()] == [[k, shape] for k, shape, _ in file["keys"]]
    assert {k for k, _ in model.named_parameters()} == {k for k, _, kind in file["keys"] if kind == "param"}
    assert sum(p.numel() for p in model.parameters()) == file["param_count"]

    with torch.no_grad():
        features, (tokens,) = model.forward_intermediates(
            images(file), indices=1, return_prefix_tokens=True, output_fmt="NLC"
        )
        assert_close(model.forward_head(features), file["logits"])
    tokens = torch.cat([tokens[1], tokens[0]], dim=1)
    for actual, expected in (
        (features[:, 0], file["features"]),
        (tokens, file["tokens_before_final_norm"]),
    ):
        assert list(actual.shape) == expected["shape"]
        spread = expected["std_population"]
        assert_close(actual.mean(), expected["mean"], spread)
        assert_close(actual.std(correction=0), expected["std_population"], spread)


@pytest.mark.parametrize("variant", ["dhvt_tiny_cifar_patch4", "micro_p4_d48_h4"])
def test_gradients_equal_the_release(variant):
    file = golden(f"dhvt__{variant}")
    model = build(file)
    loss = F.cross_entropy(model(images(file)), torch.tensor([1, 2]))
    loss.backward()
    assert_close(loss.detach(), file["grad"]["loss"], 1.0)
    assert_norms({k: p.grad for k, p in model.named_parameters()}, file["grad"]["norms"])


def test_a_training_step_equals_the_release():
    file = golden("dhvt__micro_p4_d48_h4")
    expected = file["train_mode"]
    model = build(file).train()
    loss = F.cross_entropy(model(images(file)), torch.tensor([1, 2]))
    loss.backward()
    assert_close(loss.detach(), expected["loss"], 1.0)
    assert_norms({k: p.grad for k, p in model.named_parameters()}, expected["grad_norms"])
    running = {k: b for k, b in model.named_buffers() if "running" in k}
    assert_norms(running, expected["running_norms_after"])
    with torch.no_grad():
        assert_close(model.eval()(images(file)), expected["eval_logits_after"])


def test_checkpointing_leaves_gradients_and_statistics_as_they_are():
    """A checkpointed block runs twice, which must not count its batch twice."""
    file = golden("dhvt__micro_p4_d48_h4")
    results = []
    for enable in (False, True):
        model = build(file).train()
        model.set_grad_checkpointing(enable)
        F.cross_entropy(model(images(file)), torch.tensor([1, 2])).backward()
        results.append({k: p.grad for k, p in model.named_parameters()} | dict(model.named_buffers()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", ["components_p4_d96_h4_eval", "components_p16_d48_h3_train"])
@pytest.mark.parametrize("part", ["sope", "hi_mhsa", "daff", "block"])
def test_each_part_equals_the_release(variant, part):
    file = golden(f"dhvt__{variant}")
    expected = file["modules"][part]
    dim, heads, patch, size = (file["config"][k] for k in ("embed_dim", "num_heads", "patch_size", "img_size"))
    grid = (size // patch, size // patch)
    module = {
        "sope": lambda: SOPE(size, patch, 3, dim),
        "hi_mhsa": lambda: HeadInteractedAttention(dim, num_heads=heads),
        "daff": lambda: DAFF(dim, 4 * dim),
        "block": lambda: Block(dim, num_heads=heads),
    }[part]()
    assert [[k, list(v.shape)] for k, v in module.state_dict().items()] == [[k, s] for k, s, _ in expected["keys"]]
    module.load_state_dict(fill(expected["keys"], file["fill"]["scale"]))
    module.train(file["mode"].startswith("train"))

    shape, seed = {
        "sope": ((2, 3, size, size), 0),
        "hi_mhsa": ((2, 1 + grid[0] * grid[1], dim), 11),
        "daff": ((2, 1 + grid[0] * grid[1], dim), 12),
        "block": ((2, 1 + grid[0] * grid[1], dim), 13),
    }[part]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        if part == "sope":
            y = module(x).flatten(2).transpose(1, 2)
        else:
            y = module(x) if part == "hi_mhsa" else module(x, grid)
    assert list(y.shape) == expected["output"]["shape"]
    patches = y if part == "sope" else y[:, 1:]
    assert_close(patches[:, 0, :8], expected["first_patch_first8"])
    assert_close(patches[:, -1, :8], expected["last_patch_first8"])
    if part != "sope":
        assert_close(y[:, 0, :8], expected["class_token_row_first8"])
    assert_close(y.flatten()[expected["sample_flat_index"]], expected["sample"])
    if part == "hi_mhsa":
        tokens = (module.head_tokens(x) - module.pos_embed).detach()[0, :, :12]
        assert_close(tokens, expected["head_tokens_before_embedding_image0"]["values"])


def test_a_hook_on_attn_drop_sees_the_attention_of_head_tokens():
    """Figure 4: queries are the head tokens (last rows), keys the patches."""
    file = golden("dhvt__dhvt_tiny_cifar_patch4")
    expected = file["head_token_attention_block1"]
    model = build(file)
    attn = model.blocks[1].attn
    attn.fused_attn = False
    seen = []
    attn.attn_drop.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(images(file))
    maps = seen[0][:, :, -attn.num_heads :, 1 : 1 + model.patch_embed.num_patches]
    assert_close(maps.sum(dim=-1), expected["sums"])
    assert_close(maps[0].mean(dim=0), expected["map_mean_over_heads_image0"])


@pytest.mark.parametrize(
    ("abs_pos_embed", "sope", "daff", "head_tokens", "params"),
    [
        (True, False, False, False, 5_380_132),
        (False, False, False, False, 5_367_652),
        (True, True, False, False, 5_540_170),
        (False, True, False, False, 5_527_690),
        (True, False, True, False, 5_737_828),
        (False, False, True, False, 5_725_348),
        (True, True, True, False, 5_897_866),
        (False, True, True, False, 5_885_386),
        (True, False, False, True, 5_503_396),
        (False, True, True, True, 6_008_650),
    ],
)
def test_every_row_of_tables_5_and_6_can_be_built(abs_pos_embed, sope, daff, head_tokens, params):
    switches = dict(abs_pos_embed=abs_pos_embed, sope=sope, daff=daff, head_tokens=head_tokens)
    with torch.device("meta"):
        model = DHVT(img_size=32, patch_size=4, embed_dim=192, depth=12, num_heads=4, num_classes=100, **switches)
    assert sum(p.numel() for p in model.parameters()) == params


@pytest.mark.parametrize(
    ("name", "params", "keys"),
    [
        ("dhvt_tiny_cifar_patch4", 6_008_650, 477),
        ("dhvt_small_cifar_patch4", 23_425_450, 477),
        ("dhvt_tiny_cifar_patch2", 5_845_162, 471),
        ("dhvt_small_cifar_patch2", 22_766_698, 471),
        ("dhvt_tiny_domain_patch16", 6_105_975, 489),
        ("dhvt_small_domain_patch16", 23_788_431, 489),
        ("dhvt_tiny_imagenet_patch16", 6_267_334, 489),
        ("dhvt_small_imagenet_patch16", 24_040_606, 489),
    ],
)
def test_every_variant_has_the_size_of_the_release(name, params, keys):
    with torch.device("meta"):
        model = timm.create_model(name)
    assert sum(p.numel() for p in model.parameters()) == params
    assert len(model.state_dict()) == keys


def test_weight_decay_and_drop_path_reach_what_they_reach_in_the_release():
    file = golden("dhvt__recipe")
    model = timm.create_model("dhvt_tiny_cifar_patch4", drop_path_rate=0.1)
    groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    names = {id(p): name for name, p in model.named_parameters()}
    for group, expected in zip(groups, file["schedules"]["cifar_tiny"]["param_groups"], strict=True):
        assert group["weight_decay"] == expected["weight_decay"]
        assert len(group["params"]) == expected["n_tensors"]
        assert sum(p.numel() for p in group["params"]) == expected["n_values"]
    decayed = {names[id(p)] for p in groups[1]["params"]}
    assert all(any(fnmatch(name, pattern) for pattern in file["weight_decay_applied_to"]) for name in decayed)
    for block, rate in zip(model.blocks, file["drop_path_per_block"], strict=True):
        assert block.drop_path1.drop_prob == block.drop_path2.drop_prob == pytest.approx(rate, abs=1e-7)
