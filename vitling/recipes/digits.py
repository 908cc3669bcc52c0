"""scikit-learn's 1,797 handwritten digits, 8 x 8 pixels: seconds on a CPU, no download."""

from vitling.recipe import Augment, Optim, Recipe, replace


def vit_nano() -> Recipe:
    """A plain ViT with 2-pixel patches, sized for 8 x 8 images."""
    return Recipe(
        model="vit_tiny_patch16_224",
        model_args=dict(patch_size=2, embed_dim=64, depth=4, num_heads=4),
        data="digits",
        epochs=40,
        batch_size=64,
        augment=Augment(crop="pad", hflip=0.0),
        optim=Optim(lr=2e-3, warmup_epochs=4),
    )


def resnet18() -> Recipe:
    """timm's ResNet-18 with a 3x3 stem."""
    return replace(
        vit_nano(),
        model="resnet18",
        model_args=dict(stem_type="deep", replace_stem_pool=True),
        optim=Optim(name="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=2),
        epochs=15,
    )
