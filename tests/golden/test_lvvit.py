"""LV-ViT against the authors' release: state dict, outputs in both modes, gradients and BatchNorm statistics."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from rule import assert_stored, every, golden, images, numbers_in, overridden, randn, seed_in

import vitling
from vitling.models.lvvit import LVViT, mix_tokens, random_box

ARGUMENTS = (
    "patch_size",
    "in_chans",
    "num_classes",
    "qkv_bias",
    "embed_dim",
    "depth",
    "num_heads",
    "mlp_ratio",
    "skip_lam",
    "return_dense",
    "order",
    "img_size",
)
# What the release calls its stems, and what they are here; any other name is a single convolution.
STEMS = {"4_2": dict(), "4_2_128": dict(stem_width=128)}
PLAIN = dict(stem_kernels=(), stem_strides=())
NAMES = {"vit": "lvvit_plain"}  # of a variant that is called otherwise here


def build(file: dict, **switches) -> LVViT:
    """By the variant's name where it has one, else by its sizes."""
    name = NAMES.get(file["variant"], file["variant"])
    if timm.is_model(name):
        model = timm.create_model(name, img_size=file["img_size"], **switches)
    else:
        config = {key: value for key, value in file["config"].items() if key in ARGUMENTS}
        model = LVViT(**config, **STEMS.get(file["config"]["p_emb"].split()[0], PLAIN), **switches)
    vitling.load_weights(model, overridden(file, model.state_dict()))
    return model.eval()


def assert_close(file: dict, actual: torch.Tensor, expected):
    expected = torch.tensor(expected, dtype=torch.float64)
    spread = expected.std().item() if expected.numel() > 1 else expected.abs().item()
    assert_stored(actual, expected, file["eval"]["fp32_vs_fp64_max_abs"], spread)


def assert_norms(model: LVViT, expected: dict[str, float]):
    actual = {key: p.grad.norm().item() for key, p in model.named_parameters()}
    assert actual == pytest.approx(expected, rel=1.5e-5, abs=1.5e-5)


@every("lvvit__", "eval")
def test_keys_and_predictions_equal_the_release(name):
    file = golden(name)
    expected = file["eval"]
    model = build(file)
    assert [[k, list(v.shape)] for k, v in model.state_dict().items()] == file["state_dict"]
    assert sum(p.numel() for p in model.parameters()) == file["param_count"]

    seen = {}
    for part in expected["intermediate"]:
        model.get_submodule(part).register_forward_hook(lambda _, args, y, part=part: seen.__setitem__(part, y))
    with torch.no_grad():
        logits = model(images(file))
    assert_close(file, logits, expected["logits"])
    assert logits.argmax(dim=1).tolist() == expected["argmax"]
    for part, stats in expected["intermediate"].items():
        assert list(seen[part].shape) == stats["shape"]
        assert_close(file, seen[part].flatten()[:8], stats["first8"])
        for statistic, key in (
            (seen[part].mean(), "mean"),
            (seen[part].min(), "min"),
            (seen[part].max(), "max"),
            (seen[part].norm(), "l2"),
        ):
            assert_stored(statistic, stats[key], expected["fp32_vs_fp64_max_abs"], stats["std"])
    if "cls_logits_only" in expected:
        with torch.no_grad():
            cls, dense, box = model.forward_tokens(images(file))
        assert box is None
        first = len(expected["cls_logits_only"][0])
        assert_close(file, cls[:, :first], expected["cls_logits_only"])
        assert list(dense.shape) == expected["aux"]["shape"]
        assert_close(file, dense[0, 0, :8], expected["aux"]["token0_first8"])
        assert_close(file, dense[0, -1, :8], expected["aux"]["last_token_first8"])
        assert_close(file, dense[0].amax(dim=0)[:8], expected["aux"]["max_over_tokens_first8"])
        assert dense[0].argmax(dim=0)[:8].tolist() == expected["aux"]["argmax_token_hist_first8"]
        model.max_dense_weight = 0.0
        with torch.no_grad():
            torch.testing.assert_close(model(images(file)), cls, atol=1e-6, rtol=1e-6)


@every("lvvit__", "train")
def test_mixed_training_outputs_equal_the_release(name):
    file = golden(name)
    expected = file["train"]
    model = build(file).train()
    with torch.no_grad():
        cls, dense, box = model.forward_tokens(images(file), tuple(expected["box_rows_cols"]))
    assert list(box) == expected["box_rows_cols"]
    assert_close(file, cls, expected["cls_logits"])
    assert list(dense.shape) == expected["aux_shape"]
    shown = len(expected["aux_first16"][0][0])
    assert_close(file, dense[:, expected["aux_tokens"], :shown], expected["aux_first16"])
    assert_close(file, dense.mean(), expected["aux_stats"]["mean"])
    assert_close(file, dense.norm(), expected["aux_stats"]["l2"])
    buffers = dict(model.named_buffers())
    for key, first in expected["bn_after"].items():
        assert_close(file, buffers[key][: len(first)], first)


@every("lvvit__", "gradients")
def test_gradients_of_the_prediction_equal_the_release(name):
    file = golden(name)
    model = build(file)
    loss = F.cross_entropy(model(images(file)), torch.tensor(file["gradients"]["labels"]))
    loss.backward()
    assert_close(file, loss, file["gradients"]["loss"])
    assert_norms(model, file["gradients"]["grad_l2"])


def token_labels(file: dict, shape: torch.Size) -> tuple[torch.Tensor, float, float]:
    """Labels of the image and of its tokens (B, classes, 1 + N), and the weights of the dense and of the class term."""
    train, (B, N, K) = file["train"], shape
    (scale,) = numbers_in(r"#\*randn\(B,C,1\+N", train["target_rule"])
    labels = (scale * randn((B, K, 1 + N), seed_in(train["target_rule"]))).softmax(dim=1)
    return labels, *numbers_in(r"dense # cls #", train["gradients"]["loss"])


@every("lvvit__", "train.gradients")
def test_gradients_of_token_labeling_equal_the_release(name):
    file = golden(name)
    expected = file["train"]["gradients"]
    model = build(file).train()
    cls, dense, (top, left, bottom, right) = model.forward_tokens(images(file), tuple(file["train"]["box_rows_cols"]))
    labels, dense_weight, cls_weight = token_labels(file, dense.shape)
    lam = 1 - (bottom - top) * (right - left) / dense.shape[1]
    assert lam == pytest.approx(file["train"]["lam"], rel=1e-5)
    cls_label = lam * labels[:, :, 0] + (1 - lam) * labels[:, :, 0].flip(0)
    dense_loss = F.cross_entropy(dense.transpose(1, 2), labels[:, :, 1:])
    loss = cls_weight * F.cross_entropy(cls, cls_label) + dense_weight * dense_loss
    loss.backward()
    assert_close(file, loss, expected["loss_value"])
    assert_norms(model, expected["grad_l2"])


@every("tokenlabel__", "mix_token_box")
def test_boxes_are_drawn_as_the_release_draws_them(name):
    file = golden(name)["mix_token_box"]
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


@every("lvvit__", "train.gradients")
def test_mix_token_makes_the_forward_of_train_mode_return_what_the_release_returns(name):
    file = golden(name)
    model = build(file, mix_token=True).train()
    np.random.seed(5)
    cls, dense, box = model(images(file))
    np.random.seed(5)
    assert box == random_box(model.patch_embed.grid_size)
    assert list(dense.shape) == file["train"]["aux_shape"]
    shape = (file["batch"], file["config"]["num_classes"])
    assert cls.shape == model.eval()(images(file)).shape == shape


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
    torch.manual_seed(0)
    layer, group = (LVViT(img_size=32, embed_dim=48, num_heads=4, depth=2, norm_groups=n) for n in (None, 1))
    group.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(group.eval()(x), layer.eval()(x), atol=1e-5, rtol=1e-5)
    norm = LVViT(img_size=16, embed_dim=48, num_heads=4, depth=1, norm_groups=3).norm
    x = torch.randn(2, 5, 48)
    expected = F.layer_norm(x.unflatten(2, (3, 16)), (16,)).flatten(2)
    torch.testing.assert_close(norm(x), expected, atol=1e-5, rtol=1e-5)
