"""The scikit-learn estimator: any form of images in, and everything scikit-learn does with a classifier."""

import gc
import json
import pickle
from functools import partial

import joblib
import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, permutation_test_score
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


@pytest.mark.parametrize(("pays", "precision"), [(True, "bf16"), (False, "no")])
def test_what_it_plans_is_trained_in_the_precision_of_the_plan_and_goes_on_in_it(digits, pays, precision, monkeypatch):
    monkeypatch.setattr("vitling.planning.machine.bf16_pays", lambda: pays)
    planned = vitling.ViTClassifier(epochs=2, threads=1, warm_start=True, random_state=0).fit(*digits)
    assert planned.precision_ == precision
    monkeypatch.setattr("vitling.planning.machine.bf16_pays", lambda: not pays)
    assert planned.fit(*digits).precision_ == precision


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
    other = clone(first).set_params(random_state=1).fit(*digits)
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


# -- what scikit-learn's own estimators take -----------------------------------------------------------------------------


def files_of(images, folder):
    paths = [folder / f"{i}.png" for i in range(len(images))]
    for image, path in zip(images, paths, strict=True):
        Image.fromarray(np.rint(image * 255 / 16).astype(np.uint8)).save(path)
    return [str(path) for path in paths]


@pytest.mark.slow
def test_a_random_state_decides_and_its_former_name_still_does(digits):
    def answers(**params):
        return tiny(**params).fit(*digits).predict_proba(digits[0][:5])

    same, other = answers(random_state=3), answers(random_state=4)
    np.testing.assert_array_equal(answers(random_state=3), same)
    assert not np.array_equal(other, same)
    np.testing.assert_array_equal(
        answers(random_state=np.random.RandomState(5)), answers(random_state=np.random.RandomState(5))
    )
    with pytest.warns(DeprecationWarning, match="random_state"):
        np.testing.assert_array_equal(answers(seed=3), same)


def test_without_a_random_state_numpy_draws_one(digits):
    before = np.random.get_state()
    np.random.seed(11)
    try:
        first, second = (tiny(random_state=None).fit(*digits).recipe_.seed for _ in range(2))
    finally:
        np.random.set_state(before)
    assert first != second


@pytest.mark.slow
def test_the_class_that_counts_is_the_one_that_is_predicted(digits):
    X, y = digits
    contrary = np.arange(len(y)) % 3  # labels that images say nothing about
    for favoured in (0, 2):
        weight = {c: 1000.0 if c == favoured else 1.0 for c in range(3)}
        by_class = tiny(epochs=6, class_weight=weight).fit(X, contrary)
        assert (by_class.predict(X) == favoured).all()
        by_image = tiny(epochs=6).fit(X, contrary, sample_weight=np.where(contrary == favoured, 500.0, 0.5))
        np.testing.assert_array_equal(by_image.predict_proba(X), by_class.predict_proba(X))  # only proportions matter


@pytest.mark.slow
def test_balanced_classes_are_those_that_counting_gives(digits):
    X, y = digits
    rare = np.flatnonzero((y != 2) | (np.arange(len(y)) % 3 == 0))
    X, y = X[rare], y[rare]
    counts = np.bincount(y)
    by_hand = {c: len(y) / (3 * count) for c, count in enumerate(counts)}
    balanced, given = tiny(class_weight="balanced").fit(X, y), tiny(class_weight=by_hand).fit(X, y)
    np.testing.assert_allclose(balanced.predict_proba(X), given.predict_proba(X), rtol=1e-5)
    assert not np.allclose(balanced.predict_proba(X), tiny().fit(X, y).predict_proba(X))


def test_an_image_of_no_weight_is_left_out(digits):
    X, y = digits
    weights = np.ones(len(y))
    weights[:10] = 0
    without = tiny().fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(
        without.predict_proba(X), tiny(pixel_range=(0, 16)).fit(X[10:], y[10:]).predict_proba(X)
    )


@pytest.mark.parametrize(
    ("params", "weights", "words"),
    [
        ({}, -1.0, "0 or more"),
        ({}, np.nan, "NaN"),
        ({}, 0.0, "nothing to learn from"),
        ({}, [1.0, 2.0], "60 images need"),
        ({}, ["much"] * 60, "not made of numbers"),
        ({"class_weight": "even"}, None, "give 'balanced' or a dict"),
        ({"class_weight": {7: 2.0}}, None, "has 7, which is no class of y"),
        ({"class_weight": {1: -2.0}}, None, "must be a number, 0 or more"),
        ({"class_weight": "balanced", "settings": ["balance=loss"]}, None, "both weigh the classes"),
        ({"augment": "strong"}, None, "True .the recipe's., False"),
        ({"augment": {"flip": 1.0}}, None, "unknown recipe key 'augment.flip'"),
        ({"augment": False, "settings": ["augment.hflip=0.5"]}, None, "augment= is given twice"),
        ({"img_size": 8, "settings": {"img_size": 16}}, None, "img_size= is given twice"),
        ({"epochs": 2, "settings": ["epochs=3"]}, None, "epochs= is given twice"),
        ({"settings": "batch_size=8"}, None, "is one text; give a list"),
        ({"model": "vit_tinny"}, None, "vit_tinny"),
        ({"random_state": -1}, None, "seed=-1"),
    ],
)
def test_a_weight_or_parameter_that_cannot_be_is_one_line(digits, params, weights, words):
    with pytest.raises(UserError, match=words) as caught:
        tiny(**params).fit(*digits, sample_weight=weights)
    assert "\n" not in str(caught.value)


def test_features_come_before_the_classifier(digits, fitted):
    X, _ = digits
    features = fitted.transform(X)
    assert features.shape == (60, 16) == (60, len(fitted.get_feature_names_out()))
    assert fitted.get_feature_names_out()[0] == "vitclassifier0"
    head = fitted.model_.get_classifier()
    logits = features @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    np.testing.assert_array_equal(logits.argmax(axis=1), fitted.predict_proba(X).argmax(axis=1))


def test_it_can_begin_a_pipeline(digits):
    X, y = digits
    pipeline = make_pipeline(tiny(epochs=3), LogisticRegression(max_iter=500)).fit(X, y)
    assert pipeline.score(X, y) > 0.6
    table = tiny().set_output(transform="pandas").fit(X, y).transform(X[:2])
    assert list(table.columns) == [f"vitclassifier{i}" for i in range(16)]


@pytest.mark.slow
def test_warm_start_goes_on_from_the_weights_there_are(digits, tmp_path):
    X, y = digits
    still = ["optim.lr=1e-12", "optim.warmup_lr=0", "optim.min_lr=0"]
    for run_dir in (None, tmp_path):
        classifier = tiny(epochs=3, run_dir=run_dir).fit(X, y)
        before = classifier.transform(X)
        classifier.set_params(warm_start=True, epochs=1, settings=still).fit(X[::-1], y[::-1])
        np.testing.assert_allclose(classifier.transform(X), before, atol=1e-4)  # nothing was learnt anew
        assert classifier.n_iter_ == 1
        classifier.set_params(warm_start=False).fit(X, y)
        assert not np.allclose(classifier.transform(X), before, atol=1e-2)


@pytest.mark.slow
def test_warm_start_keeps_what_it_goes_on_with(digits):
    X, y = digits
    classifier = tiny(warm_start=True).fit(X, y)
    known = classifier.preprocessing_
    classifier.fit(X / 2, y)  # dimmer images are dimmer, not rescaled
    assert classifier.preprocessing_ == known
    assert classifier.pixel_range_ == (0, 16)
    with pytest.raises(UserError, match="goes on with the classes 0, 1, 2; these images are of 0, 1"):
        classifier.fit(X[y < 2], y[y < 2])
    with pytest.raises(UserError, match="goes on with vit_tiny_patch16_224, and deit_tiny"):
        classifier.set_params(model="deit_tiny_patch16_224").fit(X, y)
    assert list(classifier.classes_) == [0, 1, 2]  # as it was


@pytest.mark.slow
def test_a_grid_varies_parameters_that_are_no_text(digits):
    grid = {"img_size": [8, (16, 16)], "augment": [False, {"hflip": 0.5}], "epochs": [np.int64(1)]}
    search = GridSearchCV(tiny(), grid, cv=2, error_score="raise").fit(*digits)
    assert len(search.cv_results_["params"]) == 4
    best = search.best_estimator_
    assert best.preprocessing_.size == ((8, 8) if search.best_params_["img_size"] == 8 else (16, 16))
    assert best.recipe_.augment.hflip == (0.5 if search.best_params_["augment"] else 0.0)


def test_parameters_change_the_recipe(digits):
    augment = Augment(crop="none", hflip=0.25, erase=0.5)
    settings = {"batch_size": 4, "optim.lr": np.float64(2e-3), "method_args": {"label_smoothing": 0.1}}
    recipe = tiny(augment=augment, settings=settings).fit(*digits).recipe_
    assert (recipe.augment, recipe.batch_size, recipe.optim.lr) == (augment, 4, 2e-3)
    assert recipe.method_args == {"label_smoothing": 0.1}
    other = tiny(model="dhvt_test", img_size=16).fit(*digits)
    assert (other.recipe_.model, other.recipe_.model_args) == ("dhvt_test", {})


def test_a_fitted_classifier_is_exported_without_its_run(digits, fitted, tmp_path):
    X, _ = digits
    exported = fitted.export("timm", tmp_path / "model")
    assert exported.metadata.temperature == fitted.temperature_
    assert "in training 0 became 0 and 16 became 255" in exported.notes[-1]
    [answer] = vitling.predict(tmp_path / "model", files_of(X[:1], tmp_path), top=3)
    expected = dict(zip(map(str, fitted.classes_), fitted.predict_proba(X[:1])[0], strict=True))
    np.testing.assert_allclose(answer.probabilities, [expected[name] for name in answer.classes], atol=1e-5)
    with pytest.raises(UserError, match="say where to export to"):
        fitted.export("timm")


def test_a_saved_classifier_is_exported_too_and_one_with_a_run_into_it(digits, fitted, tmp_path):
    joblib.dump(fitted, tmp_path / "model.joblib")
    assert joblib.load(tmp_path / "model.joblib").export("timm", tmp_path / "model").path.exists()
    kept = tiny(run_dir=tmp_path / "runs").fit(*digits)
    assert kept.export("timm").path.parent == kept.run_.path


def test_what_an_earlier_version_pickled_still_answers(digits, fitted):
    state = {
        key: value
        for key, value in fitted.__getstate__().items()
        if key not in ("recipe_", "_records", "_n_features_out")
    }
    for newer in ("model", "img_size", "augment", "class_weight", "random_state", "warm_start"):
        del state[newer]
    old = vitling.ViTClassifier.__new__(vitling.ViTClassifier)
    old.__setstate__({**state, "seed": 0})
    np.testing.assert_array_equal(old.predict_proba(digits[0]), fitted.predict_proba(digits[0]))
    assert old.get_params()["augment"] is True
    assert pickle.loads(b"cvitling.estimator\nViTClassifier\n.") is vitling.ViTClassifier
    with pytest.raises(UserError, match="fitted by an earlier version"):
        old.export("timm", "nowhere")


@pytest.mark.slow
def test_pandas_columns_of_paths_are_taken(digits, tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = digits
    table = pandas.DataFrame(
        {"path": files_of(X, tmp_path), "name": np.array(["a", "b", "c"])[y]}, index=range(100, 160)
    )
    as_list = tiny().fit(list(table["path"]), list(table["name"])).predict_proba(list(table["path"]))
    for column in (
        table["path"],
        table[["path"]],
        table[["path"]].to_numpy(dtype=object),
        table["path"].astype("category"),
    ):
        classifier = tiny().fit(column, table["name"])
        np.testing.assert_array_equal(classifier.predict_proba(column), as_list)
    assert list(classifier.classes_) == ["a", "b", "c"]
    assert len(cross_val_score(tiny(), table[["path"]], table["name"], cv=2, error_score="raise")) == 2
    with pytest.raises(UserError, match=r"a table of 2 columns; give the one with the images alone: X\[\['path'\]\]"):
        tiny().fit(table, table["name"])


@pytest.mark.slow
def test_probabilities_can_be_calibrated_by_scikit_learn(digits):
    X, y = digits
    calibrated = CalibratedClassifierCV(tiny(), cv=2).fit(X, y, sample_weight=np.linspace(0.5, 1.5, len(y)))
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(axis=1), 1)


@pytest.mark.slow
def test_labels_that_mean_nothing_are_told_from_those_that_do():
    data = load_digits(n_class=2)
    score, permuted, chance = permutation_test_score(
        tiny(epochs=3), data.images[:60], data.target[:60], cv=2, n_permutations=3, random_state=0
    )
    assert len(permuted) == 3
    assert score > permuted.mean()
    assert 0 < chance <= 1


# scikit-learn's checks are made of rows of 1 to 20 numbers; here each row is an image one pixel high.
ROWS = vitling.ViTClassifier(
    replace(TINY, model_args=dict(patch_size=1, embed_dim=8, depth=1, num_heads=1)),
    image_shape=(1, -1),
    threads=1,
)


# Mini-batches: an image of weight 2 is not in as many of them as one that is there twice. scikit-learn exempts its own SGD likewise.
NOT_REPEATED = {"check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"}
CHECKS = [check for _, check in estimator_checks_generator(ROWS) if check_name(check) not in NOT_REPEATED]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", CHECKS, ids=check_name)
def test_it_keeps_the_contract_of_scikit_learn(check):
    check(clone(ROWS))


# --- groups -----------------------------------------------------------------------------------------------------------


def test_images_of_one_group_are_held_out_together(digits, tmp_path):
    images, labels = digits
    groups = np.array([f"writer {i // 6}" for i in range(60)])
    classifier = tiny(run_dir=tmp_path).fit(images, labels, groups=groups)
    data = classifier.run_.info["data"]
    assert data["train_groups"] + data["val_groups"] == 10
    assert data["train_images"] % 6 == data["val_images"] % 6 == 0
    assert any("10 groups in train, by groups" in note for note in data["notes"])
    alone = tiny(run_dir=tmp_path).fit(images, labels)
    assert "train_groups" not in alone.run_.info["data"]
    assert alone.run_.path != classifier.run_.path


def test_groups_that_fit_no_images_are_refused(digits):
    images, labels = digits
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        tiny().fit(images, labels, groups=np.arange(59))
    with pytest.raises(UserError, match="groups= and group=patient both say"):
        vitling.ViTClassifier(replace(TINY, group="patient")).fit(images, labels, groups=np.arange(60) // 6)
    with pytest.raises(UserError, match="groups is empty for image 0"):
        tiny().fit(images, labels, groups=np.array([""] * 60))
    with pytest.raises(UserError, match="all images are of one group"):
        tiny().fit(images, labels, groups=np.zeros(60))


def test_it_learns_from_unlabelled_images_first(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), np.arange(40) % 2
    loose = [*rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)]
    how = dict(recipe=Recipe(model="resnet9_test", batch_size=8, img_size=16, optim=Optim(warmup_epochs=0)), epochs=1)
    for number, unlabelled in enumerate((np.stack([*loose, *X]), _save(loose, tmp_path / "loose"))):
        run_dir = tmp_path / f"runs-{number}"
        fitted = vitling.ViTClassifier(**how, run_dir=run_dir, unlabelled=unlabelled).fit(X, y)
        stage = fitted.run_.info["first_stage"]
        held_out = fitted.run_.info["data"]["val_images"] if number == 0 else 0
        assert stage["images"] == len(loose) + (len(X) if number == 0 else 0) - held_out
        assert stage["left_out"] == {"validation": held_out}
        assert fitted.run_.first_stage.finished


def _save(images, folder):
    folder.mkdir()
    for i, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def test_warm_start_does_not_learn_without_labels_again():
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), np.arange(40) % 2
    recipe = Recipe(model="resnet9_test", batch_size=8, img_size=16, optim=Optim(warmup_epochs=0))
    settings = ["unlabelled_time=0.3", "unlabelled_method=dino"]
    fitted = vitling.ViTClassifier(recipe, epochs=1, settings=settings, unlabelled=X, warm_start=True, threads=1).fit(
        X, y
    )
    assert fitted.recipe_.unlabelled
    assert not fitted.fit(X, y).recipe_.unlabelled
