"""Numbers for what the figures 6 and 7 of the paper show: which depth of one network does each layer of another resemble?

The paper describes its CKA matrices in words only. These are our definitions; golden numbers in diagnosis__match_*.json.
"""

from dataclasses import dataclass
from math import nan

import torch
from scipy.stats import spearmanr
from torch import Tensor

from vitling._deprecated import keep_old_names
from vitling.errors import UserError

QUARTERS, HALVES = 4, 2  # "the lowest quarter of layers in ViT", "the lower half of ResNet"


@dataclass
class Match:
    """How the rows of a CKA matrix (a ViT, in order of depth) meet its columns (a CNN). Depths run from 0 to 1."""

    best_match: Tensor  # column each row is most like
    best_match_depth: Tensor
    peak: Tensor  # and how much it is like it
    soft_depth: Tensor  # mean depth of the columns, weighted by CKA
    monotonicity: float  # Spearman correlation of a row's depth and its match's
    block_means: Tensor  # (4, 2): quarters of the rows by halves of the columns
    unmatched_top_quarter: float  # 1 - mean peak of the last quarter of the rows
    column_best_row: Tensor
    depth_needed: float | None  # depth of the first row whose match reaches the middle of the columns


def match_layers(matrix: Tensor) -> Match:
    """Best-match curve and summary of a CKA matrix, one row and one column per layer, without undefined ones."""
    C = torch.as_tensor(matrix)
    if C.ndim != 2 or C.shape[0] < QUARTERS or C.shape[1] < HALVES:
        raise UserError(
            f"a CKA matrix of {tuple(C.shape)} has no {QUARTERS} quarters and {HALVES} halves; compare deeper models or layers='all'."
        )
    if C.isnan().any():
        raise UserError("the CKA matrix has undefined entries; match its `defined()` part.")
    rows, columns = C.shape
    depth = torch.arange(columns, device=C.device, dtype=C.dtype) / (columns - 1)
    best = C.argmax(dim=1)
    peak = C.amax(dim=1)
    positive = C.clamp(min=0)
    quarters = [C[k * rows // QUARTERS : (k + 1) * rows // QUARTERS] for k in range(QUARTERS)]
    halves = [slice(k * columns // HALVES, (k + 1) * columns // HALVES) for k in range(HALVES)]
    reached = (depth[best] >= 0.5).nonzero().flatten()
    return Match(
        best_match=best,
        best_match_depth=depth[best],
        peak=peak,
        soft_depth=positive @ depth / positive.sum(dim=1),
        monotonicity=_monotonicity(best),
        block_means=torch.stack([torch.stack([quarter[:, half].mean() for half in halves]) for quarter in quarters]),
        unmatched_top_quarter=1 - peak[(QUARTERS - 1) * rows // QUARTERS :].mean().item(),
        column_best_row=C.argmax(dim=0),
        depth_needed=reached[0].item() / (rows - 1) if len(reached) else None,
    )


def _monotonicity(best: Tensor) -> float:
    """NaN where all rows match one column: there is no order to follow."""
    if (best == best[0]).all():
        return nan
    return float(spearmanr(range(len(best)), best.cpu()).statistic)


keep_old_names(__name__)
