"""A model's predictions for its validation images: computed once, and handed on to the page and the calibration."""

import json
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

import vitling
from vitling.data.pipeline import training_data
from vitling.data.sources import images
from vitling.diagnose.run_page import write_run_page
from vitling.errors import UserError
from vitling.evaluation import temperature
from vitling.evaluation.predictions import Predictions, predict_validation
from vitling.evaluation.temperature import calibrate
from vitling.recipes import Augment, Optim, Recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on files, and their folder."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for name, low in (("dark", 0), ("bright", 100)):
        (folder / name).mkdir()
        for i in range(20):
            pixels = rng.integers(low, low + 156, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    recipe = Recipe(
        data=str(folder),
        model="vit_tiny_patch16_224",
        model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
        epochs=1,
        batch_size=16,
        val_fraction=0.25,
        on_bad_image="skip",
        augment=Augment(crop="none", hflip=0.0),
        optim=Optim(warmup_epochs=0),
    )
    return vitling.train(recipe, tmp_path_factory.mktemp("runs") / "run"), folder


@pytest.fixture
def run(trained):
    (trained[0].path / "calibration.json").unlink(missing_ok=True)
    return trained[0]


@pytest.fixture
def counted(monkeypatch):
    """How often data was opened, a file decoded and a temperature fitted."""
    counts = Counter()

    def count(module, name):
        function = getattr(module, name)

        def counting(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, counting)

    count(training_data, "open_dataset")
    count(images, "read_image")
    count(temperature, "fit_temperature")
    return counts


def test_with_predictions_page_and_calibration_open_no_data_and_decode_no_image(run, counted):
    predictions = predict_validation(run, run.load_model())
    assert counted == {"open_dataset": 1, "read_image": 40 + 10}  # every file is checked, the validation split decoded
    counted.clear()
    html = write_run_page(run, predictions=predictions).read_text()
    kept = calibrate(run, predictions=predictions)
    assert counted == {"fit_temperature": 1}
    assert f"{kept.temperature:.2f}, fitted on these images" in html
    assert json.loads((run.path / "calibration.json").read_text())["best"]["temperature"] == kept.temperature


def test_without_predictions_the_page_finds_them_itself_and_leaves_the_temperature_to_who_predicts(run, counted):
    write_run_page(run)
    assert counted == {"open_dataset": 1, "read_image": 40 + 10, "fit_temperature": 1}
    calibrate(run)
    assert counted["fit_temperature"] == counted["open_dataset"] == 1


def test_handed_on_or_found_again_the_calibration_is_the_same(run):
    handed_on = calibrate(run, predictions=predict_validation(run, run.load_model()))
    (run.path / "calibration.json").unlink()
    assert calibrate(run) == handed_on


def test_data_that_changed_since_the_training_is_refused(trained, run):
    file = trained[1] / "dark" / "0.png"
    pixels = file.read_bytes()
    file.unlink()
    try:
        with pytest.raises(UserError, match="has changed since the training"):
            write_run_page(run)
    finally:
        file.write_bytes(pixels)


def test_predictions_do_not_travel_with_a_pickled_run(run):
    run.validation = Predictions(torch.zeros(1, 2), None, None)
    try:
        again = pickle.loads(pickle.dumps(run))
    finally:
        del run.validation
    assert (again.path, again.validation) == (run.path, None)
