"""The training images most similar to a new one: by the cosine similarity of the features before the classifier."""

import contextlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.images import Images
from vitling.errors import UserError
from vitling.evaluation.loop import evaluate_batches
from vitling.evaluation.predictions import open_own_data
from vitling.files import starting_with, write_bytes
from vitling.models.weights import to_safetensors
from vitling.runs.run import Run

_is_features = starting_with(b"", mark=b'"features":')


@dataclass
class Neighbours:
    """A run's training images and their features, unit vectors of (images, width)."""

    images: Images
    features: Tensor

    def nearest(self, features: Tensor, count: int) -> list[tuple[int, float]]:
        """The images most similar to a new one, best first: their number and cosine similarity."""
        similarity = self.features.float() @ F.normalize(features.float().flatten(), dim=0).cpu()
        best = similarity.topk(min(count, len(similarity)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


@torch.inference_mode()
def image_features(model: nn.Module, images: Tensor) -> Tensor:
    """What the classifier of a timm model is given: (B, width) of normalised images."""
    return model.forward_head(model.forward_features(images), pre_logits=True).flatten(1)


def open_neighbours(
    run: Run, model: nn.Module, *, which: str = "best", reading: Reading | None = None, callback: Callback | None = None
) -> Neighbours:
    """The neighbours of a run's model: features as kept in the run, or computed now and kept."""
    reading = reading or Reading()
    dataset = open_own_data(run, reading)
    images, _ = split_training(dataset, run.recipe)
    belongs_to = {"data": dataset.fingerprint, "weights": run.weights_digest(which)}
    path = run.path / f"neighbours-{which}.safetensors"
    features = _read(path, belongs_to)
    if features is None or features.ndim != 2 or len(features) != len(images) or not features.isfinite().all():
        features = _compute(run, model, images, reading, callback)
        with contextlib.suppress(UserError):  # a disk that is read-only or full: computed again next time
            write_bytes(path, to_safetensors({"features": features}, belongs_to), ours=_is_features)
    return Neighbours(images, features)


def _read(path, belongs_to: dict[str, str]) -> Tensor | None:
    """Features that were kept, unless they are of other data or other weights."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.get_tensor("features") if file.metadata() == belongs_to else None
    except (OSError, SafetensorError):
        return None


def _compute(run: Run, model: nn.Module, images: Images, reading: Reading, callback: Callback | None) -> Tensor:
    preprocessing = run.preprocessing()
    source = load_split(images, "train", reading=reading, callback=callback, **preprocessing.fit_args())
    batches = evaluate_batches(
        model,
        source,
        preprocessing,
        function=lambda images: image_features(model, images),
        task="features of training images",
        callback=callback,
    )
    return torch.cat([F.normalize(features, dim=1).half().cpu() for features, _ in batches])
