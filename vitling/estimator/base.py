"""ViTEstimator: training as a scikit-learn estimator, for cross-validation, grids and pipelines."""

import hashlib
import inspect
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from vitling.cli import terminal
from vitling.data.groups import as_groups
from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.sources.dataset import Dataset, canonical_name
from vitling.data.sources.images import Images
from vitling.data.sources.memory import Kept, array_images, is_list_of_images, keep, list_images
from vitling.data.sources.unlabelled import NO_LABELS
from vitling.data.targets import Kind
from vitling.deploy.export import Exported, export
from vitling.deploy.neighbours import image_features
from vitling.diagnose.paged import train
from vitling.ensembles.folds import check_folds, train_folds
from vitling.errors import UserError
from vitling.estimator.inputs import as_bytes, find_pixel_range, only_column, row_shape
from vitling.estimator.parameters import as_settings
from vitling.evaluation.loop import evaluate_batches
from vitling.evaluation.temperature import calibrate
from vitling.files import read_file, write_bytes
from vitling.models.ensemble import NAME as ENSEMBLE
from vitling.models.weights import save_weights
from vitling.planning.plan import plan
from vitling.recipes import NO_FIRST_STAGE, Augment, Recipe, load_recipe, override, replace, scale_epochs
from vitling.runs.asked import asked_ensemble, asked_for
from vitling.runs.device import default_device
from vitling.runs.run import Run
from vitling.training.duration import parse_duration
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted
from vitling.validation.values import show

# What a run records beside its weights: enough to export it when its folder is gone.
RECORDS = (
    "run.json",
    "recipe.yaml",
    "metrics.jsonl",
    "timing.jsonl",
    "calibration.json",
    "thresholds.json",
    "best/config.json",
)


class _Task(NamedTuple):
    """What to train, for how long, in which precision, and the data where a plan has opened it."""

    recipe: Recipe
    budget: float | None
    precision: str
    dataset: Dataset | None


class ViTEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A Vision Transformer from scratch as a scikit-learn estimator: what one of classes and one of numbers have in common.

    A class of it has the parameters that it names; what is not among them stays as it is here.
    """

    recipe: str | Recipe | None
    settings: Sequence[str] | Mapping[str, Any]
    epochs: int | None
    budget: str | None
    model: str | None
    img_size: int | tuple[int, int] | None
    augment: Augment | Mapping[str, Any] | bool
    random_state: int | np.random.RandomState | None
    run_dir: str | Path | None
    image_shape: tuple[int, ...] | None
    pixel_range: tuple[float, float] | None
    threads: int | None
    verbose: bool
    unlabelled: Any
    class_weight: Mapping[Any, float] | str | None = None
    folds: int | None = None
    warm_start: bool = False
    seed: int | None = None
    _labels: str | None = None  # the recipe's key, where it is not for the data to say

    def transform(self, X: Any) -> np.ndarray:
        """Features: what the network gives its classifier, (images, width). Those of its own training images flatter it."""
        check_is_fitted(self)
        return self._outputs(X, lambda images: image_features(self.model_, images)).numpy()

    def export(self, to: str, out: str | Path | None = None, **options: Any) -> Exported:
        """Write the model as "onnx", "timm" or "hf", as `vitling.export` does; by default into its run, where `run_dir` keeps that.

        It takes 8-bit pixels: other numbers have to be brought there by `pixel_range_`, and a note of the result says so.
        """
        check_is_fitted(self)
        with self._as_run(out) as run:
            exported = export(run, to, out, **options)
        if self.pixel_range_ != (0, 255):
            low, high = self.pixel_range_
            exported.notes.append(f"it takes pixels of 0 to 255; in training {low:g} became 0 and {high:g} became 255")
        return exported

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True  # paths
        tags.transformer_tags.preserves_dtype = []  # features are float32 whatever the pixels are
        return tags

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        if "model_" in state:
            state["model_"] = state["model_"].cpu()  # so that it opens on a machine without a GPU
        return state

    def __setstate__(self, state: dict) -> None:
        """What an earlier version pickled lacks the newer parameters: they have their defaults."""
        defaults = inspect.signature(type(self)).parameters.values()
        super().__setstate__({**{p.name: p.default for p in defaults}, **state})

    # -- images ----------------------------------------------------------------------------------------------------

    def _images(self, X: Any, labels: np.ndarray | None, *, fitting: bool, keep_range: bool = False) -> Images:
        """What was given, as images; labels matter only for fitting."""
        listed = is_list_of_images(X)
        if listed:
            if self.pixel_range or self.image_shape:
                raise UserError("pixel_range= and image_shape= are for arrays; files and Pillow images have their own.")
        else:
            X = self._pixels(X, fitting and not keep_range)
        if fitting and not keep_range:
            self.pixel_range_ = (0.0, 255.0) if listed else self.pixel_range or find_pixel_range(X)
        labels = np.zeros(len(X), np.int64) if labels is None else labels
        if listed:
            return list_images(X, labels)
        channels = None if fitting and not keep_range else self.preprocessing_.channels
        return array_images(as_bytes(X, *self.pixel_range_), labels, channels=channels)

    def _pixels(self, X: Any, reset: bool) -> np.ndarray:
        """Numbers as (N, H, W), or with channels on either side."""
        X = X if hasattr(X, "ndim") else np.asarray(X)
        if X.ndim > 2:
            X = check_array(X, allow_nd=True, ensure_2d=False)
        else:
            X = validate_data(self, X, reset=reset)
            X = X.reshape(len(X), *row_shape(X.shape[1], self.image_shape))
        if X.ndim not in (3, 4):
            raise UserError(f"images of shape {X.shape}; (N, H, W), (N, H, W, C), (N, C, H, W) or (N, D) are allowed.")
        return X

    def _outputs(self, X: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
        """What a function makes of each image as the network sees it, on the CPU."""
        seen = self.preprocessing_
        images = self._images(only_column(X), None, fitting=False)
        source = load_split(images, "images", reading=Reading(), **seen.fit_args())
        batches = evaluate_batches(
            self.model_.to(default_device()), source, seen, function=lambda batch: seen.score(function, batch)
        )
        return torch.cat([outputs.cpu() for outputs, _ in batches])

    # -- training --------------------------------------------------------------------------------------------------

    def _fit(
        self,
        X: Any,
        labels: np.ndarray,
        *,
        targets: np.ndarray | None,
        names: Sequence[str],
        kind: Kind,
        weights: np.ndarray | None,
        groups: Any,
        goes_on: bool = False,
        **known: Any,
    ) -> None:
        """Train on images and what they show; what is `known` already counts from when that has succeeded."""
        images = self._images(X, labels, fitting=True, keep_range=goes_on)
        images.targets = targets
        if groups is not None:
            check_consistent_length(X, groups)
            images.groups = as_groups(column_or_1d(groups), "groups")
        if weights is not None:
            counted = np.flatnonzero(weights)
            images = images.subset(counted)
            images.weights = weights[counted]
        kept = keep(images, names, kind)
        unlabelled = self._keep_unlabelled()
        first = unlabelled.name if isinstance(unlabelled, Kept) else unlabelled
        ways = dict(weighted=weights is not None, grouped=groups is not None, goes_on=goes_on)
        task = self._task(kept.name, **ways, unlabelled=first)
        with self._place() as place:
            if goes_on:
                task = task._replace(recipe=self._from_weights(task.recipe, place))
            run = self._train(task, _folder_in(place, task.recipe, task.budget, self._folds()))
            self._take(run, known)

    def _folds(self) -> int | None:
        """How many networks, also of a grid that NumPy made."""
        folds = self.folds.item() if isinstance(self.folds, np.generic) else self.folds
        if folds is not None:
            check_folds(folds)
        return folds

    def _goes_on(self) -> bool:
        """Whether fit begins with the weights there are."""
        if not self.warm_start or not hasattr(self, "model_"):
            return False
        if self.folds is not None or getattr(getattr(self, "recipe_", None), "model", "") == ENSEMBLE:
            raise UserError("warm_start=True goes on with one network; leave folds out, or set warm_start=False.")
        if not hasattr(self, "recipe_"):
            raise UserError("warm_start: this was fitted by an earlier version of vitling; fit it once from scratch.")
        return True

    def _keep_unlabelled(self) -> Kept | str:
        """Images without labels under a name, or where they lie; empty where there are none."""
        given = self.unlabelled
        if given is None:
            return ""
        if isinstance(given, str | Path):
            return canonical_name(given)
        if not hasattr(given, "__len__") or not len(given):
            raise UserError(
                f"unlabelled={show(given)} holds no images; give an array or a list of images, a folder, or None."
            )
        given = only_column(given)
        nothing = np.zeros(len(given), np.int64)
        if is_list_of_images(given):
            return keep(list_images(given, nothing), NO_LABELS)
        return keep(array_images(as_bytes(self._pixels(given, reset=False), *self.pixel_range_), nothing), NO_LABELS)

    def _task(self, data: str, *, weighted: bool, grouped: bool, goes_on: bool, unlabelled: str = "") -> _Task:
        if self.epochs and self.budget:
            raise UserError("epochs= and budget= both say how long to train; give one of them.")
        first = {"unlabelled": unlabelled or None, "labels": self._labels}
        settings = as_settings(self.settings, {"model": self.model, "img_size": self.img_size, **first}, self.augment)
        keys = {text.partition("=")[0].strip() for text in settings}
        if self.epochs and "epochs" in keys:
            raise UserError("epochs= is given twice, as a parameter and in settings; leave one out.")
        dataset, precision = None, ""
        budget = parse_duration(str(self.budget), what="budget") if self.budget else None
        if self.recipe is not None:
            recipe = self.recipe if isinstance(self.recipe, Recipe) else load_recipe(self.recipe)
            if self.model and self.model != recipe.model:
                recipe = replace(recipe, model_args={})  # those of another network
            recipe = override(recipe, settings)
        elif goes_on:
            recipe = override(self.recipe_, settings)
            precision = getattr(self, "precision_", "")  # one that an earlier version fitted has none
        else:
            # Who says how much an image counts does not want the plan to balance the classes as well.
            unbalanced = ["balance=none"] if weighted and "balance" not in keys else []
            each = budget and budget / (self._folds() or 1)
            planned = plan(data, settings + unbalanced, brief=True, budget_seconds=each, threads=self.threads)
            recipe, dataset, precision = planned.recipe, planned.dataset, planned.precision
        if self.class_weight is not None and recipe.balance != "none":
            raise UserError(
                f"class_weight= and balance={recipe.balance} both weigh the classes; leave one out, or set balance=none."
            )
        if self.epochs:  # of a grid that NumPy made, as well
            recipe = scale_epochs(recipe, self.epochs.item() if isinstance(self.epochs, np.generic) else self.epochs)
        if grouped and recipe.group:
            raise UserError(f"groups= and group={recipe.group} both say which images belong together; leave one out.")
        begins = NO_FIRST_STAGE if goes_on else {}  # weights that are there already have learnt from those images
        return _Task(override(recipe, {"data": data, "seed": self._seed(), **begins}), budget, precision, dataset)

    def _seed(self) -> int:
        if self.seed is not None:
            warnings.warn(f"{type(self).__name__}(seed=) is now random_state=", DeprecationWarning, stacklevel=4)
            return self.seed
        if self.random_state is None or isinstance(self.random_state, np.random.RandomState):
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        return self.random_state.item() if isinstance(self.random_state, np.generic) else self.random_state

    def _from_weights(self, recipe: Recipe, place: Path) -> Recipe:
        """The recipe from the weights there are on, for images that are seen as before."""
        known, seen = self.recipe_, self.preprocessing_
        if (recipe.model, recipe.model_args) != (known.model, known.model_args):
            raise UserError(
                f"warm_start=True goes on with {known.model}, and {recipe.model} with model_args={recipe.model_args} is asked for; "
                "leave it as it was, or set warm_start=False."
            )
        digest = hashlib.sha256()
        for name, value in self.model_.state_dict().items():
            digest.update(name.encode() + value.cpu().contiguous().view(-1).numpy().tobytes())
        weights = place / f"weights-{digest.hexdigest()[:12]}.safetensors"
        if not weights.exists():
            save_weights(self.model_, weights)
        seen_as: dict[str, Any] = dict(img_size=seen.size, channels=seen.channels, mean=seen.mean, std=seen.std)
        return replace(recipe, init=str(weights), **seen_as)

    @contextmanager
    def _place(self) -> Iterator[Path]:
        """Where runs go: run_dir, or a folder that is gone afterwards."""
        if self.run_dir is not None:
            yield Path(self.run_dir)
        else:
            with tempfile.TemporaryDirectory(prefix="vitling-") as folder:
                yield Path(folder)

    def _train(self, task: _Task, folder: Path) -> Run:
        settings = Settings(
            precision=task.precision,
            threads=self.threads,
            budget_seconds=task.budget,
            page=self.run_dir is not None,
        )
        ways: dict[str, Any] = dict(settings=settings, dataset=task.dataset)
        try:
            with terminal.show_training() if self.verbose else nullcontext() as callback:
                if (folds := self._folds()) is None:
                    run = train(task.recipe, folder, callback=callback, **ways)
                else:
                    run = train_folds(task.recipe, folder, folds, callback=callback, **ways)
        except Interrupted:
            raise KeyboardInterrupt from None
        return run

    def _read(self, run: Run, known: Mapping[str, Any]) -> dict[str, Any]:
        """What a class of it knows of the run, by attribute, beside what is `known` of the data."""
        return {}

    def _take(self, run: Run, known: Mapping[str, Any]) -> None:
        """What is known after fit; all of it at once, so that one that failed leaves what was there."""
        temperature, own = calibrate(run, predictions=run.validation).temperature, self._read(run, known)
        for name, value in {**known, **own}.items():
            setattr(self, name, value)
        self.model_, self.preprocessing_ = run.load_model(), run.preprocessing()
        self.recipe_, self.precision_, self.temperature_ = run.recipe, run.info["precision"], temperature
        self.history_ = [record for one in run.members or [run] for record in one.metrics()]
        self.n_iter_ = run.info["epochs_trained"]
        self.run_ = Run(run.path) if self.run_dir else None  # its predictions on what was held out are let go
        seen = self.preprocessing_
        self._n_features_out = image_features(self.model_, torch.zeros(1, seen.channels, *seen.size)).shape[1]
        self._records = {name: read_file(run.path / name) for name in RECORDS if (run.path / name).exists()}

    @contextmanager
    def _as_run(self, out: str | Path | None) -> Iterator[Run]:
        """The run that was trained, or one that is written again from what is known of it."""
        if self.run_ is not None and self.run_.path.exists():
            yield self.run_
            return
        if not hasattr(self, "_records"):
            raise UserError("this was fitted by an earlier version of vitling, and its run is gone; fit it again.")
        if out is None:
            raise UserError("say where to export to, with out=; without run_dir= there is no run to put it into.")
        with tempfile.TemporaryDirectory(prefix="vitling-") as folder:
            run = Run(Path(folder) / "run")
            save_weights(self.model_, run.path / "best" / "model.safetensors")
            for name, content in self._records.items():
                write_bytes(run.path / name, content)
            yield run


def _folder_in(place: Path, recipe: Recipe, budget: float | None, folds: int | None) -> Path:
    """By what is asked for, not by a counter: several processes of a search then never want the same folder."""
    tree = asked_for(recipe, budget)
    asked = json.dumps(asked_ensemble(tree, folds, distill=False) if folds else tree, sort_keys=True)
    return place / f"run-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
