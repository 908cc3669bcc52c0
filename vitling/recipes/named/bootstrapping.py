"""Bootstrapping ViTs (Zhang et al. 2022): what Tables 1, 3, 4 and 5 train, and the same at a size for a CPU.

Table 2 is the sizes of boot_vit_small (S) and boot_vit_base (B) and of their agents: nothing to train. Where paper and release disagree, the release
is followed, its initialisation included. Paper numbers are top-1 of the last epoch, without a validation split; ours come
from nine tenths of the training images, of a part of ImageNet from nine tenths of that part. ImageNet cannot be downloaded: give its folder as data.
"""

from collections.abc import Callable
from typing import Any

from vitling.recipes.schema import Augment, Optim, Recipe, replace

_ADAMW = Optim(
    lr=1e-3, weight_decay=0.05, decay_all=True, warmup_epochs=0, min_lr=0.0, schedule_per="epoch", clip_grad=0.1
)
_SGD = replace(_ADAMW, name="sgd", lr=0.05, weight_decay=5e-4, momentum=0.0, clip_grad=0.0)
_OFFICIAL = dict(init="official")

# -- Table 1, CIFAR-100 ------------------------------------------------------------------------------------------------


def cifar100_vit_s() -> Recipe:
    """ViT-S from scratch, images enlarged to 224 pixels. Paper: 61.25 (Tables 1 and 4)."""
    return Recipe(
        model="boot_vit_small",
        model_args=_OFFICIAL,
        data="cifar100",
        img_size=224,
        interpolation="bilinear",
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2023, 0.1994, 0.2010),
        epochs=240,
        batch_size=64,
        # moved at 32 pixels, and enlarged afterwards
        augment=Augment(crop="pad", crop_padding=0.125, crop_at="original", interpolation="bilinear", hflip=0.5),
        optim=_ADAMW,
    )


def cifar100_vit_s_sam() -> Recipe:
    """ViT-S with sharpness-aware minimisation. Paper: 62.60."""
    return replace(cifar100_vit_s(), optim=replace(_ADAMW, sam_rho=0.1, clip_grad=0.0))


def cifar100_vit_s_sparse() -> Recipe:
    """ViT-S with entmax attention. Paper: 62.29."""
    return replace(cifar100_vit_s(), model_args=dict(_OFFICIAL, attention="entmax"))


def cifar100_vit_b() -> Recipe:
    """ViT-B from scratch. Paper: 53.07."""
    return replace(cifar100_vit_s(), model="boot_vit_base")


def cifar100_vit_b_sam() -> Recipe:
    """ViT-B with sharpness-aware minimisation. Paper: 58.18."""
    return replace(cifar100_vit_s_sam(), model="boot_vit_base")


def cifar100_vit_b_sparse() -> Recipe:
    """ViT-B with entmax attention. Paper: 57.22 (the released file holds ViT-S's sizes by mistake)."""
    return replace(cifar100_vit_s_sparse(), model="boot_vit_base")


def cifar100_vit_s_pretrained() -> Recipe:
    """ViT-S fine-tuned from a run of bootstrapping/imagenet_vit_s in runs/imagenet_vit_s. Paper: 80.91."""
    return replace(cifar100_vit_s(), init="runs/imagenet_vit_s")


def cifar100_vit_b_pretrained() -> Recipe:
    """ViT-B fine-tuned from DeiT-S, which has the same sizes. Paper: 84.95."""
    return replace(cifar100_vit_b(), init="timm/deit_small_patch16_224.fb_in1k")


def cifar100_agent_s() -> Recipe:
    """Agent-S (res-like) alone. Paper: 74.62 in Table 1, 74.78 in Table 5."""
    return replace(cifar100_vit_s(), model="agent_small_res", optim=replace(_ADAMW, clip_grad=0.0))


def cifar100_agent_b() -> Recipe:
    """Agent-B (res-like) alone. Paper: 74.78."""
    return replace(cifar100_agent_s(), model="agent_base_res")


def cifar100_resnet50() -> Recipe:
    """timm's ResNet-50 with the release's SGD, which has no momentum. Paper: 77.57."""
    return replace(cifar100_vit_s(), model="resnet50", model_args={}, optim=_SGD)


def cifar100_efficientnet_b2() -> Recipe:
    """timm's EfficientNet-B2 with the release's SGD. Paper: 75.55."""
    return replace(cifar100_resnet50(), model="efficientnet_b2")


def cifar100_vit_s_joint() -> Recipe:
    """ViT-S with its res-like agent, each with its own weights. Paper: 76.19, agent 74.06 (Tables 1, 4 and 5)."""
    return replace(
        cifar100_vit_s(),
        method="bootstrap",
        method_args=dict(agent_args=_OFFICIAL),
        optim=replace(_ADAMW, clip_grad=0.0),
    )


def cifar100_vit_b_joint() -> Recipe:
    """ViT-B with its res-like agent. Paper: 77.83, agent 76.57."""
    return replace(cifar100_vit_s_joint(), model="boot_vit_base")


def cifar100_vit_s_shared() -> Recipe:
    """ViT-S and its agent with shared weights and aligned gradients (Algorithm 1). Paper: 75.50, agent 74.06."""
    return _with(cifar100_vit_s_joint(), share=True)


def cifar100_vit_b_shared() -> Recipe:
    """ViT-B and its agent with shared weights and aligned gradients. Paper: 75.71, agent 74.11."""
    return replace(cifar100_vit_s_shared(), model="boot_vit_base")


def cifar100_vit_s_shared_released() -> Recipe:
    """Shared weights as the released code trains them: without any alignment."""
    return _with(cifar100_vit_s_shared(), align="none")


# -- Tables 4 and 5 ----------------------------------------------------------------------------------------------------


def cifar100_vit_s_kd_only() -> Recipe:
    """Table 4: the agent's predictions but not its features. Paper: 67.16."""
    return _with(cifar100_vit_s_joint(), feature_weight=0.0)


def cifar100_vit_s_features_only() -> Recipe:
    """Table 4: the agent's features but not its predictions. Paper: 74.94."""
    return _with(cifar100_vit_s_joint(), mutual_weight=0.0)


def cifar100_vit_s_features_only_no_decay() -> Recipe:
    """Table 4: features only, their weight constant. Paper: 73.59."""
    return _with(cifar100_vit_s_features_only(), feature_decay=False)


def cifar100_vit_s_features_only_2d() -> Recipe:
    """Table 4: features only, matched by two-dimensional pooling. Paper: 71.06."""
    return _with(cifar100_vit_s_features_only(), feature_pool="2d")


def cifar100_vit_s_joint_no_decay() -> Recipe:
    """Table 4: predictions and features, the latter with constant weight. Paper: 75.15."""
    return _with(cifar100_vit_s_joint(), feature_decay=False)


def cifar100_vit_s_joint_base_agent() -> Recipe:
    """Table 5: with the base agent, which keeps the ViT's grid. Paper: 73.18, agent 73.79."""
    return _with(cifar100_vit_s_joint(), agent="agent_small")


def cifar100_agent_s_base() -> Recipe:
    """Table 5: the base agent alone. Paper: 72.73."""
    return replace(cifar100_agent_s(), model="agent_small")


# -- the other data sets -----------------------------------------------------------------------------------------------


def imagenet_vit_s() -> Recipe:
    """ViT-S on all of ImageNet, from which Table 1's pre-trained row starts."""
    return replace(
        cifar100_vit_s(),
        data="",
        fit="crop",
        test_crop=0.875,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        augment=Augment(crop="resized", crop_scale=(0.6, 1.0), interpolation="bilinear", hflip=0.5),
    )


def vit_nano() -> Recipe:
    """A ViT of 0.6 M parameters for 32-pixel images, alone: the baseline of the two below."""
    return Recipe(
        model="boot_vit_nano", data="cifar100", epochs=100, batch_size=64, optim=Optim(lr=1e-3, warmup_epochs=5)
    )


def vit_nano_joint() -> Recipe:
    """The nano ViT with its agent, each with its own weights."""
    return replace(vit_nano(), method="bootstrap")


def vit_nano_shared() -> Recipe:
    """The nano ViT and its agent with shared weights."""
    return _with(vit_nano_joint(), share=True)


def _with(recipe: Recipe, **method_args: Any) -> Recipe:
    return replace(recipe, method_args={**recipe.method_args, **method_args})


def _on_cifar10(row: str, accuracy: str) -> Callable[[], Recipe]:
    def recipe() -> Recipe:
        return replace(globals()[f"cifar100_{row}"](), data="cifar10", mean=(0.4914, 0.4822, 0.4465))

    recipe.__doc__ = f"The recipe cifar100_{row} on CIFAR-10. Paper: {accuracy}."
    return recipe


def _on_imagenet(row: str, percent: int, accuracy: str) -> Callable[[], Recipe]:
    def recipe() -> Recipe:
        images = {key: getattr(imagenet_vit_s(), key) for key in ("data", "fit", "test_crop", "mean", "std", "augment")}
        row_recipe = globals()[f"cifar100_{row}"]()
        return replace(row_recipe, **images, fraction=percent / 100, fraction_rule="bootstrapping")

    recipe.__doc__ = f"Table 3: the recipe cifar100_{row} on {percent} % of ImageNet. Paper: {accuracy}."
    return recipe


# fmt: off
_TABLE_1_CIFAR10 = dict(
    efficientnet_b2="94.14", resnet50="94.92", agent_s="94.18", agent_b="94.83", vit_s="87.32", vit_s_sam="87.77",
    vit_s_sparse="87.43", vit_b="79.24", vit_b_sam="86.57", vit_b_sparse="83.87", vit_s_pretrained="95.70",
    vit_b_pretrained="97.17", vit_s_joint="95.14, agent 94.90", vit_b_joint="95.00, agent 95.06",
    vit_s_shared="93.72, agent 93.22", vit_b_shared="93.34, agent 92.66",
)
_PERCENT = (1, 5, 10, 50)
_TABLE_3 = dict(
    resnet50=     ("not given", "35.43", "50.86", "70.05"),
    agent_b=      ("not given", "35.28", "47.46", "68.13"),
    vit_b=        ("not given", "16.60", "28.11", "63.40"),
    vit_b_sam=    ("not given", "16.67", "28.66", "64.37"),
    vit_b_sparse= ("not given", "10.39", "28.92", "66.01"),
    vit_b_joint=  ("not given", "36.01", "49.73", "71.36"),
    vit_b_shared= ("not given", "33.06", "45.75", "66.48"),
)
# fmt: on

for _row, _accuracy in _TABLE_1_CIFAR10.items():
    globals()[f"cifar10_{_row}"] = _on_cifar10(_row, _accuracy)
for _row, _accuracies in _TABLE_3.items():
    for _percent, _accuracy in zip(_PERCENT, _accuracies, strict=True):
        globals()[f"imagenet_{_percent}pct_{_row}"] = _on_imagenet(_row, _percent, _accuracy)
