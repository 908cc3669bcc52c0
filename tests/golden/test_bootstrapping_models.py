"""The Bootstrapping ViT and its agents against the authors' release: keys, counts, outputs, gradients, shared weights."""

from functools import cache

import pytest
import timm
import torch
import torch.nn.functional as F
from plain_agent import plain_state, tap_offsets
from rule import about, golden, normal
from torch.utils.flop_counter import FlopCounterMode

import vitling
from vitling.models.agent import Agent, GeneralizedConv, SharedConv, create_agent, shared_taps, value_rows
from vitling.models.vit import BootstrappingViT, EntmaxAttention, entmax

VITS = ["vit_small", "micro_vit_A", "micro_vit_A_entmax"]
AGENTS = ["agent_small_base", "agent_base_res_like", "micro_agent_A"]
NAMES = {"vit_small": "boot_vit_small", "agent_small_base": "agent_small", "agent_base_res_like": "agent_base_res"}


def fill(keys: list, scale: float, aliases: dict[str, str] | None = None) -> dict[str, torch.Tensor]:
    """The authors' state dict that the files' rule gives; counters and entmax's alpha keep what the model makes."""
    state = {}
    for key, shape, _ in keys:
        t = normal((aliases or {}).get(key, key), shape)
        if key.endswith("alpha") and not shape:
            state[key] = torch.tensor(1.5)
        else:
            state[key] = scale * t if len(shape) >= 2 else about(key, t)
    return state


def build(variant: str) -> torch.nn.Module:
    file = golden(f"bootstrapping__{variant}")
    config, classes = file["config"], file["num_classes"]
    if variant in NAMES:
        return timm.create_model(NAMES[variant], num_classes=classes)
    if variant.startswith("micro_vit"):
        sizes = config["transformer"]
        return BootstrappingViT(
            img_size=file["img_size"],
            patch_size=config["patch_embed"]["patch_size"],
            num_classes=classes,
            embed_dim=sizes["embed_dim"],
            depth=sizes["num_encoder_layers"],
            num_heads=sizes["num_heads"],
            mlp_ratio=sizes["dim_feedforward"] / sizes["embed_dim"],
            norm_eps=sizes["norm_eps"],
            attention="entmax" if sizes.get("use_entmax") else "softmax",
        )
    return Agent(
        img_size=file["img_size"],
        num_classes=classes,
        embed_dim=config["embed_dim"],
        depth=config["num_layers"],
        num_heads=config["conv_block"]["num_heads"],
        mlp_ratio=config["mlp_block"]["dim_feedforward"] / config["embed_dim"],
        stem="res",
        mid_chans=config["input_proj"]["mid_channel"],
        down_sample=config["down_sample_layers"],
        pre_norm=config["pre_norm"],
    )


@cache
def built(variant: str):
    """The model with the file's weights in eval mode, its images, and its outputs from one forward pass."""
    file = golden(f"bootstrapping__{variant}")
    model = build(variant)
    vitling.load_weights(model, fill(file["keys"], file["fill"]["scale"]))
    model.eval()
    with torch.no_grad():
        return file, model, *outputs_of(model, images(file))


def images(file: dict) -> torch.Tensor:
    return torch.randn(file["input"]["shape"], generator=torch.Generator().manual_seed(file["input"]["seed"]))


def outputs_of(model: torch.nn.Module, x: torch.Tensor):
    """Block outputs (a ViT's with the class token), input of the classifier, logits."""
    if isinstance(model, Agent):
        features, blocks = model.forward_intermediates(x)
    else:
        features, blocks = model.forward_intermediates(x, output_fmt="NLC", return_prefix_tokens=True)
        blocks = [torch.cat([prefix, patches], dim=1) for patches, prefix in blocks]
    return blocks, model.forward_head(features, pre_logits=True), model.forward_head(features)


def assert_near(value: torch.Tensor, expected) -> None:
    """Within the strict tolerance of the files: logits of agents are large, so it grows with their spread."""
    expected = torch.as_tensor(expected)
    spread = expected.std().item() if expected.numel() > 1 else expected.abs().item()
    torch.testing.assert_close(value, expected, atol=3e-5 * max(1, spread), rtol=2e-5)


def assert_same_statistics(value: torch.Tensor, expected: dict) -> None:
    if len(expected["shape"]) == 3:
        value = value.transpose(0, 1)  # the release puts the tokens first
    assert list(value.shape) == expected["shape"]
    spread = expected["std_population"]
    assert value.mean().item() == pytest.approx(expected["mean"], abs=3e-5 * max(1, spread), rel=2e-5)
    assert value.std(correction=0).item() == pytest.approx(spread, abs=3e-5, rel=2e-5)


@pytest.mark.parametrize("variant", VITS + AGENTS)
def test_writing_in_the_authors_names_gives_their_keys_shapes_and_values(variant):
    file, model, *_ = built(variant)
    state = fill(file["keys"], file["fill"]["scale"])
    written = model.to_authors(model.state_dict())
    assert {key: list(value.shape) for key, value in written.items()} == {k: shape for k, shape, _ in file["keys"]}
    assert all(torch.equal(written[key], value) for key, value in state.items())
    assert sum(p.numel() for p in model.parameters()) == file["param_count"]


@pytest.mark.parametrize("variant", VITS + AGENTS)
def test_logits_equal_the_release(variant):
    file, _, _, _, logits = built(variant)
    assert_near(logits, file["logits"])


@pytest.mark.parametrize("variant", VITS + AGENTS)
def test_block_outputs_and_pooled_features_equal_the_release(variant):
    file, _, blocks, pooled, _ = built(variant)
    assert len(blocks) == len(file["layer_outputs"])
    for i, value in enumerate(blocks):
        assert_same_statistics(value, file["layer_outputs"][str(i)])
    assert_same_statistics(pooled, file["features"])


@pytest.mark.parametrize("variant", ["micro_vit_A", "micro_vit_A_entmax", "micro_agent_A"])
def test_gradients_equal_the_release(variant):
    file, model, *_ = built(variant)
    loss = F.cross_entropy(model(images(file)), torch.tensor([1, 2]))
    assert loss.item() == pytest.approx(file["grad"]["loss"], rel=2e-5)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    named = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    norms = {key: grad.norm() for key, grad in model.to_authors(named).items()}
    assert norms.keys() == file["grad"]["norms"].keys()
    for key, expected in file["grad"]["norms"].items():
        assert_near(norms[key], expected)


@pytest.mark.parametrize(("name", "classes", "params", "gmacs"), [
    ("boot_vit_small", 10, 6_276_394, 1.354), ("boot_vit_small", 1000, 6_562_504, 1.354),
    ("boot_vit_base", 10, 21_669_514, 4.599), ("boot_vit_base", 100, 21_704_164, 4.599),
    ("agent_small", 10, 8_702_506, 1.702), ("agent_small_res", 10, 8_656_746, 1.906), ("agent_small_res", 100, 8_682_756, 1.906),
    ("agent_base", 10, 25_118_602, 4.913), ("agent_base_res", 10, 25_054_410, 7.878),
])  # fmt: skip
def test_parameters_and_macs_are_those_measured_on_the_release(name, classes, params, gmacs):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=classes).eval()
        x = torch.empty(1, 3, 224, 224)
    assert sum(p.numel() for p in model.parameters()) == params
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # the counter knows products of matrices and convolutions
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, rel=2e-3)


@pytest.mark.parametrize("variant", ["conv_H6_d12_3x3", "conv_H9_d18_5x4"])
def test_generalized_convolution_equals_the_release_with_own_and_with_shared_weights(variant):
    file = golden(f"bootstrapping__{variant}")
    dim, heads = file["config"]["embed_dim"], file["config"]["num_heads"]
    height, width = file["config"]["height"], file["config"]["width"]
    x = torch.randn(2, dim, height, width, generator=torch.Generator().manual_seed(21))

    conv = GeneralizedConv(dim, heads)
    assert tap_offsets(conv.window) == [tuple(offset) for offset in file["taps_row_col_offset"]]
    conv.load_state_dict(fill(file["fill"]["own_weight_module_keys"], file["fill"]["scale"]))
    assert_near(conv(x).flatten(2).transpose(1, 2), file["own_weight"]["output_tokens"])

    attn = timm.layers.Attention(dim, heads, qkv_bias=True)
    state = fill(file["fill"]["mhsa_module_keys"], file["fill"]["scale"])
    attn.load_state_dict({k.replace("linear_qkv", "qkv").replace("linear_out", "proj"): v for k, v in state.items()})
    shared = SharedConv(attn)(x)
    assert_near(shared.flatten(2).transpose(1, 2), file["shared_weight"]["output_tokens"])
    tokens = attn(x.flatten(2).transpose(1, 2))
    assert_near(tokens[0, :3], file["mhsa_same_weights"]["output"])

    with torch.no_grad():
        conv.weight.copy_(shared_taps(value_rows(attn), attn.proj.weight, heads))
        conv.bias.copy_(attn.proj.bias)
    torch.testing.assert_close(conv(x), shared)


@cache
def shared_pair():
    """The ViT and the agent that borrows from it, loaded from one shared checkpoint of the authors."""
    file = golden("bootstrapping__shared_small_res_like")
    checkpoint = fill(file["keys"], file["fill"]["scale"], file["aliases"])
    vit = timm.create_model("boot_vit_small", num_classes=file["num_classes"])
    agent = create_agent(vit, stem="res", share=True)
    vitling.load_weights(vit, checkpoint)
    agent.load_state_dict(agent.from_authors(checkpoint))
    with torch.no_grad():
        return file, checkpoint, vit.eval(), agent.eval(), outputs_of(agent, images(file))


def test_a_sharing_agent_equals_the_release():
    file, _, _, _, (blocks, pooled, logits) = shared_pair()
    assert_near(logits, file["cnn"]["logits"])
    for i, value in enumerate(blocks):
        assert_same_statistics(value, file["cnn"]["mid_features"][f"layers.{i}"])
    assert_same_statistics(pooled, file["cnn"]["features"])


def test_the_vit_of_a_shared_checkpoint_equals_the_release():
    file, _, vit, _, _ = shared_pair()
    with torch.no_grad():
        blocks, pooled, logits = outputs_of(vit, images(file))
    assert_near(logits, file["vit"]["logits"])
    for i, value in enumerate(blocks):
        assert_same_statistics(value, file["vit"]["mid_features"][f"transformer.layers.{i}"])
    assert_same_statistics(pooled, file["vit"]["features"])


def test_a_sharing_pair_has_the_unique_parameters_of_the_release():
    file, _, vit, agent, _ = shared_pair()
    own = {key for key, _, kind in file["keys"] if key.startswith("models.cnn.") and key not in file["aliases"]}
    assert {f"models.cnn.{key}" for key in agent.to_authors(agent.state_dict())} == own
    assert sum(p.numel() for p in [*vit.parameters(), *agent.parameters()]) == file["param_count"]


def test_a_shared_checkpoint_loads_into_a_plain_agent_with_its_taps_built():
    _, checkpoint, vit, agent, (_, _, logits) = shared_pair()
    plain = create_agent(vit, stem="res").eval()
    vitling.load_weights(plain, checkpoint)
    built_here = plain_state(agent)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(value, built_here[key])
    x = images(golden("bootstrapping__shared_small_res_like"))
    with torch.no_grad():
        assert_near(plain(x), logits)


@pytest.mark.parametrize(("stem", "params"), [("res", 6_514_504), ("base", 6_560_264)])
def test_small_sharing_pairs_have_the_published_size(stem, params):
    with torch.device("meta"):
        vit = timm.create_model("boot_vit_small", num_classes=100)
        agent = create_agent(vit, stem=stem, share=True)
    assert sum(p.numel() for p in [*vit.parameters(), *agent.parameters()]) == params


def test_the_base_sharing_pair_has_the_published_size():
    with torch.device("meta"):
        vit = timm.create_model("boot_vit_base", num_classes=100)
        agent = create_agent(vit, share=True)
    assert sum(p.numel() for p in [*vit.parameters(), *agent.parameters()]) == 21_992_968


@pytest.mark.parametrize("case", [0, 1])
def test_entmax_and_its_gradients_equal_the_release(case):
    expected = golden("bootstrapping__misc")["entmax"]["cases"][case]
    x = 2 * torch.randn(3, 6, generator=torch.Generator().manual_seed(81))
    x.requires_grad_()
    alpha = torch.tensor(expected["alpha"], requires_grad=True)
    p = entmax(x, alpha)
    p.backward(torch.randn(3, 6, generator=torch.Generator().manual_seed(82)))
    assert_near(p, expected["output"])
    assert_near(x.grad, expected["grad_x"])
    assert_near(alpha.grad, expected["grad_alpha"])


def test_every_layer_learns_its_own_alpha():
    vit = timm.create_model("boot_vit_test", attention="entmax")
    assert all(isinstance(block.attn, EntmaxAttention) for block in vit.blocks)
    vit(torch.randn(2, 3, 16, 16)).logsumexp(1).sum().backward()
    assert all(block.attn.alpha.grad.abs() > 0 for block in vit.blocks)
