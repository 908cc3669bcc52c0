"""Mixup and CutMix, and the methods that mix: each image is mixed with its partner, the image at the mirrored place in the batch.

Papers: Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization"; Yun et al. 2019, "CutMix: Regularization
Strategy to Train Strong Classifiers with Localizable Features". Boxes, partners and targets are timm's. Deviates: any
batch size, odd ones and one image included, and the given batch is left as it was.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from vitling.errors import UserError, did_you_mean
from vitling.methods.method import Batch, Method
from vitling.methods.partners import Partners
from vitling.validation.values import Range, Share

MODES = ("batch", "pair", "elem")
Alpha = Annotated[float, Range(0, 1000)]  # of a beta distribution; 0 turns the mixing off


class Mix:
    """Mixes a batch of images and turns its labels into soft targets.

    One draw serves the whole `batch`, each `pair` of partners, or each `elem`ent. A draw mixes with probability `prob`;
    where both alphas are positive it is CutMix with probability `switch_prob`. Draws come from torch's global
    generator; `partners` says where the rest of the batch is.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        mixup_alpha: float = 0.8,
        cutmix_alpha: float = 1.0,
        prob: float = 1.0,
        switch_prob: float = 0.5,
        mode: str = "batch",
        label_smoothing: float = 0.1,
    ):
        if mode not in MODES:
            raise UserError(f"unknown mix mode {mode!r}. {did_you_mean(mode, MODES)}")
        if mixup_alpha < 0 or cutmix_alpha < 0:
            raise UserError(f"{mixup_alpha=} and {cutmix_alpha=} must not be negative; 0 turns one off.")
        shares = {"mix_prob": prob, "mix_switch_prob": switch_prob, "label_smoothing": label_smoothing}
        for key, share in shares.items():
            if not 0 <= share <= 1:
                raise UserError(f"method_args.{key}={share} must lie between 0 and 1.")
        self.num_classes = num_classes
        self.mixup_alpha = mixup_alpha
        self.cutmix_alpha = cutmix_alpha
        self.prob = prob
        self.switch_prob = switch_prob if mixup_alpha and cutmix_alpha else float(cutmix_alpha > 0)
        self.mode = mode
        self.label_smoothing = label_smoothing
        self.partners = Partners()

    @property
    def mixes(self) -> bool:
        """Whether it does more than smooth labels."""
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0

    def mix_several(
        self, images: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mixed images, their targets (B, labels) from 0 to 1, smoothed towards a half, and how much each counts.

        Cross-entropy is linear in a target: images of different weights are mixed by what each of them counts.
        """
        share, boxes = self.draw(len(images), *images.shape[-2:])
        images = self.mix_images(images, share, boxes)
        targets = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
        if not self.mixes:
            return images, targets, weights
        own = share.to(targets)
        other = 1 - own
        if weights is not None:
            own, other = own * weights, other * self.partners.mirror(weights)
            weights = own + other
            own, other = (part / weights.clamp(min=1e-12) for part in (own, other))
        return images, targets * own[:, None] + self.partners.mirror(targets) * other[:, None], weights

    def __call__(self, images: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mixed images and their targets (B, num_classes)."""
        share, boxes = self.draw(len(images), *images.shape[-2:])
        return self.mix_images(images, share, boxes), self.mix_labels(labels, share, weights)

    def draw(self, n: int, height: int, width: int) -> tuple[Tensor, Tensor]:
        """The share of itself that each image keeps, (n,), and its CutMix box (top, left, bottom, right), (n, 4).

        An empty box means mixup. With a box the share is the area outside it, so both agree where the border clips it.
        """
        with self.partners.drawing():
            share, boxes = self._draw_batch(self.partners.batch_size(n), height, width)
        return self.partners.own(share), self.partners.own(boxes)

    def _draw_batch(self, n: int, height: int, width: int) -> tuple[Tensor, Tensor]:
        place = torch.arange(n)
        draw_of = {"batch": torch.zeros_like(place), "pair": torch.minimum(place, n - 1 - place), "elem": place}[
            self.mode
        ]
        cut = torch.rand(n) < self.switch_prob
        share = torch.where(cut, _beta(self.cutmix_alpha, n), _beta(self.mixup_alpha, n))
        share[torch.rand(n) >= self.prob] = 1

        size = torch.tensor([height, width])
        extent = ((1 - share[:, None]).sqrt() * size).long()
        centre = (torch.rand(n, 2) * size).long()
        boxes = (
            torch.cat([centre - extent // 2, centre + (extent + 1) // 2], dim=1).clamp(min=0).minimum(size.repeat(2))
        )
        boxes[~cut] = 0
        area = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
        return torch.where(cut, 1 - area / (height * width), share)[draw_of], boxes[draw_of]

    def mix_images(self, images: Tensor, share: Tensor, boxes: Tensor) -> Tensor:
        if not self.mixes:
            return images
        height, width = images.shape[-2:]
        top, left, bottom, right = boxes[..., None, None].unbind(dim=1)  # each (B, 1, 1)
        row, column = torch.arange(height)[:, None], torch.arange(width)
        in_box = (row >= top) & (row < bottom) & (column >= left) & (column < right)
        is_mixup = (bottom == top) | (right == left)
        kept = torch.where(is_mixup, share.view(-1, 1, 1), (~in_box).float())[:, None].to(images)  # (B, 1, H, W)
        return images * kept + self.partners.mirror(images) * (1 - kept)

    def mix_labels(self, labels: Tensor, share: Tensor, weights: Tensor | None = None) -> Tensor:
        """Targets that sum to 1 per image; with `weights`, to the image's weight, so that cross-entropy counts it so much."""
        off = self.label_smoothing / self.num_classes
        targets = torch.full((len(labels), self.num_classes), off, device=labels.device)
        targets.scatter_(1, labels.long()[:, None], 1 - self.label_smoothing + off)
        if weights is not None:
            targets = targets * weights.to(targets)[:, None]
        if not self.mixes:
            return targets
        share = share.to(targets)[:, None]
        return targets * share + self.partners.mirror(targets) * (1 - share)


def _beta(alpha: float, n: int) -> Tensor:
    """n draws from Beta(alpha, alpha); ones, which mix nothing, for alpha 0."""
    return torch.distributions.Beta(alpha, alpha).sample((n,)) if alpha > 0 else torch.ones(n)


class MixingMethod(Method):
    """A method whose images and labels are mixed by Mixup and CutMix, and its labels smoothed."""

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int,
        class_weights: Tensor | None = None,
        label_smoothing: Share = 0.0,
        mixup: Alpha = 0.0,
        cutmix: Alpha = 0.0,
        mix_prob: Share = 1.0,
        mix_switch_prob: Share = 0.5,
        mix_mode: Literal["batch", "pair", "elem"] = "batch",
    ):
        super().__init__(model, num_classes=num_classes, class_weights=class_weights)
        self.mix = Mix(
            mixup_alpha=mixup,
            cutmix_alpha=cutmix,
            prob=mix_prob,
            switch_prob=mix_switch_prob,
            mode=mix_mode,
            label_smoothing=label_smoothing,
            num_classes=num_classes,
        )

    def mix_with(self, partners: Partners) -> None:
        super().mix_with(partners)
        self.mix.partners = partners

    def mixed(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Images and targets as mixed, and how much each image counts in terms that compare it with something else than its label."""
        images, targets = self.mix(batch["image"], batch["label"], batch.get("weight"))
        return images, targets, targets.sum(dim=1) if "weight" in batch else None
