"""What the house recipe has to be measured against: strong baselines of its size, about 0.25 M, for images of about 32 pixels."""

from vitling.recipes.named import cifar100
from vitling.recipes.schema import Optim, Recipe, replace


def vit_nano() -> Recipe:
    """A plain ViT of timm with light training: 4-pixel patches, AdamW, crops and flips."""
    return replace(
        cifar100.vit_nano(), model_args=dict(patch_size=4, embed_dim=72, depth=4, num_heads=3), batch_size=64
    )


def timm_vit_nano() -> Recipe:
    """The same ViT with the training that timm gives ViTs from scratch: RandAugment, mixup, cutmix, erasing, drop path."""
    return replace(
        vit_nano(),
        model_args=dict(vit_nano().model_args, drop_path_rate=0.1),
        method_args=cifar100.MIXED,
        augment=cifar100.STRONG,
    )


def resnet9_nano() -> Recipe:
    """A CNN built for speed on small images, with light augmentation."""
    return replace(
        vit_nano(),
        model="resnet9_nano",
        model_args=dict(width=12),
        optim=Optim(lr=5e-3, weight_decay=0.05, warmup_epochs=10),
    )


def resnet9_nano_muon() -> Recipe:
    """The fast CNN with Muon in place of AdamW."""
    return replace(
        resnet9_nano(),
        batch_size=128,
        optim=Optim(name="muon", lr=0.01, momentum=0.95, betas=(0.9, 0.95), weight_decay=0.05, warmup_epochs=10),
    )
