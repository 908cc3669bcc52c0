"""CIFAR-10 from scratch with timm's models as baselines: CIFAR-100's recipes on ten classes."""

from vitling.recipes.named import cifar100
from vitling.recipes.schema import Recipe, replace


def vit_nano() -> Recipe:
    """A plain ViT of under a million parameters with 4-pixel patches."""
    return replace(cifar100.vit_nano(), data="cifar10")


def deit_tiny_patch4() -> Recipe:
    """DeiT-T with 4-pixel patches and DeiT's training."""
    return replace(cifar100.deit_tiny_patch4(), data="cifar10")


def resnet18() -> Recipe:
    """ResNet-18 with a 3x3 stem and no early pooling."""
    return replace(cifar100.resnet18(), data="cifar10")
