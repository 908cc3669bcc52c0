"""DHVT against the authors' release: state dict, outputs, gradients and BatchNorm statistics."""

from fnmatch import fnmatch

import pytest
import timm
import torch
import torch.nn.functional as F
from rule import draws, every, files, golden, images, labels_in, randn, scaled, seed_in, tolerance
from timm.optim import param_groups_weight_decay

import vitling
from vitling.models.dhvt import DAFF, DHVT, SOPE, Block, HeadInteractedAttention

ARGUMENTS = (
    "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias",
    "sope", "daff", "head_tokens", "abs_pos_embed",
)  # fmt: skip
# Of the files of a recipe, which say no more than the variant's name on its data: the model and what it decays.
RECIPES = {"cifar_tiny": "dhvt_tiny_cifar_patch4", "domainnet_tiny": "dhvt_tiny_cifar_patch4"}


def build(file: dict) -> DHVT:
    """By the variant's name where it has one, else by its sizes."""
    if timm.is_model(file["variant"]):
        model = timm.create_model(file["variant"], img_size=file["img_size"], num_classes=file["num_classes"])
    else:
        arguments = {key: value for key, value in file["config"].items() if key in ARGUMENTS}
        model = DHVT(img_size=file["img_size"], num_classes=file["num_classes"], **arguments)
    vitling.load_weights(model, scaled(file["keys"], file["fill"]["scale"]))
    return model.eval()


def assert_close(file: dict, actual: torch.Tensor, expected, spread: float | None = None):
    """The strict tolerance of the file; `spread` is the scale of the values where the file gives another one."""
    expected = torch.tensor(expected)
    if spread is None:
        spread = expected.std().item() if expected.numel() > 1 else 1.0
    allowed = tolerance(file, "strict")
    torch.testing.assert_close(actual, expected, rtol=allowed["rtol"], atol=allowed["atol"] * max(1.0, spread))


def assert_norms(file: dict, actual: dict[str, torch.Tensor], expected: dict[str, float]):
    assert actual.keys() == expected.keys()
    norms = {key: value.norm().item() for key, value in actual.items()}
    allowed = tolerance(file, "strict")
    assert norms == pytest.approx(expected, rel=allowed["rtol"], abs=allowed["atol"])


@every("dhvt__", "logits")
def test_keys_and_outputs_equal_the_release(name):
    file = golden(name)
    model = build(file)
    assert [[k, list(v.shape)] for k, v in model.state_dict().items()] == [[k, shape] for k, shape, _ in file["keys"]]
    assert {k for k, _ in model.named_parameters()} == {k for k, _, kind in file["keys"] if kind == "param"}
    assert sum(p.numel() for p in model.parameters()) == file["param_count"]

    with torch.no_grad():
        features, (tokens,) = model.forward_intermediates(
            images(file), indices=1, return_prefix_tokens=True, output_fmt="NLC"
        )
        assert_close(file, model.forward_head(features), file["logits"])
    tokens = torch.cat([tokens[1], tokens[0]], dim=1)
    for actual, expected in (
        (features[:, 0], file["features"]),
        (tokens, file["tokens_before_final_norm"]),
    ):
        assert list(actual.shape) == expected["shape"]
        spread = expected["std_population"]
        assert_close(file, actual.mean(), expected["mean"], spread)
        assert_close(file, actual.std(correction=0), expected["std_population"], spread)


@every("dhvt__", "grad")
def test_gradients_equal_the_release(name):
    file = golden(name)
    model = build(file)
    loss = F.cross_entropy(model(images(file)), labels_in(file["grad"]["what"]))
    loss.backward()
    assert_close(file, loss.detach(), file["grad"]["loss"])
    assert_norms(file, {k: p.grad for k, p in model.named_parameters()}, file["grad"]["norms"])


@every("dhvt__", "train_mode")
def test_a_training_step_equals_the_release(name):
    file = golden(name)
    expected = file["train_mode"]
    model = build(file).train()
    loss = F.cross_entropy(model(images(file)), labels_in(file["grad"]["what"]))
    loss.backward()
    assert_close(file, loss.detach(), expected["loss"])
    assert_norms(file, {k: p.grad for k, p in model.named_parameters()}, expected["grad_norms"])
    running = {k: b for k, b in model.named_buffers() if "running" in k}
    assert_norms(file, running, expected["running_norms_after"])
    with torch.no_grad():
        assert_close(file, model.eval()(images(file)), expected["eval_logits_after"])


@every("dhvt__", "train_mode")
def test_checkpointing_leaves_gradients_and_statistics_as_they_are(name):
    """A checkpointed block runs twice, which must not count its batch twice."""
    file = golden(name)
    results = []
    for enable in (False, True):
        model = build(file).train()
        model.set_grad_checkpointing(enable)
        F.cross_entropy(model(images(file)), labels_in(file["grad"]["what"])).backward()
        results.append({k: p.grad for k, p in model.named_parameters()} | dict(model.named_buffers()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


@every("dhvt__", "modules")
@pytest.mark.parametrize("part", ["sope", "hi_mhsa", "daff", "block"])
def test_each_part_equals_the_release(name, part):
    file = golden(name)
    expected, config = file["modules"][part], file["config"]
    dim, heads, patch, size = (config[key] for key in ("embed_dim", "num_heads", "patch_size", "img_size"))
    grid = (size // patch, size // patch)
    stem_keys = {key: shape for key, shape, _ in file["modules"]["sope"]["keys"]}
    in_chans = stem_keys["proj.0.0.weight"][1]
    module = {
        "sope": lambda: SOPE(size, patch, in_chans, dim),
        "hi_mhsa": lambda: HeadInteractedAttention(dim, num_heads=heads),
        "daff": lambda: DAFF(dim, int(dim * config["mlp_ratio"])),
        "block": lambda: Block(dim, num_heads=heads, mlp_ratio=config["mlp_ratio"]),
    }[part]()
    assert [[k, list(v.shape)] for k, v in module.state_dict().items()] == [[k, s] for k, s, _ in expected["keys"]]
    module.load_state_dict(scaled(expected["keys"], file["fill"]["scale"]))
    module.train(file["mode"].startswith("train"))

    if part == "sope":
        x = randn((expected["output"]["shape"][0], in_chans, size, size), seed_in(expected["input"]))
    else:
        x = draws(expected["input"])[0].tensor()
    with torch.no_grad():
        if part == "sope":
            y = module(x).flatten(2).transpose(1, 2)
        else:
            y = module(x) if part == "hi_mhsa" else module(x, grid)
    assert list(y.shape) == expected["output"]["shape"]
    patches = y if part == "sope" else y[:, 1:]
    assert_close(file, patches[:, 0, :8], expected["first_patch_first8"])
    assert_close(file, patches[:, -1, :8], expected["last_patch_first8"])
    if part != "sope":
        assert_close(file, y[:, 0, :8], expected["class_token_row_first8"])
    assert_close(file, y.flatten()[expected["sample_flat_index"]], expected["sample"])
    if part == "hi_mhsa":
        values = expected["head_tokens_before_embedding_image0"]["values"]
        tokens = (module.head_tokens(x) - module.pos_embed).detach()[0, :, : len(values[0])]
        assert_close(file, tokens, values)


ATTENTION = "head_token_attention_block"


def with_attention():
    return [(name, key) for name in files("dhvt__") for key in golden(name) if key.startswith(ATTENTION)]


@pytest.mark.parametrize(("name", "entry"), with_attention())
def test_a_hook_on_attn_drop_sees_the_attention_of_head_tokens(name, entry):
    """Figure 4: queries are the head tokens (last rows), keys the patches."""
    file = golden(name)
    model = build(file)
    attn = model.blocks[int(entry.removeprefix(ATTENTION))].attn
    attn.fused_attn = False
    seen = []
    attn.attn_drop.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(images(file))
    maps = seen[0][:, :, -attn.num_heads :, 1 : 1 + model.patch_embed.num_patches]
    assert_close(file, maps.sum(dim=-1), file[entry]["sums"])
    assert_close(file, maps[0].mean(dim=0), file[entry]["map_mean_over_heads_image0"])


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


@every("dhvt__", "weight_decay_applied_to")
def test_weight_decay_and_drop_path_reach_what_they_reach_in_the_release(name):
    file = golden(name)
    for recipe, case in file["schedules"].items():
        model = timm.create_model(RECIPES[recipe], drop_path_rate=max(file["drop_path_per_block"]))
        groups = param_groups_weight_decay(model, 1.0, no_weight_decay_list=model.no_weight_decay())
        names = {id(p): name for name, p in model.named_parameters()}
        for group, expected in zip(groups, case["param_groups"], strict=True):
            assert bool(group["weight_decay"]) == bool(expected["weight_decay"])
            assert len(group["params"]) == expected["n_tensors"]
            assert sum(p.numel() for p in group["params"]) == expected["n_values"]
        decayed = {names[id(p)] for p in groups[1]["params"]}
        assert all(any(fnmatch(name, pattern) for pattern in file["weight_decay_applied_to"]) for name in decayed)
        for block, rate in zip(model.blocks, file["drop_path_per_block"], strict=True):
            assert block.drop_path1.drop_prob == block.drop_path2.drop_prob == pytest.approx(rate, abs=1e-7)
