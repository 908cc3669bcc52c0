"""The table and figures of "Understanding Why ViT Trains Badly on Small Datasets" (Zhu et al. 2023)."""

from dataclasses import replace

from vitling.papers.table import CIFAR10, CIFAR100, SVHN, Data, Figure, Illustration, Row, Table, nano

_MEASURED = "one run of 500 epochs on the test set; whether the last or the best epoch is not stated"
_RESNET_SIZE = "the paper says 11.5 M; ResNet-18 for 32 pixels has 11.2 M"

VIT = nano("diag_vit_nano")
RESNET = nano("diag_resnet18_nano")


def _pair(data: Data, name: str, vit: float, resnet: float) -> tuple[Row, Row]:
    return (
        Row("ViT", vit, f"diagnosis/{name}_vit", VIT, params=9.6, data=data),
        Row("ResNet-18", resnet, f"diagnosis/{name}_resnet18", RESNET, params=11.5, data=data, note=_RESNET_SIZE),
    )


table1 = Table(
    "ViT and ResNet-18 from scratch on small datasets",
    _MEASURED,
    (
        *_pair(CIFAR10, "cifar10", 81.36, 92.8),
        *_pair(CIFAR100, "cifar100", 54.31, 70.7),
        *_pair(SVHN, "svhn", 95.17, 95.78),
    ),
)

# -- Figures -----------------------------------------------------------------------------------------------------------

_DRAWN = "drawn, without numbers"
_SECRET = "JFT-300M and the networks that were trained on it are not public"
_TENTH = Data("a tenth of the data", 10, 0)


def _large(label: str, recipe, data: Data) -> Row:
    return Row(label, None, nano=recipe, data=data, why_not=_SECRET)


def _shown(label: str, *data: Data) -> tuple[Row, ...]:
    return tuple(row for row in table1.rows if row.label == label and row.data in data)


fig1 = Illustration("The architecture of ResNet-18", "`DiagResNet18` in vitling/models/diag.py")
fig2 = Illustration("The architecture of the ViT", "`vitling show diagnosis/cifar10_vit`, vitling/models/diag.py")
fig3 = Figure(
    "Learning curves of ViT and ResNet-18",
    "drawn, on the test set",
    table1.rows,
    kind="curves",
    groups={
        data.name: tuple(f"{label}, {data.name}" for label in ("ViT", "ResNet-18"))
        for data in (CIFAR10, CIFAR100, SVHN)
    },
)
fig4 = Figure("Attention of every layer of a ViT", _DRAWN, _shown("ViT", CIFAR10, SVHN), kind="attention")
fig5 = Figure("Feature maps of ResNet-18", _DRAWN, _shown("ResNet-18", CIFAR10, SVHN), kind="features")
fig6 = Figure(
    "Similarity of ViT and ResNet trained on much data (nano: on all of a small dataset and on a tenth)",
    _DRAWN,
    (
        _large("ViT", VIT, Data("all of the data", 10, 0)),
        _large("ResNet-18", RESNET, Data("all of the data", 10, 0)),
        _large("ViT, a tenth", replace(VIT, fraction=0.1), _TENTH),
        _large("ResNet-18, a tenth", replace(RESNET, fraction=0.1), _TENTH),
    ),
    kind="similarity",
)
fig7 = Figure("Similarity of ViT and ResNet trained on little data", _DRAWN, table1.rows, kind="similarity")
fig8 = Figure(
    "Attention over more pictures, on CIFAR-10", _DRAWN, _shown("ViT", CIFAR10), kind="attention", pictures=12
)
