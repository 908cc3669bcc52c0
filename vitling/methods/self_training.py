"""Self-training: a finished run says what unlabelled images show, and where it is sure they are learnt from beside the labelled ones.

Papers: Xie et al. 2020, "Self-training with Noisy Student improves ImageNet classification"; Lee 2013, "Pseudo-Label". The labels are soft; the
student sees the images augmented and mixed, the teacher as they are. Every batch gains as many unlabelled images as `unlabelled_share` says.
Deviates: the teacher is asked once, before the training (see `pool`).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.methods.method import Batch
from vitling.methods.mixing import MixingMethod
from vitling.methods.pool import CONFIDENCE, Pool, UnlabelledShare, make_pool
from vitling.methods.preparation import Preparation
from vitling.recipes import Recipe
from vitling.runs.opening import is_there
from vitling.validation.values import PartOf

NEEDS = (
    "method=self_training needs method_args.teacher=RUN, a finished run on the same classes, and method_args.unlabelled=IMAGES, "
    "a folder or any data."
)


class SelfTraining(MixingMethod):
    """Cross-entropy on the labels, and on a teacher's soft labels of the unlabelled images in a `pool`.

    Every batch gains `unlabelled_share` times its size of them, drawn anew.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        pool: Pool,
        unlabelled_share: UnlabelledShare = 1.0,
        **mixing: Any,
    ):
        super().__init__(model, **mixing)
        self.pool, self.unlabelled_share = pool, unlabelled_share

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        labelled, labels = batch["image"], batch["label"]
        unlabelled, soft_labels = self.pool.draw(labelled, self.unlabelled_share)
        images = torch.cat([labelled, unlabelled])
        targets = torch.cat([self.mix.mix_labels(labels, torch.ones(len(labels))), soft_labels])
        share, boxes = self.mix.draw(len(images), *images.shape[-2:])
        if self.mix.mixes:
            kept = share.to(targets)[:, None]
            targets = targets * kept + self.mix.partners.mirror(targets) * (1 - kept)
        output = self.model(self.mix.mix_images(images, share, boxes)).float()
        own, others = output.split([len(labelled), len(unlabelled)])
        return {
            "loss": F.cross_entropy(output, targets, weight=self.class_weights),
            "labelled": F.cross_entropy(own, targets[: len(labelled)]).detach(),
            "unlabelled": F.cross_entropy(others, targets[len(labelled) :]).detach(),
        }

    @classmethod
    def prepare(
        cls,
        preparation: Preparation,
        *,
        teacher: str = "",
        unlabelled: str = "",
        confidence: PartOf = CONFIDENCE,
        **others: Any,
    ) -> dict:
        """Ask the teacher about the unlabelled images, once; its answers are kept in the run."""
        if "pool" in others:
            raise UserError(
                "method_args.pool is not a setting: it is made of method_args.teacher and method_args.unlabelled."
            )
        pool = make_pool(preparation, teacher=teacher, unlabelled=unlabelled, confidence=confidence)
        return {"pool": pool, **others}

    @classmethod
    def refuse(cls, recipe: Recipe) -> None:
        if not recipe.method_args.get("teacher") or not recipe.method_args.get("unlabelled"):
            raise UserError(NEEDS)

    @classmethod
    def missing(cls, recipe: Recipe) -> str:
        teacher = recipe.method_args.get("teacher", "")
        if not teacher or not recipe.method_args.get("unlabelled"):
            return NEEDS
        return "" if is_there(teacher) else f"it learns from {teacher}, which is not there; train that first."
