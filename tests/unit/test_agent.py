"""Agents: where the taps lie, agents for other ViTs, and weights that are borrowed without being copied."""

import copy

import pytest
import timm
import torch
from plain_agent import plain_state, tap_offsets

import vitling  # noqa: F401  registers our models
from vitling.errors import UserError
from vitling.models.agent import Agent, GeneralizedConv, TapWindow, create_agent, read_structure

torch.manual_seed(0)
VITS = ["boot_vit_test", "t2t_vit_test", "lvvit_test", "dhvt_test", "diag_vit_test"]


def by_hand(conv: GeneralizedConv, x: torch.Tensor) -> torch.Tensor:
    """out[p] = sum over h of W_h x[p + offset_h], plus the bias, zero outside the image."""
    out = conv.bias[None, :, None, None].expand(len(x), -1, *x.shape[2:]).clone()
    for h, (row, column) in enumerate(tap_offsets(conv.window)):
        for i in range(x.shape[2]):
            for j in range(x.shape[3]):
                if 0 <= i + row < x.shape[2] and 0 <= j + column < x.shape[3]:
                    out[:, :, i, j] += x[:, :, i + row, j + column] @ conv.weight[:, :, h].T
    return out


@pytest.mark.parametrize("num_heads", range(1, 18))
def test_the_convolution_is_the_sum_over_its_taps_for_any_number_of_heads(num_heads):
    conv = GeneralizedConv(3, num_heads).double()
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(conv(x), by_hand(conv, x))


@pytest.mark.parametrize("num_heads", range(1, 26))
def test_every_window_holds_its_own_pixel_and_each_place_once(num_heads):
    offsets = tap_offsets(TapWindow(num_heads))
    assert len(set(offsets)) == num_heads
    assert (0, 0) in offsets


def test_an_even_window_is_placed_as_padding_same_places_it():
    conv = GeneralizedConv(4, 16)
    x = torch.randn(1, 4, 6, 7)
    expected = torch.nn.functional.conv2d(x, conv.weight.unflatten(2, (4, 4)), conv.bias, padding="same")
    torch.testing.assert_close(conv(x), expected)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", [*VITS, "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_an_agent_matches_any_vit_with_the_usual_blocks(name, share):
    vit = timm.create_model(name, num_classes=7, in_chans=2, img_size=32)
    agent = create_agent(vit, share=share)
    grid = getattr(vit, "grid_size", None) or vit.patch_embed.grid_size
    final, blocks = agent.forward_intermediates(torch.randn(2, 2, 32, 32))
    assert agent.forward_head(final).shape == (2, 7)
    assert len(blocks) == len(vit.blocks)
    assert {block.shape[1] for block in blocks} == {vit.embed_dim}
    # Token counts are 4, 1 or 1/4 times the ViT's, so that the feature loss can pool the longer sequence.
    assert {block.shape[2:].numel() * 4 / (grid[0] * grid[1]) for block in blocks} <= {16, 4, 1}


def test_agents_of_the_papers_vits_are_the_papers_agents():
    for vit, agent in (("small", "small_res"), ("base", "base_res"), ("nano", "nano"), ("test", "test")):
        with torch.device("meta"):
            matched = create_agent(timm.create_model(f"boot_vit_{vit}"))
            named = timm.create_model(f"agent_{agent}", num_classes=matched.num_classes)
        assert str(matched) == str(named)
        assert (matched.down_sample, matched.grid_size) == (named.down_sample, named.grid_size)


@pytest.mark.parametrize(("patch", "stride"), [(2, 1), (4, 2), (8, 4), (16, 8)])
def test_the_res_stem_starts_on_a_grid_twice_as_fine_as_the_vits(patch, stride):
    vit = timm.create_model("boot_vit_test", img_size=(4 * patch, 2 * patch), patch_size=patch)
    agent = create_agent(vit)
    assert agent.input_proj(torch.randn(1, 3, 4 * patch, 2 * patch)).shape == (1, 36, 8, 4)
    assert agent.stem_stride == stride
    assert agent.grid_size == (8, 4)


def test_an_odd_grid_is_pooled_only_down_to_the_vits():
    vit = timm.create_model("boot_vit_test", img_size=20)
    agent = create_agent(vit)
    blocks = agent.forward_intermediates(torch.randn(1, 3, 20, 20), intermediates_only=True)
    assert [tuple(block.shape[2:]) for block in blocks] == [(10, 10), (5, 5), (5, 5)]


def test_a_patch_that_cannot_be_halved_gets_the_base_stem():
    vit = timm.create_model("boot_vit_test", img_size=28, patch_size=7)
    agent = create_agent(vit)
    blocks = agent.forward_intermediates(torch.randn(1, 3, 28, 28), intermediates_only=True)
    assert [tuple(block.shape[2:]) for block in blocks] == [(4, 4)] * 3


def sharing_pair(name="boot_vit_test", **arguments):
    vit = timm.create_model(name, **arguments)
    return vit, create_agent(vit, share=True)


@pytest.mark.parametrize("name", VITS)
def test_a_sharing_agent_registers_nothing_of_the_vit(name):
    vit, agent = sharing_pair(name)
    assert not {id(p) for p in vit.parameters()} & {id(p) for p in agent.parameters()}
    assert not any("cnn_block" in key or "mlp_block" in key for key in agent.state_dict())
    assert not any(module is vit.blocks[0].attn for module in agent.modules())


@pytest.mark.parametrize("name", VITS)
def test_a_sharing_agent_sends_gradients_to_values_outputs_and_mlp_only(name):
    vit, agent = sharing_pair(name)
    channels, *size = agent.in_chans, *agent.img_size
    agent(torch.randn(4, channels, *size)).logsumexp(1).sum().backward()
    assert all(p.grad is not None for p in agent.parameters())
    for block in vit.blocks:
        queries_and_keys, values = block.attn.qkv.weight.grad.split(
            [2 * len(block.attn.proj.weight.T), len(block.attn.proj.weight.T)]
        )
        assert not queries_and_keys.any()
        assert values.abs().sum() > 0
        assert block.attn.proj.weight.grad.abs().sum() > 0
        assert block.attn.qkv.bias is None or block.attn.qkv.bias.grad is None
        first = block.mlp.fc1 if hasattr(block.mlp, "fc1") else block.mlp.conv1
        assert first.weight.grad.abs().sum() > 0
    assert all(p.grad is None for key, p in vit.named_parameters() if not key.startswith("blocks."))


def test_a_sharing_agent_follows_the_vit():
    vit, agent = sharing_pair()
    agent.eval()
    x = torch.randn(1, 3, 16, 16)
    before = agent(x)
    with torch.no_grad():
        vit.blocks[0].attn.proj.weight.mul_(2)
    assert not torch.allclose(agent(x), before)


def test_a_copied_pair_shares_within_the_copy():
    vit, agent = sharing_pair()
    pair = torch.nn.ModuleDict({"vit": vit, "agent": agent})
    copied = copy.deepcopy(pair)
    assert copied["agent"].layers[0].cnn_block.lender[0] is copied["vit"].blocks[0].attn
    assert pair.double()["agent"](torch.randn(2, 3, 16, 16).double()).dtype == torch.float64


@pytest.mark.parametrize("name", [*VITS, "vit_tiny_patch16_224"])
def test_the_plain_form_of_a_sharing_agent_computes_the_same(name):
    vit, agent = sharing_pair(name, img_size=32)
    plain = create_agent(vit)
    plain.load_state_dict(plain_state(agent))
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(agent.eval()(x), plain.eval()(x), atol=1e-5, rtol=1e-4)


def test_a_sharing_agent_takes_over_the_vits_dropout():
    agent = create_agent(timm.create_model("boot_vit_test", proj_drop_rate=0.3), share=True)
    assert [agent.layers[0].drop.p, agent.layers[0].mlp_block.drop.p] == [0.3, 0.3]
    alone = create_agent(timm.create_model("boot_vit_test", proj_drop_rate=0.3))
    assert [alone.layers[0].drop.p, alone.layers[0].mlp_block.drop.p] == [0.0, 0.1]


def test_block_outputs_come_before_the_pooling_and_from_the_same_pass():
    agent = timm.create_model("agent_test").eval()
    x = torch.randn(2, 3, 16, 16)
    final, blocks = agent.forward_intermediates(x)
    assert [block.shape[-1] for block in blocks] == [8, 4, 2]
    assert [info["reduction"] for info in agent.feature_info] == [2, 4, 8]
    torch.testing.assert_close(agent.forward_head(final), agent(x))
    tokens = agent.forward_intermediates(x, output_fmt="NLC", intermediates_only=True)
    assert torch.equal(tokens[0], blocks[0].flatten(2).transpose(1, 2))
    last = agent.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)[0]
    torch.testing.assert_close(last, final)


def test_the_official_initialisation_is_the_releases_and_the_default_is_not():
    official = timm.create_model("agent_small", init="official")
    assert official.input_proj.weight.std().item() == pytest.approx(1, rel=0.01)
    assert official.layers[0].mlp_block.conv1.bias.std().item() == pytest.approx(1, rel=0.1)
    sane = timm.create_model("agent_small")
    assert sane.input_proj.weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert sane.layers[0].mlp_block.conv1.bias.abs().max() < 1e-4
    for agent in (official, sane):
        bound = (6 / (2 * 288 * 9)) ** 0.5
        assert agent.layers[0].cnn_block.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    vit = timm.create_model("boot_vit_small", init="official")
    assert vit.patch_embed.proj.weight.std().item() == pytest.approx(1, rel=0.01)
    assert vit.blocks[0].mlp.fc1.bias.std().item() == pytest.approx(1, rel=0.1)
    assert timm.create_model("boot_vit_small").blocks[0].mlp.fc1.bias.abs().max() < 1e-4


@pytest.mark.parametrize(
    ("name", "share", "why"),
    [
        ("resnet18", False, "no `blocks`"),
        ("efficientnet_b0", False, "width changes"),
        ("swin_tiny_patch4_window7_224", False, "no `blocks`"),
        ("t2t_vit_dense_test", False, "no attn.num_heads"),
        ("agent_test", True, "no `blocks`"),
        ("eva02_tiny_patch14_224", True, "other shapes"),
        ("convit_tiny", True, "no attribute 'qkv'"),
        ("convit_tiny", False, "token grid"),
    ],
)
def test_a_model_without_the_structure_is_refused_with_what_is_needed(name, share, why):
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(UserError, match=why):
        create_agent(model, share=share)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"stem": "resnet"}, "Did you mean res"),
        ({"init": "offical"}, "Did you mean official"),
        ({"stem": "res", "patch_size": 14}, "stem='base'"),
        ({"down_sample": (0, 6)}, "beyond 0..5"),
        ({"img_size": 16, "down_sample": (0, 1)}, "too small"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, hint):
    with pytest.raises(UserError, match=hint):
        Agent(**arguments)


def test_sharing_with_a_vit_of_other_numbers_is_refused():
    vit = timm.create_model("boot_vit_test")
    assert read_structure(vit, share=True) == {"depth": 3, "embed_dim": 36, "num_heads": 9, "mlp_ratio": 2.0}
    with pytest.raises(UserError, match="share=True"):
        Agent(img_size=64, shared_with=vit)
