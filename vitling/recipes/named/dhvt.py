"""DHVT (Lu et al. 2022): its rows on CIFAR-100, DomainNet and ImageNet, and the ablations of Tables 5 and 6.

The settings are the release's: the learning rate scales with the batch, the schedule lags one epoch, every image is shown in
three views. The paper reports the best epoch of the best of several seeds on the test set; ours is chosen on validation data.
"""

from vitling.recipes.schema import Augment, Optim, Recipe, replace

_AUGMENT = Augment(
    crop="pad",
    crop_padding=0.125,
    interpolation="bicubic",
    randaugment="rand-m9-mstd0.5-inc1",
    erase=0.25,
    repeats=3,
)
_OPTIM = Optim(lr=1e-3, lr_per_batch=512, warmup_epochs=5, schedule_per="epoch", schedule_lag_epochs=1)


def cifar100_tiny_patch4() -> Recipe:
    """DHVT-T/4 on CIFAR-100, 300 epochs. Paper: 80.93 (best of 5)."""
    return Recipe(
        model="dhvt_tiny_cifar_patch4",
        model_args=dict(drop_path_rate=0.1),
        method_args=dict(mixup=0.8, cutmix=1.0, label_smoothing=0.1),
        data="cifar100",
        mean=(0.485, 0.456, 0.406),  # ImageNet's, as released
        std=(0.229, 0.224, 0.225),
        epochs=300,
        batch_size=512,
        augment=_AUGMENT,
        optim=_OPTIM,
    )


def cifar100_small_patch4() -> Recipe:
    """DHVT-S/4 on CIFAR-100. Paper: 82.91."""
    return replace(cifar100_tiny_patch4(), model="dhvt_small_cifar_patch4", batch_size=256)


def cifar100_tiny_patch2() -> Recipe:
    """DHVT-T/2 on CIFAR-100. Paper: 83.54."""
    return replace(cifar100_tiny_patch4(), model="dhvt_tiny_cifar_patch2")


def cifar100_small_patch2() -> Recipe:
    """DHVT-S/2 on CIFAR-100. Paper: 85.68."""
    return replace(cifar100_tiny_patch4(), model="dhvt_small_cifar_patch2", batch_size=256)


def domainnet_tiny() -> Recipe:
    """DHVT-T on a DomainNet domain given as a folder or list. Paper: ClipArt 71.73, Painting 63.34, Sketch 66.60."""
    return replace(
        cifar100_tiny_patch4(),
        model="dhvt_tiny_domain_patch16",
        data="",
        img_size=224,
        fit="crop",
        test_crop=0.875,
        batch_size=256,
        augment=replace(_AUGMENT, crop="resized"),
        optim=replace(_OPTIM, warmup_epochs=20),
    )


def domainnet_small() -> Recipe:
    """DHVT-S on a DomainNet domain. Paper: ClipArt 73.89, Painting 66.08, Sketch 68.72."""
    return replace(domainnet_tiny(), model="dhvt_small_domain_patch16", batch_size=128)


def imagenet_tiny() -> Recipe:
    """DHVT-T on ImageNet. Paper: 76.5."""
    return replace(
        domainnet_tiny(),
        model="dhvt_tiny_imagenet_patch16",
        data="imagenet",
        batch_size=512,
        optim=replace(_OPTIM, lr=5e-4, warmup_epochs=10),
    )


def imagenet_small() -> Recipe:
    """DHVT-S on ImageNet. Paper: 82.3."""
    return replace(imagenet_tiny(), model="dhvt_small_imagenet_patch16")


def _ablation(*, abs_pos_embed: bool, sope: bool, daff: bool, head_tokens: bool) -> Recipe:
    switches = dict(abs_pos_embed=abs_pos_embed, sope=sope, daff=daff, head_tokens=head_tokens)
    recipe = cifar100_tiny_patch4()
    return replace(recipe, model_args={**recipe.model_args, **switches}, optim=replace(recipe.optim, warmup_epochs=10))


def table5_pos() -> Recipe:
    """Table 5, DeiT-T with four heads and absolute positions. Paper: 67.59 (mean of 4)."""
    return _ablation(abs_pos_embed=True, sope=False, daff=False, head_tokens=False)


def table5_plain() -> Recipe:
    """Table 5, without positions. Paper: 58.72."""
    return _ablation(abs_pos_embed=False, sope=False, daff=False, head_tokens=False)


def table5_pos_sope() -> Recipe:
    """Table 5, positions and SOPE. Paper: 73.68."""
    return _ablation(abs_pos_embed=True, sope=True, daff=False, head_tokens=False)


def table5_sope() -> Recipe:
    """Table 5, SOPE alone. Paper: 69.65."""
    return _ablation(abs_pos_embed=False, sope=True, daff=False, head_tokens=False)


def table5_pos_daff() -> Recipe:
    """Table 5, positions and DAFF. Paper: 79.47."""
    return _ablation(abs_pos_embed=True, sope=False, daff=True, head_tokens=False)


def table5_daff() -> Recipe:
    """Table 5, DAFF alone. Paper: 79.75."""
    return _ablation(abs_pos_embed=False, sope=False, daff=True, head_tokens=False)


def table5_pos_sope_daff() -> Recipe:
    """Table 5, positions, SOPE and DAFF. Paper: 80.17."""
    return _ablation(abs_pos_embed=True, sope=True, daff=True, head_tokens=False)


def table5_sope_daff() -> Recipe:
    """Table 5, SOPE and DAFF. Paper: 80.35."""
    return _ablation(abs_pos_embed=False, sope=True, daff=True, head_tokens=False)


def table6_head_tokens() -> Recipe:
    """Table 6, DeiT-T with head tokens. Paper: 69.10."""
    return _ablation(abs_pos_embed=True, sope=False, daff=False, head_tokens=True)


def table6_full() -> Recipe:
    """Table 6, all of DHVT-T. Paper: 80.85."""
    return _ablation(abs_pos_embed=False, sope=True, daff=True, head_tokens=True)
