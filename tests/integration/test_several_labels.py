"""Several labels per image, from data to export: a run trains, resumes, is evaluated, predicts and travels; what knows classes alone refuses."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from command import error, vitling
from PIL import Image
from processes import SCRIPT, launch

import vitling as package
from vitling.callbacks import Callback
from vitling.deploy.predictor import LabelPrediction
from vitling.evaluation.several import SeveralEvaluation
from vitling.recipes import Optim, Recipe, save_recipe
from vitling.training.beginning import train
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from several_data import NAMES, corners, write_arrays

pytestmark = pytest.mark.slow


def recipe_for(data, **changes):
    return Recipe(
        model="vit_tiny_patch16_224",
        model_args=dict(patch_size=4, embed_dim=24, depth=1, num_heads=2),
        data=str(data),
        img_size=16,
        batch_size=16,
        **{
            "epochs": 6,
            "optim": Optim(warmup_epochs=0),
            "method_args": dict(mixup=0.2, label_smoothing=0.1),
            **changes,
        },
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the data, and a run that was trained, evaluated and exported."""
    folder = tmp_path_factory.mktemp("several")
    data = write_arrays(folder / "corners.npz")
    package.train(recipe_for(data, balance="loss", keep="last_good"), folder / "run", settings=Settings(threads=1))
    images, _ = corners(6, seed=7)
    (folder / "images").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / "images" / f"{i}.png")
    return folder


def test_a_run_learns_and_says_what_by(place):
    run = package.load_run(place / "run")
    records = run.metrics()
    assert run.info["labels"] == "several"
    assert run.info["best"].keys() == {"val_map", "val_loss", "epoch"}
    assert records[-1]["train_loss"] < records[0]["train_loss"]
    assert records[-1]["val_map"] > 0.5
    assert not any("top1" in key for record in records for key in record)
    assert "mean average precision" in (place / "run" / "report.html").read_text()
    assert "mean average precision" in run._repr_html_()


def test_a_resumed_run_repeats_the_uninterrupted_one(place, tmp_path):
    class StopInTheSecondEpoch(Callback):
        def on_step(self, epoch, step, steps, loss, images_per_second):
            if (epoch, step) == (1, 3):
                os.kill(os.getpid(), signal.SIGINT)

    recipe = recipe_for(place / "corners.npz", epochs=3)
    whole = train(recipe, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "resumed", callback=StopInTheSecondEpoch())
    resumed = train(recipe, tmp_path / "resumed")
    assert resumed.metrics() == whole.metrics()
    for which in ("best", "last"):
        assert resumed.weights_digest(which) == whole.weights_digest(which)


def test_it_is_evaluated_by_label(place):
    text = vitling("evaluate", place / "run")
    assert "mean average precision" in text
    assert "per label, worst first" in text
    told = json.loads(vitling("evaluate", place / "run", "--json"))
    kept = SeveralEvaluation.read(place / "run" / "evaluation-test.json")
    assert json.loads(kept.to_json()) == told
    assert (told["labels"], told["images"], told["resamples"]) == ("several", 80, 1000)
    assert told["map_interval"][0] < told["map"] < told["map_interval"][1]
    assert package.load_run(place / "run").info["test_looks"] == 2
    held = json.loads(vitling("evaluate", place / "run", "--split", "val", "--json"))
    assert any("fitted on these images" in note for note in held["notes"])


def test_it_is_evaluated_on_other_data(place, tmp_path):
    images, has = corners(30, seed=9)
    np.savez(tmp_path / "other.npz", test_images=images, test_labels=has[:, ::-1], class_names=np.array(NAMES[::-1]))
    result = package.evaluate(place / "run", str(tmp_path / "other.npz"))
    assert not result.own
    assert [row["positives"] for row in result.per_label] == has.sum(0).tolist()


def test_it_names_the_labels_of_images(place):
    predictions = package.predict(place / "run", place / "images")
    assert all(isinstance(one, LabelPrediction) for one in predictions)
    predictor = package.Predictor(place / "run")
    shares = predictor.probabilities(place / "images")
    assert not np.allclose(shares.sum(axis=1), 1)
    for one, row in zip(predictions, shares, strict=True):
        assert sorted(one.classes) == sorted(NAMES)
        has = [name for name, share, at in zip(NAMES, row, predictor.thresholds, strict=True) if share >= at]
        assert one.labels == has
    raw = package.predict(place / "run", place / "images", calibrated=False)
    assert [one.labels for one in raw] == [one.labels for one in predictions]
    rows = vitling("predict", place / "run", place / "images", "--csv").splitlines()
    assert rows[0] == "path,label,probability,present"
    assert len(rows) == 1 + 6 * 4
    told = json.loads(vitling("predict", place / "run", place / "images", "--json", "--top", 2))
    assert len(told[0]["classes"]) == 2
    assert told[0]["labels"] == predictions[0].labels
    assert "others" in vitling("predict", place / "run", place / "images")
    assert {"labels", "probability top left"} <= set(predictions.to_frame().columns)


@pytest.mark.parametrize("to", ["onnx", "timm", "hf", "pt2"])
def test_it_travels_with_its_thresholds(place, tmp_path, to):
    if to == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    out = tmp_path / ("model" + {"onnx": ".onnx", "pt2": ".pt2"}.get(to, ""))
    exported = package.export(place / "run", to, out)
    assert (exported.metadata.labels, len(exported.metadata.thresholds)) == ("several", 4)
    if to == "pt2":
        return
    here, there = package.Predictor(place / "run"), package.Predictor(out)
    np.testing.assert_allclose(there.probabilities(place / "images"), here.probabilities(place / "images"), atol=1e-5)
    assert [x.labels for x in there(place / "images")] == [x.labels for x in here(place / "images")]
    if to != "onnx":
        card = (out / "README.md").read_text()
        assert "before the sigmoid" in card
        assert "top-1" not in card


def test_an_onnx_file_gives_sigmoids_to_other_programs(place, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    package.export(place / "run", "onnx", tmp_path / "model.onnx")
    images, _ = corners(3, seed=7)
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    _, probabilities = session.run(None, {"image": images.transpose(0, 3, 1, 2)})
    expected = package.Predictor(place / "run").probabilities(images)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    known = session.get_modelmeta().custom_metadata_map
    assert known["labels"] == "several"
    assert len(json.loads(known["thresholds"])) == 4


def test_a_server_names_the_labels_of_images(place):
    testing = pytest.importorskip("starlette.testclient")
    from vitling.deploy.server import create_server

    predictor = package.Predictor(place / "run")
    expected = predictor(place / "images" / "0.png")
    with testing.TestClient(create_server(predictor), base_url="http://127.0.0.1") as client:
        about = client.get("/").json()
        found = client.post("/predict", content=(place / "images" / "0.png").read_bytes()).json()
        shape = client.get("/openapi.json").json()["components"]["schemas"]
    assert about["thresholds"] == [round(float(x), 6) for x in predictor.thresholds]
    assert found["predictions"][0]["labels"] == expected.labels
    assert found["predictions"][0]["classes"] == expected.classes
    assert "labels" in shape["PredictedLabels"]["required"]


def test_a_plan_says_what_the_labels_are_and_trains_them(place, tmp_path):
    text = " ".join(vitling("plan", place / "corners.npz", "epochs=1", "--why").split())
    assert "4, 1.1 per image on average" in text
    assert "the rarest: low right on" in text
    assert "a band is known of one class per image only" in text
    vitling("train", place / "corners.npz", "epochs=1", "optim.warmup_epochs=0", "--out", tmp_path / "run", "--quiet")
    assert "val_map" in package.load_run(tmp_path / "run").info["best"]


def test_a_first_stage_without_labels_comes_before_several(place, tmp_path):
    data = place / "corners.npz"
    recipe = recipe_for(data, epochs=1, unlabelled=str(data), method_args={})
    run = train(recipe, tmp_path / "run")
    assert run.first_stage.finished
    assert "val_map" in run.info["best"]


def test_the_estimator_is_one_of_scikit_learns_multilabel_classifiers(place):
    images, has = corners(160)
    model = package.ViTClassifier(recipe_for("digits", method_args={}), threads=1).fit(images, has)
    test, truth = corners(80, seed=1)
    found, shares = model.predict(test), model.predict_proba(test)
    assert found.shape == shares.shape == (80, 4)
    assert set(np.unique(found)) <= {0, 1}
    assert model.score(test, truth) == (found == truth).all(axis=1).mean()
    assert np.array_equal(found, shares >= model.thresholds_)


def test_several_processes_give_the_same_score(place, tmp_path):
    recipe = recipe_for(place / "corners.npz", epochs=1, optim=Optim(name="sgd", lr=0.002, warmup_epochs=0))
    alone = train(recipe, tmp_path / "alone", settings=Settings(threads=1))
    (tmp_path / "script.py").write_text(SCRIPT)
    save_recipe(recipe, tmp_path / "together" / "run.yaml")
    done = launch(tmp_path / "script.py", tmp_path / "together")
    assert done.returncode == 0, done.stderr
    [one], [other] = (package.load_run(path).metrics() for path in (alone.path, tmp_path / "together" / "run"))
    assert other["val_map"] == pytest.approx(one["val_map"], abs=1e-3)
    assert other["val_loss"] == pytest.approx(one["val_loss"], abs=1e-4)


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", "RUN"],
        ["improve", "RUN", "--budget", "30s", "--out", "OUT"],
        ["app", "RUN"],
        ["relabel", "RUN", "digits", "--out", "OUT"],
        ["relabel", "RUN", "DATA", "--out", "OUT"],
        ["export", "RUN", "--to", "onnx-int8", "--out", "OUT.onnx"],
        ["evaluate", "RUN", "--positive", "top left", "--sensitivity", "0.9"],
        ["study", "digits/vit_nano", "data=DATA", "--seeds", "2", "--out", "OUT"],
        ["train", "DATA", "--recipe", "digits/vit_nano", "--folds", "3", "--out", "OUT"],
        ["train", "DATA", "--recipe", "digits/vit_nano", "balance=sampler", "--out", "OUT"],
        [
            "train",
            "digits",
            "--recipe",
            "digits/vit_nano",
            "method=distillation",
            "method_args.teacher=RUN",
            "--out",
            "OUT",
        ],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_what_knows_classes_alone_refuses_in_a_line_and_writes_nothing(place, tmp_path, arguments):
    words = {"RUN": str(place / "run"), "DATA": str(place / "corners.npz"), "OUT": str(tmp_path / "out")}
    given = []
    for argument in arguments:
        for word, meant in words.items():
            argument = argument.replace(word, meant)
        given.append(argument)
    assert "several labels" in error(*given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["bootstrap", "distillation", "token_labeling"])
def test_a_method_that_does_not_learn_them_is_refused(place, tmp_path, method):
    text = error("train", place / "corners.npz", f"method={method}", "--out", tmp_path / "out")
    assert f"method={method} does not learn labels=several; use method=supervised" in text
    assert not list(tmp_path.iterdir())
