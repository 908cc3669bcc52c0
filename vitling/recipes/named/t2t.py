"""T2T-ViT: every variant on ImageNet, what Tables 2 to 7 train as far as it can be rebuilt, transfer to CIFAR, and a nano.

Paper: Yuan et al. 2021, "Tokens-to-Token ViT". Settings are the release's. Tables 2 to 4, 6 and 7 share rows; a recipe stands for all of
them. Not here: ViT-Dense (Table 6), whose sizes fit no network, the ghosted ResNet, which has no published form, and the
distilled rows of Table 4, whose teacher is not named. ImageNet cannot be downloaded: give its folder as data.
"""

from vitling.recipes.schema import Augment, Optim, Recipe, replace


def _imagenet(model: str, *, lr: float = 5e-4, weight_decay: float = 0.05) -> Recipe:
    return Recipe(
        model=model,
        model_args=dict(drop_path_rate=0.1),
        method_args=dict(mixup=0.8, cutmix=1.0, label_smoothing=0.1),
        data="imagenet",
        img_size=224,
        fit="crop",
        test_crop=0.9,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        epochs=310,
        batch_size=512,
        augment=Augment(crop="resized", hflip=0.5, randaugment="rand-m9-mstd0.5-inc1", erase=0.25),
        optim=Optim(lr=lr, weight_decay=weight_decay, warmup_epochs=10, cooldown_epochs=10, schedule_per="epoch"),
        ema_decay=0.99996,
        ema_warmup=False,
    )


# -- Tables 1 to 4: T2T-ViT of all sizes -------------------------------------------------------------------------------


def imagenet_7() -> Recipe:
    """T2T-ViT-7. Paper: 71.7 (Table 4)."""
    return _imagenet("t2t_vit_7", lr=1e-3, weight_decay=0.03)


def imagenet_10() -> Recipe:
    """T2T-ViT-10, which only the release has: 75.2."""
    return _imagenet("t2t_vit_10", lr=1e-3, weight_decay=0.03)


def imagenet_12() -> Recipe:
    """T2T-ViT-12. Paper: 76.5 (Table 4)."""
    return _imagenet("t2t_vit_12", lr=1e-3, weight_decay=0.03)


def imagenet_14() -> Recipe:
    """T2T-ViT-14. Paper: 81.5 (Tables 2, 3, 6 and 7)."""
    return _imagenet("t2t_vit_14")


def imagenet_14_384() -> Recipe:
    """T2T-ViT-14 at 384 pixels, from scratch. Paper: 83.3 (Table 2)."""
    return replace(imagenet_14(), img_size=384)


def imagenet_19() -> Recipe:
    """T2T-ViT-19. Paper: 81.9 (Table 3)."""
    return _imagenet("t2t_vit_19", weight_decay=0.065)


def imagenet_24() -> Recipe:
    """T2T-ViT-24. Paper: 82.3 (Tables 2 and 3)."""
    return _imagenet("t2t_vit_24", weight_decay=0.065)


def imagenet_t_14() -> Recipe:
    """T2T-ViT_t-14, with transformers in the T2T module. Paper: 81.7 (Tables 3 and 7)."""
    return _imagenet("t2t_vit_t_14")


def imagenet_t_19() -> Recipe:
    """T2T-ViT_t-19. Paper: 82.2 (Table 3); the released file: 82.4."""
    return _imagenet("t2t_vit_t_19", weight_decay=0.065)


def imagenet_t_24() -> Recipe:
    """T2T-ViT_t-24. Paper: 82.6 (Table 3)."""
    return _imagenet("t2t_vit_t_24", weight_decay=0.065)


# -- Tables 2 to 4 and 6: what it is compared with, same training ------------------------------------------------------


def imagenet_vit_s16() -> Recipe:
    """ViT-S/16 of the paper. Paper: 78.1 (Tables 2 and 6)."""
    return _imagenet("vit_s16")


def imagenet_vit_b16() -> Recipe:
    """ViT-B/16. Paper: 79.8 (Table 2)."""
    return _imagenet("vit_base_patch16_224", weight_decay=0.065)


def imagenet_vit_l16() -> Recipe:
    """ViT-L/16. Paper: 81.1 (Table 2)."""
    return _imagenet("vit_large_patch16_224", weight_decay=0.065)


def imagenet_resnet50() -> Recipe:
    """ResNet-50 trained as T2T-ViT is. Paper: 79.1 (Tables 3 and 6)."""
    return _imagenet("resnet50")


def imagenet_resnet101() -> Recipe:
    """ResNet-101 trained as T2T-ViT is. Paper: 79.9 (Table 3)."""
    return _imagenet("resnet101")


def imagenet_resnet152() -> Recipe:
    """ResNet-152 trained as T2T-ViT is. Paper: 80.8 (Table 3)."""
    return _imagenet("resnet152")


def imagenet_mobilenet_v1() -> Recipe:
    """MobileNetV1 trained as T2T-ViT is. Paper: 70.8 (Table 4)."""
    return _imagenet("mobilenetv1_100", lr=1e-3, weight_decay=0.03)


def imagenet_mobilenet_v2() -> Recipe:
    """MobileNetV2 trained as T2T-ViT is. Paper: 72.8 (Table 4)."""
    return _imagenet("mobilenetv2_100", lr=1e-3, weight_decay=0.03)


def imagenet_mobilenet_v2_14() -> Recipe:
    """MobileNetV2, 1.4 times as wide, trained as T2T-ViT is. Paper: 75.6 (Table 4)."""
    return _imagenet("mobilenetv2_140", lr=1e-3, weight_decay=0.03)


def imagenet_densenet201() -> Recipe:
    """DenseNet-201 trained as T2T-ViT is. Paper: 77.5 (Table 6)."""
    return replace(_imagenet("densenet201"), model_args={})  # has no branches to drop


def imagenet_wide_resnet18() -> Recipe:
    """ResNet-18, 1.5 times as wide, trained as T2T-ViT is. Paper: 78.0 (Table 6)."""
    recipe = _imagenet("resnet18")
    return replace(recipe, model_args=dict(recipe.model_args, channels=[96, 192, 384, 768]))


def imagenet_senet50() -> Recipe:
    """SE-ResNet-50 trained as T2T-ViT is. Paper: 80.3 (Table 6)."""
    return _imagenet("seresnet50")


def imagenet_resnext50() -> Recipe:
    """ResNeXt-50 trained as T2T-ViT is. Paper: 79.9 (Table 6)."""
    return _imagenet("resnext50_32x4d")


# -- Table 6: from CNN to ViT ------------------------------------------------------------------------------------------


def imagenet_vit_s16_deep_narrow() -> Recipe:
    """ViT-DN: 16 blocks of width 384. Paper: 79.0."""
    return _imagenet("vit_s16_deep_narrow")


def imagenet_vit_s16_shallow_wide() -> Recipe:
    """ViT-SW: 4 blocks of width 1,024, all else as in ViT-S/16. Paper: 69.9."""
    recipe = _imagenet("vit_s16")
    return replace(recipe, model_args=dict(recipe.model_args, embed_dim=1024, depth=4))


def imagenet_vit_s16_se() -> Recipe:
    """ViT-SE: channels gated. Paper: 78.4."""
    return _imagenet("vit_s16_se")


def imagenet_vit_s16_resnext() -> Recipe:
    """ViT-ResNeXt: 32 heads. Paper: 78.0."""
    return _imagenet("vit_s16_resnext")


def imagenet_vit_s16_ghost() -> Recipe:
    """ViT-Ghost: half of the heads are cheap copies. Paper: 73.7."""
    return _imagenet("vit_s16_ghost")


def imagenet_14_wide() -> Recipe:
    """T2T-ViT-Wide: four blocks of width 768. Paper: 77.9 (Table 6) and 78.8 (Table 7)."""
    return _imagenet("t2t_vit_14_wide")


def imagenet_dense() -> Recipe:
    """T2T-ViT-Dense: blocks append channels. Paper: 80.6."""
    return _imagenet("t2t_vit_dense")


def imagenet_14_se() -> Recipe:
    """T2T-ViT-SE: channels gated. Paper: 81.6."""
    return _imagenet("t2t_vit_14_se")


def imagenet_14_resnext() -> Recipe:
    """T2T-ViT-ResNeXt: 32 heads. Paper: 81.5."""
    return _imagenet("t2t_vit_14_resnext")


def imagenet_16_ghost() -> Recipe:
    """T2T-ViT-Ghost: half of the heads are cheap copies. Paper: 79.5."""
    return _imagenet("t2t_vit_16_ghost")


# -- Table 7: the T2T module -------------------------------------------------------------------------------------------


def imagenet_14_without_t2t() -> Recipe:
    """T2T-ViT-14 with plain patches. Paper: 79.5."""
    return _imagenet("t2t_vit_14_wo_t2t")


def imagenet_c_14() -> Recipe:
    """T2T-ViT_c-14, with three convolutions for the T2T module. Paper: 80.8."""
    return _imagenet("t2t_vit_c_14")


# -- Table 5: transfer to CIFAR ----------------------------------------------------------------------------------------


def _transfer(data: str, model: str, embedding: str, init: str) -> Recipe:
    """60 epochs of SGD; all but the classifier at a hundredth of its rate, and what the release leaves out of its groups fixed."""
    return Recipe(
        model=model,
        model_args=dict(drop_path_rate=0.1),
        init=init,
        freeze=("norm.*", "cls_token"),  # the sinusoid is fixed by itself
        data=data,
        img_size=224,
        interpolation="bilinear",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        epochs=60,
        batch_size=64,
        augment=Augment(crop="pad", crop_padding=0.125, hflip=0.5),  # after the images are enlarged
        optim=Optim(
            name="momentum",
            lr=0.05,
            weight_decay=5e-4,
            decay_all=True,
            min_lr=2e-4,
            warmup_epochs=0,
            schedule_per="epoch",
            lr_factors={f"{embedding}.*": 0.01, "blocks.*": 0.01},
        ),
    )


def cifar10_14() -> Recipe:
    """T2T-ViT-14 from runs/t2t_vit_14. Paper: 97.5; the release's own page: 98.3."""
    return _transfer("cifar10", "t2t_vit_14", "tokens_to_token", "runs/t2t_vit_14")


def cifar10_19() -> Recipe:
    """T2T-ViT-19 from runs/t2t_vit_19. Paper: 98.3."""
    return _transfer("cifar10", "t2t_vit_19", "tokens_to_token", "runs/t2t_vit_19")


def cifar10_vit_s16() -> Recipe:
    """ViT-S/16 from runs/vit_s16. Paper: 97.1."""
    return _transfer("cifar10", "vit_s16", "patch_embed", "runs/vit_s16")


def cifar100_14() -> Recipe:
    """T2T-ViT-14 from runs/t2t_vit_14. Paper: 88.4."""
    return replace(cifar10_14(), data="cifar100")


def cifar100_19() -> Recipe:
    """T2T-ViT-19 from runs/t2t_vit_19. Paper: 89.0."""
    return replace(cifar10_19(), data="cifar100")


def cifar100_vit_s16() -> Recipe:
    """ViT-S/16 from runs/vit_s16. Paper: 87.1."""
    return replace(cifar10_vit_s16(), data="cifar100")


# -- small images ------------------------------------------------------------------------------------------------------


def nano() -> Recipe:
    """T2T-ViT of under a million parameters for 32-pixel images."""
    return Recipe(
        model="t2t_vit_nano",
        method_args=dict(label_smoothing=0.1),
        data="cifar100",
        epochs=100,
        batch_size=64,
        optim=Optim(lr=1e-3, warmup_epochs=5),
    )
