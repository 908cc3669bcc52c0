"""ViTClassifier: training as a scikit-learn estimator, for cross-validation, grids and pipelines."""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data

from vitling.cli import terminal
from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.sources.dataset import Dataset
from vitling.data.sources.images import Images
from vitling.data.sources.memory import array_images, is_list_of_images, keep, list_images
from vitling.errors import UserError
from vitling.evaluation.loop import predict_logits
from vitling.evaluation.temperature import calibrate
from vitling.planning.plan import plan
from vitling.recipes import Recipe, load_recipe, override, scale_epochs
from vitling.runs.run import Run, asked_for
from vitling.training.beginning import train
from vitling.training.duration import parse_duration
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted


class ViTClassifier(ClassifierMixin, BaseEstimator):
    """A Vision Transformer from scratch, as a scikit-learn classifier.

    Images are arrays of (N, H, W), (N, H, W, C) or (N, C, H, W), lists of paths or of Pillow images, or flat rows of (N, D) pixels:
    of square images, or of `image_shape`. Pixels other than uint8 are brought to 8 bits by `pixel_range`.

    recipe: a name, a YAML file, a run or a Recipe; None trains what `vitling plan` would.
    settings: changes to it as on the command line, such as ["optim.lr=3e-4", "batch_size=32"].
    epochs: so many, with the recipe's schedule in proportion; or budget: a time, such as "90s".
    run_dir: a folder that keeps every run, each named by its data and recipe. The same fit again finds or resumes its own.
    image_shape: height and width, and channels where there are several, of flat rows; -1 for one that follows.
    pixel_range: the values that become black and white; None takes the lowest and the highest of the training images.
    threads: CPU threads; None takes one or all, whichever is faster.
    verbose: show the progress.
    """

    def __init__(
        self,
        recipe: str | Recipe | None = None,
        *,
        settings: Sequence[str] = (),
        epochs: int | None = None,
        budget: str | None = None,
        seed: int = 0,
        run_dir: str | Path | None = None,
        image_shape: tuple[int, ...] | None = None,
        pixel_range: tuple[float, float] | None = None,
        threads: int | None = None,
        verbose: bool = False,
    ):
        self.recipe = recipe
        self.settings = settings
        self.epochs = epochs
        self.budget = budget
        self.seed = seed
        self.run_dir = run_dir
        self.image_shape = image_shape
        self.pixel_range = pixel_range
        self.threads = threads
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> "ViTClassifier":
        """Train on images and their classes. A tenth of them, or the recipe's val_fraction, is held out to choose the weights."""
        if y is None:
            raise UserError("ViTClassifier requires y to be passed, but the target y is None.")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        check_consistent_length(X, y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            found = f"of one class, {self.classes_[0]}" if len(self.classes_) else "none"
            raise UserError(f"the images are {found}; at least two classes are needed.")
        kept = keep(self._images(X, labels, fitting=True), [str(name) for name in self.classes_])
        recipe, budget, dataset = self._recipe(kept.name)
        with self._folder(recipe, budget) as folder:
            run = self._train(recipe, budget, folder, dataset)
            self.model_, self.preprocessing_ = run.load_model(), run.preprocessing()
            self.temperature_ = calibrate(run, predictions=run.validation).temperature
            self.history_, self.n_iter_ = run.metrics(), run.info["epochs_trained"]
            self.run_ = Run(run.path) if self.run_dir else None  # its predictions on what was held out are let go
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The class of each image."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, (images, classes), in the order of `classes_`; the temperature is fitted on what was held out."""
        check_is_fitted(self)
        seen = self.preprocessing_
        images = self._images(X, None, fitting=False)
        source = load_split(images, "images", reading=Reading(), **seen.fit_args())
        logits = predict_logits(self.model_, source, seen).double()
        return (logits / self.temperature_).softmax(dim=1).numpy()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True  # paths
        tags.classifier_tags.poor_score = True  # on the checks' blobs of a few numbers, which are not images
        return tags

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        if "model_" in state:
            state["model_"] = state["model_"].cpu()  # so that it opens on a machine without a GPU
        return state

    # -- images ----------------------------------------------------------------------------------------------------

    def _images(self, X: Any, labels: np.ndarray | None, *, fitting: bool) -> Images:
        """What was given, as images; labels matter only for fitting."""
        listed = is_list_of_images(X)
        if listed:
            if self.pixel_range or self.image_shape:
                raise UserError("pixel_range= and image_shape= are for arrays; files and Pillow images have their own.")
        else:
            X = self._pixels(X, fitting)
        if fitting:
            self.pixel_range_ = (0.0, 255.0) if listed else self.pixel_range or _pixel_range(X)
        labels = np.zeros(len(X), np.int64) if labels is None else labels
        if listed:
            return list_images(X, labels)
        channels = None if fitting else self.preprocessing_.channels
        return array_images(_as_bytes(X, *self.pixel_range_), labels, channels=channels)

    def _pixels(self, X: Any, fitting: bool) -> np.ndarray:
        """Numbers as (N, H, W), or with channels on either side."""
        X = X if hasattr(X, "ndim") else np.asarray(X)
        if X.ndim > 2:
            X = check_array(X, allow_nd=True, ensure_2d=False)
        else:
            X = validate_data(self, X, reset=fitting)
            X = X.reshape(len(X), *self._shape_of(X.shape[1]))
        if X.ndim not in (3, 4):
            raise UserError(f"images of shape {X.shape}; (N, H, W), (N, H, W, C), (N, C, H, W) or (N, D) are allowed.")
        return X

    def _shape_of(self, features: int) -> tuple[int, ...]:
        """Height, width and maybe channels of a flat row of so many numbers."""
        if self.image_shape is not None:
            try:
                return np.empty(features, np.bool_).reshape(self.image_shape).shape
            except (TypeError, ValueError):
                raise UserError(
                    f"image_shape={self.image_shape} does not hold the {features} features of a row."
                ) from None
        side = round(features**0.5)
        if side * side != features:
            raise UserError(
                f"{features} features are not a square image; give image_shape=(height, width), or images of (N, H, W)."
            )
        return side, side

    # -- training --------------------------------------------------------------------------------------------------

    def _recipe(self, data: str) -> tuple[Recipe, float | None, Dataset | None]:
        """What to train, for how long, and the data where a plan has opened it."""
        if self.epochs and self.budget:
            raise UserError("epochs= and budget= both say how long to train; give one of them.")
        settings, dataset = list(self.settings), None
        budget = parse_duration(str(self.budget), what="budget") if self.budget else None
        if self.recipe is None:
            planned = plan(data, settings, brief=True, budget_seconds=budget, threads=self.threads)
            recipe, dataset = planned.recipe, planned.dataset
        else:
            recipe = self.recipe if isinstance(self.recipe, Recipe) else load_recipe(self.recipe)
            recipe = override(recipe, settings)
        recipe = scale_epochs(recipe, self.epochs) if self.epochs else recipe
        return override(recipe, {"data": data, "seed": self.seed}), budget, dataset

    @contextmanager
    def _folder(self, recipe: Recipe, budget: float | None):
        """Where the run goes: a place of its own in run_dir, or one that is gone afterwards."""
        if self.run_dir is None:
            with tempfile.TemporaryDirectory(prefix="vitling-") as folder:
                yield Path(folder) / "run"
        else:
            # By what is asked for, not by a counter: several processes of a search then never want the same folder.
            asked = json.dumps(asked_for(recipe, budget), sort_keys=True)
            yield Path(self.run_dir) / f"run-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"

    def _train(self, recipe: Recipe, budget: float | None, folder: Path, dataset: Dataset | None) -> Run:
        settings = Settings(threads=self.threads, budget_seconds=budget)
        try:
            with terminal.show_training() if self.verbose else nullcontext() as callback:
                run = train(recipe, folder, settings=settings, dataset=dataset, callback=callback)
        except Interrupted:
            raise KeyboardInterrupt from None
        return run


def _pixel_range(pixels: np.ndarray) -> tuple[float, float]:
    """The values that mean black and white: of uint8 always 0 and 255."""
    return (0.0, 255.0) if pixels.dtype == np.uint8 else (float(pixels.min()), float(pixels.max()))


def _as_bytes(pixels: np.ndarray, low: float, high: float) -> np.ndarray:
    """Numbers of any kind as uint8: low becomes 0 and high 255, what lies beyond is clipped."""
    if pixels.dtype == np.uint8 and (low, high) == (0, 255):
        return pixels
    scale = 255 / (high - low) if high > low else 0.0
    return np.clip(np.rint((pixels.astype(np.float64) - low) * scale), 0, 255).astype(np.uint8)
