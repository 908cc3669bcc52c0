"""The tables of "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet" (Yuan et al. 2021)."""

from dataclasses import replace
from typing import Any

from vitling.papers.table import CIFAR10, CIFAR100, QUOTED, Description, Figure, Illustration, Row, Table, nano
from vitling.recipes import Recipe

_MEASURED = "best epoch of the averaged weights of one run, on the validation set"
_NO_TEACHER = "distilled from a teacher that the paper does not name"

# -- nano networks -----------------------------------------------------------------------------------------------------

_SPLITS: dict[str, Any] = dict(kernels=[5, 3, 3], strides=[2, 2, 1], paddings=[2, 1, 1])  # as t2t_vit_nano's


def _vit(**changes: Any) -> Recipe:
    """ViT-S/16 is wider and shallower than T2T-ViT-14; so is this than the nano."""
    return nano("vit_s16", **{**dict(patch_size=4, embed_dim=144, depth=6, num_heads=3, mlp_ratio=2), **changes})


_14 = nano("t2t_vit_nano")
_19 = nano("t2t_vit_nano", embed_dim=108, depth=12)
_24 = nano("t2t_vit_nano", embed_dim=120, depth=14)
_T_14 = nano("t2t_vit_nano", tokens_type="transformer")
_T_19 = nano("t2t_vit_nano", embed_dim=108, depth=12, tokens_type="transformer")
_T_24 = nano("t2t_vit_nano", embed_dim=120, depth=14, tokens_type="transformer")
_7 = nano("t2t_vit_nano", embed_dim=64, depth=5, num_heads=4)
_12 = nano("t2t_vit_nano", embed_dim=64, depth=8, num_heads=4)
_S16 = _vit()
_B16 = _vit(depth=9)
_L16 = _vit(embed_dim=168, depth=11)
_WITHOUT_T2T = nano("t2t_vit_14_wo_t2t", patch_size=4, embed_dim=96, depth=10, num_heads=3, mlp_ratio=2)
_RESNET = nano("diag_resnet18_nano")
_DENSE: dict[str, Any] = dict(embed_dim=64, growth_rate=16, block_config=[2, 3, 3, 2], num_heads=2, **_SPLITS)


def _row(label: str, top1: float, recipe: str, nano_recipe: Recipe | None, params: float, macs: float, note="") -> Row:
    return Row(label, top1, f"t2t/{recipe}", nano_recipe, params=params, macs=macs, note=note)


def _quoted(label: str, top1: float, model: str, params: float, macs: float, why_not: str = QUOTED, **more) -> Row:
    return Row(label, top1, params=params, macs=macs, model=model, why_not=why_not, **more)


# -- Table 1 -----------------------------------------------------------------------------------------------------------

_STRUCTURE = "it describes networks; there is nothing to train"
_SLIP = "786 is a slip for 768, as is 2,358 for 2,304"
_TWICE = "the paper counts 4.3 M and 6.9 M in Table 4, where frozen tensors are included"


def _described(label: str, recipe: str, params: float, macs: float, note: str = "") -> Row:
    return Row(
        label,
        None,
        describes=f"t2t/imagenet_{recipe}",
        params=params,
        macs=macs,
        why_not=_STRUCTURE,
        no_nano=_STRUCTURE,
        note=note,
    )


def _sizes(kind: str | None, layers: int, width: int, mlp: int) -> dict[str, Any]:
    tokens = {"T2T layers": 2, "T2T width": 64, "T2T MLP width": 64} if kind else {}
    backbone = {"layers": layers, "width": width, "MLP width": mlp}
    return {
        "T2T transformer": kind,
        **dict.fromkeys(("T2T layers", "T2T width", "T2T MLP width")),
        **tokens,
        **backbone,
    }


table1 = Description(
    "Sizes of T2T-ViT and ViT",
    "read off the configuration",
    (
        _described("ViT-S/16", "vit_s16", 48.6, 10.1, _SLIP),
        _described("ViT-B/16", "vit_b16", 86.8, 17.6, "786 is a slip for 768"),
        _described("ViT-L/16", "vit_l16", 304.3, 63.6, "61.6 G computed"),
        _described("T2T-ViT-14", "14", 21.5, 4.8),
        _described("T2T-ViT-19", "19", 39.2, 8.5),
        _described("T2T-ViT-24", "24", 64.1, 13.8),
        _described("T2T-ViT_t-14", "t_14", 21.5, 6.1),
        _described("T2T-ViT-7", "7", 4.2, 1.1, f"8 layers would be 4.8 M, the release has 7; {_TWICE}"),
        _described("T2T-ViT-12", "12", 6.8, 1.8, _TWICE),
    ),
    printed={
        "ViT-S/16": _sizes(None, 8, 786, 2358),
        "ViT-B/16": _sizes(None, 12, 786, 3072),
        "ViT-L/16": _sizes(None, 24, 1024, 4096),
        "T2T-ViT-14": _sizes("Performer", 14, 384, 1152),
        "T2T-ViT-19": _sizes("Performer", 19, 448, 1344),
        "T2T-ViT-24": _sizes("Performer", 24, 512, 1536),
        "T2T-ViT_t-14": _sizes("Transformer", 14, 384, 1152),
        "T2T-ViT-7": _sizes("Performer", 8, 256, 512),
        "T2T-ViT-12": _sizes("Performer", 12, 256, 512),
    },
)

# -- Tables 2 to 4 -----------------------------------------------------------------------------------------------------

# fmt: off
table2 = Table(
    "T2T-ViT against ViT on ImageNet",
    _MEASURED,
    (
        _row("ViT-S/16", 78.1, "imagenet_vit_s16", _S16, 48.6, 10.1),
        _quoted("DeiT-small", 79.9, "deit_small_patch16_224", 22.1, 4.6),
        _quoted("DeiT-small-Distilled", 81.2, "deit_small_distilled_patch16_224", 22.1, 4.7),
        _row("T2T-ViT-14", 81.5, "imagenet_14", _14, 21.5, 4.8),
        _row("T2T-ViT-14 at 384", 83.3, "imagenet_14_384", replace(_14, img_size=28), 21.5, 17.1, "computed 16.4 G, not 17.1"),
        _row("ViT-B/16", 79.8, "imagenet_vit_b16", _B16, 86.4, 17.6),
        _row("ViT-L/16", 81.1, "imagenet_vit_l16", _L16, 304.3, 63.6),
        _row("T2T-ViT-24", 82.3, "imagenet_24", _24, 64.1, 13.8),
    ),
)
table3 = Table(
    "T2T-ViT against ResNets on ImageNet",
    _MEASURED,
    (
        _quoted("ResNet50", 76.2, "resnet50", 25.5, 4.3),
        _row("ResNet50*", 79.1, "imagenet_resnet50", _RESNET, 25.5, 4.3),
        _row("T2T-ViT-14", 81.5, "imagenet_14", _14, 21.5, 4.8),
        _row("T2T-ViT_t-14", 81.7, "imagenet_t_14", _T_14, 21.5, 6.1),
        _quoted("ResNet101", 77.4, "resnet101", 44.6, 7.9),
        _row("ResNet101*", 79.9, "imagenet_resnet101", None, 44.6, 7.9),
        _row("T2T-ViT-19", 81.9, "imagenet_19", _19, 39.2, 8.5),
        _row("T2T-ViT_t-19", 82.2, "imagenet_t_19", _T_19, 39.2, 9.8, "the released weights reach 82.4"),
        _quoted("ResNet152", 78.3, "resnet152", 60.2, 11.6),
        _row("ResNet152*", 80.8, "imagenet_resnet152", None, 60.2, 11.6),
        _row("T2T-ViT-24", 82.3, "imagenet_24", _24, 64.1, 13.8),
        _row("T2T-ViT_t-24", 82.6, "imagenet_t_24", _T_24, 64.1, 15.0),
    ),
)
table4 = Table(
    "Small T2T-ViTs against MobileNets on ImageNet",
    _MEASURED,
    (
        _row("MobileNetV1 1.0x*", 70.8, "imagenet_mobilenet_v1", None, 4.2, 0.6),
        _row("T2T-ViT-7", 71.7, "imagenet_7", _7, 4.3, 1.1),
        _quoted("T2T-ViT-7-Distilled", 73.1, "t2t_vit_7", 4.3, 1.1, _NO_TEACHER, no_nano=_NO_TEACHER),
        _row("MobileNetV2 1.0x*", 72.8, "imagenet_mobilenet_v2", None, 3.5, 0.3),
        _row("MobileNetV2 1.4x*", 75.6, "imagenet_mobilenet_v2_14", None, 6.9, 0.6, "timm's has 6.1 M"),
        _quoted("MobileNetV3 (Searched)", 75.2, "mobilenetv3_large_100", 5.4, 0.2),
        _row("T2T-ViT-12", 76.5, "imagenet_12", _12, 6.9, 1.8),
        _quoted("T2T-ViT-12-Distilled", 77.4, "t2t_vit_12", 6.9, 1.9, _NO_TEACHER, no_nano=_NO_TEACHER, note="counted without distillation token"),
    ),
)
# fmt: on

# -- Table 5 -----------------------------------------------------------------------------------------------------------

_NO_PRE_TRAINING = "pre-training on ImageNet has no nano counterpart"


def _transferred(label: str, name: str, params: float, cifar10: float, cifar100: float, note: str = "") -> tuple:
    common: dict[str, Any] = dict(params=params, no_nano=_NO_PRE_TRAINING)
    note = f"starts from a run of t2t/imagenet_{name}{note}"
    return (
        Row(label, cifar10, f"t2t/cifar10_{name}", data=CIFAR10, note=note, **common),
        Row(label, cifar100, f"t2t/cifar100_{name}", data=CIFAR100, note=note, **common),
    )


_CLASSIFIER = "; the paper counts ImageNet's classifier"
table5 = Table(
    "Fine-tuning on CIFAR",
    "60 epochs from ImageNet weights, on the test set",
    (
        Row("ViT-S/16", 78.1, "t2t/imagenet_vit_s16", _S16, params=48.6),
        Row("T2T-ViT-14", 81.5, "t2t/imagenet_14", _14, params=21.5),
        Row("T2T-ViT-19", 81.9, "t2t/imagenet_19", _19, params=39.1),
        *_transferred("ViT-S/16", "vit_s16", 48.6, 97.1, 87.1, _CLASSIFIER),
        *_transferred("T2T-ViT-14", "14", 21.5, 97.5, 88.4, _CLASSIFIER),
        *_transferred("T2T-ViT-19", "19", 39.1, 98.3, 89.0, _CLASSIFIER),
    ),
)

# -- Table 6 -----------------------------------------------------------------------------------------------------------

_NO_FORM = "the paper does not say how, and no network of timm has this size"
_TIMMS_STEM = "timm's, whose stem is not widened, has 3.9 G"
_RATIO_3 = "44.0 M and 8.7 G with ViT-S/16's MLP ratio of 3; the paper's 47.9 M fits neither 3 nor 4"
_NO_SIZE = "its sizes fit no network that the text describes"

# fmt: off
table6 = Table(
    "Designs of CNNs in ViT and T2T-ViT, on ImageNet",
    _MEASURED,
    (
        _quoted("AlexNet", 56.6, "", 61.1, 0.77),
        _quoted("VGG11", 69.1, "vgg11", 132.8, 7.7),
        _quoted("Inception v3", 77.4, "inception_v3", 27.2, 5.7, img_size=299, note="timm's, without the auxiliary head, has 23.8 M"),
        _quoted("ResNet50", 76.2, "resnet50", 25.6, 4.3),
        _row("ResNet50*", 79.1, "imagenet_resnet50", _RESNET, 25.6, 4.3),
        _row("Wide-ResNet18x1.5*", 78.0, "imagenet_wide_resnet18", None, 26.0, 4.1, _TIMMS_STEM),
        _row("DenseNet201*", 77.5, "imagenet_densenet201", None, 20.1, 4.4),
        _row("SENet50*", 80.3, "imagenet_senet50", None, 28.1, 4.9, "computed 4.1 G"),
        _row("ResNeXt50*", 79.9, "imagenet_resnext50", None, 25.0, 4.3),
        _quoted("ResNet50-Ghost*", 76.2, "", 19.9, 3.2, _NO_FORM, no_nano=_NO_FORM),
        _row("ViT-S/16", 78.1, "imagenet_vit_s16", _S16, 48.6, 10.1),
        _row("ViT-DN", 79.0, "imagenet_vit_s16_deep_narrow", _vit(embed_dim=96, depth=10), 24.5, 5.5, "computed 5.2 G"),
        _row("ViT-SW", 69.9, "imagenet_vit_s16_shallow_wide", _vit(embed_dim=192, depth=3), 47.9, 9.9, _RATIO_3),
        _quoted("ViT-Dense", 76.8, "", 46.7, 9.7, _NO_SIZE, no_nano=_NO_SIZE),
        _row("ViT-SE", 78.4, "imagenet_vit_s16_se", _vit(se=True), 49.2, 10.2),
        _row("ViT-ResNeXt", 78.0, "imagenet_vit_s16_resnext", _vit(num_heads=16), 48.6, 10.1),
        _row("ViT-Ghost", 73.7, "imagenet_vit_s16_ghost", _vit(mlp_ratio=3, num_heads=4, ghost=True), 32.1, 6.9),
        _row("T2T-ViT-14", 81.5, "imagenet_14", _14, 21.5, 4.8),
        _row("T2T-ViT-Wide", 77.9, "imagenet_14_wide", nano("t2t_vit_nano", embed_dim=192, depth=3), 25.1, 5.0, "Table 7 says 78.8 for the same network"),
        _row("T2T-ViT-Dense", 80.6, "imagenet_dense", nano("t2t_vit_dense", **_DENSE), 23.7, 5.5),
        _row("T2T-ViT-SE", 81.6, "imagenet_14_se", nano("t2t_vit_nano", se=True), 21.9, 4.9),
        _row("T2T-ViT-ResNeXt", 81.5, "imagenet_14_resnext", nano("t2t_vit_nano", num_heads=12), 21.5, 4.8),
        _row("T2T-ViT-Ghost", 79.5, "imagenet_16_ghost", nano("t2t_vit_nano", mlp_ratio=3, num_heads=4, ghost=True), 16.3, 3.7),
    ),
)

# -- Table 7 -----------------------------------------------------------------------------------------------------------

table7 = Table(
    "Ablation of the T2T module and of depth, on ImageNet",
    _MEASURED,
    (
        _row("T2T-ViT-14 without T2T", 79.5, "imagenet_14_without_t2t", _WITHOUT_T2T, 21.1, 4.2, "the plain construction has 21.4 M and 4.5 G"),
        _row("T2T-ViT-14", 81.5, "imagenet_14", _14, 21.5, 4.8),
        _row("T2T-ViT_t-14", 81.7, "imagenet_t_14", _T_14, 21.5, 6.1),
        _row("T2T-ViT_c-14", 80.8, "imagenet_c_14", nano("t2t_vit_nano", tokens_type="convolution"), 21.3, 4.6),
        _row("T2T-ViT-d768-4", 78.8, "imagenet_14_wide", nano("t2t_vit_nano", embed_dim=192, depth=3), 25.0, 5.4, "Table 6 says 77.9 for the same network"),
    ),
)
# fmt: on

# -- Figure 1 ----------------------------------------------------------------------------------------------------------

_CURVES = {
    "T2T-ViT": tuple(f"T2T-ViT-{depth}" for depth in (7, 12, 14, 19, 24)),
    "T2T-ViT_t": tuple(f"T2T-ViT_t-{depth}" for depth in (14, 19, 24)),
    "ViT": ("ViT-S/16", "ViT-B/16", "ViT-L/16"),
    "DeiT": ("DeiT-small",),
    "ResNet, same training": ("ResNet50*", "ResNet101*", "ResNet152*"),
    "ResNet, as published": ("ResNet50", "ResNet101", "ResNet152"),
    "MobileNetV1, same training": ("MobileNetV1 1.0x*",),
    "MobileNetV2, same training": ("MobileNetV2 1.0x*", "MobileNetV2 1.4x*"),
}
_ROWS = {row.label: row for row in (*table2.rows, *table3.rows, *table4.rows)}
fig1 = Figure(
    "Accuracy against MACs and parameters, on ImageNet",
    _MEASURED,
    tuple(_ROWS[label] for labels in _CURVES.values() for label in labels),
    kind="sizes",
    groups=_CURVES,
)

# -- Other figures -----------------------------------------------------------------------------------------------------

_OWN_SIZE = "in the size that the networks were trained at; the paper enlarges its picture to 1,024 or 2,048 pixels"
fig2 = Figure(
    "Features of ResNet50, ViT-L/16 and T2T-ViT-24",
    "drawn, without numbers",
    tuple(
        replace(_ROWS[label], top1=None, params=None, macs=None, note=_OWN_SIZE)
        for label in ("ResNet50*", "ViT-L/16", "T2T-ViT-24")
    ),
    kind="features",
)
fig3 = Illustration("The T2T process", "`TokensToToken` in vitling/models/t2t.py")
fig4 = Illustration("The architecture of T2T-ViT", "`vitling reproduce t2t/table1`, which has the sizes")
