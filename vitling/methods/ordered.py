"""The squared earth mover's distance: a loss for classes in an order, that counts how far off a prediction is.

Paper: Hou, Yu and Samaras 2016, "Squared Earth Mover's Distance-based Loss for Training Deep Neural Networks".
"""

from torch import Tensor


def squared_emd(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each image, (B,): the sum over classes of the squared difference of the two cumulative distributions.

    `targets` (B, K) sum to 1, mixed and smoothed ones too.
    """
    apart = logits.float().softmax(dim=1) - targets.float()
    return apart.cumsum(dim=1).square().sum(dim=1)
