"""The scikit-learn estimator: any form of images in, and everything scikit-learn does with a classifier."""

import gc
import json
from functools import partial

import joblib
import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import vitling
from vitling.data.sources.dataset import open_dataset
from vitling.data.sources.images import ArrayImages
from vitling.data.sources.memory import keep
from vitling.errors import UserError
from vitling.evaluation.temperature import calibrate
from vitling.recipes import Augment, Optim, Recipe, replace


def check_name(check) -> str:
    return (check.func if isinstance(check, partial) else check).__name__


TINY = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    epochs=1,
    batch_size=8,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(lr=3e-3, warmup_epochs=0),
)


@pytest.fixture(scope="module")
def digits():
    data = load_digits(n_class=3)
    return data.images[:60], data.target[:60]


def tiny(**params) -> vitling.ViTClassifier:
    return vitling.ViTClassifier(TINY, threads=1, **params)


@pytest.fixture(scope="module")
def fitted(digits):
    return tiny().fit(*digits)


def test_it_learns_to_tell_zeros_from_ones():
    data = load_digits(n_class=2)
    classifier = tiny(epochs=5).fit(data.images[:200], data.target[:200])
    assert classifier.score(data.images[200:], data.target[200:]) > 0.9
    assert classifier.n_iter_ == len(classifier.history_) == 5


def test_without_a_recipe_it_trains_what_the_plan_says(digits):
    classifier = vitling.ViTClassifier(settings=["batch_size=16"], epochs=1, threads=1).fit(*digits)
    assert type(classifier.model_).__name__ == "HybridViT"
    assert classifier.n_iter_ == 1


def test_probabilities_are_in_the_order_of_the_classes(digits, fitted):
    X, y = digits
    shares = fitted.predict_proba(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[shares.argmax(axis=1)])
    np.testing.assert_array_equal(fitted.classes_, np.unique(y))


def test_probabilities_are_calibrated_on_what_was_held_out(digits, tmp_path):
    X, y = digits
    classifier = tiny(epochs=2, run_dir=tmp_path).fit(X, y)
    kept = calibrate(classifier.run_)
    assert kept.temperature == classifier.temperature_ != 1
    assert kept.loss_after < kept.loss_before
    calibrated = classifier.predict_proba(X)
    classifier.temperature_ = 1.0
    sharpened = classifier.predict_proba(X) ** (1 / kept.temperature)
    np.testing.assert_allclose(calibrated, sharpened / sharpened.sum(axis=1, keepdims=True), rtol=1e-6)


def test_every_form_of_the_same_images_gives_the_same_model(digits, fitted):
    X, y = digits
    expected = fitted.predict_proba(X)
    pixels = np.rint(X * 255 / 16).astype(np.uint8)
    forms = {
        "channels last": X[..., None],
        "channels first": X[:, None],
        "flat": X.reshape(len(X), -1),
        "lists": X.reshape(len(X), -1).tolist(),
        "bytes": pixels,
        "Pillow": [Image.fromarray(image) for image in pixels],
    }
    for name, form in forms.items():
        classifier = tiny().fit(form, y)
        np.testing.assert_array_equal(classifier.predict_proba(form), expected, err_msg=name)


def test_paths_and_string_labels_are_taken(digits, tmp_path):
    X, y = digits
    paths = []
    for i, image in enumerate(X[:30]):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(np.rint(image * 255 / 16).astype(np.uint8)).save(paths[-1])
    names = np.array(["zero", "one", "two"])[y[:30]]
    classifier = tiny().fit(paths, names)
    assert list(classifier.classes_) == ["one", "two", "zero"]
    assert set(classifier.predict([str(path) for path in paths])) <= set(names)


def test_flat_rows_of_colour_images_need_a_shape(digits):
    X, y = digits
    rows = np.repeat(X[:, :4, :, None], 3, axis=3).reshape(len(X), -1)  # 4 x 8 x 3
    with pytest.raises(ValueError, match="96 features are not a square image; give image_shape"):
        tiny().fit(rows, y)
    classifier = tiny(image_shape=(4, 8, 3)).fit(rows, y)
    assert classifier.preprocessing_.size == (4, 8)
    assert classifier.preprocessing_.channels == 3
    assert classifier.n_features_in_ == 96


def test_the_range_of_the_training_images_holds_for_later_ones(digits, fitted):
    assert fitted.pixel_range_ == (0, 16)
    dim = fitted.predict_proba(digits[0] / 2)
    assert not np.allclose(dim, fitted.predict_proba(digits[0]))


def test_cross_validation_and_grids_work(digits):
    scores = cross_val_score(tiny(), *digits, cv=2, error_score="raise")
    assert len(scores) == 2
    grid = {"settings": [["optim.lr=1e-3"], ["optim.lr=3e-3"]]}
    search = GridSearchCV(tiny(), grid, cv=2, error_score="raise").fit(*digits)
    assert search.best_params_["settings"] in grid["settings"]


def test_it_can_end_a_pipeline(digits):
    X, y = digits
    pipeline = make_pipeline(MinMaxScaler(), tiny()).fit(X.reshape(len(X), -1), y)
    assert pipeline.predict(X[:3].reshape(3, -1)).shape == (3,)


def test_a_saved_classifier_says_the_same(digits, fitted, tmp_path):
    joblib.dump(fitted, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(again.predict_proba(digits[0]), fitted.predict_proba(digits[0]))


def test_a_run_is_kept_and_found_again(digits, tmp_path):
    first = tiny(run_dir=tmp_path).fit(*digits)
    stamp = (first.run_.path / "best" / "model.safetensors").stat().st_mtime_ns
    again = clone(first).fit(*digits)
    assert again.run_.path == first.run_.path
    assert (again.run_.path / "best" / "model.safetensors").stat().st_mtime_ns == stamp
    other = clone(first).set_params(seed=1).fit(*digits)
    assert other.run_.path != first.run_.path
    info = json.loads((first.run_.path / "run.json").read_text())
    assert len(info["data"]["fingerprint"]) == 64
    assert info["data"]["name"].startswith("memory:")


def test_images_of_a_process_that_is_gone_are_asked_for():
    kept = keep(ArrayImages(np.zeros((4, 8, 8), np.uint8), [0, 0, 1, 1]), ["a", "b"])
    name = kept.name
    assert len(open_dataset(name).splits["train"]) == 4
    del kept
    gc.collect()
    with pytest.raises(UserError, match=f"{name} were arrays or a list in the memory of a process"):
        open_dataset(name)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"epochs": 3, "budget": "1m"}, "both say how long"),
        ({"budget": "soon"}, "^budget 'soon' is not a duration"),
        ({"settings": ["optim.lrr=1"]}, "Did you mean optim.lr"),
        ({"recipe": "digits/vit_nanoo"}, "Did you mean digits/vit_nano"),
        ({"image_shape": (3, 3)}, "does not hold the 64 features"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(digits, params, words):
    X, y = digits
    with pytest.raises(ValueError, match=words) as caught:
        tiny().set_params(**params).fit(X.reshape(len(X), -1), y)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)


def test_images_that_cannot_be_are_one_line(digits):
    X, y = digits
    with pytest.raises(ValueError, match="one class"):
        tiny().fit(X, np.zeros(len(X), int))
    with pytest.raises(ValueError, match="only one training image of class '7'"):
        tiny().fit(X, np.r_[7, np.zeros(len(X) - 1, int)])
    with pytest.raises(ValueError, match="NaN"):
        tiny().fit(np.full_like(X, np.nan), y)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        tiny().fit(X[:10], y)
    with pytest.raises(ValueError, match="no such file"):
        tiny().fit(["absent-1.png", "absent-2.png", "absent-3.png", "absent-4.png"], [0, 0, 1, 1])
    with pytest.raises(NotFittedError):
        tiny().predict(X)


def test_a_listed_image_has_its_own_range(digits):
    images = [Image.fromarray(image.astype(np.uint8)) for image in digits[0]]
    with pytest.raises(ValueError, match="are for arrays"):
        tiny(pixel_range=(0, 1)).fit(images, digits[1])


# scikit-learn's checks are made of rows of 1 to 20 numbers; here each row is an image one pixel high.
ROWS = vitling.ViTClassifier(
    replace(TINY, model_args=dict(patch_size=1, embed_dim=8, depth=1, num_heads=1)),
    image_shape=(1, -1),
    threads=1,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", [check for _, check in estimator_checks_generator(ROWS)], ids=check_name)
def test_it_keeps_the_contract_of_scikit_learn(check):
    check(clone(ROWS))
