"""The Bootstrapping ViT and its agents against the authors' release: keys, counts, outputs, gradients, shared weights."""

from functools import cache

import pytest
import timm
import torch
import torch.nn.functional as F
from plain_agent import plain_state, tap_offsets
from rule import draws, every, files, golden, images, labels_in, scaled, tolerance
from torch.utils.flop_counter import FlopCounterMode

import vitling
from vitling.models.agent import Agent, GeneralizedConv, SharedConv, create_agent, shared_taps, value_rows
from vitling.models.vit import BootstrappingViT, EntmaxAttention, entmax

SUFFIXES = {"_base": "", "_res_like": "_res"}  # of the release's names of agents, and ours
STEMS = {"resnet_like": "res", "linear": "base", "vit_like": "base"}


def named(variant: str) -> str:
    """Our name of a variant of the release."""
    if variant.startswith("agent_"):
        suffix = next((suffix for suffix in SUFFIXES if variant.endswith(suffix)), "")
        return variant.removesuffix(suffix) + SUFFIXES.get(suffix, "")
    return f"boot_{variant}"


def build(file: dict) -> torch.nn.Module:
    """By the variant's name where it has one, else by its sizes."""
    if timm.is_model(named(file["variant"])):
        return timm.create_model(named(file["variant"]), img_size=file["img_size"], num_classes=file["num_classes"])
    config = file["config"].get("yaml_model_section", file["config"])
    return (build_vit if config["name"] == "vit" else build_agent)(config, file["img_size"], file["num_classes"])


def build_vit(config: dict, img_size: int, num_classes: int) -> BootstrappingViT:
    sizes = config["transformer"]
    eps = {"norm_eps": sizes["norm_eps"]} if "norm_eps" in sizes else {}
    return BootstrappingViT(
        img_size=img_size,
        patch_size=config["patch_embed"]["patch_size"],
        num_classes=num_classes,
        embed_dim=sizes["embed_dim"],
        depth=sizes["num_encoder_layers"],
        num_heads=sizes["num_heads"],
        mlp_ratio=sizes["dim_feedforward"] / sizes["embed_dim"],
        attention="entmax" if sizes.get("use_entmax") else "softmax",
        **eps,
    )


def build_agent(config: dict, img_size: int, num_classes: int) -> Agent:
    stem = config["input_proj"]
    return Agent(
        img_size=img_size,
        num_classes=num_classes,
        embed_dim=config["embed_dim"],
        depth=config["num_layers"],
        patch_size=stem.get("patch_size", 16),
        num_heads=config["conv_block"].get("num_heads", 9),  # without: an ordinary 3x3 convolution
        mlp_ratio=config["mlp_block"]["dim_feedforward"] / config["embed_dim"],
        stem=STEMS[stem["name"]],
        mid_chans=stem.get("mid_channel", 64),
        down_sample=config.get("down_sample_layers") or (),
        pre_norm=config.get("pre_norm", True),
    )


@cache
def built(name: str):
    """The model with the file's weights in eval mode, and its outputs from one forward pass."""
    file = golden(name)
    model = build(file)
    vitling.load_weights(model, scaled(file["keys"], file["fill"]["scale"]))
    model.eval()
    with torch.no_grad():
        return file, model, *outputs_of(model, images(file))


def outputs_of(model: torch.nn.Module, x: torch.Tensor):
    """Block outputs (a ViT's with the class token), input of the classifier, logits."""
    if isinstance(model, Agent):
        features, blocks = model.forward_intermediates(x)
    else:
        features, blocks = model.forward_intermediates(x, output_fmt="NLC", return_prefix_tokens=True)
        blocks = [torch.cat([prefix, patches], dim=1) for patches, prefix in blocks]
    return blocks, model.forward_head(features, pre_logits=True), model.forward_head(features)


def assert_near(file: dict, value: torch.Tensor, expected) -> None:
    """Within the strict tolerance of the file: logits of agents are large, so it grows with their spread."""
    expected = torch.as_tensor(expected)
    spread = expected.std().item() if expected.numel() > 1 else expected.abs().item()
    allowed = tolerance(file, "strict")
    torch.testing.assert_close(value, expected, atol=allowed["atol"] * max(1, spread), rtol=allowed["rtol"])


def assert_same_statistics(file: dict, value: torch.Tensor, expected: dict) -> None:
    if len(expected["shape"]) == 3:
        value = value.transpose(0, 1)  # the release puts the tokens first
    assert list(value.shape) == expected["shape"]
    spread, allowed = expected["std_population"], tolerance(file, "strict")
    near = dict(abs=allowed["atol"] * max(1, spread), rel=allowed["rtol"])
    assert value.mean().item() == pytest.approx(expected["mean"], **near)
    assert value.std(correction=0).item() == pytest.approx(spread, **near)


every_network = every("bootstrapping__", "layer_outputs")


@every_network
def test_writing_in_the_authors_names_gives_their_keys_shapes_and_values(name):
    file, model, *_ = built(name)
    state = scaled(file["keys"], file["fill"]["scale"])
    written = model.to_authors(model.state_dict())
    assert {key: list(value.shape) for key, value in written.items()} == {k: shape for k, shape, _ in file["keys"]}
    assert all(torch.equal(written[key], value) for key, value in state.items())
    assert sum(p.numel() for p in model.parameters()) == file["param_count"]


@every_network
def test_logits_equal_the_release(name):
    file, _, _, _, logits = built(name)
    assert_near(file, logits, file["logits"])


@every_network
def test_block_outputs_and_pooled_features_equal_the_release(name):
    file, _, blocks, pooled, _ = built(name)
    assert len(blocks) == len(file["layer_outputs"])
    for i, value in enumerate(blocks):
        assert_same_statistics(file, value, file["layer_outputs"][str(i)])
    assert_same_statistics(file, pooled, file["features"])


@every("bootstrapping__", "layer_outputs", "grad")
def test_gradients_equal_the_release(name):
    file, model, *_ = built(name)
    loss = F.cross_entropy(model(images(file)), labels_in(file["grad"]["what"]))
    assert loss.item() == pytest.approx(file["grad"]["loss"], rel=tolerance(file, "strict")["rtol"])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    named = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    norms = {key: grad.norm() for key, grad in model.to_authors(named).items()}
    assert norms.keys() == file["grad"]["norms"].keys()
    for key, expected in file["grad"]["norms"].items():
        assert_near(file, norms[key], expected)


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


@every("bootstrapping__", "taps_row_col_offset")
def test_generalized_convolution_equals_the_release_with_own_and_with_shared_weights(name):
    file = golden(name)
    dim, heads, scale = file["config"]["embed_dim"], file["config"]["num_heads"], file["fill"]["scale"]
    x = draws(file["input"])[0].tensor()
    assert x.shape[1:] == (dim, file["config"]["height"], file["config"]["width"])

    conv = GeneralizedConv(dim, heads)
    assert tap_offsets(conv.window) == [tuple(offset) for offset in file["taps_row_col_offset"]]
    conv.load_state_dict(scaled(file["fill"]["own_weight_module_keys"], scale))
    assert_near(file, conv(x).flatten(2).transpose(1, 2), file["own_weight"]["output_tokens"])

    attn = timm.layers.Attention(dim, heads, qkv_bias=True)
    state = scaled(file["fill"]["mhsa_module_keys"], scale)
    attn.load_state_dict({k.replace("linear_qkv", "qkv").replace("linear_out", "proj"): v for k, v in state.items()})
    shared = SharedConv(attn)(x)
    assert_near(file, shared.flatten(2).transpose(1, 2), file["shared_weight"]["output_tokens"])
    tokens = attn(x.flatten(2).transpose(1, 2))
    shown = file["mhsa_same_weights"]["output"]
    assert_near(file, tokens[0, : len(shown)], shown)

    with torch.no_grad():
        conv.weight.copy_(shared_taps(value_rows(attn), attn.proj.weight, heads))
        conv.bias.copy_(attn.proj.bias)
    torch.testing.assert_close(conv(x), shared)


@cache
def shared_pair(name: str):
    """The ViT and the agent that borrows from it, loaded from one shared checkpoint of the authors."""
    file = golden(name)
    config = file["config"]["yaml_cfg"]
    checkpoint = scaled(file["keys"], file["fill"]["scale"], file["aliases"])
    vit = build_vit(config["vit"], file["img_size"], file["num_classes"])
    agent = create_agent(vit, share=True, **agent_settings(config["cnn"]))
    vitling.load_weights(vit, checkpoint)
    agent.load_state_dict(agent.from_authors(checkpoint))
    with torch.no_grad():
        return file, checkpoint, vit.eval(), agent.eval(), outputs_of(agent, images(file))


def agent_settings(config: dict) -> dict:
    """What the agent of a shared checkpoint does not have from its ViT."""
    stem = config["input_proj"]
    widths = {"mid_chans": stem["mid_channel"]} if "mid_channel" in stem else {}
    pools = tuple(config.get("down_sample_layers") or ())
    return dict(stem=STEMS[stem["name"]], down_sample=pools, pre_norm=config.get("pre_norm", True), **widths)


every_pair = every("bootstrapping__", "cnn.mid_features")


@every_pair
def test_a_sharing_agent_equals_the_release(name):
    file, _, _, _, (blocks, pooled, logits) = shared_pair(name)
    assert_near(file, logits, file["cnn"]["logits"])
    for i, value in enumerate(blocks):
        assert_same_statistics(file, value, file["cnn"]["mid_features"][f"layers.{i}"])
    assert_same_statistics(file, pooled, file["cnn"]["features"])


@every_pair
def test_the_vit_of_a_shared_checkpoint_equals_the_release(name):
    file, _, vit, _, _ = shared_pair(name)
    with torch.no_grad():
        blocks, pooled, logits = outputs_of(vit, images(file))
    assert_near(file, logits, file["vit"]["logits"])
    for i, value in enumerate(blocks):
        assert_same_statistics(file, value, file["vit"]["mid_features"][f"transformer.layers.{i}"])
    assert_same_statistics(file, pooled, file["vit"]["features"])


@every_pair
def test_a_sharing_pair_has_the_unique_parameters_of_the_release(name):
    file, _, vit, agent, _ = shared_pair(name)
    own = {key for key, _, kind in file["keys"] if key.startswith("models.cnn.") and key not in file["aliases"]}
    assert {f"models.cnn.{key}" for key in agent.to_authors(agent.state_dict())} == own
    assert sum(p.numel() for p in [*vit.parameters(), *agent.parameters()]) == file["param_count"]


@every_pair
def test_the_agent_matched_to_a_named_vit_is_the_releases(name):
    """`create_agent` chooses stem, pooling and norms as the release's own configuration does."""
    file, _, vit, agent, _ = shared_pair(name)
    matched = create_agent(vit, share=True, stem=agent_settings(file["config"]["yaml_cfg"]["cnn"])["stem"])
    assert matched.state_dict().keys() == agent.state_dict().keys()
    assert (matched.down_sample, matched.layers[0].pre_norm) == (agent.down_sample, agent.layers[0].pre_norm)


@every_pair
def test_a_shared_checkpoint_loads_into_a_plain_agent_with_its_taps_built(name):
    file, checkpoint, vit, agent, (_, _, logits) = shared_pair(name)
    plain = create_agent(vit, **agent_settings(file["config"]["yaml_cfg"]["cnn"])).eval()
    vitling.load_weights(plain, checkpoint)
    built_here = plain_state(agent)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(value, built_here[key])
    with torch.no_grad():
        assert_near(file, plain(images(file)), logits)


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


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, i) for name in files("bootstrapping__", "entmax") for i in range(len(golden(name)["entmax"]["cases"]))],
)
def test_entmax_and_its_gradients_equal_the_release(name, case):
    file = golden(name)
    expected = file["entmax"]["cases"][case]
    x, upstream = (draw.tensor() for draw in draws(file["entmax"]["input"]))
    x.requires_grad_()
    alpha = torch.tensor(expected["alpha"], requires_grad=True)
    p = entmax(x, alpha)
    p.backward(upstream)
    assert_near(file, p, expected["output"])
    assert_near(file, x.grad, expected["grad_x"])
    assert_near(file, alpha.grad, expected["grad_alpha"])


def test_every_layer_learns_its_own_alpha():
    vit = timm.create_model("boot_vit_test", attention="entmax")
    assert all(isinstance(block.attn, EntmaxAttention) for block in vit.blocks)
    vit(torch.randn(2, 3, 16, 16)).logsumexp(1).sum().backward()
    assert all(block.attn.alpha.grad.abs() > 0 for block in vit.blocks)
