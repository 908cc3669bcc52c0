"""ViTRegressor: the scikit-learn estimator of numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted, column_or_1d

from vitling.data.bins import Values
from vitling.data.sources.ordered import FEWEST_IMAGES, NUMBER
from vitling.errors import UserError
from vitling.estimator.base import ViTEstimator
from vitling.estimator.inputs import only_column
from vitling.estimator.weights import image_weights
from vitling.recipes import Augment, Recipe
from vitling.runs.run import Run


class ViTRegressor(RegressorMixin, ViTEstimator):
    """A Vision Transformer from scratch, as a scikit-learn regressor and transformer.

    Images are what a `ViTClassifier` takes, and the parameters of the same name mean the same. A number is learnt as a distribution over bins,
    which are decided from the images that are not held out.

    recipe: a name, a YAML file, a run or a Recipe; None trains what `vitling plan` would.
    settings: changes to it as on the command line, such as ["optim.lr=3e-4", "batch_size=32"], or as a dict.
    epochs: so many, with the recipe's schedule in proportion; or budget: a time, such as "90s".
    model: another network than the recipe's, or than the plan would choose, with its own arguments.
    img_size: the side, or height and width, at which the network sees images.
    augment: True is the recipe's augmentation, False none; a dict changes parts of it, a `vitling.recipes.Augment` replaces it.
    random_state: of the weights, the augmentation and the held-out images; None draws one from NumPy's global state.
    run_dir: a folder that keeps every run, each named by its data and recipe. The same fit again finds or resumes its own.
    image_shape: height and width, and channels where there are several, of flat rows; -1 for one that follows.
    pixel_range: the values that become black and white; None takes the lowest and the highest of the training images.
    unlabelled: images to learn from first, without labels, in a share of the time (unlabelled_time=): an array, a list or a folder.
    threads: CPU threads; None takes one or all, whichever is faster.
    verbose: show the progress.
    """

    _labels = "numbers"

    def __init__(
        self,
        recipe: str | Recipe | None = None,
        *,
        settings: Sequence[str] | Mapping[str, Any] = (),
        epochs: int | None = None,
        budget: str | None = None,
        model: str | None = None,
        img_size: int | tuple[int, int] | None = None,
        augment: Augment | Mapping[str, Any] | bool = True,
        random_state: int | np.random.RandomState | None = 0,
        run_dir: str | Path | None = None,
        image_shape: tuple[int, ...] | None = None,
        pixel_range: tuple[float, float] | None = None,
        threads: int | None = None,
        verbose: bool = False,
        unlabelled: Any = None,
    ):
        self.recipe = recipe
        self.settings = settings
        self.epochs = epochs
        self.budget = budget
        self.model = model
        self.img_size = img_size
        self.augment = augment
        self.random_state = random_state
        self.run_dir = run_dir
        self.image_shape = image_shape
        self.pixel_range = pixel_range
        self.threads = threads
        self.verbose = verbose
        self.unlabelled = unlabelled

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> "ViTRegressor":
        """Train on images and their numbers. A tenth of them, or the recipe's val_fraction, is held out to choose the weights.

        `sample_weight`: how much each image counts in the loss, in proportion; one of 0 is left out. `groups`: the patient, slide or video
        of each image; those of one are held out together.
        """
        if y is None:
            raise UserError("ViTRegressor requires y to be passed, but the target y is None.")
        X, numbers = only_column(X), _as_numbers(y)
        check_consistent_length(X, numbers)
        if len(numbers) < FEWEST_IMAGES:
            raise UserError(f"n_samples={len(numbers)}, and ViTRegressor needs {FEWEST_IMAGES} images at least.")
        labels = np.zeros(len(numbers), np.int64)
        weights = image_weights(sample_weight, None, labels, np.zeros(1))
        self._fit(X, labels, targets=numbers, names=NUMBER, kind="numbers", weights=weights, groups=groups)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The number of each image."""
        return self._values(X).number

    def predict_interval(self, X: Any) -> np.ndarray:
        """(images, 2): the ends of the 90 % prediction interval of each image, calibrated on what was held out."""
        values = self._values(X)
        return np.stack([values.low, values.high], axis=1)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the checks' few numbers, which are not images
        return tags

    def _values(self, X: Any) -> Values:
        check_is_fitted(self)
        return Values.of(self._outputs(X, self.model_).double().numpy(), self.bins_, self.temperature_)

    def _read(self, run: Run, known: Mapping[str, Any]) -> dict[str, Any]:
        return {"bins_": run.target.numbers}


def _as_numbers(y: Any) -> np.ndarray:
    y = column_or_1d(y, warn=True)
    try:
        numbers = y.astype(np.float64)
    except (TypeError, ValueError):
        raise UserError(
            f"y holds {y[0]!r:.40}, and ViTRegressor learns numbers; ViTClassifier learns classes."
        ) from None
    assert_all_finite(numbers, input_name="y")
    return numbers.astype(np.float32)
