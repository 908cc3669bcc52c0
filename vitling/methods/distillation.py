"""Distillation: learn from the labels and from a finished teacher, as DeiT does.

Paper: Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention". A student with a
distillation token (timm's deit_*_distilled_*) learns the teacher's answers with that token's head, any other one with its only
head. Deviates: the soft loss is the formula's batch mean; DeiT's code divides by the number of classes as well.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.inputs.values import PartOf, Temperature
from vitling.methods.bootstrap import mutual_loss
from vitling.methods.method import Batch
from vitling.methods.mixing import MixingMethod
from vitling.recipes import Recipe
from vitling.runs.opening import OpenedModel, build_network, is_there, open_model, timm_preprocessing

NO_TEACHER = (
    "method=distillation needs a teacher: method_args.teacher=RUN, the folder of a finished run on the same data, "
    "or a timm model with published weights for the same classes."
)


class Teacher(nn.Module):
    """A trained network that gets the student's images in its own preprocessing.

    It moves to other devices with the method but is not among its parameters: never trained, clipped or checkpointed.
    """

    def __init__(self, opened: OpenedModel, student: nn.Module):
        super().__init__()
        self.network = (opened.module.requires_grad_(False),)
        own, given = opened.preprocessing, student.pretrained_cfg
        mean, std, given_mean, given_std = (
            torch.tensor(values).view(-1, 1, 1) for values in (own.mean, own.std, given["mean"], given["std"])
        )
        self.size = own.size
        self.register_buffer("scale", given_std / std, persistent=False)
        self.register_buffer("shift", (given_mean - mean) / std, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Teacher":
        # Private, but what .to(), .cuda() and .half() of a parent all come down to.
        self.network[0]._apply(fn, recurse)
        return super()._apply(fn, recurse)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        images = images * self.scale + self.shift
        if images.shape[-2:] != self.size:
            images = F.interpolate(images, self.size, mode="bilinear", antialias=True)
        return self.network[0](images)


class Distillation(MixingMethod):
    """Cross-entropy on the labels, and on the teacher's answer (`hard`) or its softened predictions (`soft`).

    `teacher` is a run or whatever else `open_model` opens. The losses count `1 - teacher_weight` and
    `teacher_weight`; DeiT takes a half with hard answers, a tenth with soft ones.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        teacher: str = "",
        kind: Literal["hard", "soft"] = "hard",
        teacher_weight: PartOf = 0.5,
        temperature: Temperature = 3.0,
        **mixing: Any,
    ):
        super().__init__(model, **mixing)
        self.kind, self.teacher_weight, self.temperature = kind, teacher_weight, temperature
        self.teacher = Teacher(open_teacher(teacher, model, self.num_classes), model)
        if hasattr(model, "set_distilled_training"):
            model.set_distilled_training(True)  # in train mode it then returns the logits of both heads

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        images, targets = self.mix(batch["image"], batch["label"])
        taught = self.teacher(images)
        output = self.model(images)
        by_label, by_teacher = output if isinstance(output, tuple) else (output, output)
        label = F.cross_entropy(by_label.float(), targets, weight=self.class_weights)
        if self.kind == "hard":
            from_teacher = F.cross_entropy(by_teacher.float(), taught.argmax(dim=1))
        else:
            from_teacher = mutual_loss(by_teacher, taught, self.temperature)
        loss = (1 - self.teacher_weight) * label + self.teacher_weight * from_teacher
        return {"loss": loss, "student_label": label, "student_from_teacher": from_teacher}

    @classmethod
    def companions(cls, recipe: Recipe, model: nn.Module) -> dict[str, nn.Module]:
        if reason := cls.missing(recipe):
            raise UserError(reason)
        device = next(model.parameters()).device
        teacher = build_network(recipe.method_args["teacher"], device=device).requires_grad_(False)
        seen = timm_preprocessing(teacher)
        teacher.pretrained_cfg = {**teacher.pretrained_cfg, "input_size": (seen.channels, *seen.size)}
        return {"teacher": teacher}

    @classmethod
    def missing(cls, recipe: Recipe) -> str:
        source = recipe.method_args.get("teacher", "")
        if not source:
            return NO_TEACHER
        return "" if is_there(source) else f"it learns from {source}, which is not there; train that first."


def open_teacher(source: str, student: nn.Module, num_classes: int) -> OpenedModel:
    """Whatever `open_model` opens, checked to answer the student's question."""
    if not source:
        raise UserError(NO_TEACHER)
    try:
        opened = open_model(source, device="cpu")  # it moves with the method
        known = opened.module.num_classes
    except UserError as error:
        raise UserError(f"method_args.teacher={source}: {error}") from None
    if known != num_classes:
        raise UserError(
            f"teacher={source} knows {known} classes, the data has {num_classes}; "
            "train a teacher on this data first, then give its run."
        )
    own, given = opened.preprocessing.channels, student.pretrained_cfg["input_size"][0]
    if own != given:
        raise UserError(f"teacher={source} takes images of {own} channels, the data has {given}; set channels={own}.")
    return opened
