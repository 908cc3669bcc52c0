"""Every number of an evaluation where real numbers are predicted, from logits over bins and the true numbers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import numpy as np
from torch import Tensor

from vitling.data.bins import COVERAGE, Bins, Values
from vitling.evaluation.kept import KeptEvaluation
from vitling.evaluation.ordered import measure_distances
from vitling.reports.card import render_card
from vitling.reports.frame import make_frame
from vitling.validation.values import Count, CountOrNone, Range, Share, Side

if TYPE_CHECKING:
    from pandas import DataFrame

Distance = Annotated[float, Range(0, 1e300)]
Finite = Annotated[float, Range(-1e300, 1e300)]
Fit = Annotated[float, Range(-1e300, 1)]
Correlation = Annotated[float, Range(-1, 1)]


class _NumbersEvaluation(TypedDict):
    data: str
    split: Literal["train", "val", "test"]
    images: Count
    mae: Distance
    rmse: Distance
    baseline_mae: Distance
    median: Finite
    predicted: list[Finite]
    truth: list[Finite]


class NumbersRecord(_NumbersEvaluation, total=False):
    """evaluation-*.json of a run that predicts numbers."""

    labels: Literal["numbers"]
    mae_interval: tuple[Distance, Distance] | None
    rmse_interval: tuple[Distance, Distance] | None
    r2: Fit | None
    r2_interval: tuple[Fit, Fit] | None
    spearman: Correlation | None
    spearman_interval: tuple[Correlation, Correlation] | None
    coverage: Share
    coverage_interval: tuple[Share, Share] | None
    interval_width: Distance
    own: bool
    weights: str
    notes: list[str]
    img_size: tuple[Side, Side] | None
    tta: bool
    groups: Count | None
    resamples: CountOrNone


@dataclass
class NumbersEvaluation(KeptEvaluation):
    """What a model that predicts numbers reaches on a split. All distances are in the unit of the numbers."""

    schema = NumbersRecord

    data: str
    split: str
    images: int
    mae: float
    mae_interval: tuple[float, float] | None  # 95 %, by resampling images or groups, like those below
    rmse: float
    rmse_interval: tuple[float, float] | None
    r2: float | None  # None where all true numbers are equal
    r2_interval: tuple[float, float] | None
    spearman: float | None
    spearman_interval: tuple[float, float] | None
    coverage: float  # of the 90 % prediction intervals: the share of the true numbers that lie inside
    coverage_interval: tuple[float, float] | None
    interval_width: float  # their median width
    baseline_mae: float  # of always saying the median of the training images
    median: float  # which is this
    predicted: list[float]  # of every image in the split's order
    truth: list[float]
    own: bool = True  # the data that the run was trained on
    weights: str = "best"
    notes: list[str] = field(default_factory=list)
    img_size: tuple[int, int] | None = None  # where it is not that of the training
    tta: bool = False  # corners and mirror images were asked about, whatever the run does by itself
    groups: int | None = None  # that the images are of, where they are known
    labels: str = "numbers"

    def to_frame(self) -> "DataFrame":
        """A row per image: the true number, the predicted one and the error."""
        pairs = zip(self.truth, self.predicted, strict=True)
        return make_frame([{"truth": true, "predicted": seen, "error": seen - true} for true, seen in pairs])

    def facts(self) -> dict[str, str]:
        """The numbers in words, with their intervals."""

        def shown(name: str, form: str = ".4g", scale: float = 1) -> str:
            value, interval = getattr(self, name), getattr(self, f"{name}_interval")
            if value is None:
                return "not defined here"
            between = (
                ""
                if interval is None
                else " (95 % interval {} to {})".format(*(f"{scale * x:{form}}" for x in interval))
            )
            return f"{scale * value:{form}}{' %' if scale == 100 else ''}{between}"

        return {
            "mean absolute error": shown("mae"),
            "always the training median": f"{self.baseline_mae:.4g}, by saying {self.median:.4g} of every image",
            "root mean squared error": shown("rmse"),
            "R²": shown("r2", ".3f"),
            "Spearman's rho": shown("spearman", ".3f"),
            f"inside the {100 * COVERAGE:.0f} % interval": f"{shown('coverage', '.1f', 100)}, median width {self.interval_width:.4g}",
        }

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from vitling.reports import plots  # matplotlib takes a while to import

        title = f"{self.data}, {self.split} split, {self.images:,} images"
        svg = plots.scatter(self.truth, self.predicted, x="true number", y="predicted")
        return render_card(
            title, self.facts(), svg=svg, caption="A dot per image; on the line it is exact.", notes=self.notes
        )

    def adds_up(self) -> bool:
        return len(self.truth) == len(self.predicted) == self.images


def measure_numbers(
    values: Values,
    truth: Tensor | np.ndarray,
    bins: Bins,
    *,
    data: str = "",
    split: str = "",
    groups: np.ndarray | None = None,
) -> NumbersEvaluation:
    """Every number of an evaluation. With `groups`, one per image, the intervals are over those."""
    truth = np.asarray(truth, np.float64).reshape(-1)
    inside = (values.low <= truth) & (truth <= values.high)
    found = measure_distances(values.number, truth, inside=inside, squares=True, groups=groups)
    return NumbersEvaluation(
        data=data,
        split=split,
        images=len(truth),
        **found,
        interval_width=float(np.median(values.high - values.low)),
        baseline_mae=float(np.abs(truth - bins.median).mean()),
        median=bins.median,
        predicted=[round(number, 9) for number in values.number.tolist()],
        truth=truth.tolist(),
        groups=None if groups is None else len(np.unique(groups)),
    )
