"""What a model gets wrong: most confidently, and more on new images than on those it was trained on."""

from dataclasses import dataclass

from torch import Tensor

from vitling._deprecated import keep_old_names
from vitling.errors import UserError
from vitling.evaluation.intervals import newcombe_interval


def confident_mistakes(probs: Tensor, labels: Tensor, *, count: int = 16) -> Tensor:
    """Indices of the wrong predictions, the most confident first: look at these for wrong labels and missing views."""
    confidence, prediction = probs.max(dim=1)
    wrong = (prediction != labels).nonzero().flatten()
    return wrong[confidence[wrong].argsort(descending=True, stable=True)][:count]


@dataclass
class Gap:
    """Accuracy on training images less accuracy on held-out ones, with the 95 % interval of that difference."""

    train: float
    held_out: float
    difference: float
    interval: tuple[float, float]


def generalisation_gap(train_correct: int, train_images: int, correct: int, images: int) -> Gap:
    """The gap from counts of correct predictions; the interval is Newcombe's."""
    if not train_images or not images:
        raise UserError(f"a gap needs images on both sides; got {train_images} training and {images} held-out ones.")
    train, held_out = train_correct / train_images, correct / images
    interval = newcombe_interval(train_correct, train_images, correct, images)
    return Gap(train, held_out, train - held_out, interval)


keep_old_names(__name__)
