"""Exports that are no ONNX file of float32: int8, OpenVINO, programs of torch.export. Compared with the run, and whole or not there."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import TINY, images_of, make_tiny_run

import vitling
from vitling.deploy.export import _compare_classes, export
from vitling.ensembles.joining import ensemble_recipe
from vitling.errors import UserError
from vitling.models import build_model
from vitling.runs.onnx_model import OnnxModel

onnx = pytest.importorskip("onnx", reason='needs pip install "vitling[export]"')


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_tiny_run(tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="module")
def int8(run):
    return export(run, "onnx-int8")


def message(function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pixels_of(run):
    return np.stack([np.array(Image.open(path).resize((8, 8))).transpose(2, 0, 1) for path in images_of(run)])


def test_int8_comes_with_its_accuracy_beside_the_runs(run, int8):
    assert int8.path == run.path / "model-int8.onnx"
    assert int8.checked_on == "20 validation images"
    assert 0 <= int8.run_accuracy - 0.06 <= int8.accuracy <= 1
    assert int8.agreement > 0.8
    said = json.loads(int8.to_json())
    assert (said["accuracy"], said["run_accuracy"]) == (int8.accuracy, int8.run_accuracy)


def test_the_weights_of_linear_layers_are_int8_and_predictions_stay_near(run, int8):
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load(int8.path).graph.initializer}
    assert sum(kind == onnx.TensorProto.INT8 for kind in kinds.values()) >= 4
    found = vitling.Predictor(int8.path).probabilities(images_of(run))
    np.testing.assert_allclose(found, vitling.Predictor(run).probabilities(images_of(run)), atol=0.05)
    assert str(run.path.parent).encode() not in int8.path.read_bytes()


def make_tiny_ensemble(root, **how):
    """A run as the folds of a training leave it, of two networks that were never trained."""
    run = make_tiny_run(root, **how)
    own = {name: value for name, value in TINY.items() if name != "img_size"}  # which the ensemble says for its members
    recipe = ensemble_recipe(replace(run.recipe, model_args=own), 2)
    torch.manual_seed(1)
    model = build_model(recipe.model, num_classes=2, in_chans=3, img_size=(8, 8), **recipe.model_args)
    for network in model.members:
        torch.nn.init.normal_(network.head.weight)
    run.save_recipe(recipe)
    run.save_model("best", model, run.class_names, {**recipe.model_args, "in_chans": 3, "img_size": [8, 8]})
    return run


@pytest.mark.parametrize(
    ("make", "views"),
    [
        (make_tiny_run, dict(test_mirror=True)),
        (make_tiny_run, dict(test_shifts=True)),
        (make_tiny_run, dict(test_mirror=True, test_crops=True)),
        (make_tiny_ensemble, dict(test_mirror=True, test_shifts=True)),
    ],
    ids=["mirror", "shifts", "mirror-crops", "ensemble"],
)
def test_int8_asks_about_the_views_that_the_run_asks_about_and_holds_each_weight_once(make, views, tmp_path):
    run = make(tmp_path, **views)
    exported = export(run, "onnx-int8")
    kinds = [tensor.data_type for tensor in onnx.load(exported.path).graph.initializer]
    # The same four matrices of a block, and the head, however many views there are.
    matrices = 5 * (2 if make is make_tiny_ensemble else 1)
    assert sum(kind == onnx.TensorProto.INT8 for kind in kinds) == 2 * matrices  # each with its zero point
    pixels, model, seen = pixels_of(run), run.load_model(), run.preprocessing()
    images = seen.normalize(torch.from_numpy(pixels))
    with torch.inference_mode():
        expected, one_view = seen.score(model, images), model(images)
    for count in (1, 7, len(pixels)):
        found = torch.from_numpy(OnnxModel(exported.path)(pixels[:count]))
        error = (found - expected[:count]).square().mean()
        assert error < 0.1 * (one_view - expected)[:count].square().mean()


def test_a_model_that_rounding_made_worse_is_refused_by_its_accuracy_or_without_labels_by_its_classes(int8):
    expected = torch.eye(2).repeat(50, 1)
    labels = torch.tensor([0, 1]).repeat(50)
    for wrong, allowed in ((2, True), (3, False)):
        found = expected.clone()
        found[:wrong] = found[:wrong].flip(1)
        result = replace(int8, accuracy=None, run_accuracy=None, agreement=None)
        if allowed:
            _compare_classes(result, found, expected, labels)
            assert (result.accuracy, result.run_accuracy) == (0.98, 1.0)
        else:
            said = message(_compare_classes, result, found, expected, labels)
            assert said.startswith(
                "nothing was written: onnx-int8 is correct on 97.0 % of 20 validation images, the run on 100.0 %"
            )
    found[:11] = expected[:11].flip(1)
    assert "gives the run's class for 89.0 %" in message(_compare_classes, result, found, expected, None)
    found = torch.full_like(expected, float("nan"))
    assert "nothing was written" in message(_compare_classes, result, found, expected, labels)


def test_a_program_is_loaded_by_torch_alone_and_is_the_runs_model(run):
    exported = export(run, "pt2")
    assert exported.difference <= exported.allowed
    extra = {"vitling.json": ""}
    program = torch.export.load(exported.path, extra_files=extra).module()
    assert json.loads(extra["vitling.json"])["class_names"] == ["cat", "dog"]
    pixels = torch.from_numpy(pixels_of(run))
    with torch.no_grad():
        expected = run.load_model()(run.preprocessing().normalize(pixels))
        for count in (1, 2, 7):
            logits, probabilities = program(pixels[:count])
            torch.testing.assert_close(logits, expected[:count], atol=1e-5, rtol=0)
            shares = (expected[:count] / exported.metadata.temperature).softmax(dim=1)
            torch.testing.assert_close(probabilities, shares, atol=1e-5, rtol=0)
    content = exported.path.read_bytes()
    assert str(run.path.parent).encode() not in content
    assert b"site-packages" not in content
    assert "vitling unpickles nothing" in message(vitling.Predictor, exported.path)
    assert "vitling unpickles nothing" in message(vitling.open_model, exported.path)


@pytest.mark.slow
@pytest.mark.parametrize("raw_input", [False, True])
def test_a_folder_for_openvino_predicts_as_the_run(run, tmp_path, raw_input):
    pytest.importorskip("openvino", reason='needs pip install "vitling[openvino]"')
    exported = export(run, "openvino", tmp_path / "model", raw_input=raw_input)
    assert sorted(p.name for p in exported.path.iterdir()) == ["model.bin", "model.xml"]
    assert exported.difference <= exported.allowed
    expected = vitling.Predictor(run).probabilities(images_of(run))
    for source in (exported.path, exported.path / "model.xml"):
        predictor = vitling.Predictor(source)
        assert predictor.temperature == exported.metadata.temperature
        np.testing.assert_allclose(predictor.probabilities(images_of(run)), expected, atol=1e-5)
    assert "shows only its outputs" in message(
        vitling.predict, exported.path, images_of(run), attention=tmp_path / "looked"
    )
    (exported.path / "model.bin").write_bytes(b"")
    assert "OpenVINO can open" in message(vitling.Predictor, exported.path)


@pytest.mark.parametrize(("to", "name"), [("onnx-int8", "m.onnx"), ("pt2", "m.pt2")])
def test_nothing_that_exists_is_overwritten_and_names_have_to_fit(run, tmp_path, to, name):
    (tmp_path / name).write_text("mine")
    assert "exists already and is not overwritten" in message(export, run, to, tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"
    assert f"must end in {name[1:]}" in message(export, run, to, tmp_path / "model.bin")


def test_a_program_that_differs_from_the_run_is_not_written(tmp_path):
    run = make_tiny_run(tmp_path)
    model = run.load_model()
    with torch.no_grad():
        model.head.weight[0] = 3e38  # logits beyond what float32 holds
    run.save_model("best", model, run.class_names, TINY)
    assert message(export, run, "pt2").startswith("nothing was written: the exported model's logits differ")
    assert not list(run.path.glob("*.pt2"))
