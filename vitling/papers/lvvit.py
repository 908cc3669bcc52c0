"""The tables of "All Tokens Matter: Token Labeling for Training Better Vision Transformers" (Jiang et al. 2021)."""

from dataclasses import replace
from typing import Any

from vitling.papers.table import QUOTED, Description, Figure, Illustration, Row, Table, nano
from vitling.recipes import Augment, Recipe

_MEASURED = "best epoch of the averaged weights of one run, on the validation set"
_NEEDS_MAPS = "needs label maps in labels/imagenet, written by `vitling relabel` with fit=crop and raw_scores"

# -- nano networks -----------------------------------------------------------------------------------------------------

_PLAIN: dict[str, Any] = dict(return_dense=False, skip_lam=1.0, stem_kernels=[], stem_strides=[])


def _stem(kernels=(7, 3, 3), strides=(2, 1, 1), **changes) -> Recipe:
    """A convolutional stem without token labels and scaled residuals."""
    arguments: dict[str, Any] = dict(
        return_dense=False, skip_lam=1.0, stem_kernels=list(kernels), stem_strides=list(strides)
    )
    return nano("lvvit_nano", **{**arguments, **changes})


def _labeled(
    img_size: int = 16, augment: Augment | None = None, model_args: dict | None = None, **method_args
) -> Recipe:
    """Labels for tokens, or one per crop, from a small CNN that is trained on the same images first."""
    settings: dict[str, Any] = dict(method="token_labeling", method_args=dict(relabel="auto", **method_args))
    return nano("lvvit_nano", img_size=img_size, augment=augment, **settings, **(model_args or {}))


def _relabeled(**method_args) -> Recipe:
    return _labeled(model_args=dict(return_dense=False), label_tokens=False, **method_args)


_TOKENS = _labeled()
_CUTMIX = _relabeled(mix_token=False, cutmix=1.0)


def _row(
    label: str, top1: float, recipe: str, nano_recipe: Recipe | None, params: float | None, macs=None, note="", **more
):
    if not note and ("label" in recipe or recipe.startswith(("imagenet_", "table7", "table8", "table6"))):
        note = _NEEDS_MAPS
    return Row(label, top1, f"lvvit/{recipe}", nano_recipe, params=params, macs=macs, note=note, **more)


# -- Tables 1 and 2 ----------------------------------------------------------------------------------------------------

_DESCRIBED = "it describes networks and settings; `vitling reproduce lvvit/table10` trains them"


def _described(label: str, top1: float | None = None, **more: Any) -> Row:
    return Row(label, top1, why_not=_DESCRIBED, no_nano=_DESCRIBED, **more)


def _against_cait(layers, heads, mlp_ratio, width, depth_drop, randaugment, *used: str, epochs: int) -> dict[str, Any]:
    """The paper ticks what is used."""
    ticked = (
        "CutMix",
        "MixUp",
        "LayerScale",
        "class attention",
        "distillation",
        "scaled residuals",
        "MixToken",
        "token labels",
    )
    sizes = {"layers": layers, "heads": heads, "MLP ratio": mlp_ratio, "width": width, "stochastic depth": depth_drop}
    ticks = {"RandAugment used": randaugment, **{what: what in used for what in ticked}}
    return {**sizes, **ticks, "test size": 384, "epochs": epochs}


# fmt: off
table1 = Description(
    "LV-ViT-M against CaiT-S36, both at 384 pixels",
    "read off the configuration; top-1 on ImageNet",
    (
        _described("LV-ViT-M at 384", 85.4, describes="lvvit/imagenet_m", img_size=384, params=56, macs=42, note="10 of our 310 epochs are at the smallest rate"),
        _described("CaiT-S36 at 384", 85.4, model="cait_s36_384", img_size=384, params=69, macs=48, note="timm's has 8 heads, not 12; its settings are its own paper's"),
    ),
    printed={
        "LV-ViT-M at 384": _against_cait(20, 8, 3, 512, 0.2, True, "scaled residuals", "MixToken", "token labels", epochs=300),
        "CaiT-S36 at 384": _against_cait(36, 12, 4, 384, 0.2, True, "CutMix", "MixUp", "LayerScale", "class attention", "distillation", epochs=400),
    },
)


# fmt: on


def _settings(learning_rate: float, mixup: float | None) -> dict[str, Any]:
    return {
        "epochs": 300,
        "batch size": 1024,
        "learning rate": learning_rate,
        "schedule": "cosine",
        "weight decay": 0.05,
        "warm-up epochs": 5,
        "dropout": 0,
        "stochastic depth": 0.1,
        "mixup alpha": mixup,
        "erasing": 0.25,
        "RandAugment": "9/0.5",
    }


_COOLDOWN = "10 of our 310 epochs are at the smallest rate, as released"
table2 = Description(
    "Settings of training by the kind of labels",
    "read off the recipes",
    (
        _described("standard", describes="lvvit/table3_residual", note=_COOLDOWN),
        _described("re-labeling", describes="lvvit/table3_relabeling", note=_COOLDOWN),
        _described("token labeling", describes="lvvit/imagenet_s", note=_COOLDOWN),
    ),
    printed={
        "standard": _settings(1e-3, 0.8),
        "re-labeling": _settings(1e-3, None),
        "token labeling": _settings(1.6e-3, None),
    },
)

# -- Table 3 -----------------------------------------------------------------------------------------------------------

_FINER = "nano: trained at the larger size from the start"

# fmt: off
table3 = Table(
    "From DeiT-S to LV-ViT-S, on ImageNet",
    _MEASURED,
    (
        _row("baseline (DeiT-S)",  79.9, "table3_baseline",       nano("lvvit_nano", depth=7, mlp_ratio=4.0, **_PLAIN), 22),
        _row("+ more blocks",      81.2, "table3_16_blocks",      nano("lvvit_nano", mlp_ratio=4.0, **_PLAIN), 28, note="computed 29.1 M"),
        _row("+ MLP ratio 3",      81.1, "table3_mlp_ratio_3",    nano("lvvit_nano", **_PLAIN), 25, note="computed 24.4 M"),
        _row("+ convolutional stem", 82.2, "table3_stem",         _stem(), 26),
        _row("+ scaled residual",  82.4, "table3_residual",       _stem(skip_lam=2.0), 26),
        _row("+ re-labeling",      82.8, "table3_relabeling",     _CUTMIX, 26),
        _row("+ token labeling",   83.3, "table3_token_labeling", _TOKENS, 26),
        _row("+ larger images",    84.4, "table3_resolution_384", _labeled(img_size=28), 26, note=f"starts from a run of lvvit/imagenet_s; {_FINER}"),
    ),
)

# -- Tables 4 and 5 ----------------------------------------------------------------------------------------------------

# A nano patch is 4 pixels, a quarter of the paper's: strides of 8 become 2, those of 4 become 1.
table4 = Table(
    "Patch embedding, on ImageNet",
    _MEASURED,
    (
        _row("[16]",                           81.1, "table4_kernels_16",                     nano("lvvit_nano", **_PLAIN), 25, note="computed 24.4 M"),
        _row("[7,8]",                          81.4, "table4_kernels_7_8",                    _stem([7], [2]), 25, note="computed 25.7 M"),
        _row("[7,3,8], strides [2,2,4]",       81.4, "table4_kernels_7_3_8_strides_2_2_4",    _stem([7, 3], [2, 2], proj_kernel=3), 25, note="computed 25.7 M"),
        _row("[7,3,8]",                        81.9, "table4_kernels_7_3_8",                  _stem([7, 3], [2, 1]), 26),
        _row("[7,3,3,8]",                      82.2, "table4_kernels_7_3_3_8",                _stem(), 26),
        _row("[7,3,3,8], strides [2,2,1,4]",   81.5, "table4_kernels_7_3_3_8_strides_2_2_1_4", _stem([7, 3, 3], [2, 2, 1], proj_kernel=3), 26),
        _row("[7,3,3,3,3,8]",                  82.2, "table4_kernels_7_3_3_3_3_8",            _stem([7, 3, 3, 3, 3], [2, 1, 1, 1, 1]), 26),
    ),
)
table5 = Table(
    "Residual connection, on ImageNet",
    _MEASURED,
    (
        _row("X + F(X)",     82.2, "table5_residual_1",     _stem(), 26),
        _row("X + F(X) / 2", 82.4, "table5_residual_half",  _stem(skip_lam=2.0), 26),
        _row("X + F(X) / 3", 82.4, "table5_residual_third", _stem(skip_lam=3.0), 26),
    ),
)

# -- Tables 6 and 7 ----------------------------------------------------------------------------------------------------

table6 = Table(
    "MixToken and token labeling, on ImageNet",
    _MEASURED,
    (
        _row("MixToken, token labeling", 83.3, "table6_mixtoken_token_labeling", _TOKENS, None),
        _row("MixToken, re-labeling",    83.0, "table6_mixtoken_relabeling",     _relabeled(), None),
        _row("CutMix, re-labeling",      82.8, "table6_cutmix_relabeling",       _CUTMIX, None),
    ),
)

_STRONG = Augment(crop="none", hflip=0.0, randaugment="rand-m9-mstd0.5-inc1", erase=0.25)
table7 = Table(
    "Augmentation with token labels, on ImageNet",
    _MEASURED,
    (
        _row("MixToken, CutOut, RandAug",        83.3, "table7_mixtoken",       _labeled(augment=_STRONG), None),
        _row("CutOut, RandAug",                  81.3, "table7_no_mixtoken",    _labeled(augment=_STRONG, mix_token=False), None),
        _row("MixToken, MixUp, CutOut, RandAug", 83.1, "table7_mixtoken_mixup", _labeled(augment=_STRONG, mixup=0.8), None),
        _row("MixToken, RandAug",                83.0, "table7_no_cutout",      _labeled(augment=replace(_STRONG, erase=0.0)), None),
        _row("MixToken, CutOut",                 82.8, "table7_no_randaugment", _labeled(augment=replace(_STRONG, randaugment="")), None),
    ),
)

# -- Tables 8 and 9 ----------------------------------------------------------------------------------------------------

_T, _M, _L = (dict(embed_dim=width, depth=depth) for width, depth in ((60, 7), (120, 10), (144, 11)))
table8 = Table(
    "LV-ViT of all sizes, on ImageNet",
    _MEASURED,
    (
        _row("LV-ViT-T", 79.1, "table8_t", _labeled(model_args=dict(_T, skip_lam=1.0)), 8.5),
        _row("LV-ViT-S", 83.3, "table8_s", _TOKENS, 26),
        _row("LV-ViT-M", 84.0, "table8_m", _labeled(model_args=_M), 56),
        _row("LV-ViT-L", 85.3, "table8_l", _labeled(model_args=dict(_L, skip_lam=3.0)), 150, note=f"at 288 pixels; {_NEEDS_MAPS}"),
    ),
)
table9 = Table(
    "Normalisation, on ImageNet",
    _MEASURED,
    (
        _row("LayerNorm",            82.2, "table9_layernorm",   _stem(), 26),
        _row("GroupNorm, 1 group",   82.2, "table9_groupnorm_1", _stem(norm_groups=1), 26),
        _row("GroupNorm, 2 groups",  82.2, "table9_groupnorm_2", _stem(norm_groups=2), 26),
        _row("GroupNorm, 3 groups",  81.9, "table9_groupnorm_3", _stem(norm_groups=3), 26),
        _row("GroupNorm, 6 groups",  81.8, "table9_groupnorm_6", _stem(norm_groups=6), 26),
    ),
)

# -- Table 10 ----------------------------------------------------------------------------------------------------------


def _quoted(label: str, top1: float, real: float | None, model: str, size: int, params: float, macs: float, note="") -> Row:
    return Row(label, top1, params=params, macs=macs, model=model, img_size=size, why_not=QUOTED, note=note, real=real)


_TESTED_LARGER = f"the weights of 288 pixels, tested at 448; {_NEEDS_MAPS}; nano: tested at 24 pixels"
_LV_M_MACS = "16.0 G fits no count of it; 12.7 G computed"
table10 = Table(
    "Against other networks, on ImageNet",
    f"{_MEASURED}; rows of others as their papers give them",
    (
        _quoted("EfficientNet-B5", 83.6, 88.3, "tf_efficientnet_b5", 456, 30, 9.9),
        _quoted("EfficientNet-B7", 84.3, None, "tf_efficientnet_b7", 600, 66, 37.0),
        _quoted("Fix-EfficientNet-B8", 85.7, 90.0, "tf_efficientnet_b8", 800, 87, 89.5),
        _quoted("NFNet-F0", 83.6, 88.1, "dm_nfnet_f0", 256, 72, 12.4),
        _quoted("NFNet-F1", 84.7, 88.9, "dm_nfnet_f1", 320, 133, 35.5),
        _quoted("NFNet-F2", 85.1, 88.9, "dm_nfnet_f2", 352, 194, 62.6),
        _quoted("NFNet-F3", 85.7, 89.4, "dm_nfnet_f3", 416, 255, 114.8),
        _quoted("NFNet-F4", 85.9, 89.4, "dm_nfnet_f4", 512, 316, 215.3),
        _quoted("NFNet-F5", 86.0, 89.2, "dm_nfnet_f5", 544, 377, 289.8),
        _quoted("ViT-B/16", 77.9, 83.6, "vit_base_patch16_224", 384, 86, 55.4),
        _quoted("ViT-L/16", 76.5, 82.2, "vit_large_patch16_224", 384, 307, 190.7),
        _quoted("T2T-ViT-14", 81.5, None, "t2t_vit_14", 224, 22, 5.2, "`vitling reproduce t2t/table2` repeats it; 5.2 G is an older count"),
        _quoted("T2T-ViT-14 at 384", 83.3, None, "t2t_vit_14", 384, 22, 17.1, "`vitling reproduce t2t/table2` repeats it"),
        _quoted("CrossViT", 84.1, None, "", 480, 45, 56.6),
        _quoted("Swin-B", 84.2, None, "swin_base_patch4_window12_384", 384, 88, 47.0),
        _quoted("TNT-B", 82.8, None, "tnt_b_patch16_224", 224, 66, 14.1),
        _quoted("DeepViT-S", 82.3, None, "", 224, 27, 6.2),
        _quoted("DeepViT-L", 83.1, None, "", 224, 55, 12.5),
        _quoted("DeiT-S", 79.9, 85.7, "deit_small_patch16_224", 224, 22, 4.6),
        _quoted("DeiT-B", 81.8, 86.7, "deit_base_patch16_224", 224, 86, 17.5),
        _quoted("DeiT-B at 384", 83.1, 87.7, "deit_base_patch16_224", 384, 86, 55.4),
        _quoted("CaiT-S36 at 384", 85.4, 89.8, "cait_s36_384", 384, 68, 48.0),
        _quoted("CaiT-M36", 85.1, 89.3, "cait_m36_384", 224, 271, 53.7),
        _quoted("CaiT-M36 at 384", 86.1, 90.0, "cait_m36_384", 384, 271, 173.3),
        _quoted("CaiT-M36 at 448", 86.3, 90.2, "cait_m36_384", 448, 271, 247.8),
        _quoted("BoTNet-S1-59", 81.7, None, "", 224, 33.5, 7.3),
        _quoted("BoTNet-S1-110", 82.8, None, "", 224, 54.7, 10.9),
        _quoted("BoTNet-S1-128", 84.2, None, "", 256, 79.1, 19.3),
        _quoted("BoTNet-S1-128 at 384", 84.7, None, "", 384, 79.1, 45.8),
        _row("LV-ViT-S", 83.3, "imagenet_s", _TOKENS, 26, 6.6, _NEEDS_MAPS, real=88.1),
        _row("LV-ViT-S at 384", 84.4, "imagenet_s_384", _labeled(img_size=28), 26, 22.2, f"starts from a run of lvvit/imagenet_s; {_FINER}", real=88.9),
        _row("LV-ViT-M", 84.0, "imagenet_m", _labeled(model_args=_M), 56, 16.0, _LV_M_MACS, real=88.4),
        _row("LV-ViT-M at 384", 85.4, "imagenet_m_384", _labeled(img_size=28, model_args=_M), 56, 42.2, f"starts from a run of lvvit/imagenet_m; {_FINER}", real=89.5),
        _row("LV-ViT-L", 85.3, "imagenet_l", _labeled(model_args=dict(_L, skip_lam=3.0)), 150, 59.0, f"at 288 pixels; {_NEEDS_MAPS}", real=89.3),
        _row("LV-ViT-L at 448", 85.9, "imagenet_l", _labeled(model_args=dict(_L, skip_lam=3.0)), 150, 157.2, _TESTED_LARGER, real=89.7, test_size=448, nano_test_size=24),
        _row("LV-ViT-L, fine-tuned at 448", 86.2, "imagenet_l_448", None, 150, 157.2, "starts from a run of lvvit/imagenet_l", real=89.9, no_nano="fine-tuning has no nano counterpart"),
    ),
)
# fmt: on

# -- Figure 1 ----------------------------------------------------------------------------------------------------------

_CURVES = {
    "LV-ViT": ("LV-ViT-S", "LV-ViT-M"),
    "LV-ViT at 384": ("LV-ViT-S at 384", "LV-ViT-M at 384"),
    "DeiT": ("DeiT-S", "DeiT-B"),
    "DeepViT": ("DeepViT-S", "DeepViT-L"),
    "BoTNet": ("BoTNet-S1-59", "BoTNet-S1-110", "BoTNet-S1-128"),
    "others at 224": ("T2T-ViT-14", "TNT-B"),
    "others, larger images": (
        "T2T-ViT-14 at 384",
        "CrossViT",
        "Swin-B",
        "DeiT-B at 384",
        "CaiT-S36 at 384",
        "ViT-B/16",
        "BoTNet-S1-128 at 384",
    ),
}
_ROWS = {row.label: row for row in table10.rows}
fig1 = Figure(
    "Accuracy against parameters of transformers of under 100 M, on ImageNet",
    table10.measured,
    tuple(_ROWS[label] for labels in _CURVES.values() for label in labels),
    kind="sizes",
    groups=_CURVES,
)

# -- Drawings ----------------------------------------------------------------------------------------------------------

fig2 = Illustration(
    "Training of a ViT and of LV-ViT", "docs/token_labeling.md, vitling/methods/token_labeling/method.py"
)
fig3 = Illustration("CutMix and MixToken", "`mix_tokens` in vitling/methods/token_labeling")
