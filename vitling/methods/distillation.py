"""Distillation: learn from the labels and from a finished teacher, as DeiT does.

Paper: Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention". A student with a
distillation token (timm's deit_*_distilled_*) learns the teacher's answers with that token's head, any other one with its only
head. Deviates: the soft loss is the formula's batch mean; DeiT's code divides by the number of classes as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.methods.bootstrap import mutual_loss
from vitling.methods.method import Batch, Trial
from vitling.methods.mixing import MixingMethod
from vitling.methods.preparation import Preparation, cnn_recipe
from vitling.models import build_model
from vitling.recipes import Optim, Recipe
from vitling.runs.opening import OpenedModel, build_network, is_there, open_model, timm_preprocessing
from vitling.validation.values import Count, PartOf, Temperature

NO_TEACHER = (
    "method=distillation needs a teacher: method_args.teacher=RUN, the folder of a finished run on the same data, "
    "a timm model with published weights for the same classes, or auto, which trains a small CNN first."
)
AUTO = "auto"
TEACHER = "resnet9_nano"
TEACHER_EPOCHS = 50
# What is best for this CNN in minutes: docs/results.md.
TEACHER_OPTIM = Optim(name="muon", lr=0.01, momentum=0.95, betas=(0.9, 0.95), weight_decay=0.05)


class Teacher(nn.Module):
    """A trained network that gets the student's images in its own preprocessing.

    It moves to other devices with the method but is not among its parameters: never trained, clipped or checkpointed. `order` says
    which of its outputs each class of the data is, where it has learned them in another order.
    """

    def __init__(self, opened: OpenedModel, student: nn.Module, order: Sequence[int] | None = None):
        super().__init__()
        self.network = (opened.module.requires_grad_(False),)
        own, given = opened.preprocessing, student.pretrained_cfg
        mean, std, given_mean, given_std = (
            torch.tensor(values).view(-1, 1, 1) for values in (own.mean, own.std, given["mean"], given["std"])
        )
        self.size = own.size
        self.register_buffer("scale", given_std / std, persistent=False)
        self.register_buffer("shift", (given_mean - mean) / std, persistent=False)
        in_order = order is None or list(order) == sorted(order)
        self.register_buffer("order", None if in_order else torch.tensor(order), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Teacher":
        # Private, but what .to(), .cuda() and .half() of a parent all come down to.
        self.network[0]._apply(fn, recurse)
        return super()._apply(fn, recurse)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        images = images * self.scale + self.shift
        if images.shape[-2:] != self.size:
            images = F.interpolate(images, self.size, mode="bilinear", antialias=True)
        logits = self.network[0](images)
        return logits if self.order is None else logits[:, self.order]


class Distillation(MixingMethod):
    """Cross-entropy on the labels, and on the teacher's answer (`hard`) or its softened predictions (`soft`).

    `teacher` is a run or whatever else `open_model` opens. Where it and the data (`class_names`) name their classes, they must be
    the same ones, in any order. The losses count `1 - teacher_weight` and `teacher_weight`; DeiT takes a half with hard answers, a
    tenth with soft ones.
    """

    weighs_images = True
    trial: ClassVar = Trial(
        "distillation",
        {"teacher": AUTO, "kind": "soft", "teacher_weight": 0.5},
        "learns from a small CNN as well, which is trained first in a quarter of the time",
        "ViTs learn more from a CNN than from labels alone (DeiT, Bootstrapping paper); not measured here",
        weight=-0.3,
        plain_weight=0.4,
    )

    def __init__(
        self,
        model: nn.Module,
        *,
        teacher: str | OpenedModel = "",
        class_names: list[str] | None = None,
        kind: Literal["hard", "soft"] = "hard",
        teacher_weight: PartOf = 0.5,
        temperature: Temperature = 3.0,
        **mixing: Any,
    ):
        super().__init__(model, **mixing)
        self.kind, self.teacher_weight, self.temperature = kind, teacher_weight, temperature
        opened = teacher if isinstance(teacher, OpenedModel) else open_teacher(teacher)
        check_teacher(opened, model, self.num_classes)
        self.teacher = Teacher(opened, model, answer_order(opened, class_names) if class_names else None)
        if hasattr(model, "set_distilled_training"):
            model.set_distilled_training(True)  # in train mode it then returns the logits of both heads

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        images, targets, weights = self.mixed(batch)
        taught = self.teacher(images)
        output = self.model(images)
        by_label, by_teacher = output if isinstance(output, tuple) else (output, output)
        label = F.cross_entropy(by_label.float(), targets, weight=self.class_weights)
        if self.kind == "hard":
            answer = taught.argmax(dim=1)
            if weights is not None:
                answer = F.one_hot(answer, self.num_classes) * weights[:, None]
            from_teacher = F.cross_entropy(by_teacher.float(), answer)
        else:
            from_teacher = mutual_loss(by_teacher, taught, self.temperature, weights)
        loss = (1 - self.teacher_weight) * label + self.teacher_weight * from_teacher
        return {"loss": loss, "student_label": label, "student_from_teacher": from_teacher}

    @classmethod
    def prepare(
        cls, preparation: Preparation, *, teacher: str = "", teacher_epochs: Count | None = None, **others: Any
    ) -> dict:
        """Open the teacher, or train a small CNN for `teacher_epochs` first; what the data calls its classes goes with it."""
        if "class_names" in others:
            raise UserError("method_args.class_names is not a setting: classes are called what the data calls them.")
        if teacher_epochs is not None and teacher != AUTO:
            raise UserError(f"method_args.{teacher_epochs=} is for method_args.teacher={AUTO}, which trains a teacher.")
        if teacher == AUTO:
            preparation.callback.log("training a small CNN that will be the teacher")
            teacher = str(preparation.train(teacher_recipe(preparation.recipe), "teacher").path)
        opened = open_teacher(teacher)
        if opened.class_names is None:
            preparation.callback.log(
                f"teacher={teacher} does not name its classes: they are taken to be the data's, in the data's order"
            )
        return {"teacher": opened, "class_names": preparation.data.class_names, **others}

    @classmethod
    def first_run(cls, recipe: Recipe) -> Recipe | None:
        return teacher_recipe(recipe) if recipe.method_args.get("teacher") == AUTO else None

    @classmethod
    def with_first_epochs(cls, recipe: Recipe, epochs: int) -> Recipe:
        if recipe.method_args.get("teacher") != AUTO:
            return recipe
        return replace(recipe, method_args={**recipe.method_args, "teacher_epochs": epochs})

    @classmethod
    def techniques(cls, recipe: Recipe) -> set[str]:
        return super().techniques(recipe) | {"distillation"}

    @classmethod
    def companions(cls, recipe: Recipe, model: nn.Module) -> dict[str, nn.Module]:
        if reason := cls.missing(recipe):
            raise UserError(reason)
        device, source = next(model.parameters()).device, recipe.method_args["teacher"]
        if source == AUTO:
            size, channels = model.pretrained_cfg["input_size"][-2:], model.pretrained_cfg["input_size"][0]
            teacher = build_model(TEACHER, num_classes=model.num_classes, in_chans=channels, img_size=size).to(device)
            return {"teacher": teacher.requires_grad_(False)}
        teacher = build_network(source, device=device).requires_grad_(False)
        seen = timm_preprocessing(teacher)
        teacher.pretrained_cfg = {**teacher.pretrained_cfg, "input_size": (seen.channels, *seen.size)}
        return {"teacher": teacher}

    @classmethod
    def missing(cls, recipe: Recipe) -> str:
        source = recipe.method_args.get("teacher", "")
        if not source:
            return NO_TEACHER
        return (
            ""
            if source == AUTO or is_there(source)
            else f"it learns from {source}, which is not there; train that first."
        )


def teacher_recipe(recipe: Recipe) -> Recipe:
    """A small CNN."""
    epochs = recipe.method_args.get("teacher_epochs") or min(recipe.epochs, TEACHER_EPOCHS)
    optim = replace(TEACHER_OPTIM, warmup_epochs=0.1 * epochs)
    return cnn_recipe(recipe, model=TEACHER, epochs=epochs, optim=optim, augment=replace(recipe.augment, repeats=1))


def taught_by(recipe: Recipe, teacher: str) -> Recipe:
    """The recipe with a finished teacher of its own size, such as an ensemble: half of the loss is to give its probabilities. Images are mixed as before."""
    known = signature(MixingMethod.__init__).parameters
    mixing = {key: value for key, value in recipe.method_args.items() if key in known}
    args = {**mixing, "kind": "soft", "teacher_weight": 0.5, "teacher": teacher}
    return replace(recipe, method="distillation", method_args=args)


def open_teacher(source: str) -> OpenedModel:
    """Whatever `open_model` opens."""
    if not source:
        raise UserError(NO_TEACHER)
    try:
        opened = open_model(source, device="cpu")  # it moves with the method
        opened.require_classes("a teacher is of")
        opened.module.num_classes  # noqa: B018  (an ONNX file has no module, and says so)
    except UserError as error:
        raise UserError(f"method_args.teacher={source}: {error}") from None
    return replace(opened, name=source)


def check_teacher(opened: OpenedModel, student: nn.Module, num_classes: int) -> None:
    """Refuse one that cannot answer for as many classes, or see the images."""
    known = opened.module.num_classes
    if known != num_classes:
        raise UserError(
            f"teacher={opened.name} knows {known} classes, the data has {num_classes}; "
            "train a teacher on this data first, then give its run."
        )
    own, given = opened.preprocessing.channels, student.pretrained_cfg["input_size"][0]
    if own != given:
        raise UserError(
            f"teacher={opened.name} takes images of {own} channels, the data has {given}; set channels={own}."
        )


def answer_order(opened: OpenedModel, class_names: Sequence[str]) -> list[int]:
    """Which of the teacher's outputs each class of the data is."""
    order = opened.class_order(class_names)
    if order is None:
        known = opened.class_names or []
        foreign, lacking = set(known) - set(class_names), set(class_names) - set(known)
        raise UserError(
            f"teacher={opened.name} has learned other classes: it knows {_some(sorted(foreign) or known)}, the data has "
            f"{_some(sorted(lacking) or class_names)}; train a teacher on this data first, then give its run."
        )
    return order


def _some(names: Sequence[str], show: int = 3) -> str:
    return ", ".join(names[:show]) + (f" and {len(names) - show} more" if len(names) > show else "")
