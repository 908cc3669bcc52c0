"""The five papers' claims in miniature: nano models of about equal size, trained alike, on small images.

`vitling study claims/vit claims/dhvt ... --data DATA --budget 2m` compares them at equal wall time; docs/results.md has what
came out. All rows share one light training: at this scale and these minutes, strong augmentation only slows learning.
"""

from vitling.recipe import Recipe, replace
from vitling.recipes import yardsticks


def vit() -> Recipe:
    """Plain ViT: 4-pixel patches, learnt positions, class token."""
    return yardsticks.vit_nano()


def resnet18() -> Recipe:
    """The diagnosis paper's ResNet-18, narrow, with a 3x3 stem."""
    return replace(vit(), model="diag_resnet18_nano", model_args={})


def resnet18_imagenet_stem() -> Recipe:
    """timm's ResNet-18 as it is: its stem leaves one pixel of 32, a weak yardstick."""
    return replace(vit(), model="resnet18", model_args={})


def dhvt() -> Recipe:
    """DHVT: SOPE, DAFF and head tokens."""
    return replace(vit(), model="dhvt_nano", model_args={})


def dhvt_no_sope() -> Recipe:
    """DHVT with plain patches and positions in place of SOPE."""
    return replace(dhvt(), model_args=dict(sope=False, abs_pos_embed=True))


def dhvt_no_daff() -> Recipe:
    """DHVT with a plain MLP in place of DAFF."""
    return replace(dhvt(), model_args=dict(daff=False))


def dhvt_no_head_tokens() -> Recipe:
    """DHVT with plain attention."""
    return replace(dhvt(), model_args=dict(head_tokens=False))


def t2t() -> Recipe:
    """T2T-ViT: tokens from overlapping patches, twice re-structured."""
    return replace(vit(), model="t2t_vit_nano", model_args={})


def t2t_plain_patches() -> Recipe:
    """T2T-ViT's backbone on plain 4-pixel patches."""
    size = dict(patch_size=4, embed_dim=96, depth=10, num_heads=3, mlp_ratio=2)
    return replace(vit(), model="t2t_vit_14_wo_t2t", model_args=size)


def lvvit_plain() -> Recipe:
    """LV-ViT's size with single-convolution patches, plain residuals and no label for tokens."""
    return replace(
        vit(), model="lvvit_nano", model_args=dict(stem_kernels=[], stem_strides=[], skip_lam=1.0, return_dense=False)
    )


def lvvit_stem() -> Recipe:
    """LV-ViT with its convolutional stem and scaled residuals."""
    return replace(lvvit_plain(), model_args=dict(return_dense=False))


def lvvit_token_labels() -> Recipe:
    """LV-ViT whole: stem, scaled residuals and token labels from a small CNN trained first, within the same time."""
    return replace(lvvit_plain(), model_args={}, method="token_labeling", method_args=dict(relabel="auto"))


def joint() -> Recipe:
    """The plain ViT with its agent CNN, each with its own weights."""
    return replace(
        vit(), method="bootstrap", method_args=dict(label_smoothing=0.1, feature_weight=0.0, mutual_weight=2.0)
    )


def shared() -> Recipe:
    """The plain ViT with an agent that borrows its weights."""
    return replace(joint(), method_args={**joint().method_args, "share": True})


def combination() -> Recipe:
    """What none of the papers tried: DHVT, an agent, token labels and averaged weights."""
    return replace(
        dhvt(),
        method="token_bootstrap",
        method_args=dict(relabel="auto", agent="resnet9_nano", mutual_weight=2.0),
        ema_decay=0.99,
    )
