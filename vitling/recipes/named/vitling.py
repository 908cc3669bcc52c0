"""The house recipe: the best accuracy per minute that we know on small data. `vitling train DATA` starts from it."""

from vitling.recipes.schema import Augment, Optim, Recipe


def small() -> Recipe:
    """A small hybrid ViT with Muon and light augmentation; docs/results.md has what each ingredient brings."""
    return Recipe(
        model="hybrid_vit_nano",
        # In a few minutes one block is better than none or two, and a convolution in its MLP adds nothing.
        model_args=dict(depth=1, conv_mlp=False),
        method_args=dict(label_smoothing=0.1),
        data="",
        epochs=100,
        batch_size=128,
        augment=Augment(crop="pad", hflip=0.5),
        # Orthogonal steps are all of one size, so the rate may be high; what little time there is warms up for a tenth.
        optim=Optim(name="muon", lr=0.01, momentum=0.95, betas=(0.9, 0.95), weight_decay=0.05, warmup_epochs=10),
    )
