"""One contract over all small variants of our families, and the published sizes of the others."""

import copy

import numpy as np
import pytest
import timm
import torch
from timm.layers import to_2tuple
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import vitling
from vitling.errors import UserError
from vitling.models import build_model, our_models
from vitling.models.weights import save_for_timm

TEST = sorted(name for name in our_models() if name.endswith("_test"))
NANO = sorted(name for name in our_models() if name.endswith("_nano"))
# What the tables of variants reach only in large models: the same switches on the small ones.
SWITCHED = {
    "t2t_vit_test transformer": dict(tokens_type="transformer"),
    "t2t_vit_test convolution": dict(tokens_type="convolution"),
    "vit_s16 small": dict(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=2),
    "t2t_vit_test se": dict(embed_dim=32, se=True),
    "t2t_vit_test ghost": dict(mlp_ratio=3, ghost=True),
    "lvvit_test half blocks": dict(order=("tr", "mha", "ffn")),
    "lvvit_test mixed tokens": dict(mix_token=True),
    "lvvit_test one head": dict(return_dense=False, stem_kernels=(), stem_strides=()),
    "dhvt_test patch 2": dict(patch_size=2),
    "dhvt_test plain": dict(sope=False, daff=False, head_tokens=False, abs_pos_embed=True),
    "hybrid_vit_test plain": dict(conv_stem=False, conv_mlp=False),
    "hybrid_vit_test tail": dict(
        patch_size=2, stem_units=(1, 0), stem_full_size=True, tail_units=1, global_pool="max", conv_mlp=False
    ),
    "boot_vit_test entmax": dict(attention="entmax"),
    "agent_test base": dict(stem="base", down_sample=(), pre_norm=False, num_heads=6),
}
every_small_model = pytest.mark.parametrize("name", [*TEST, *SWITCHED, *NANO])
every_kind = pytest.mark.parametrize("name", [*TEST, *SWITCHED])
every_test_model = pytest.mark.parametrize("name", TEST)


def create(name, **arguments) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name.split()[0], **{**SWITCHED.get(name, {}), **arguments})


def images(model, batch=2, size=None, in_chans=None):
    channels, *trained = model.pretrained_cfg["input_size"]
    trained = 16 if max(trained) > 64 else trained  # a large variant made small
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, in_chans or channels, *to_2tuple(size or trained), generator=generator)


def seeded(model, x):
    """All outputs of a forward pass whose random draws can be repeated (LV-ViT in training gives three)."""
    torch.manual_seed(2)
    np.random.seed(2)
    output = model(x)
    return output if isinstance(output, torch.Tensor) else output[0].sum(0) + output[1].mean((0, 1))


def gradients(model, x):
    model.zero_grad()
    output = seeded(model, x)
    (output * torch.linspace(-1, 1, output.shape[-1])).sum().backward()
    return {key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.requires_grad}


def attentions(model):
    return [module for module in model.modules() if hasattr(module, "fused_attn") and hasattr(module, "attn_drop")]


def is_convolutional(model):
    return not attentions(model)


def randomise(model, std=0.05):
    """Weights and running statistics away from their start, where many mistakes cannot be seen."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=generator) * std
                value.add_(noise.abs() if key.endswith("running_var") else noise)
    return model


# Forward and backward


@every_small_model
def test_logits_have_a_column_per_class_and_are_the_head_of_the_features(name):
    model = create(name, num_classes=7).eval()
    x = images(model)
    with torch.no_grad():
        features, logits = model.forward_features(x), model(x)
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()
    assert features.shape[1 if is_convolutional(model) else -1] == model.num_features
    torch.testing.assert_close(model.forward_head(features), logits)
    assert model.forward_head(features, pre_logits=True).shape == (2, model.head_hidden_size)


@every_kind
def test_an_image_is_judged_alone_in_evaluation(name):
    model = randomise(create(name)).eval()
    x = images(model, batch=4)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[1:2], model(x[1:2]), rtol=1e-4, atol=1e-5)


@every_kind
def test_a_copy_is_equal_and_separate(name):
    model = create(name).eval()
    twin = copy.deepcopy(model)
    x = images(model)
    with torch.no_grad():
        before = model(x)
        randomise(twin)
        assert torch.equal(model(x), before)
        assert not torch.equal(twin(x), before)


# Sizes and channels


@every_kind
@pytest.mark.parametrize("in_chans", [1, 4, pytest.param(12, marks=pytest.mark.slow)])
def test_any_number_of_channels_is_taken_and_weights_follow(name, in_chans):
    model = create(name, in_chans=in_chans)
    assert gradients(model.train(), images(model, in_chans=in_chans))
    report = vitling.load_weights(model, create(name).state_dict())
    first = model.pretrained_cfg["first_conv"]
    assert f"{first if isinstance(first, str) else first[0]}.weight" in report.adapted
    assert len(report.loaded) == len(model.state_dict())


@every_kind
@pytest.mark.parametrize("scale", [pytest.param((1, 2), marks=pytest.mark.slow), (3, 2)])
def test_other_sizes_and_shapes_than_trained_by_either_way(name, scale):
    trained = randomise(create(name)).eval()
    size = tuple(side * factor for side, factor in zip(images(trained).shape[2:], scale, strict=True))
    x = images(trained, size=size)
    resized, built = copy.deepcopy(trained), create(name, img_size=size).eval()
    resized.set_input_size(img_size=size)
    vitling.load_weights(built, trained.state_dict())
    with torch.no_grad():
        assert built(x).shape == (2, trained.num_classes)
        torch.testing.assert_close(resized(x), built(x))
    assert gradients(resized.train(), x)


# Memory, speed and precision


@every_kind
def test_gradient_checkpointing_changes_no_gradient_and_counts_each_batch_once(name):
    """A recomputed block sees its batch twice, but BatchNorm must not."""
    model = randomise(create(name)).train()
    plain = copy.deepcopy(model)
    model.set_grad_checkpointing(True)
    x = images(model, batch=4)
    expected, got = gradients(plain, x), gradients(model, x)
    for key, gradient in got.items():
        torch.testing.assert_close(gradient, expected[key], msg=lambda m, key=key: f"{key}: {m}")
    for (key, buffer), other in zip(model.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(buffer, other, msg=lambda m, key=key: f"{key}: {m}")


@every_kind
def test_fused_attention_equals_the_explicit_one(name):
    model = randomise(create(name), std=0.2).eval()
    x = images(model)
    fused = gradients(model, x)
    with torch.no_grad():
        expected = model(x)
    for attention in attentions(model):
        attention.fused_attn = False
    torch.testing.assert_close(model(x).detach(), expected, rtol=1e-4, atol=1e-5)
    for key, gradient in gradients(model, x).items():
        scale = fused[key].abs().max().item()
        torch.testing.assert_close(
            gradient, fused[key], rtol=1e-3, atol=1e-5 + 1e-4 * scale, msg=lambda m, k=key: f"{k}: {m}"
        )


@every_kind
def test_the_attention_of_every_block_can_be_captured(name):
    model = create(name).eval()
    captured = []
    for attention in attentions(model):
        attention.fused_attn = False
        attention.attn_drop.register_forward_hook(lambda module, inputs, output: captured.append(output))
    with torch.no_grad():
        model(images(model))
    if is_convolutional(model):
        return
    assert len(captured) == len(attentions(model)) >= 2
    for weights in captured:
        B, _, N, M = weights.shape
        assert (B, N) == (2, M)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@every_kind
def test_bfloat16_autocast_gives_about_the_same_and_finite_gradients(name):
    model = randomise(create(name)).eval()
    x = images(model)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
    assert (logits.float() - expected).norm() < 0.1 * expected.norm()
    with torch.autocast("cpu", torch.bfloat16):
        output = seeded(model.train(), x)
    output.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.requires_grad)


@every_test_model
def test_stochastic_depth_and_pooling_are_arguments(name):
    model = create(name, drop_path_rate=0.9).train()
    x = images(model)
    first = seeded(model, x)
    assert torch.equal(seeded(model, x), first)
    with torch.no_grad():
        dropped = [model(x)[0] if isinstance(model(x), tuple) else model(x) for _ in range(8)]
    assert len({str(output) for output in dropped}) > 1
    pooled = create(name, global_pool="avg").eval()
    with torch.no_grad():
        assert pooled(x).shape == (2, pooled.num_classes)


# Weights


@every_kind
@pytest.mark.parametrize(("naming", "file"), [("vitling", "weights.safetensors"), ("authors", "weights.pth")])
def test_weights_survive_a_round_trip(name, naming, file, tmp_path):
    model, other = randomise(create(name)), create(name)
    vitling.save_weights(model, tmp_path / file, naming=naming)
    report = vitling.load_weights(other, tmp_path / file)
    assert len(report.loaded) == len(model.state_dict())
    for key, value in other.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key


@every_test_model
def test_a_classifier_for_other_classes_is_left_as_made(name):
    model = create(name, num_classes=5)
    report = vitling.load_weights(model, create(name, num_classes=3).state_dict())
    classifiers = model.pretrained_cfg["classifier"]
    classifiers = {classifiers} if isinstance(classifiers, str) else set(classifiers)
    assert {key.rpartition(".")[0] for key in report.skipped} == classifiers


@every_test_model
@pytest.mark.parametrize("arguments", [{}, {"in_chans": 1, "num_classes": 3}, {"in_chans": 4, "num_classes": 3}])
def test_timm_loads_the_folder_that_we_write(name, arguments, tmp_path):
    height, width = timm.get_pretrained_cfg(name).input_size[1:]
    arguments = {**arguments, "img_size": (height, 2 * width)}
    model = randomise(create(name, **arguments)).eval()
    save_for_timm(model, tmp_path, model_args=arguments)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = images(loaded)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)
    assert loaded.num_classes == model.num_classes


# Compilers


@pytest.mark.slow
@every_test_model
def test_onnx_gives_the_same_logits_for_any_batch(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = randomise(create(name)).eval()
    x = images(model, batch=3)
    batch = torch.export.Dim("batch", min=1, max=64)
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, (x,), path, dynamo=True, dynamic_shapes=({0: batch},), input_names=["images"])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in (3, 1, 5):
        x = images(model, batch=size)
        (logits,) = session.run(None, {"images": x.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(logits), model(x), rtol=1e-3, atol=1e-4)


# Published sizes


# Numbers in all tensors, fixed ones included (T2T's sinusoid and random features, parameters in the release, buffers here), as
# measured on the authors' releases. Rounded: a size that only the paper gives, or arithmetic.
PUBLISHED = {
    "t2t_vit_7": 4_310_222,
    "t2t_vit_10": 5_889_230,
    "t2t_vit_12": 6_941_902,
    "t2t_vit_14": 21_545_550,
    "t2t_vit_19": 39_177_422,
    "t2t_vit_24": 64_105_934,
    "t2t_vit_t_14": 21_541_070,
    "t2t_vit_t_19": 39_172_942,
    "t2t_vit_t_24": 64_101_454,
    "t2t_vit_c_14": "21.42M",
    "t2t_vit_14_resnext": 21_545_550,
    "t2t_vit_14_wide": 25_156_302,
    "t2t_vit_14_se": 21_803_598,
    "t2t_vit_16_ghost": 16_253_262,
    "t2t_vit_dense": 23_647_062,
    "t2t_vit_14_wo_t2t": "21.449M",
    "vit_s16": "48.754M",
    "vit_s16_deep_narrow": "24.405M",
    "vit_s16_se": "49.34M",  # 49.19 and 32.10 M without position embedding
    "vit_s16_resnext": "48.754M",
    "vit_s16_ghost": "32.25M",
    "lvvit_t": 8_534_720,
    "lvvit_s": 26_151_824,
    "lvvit_m": 55_830_544,
    "lvvit_l": 150_021_968,
    "lvvit": 25_766_824,
    "lvvit_plain": 24_405_352,
    "dhvt_tiny_cifar_patch4": 6_008_650,
    "dhvt_small_cifar_patch4": 23_425_450,
    "dhvt_tiny_cifar_patch2": 5_845_162,
    "dhvt_small_cifar_patch2": 22_766_698,
    "dhvt_tiny_domain_patch16": 6_105_975,
    "dhvt_small_domain_patch16": 23_788_431,
    "dhvt_tiny_imagenet_patch16": 6_267_334,
    "dhvt_small_imagenet_patch16": 24_040_606,
    ("boot_vit_small", "num_classes=100"): 6_302_404,
    ("boot_vit_base", "num_classes=100"): 21_704_164,
    ("boot_vit_small", "num_classes=1000"): 6_562_504,
    ("boot_vit_base", "num_classes=1000"): 22_050_664,
    ("agent_small", "num_classes=100"): 8_728_516,
    ("agent_small_res", "num_classes=100"): 8_682_756,
    ("agent_base", "num_classes=100"): 25_153_252,
    ("agent_base_res", "num_classes=100"): 25_089_060,
    ("diag_vit_patch4", "num_classes=10"): 9_523_722,
    ("diag_vit_patch4", "num_classes=100"): 9_569_892,
    ("diag_vit_patch8", "num_classes=10"): 9_572_874,
    ("diag_vit_patch8", "num_classes=10", "embed_dim=64"): 1_199_306,
    ("diag_vit_patch4", "num_classes=10", "embed_dim=64"): 1_193_162,
    ("diag_resnet18", "num_classes=10"): 11_173_962,
    ("diag_resnet18", "num_classes=100"): 11_220_132,
    ("t2t_vit_14", "img_size=384"): 21_691_470,
    ("lvvit_s", "img_size=384"): 26_297_744,
    ("lvvit_m", "img_size=448"): 56_131_600,
    ("lvvit_l", "img_size=288"): 150_120_272,
}


def learned_or_fixed(model):
    """What a checkpoint holds besides the statistics of BatchNorm."""
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return [value for key, value in model.state_dict().items() if not key.endswith(statistics)]


def published_variants():
    """One variant of each family now, the rest, which take a third of a second each to build, with the slow tests."""
    families = set()
    for variant in PUBLISHED:
        label = variant if isinstance(variant, str) else "-".join(variant)
        family = label.partition("_")[0]
        yield pytest.param(variant, id=label, marks=[pytest.mark.slow] if family in families else [])
        families.add(family)


@pytest.mark.parametrize("variant", published_variants())
def test_published_parameter_counts_hold(variant):
    name, *options = [variant] if isinstance(variant, str) else variant
    arguments = {key: int(value) for key, value in (option.split("=") for option in options)}
    with torch.device("meta"):
        model = timm.create_model(name, **arguments)
    count, published = sum(map(torch.numel, learned_or_fixed(model))), PUBLISHED[variant]
    if isinstance(published, str):
        digits = len(published.partition(".")[2]) - 1
        assert f"{count / 1e6:.{digits}f}M" == published
    else:
        assert count == published


@pytest.mark.parametrize("name", NANO)
def test_a_nano_model_is_small_enough_for_a_cpu(name):
    model = create(name, img_size=32, num_classes=10)
    assert sum(parameter.numel() for parameter in model.parameters()) < 1e6
    for attention in attentions(model):
        attention.fused_attn = False  # the counter does not see into a fused one
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, 3, 32, 32))
    assert 0.01e9 < counter.get_total_flops() / 2 < 0.15e9


def test_every_family_has_a_test_and_a_nano_variant():
    families = {family.__name__.rpartition(".")[2] for family in vitling.models.FAMILIES}
    assert {our_models()[name] for name in TEST} == families
    assert {our_models()[name] for name in NANO} == families


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("dynamic_img_size", "set_input_size"),
        ("dynamic_img_pad", "rounds sizes up"),
        ("scale_mlp_norm", "no norm inside"),
    ],
)
def test_the_hybrid_refuses_what_its_stem_and_mlp_cannot_do(option, message):
    with pytest.raises(UserError, match=message):
        create("hybrid_vit_test", **{option: True})


def test_the_hybrid_can_be_built_without_memory():
    with torch.device("meta"):
        model = create("hybrid_vit_test")
    assert all(parameter.is_meta for parameter in model.parameters())


# Networks of timm


def build(name, side, **model_args):
    return build_model(name, num_classes=5, in_chans=3, img_size=(side, side), **model_args)


@pytest.mark.parametrize("side", [32, 30])
def test_patches_that_overlap_need_not_divide_the_image(side):
    """PVT-v2 cuts patches of 7 pixels every 4."""
    model = build("pvt_v2_b0", side, depths=(1, 1, 1, 1), embed_dims=(8, 16, 40, 16))
    assert model.eval()(torch.zeros(1, 3, side, side)).shape == (1, 5)


@pytest.mark.parametrize(
    ("name", "side", "reason"),
    [
        ("swin_tiny_patch4_window7_224", 16, "nothing is left of them"),
        ("maxvit_tiny_rw_224", 16, "nothing is left of them"),
        ("vit_tiny_r_s16_p8_224", 28, "it refuses them without a reason"),
        ("mvitv2_tiny", 16, "must be non-negative"),
        ("twins_svt_small", 16, "should be divided by patch_size"),
        ("convnext_atto", 2, "greater than actual input size"),
    ],
)
def test_a_network_that_cannot_take_the_images_says_so_and_what_it_was_made_for(name, side, reason):
    with pytest.raises(UserError) as error:
        build(name, side)
    assert str(error.value).startswith(f"model={name} cannot take images of 3 x {side} x {side}: ")
    assert reason in str(error.value)
    assert str(error.value).endswith("It was made for 224 x 224; try img_size=224 or another model.")
    assert "\n" not in str(error.value)


def test_arguments_that_do_not_fit_are_named():
    with pytest.raises(
        UserError, match=r"cannot be built with model_args\.num_heads=7 for images of 3 x 32 x 32: dim should"
    ):
        build("vit_tiny_patch16_224", 32, num_heads=7)
