"""LV-ViT and token labeling: what Tables 3 to 9 train, the released sizes, fine-tuning, and a nano for small images.

Paper: Jiang et al. 2021, "All Tokens Matter". Where paper and release disagree, the release is followed: a dense weight of 1 (paper:
0.5), 300 epochs and 10 at the smallest rate, weights averaged over steps. ImageNet cannot be downloaded: give its
folder as data, and first write its label maps to labels/imagenet, as the release makes them: `vitling relabel`, fit=crop and raw_scores
(docs/token_labeling.md has the command). Images are mirrored, changed and only then cropped, and maps follow them as they do in the release.
"""

from typing import Any

from vitling.recipes.schema import Augment, Optim, Recipe, replace

_AUGMENT = Augment(crop="resized", crop_when="last", hflip=0.5, randaugment="rand-m9-mstd0.5-inc1", erase=0.25)
_MAPS = "labels/imagenet"


def _supervised(model: str, **model_args: Any) -> Recipe:
    """Table 2, first column."""
    return Recipe(
        model=model,
        model_args=dict(drop_path_rate=0.1, **model_args),
        method_args=dict(mixup=0.8, cutmix=1.0, label_smoothing=0.1),
        data="imagenet",
        img_size=224,
        fit="crop",
        test_crop=0.9,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        epochs=310,
        batch_size=1024,
        augment=_AUGMENT,
        optim=Optim(
            lr=1e-3, lr_per_batch=1024, weight_decay=0.05, warmup_epochs=5, cooldown_epochs=10, schedule_per="epoch"
        ),
        ema_decay=0.99992,
        ema_warmup=False,
    )


def _relabeled(model: str, **method_args: Any) -> Recipe:
    """Table 2, second column: one label per crop."""
    return replace(
        _supervised(model),
        method="token_labeling",
        method_args=dict(labels=_MAPS, axes="official", label_tokens=False, **method_args),
    )


def _token_labeled(model: str, drop_path_rate: float = 0.1, **method_args: Any) -> Recipe:
    """Table 2, third column: a label for every token, and a larger learning rate."""
    recipe = _supervised(model)
    return replace(
        recipe,
        model_args=dict(drop_path_rate=drop_path_rate),
        method="token_labeling",
        method_args=dict(labels=_MAPS, axes="official", **method_args),
        optim=replace(recipe.optim, lr_per_batch=640),
    )


# -- the released sizes, Table 8 ---------------------------------------------------------------------------------------


def imagenet_t() -> Recipe:
    """LV-ViT-T on ImageNet. Paper: 79.1."""
    return _token_labeled("lvvit_t")


def imagenet_s() -> Recipe:
    """LV-ViT-S on ImageNet. Paper: 83.3 (Tables 3, 6, 7 and 8)."""
    return _token_labeled("lvvit_s")


def imagenet_m() -> Recipe:
    """LV-ViT-M on ImageNet. Paper: 84.0."""
    return replace(_token_labeled("lvvit_m", drop_path_rate=0.2), test_crop=1.0)


def imagenet_l() -> Recipe:
    """LV-ViT-L on ImageNet at 288 pixels, as the paper says; the release's command says 224. Paper: 85.3; tested at 448: 85.9."""
    recipe = _token_labeled("lvvit_l", drop_path_rate=0.3)
    return replace(
        recipe,
        img_size=288,
        test_crop=1.0,
        augment=replace(_AUGMENT, randaugment="rand-n3-m9-mstd0.5-inc1"),
        optim=replace(recipe.optim, lr_per_batch=1024),
    )


# -- fine-tuning -------------------------------------------------------------------------------------------------------


def _finer(recipe: Recipe, init: str, size: int) -> Recipe:
    """The release's setting for S at 384. It does not say how many epochs; the learning rate is constant after the warm-up."""
    return replace(
        recipe,
        init=init,
        img_size=size,
        epochs=30,
        batch_size=512,
        optim=replace(recipe.optim, lr=5e-6, lr_per_batch=0, min_lr=5e-6, weight_decay=1e-8, cooldown_epochs=0),
        ema_decay=0.0,
    )


def imagenet_s_384() -> Recipe:
    """LV-ViT-S fine-tuned at 384 pixels from runs/lvvit_s. Paper: 84.4 (Table 3)."""
    return _finer(imagenet_s(), "runs/lvvit_s", 384)


def imagenet_m_384() -> Recipe:
    """LV-ViT-M fine-tuned at 384 pixels from runs/lvvit_m, as S is. Paper: 85.4."""
    return _finer(imagenet_m(), "runs/lvvit_m", 384)


def imagenet_m_448() -> Recipe:
    """LV-ViT-M fine-tuned at 448 pixels from runs/lvvit_m, as S is."""
    return _finer(imagenet_m(), "runs/lvvit_m", 448)


def imagenet_l_448() -> Recipe:
    """LV-ViT-L fine-tuned at 448 pixels from runs/lvvit_l, as S is. Paper: 86.2."""
    return _finer(imagenet_l(), "runs/lvvit_l", 448)


def imagenet_l_512() -> Recipe:
    """LV-ViT-L fine-tuned at 512 pixels from runs/lvvit_l, as S is."""
    return _finer(imagenet_l(), "runs/lvvit_l", 512)


def imagenet_s_384_from_scratch() -> Recipe:
    """LV-ViT-S trained at 384 pixels from the beginning."""
    return replace(imagenet_s(), img_size=384)


def finetune_s() -> Recipe:
    """LV-ViT-S on other data from runs/lvvit_s, as the release does it: MixToken stays, labels for tokens do not."""
    return replace(
        imagenet_s(),
        init="runs/lvvit_s",
        data="cifar100",
        model_args=dict(drop_path_rate=0.1, max_dense_weight=0.0),
        method_args=dict(labels="truth", dense_weight=0.0),
        batch_size=512,
        optim=replace(imagenet_s().optim, lr=1.6e-3, lr_per_batch=0),
    )


# -- Table 3: from DeiT-S to LV-ViT-S ----------------------------------------------------------------------------------


def table3_baseline() -> Recipe:
    """DeiT-S: 12 blocks, an MLP ratio of 4. Paper: 79.9."""
    return _supervised("lvvit_plain", depth=12, mlp_ratio=4.0)


def table3_16_blocks() -> Recipe:
    """16 blocks. Paper: 81.2."""
    return _supervised("lvvit_plain", mlp_ratio=4.0)


def table3_mlp_ratio_3() -> Recipe:
    """An MLP ratio of 3. Paper: 81.1."""
    return _supervised("lvvit_plain")


def table3_stem() -> Recipe:
    """Four convolutions make the patches. Paper: 82.2 (also in Tables 4, 5 and 9)."""
    return _supervised("lvvit", skip_lam=1.0)


def table3_residual() -> Recipe:
    """Branches divided by 2. Paper: 82.4 (also in Table 5)."""
    return _supervised("lvvit")


def table3_relabeling() -> Recipe:
    """One label per crop, with CutMix. Paper: 82.8 (also in Table 6)."""
    return _relabeled("lvvit", mix_token=False, cutmix=1.0)


def table3_token_labeling() -> Recipe:
    """A label for every token, with MixToken. Paper: 83.3."""
    return imagenet_s()


def table3_resolution_384() -> Recipe:
    """Fine-tuned at 384 pixels. Paper: 84.4."""
    return imagenet_s_384()


# -- Table 4: patch embedding ------------------------------------------------------------------------------------------


def table4_kernels_16() -> Recipe:
    """One convolution. Paper: 81.1."""
    return table3_mlp_ratio_3()


def _stem(kernels: list[int], strides: list[int]) -> Recipe:
    """The last convolution has a kernel of 8, whatever stride is left for it."""
    return _supervised("lvvit", skip_lam=1.0, stem_kernels=kernels, stem_strides=strides, proj_kernel=8)


def table4_kernels_7_8() -> Recipe:
    """Two convolutions. Paper: 81.4."""
    return _stem([7], [2])


def table4_kernels_7_3_8_strides_2_2_4() -> Recipe:
    """Three convolutions, strides 2, 2, 4. Paper: 81.4."""
    return _stem([7, 3], [2, 2])


def table4_kernels_7_3_8() -> Recipe:
    """Three convolutions, strides 2, 1, 8. Paper: 81.9."""
    return _stem([7, 3], [2, 1])


def table4_kernels_7_3_3_8() -> Recipe:
    """Four convolutions, strides 2, 1, 1, 8: LV-ViT's. Paper: 82.2."""
    return table3_stem()


def table4_kernels_7_3_3_8_strides_2_2_1_4() -> Recipe:
    """Four convolutions, strides 2, 2, 1, 4. Paper: 81.5."""
    return _stem([7, 3, 3], [2, 2, 1])


def table4_kernels_7_3_3_3_3_8() -> Recipe:
    """Six convolutions. Paper: 82.2."""
    return _stem([7, 3, 3, 3, 3], [2, 1, 1, 1, 1])


# -- Table 5: residual connection --------------------------------------------------------------------------------------


def table5_residual_1() -> Recipe:
    """X + F(X). Paper: 82.2."""
    return table3_stem()


def table5_residual_half() -> Recipe:
    """X + F(X) / 2. Paper: 82.4."""
    return table3_residual()


def table5_residual_third() -> Recipe:
    """X + F(X) / 3. Paper: 82.4."""
    return _supervised("lvvit", skip_lam=3.0)


# -- Table 6: MixToken and token labeling ------------------------------------------------------------------------------


def table6_mixtoken_token_labeling() -> Recipe:
    """MixToken and a label for every token. Paper: 83.3."""
    return imagenet_s()


def table6_mixtoken_relabeling() -> Recipe:
    """MixToken and one label per crop. Paper: 83.0."""
    return _relabeled("lvvit")


def table6_cutmix_relabeling() -> Recipe:
    """CutMix and one label per crop. Paper: 82.8."""
    return table3_relabeling()


# -- Table 7: augmentation ---------------------------------------------------------------------------------------------


def table7_mixtoken() -> Recipe:
    """MixToken, CutOut and RandAugment. Paper: 83.3."""
    return imagenet_s()


def table7_no_mixtoken() -> Recipe:
    """Without MixToken. Paper: 81.3."""
    return _token_labeled("lvvit_s", mix_token=False)


def table7_mixtoken_mixup() -> Recipe:
    """With Mixup beside MixToken. Paper: 83.1."""
    return _token_labeled("lvvit_s", mixup=0.8)


def table7_no_cutout() -> Recipe:
    """Without CutOut, which is random erasing. Paper: 83.0."""
    return replace(imagenet_s(), augment=replace(_AUGMENT, erase=0.0))


def table7_no_randaugment() -> Recipe:
    """Without RandAugment. Paper: 82.8."""
    return replace(imagenet_s(), augment=replace(_AUGMENT, randaugment=""))


# -- Table 8: sizes ----------------------------------------------------------------------------------------------------


def table8_t() -> Recipe:
    """LV-ViT-T. Paper: 79.1."""
    return imagenet_t()


def table8_s() -> Recipe:
    """LV-ViT-S. Paper: 83.3."""
    return imagenet_s()


def table8_m() -> Recipe:
    """LV-ViT-M. Paper: 84.0."""
    return imagenet_m()


def table8_l() -> Recipe:
    """LV-ViT-L at 288 pixels. Paper: 85.3."""
    return imagenet_l()


# -- Table 9: normalisation --------------------------------------------------------------------------------------------


def table9_layernorm() -> Recipe:
    """LayerNorm. Paper: 82.2."""
    return table3_stem()


def table9_groupnorm_1() -> Recipe:
    """GroupNorm with one group. Paper: 82.2."""
    return _supervised("lvvit", skip_lam=1.0, norm_groups=1)


def table9_groupnorm_2() -> Recipe:
    """GroupNorm with two groups. Paper: 82.2."""
    return _supervised("lvvit", skip_lam=1.0, norm_groups=2)


def table9_groupnorm_3() -> Recipe:
    """GroupNorm with three groups. Paper: 81.9."""
    return _supervised("lvvit", skip_lam=1.0, norm_groups=3)


def table9_groupnorm_6() -> Recipe:
    """GroupNorm with six groups. Paper: 81.8."""
    return _supervised("lvvit", skip_lam=1.0, norm_groups=6)


# -- small images ------------------------------------------------------------------------------------------------------


def nano() -> Recipe:
    """LV-ViT of under a million parameters for 32-pixel images, without token labels: the baseline of the two below."""
    return Recipe(
        model="lvvit_nano",
        method_args=dict(label_smoothing=0.1),
        data="cifar100",
        epochs=100,
        batch_size=64,
        optim=Optim(lr=1e-3, warmup_epochs=5),
    )


def nano_token_labeling() -> Recipe:
    """The nano with labels for its tokens from a small CNN that is trained on the same images first, in one command."""
    return replace(nano(), method="token_labeling", method_args=dict(relabel="auto"))


def nano_relabeling() -> Recipe:
    """The nano with one label per crop from such a CNN."""
    return replace(
        nano_token_labeling(),
        model_args=dict(return_dense=False),
        method_args=dict(relabel="auto", label_tokens=False),
    )
