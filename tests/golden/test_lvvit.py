"""LV-ViT against the authors' release: state dict, outputs in both modes, gradients and BatchNorm statistics."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from rule import about, golden, normal

import vitling
from vitling.models.lvvit import LVViT, mix_tokens, random_box

NAMED = ["lvvit", "lvvit_t", "lvvit_s"]
SMALL = ["small_a", "small_mhaffn"]
ARGUMENTS = (
    "embed_dim",
    "depth",
    "num_heads",
    "mlp_ratio",
    "skip_lam",
    "return_dense",
    "order",
    "num_classes",
    "img_size",
)


def fill(file: dict) -> dict[str, torch.Tensor]:
    """The state dict that the file's rule gives; counters keep what the model makes."""
    state = {}
    for key, shape in file["state_dict"]:
        t = normal(key, shape)
        if len(shape) >= 2:
            scale = file["fill"]["default_scale"]
            for suffix, override in file["fill"]["suffix_overrides"]:
                scale = override if key.endswith(suffix) else scale
            state[key] = scale * t
        else:
            state[key] = about(key, t)
    return state


def build(file: dict, **switches) -> LVViT:
    if file["variant"] in NAMED:
        model = timm.create_model(file["variant"], **switches)
    else:
        model = LVViT(**{k: v for k, v in file["config"].items() if k in ARGUMENTS}, **switches)
    vitling.load_weights(model, fill(file))
    return model.eval()


def images(file: dict) -> torch.Tensor:
    size = file["img_size"]
    return torch.randn(file["batch"], 3, size, size, generator=torch.Generator().manual_seed(0))


def assert_close(actual: torch.Tensor, expected):
    """The files keep six digits and are 3e-6 away from double precision at most."""
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1.5e-5, rtol=1.5e-5)


def assert_norms(model: LVViT, expected: dict[str, float]):
    actual = {key: p.grad.norm().item() for key, p in model.named_parameters()}
    assert actual.keys() == expected.keys()
    wrong = {
        key: (actual[key], value)
        for key, value in expected.items()
        if abs(actual[key] - value) > 1.5e-5 + 1.5e-5 * value
    }
    assert not wrong


@pytest.mark.parametrize("variant", NAMED + SMALL)
def test_keys_and_predictions_equal_the_release(variant):
    file = golden(f"lvvit__{variant}")
    expected = file["eval"]
    model = build(file)
    assert [[k, list(v.shape)] for k, v in model.state_dict().items()] == file["state_dict"]
    assert sum(p.numel() for p in model.parameters()) == file["param_count"]

    seen = {}
    for name in expected["intermediate"]:
        model.get_submodule(name).register_forward_hook(lambda _, args, y, name=name: seen.__setitem__(name, y))
    with torch.no_grad():
        assert_close(model(images(file)), expected["logits"])
    for name, stats in expected["intermediate"].items():
        assert list(seen[name].shape) == stats["shape"]
        assert_close(seen[name].flatten()[:8], stats["first8"])
        for statistic, value in (
            (seen[name].mean(), stats["mean"]),
            (seen[name].min(), stats["min"]),
            (seen[name].max(), stats["max"]),
            (seen[name].norm(), stats["l2"]),
        ):
            assert_close(statistic, value)
    if "cls_logits_only" in expected:
        with torch.no_grad():
            cls, dense, box = model.forward_tokens(images(file))
        assert box is None
        first = len(expected["cls_logits_only"][0])
        assert_close(cls[:, :first], expected["cls_logits_only"])
        assert list(dense.shape) == expected["aux"]["shape"]
        assert_close(dense[0, 0, :8], expected["aux"]["token0_first8"])
        assert_close(dense[0, -1, :8], expected["aux"]["last_token_first8"])
        assert_close(dense[0].amax(dim=0)[:8], expected["aux"]["max_over_tokens_first8"])
        assert dense[0].argmax(dim=0)[:8].tolist() == expected["aux"]["argmax_token_hist_first8"]
        model.max_dense_weight = 0.0
        with torch.no_grad():
            torch.testing.assert_close(model(images(file)), cls, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("variant", ["lvvit_t", "lvvit_s", *SMALL])
def test_mixed_training_outputs_equal_the_release(variant):
    file = golden(f"lvvit__{variant}")
    expected = file["train"]
    model = build(file).train()
    with torch.no_grad():
        cls, dense, box = model.forward_tokens(images(file), tuple(expected["box_rows_cols"]))
    assert list(box) == expected["box_rows_cols"]
    assert_close(cls, expected["cls_logits"])
    assert list(dense.shape) == expected["aux_shape"]
    assert_close(dense[:, expected["aux_tokens"], :16], expected["aux_first16"])
    assert_close(dense.mean(), expected["aux_stats"]["mean"])
    assert_close(dense.norm(), expected["aux_stats"]["l2"])
    buffers = dict(model.named_buffers())
    for key, first in expected["bn_after"].items():
        assert_close(buffers[key][:8], first)


@pytest.mark.parametrize("variant", SMALL)
def test_gradients_of_the_prediction_equal_the_release(variant):
    file = golden(f"lvvit__{variant}")
    model = build(file)
    loss = F.cross_entropy(model(images(file)), torch.tensor(file["gradients"]["labels"]))
    loss.backward()
    assert_close(loss.detach(), file["gradients"]["loss"])
    assert_norms(model, file["gradients"]["grad_l2"])


@pytest.mark.parametrize("variant", SMALL)
def test_gradients_of_token_labeling_equal_the_release(variant):
    file = golden(f"lvvit__{variant}")
    expected = file["train"]["gradients"]
    model = build(file).train()
    cls, dense, (top, left, bottom, right) = model.forward_tokens(images(file), tuple(file["train"]["box_rows_cols"]))
    B, N, K = dense.shape
    labels = (3 * torch.randn(B, K, 1 + N, generator=torch.Generator().manual_seed(1))).softmax(dim=1)
    lam = 1 - (bottom - top) * (right - left) / N
    assert lam == file["train"]["lam"]
    cls_label = lam * labels[:, :, 0] + (1 - lam) * labels[:, :, 0].flip(0)
    loss = F.cross_entropy(cls, cls_label) + 0.5 * F.cross_entropy(dense.transpose(1, 2), labels[:, :, 1:])
    loss.backward()
    assert_close(loss.detach(), expected["loss_value"])
    assert_norms(model, expected["grad_l2"])


def test_boxes_are_drawn_as_the_release_draws_them():
    file = golden("tokenlabel__generate_and_box")["mix_token_box"]
    for sample in file["samples"]:
        box = random_box(tuple(file["size"][2:]), np.random.RandomState(sample["numpy_seed"]))
        assert list(box) == sample["box"]


def test_a_box_on_a_wide_grid_stays_in_its_rows_and_columns():
    rng = np.random.RandomState(0)
    boxes = np.array([random_box((4, 9), rng) for _ in range(200)])
    assert boxes.min() == 0
    assert boxes[:, 2].max() == 4
    assert boxes[:, 3].max() == 9


def test_mixing_twice_undoes_it_and_swaps_the_box_only():
    x = torch.randn(4, 2, 9, 3)
    mixed = mix_tokens(x, (0, 3, 1, 8))
    torch.testing.assert_close(mixed[:, 0, 3:8], x.flip(0)[:, 0, 3:8], rtol=0, atol=0)
    torch.testing.assert_close(mixed[:, 1], x[:, 1], rtol=0, atol=0)
    torch.testing.assert_close(mix_tokens(mixed, (0, 3, 1, 8)), x, rtol=0, atol=0)


def test_mix_token_makes_the_forward_of_train_mode_return_what_the_release_returns():
    file = golden("lvvit__small_a")
    model = build(file, mix_token=True).train()
    np.random.seed(5)
    cls, dense, box = model(images(file))
    np.random.seed(5)
    assert box == random_box((4, 4))
    assert cls.shape == (4, 10)
    assert dense.shape == (4, 16, 10)
    assert model.eval()(images(file)).shape == (4, 10)


@pytest.mark.parametrize(
    ("name", "img_size", "params"),
    [
        ("lvvit_plain", 224, 24_405_352),
        ("lvvit", 224, 25_766_824),
        ("lvvit_t", 224, 8_534_720),
        ("lvvit_s", 224, 26_151_824),
        ("lvvit_s", 384, 26_297_744),
        ("lvvit_m", 224, 55_830_544),
        ("lvvit_m", 384, 56_025_104),
        ("lvvit_m", 448, 56_131_600),
        ("lvvit_l", 224, 150_021_968),
        ("lvvit_l", 288, 150_120_272),
        ("lvvit_l", 448, 150_473_552),
        ("lvvit_l", 512, 150_657_872),
    ],
)
def test_every_variant_has_the_size_of_the_release(name, img_size, params):
    with torch.device("meta"):
        model = timm.create_model(name, img_size=img_size)
    assert sum(p.numel() for p in model.parameters()) == params


def test_weight_decay_reaches_what_it_reaches_in_the_release():
    with torch.device("meta"):
        model = timm.create_model("lvvit_s")
    decayed = [k for k, p in model.named_parameters() if p.ndim > 1 and k not in model.no_weight_decay()]
    assert len(decayed) == 70
    assert sum(k.startswith("patch_embed") for k in decayed) == 4
    assert len(list(model.parameters())) - len(decayed) == 125


@pytest.mark.parametrize(
    ("kernels", "strides", "proj_kernel"),
    [
        ((), (), None),
        ((7,), (2,), None),
        ((7, 3), (2, 2), 8),
        ((7, 3), (2, 1), None),
        ((7, 3, 3), (2, 1, 1), None),
        ((7, 3, 3), (2, 2, 1), 8),
        ((7, 3, 3, 3, 3), (2, 1, 1, 1, 1), None),
    ],
)
def test_every_row_of_table_4_gives_a_grid_of_14(kernels, strides, proj_kernel):
    with torch.device("meta"):
        model = LVViT(depth=1, stem_kernels=kernels, stem_strides=strides, proj_kernel=proj_kernel)
        assert model.patch_embed(torch.empty(1, 3, 224, 224)).shape == (1, 384, 14, 14)
    last = model.patch_embed.proj.kernel_size[0]
    assert last == (8 if kernels else 16)


def test_group_norm_with_one_group_is_layer_norm_and_groups_are_separate():
    """Table 9: the norm is per token, over groups of its channels."""
    file = golden("lvvit__small_a")
    layer, group = build(file), build(file, norm_groups=1)
    with torch.no_grad():
        torch.testing.assert_close(group(images(file)), layer(images(file)), atol=1e-5, rtol=1e-5)
    norm = LVViT(img_size=16, embed_dim=48, num_heads=4, depth=1, norm_groups=3).norm
    x = torch.randn(2, 5, 48)
    expected = F.layer_norm(x.unflatten(2, (3, 16)), (16,)).flatten(2)
    torch.testing.assert_close(norm(x), expected, atol=1e-5, rtol=1e-5)
