"""What is known to go wrong: settings that harm each other, and where published weights would serve better."""

from timm.layers import to_2tuple
from torch import nn

from vitling.data.pipeline.preprocessing import SMALL_SIDE
from vitling.methods import find_method
from vitling.models import build_model
from vitling.planning.sizes import largest_patch
from vitling.planning.survey import Survey
from vitling.recipes import Recipe

FEW_PHOTOS = 20_000


def find_conflicts(recipe: Recipe, size: tuple[int, int], *, classes: int, channels: int) -> list[str]:
    """Settings that are known to harm each other, one line each with the row that shows it."""
    lines = find_method(recipe.method).conflicts(recipe)
    model = build_model(recipe.model, num_classes=classes, in_chans=channels, img_size=size, **recipe.model_args)
    stem = getattr(model, "patch_embed", getattr(model, "tokens_to_token", None))
    if stem is None or not hasattr(model, "blocks"):
        return lines  # no ViT: nothing is known to go wrong
    plain, width = not overlaps(model), getattr(model, "embed_dim", model.num_features)
    patch, rule = max(to_2tuple(getattr(stem, "patch_size", size))), largest_patch(min(size))
    if not overlaps(stem) and patch < rule:
        lines.append(
            f"patches of {patch} pixels are small for images of {size[0]} x {size[1]} and help only with a convolutional stem, "
            f"which {recipe.model} has not; take model_args.patch_size={rule}, or model=dhvt_nano (CIFAR-100, patch 4 to 2: "
            "DeiT-T 67.59 to 65.86, DHVT-T 80.93 to 83.54; DHVT paper, table 4)"
        )
    if plain and width >= 384:
        lines.append(
            f"a larger plain ViT is worse on small data, and {recipe.model} is {width} wide; stay at 192 or below, or take "
            "model=dhvt_nano (CIFAR-100: ViT-S 61.25, ViT-B 53.07, Bootstrapping paper, table 1; DeiT-T 67.59, DeiT-S 66.55, DHVT "
            "paper, table 4)"
        )
    if plain and not _has_positions(model):
        lines.append(
            f"without position embeddings {recipe.model} cannot know where a patch lies; drop them only with convolutions "
            "(CIFAR-100, without positions: 67.59 to 58.72, with convolutions 79.47 to 79.75; DHVT paper, table 5)"
        )
    return lines


def overlaps(module: nn.Module) -> bool:
    """Whether neighbouring pixels or tokens meet in it: a convolution or an unfolding wider than its stride."""
    return any(
        max(to_2tuple(part.kernel_size)) > max(to_2tuple(part.stride))
        for part in module.modules()
        if isinstance(part, (nn.Conv2d, nn.Unfold))
    )


def _has_positions(model: nn.Module) -> bool:
    """Whether anything encodes positions: an embedding, a relative bias, a rotation. Those of DHVT's head tokens do not."""
    names = [
        name for name, _ in (*model.named_parameters(), *model.named_buffers()) if not name.endswith("attn.pos_embed")
    ]
    return any("pos" in name or "rel" in name for name in names) or getattr(model, "rope", None) is not None


def pretrained_hint(survey: Survey, recipe: Recipe) -> str:
    """A line where starting from published weights would serve better, else nothing."""
    photographs = survey.channels == 3 and survey.bits == 8 and max(survey.median) > SMALL_SIDE
    if not photographs or survey.images["train"] > FEW_PHOTOS or recipe.init:
        return ""
    return (
        "if these are everyday photographs and published weights may be used, they will serve better than any training from "
        "scratch on so few: add model=vit_tiny_patch16_224 init=timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k optim.lr=1e-4 "
        "(CIFAR-100: the same ViT-S from scratch 61.25, pre-trained 80.91; Bootstrapping paper, table 1)"
    )
