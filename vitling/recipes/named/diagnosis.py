"""The two networks of "Understanding Why ViT Trains Badly on Small Datasets" (Zhu et al. 2023), Table 1.

Paper and release disagree on most settings; these are the paper's: Adam at a constant rate, batches of
100, 500 epochs, crop and flip, pixels between 0 and 1.
"""

from vitling.recipes.schema import Augment, Optim, Recipe, replace


def cifar10_vit() -> Recipe:
    """The paper's ViT on CIFAR-10. Paper: 81.36."""
    return Recipe(
        model="diag_vit_patch4",
        data="cifar10",
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        epochs=500,
        batch_size=100,
        augment=Augment(crop="pad", crop_padding=0.125, hflip=0.5),
        optim=Optim(name="adam", lr=1e-4, weight_decay=0.0, schedule="constant", warmup_epochs=0),
    )


def cifar10_resnet18() -> Recipe:
    """ResNet-18 on CIFAR-10. Paper: 92.8."""
    return replace(cifar10_vit(), model="diag_resnet18")


def cifar100_vit() -> Recipe:
    """The paper's ViT on CIFAR-100. Paper: 54.31."""
    return replace(cifar10_vit(), data="cifar100")


def cifar100_resnet18() -> Recipe:
    """ResNet-18 on CIFAR-100. Paper: 70.7."""
    return replace(cifar10_resnet18(), data="cifar100")


def svhn_vit() -> Recipe:
    """The paper's ViT on SVHN. Paper: 95.17."""
    return replace(cifar10_vit(), data="svhn")


def svhn_resnet18() -> Recipe:
    """ResNet-18 on SVHN. Paper: 95.78."""
    return replace(cifar10_resnet18(), data="svhn")
