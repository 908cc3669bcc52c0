"""Near-duplicates: images that are the same but for size, compression or a touch of brightness.

Each image becomes a thumbnail, each thumbnail 64 bits that small changes leave alone (a perceptual hash: the signs of its
lowest frequencies). Hashes that differ in few bits are candidates; those whose thumbnails are similar too are near-duplicates. All pairs of hashes
are compared, but as products of matrices, and each image keeps its few best candidates: 20,000 images take seconds, and a
folder of blank scans takes no more memory than any other.
"""

import numpy as np
import torch
from torch import Tensor

from vitling._deprecated import keep_old_names
from vitling.callbacks import Callback
from vitling.data.thumbnails import SIDE

FREQUENCIES = 8  # kept per axis: 64 bits
MOST_BITS = 12  # that the hashes of near-duplicates may differ in
CANDIDATES = 4  # per image whose thumbnails are compared
MAX_DIFFERENCE = 0.25  # root mean square difference of near-duplicates, as a share of the image's own contrast
EXACT = 0.01  # the same for images too small to distinguish a copy from a similar image: only copies count
FEW_VALUES = 3 * 32 * 32  # pixels times channels below which an image is so small
NOISE = 0.5  # grey levels: what varies less is flat
BLOCK = 2048  # images compared with all others at once


def allowed_difference(short_side: int, channels: int) -> float:
    """How much near-duplicates may differ, by the size of the images: of tiny ones only copies count."""
    return MAX_DIFFERENCE if short_side**2 * channels >= FEW_VALUES else EXACT


def perceptual_hash(thumbnails: Tensor) -> Tensor:
    """64 signs (-1 or 1) per thumbnail, uint8 (N, C, SIDE, SIDE): is a low frequency stronger than their median?"""
    basis = _cosines(SIDE)[:FREQUENCIES]
    signs = torch.empty(len(thumbnails), FREQUENCIES**2)
    for start in range(0, len(thumbnails), BLOCK):
        grey = thumbnails[start : start + BLOCK].float().mean(dim=1)  # (B, SIDE, SIDE)
        low = (basis @ grey @ basis.T).flatten(1)
        low[:, 0] = 0  # the mean brightness says nothing about what is seen
        signs[start : start + BLOCK] = torch.where(low > low.median(dim=1, keepdim=True).values, 1.0, -1.0)
    return signs


def _cosines(side: int) -> Tensor:
    """The discrete cosine transform as a matrix, one frequency per row."""
    positions = (torch.arange(side) + 0.5) * torch.pi / side
    return torch.cos(torch.arange(side)[:, None] * positions)


def find_near_duplicates(
    thumbnails: Tensor,
    among: Tensor | None = None,
    *,
    max_difference: float = MAX_DIFFERENCE,
    task: str = "looking for copies",
    callback: Callback | None = None,
) -> np.ndarray:
    """Rows (i, j): image i looks like image j. One row per image that has a near-duplicate, so their number is that of copies.

    j is an image of `among`, such as the training split; without it, an earlier image of the same thumbnails.
    """
    found = [np.empty((0, 2), np.int64)]
    others = thumbnails if among is None else among
    if not len(others):
        return found[0]
    hashes = perceptual_hash(thumbnails)
    other_hashes = hashes if among is None else perceptual_hash(others)
    for start in range(0, len(thumbnails), BLOCK):
        stop = min(start + BLOCK, len(thumbnails))
        reach = stop if among is None else len(others)
        agreement = hashes[start:stop] @ other_hashes[:reach].T  # 64 - 2 x bits that differ
        if among is None:
            agreement.masked_fill_(torch.arange(reach) >= torch.arange(start, stop)[:, None], -torch.inf)
        near = (agreement.amax(dim=1) >= 64 - 2 * MOST_BITS).nonzero().flatten()
        best = agreement[near].topk(min(CANDIDATES, reach), dim=1)
        best.indices[best.values < 64 - 2 * MOST_BITS] = -1
        found.append(_most_similar(thumbnails, others, near + start, best.indices, max_difference))
        if callback:
            callback.on_progress(task, stop, len(thumbnails))
    return np.concatenate(found)


def _most_similar(
    thumbnails: Tensor, others: Tensor, rows: Tensor, candidates: Tensor, max_difference: float
) -> np.ndarray:
    """Of each row's candidates (-1: none) the most similar one, where it is similar enough."""
    pairs = [np.empty((0, 2), np.int64)]
    for row, columns in zip(rows.split(256), candidates.split(256), strict=True):
        image, other = standardised(thumbnails[row])[:, None], standardised(others[columns])
        difference = (image - other).square().mean(dim=-1).sqrt().masked_fill(columns < 0, torch.inf)
        least, place = difference.min(dim=1)
        column = columns.gather(1, place[:, None])[:, 0]
        pairs.append(torch.stack([row, column], dim=1)[least <= max_difference].numpy())
    return np.concatenate(pairs)


def standardised(pixels: Tensor) -> Tensor:
    """Flat, with mean 0 and deviation 1: brighter or of more contrast is still the same image. What is flat stays flat."""
    pixels = pixels.flatten(-3).float()
    centred = pixels - pixels.mean(dim=-1, keepdim=True)
    return centred / centred.square().mean(dim=-1, keepdim=True).sqrt().clamp(min=NOISE)


keep_old_names(__name__)
