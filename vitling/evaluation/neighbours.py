"""Weighted nearest neighbours: how well images of a class lie together in a network's features, before anything was trained on labels.

Paper: Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance Discrimination". Each neighbour votes for its class with
exp(cosine similarity / temperature).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.data.pipeline.loader import Fitted
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.evaluation.loop import evaluate_batches

NEIGHBOURS, TEMPERATURE = 20, 0.07
BLOCK = 1024  # images whose similarities are held at once


def nearest(features: Tensor, among: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cosine similarity and number of the most similar images, each (images, count)."""
    unit, others = F.normalize(features.float(), dim=1), F.normalize(among.float(), dim=1)
    found = [(block @ others.T).topk(min(count, len(others)), dim=1) for block in unit.split(BLOCK)]
    return torch.cat([part.values for part in found]), torch.cat([part.indices for part in found])


def neighbour_accuracy(
    features: Tensor, labels: Tensor, among: Tensor, known: Tensor, *, neighbours: int = NEIGHBOURS
) -> float:
    """The share of images whose neighbours `among` others, with `known` labels, vote for their class."""
    similarity, index = nearest(features, among, neighbours)
    votes = torch.zeros(len(features), int(known.max()) + 1)
    votes.scatter_add_(1, known[index], (similarity / TEMPERATURE).exp())
    return (votes.argmax(dim=1) == labels).float().mean().item()


def split_features(model: nn.Module, source: Fitted, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
    """The model's pooled features of every image of a split, and their labels, on the CPU."""
    batches = [
        (features.cpu(), labels.cpu())
        for features, labels in evaluate_batches(
            model,
            source,
            preprocessing,
            function=lambda images: model.forward_head(model.forward_features(images), pre_logits=True).flatten(1),
        )
    ]
    features, labels = zip(*batches, strict=True)
    return torch.cat(features), torch.cat(labels)
