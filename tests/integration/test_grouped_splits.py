"""Patients whose backgrounds give them away: by image a number is too good, by patient it is what new patients give. And every command knows groups."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from command import error, vitling

from vitling.runs.run import load_run

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "grouped_splits.py"
SHORT = ["model=dhvt_test", "epochs=2", "optim.warmup_epochs=0", "batch_size=32"]


def benchmark():
    spec = importlib.util.spec_from_file_location("grouped_splits", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    return benchmark().write_patients(tmp_path_factory.mktemp("patients") / "patients.npz")


@pytest.fixture(scope="module")
def run(patients, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "grouped"
    vitling("train", patients, "group=patient", *SHORT, "--out", out)
    return out


def test_by_image_the_number_is_too_good_and_by_patient_it_is_what_new_patients_give(patients, tmp_path):
    found = benchmark().train_both(patients, tmp_path, seed=0)
    (by_image, new_by_image), (by_patient, new_patients) = found["by image"], found["by patient"]
    assert by_image > 0.9
    assert by_patient < 0.75
    assert by_image - new_by_image > 0.2
    assert abs(by_patient - new_patients) < 0.15


def test_no_patient_is_on_both_sides_and_the_run_says_how_many_there_are(run):
    data = load_run(run).info["data"]
    assert data["train_groups"] + data["val_groups"] == 60
    assert data["train_images"] == 20 * data["train_groups"]
    assert any(note.startswith("60 groups in train, by patient") for note in data["notes"])
    page = (run / "report.html").read_text()
    assert "60 groups in train, by patient" in page
    assert f"images of {data['val_groups']} groups" in page


def test_an_evaluation_says_that_its_intervals_are_over_patients(run, patients):
    text = vitling("evaluate", run, "--positive", "ill", "--sensitivity", "0.8")
    assert "intervals are over 60 groups" in text
    assert "ill or not, at a probability of" in text
    assert "balanced, kappa, AUROC" in text
    assert max(map(len, text.split("note:")[0].split("ill or not")[0].splitlines())) <= 80
    result = json.loads(vitling("evaluate", run, "--split", "val", "--json"))
    assert result["groups"] == load_run(run).info["data"]["val_groups"]
    low, high = result["top1_interval"]
    assert low < result["top1"] < high
    kept = json.loads((run / "evaluation-test.json").read_text())
    point = kept["operating_point"]
    assert (point["positive"], point["wanted"], point["at_least"]) == ("ill", "sensitivity", 0.8)
    assert point["val_sensitivity"] >= 0.8
    assert point["val_images"] == load_run(run).info["data"]["val_images"]
    page = (run / "report.html").read_text()
    assert "ill or not" in page
    assert "over 60 groups, not images" in page
    other = patients.with_name("other.npz")
    other.write_bytes(patients.read_bytes())
    arrays = dict(np.load(other))
    arrays["test_images"] = arrays["test_images"][::-1]
    np.savez(other, **arrays)
    assert json.loads(vitling("evaluate", run, other, "--json"))["groups"] is None
    assert json.loads(vitling("evaluate", run, other, "--group", "patient", "--json"))["groups"] == 60


def test_a_wrong_operating_point_is_one_line(run):
    assert "Did you mean ill" in error("evaluate", run, "--positive", "il", "--sensitivity", "0.9")
    assert "give one of the two" in error("evaluate", run, "--positive", "ill")
    assert "say which one is positive" in error("evaluate", run, "--specificity", "0.9")
    assert "out of range" in error("evaluate", run, "--positive", "ill", "--sensitivity", "0")
    assert "less than or equal to 1" in error("evaluate", run, "--positive", "ill", "--sensitivity", "95")
    assert "would flatter it" in error("evaluate", run, "--positive", "ill", "--sensitivity", "0.9", "--split", "val")
    assert "stands in its recipe" in error("evaluate", run, "--group", "patient")


def test_other_groups_are_another_run(run, patients, tmp_path):
    assert "group" in error("train", patients, *SHORT, "--out", run)
    assert "has no array train_slide" in error("train", patients, "group=slide", *SHORT, "--out", tmp_path / "a")
    assert "names a column or an array" in error("train", "digits", "group=slide", *SHORT, "--out", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_plan_tells_groups_and_leaves_them_whole(patients):
    text = vitling("plan", patients, "group=patient")
    assert "60 groups in train, by patient" in " ".join(text.split())


def test_a_diagnosis_and_its_label_errors_hold_whole_patients_out(run):
    assert "grouped" in vitling("diagnose", run, "--images", "16")
    vitling("diagnose", run, "--images", "16", "--label-errors", "--budget", "8s")
    for fold in (run / "label-errors").iterdir():
        data = load_run(fold).info["data"]
        assert data["train_groups"] + data["val_groups"] == 60
