"""Distillation: learn from the labels and from a finished teacher, as DeiT does.

Paper: Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention". A student with a
distillation token (timm's deit_*_distilled_*) learns the teacher's answers with that token's head, any other one with its only
head. Deviates: the soft loss is the formula's batch mean; DeiT's code divides by the number of classes as well.
"""

from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.errors import UserError, did_you_mean
from vitling.methods.bootstrap import mutual_loss
from vitling.methods.method import Batch
from vitling.methods.mixing import MixingMethod
from vitling.runs.run import load_run

KINDS = ("hard", "soft")


class Teacher(nn.Module):
    """A finished network that sees the student's images as it was taught to see images.

    It moves to other devices with the method but is not among its parameters: never trained, clipped or checkpointed.
    """

    def __init__(self, network: nn.Module, student: nn.Module):
        super().__init__()
        self.network = (network.eval().requires_grad_(False),)
        own, given = network.pretrained_cfg, student.pretrained_cfg
        mean, std, given_mean, given_std = (
            torch.tensor(cfg[key]).view(-1, 1, 1) for cfg in (own, given) for key in ("mean", "std")
        )
        self.size = tuple(own["input_size"][1:])
        self.register_buffer("scale", given_std / std, persistent=False)
        self.register_buffer("shift", (given_mean - mean) / std, persistent=False)

    def _apply(self, fn, recurse: bool = True):
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

    `teacher` is a run directory or a timm model with published weights. The losses count `1 - teacher_weight` and
    `teacher_weight`; DeiT takes a half with hard answers, a tenth with soft ones.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        teacher: str = "",
        kind: str = "hard",
        teacher_weight: float = 0.5,
        temperature: float = 3.0,
        **mixing,
    ):
        super().__init__(model, **mixing)
        if kind not in KINDS:
            raise UserError(f"method_args.kind={kind} is not one of {', '.join(KINDS)}. {did_you_mean(kind, KINDS)}")
        if not 0 < teacher_weight <= 1:
            raise UserError(f"method_args.teacher_weight={teacher_weight:g} must be more than 0 and at most 1.")
        if temperature <= 0:
            raise UserError(f"method_args.temperature={temperature:g} must be more than 0; DeiT's is 3.")
        self.kind, self.teacher_weight, self.temperature = kind, teacher_weight, temperature
        self.teacher = Teacher(load_teacher(teacher, model, self.num_classes), model)
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


def load_teacher(source: str, student: nn.Module, num_classes: int) -> nn.Module:
    """The network of a run, or a timm model with its published weights, checked to answer the student's question."""
    if not source:
        raise UserError(
            "method=distillation needs a teacher: method_args.teacher=RUN, the folder of a finished run on the same data, "
            "or a timm model with published weights for the same classes."
        )
    if Path(source).exists():
        network = load_run(source).load_model()
    elif timm.is_model(source) or source.startswith("hf-hub:"):
        try:
            network = timm.create_model(source, pretrained=True)
        except Exception as error:  # the hub client raises many kinds: no weights, no network, no such name
            reason = str(error).strip().split("\n")[0]
            raise UserError(f"the weights of teacher={source} could not be had: {reason}") from None
    else:
        raise UserError(f"teacher={source} is neither a run nor a model. {did_you_mean(source, timm.list_models())}")
    if network.num_classes != num_classes:
        raise UserError(
            f"teacher={source} knows {network.num_classes} classes, the data has {num_classes}; "
            "train a teacher on this data first, then give its run."
        )
    own, given = (cfg["input_size"][0] for cfg in (network.pretrained_cfg, student.pretrained_cfg))
    if own != given:
        raise UserError(f"teacher={source} takes images of {own} channels, the data has {given}; set channels={own}.")
    return network
