"""DINO: two views of an image are to be seen alike, by the network and by the mean of what it was before.

Paper: Caron et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers". The student matches the teacher's soft choice among
prototypes for another view of the image; the teacher is an exponential mean of the student. Its outputs are centred, so that no prototype
takes all, and sharpened, so that not all are the same: the centre is a running mean over many batches, which is what makes small ones enough.
Deviates, for batches of 64 to 128 and a few thousand images: a thousand prototypes in place of 65,536, a smaller head, a teacher that
follows faster (0.99 in place of 0.996) and computes in evaluation mode with the student's norm statistics, a norm over the batch before
the head, and no frozen last layer.
"""

import copy
import math
from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.methods.method import Batch, View
from vitling.methods.pretraining.pretraining import Pretraining
from vitling.models.inspect import evaluating
from vitling.recipes import Recipe
from vitling.validation.values import Ascending, Count, CountOrNone, Momentum, PartOf, Temperature

LOCAL_VIEWS = 2  # where the network takes them
LEAST_LOCAL_SIDE = 16  # pixels: a smaller view shows nothing


def dino_loss(
    student: list[Tensor],
    teacher: list[Tensor],
    centre: Tensor,
    *,
    student_temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """Mean cross-entropy of the student's views with the teacher's, over all pairs of different views.

    Each view is (B, prototypes); view number v of the teacher shows what view number v of the student shows.
    """
    choices = [((view.float() - centre) / teacher_temperature).softmax(dim=1).detach() for view in teacher]
    answers = [(view.float() / student_temperature).log_softmax(dim=1) for view in student]
    terms = [
        -(choice * answer).sum(dim=1).mean()
        for t, choice in enumerate(choices)
        for s, answer in enumerate(answers)
        if s != t
    ]
    return torch.stack(terms).mean()


def _entropy(shares: Tensor) -> Tensor:
    return -(shares * shares.clamp(min=1e-12).log()).sum(dim=-1)


class Head(nn.Module):
    """From pooled features to similarities with prototypes, both of length 1."""

    def __init__(self, features: int, prototypes: int, *, hidden: int, bottleneck: int):
        super().__init__()
        self.layers = nn.Sequential(
            # What all images have in common would make all outputs alike, and the first thousand steps would be spent on unlearning it.
            nn.BatchNorm1d(features, affine=False),
            nn.Linear(features, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, bottleneck),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.prototypes = nn.Parameter(torch.randn(prototypes, bottleneck) / math.sqrt(bottleneck))

    def no_weight_decay(self) -> set[str]:
        return {"prototypes"}

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(self.layers(x), dim=-1), F.normalize(self.prototypes, dim=-1))


class Network(nn.Module):
    """A model up to its classifier, and a head."""

    def __init__(self, model: nn.Module, head: nn.Module):
        super().__init__()
        self.model, self.head = model, head

    def forward(self, images: Tensor) -> Tensor:
        return self.head(pooled(self.model, images))


def pooled(model: nn.Module, images: Tensor) -> Tensor:
    """What a classifier would be given, (B, width)."""
    return model.forward_head(model.forward_features(images), pre_logits=True).flatten(1)


class Dino(Pretraining):
    """Two views of each image as augmented, and two small ones of half the side where the network takes another size: `local_views`.

    `prototypes` are chosen among with `teacher_temperature` and `student_temperature`. `teacher_momentum` rises to 1 over the run,
    `centre_momentum` stays. `local_scale` is the part of an image that a small view shows.
    """

    passes = 3.0  # two views forth and back, small ones, and the teacher's two
    teaches = (
        "learns to see two views of an image alike, for networks and data where painting pixels teaches too little"
    )
    defaults: ClassVar = {
        "augment": {"crop": "resized", "crop_scale": (0.3, 1.0)},
        "color_jitter": 0.4,
        "optim": {"lr": 5e-4, "weight_decay": 0.05, "min_lr": 1e-6, "clip_grad": 3.0},
    }

    @classmethod
    def refuse(cls, recipe: Recipe) -> None:
        super().refuse(recipe)
        if recipe.batch_size < 2 * recipe.accumulate:
            raise UserError(
                f"method=dino compares images with each other, and batch_size={recipe.batch_size} with accumulate={recipe.accumulate} shows it "
                f"one at a time; set batch_size={max(64, 2 * recipe.accumulate)}."
            )

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int = 0,
        class_weights: Tensor | None = None,
        prototypes: Count = 1024,
        hidden_dim: Count = 512,
        bottleneck_dim: Count = 128,
        teacher_momentum: Momentum = 0.99,
        centre_momentum: Momentum = 0.9,
        teacher_temperature: Temperature = 0.04,
        student_temperature: Temperature = 0.1,
        local_views: CountOrNone | None = None,
        local_scale: Annotated[tuple[PartOf, PartOf], Ascending()] = (0.1, 0.4),
    ):
        super().__init__(model, num_classes=num_classes, class_weights=class_weights)
        if prototypes < 2:
            raise UserError(f"method_args.{prototypes=} leaves nothing to choose among; give at least 2.")
        self.teacher_momentum, self.centre_momentum = teacher_momentum, centre_momentum
        self.teacher_temperature, self.student_temperature = teacher_temperature, student_temperature
        self.local_scale = (local_scale[0], local_scale[1])
        self.local_size = (self.size[0] // 2, self.size[1] // 2)
        able = self._takes(self.local_size)
        if local_views and not able:
            raise UserError(
                f"method_args.{local_views=} are of {self.local_size[0]} x {self.local_size[1]} pixels, and this network takes images of "
                f"{self.size[0]} x {self.size[1]} alone; leave it out, or choose another model or a larger img_size."
            )
        self.local_views = LOCAL_VIEWS * able if local_views is None else local_views
        with evaluating(model):
            width = pooled(model, torch.zeros(1, self.channels, *self.size)).shape[1]
        self.head = Head(width, prototypes, hidden=hidden_dim, bottleneck=bottleneck_dim)
        self.teacher = Network(copy.deepcopy(model), copy.deepcopy(self.head)).requires_grad_(False).eval()
        self.register_buffer("centre", torch.zeros(1, prototypes))
        self.seen: list[Tensor] = []  # the teacher's mean outputs in the micro-batches of this step
        self.progress = 0.0
        self.leave_out_unused()

    def _takes(self, size: tuple[int, int]) -> bool:
        """Whether the network takes images of this size beside its own."""
        if min(size) < LEAST_LOCAL_SIDE:
            return False
        try:
            with evaluating(self.model):
                pooled(self.model, torch.zeros(1, self.channels, *size))
        except (
            AssertionError,
            RuntimeError,
            ValueError,
        ):  # positions are for one size; each family says so in its own way
            return False
        return True

    def views(self) -> list[View]:
        return [View(), *[View(self.local_size, self.local_scale)] * self.local_views]

    def weights_set(self) -> None:
        self.teacher.model.load_state_dict(self.model.state_dict())

    def added(self) -> list[nn.Module]:
        return [self.head]

    def train(self, mode: bool = True) -> "Dino":
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        views = [batch["image"], *(batch[f"view_{number}"] for number in range(1, 2 + self.local_views))]
        with torch.no_grad():
            teacher = [self.teacher(view) for view in views[:2]]
        student = [self.head(pooled(self.model, view)) for view in views]
        temperatures = dict(student_temperature=self.student_temperature, teacher_temperature=self.teacher_temperature)
        loss = dino_loss(student, teacher, self.centre, **temperatures)
        outputs = torch.cat(teacher).float()
        if self.training:
            self.progress = progress
            self.seen.append(outputs.mean(dim=0, keepdim=True))
        choices = ((outputs - self.centre) / self.teacher_temperature).softmax(dim=1)
        return {
            "loss": loss,
            # The two ways to collapse: every image gets the same prototype (near 0), or all of them alike (near log(prototypes)).
            "prototypes_entropy": _entropy(choices.mean(dim=0)),
            "choice_entropy": _entropy(choices).mean(),
        }

    @torch.no_grad()
    def finish_gradients(self, average: Callable[[list[Tensor]], list[Tensor]]) -> dict[str, Tensor]:
        """Move the centre to what the teacher said in this step, and the teacher to the student."""
        if self.seen:
            [mean] = average([torch.stack(self.seen).mean(dim=0)])
            self.centre.lerp_(mean, 1 - self.centre_momentum)
            self.seen = []
        share = (1 - self.teacher_momentum) * (math.cos(math.pi * min(self.progress, 1.0)) + 1) / 2
        for own, taught in ((self.teacher.model, self.model), (self.teacher.head, self.head)):
            for mine, theirs in zip(own.parameters(), taught.parameters(), strict=True):
                mine.lerp_(theirs, share)
            for mine, theirs in zip(own.buffers(), taught.buffers(), strict=True):
                mine.copy_(theirs)
        return {}
