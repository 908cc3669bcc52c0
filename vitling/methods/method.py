"""Method: what turns a batch into losses, and what it says of itself to those who plan. The whole interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitling.data.targets import CLASSES, Kind
from vitling.errors import UserError
from vitling.methods.partners import Partners
from vitling.methods.preparation import Preparation
from vitling.optim import parameter_groups
from vitling.recipes import Optim, Recipe

# image: (B, C, H, W) normalised floats; label: (B,) class numbers; index: (B,) place in the split; where images count
# differently, weight: (B,) how much each does; and where labels are no classes, target: (B, outputs)
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class View:
    """A further view of each image, augmented as the first but for what stands here."""

    size: tuple[int, int] | None = None  # None: the model's
    crop_scale: tuple[float, float] | None = None  # the part of the image that it shows; None: as the recipe says


@dataclass(frozen=True)
class Omission:
    """Why a plan does without a method: what of it is off, the reason, and the row behind that."""

    what: str
    reason: str
    evidence: str
    key: str = "method"  # the setting that decides it
    how: str = ""  # what turns it on; empty: the method's name


@dataclass(frozen=True)
class Trial:
    """How an improvement tries a method: what it calls that, the arguments, the reason, the row behind it, and how early it is tried.

    `check_args` are arguments with which it can be built around a model, to see whether it can; None where any model will do.
    """

    what: str
    args: dict[str, Any]
    reason: str
    evidence: str
    weight: float
    plain_weight: float  # of a plain ViT
    check_args: dict[str, Any] | None = None
    keeps_mixing: bool = True


class Method(nn.Module, ABC):
    """Owns everything trainable. `model` is what is validated, saved and exported at the end.

    A method never sees devices, precision, processes or log files.
    """

    mixes_tokens = False  # True: learns from tokens that were exchanged between images on their way through the model
    weighs_images = False  # True: every term of its loss counts an image by batch["weight"], where there is one
    unlabelled = (
        False  # True: learns from images alone. The model has no classifier, and its last weights are the run's
    )
    passes = 1.0  # times as long for an image as learning from its label takes: fewer of them can be shown
    teaches = ""  # what an unlabelled one learns from, in a few words for a plan
    target_kinds: ClassVar[tuple[Kind, ...]] = (
        "classes",
        "grades",
    )  # what its labels may be; of others, batch["target"] says what is learnt
    target = CLASSES  # what it learns: set where it is created
    wants_geometry = False  # True: batch["geometry"] says where the pixels came from, see `augment.Geometry`

    def __init__(self, model: nn.Module, *, num_classes: int, class_weights: Tensor | None = None):
        super().__init__()
        if getattr(model, "mix_token", False) and not self.mixes_tokens:
            raise UserError(
                "model_args.mix_token=true makes the model return dense logits and a box while it is trained, which only "
                "method=token_labeling learns from; leave it out, or set that method."
            )
        self.model = model
        self.num_classes = num_classes
        self.partners = Partners()
        self.register_buffer("class_weights", class_weights, persistent=False)

    @abstractmethod
    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """Losses of a batch: `loss` is minimised, the rest is logged. `progress` runs from 0 to 1 over the run."""

    # -- what the loop asks ----------------------------------------------------------------------------------------

    def mix_with(self, partners: Partners) -> None:
        """Images find those that they are mixed with as `partners` says; by default in the batch that `forward` gets."""
        self.partners = partners

    def weights_set(self) -> None:
        """Called when the model has been given weights after the method was built around it."""

    def views(self) -> list[View]:
        """Further views of each image that a batch brings, as batch["view_1"], batch["view_2"] and so on."""
        return []

    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """What a validation of a method without labels measures on held-out images; draws are the same every time."""
        return self(batch, 1.0)

    def pictures(self, batch: Batch) -> dict[str, Tensor]:
        """What a method without labels has to show of some images: pictures by name, (B, C, H, W) normalised; none by default."""
        return {}

    def finish_gradients(self, average: Callable[[list[Tensor]], list[Tensor]]) -> dict[str, Tensor]:
        """Called before each optimiser step, when the gradients are means over micro-batches and processes; may change them.

        A method that collects a second gradient by itself gets its mean over processes from `average`, then joins the two
        here. What is returned is logged.
        """
        return {}

    def parameter_groups(self, optim: Optim, lr: float) -> list[dict]:
        """What the optimiser gets. A method with several networks gives each its own settings here."""
        return parameter_groups(self.model, optim, lr)

    def clip_limits(self, clip_grad: float) -> list[tuple[list[nn.Parameter], float]]:
        """Which parameters are clipped together, at which gradient norm; 0 is never."""
        return [(list(self.parameters()), clip_grad)]

    def compile_networks(self) -> None:
        """Compile what forward calls; overridden where that is not `self.model(images)`."""
        self.model.compile()

    def unshardable(self) -> str:
        """What keeps its networks from being divided among processes, and what to do, to follow "does not go with "; empty for nothing."""
        return ""

    def evaluated(self) -> dict[str, nn.Module]:
        """Further networks whose accuracy is logged beside the model's, by name."""
        return {}

    def kept(self) -> dict[str, tuple[nn.Module, dict[str, Any]]]:
        """The same networks as a run keeps them beside its best model: as timm builds them, and the arguments for that."""
        return {}

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """timm's optimiser factory asks for this; without the prefix, position embeddings would decay."""
        return {f"model.{name}" for name in getattr(self.model, "no_weight_decay", set)()}

    # -- what it says of itself, from a recipe alone ---------------------------------------------------------------

    omission: ClassVar[Omission | None] = None  # None: a plan does not mention it
    trial: ClassVar[Trial | None] = None  # None: an improvement does not try it

    @classmethod
    def prepare(cls, preparation: Preparation, **method_args: Any) -> dict:
        """The constructor's arguments, from those of the recipe. A method that needs files or another run gets them here."""
        return method_args

    @classmethod
    def first_run(cls, recipe: Recipe) -> Recipe | None:
        """The run that `prepare` trains before the recipe's own, of which it takes a part of a budget; None for none."""
        return None

    @classmethod
    def with_first_epochs(cls, recipe: Recipe, epochs: int) -> Recipe:
        """The recipe with so many epochs for its first run."""
        return recipe

    @classmethod
    def companions(cls, recipe: Recipe, model: nn.Module) -> dict[str, nn.Module]:
        """Networks that run beside the model, by name, built on the model's device without weights that mean anything.

        Of one that only answers, no parameter requires a gradient.
        """
        return {}

    @classmethod
    def conflicts(cls, recipe: Recipe) -> list[str]:
        """Settings that are known to harm each other, one line each with the row that shows it."""
        return []

    @classmethod
    def techniques(cls, recipe: Recipe) -> set[str]:
        """What a recipe with this method uses of the techniques that papers tick in their tables, by their names."""
        return {name for name in ("MixUp", "CutMix") if recipe.method_args.get(name.lower())}

    @classmethod
    def refuse(cls, recipe: Recipe) -> None:
        """Raise a UserError where the method cannot be trained with these settings, whatever the data."""

    @classmethod
    def missing(cls, recipe: Recipe) -> str:
        """What has to be there before the recipe can be trained and is not, in one line; empty where nothing is missing."""
        return ""
