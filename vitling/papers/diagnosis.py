"""The table of "Understanding Why ViT Trains Badly on Small Datasets" (Zhu et al. 2023)."""

from vitling.papers.table import CIFAR10, CIFAR100, SVHN, Data, Row, Table, nano

_MEASURED = "one run of 500 epochs on the test set; whether the last or the best epoch is not said"
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
