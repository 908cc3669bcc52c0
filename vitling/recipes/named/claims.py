"""The five papers' claims in miniature: models of about 0.2 M parameters, trained with the same settings, on images of 32 pixels.

`vitling study` compares them at equal wall time, with a budget of a minute; docs/results.md has the results. They are smaller than the families' nano models, so that a minute on one CPU core is more than a dozen epochs of two
thousand images. All rows share one light training: in so short a time, strong augmentation only slows learning.
"""

from vitling.recipes.named import yardsticks
from vitling.recipes.schema import Recipe, replace

_SIZE = dict(embed_dim=64, depth=4, num_heads=4)


def vit() -> Recipe:
    """Plain ViT: 4-pixel patches, learnt positions, class token."""
    return replace(yardsticks.vit_nano(), model_args=dict(patch_size=4, **_SIZE))


def resnet18() -> Recipe:
    """The diagnosis paper's ResNet-18, narrow, with a 3x3 stem."""
    return replace(vit(), model="diag_resnet18_nano", model_args=dict(width=8))


def resnet18_imagenet_stem() -> Recipe:
    """timm's ResNet-18 as it is: its stem leaves one pixel of 32, a weak baseline."""
    return replace(vit(), model="resnet18", model_args={})


def dhvt() -> Recipe:
    """DHVT: SOPE, DAFF and head tokens."""
    return replace(vit(), model="dhvt_nano", model_args=_SIZE)


def dhvt_no_sope() -> Recipe:
    """DHVT with plain patches and positions in place of SOPE."""
    return replace(dhvt(), model_args=dict(_SIZE, sope=False, abs_pos_embed=True))


def dhvt_no_daff() -> Recipe:
    """DHVT with a plain MLP in place of DAFF."""
    return replace(dhvt(), model_args=dict(_SIZE, daff=False))


def dhvt_no_head_tokens() -> Recipe:
    """DHVT with plain attention."""
    return replace(dhvt(), model_args=dict(_SIZE, head_tokens=False))


def t2t() -> Recipe:
    """T2T-ViT: tokens from overlapping patches, twice re-structured."""
    return replace(vit(), model="t2t_vit_nano", model_args=_SIZE)


def t2t_plain_patches() -> Recipe:
    """T2T-ViT's backbone on plain 4-pixel patches, with more blocks in place of the front end's weights."""
    return replace(vit(), model="t2t_vit_14_wo_t2t", model_args=dict(_SIZE, depth=8, patch_size=4, mlp_ratio=2))


def lvvit_plain() -> Recipe:
    """LV-ViT's blocks with single-convolution patches, plain residuals and no label for tokens."""
    plain = dict(stem_kernels=[], stem_strides=[], skip_lam=1.0, return_dense=False)
    return replace(vit(), model="lvvit_nano", model_args=dict(_SIZE, **plain))


def lvvit_stem() -> Recipe:
    """LV-ViT with its convolutional stem and scaled residuals."""
    return replace(lvvit_plain(), model_args=dict(_SIZE, stem_width=32, return_dense=False))


def lvvit_token_labels() -> Recipe:
    """LV-ViT whole: stem, scaled residuals and token labels from a small CNN trained first, within the same time."""
    return replace(
        lvvit_stem(), model_args=dict(_SIZE, stem_width=32), method="token_labeling", method_args=dict(relabel="auto")
    )


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
        method_args=dict(relabel="auto", agent="resnet9_nano", agent_args=dict(width=8), mutual_weight=2.0),
        ema_decay=0.99,
    )
