"""The tables of "Bridging the Gap Between Vision Transformers and CNNs on Small Datasets" (Lu et al. 2022)."""

from typing import Any

from vitling.papers.table import (
    CIFAR100,
    IMAGENET,
    QUOTED,
    Data,
    Description,
    Figure,
    Illustration,
    Row,
    Table,
    nano,
)
from vitling.recipes import Recipe

CLIPART = Data("ClipArt", 345, 33_525)
PAINTING = Data("Painting", 345, 50_416)
SKETCH = Data("Sketch", 345, 48_212)

BEST_OF_4 = "best epoch of the best of four seeds, on the test set"
BEST_OF_5 = "best epoch of the best of five seeds, on the test set; rows of others as their papers give them"
MEAN_OF_4 = "mean of four seeds, each the best epoch on the test set"

_SMALL = nano("dhvt_nano")


def _tiny(patch_size: int = 4, **switches) -> Recipe:
    """Half the width of the nano, as DHVT-T is to DHVT-S."""
    return nano("dhvt_nano", embed_dim=48, patch_size=patch_size, **switches)


def _switched(*, abs_pos_embed: bool, sope: bool, daff: bool, head_tokens: bool = False) -> Recipe:
    return nano("dhvt_nano", abs_pos_embed=abs_pos_embed, sope=sope, daff=daff, head_tokens=head_tokens)


_DEIT: dict[str, Any] = dict(abs_pos_embed=True, sope=False, daff=False, head_tokens=False)

# -- Table 1 -----------------------------------------------------------------------------------------------------------

_DESCRIBED = "it describes data; there is nothing to train"
_NO_TEST_LABELS = (
    "the labels of ImageNet's 100,000 test images are not public; the release measures on its 50,000 validation images"
)


def _described(data: Data, note: str = "") -> Row:
    return Row(data.name, None, data=data, describes="data", why_not=_DESCRIBED, no_nano=_DESCRIBED, note=note)


def _numbers(train: int, test: int, classes: int, per_class: int) -> dict[str, int]:
    return {"training images": train, "test images": test, "classes": classes, "images per class": per_class}


table1 = Description(
    "The datasets",
    "counted",
    (
        _described(CIFAR100),
        _described(CLIPART),
        _described(SKETCH),
        _described(PAINTING),
        _described(IMAGENET, _NO_TEST_LABELS),
    ),
    printed={
        "CIFAR-100": _numbers(50_000, 10_000, 100, 500),
        "ClipArt": _numbers(33_525, 14_604, 345, 97),
        "Sketch": _numbers(48_212, 20_916, 345, 140),
        "Painting": _numbers(50_416, 21_850, 345, 146),
        "ImageNet": _numbers(1_281_167, 100_000, 1000, 1281),
    },
)

# -- Table 2 -----------------------------------------------------------------------------------------------------------

_RESNET_SETTING = dict(model="resnet50", model_args={})
_NO_SETTING = "the paper gives no optimiser for it; this is DHVT-T's"


def _domain(data: Data, resnet: float, tiny: float, small: float) -> tuple[Row, ...]:
    """DomainNet cannot be downloaded: give a domain's folder or list as `data`, and its rows as `rows`."""
    return (
        Row(
            "ResNet-50",
            resnet,
            "dhvt/domainnet_tiny",
            nano("diag_resnet18_nano"),
            params=24.2,
            data=data,
            change=_RESNET_SETTING,
            note=_NO_SETTING,
        ),
        Row("DHVT-T", tiny, "dhvt/domainnet_tiny", _tiny(), params=6.1, data=data),
        Row("DHVT-S", small, "dhvt/domainnet_small", _SMALL, params=23.8, data=data),
    )


table2 = Table(
    "Results on DomainNet",
    BEST_OF_4,
    (
        *_domain(CLIPART, 71.90, 71.73, 73.89),
        *_domain(PAINTING, 64.36, 63.34, 66.08),
        *_domain(SKETCH, 67.45, 66.60, 68.72),
    ),
)

# -- Table 3 -----------------------------------------------------------------------------------------------------------

table3 = Table(
    "Results on ImageNet-1K",
    "best epoch of one run, on the validation set",
    (
        Row("DHVT-T", 76.5, "dhvt/imagenet_tiny", _tiny(), params=6.2, data=IMAGENET, note="the release says 77.6"),
        Row("DHVT-S", 82.3, "dhvt/imagenet_small", _SMALL, params=24.0, data=IMAGENET),
    ),
)

# -- Table 4 -----------------------------------------------------------------------------------------------------------

_NO_CODE = "re-implemented by the authors for 32 pixels; neither their code nor a CvT of timm exists"
_UNCOUNTED = "the paper leaves the two products inside attention out of its count"


def _others(label: str, top1: float, params: float, macs: float) -> Row:
    return Row(label, top1, params=params, macs=macs, data=CIFAR100, why_not=QUOTED)


def _deit(label: str, top1: float, model: str, params: float, macs: float, note: str = "", **change) -> Row:
    """DeiT under DHVT's training is DHVT with all its switches off. Its warm-up is the main experiments'."""
    size, patch = label.removeprefix("DeiT-").split("/")
    recipe = _tiny(int(patch), **_DEIT) if size == "T" else nano("dhvt_nano", patch_size=int(patch), **_DEIT)
    change = dict(model=model, **{"optim.warmup_epochs": 5}, **change)
    return Row(
        label,
        top1,
        "dhvt/table5_pos",
        recipe,
        params=params,
        macs=macs,
        data=CIFAR100,
        change=change,
        note=note,
    )


def _dhvt(label: str, top1: float, recipe: str, nano_recipe: Recipe, params: float, macs: float, note="") -> Row:
    return Row(label, top1, recipe, nano_recipe, params=params, macs=macs, data=CIFAR100, note=note)


table4 = Table(
    "CIFAR-100, from random initialisation",
    BEST_OF_5,
    (
        _others("WRN28-10", 80.75, 36.5, 5.2),
        _others("SENet-29", 82.22, 35.0, 5.4),
        _others("ResNeXt-29, 8x64d", 82.23, 34.4, 5.4),
        _others("SKNet-29", 82.67, 27.7, 4.2),
        _others("DenseNet-BC (k = 40)", 82.82, 25.6, 9.3),
        _others("Res2NeXt-29, 6cx24wx6s-SE", 83.44, 36.9, 5.9),
        _deit("DeiT-T/4", 67.59, "dhvt_tiny_cifar_patch4", 5.4, 0.4),
        _deit("DeiT-S/4", 66.55, "dhvt_small_cifar_patch4", 21.4, 1.4, batch_size=256),
        _deit("DeiT-T/2", 65.86, "dhvt_tiny_cifar_patch2", 5.4, 1.4, _UNCOUNTED),
        _deit("DeiT-S/2", 63.77, "dhvt_small_cifar_patch2", 21.4, 5.5, _UNCOUNTED, batch_size=256),
        _others("PVT-T", 69.62, 15.8, 0.6),
        _others("PVT-S", 69.79, 27.0, 1.2),
        _others("Swin-T", 78.07, 27.5, 1.4),
        _others("NesT-T", 78.69, 6.2, 1.7),
        _others("NesT-S", 81.70, 23.4, 6.6),
        _others("NesT-B", 82.56, 90.1, 26.5),
        _others("CCT-7/3x1", 80.92, 3.7, 1.0),
        Row("CvT-13/4", 79.24, params=19.6, macs=1.1, data=CIFAR100, why_not=_NO_CODE),
        Row("CvT-13/2", 81.81, params=19.6, macs=4.5, data=CIFAR100, why_not=_NO_CODE),
        _dhvt("DHVT-T/4", 80.93, "dhvt/cifar100_tiny_patch4", _tiny(), 6.0, 0.4),
        _dhvt("DHVT-S/4", 82.91, "dhvt/cifar100_small_patch4", _SMALL, 23.4, 1.5),
        _dhvt("DHVT-T/2", 83.54, "dhvt/cifar100_tiny_patch2", _tiny(2), 5.8, 1.4, _UNCOUNTED),
        _dhvt("DHVT-S/2", 85.68, "dhvt/cifar100_small_patch2", nano("dhvt_nano", patch_size=2), 22.8, 5.6, _UNCOUNTED),
    ),
)

# -- Tables 5 and 6 ----------------------------------------------------------------------------------------------------


def _ablation(label: str, top1: float, recipe: str, **switches: bool) -> Row:
    return Row(label, top1, f"dhvt/{recipe}", _switched(**switches), data=CIFAR100)


# fmt: off
table5 = Table(
    "Ablation of SOPE and DAFF, DHVT-T/4 on CIFAR-100",
    MEAN_OF_4,
    (
        _ablation("positions",             67.59, "table5_pos",           abs_pos_embed=True,  sope=False, daff=False),
        _ablation("none",                  58.72, "table5_plain",         abs_pos_embed=False, sope=False, daff=False),
        _ablation("positions, SOPE",       73.68, "table5_pos_sope",      abs_pos_embed=True,  sope=True,  daff=False),
        _ablation("SOPE",                  69.65, "table5_sope",          abs_pos_embed=False, sope=True,  daff=False),
        _ablation("positions, DAFF",       79.47, "table5_pos_daff",      abs_pos_embed=True,  sope=False, daff=True),
        _ablation("DAFF",                  79.75, "table5_daff",          abs_pos_embed=False, sope=False, daff=True),
        _ablation("positions, SOPE, DAFF", 80.17, "table5_pos_sope_daff", abs_pos_embed=True,  sope=True,  daff=True),
        _ablation("SOPE, DAFF",            80.35, "table5_sope_daff",     abs_pos_embed=False, sope=True,  daff=True),
    ),
)
table6 = Table(
    "Ablation of head tokens, DHVT-T/4 on CIFAR-100",
    MEAN_OF_4,
    (
        _ablation("positions",               67.59, "table5_pos",         abs_pos_embed=True,  sope=False, daff=False),
        _ablation("positions, head tokens",  69.10, "table6_head_tokens", abs_pos_embed=True,  sope=False, daff=False, head_tokens=True),
        _ablation("SOPE, DAFF, head tokens", 80.85, "table6_full",        abs_pos_embed=False, sope=True,  daff=True,  head_tokens=True),
    ),
)
# fmt: on

# -- Figures -----------------------------------------------------------------------------------------------------------

_UNNAMED = "the paper does not say which network it shows; this is DHVT-T/4 on CIFAR-100"
fig1 = Illustration("Overview of DHVT", "`vitling show dhvt/cifar100_tiny_patch4`, vitling/models/dhvt.py")
fig2 = Illustration("Dynamic aggregation feed forward (DAFF)", "`DAFF` in vitling/models/dhvt.py")
fig3 = Illustration("Head-interacted attention", "`HeadInteractedAttention` in vitling/models/dhvt.py")
fig4 = Figure(
    "What head tokens attend to, in the second block",
    "drawn, without numbers",
    (Row("DHVT-T/4", None, "dhvt/cifar100_tiny_patch4", _SMALL, data=CIFAR100, note=_UNNAMED),),
    kind="head tokens",
)
