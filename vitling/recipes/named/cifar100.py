"""CIFAR-100 from scratch with timm's models as baselines. The papers' own rows have files of their own."""

from vitling.recipes.schema import Augment, Optim, Recipe, replace

STRONG = Augment(crop="pad", hflip=0.5, randaugment="rand-m9-mstd0.5-inc1", erase=0.25)
MIXED = dict(mixup=0.8, cutmix=1.0, label_smoothing=0.1)


def vit_nano() -> Recipe:
    """A plain ViT of under a million parameters with 4-pixel patches."""
    return Recipe(
        model="vit_tiny_patch16_224",
        model_args=dict(patch_size=4, embed_dim=128, depth=4, num_heads=4),
        method_args=dict(label_smoothing=0.1),
        data="cifar100",
        epochs=100,
        batch_size=128,
        optim=Optim(lr=1e-3, warmup_epochs=5),
    )


def deit_tiny_patch4() -> Recipe:
    """DeiT-T with 4-pixel patches and DeiT's training, the plain transformer that DHVT's paper compares with."""
    return Recipe(
        model="deit_tiny_patch16_224",
        model_args=dict(patch_size=4, drop_path_rate=0.1),
        method_args=MIXED,
        data="cifar100",
        epochs=300,
        batch_size=512,
        augment=STRONG,
        optim=Optim(lr=1e-3, warmup_epochs=5),
    )


def resnet18() -> Recipe:
    """ResNet-18 with a 3x3 stem and no early pooling, as it is made for 32 pixels."""
    return Recipe(
        model="diag_resnet18",
        method_args=dict(label_smoothing=0.1),
        data="cifar100",
        epochs=200,
        batch_size=128,
        optim=Optim(name="sgd", lr=0.1, weight_decay=5e-4, warmup_epochs=5),
    )


def resnet18_imagenet_stem() -> Recipe:
    """timm's ResNet-18 as it is: its stem leaves one pixel of 32, a weak baseline."""
    return replace(resnet18(), model="resnet18")
