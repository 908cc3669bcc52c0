"""Grades and numbers, from data to export: trained, resumed, measured, predicted, and what refuses them."""

import csv
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from command import call
from PIL import Image

import vitling
from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.recipes import Augment, Optim, Recipe, replace
from vitling.runs.run import load_run
from vitling.training.signals import Interrupted

pytestmark = pytest.mark.slow

EPOCHS = 10


class StopAt(Callback):
    """Behaves like a user who presses Ctrl-C in a given step."""

    def __init__(self, step):
        self.at = step

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def squares(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bright squares in noise, somewhere in the image, and their sides."""
    rng = np.random.default_rng(seed)
    images, sides = rng.normal(20, 10, (count, 16, 16)), rng.integers(3, 13, count)
    for image, side in zip(images, sides, strict=True):
        top, left = rng.integers(0, 17 - side, 2)
        image[top : top + side, left : left + side] += 180
    return images.clip(0, 255).astype(np.uint8), sides


def recipe(data, labels: str, **changes) -> Recipe:
    return replace(
        Recipe(
            model="dhvt_test",
            data=str(data),
            labels=labels,
            img_size=16,
            epochs=EPOCHS,
            batch_size=32,
            augment=Augment(crop="none"),
            optim=Optim(lr=2e-3, warmup_epochs=1),
        ),
        **changes,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Areas as numbers in an .npz and in a table, and grades of size in folders, of the same images."""
    root = tmp_path_factory.mktemp("squares")
    arrays, rows = {}, [["path", "area", "split"]]
    for split, count in (("train", 240), ("test", 80)):
        images, sides = squares(count, seed=len(split))
        areas = sides**2 / 10
        arrays |= {f"{split}_images": images, f"{split}_labels": areas[:, None]}
        for i, (image, side) in enumerate(zip(images, sides, strict=True)):
            path = root / "graded" / split / f"grade_{5 * ((side - 3) // 2)}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
            rows.append([str(path.relative_to(root)), f"{areas[i]:.2f}", split])
    np.savez(root / "areas.npz", **arrays)
    with open(root / "areas.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return root


def tested(folder) -> list[np.ndarray]:
    return list(np.load(folder / "areas.npz")["test_images"])


@pytest.fixture(scope="module")
def numbers(folder):
    return vitling.train(recipe(folder / "areas.npz", "numbers"), folder / "numbers")


@pytest.fixture(scope="module")
def grades(folder):
    return vitling.train(recipe(folder / "graded", "grades"), folder / "grades")


def test_numbers_are_learnt_far_better_than_by_their_median(numbers):
    found = vitling.evaluate(numbers)
    assert found.mae < 0.5 * found.baseline_mae
    assert found.mae_interval[0] < found.mae < found.mae_interval[1]
    assert found.r2 > 0.5
    assert found.spearman > 0.8
    assert found.coverage > 0.7
    assert json.loads((numbers.path / "evaluation-test.json").read_text())["labels"] == "numbers"
    assert load_run(numbers.path).info["test_looks"] == 1


def test_a_run_of_numbers_records_what_it_is(numbers):
    info, records = numbers.info, numbers.metrics()
    train = np.load(numbers.recipe.data)["train_labels"]
    assert info["labels"] == "numbers"
    assert info["bins"]["median"] == pytest.approx(np.median(train), rel=0.1)
    assert len(info["class_names"]) == len(info["bins"]["edges"]) - 1
    assert set(info["best"]) == {"val_skill", "val_mae", "val_loss", "epoch"}
    best = max(records, key=lambda record: record["val_skill"])
    assert (best["epoch"], best["val_mae"]) == (info["best"]["epoch"], info["best"]["val_mae"])


def test_a_page_shows_predicted_against_true(numbers):
    vitling.evaluate(numbers)
    page = (numbers.path / "report.html").read_text()
    for words in (
        "Predicted and true",
        "Worst errors",
        "always the training median",
        "Mean absolute error on validation",
    ):
        assert words in page
    assert "vitling diagnose" not in page  # which would refuse it


@pytest.mark.parametrize("labels", ["numbers", "grades"])
def test_a_resumed_run_repeats_the_uninterrupted_one(folder, labels, request, tmp_path):
    whole = request.getfixturevalue(labels)
    with pytest.raises(Interrupted):
        vitling.train(whole.recipe, tmp_path / "run", callback=StopAt(30))
    resumed = vitling.train(whole.recipe, tmp_path / "run")
    for file in ("metrics.jsonl", "recipe.yaml", "best/config.json"):
        assert (resumed.path / file).read_bytes() == (whole.path / file).read_bytes()
    assert resumed.weights_digest("best") == whole.weights_digest("best")


def test_numbers_in_a_table_are_trained_further_and_are_the_same_bins(folder, tmp_path):
    run = vitling.train(recipe(folder / "areas.csv", "numbers", epochs=2), tmp_path / "run")
    bins = run.info["bins"]
    vitling.train_more(run.path, 3)
    assert load_run(run.path).info["bins"] == bins
    assert load_run(run.path).part == 2


def test_numbers_are_predicted_with_intervals_and_the_same_from_a_file(folder, numbers, tmp_path):
    images, truth = tested(folder), np.load(folder / "areas.npz")["test_labels"]
    ours = vitling.Predictor(numbers)(images)
    exported = vitling.export(numbers, "onnx", tmp_path / "x.onnx")
    theirs = vitling.Predictor(exported.path)(images)
    for one, other in zip(ours, theirs, strict=True):
        assert one.interval[0] < one.value < one.interval[1]
        assert (one.value, *one.interval) == pytest.approx((other.value, *other.interval), abs=1e-3)
    errors = [abs(one.value - true) for one, true in zip(ours, truth[:, 0], strict=True)]
    assert np.mean(errors) == pytest.approx(vitling.evaluate(numbers).mae, rel=1e-4)
    frame = vitling.predict(numbers, images[:3]).to_frame()
    assert list(frame.columns) == ["path", "value", "low", "high", "skipped", "attention"]


def test_an_exported_file_predicts_numbers_without_torch(numbers, tmp_path):
    vitling.export(numbers, "onnx", tmp_path / "x.onnx")
    program = (
        "import sys, numpy, vitling\n"
        f"print(vitling.Predictor({str(tmp_path / 'x.onnx')!r})(numpy.zeros((16, 16), numpy.uint8)).value)\n"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def test_the_command_line_shows_numbers(folder, numbers, capsys):
    image = next((folder / "graded" / "test").rglob("*.png"))
    code, out, _ = call("predict", numbers.path, image, "--json")
    assert code == 0
    assert set(json.loads(out)[0]) == {"path", "value", "interval", "skipped", "attention"}
    assert call("predict", numbers.path, image, "--csv")[1].splitlines()[0] == "path,value,low,high"
    code, out, _ = call("evaluate", numbers.path)
    assert code == 0
    assert "mean absolute error" in out
    code, out, _ = call("plan", folder / "areas.csv", "labels=numbers", "--budget", "10s")
    assert code == 0
    assert "standard deviation" in out
    assert "to beat" in out


def test_a_plan_says_which_classes_look_like_grades(folder):
    plan = vitling.plan(str(folder / "graded"), brief=True)
    assert any("labels=grades" in note for note in plan.survey.notes)
    assert not any(
        "labels=grades" in note
        for note in vitling.plan(str(folder / "graded"), ["labels=grades"], brief=True).survey.notes
    )
    assert not vitling.plan("digits", brief=True).survey.notes


def test_grades_are_measured_by_their_distance(grades):
    found = vitling.evaluate(grades)
    assert found.class_names == ["grade_0", "grade_5", "grade_10", "grade_15", "grade_20"]
    assert found.grades["mae"] < 5
    assert found.kappa_quadratic > 0.5
    assert found.grades["kendall_interval"][0] < found.grades["kendall"] < found.grades["kendall_interval"][1]
    assert "train_distance" in grades.metrics()[0]
    assert "mean absolute error" in (grades.path / "report.html").read_text()


def test_grades_are_predicted_with_the_expected_one_and_the_same_from_a_file(folder, grades, tmp_path):
    images = tested(folder)
    exported = vitling.export(grades, "onnx", tmp_path / "x.onnx")
    ours, theirs = (vitling.Predictor(one)(images) for one in (grades, exported.path))
    for one, other in zip(ours, theirs, strict=True):
        assert one.classes == other.classes
        assert one.expected == pytest.approx(other.expected, abs=1e-3)
        assert 0 <= one.expected <= 20


def test_grades_are_diagnosed_and_joined_from_folds(folder, grades, tmp_path):
    assert vitling.diagnose.diagnose(grades.path)
    run = vitling.train_folds(replace(grades.recipe, epochs=2), tmp_path / "run", 2)
    assert run.kind == "grades"
    assert vitling.evaluate(run).grades["mae"] > 0
    assert vitling.Predictor(run)(np.zeros((16, 16), np.uint8)).expected is not None


def test_the_server_answers_with_numbers_and_with_the_expected_grade(numbers, grades, folder):
    testclient = pytest.importorskip("starlette.testclient")
    from vitling.deploy.server import create_server  # an extra

    image = next((folder / "graded" / "test").rglob("*.png")).read_bytes()
    for run, keys in (
        (numbers, {"name", "value", "interval"}),
        (grades, {"name", "classes", "probabilities", "expected"}),
    ):
        door = create_server(vitling.Predictor(run), hosts=["testserver"])
        with testclient.TestClient(door, base_url="http://testserver") as client:
            asked = dict(content=image, headers={"content-type": "image/png"})
            assert set(client.post("/predict", **asked).json()["predictions"][0]) == keys
            assert client.post("/predict?top=2", **asked).status_code == (422 if run is numbers else 200)


@pytest.mark.parametrize("to", ["timm", "hf"])
def test_a_folder_of_numbers_has_a_card_and_predicts(numbers, tmp_path, to):
    exported = vitling.export(numbers, to, tmp_path / "out")
    assert vitling.predict(exported.path, np.zeros((16, 16), np.uint8))[0].value is not None
    if to == "hf":
        card = (exported.path / "README.md").read_text()
        assert "predicts a number" in card
        assert "[0].value" in card


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("diagnose RUN", "a diagnosis is of images of one class each"),
        ("improve RUN --budget 1m", "an improvement is confirmed by images of one class each"),
        ("app RUN", "the page shows images of one class each"),
        ("evaluate RUN --positive 1 --sensitivity 0.9", "an operating point is of images of one class each"),
        ("export RUN --to onnx-int8", "rounds, and what that costs is measured on images of one class each"),
        (
            "train DATA labels=numbers --folds 3 --out NEW",
            "folds are joined of networks that learnt images of one class each",
        ),
        ("train DATA labels=numbers balance=loss --out NEW", "balance=loss weighs images of one class each"),
        ("train DATA labels=numbers balance=sampler --out NEW", "balance=sampler draws images of one class each"),
        (
            "train DATA labels=numbers method=bootstrap --out NEW",
            "does not learn labels=numbers; use method=supervised",
        ),
        ("train DATA --out NEW", "set labels=numbers"),
        ("relabel RUN GRADED", "an annotator is of images of one class each"),
        ("predict RUN GRADED --top 2", "predicts numbers; leave it out"),
    ],
)
def test_what_knows_classes_alone_refuses_numbers_in_one_line(folder, numbers, tmp_path, command, words):
    names = {"RUN": numbers.path, "DATA": folder / "areas.npz", "GRADED": folder / "graded", "NEW": tmp_path / "new"}
    code, _, error = call(*(names.get(word, word) for word in command.split()))
    assert code == 2
    assert words in error
    assert len(error.strip().splitlines()) == 1
    left = list((tmp_path / "new").rglob("*")) if (tmp_path / "new").exists() else []
    assert not [path for path in left if path.is_file() and not path.name.startswith(".")]


def test_another_teacher_or_beginning_of_numbers_is_one_line(folder, numbers, grades, tmp_path):
    taught = replace(grades.recipe, method="distillation", method_args={"teacher": str(numbers.path)})
    with pytest.raises(UserError, match="a teacher is of images of one class each"):
        vitling.train(taught, tmp_path / "taught")
