"""Grades and numbers as labels: how data is read, divided and refused, what is learnt from, and what a prediction says."""

import csv

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

import vitling
from vitling.data.bins import Bins
from vitling.data.pipeline.training_data import decide_bins, split_training
from vitling.data.sources.dataset import open_dataset
from vitling.data.targets import Target, find_score, number_strata
from vitling.errors import UserError
from vitling.evaluation.numbers import NumbersEvaluation, measure_numbers
from vitling.evaluation.scores import validation_scores
from vitling.methods import create_method
from vitling.methods.ordered import squared_emd
from vitling.recipes import Augment, Optim, Recipe, replace
from vitling.runs.metadata import ModelMetadata


@pytest.fixture
def table(tmp_path):
    """Forty images, whose numbers are their brightness."""
    rows = [["path", "age"]]
    for i in range(40):
        Image.fromarray(np.full((8, 8), 6 * i, np.uint8)).save(tmp_path / f"{i}.png")
        rows.append([f"{i}.png", f"{0.5 * i:.1f}"])
    return write(tmp_path / "ages.csv", rows)


def write(path, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def arrays(path, labels, **others):
    images = np.random.default_rng(0).integers(0, 255, (len(labels), 8, 8), dtype=np.uint8)
    np.savez(path, train_images=images, train_labels=labels, **others)
    return path


# -- data --------------------------------------------------------------------------------------------------------------


def test_a_column_of_numbers_is_read(table):
    dataset = open_dataset(table, labels="numbers")
    assert dataset.target.kind == "numbers"
    assert dataset.splits["train"].targets.tolist() == [0.5 * i for i in range(40)]


@pytest.mark.parametrize("shape", [(30,), (30, 1)])
def test_an_array_of_numbers_is_read(tmp_path, shape):
    numbers = np.linspace(-1, 1, 30).astype(np.float64)
    dataset = open_dataset(arrays(tmp_path / "a.npz", numbers.reshape(shape)), labels="numbers")
    assert np.allclose(dataset.splits["train"].targets, numbers)


def test_a_list_of_numbers_is_read(table):
    path = table.with_name("list.txt")
    path.write_text("\n".join(f"{i}.png {i / 7:.3f}" for i in range(40)))
    assert open_dataset(path, labels="numbers").splits["train"].targets[7] == 1


def test_a_parquet_column_of_numbers_is_read(tmp_path, table):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    images = [(table.parent / f"{i}.png").read_bytes() for i in range(40)]
    pandas.DataFrame({"image": images, "label": np.arange(40) / 4}).to_parquet(tmp_path / "t.parquet")
    assert open_dataset(tmp_path / "t.parquet", labels="numbers").splits["train"].targets[3] == 0.75
    with pytest.raises(UserError, match="labels=numbers"):
        open_dataset(tmp_path / "t.parquet")


def test_numbers_without_a_word_about_them_are_refused_with_the_advice(table, tmp_path):
    for data in (table, arrays(tmp_path / "a.npz", np.linspace(0, 1, 30))):
        with pytest.raises(UserError, match="set labels=numbers"):
            open_dataset(data)


def test_a_label_that_is_no_number_is_named(table):
    rows = list(csv.reader(open(table, newline="")))  # noqa: SIM115
    rows[5][1] = "old"
    with pytest.raises(UserError, match=r"the label of 4.png is 'old'"):
        open_dataset(write(table, rows), labels="numbers")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_an_array_with_a_number_that_is_none_is_refused(tmp_path, wrong):
    numbers = np.linspace(0, 1, 30)
    numbers[4] = wrong
    with pytest.raises(UserError, match="NaN or infinity at place 4"):
        open_dataset(arrays(tmp_path / "a.npz", numbers), labels="numbers")


def test_equal_numbers_and_too_few_of_them_are_refused(tmp_path):
    with pytest.raises(UserError, match="nothing to learn"):
        open_dataset(arrays(tmp_path / "a.npz", np.ones(30)), labels="numbers")
    with pytest.raises(UserError, match="needs 10 at least"):
        open_dataset(arrays(tmp_path / "b.npz", np.arange(5.0)), labels="numbers")


@pytest.mark.parametrize("data", ["digits", "hf:owner/name"])
def test_data_whose_labels_are_names_has_no_numbers(data):
    with pytest.raises(UserError, match="labels=numbers: the labels of"):
        open_dataset(data, labels="numbers")


def test_grades_are_in_the_order_of_their_numbers(tmp_path):
    for grade in (10, 2, 1):
        (tmp_path / f"grade_{grade}").mkdir()
        for i in range(3):
            Image.fromarray(np.full((8, 8), grade, np.uint8)).save(tmp_path / f"grade_{grade}" / f"{i}.png")
    dataset = open_dataset(tmp_path, labels="grades")
    assert dataset.class_names == ["grade_1", "grade_2", "grade_10"]
    assert dataset.target.grades.tolist() == [1, 2, 10]
    train = dataset.splits["train"]
    assert all(train.read(i).max() == (1, 2, 10)[label] for i, label in enumerate(train.labels))
    assert open_dataset(tmp_path).class_names == ["grade_1", "grade_10", "grade_2"]  # as ever
    with pytest.raises(UserError, match="labels=grades"):
        open_dataset(arrays(tmp_path / "a.npz", np.arange(4) % 2), labels="grades")


def test_the_fingerprint_of_numbers_is_the_same_for_a_trained_model(table):
    dataset = open_dataset(table, labels="numbers")
    names = dataset.target.with_bins(dataset.splits["train"].targets).names
    assert open_dataset(table, labels="numbers", class_names=names).fingerprint == dataset.fingerprint
    changed = table.read_text().replace("0.5", "0.25", 1)
    table.write_text(changed)
    assert open_dataset(table, labels="numbers").fingerprint != dataset.fingerprint


# -- splits and bins ---------------------------------------------------------------------------------------------------


def test_validation_has_its_share_of_low_and_high_numbers(table):
    dataset = open_dataset(table, labels="numbers")
    train, val = split_training(dataset, Recipe(data=str(table), labels="numbers", val_fraction=0.25))
    assert len(val) == 10
    assert set(np.histogram(val.targets, bins=4, range=(0, 20))[0].tolist()) == {2, 3}
    assert (
        len(split_training(dataset, Recipe(data=str(table), labels="numbers"))[1]) == 4
    )  # a tenth, however many parts
    assert not set(val.names) & set(train.names)


def test_strata_have_ten_images_or_groups_at_least():
    numbers = np.random.default_rng(0).normal(size=66)
    assert np.bincount(number_strata(numbers)).tolist() == [11] * 6
    assert set(number_strata(numbers[:5])) == {0}
    assert len(np.bincount(number_strata(np.arange(1000.0)))) == 10
    groups = np.repeat(np.arange(22), 3).astype(str)
    strata = number_strata(numbers, groups)
    assert all(len(set(strata[groups == group])) == 1 for group in set(groups))
    assert [len(set(groups[strata == s])) for s in (0, 1)] == [11, 11]


def test_bins_are_decided_from_training_images_alone(table):
    dataset = open_dataset(table, labels="numbers")
    train, val = split_training(dataset, Recipe(data=str(table), labels="numbers", val_fraction=0.25))
    decided = decide_bins(dataset, train)
    val.targets[:] = 1e6
    assert decide_bins(dataset, train).target == decided.target == dataset.target.with_bins(train.targets)
    assert decided.target.bins == Bins.of(train.targets)
    assert decided.class_names == decided.target.bins.names


# -- what is learnt ----------------------------------------------------------------------------------------------------


class Linear(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.head = nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(x.flatten(1))


def batch(count: int = 6) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"image": torch.randn(count, 1, 4, 4), "label": torch.arange(count) % 4}


def test_the_loss_of_grades_is_cross_entropy_and_the_squared_emd():
    given = batch()
    target = Target("grades", ("0", "1", "2", "3"))
    method = create_method("supervised", Linear(4), num_classes=4, target=target, distance_weight=0.7)
    logits, truth = method.model(given["image"]), F.one_hot(given["label"], 4).float()
    expected = F.cross_entropy(logits, given["label"]) + 0.7 * squared_emd(logits, truth).mean()
    assert torch.allclose(method(given, 0.0)["loss"], expected)


def test_an_image_of_weight_two_counts_twice_in_both_terms():
    given = batch()
    target = Target("grades", ("0", "1", "2", "3"))
    method = create_method("supervised", Linear(4), num_classes=4, target=target)
    alone = [method({name: x[i : i + 1] for name, x in given.items()}, 0.0)["loss"] for i in range(6)]
    weights = torch.tensor([2.0, 1, 1, 0, 1, 1])
    expected = (torch.stack(alone) * weights).mean()
    assert torch.allclose(method({**given, "weight": weights}, 0.0)["loss"], expected)


def test_the_loss_of_classes_is_what_it_was():
    given = batch()
    method = create_method("supervised", Linear(4), num_classes=4)
    losses = method(given, 0.0)
    assert set(losses) == {"loss"}
    assert torch.equal(
        losses["loss"], F.cross_entropy(method.model(given["image"]), F.one_hot(given["label"], 4).float())
    )


def test_the_loss_of_numbers_is_cross_entropy_with_the_gaussian_around_each():
    numbers = np.linspace(0, 9, 6).astype(np.float32)
    target = Target("numbers").with_bins(np.linspace(0, 9, 200))
    given = {**batch(), "target": torch.from_numpy(numbers)}
    method = create_method("supervised", Linear(target.outputs), num_classes=target.outputs, target=target)
    around = torch.from_numpy(target.numbers.distribute(numbers))
    logits = method.model(given["image"])
    assert torch.allclose(method(given, 0.0)["loss"], F.cross_entropy(logits, around))
    weights = torch.tensor([2.0, 1, 1, 0, 1, 1])
    expected = (F.cross_entropy(logits, around, reduction="none") * weights).mean()
    assert torch.allclose(method({**given, "weight": weights}, 0.0)["loss"], expected)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe(method_args={"distance_weight": 2.0}), "distance_weight=2 is for labels=grades"),
        (Recipe(labels="numbers", method_args={"label_smoothing": 0.1}), "label_smoothing=0.1 would pull"),
    ],
)
def test_arguments_that_mean_nothing_for_the_labels_are_refused(recipe, words):
    from vitling.training.setup import check_settings

    with pytest.raises(UserError, match=words):
        check_settings(recipe)


@pytest.mark.parametrize("method", ["bootstrap", "distillation", "token_labeling", "self_training"])
def test_other_methods_do_not_learn_numbers(method):
    with pytest.raises(UserError, match=f"method={method} does not learn labels=numbers; use method=supervised"):
        create_method(method, Linear(4), num_classes=4, target=Target("numbers", ("a", "b")))


# -- validation, evaluation, prediction --------------------------------------------------------------------------------


def test_the_score_of_a_validation_is_the_skill():
    target = Target("numbers").with_bins(np.linspace(0, 10, 400))
    truth = torch.linspace(1, 9, 20)
    exact = torch.from_numpy(target.numbers.distribute(truth.numpy())).clamp(min=1e-9).log()
    found = validation_scores(target, exact, truth, with_error=True)
    assert found["skill"] == pytest.approx(1, abs=1e-2)
    assert found["mae"] == pytest.approx(0, abs=1e-2)
    nothing = validation_scores(target, torch.zeros(20, target.outputs), truth)
    assert nothing["skill"] == pytest.approx(0, abs=1e-2)  # the middle of the bins is the median here
    assert find_score({"val_skill": 0.5, "val_mae": 1.0}).key == "skill"


def test_an_evaluation_of_numbers_survives_its_file(tmp_path):
    rng = np.random.default_rng(0)
    target = Target("numbers").with_bins(rng.normal(0, 1, 100))
    truth = rng.normal(0, 1, 50)
    shares = target.numbers.distribute(truth + rng.normal(0, 0.3, 50))
    from vitling.data.bins import Values

    values = Values.of(np.log(np.maximum(shares, 1e-30)), target.numbers)
    found = measure_numbers(values, truth, target.numbers, data="x", split="test")
    assert found.baseline_mae == pytest.approx(np.abs(truth - target.numbers.median).mean())
    assert found.mae < found.baseline_mae
    path = tmp_path / "evaluation-test.json"
    path.write_text(found.to_json())
    assert NumbersEvaluation.read(path) == found
    assert len(found.to_frame()) == 50
    path.write_text(found.to_json().replace('"images": 50', '"images": 49'))
    with pytest.raises(UserError, match="contradict"):
        NumbersEvaluation.read(path)


def test_metadata_of_numbers_needs_its_bins():
    from vitling.data.pipeline.preprocessing import Preprocessing

    bins = Bins.of(np.linspace(0, 1, 50))
    seen = Preprocessing((8, 8), 1, "resize", 255, (0.5,), (0.5,))
    metadata = ModelMetadata("m", bins.names, seen, 1.0, labels="numbers", bins=bins.to_dict())
    assert ModelMetadata.from_strings(metadata.to_strings(), "x").target.numbers == bins
    broken = metadata.to_dict() | {"bins": {**bins.to_dict(), "edges": [2.0, 1.0, 3.0]}}
    for entries in (broken, {name: value for name, value in metadata.to_dict().items() if name != "bins"}):
        with pytest.raises(UserError, match="is invalid"):
            ModelMetadata.from_dict(entries, "x")
    assert {"labels", "bins"}.isdisjoint(ModelMetadata("m", ["a", "b"], seen, 1.0).to_dict())


# -- the estimator -----------------------------------------------------------------------------------------------------

TINY = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    epochs=1,
    batch_size=8,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(lr=3e-3, warmup_epochs=0),
)
ROWS = vitling.ViTRegressor(
    replace(TINY, model_args=dict(patch_size=1, embed_dim=8, depth=1, num_heads=1)), image_shape=(1, -1), threads=1
)
# As of ViTClassifier: mini-batches, in which an image of weight 2 is not the same as one that is there twice.
NOT_CHECKED = {
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
}


def check_name(check) -> str:
    return getattr(check, "func", check).__name__


CHECKS = [check for _, check in estimator_checks_generator(ROWS) if check_name(check) not in NOT_CHECKED]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", CHECKS, ids=check_name)
def test_the_regressor_keeps_the_contract_of_scikit_learn(check):
    from sklearn.base import clone

    check(clone(ROWS))


@pytest.mark.slow
def test_the_regressor_predicts_numbers_with_intervals():
    rng = np.random.default_rng(0)
    y = rng.uniform(0, 10, 120)
    X = (20 * y[:, None, None] + rng.normal(20, 5, (120, 8, 8))).clip(0, 255).astype(np.uint8)
    regressor = vitling.ViTRegressor(TINY, epochs=20, threads=1).fit(X, y)
    assert regressor.score(X, y) > 0.5
    low, high = regressor.predict_interval(X).T
    assert (low < high).all()
    assert np.mean((low <= y) & (y <= high)) > 0.7
    assert regressor.transform(X[:3]).shape == (3, 16)


def test_what_the_regressor_cannot_learn_is_one_line():
    X = np.zeros((20, 8, 8), np.uint8)
    with pytest.raises(UserError, match="ViTClassifier learns classes"):
        vitling.ViTRegressor(TINY).fit(X, ["a", "b"] * 10)
    with pytest.raises(UserError, match="labels= is given twice"):
        vitling.ViTRegressor(TINY, settings=["labels=grades"]).fit(X, np.arange(20.0))


def test_the_classifier_of_grades_answers_in_the_order_of_its_classes():
    X = np.repeat(np.linspace(20, 230, 4).astype(np.uint8), 30)[:, None, None] * np.ones((1, 8, 8), np.uint8)
    y = np.repeat(["grade_1", "grade_2", "grade_9", "grade_10"], 30)
    recipe = replace(TINY, epochs=12, model_args=TINY.model_args | {"embed_dim": 32})
    fitted = vitling.ViTClassifier(recipe, settings=["labels=grades"], random_state=0, threads=1).fit(X, y)
    assert fitted.classes_.tolist() == ["grade_1", "grade_10", "grade_2", "grade_9"]
    assert fitted.history_[-1]["val_top1"] == fitted.score(X, y) == 1


def test_the_regressor_learns_from_unlabelled_images_first(tmp_path):
    rng = np.random.default_rng(0)
    X, loose = rng.integers(0, 256, (2, 40, 8, 8), dtype=np.uint8)
    for unlabelled in (loose, X):
        regressor = vitling.ViTRegressor(TINY, unlabelled=unlabelled, run_dir=tmp_path, threads=1)
        fitted = regressor.fit(X, rng.normal(0, 1, 40))
        assert fitted.run_.first_stage.finished
        assert (
            fitted.run_.info["first_stage"]["images"] == 40 - (unlabelled is X) * fitted.run_.info["data"]["val_images"]
        )
