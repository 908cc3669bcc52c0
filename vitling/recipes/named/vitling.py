"""The house recipes: the best accuracy that we know for a time, from a minute on a CPU to hours on a GPU.

`vitling plan`, and `vitling train DATA` without a recipe, take the largest that the time and the machine allow.
"""

from vitling.recipes.schema import Augment, Optim, Recipe, replace

# Orthogonal steps are all of one size, so the rate may be high; what little time there is warms up for a tenth.
MUON = Optim(name="muon", lr=0.01, momentum=0.95, betas=(0.9, 0.95), weight_decay=0.05, warmup_epochs=10)

# From minutes on, Muon overfits and SGD does not. The classifier behind max-pooling steps less than what is below it.
SGD = Optim(
    name="sgd",
    lr=0.2,
    momentum=0.9,
    weight_decay=5e-4,
    decay_all=True,
    schedule="linear",
    warmup_epochs=20,
    warmup_lr=0.002,
    min_lr=0.0,
    lr_factors={"head.*": 1 / 16},
)


def nano() -> Recipe:
    """A convolutional stem and one block, 0.2 M parameters: the best in a minute on a CPU."""
    return Recipe(
        model="hybrid_vit_nano",
        # In so short a time one block is better than none or two, and a convolution in its MLP adds nothing.
        model_args=dict(depth=1, conv_mlp=False),
        method_args=dict(label_smoothing=0.1),
        data="",
        epochs=100,
        batch_size=128,
        # The rate ends at almost 0, so the last epoch is the best there is, and a small validation split does not know better.
        keep="last_good",
        augment=Augment(crop="pad", crop_padding_mode="reflect", hflip=0.5),
        optim=MUON,
    )


def tiny() -> Recipe:
    """A residual stem, a block on more tokens and a convolutional tail, 0.5 M parameters: for minutes on a CPU."""
    return replace(
        nano(),
        model="hybrid_vit_tiny",
        model_args=dict(stem_full_size=True),  # for small images; of photographs the stem takes every second pixel
        optim=SGD,
    )


def mini() -> Recipe:
    """The same, half as wide again, 1 M parameters: for tens of minutes on a CPU."""
    return replace(tiny(), model="hybrid_vit_mini")


def small() -> Recipe:
    """Wider and deeper, 2 M parameters: for an hour on a CPU, or minutes on a GPU."""
    return replace(tiny(), model="hybrid_vit_small", ema_decay=0.998)


def medium() -> Recipe:
    """9 M parameters: for a GPU."""
    return replace(
        small(),
        model="hybrid_vit_medium",
        model_args=dict(stem_full_size=False, drop_path_rate=0.1),  # a plan takes every pixel of small images
        batch_size=256,
        optim=MUON,
    )


def base() -> Recipe:
    """25 M parameters: for tens of thousands of photographs and hours on a GPU."""
    return replace(medium(), model="hybrid_vit_base", ema_decay=0.9995)
