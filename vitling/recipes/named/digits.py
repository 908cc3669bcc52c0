"""scikit-learn's 1,797 handwritten digits, 8 x 8 pixels: seconds on a CPU, no download."""

from vitling.recipes.schema import Augment, Optim, Recipe, replace


def vit_nano() -> Recipe:
    """A plain ViT with 2-pixel patches, sized for 8 x 8 images."""
    return Recipe(
        model="vit_tiny_patch16_224",
        model_args=dict(patch_size=2, embed_dim=64, depth=4, num_heads=4),
        data="digits",
        epochs=30,
        batch_size=64,
        augment=Augment(crop="none", hflip=0.0),  # a digit moved by one of eight pixels is another image
        optim=Optim(lr=2e-3, warmup_epochs=3),
    )


def dhvt_nano() -> Recipe:
    """DHVT with 2-pixel patches and about as many parameters."""
    return replace(
        vit_nano(), model="dhvt_nano", model_args=dict(patch_size=2, embed_dim=48, depth=4, num_heads=4), epochs=15
    )


def dhvt_nano_bootstrap() -> Recipe:
    """DHVT with an agent CNN beside it, for about the time of the plain ViT: two networks learn."""
    recipe = dhvt_nano()
    return replace(recipe, method="bootstrap", epochs=10, optim=replace(recipe.optim, warmup_epochs=2))


def resnet18_nano() -> Recipe:
    """A narrow ResNet-18, the convolutional baseline."""
    return replace(vit_nano(), model="diag_resnet18_nano", model_args={}, epochs=15)
