"""ViTClassifier: the scikit-learn estimator of classes, and of several labels per image."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from vitling.errors import UserError
from vitling.estimator.base import ViTEstimator
from vitling.estimator.inputs import label_names, only_column, several_targets
from vitling.estimator.weights import image_weights
from vitling.evaluation.thresholds import find_thresholds
from vitling.recipes import Augment, Recipe
from vitling.runs.run import Run


class ViTClassifier(ClassifierMixin, ViTEstimator):
    """A Vision Transformer from scratch, as a scikit-learn classifier and transformer.

    Images are arrays of (N, H, W), (N, H, W, C) or (N, C, H, W), lists or pandas columns of paths or of Pillow images, or flat rows of
    (N, D) pixels: of square images, or of `image_shape`. Pixels other than uint8 are brought to 8 bits by `pixel_range`.

    recipe: a name, a YAML file, a run or a Recipe; None trains what `vitling plan` would.
    settings: changes to it as on the command line, such as ["optim.lr=3e-4", "batch_size=32"], or as a dict.
    epochs: so many, with the recipe's schedule in proportion; or budget: a time, such as "90s".
    model: another network than the recipe's, or than the plan would choose, with its own arguments.
    img_size: the side, or height and width, at which the network sees images.
    augment: True is the recipe's augmentation, False none; a dict changes parts of it, a `vitling.recipes.Augment` replaces it.
    class_weight: "balanced", or a dict of class and weight, by which images count in the loss.
    random_state: of the weights, the augmentation and the held-out images; None draws one from NumPy's global state.
    folds: train so many networks, each with another part of the images held out, and predict with all of them together.
    warm_start: fit again goes on from the weights there are, with a new schedule, and not from scratch.
    run_dir: a folder that keeps every run, each named by its data and recipe. The same fit again finds or resumes its own.
    image_shape: height and width, and channels where there are several, of flat rows; -1 for one that follows.
    pixel_range: the values that become black and white; None takes the lowest and the highest of the training images.
    unlabelled: images to learn from first, without labels, in a share of the time (unlabelled_time=): an array, a list or a folder.
        Those that are to be tested on must not be among them; those that fit holds out are left out.
    threads: CPU threads; None takes one or all, whichever is faster.
    verbose: show the progress.
    seed: the former name of random_state.
    """

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
        class_weight: Mapping[Any, float] | str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        folds: int | None = None,
        warm_start: bool = False,
        run_dir: str | Path | None = None,
        image_shape: tuple[int, ...] | None = None,
        pixel_range: tuple[float, float] | None = None,
        threads: int | None = None,
        verbose: bool = False,
        seed: int | None = None,
        unlabelled: Any = None,
    ):
        self.recipe = recipe
        self.settings = settings
        self.epochs = epochs
        self.budget = budget
        self.model = model
        self.img_size = img_size
        self.augment = augment
        self.class_weight = class_weight
        self.random_state = random_state
        self.folds = folds
        self.warm_start = warm_start
        self.run_dir = run_dir
        self.image_shape = image_shape
        self.pixel_range = pixel_range
        self.threads = threads
        self.verbose = verbose
        self.seed = seed
        self.unlabelled = unlabelled

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> "ViTClassifier":
        """Train on images and their classes. A tenth of them, or the recipe's val_fraction, is held out to choose the weights.

        `y` of (N, labels) with 0 and 1 are several labels per image: then `predict` gives such an array, and `score` the share of images with
        every label right, as scikit-learn's multilabel classifiers do. The columns of a table name the labels.
        `sample_weight`: how much each image counts in the loss, in proportion; one of 0 is left out. `groups`: the patient, slide or video
        of each image, as scikit-learn's splitters take them; those of one are held out together.
        """
        if y is None:
            raise UserError("ViTClassifier requires y to be passed, but the target y is None.")
        X = only_column(X)
        check_consistent_length(X, y)
        goes_on = self._goes_on()
        targets = several_targets(y)
        if targets is None:
            y = column_or_1d(y, warn=True)
            check_classification_targets(y)
            classes, labels = np.unique(y, return_inverse=True)
        else:
            classes, labels = label_names(y, targets), np.zeros(len(targets), np.int64)
            self._check_several()
        self._check_classes(classes, goes_on, several=targets is not None)
        weights = image_weights(sample_weight, self.class_weight, labels, classes)
        self._fit(
            X,
            labels,
            targets=targets,
            names=[str(name) for name in classes],
            kind="classes" if targets is None else "several",
            weights=weights,
            groups=groups,
            goes_on=goes_on,
            classes_=classes,
        )
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The class of each image; of several labels, 1 where a probability reaches the threshold of its label, (images, labels)."""
        if (thresholds := getattr(self, "thresholds_", None)) is not None:
            return (self.predict_proba(X) >= thresholds).astype(np.int64)
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, (images, classes), in the order of `classes_`; the temperature is fitted on what was held out.

        Of several labels, that of each by itself.
        """
        check_is_fitted(self)
        logits = self._outputs(X, self.model_).double()
        if getattr(self, "thresholds_", None) is not None:
            return (logits / self.temperature_).sigmoid().numpy()
        shares = (logits / self.temperature_).softmax(dim=1).numpy()
        return shares[:, getattr(self, "order_", slice(None))]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.poor_score = True  # on the checks' blobs of a few numbers, which are not images
        return tags

    def _read(self, run: Run, known: Mapping[str, Any]) -> dict[str, Any]:
        if run.kind != "several":
            # Grades have an order of their own: grade_2 is before grade_10.
            order = [run.class_names.index(str(name)) for name in known["classes_"]]
            return {"thresholds_": None, "order_": order}
        return {"thresholds_": np.array(find_thresholds(run, predictions=run.validation).values)}

    def _check_several(self) -> None:
        """Refuse what knows one class per image."""
        if self.class_weight is not None:
            raise UserError(
                "class_weight= is of one class per image; for several labels set settings=['balance=loss']."
            )
        if self.folds is not None:
            raise UserError("folds= join networks of one class per image; leave it out for several labels.")

    def _check_classes(self, classes: np.ndarray, goes_on: bool, *, several: bool) -> None:
        if goes_on and several != (getattr(self, "thresholds_", None) is not None):
            raise UserError("warm_start=True goes on with the same kind of labels; set warm_start=False.")
        if len(classes) < 2:
            found = f"of one class, {classes[0]}" if len(classes) else "none"
            raise UserError(f"the images are {found}; at least two classes are needed.")
        if goes_on and not np.array_equal(classes, self.classes_):
            there, here = ([str(name) for name in names[:5]] for names in (self.classes_, classes))
            raise UserError(
                f"warm_start=True goes on with the classes {', '.join(there)}; these images are of {', '.join(here)}. "
                "Give the same classes, or set warm_start=False."
            )
