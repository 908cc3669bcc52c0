"""Your own images, whatever they are. `vitling train DATA` without a recipe takes what `vitling plan` makes of one of these."""

from vitling.recipes.schema import Augment, Optim, Recipe, replace


def vit_nano() -> Recipe:
    """A small plain ViT for a few hundred to a few thousand images: 64 pixels, 8-pixel patches."""
    return Recipe(
        model="vit_tiny_patch16_224",
        model_args=dict(patch_size=8, embed_dim=128, depth=6, num_heads=4, drop_path_rate=0.05),
        method_args=dict(label_smoothing=0.1),
        data="",
        img_size=64,
        epochs=100,
        batch_size=32,
        augment=Augment(crop="resized", crop_scale=(0.35, 1.0), hflip=0.5, color_jitter=0.3),
        optim=Optim(lr=1e-3, warmup_epochs=5),
    )


def vit_nano_small() -> Recipe:
    """The same for small images (up to about 48 pixels) at their own size: 4-pixel patches."""
    return replace(
        vit_nano(),
        model_args=dict(patch_size=4, embed_dim=128, depth=4, num_heads=4),
        img_size=None,
        batch_size=64,
        augment=Augment(crop="pad", hflip=0.5),
    )


def dhvt_nano() -> Recipe:
    """A small DHVT, a ViT with convolutions inside: better than a plain one on few images."""
    return replace(vit_nano(), model="dhvt_nano", model_args=dict(patch_size=8))


def deit_tiny() -> Recipe:
    """DeiT-T at 224 pixels with DeiT's training: for thousands of photographs and a GPU."""
    return replace(
        vit_nano(),
        model="deit_tiny_patch16_224",
        model_args=dict(drop_path_rate=0.1),
        method_args=dict(mixup=0.8, cutmix=1.0, label_smoothing=0.1),
        img_size=224,
        epochs=300,
        batch_size=256,
        augment=Augment(crop="resized", crop_scale=(0.2, 1.0), randaugment="rand-m9-mstd0.5-inc1", erase=0.25),
    )


def resnet18() -> Recipe:
    """timm's ResNet-18, the convolutional baseline, at 128 pixels."""
    return replace(
        vit_nano(),
        model="resnet18",
        model_args={},
        img_size=128,
        optim=Optim(name="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=5),
    )


def efficientnet_b0() -> Recipe:
    """timm's EfficientNet-B0 at 128 pixels."""
    return replace(vit_nano(), model="efficientnet_b0", model_args={}, img_size=128)
