"""`vitling diagnose` end to end: short real runs on digits, the verdict, and the page in a real browser."""

import json
import re
import shutil

import numpy as np
import pytest
from browser import open_browser
from command import vitling
from page_checks import check_page, needs_chromium, open_in, unfold

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The demo's plain ViT and its DHVT on digits, a few epochs each."""
    folder = tmp_path_factory.mktemp("runs")
    for name, epochs in (("vit_nano", 8), ("dhvt_nano", 5)):
        settings = [f"epochs={epochs}", "optim.warmup_epochs=1"]
        vitling("train", "digits", *settings, "--recipe", f"digits/{name}", "--out", folder / name, "--quiet")
    return folder


@pytest.fixture(scope="module")
def page(runs):
    """The page that compares the two."""
    page = runs / "page.html"
    vitling("diagnose", runs / "vit_nano", runs / "dhvt_nano", "--out", page)
    return page


def test_every_training_run_gets_a_page(runs):
    html = (runs / "vit_nano" / "report.html").read_text()
    info = json.loads((runs / "vit_nano" / "run.json").read_text())
    for shown in ("Learning curves", "Confusion", "The most confident first", info["data"]["fingerprint"], "torch"):
        assert shown in html
    assert html.count("data:image/png;base64") >= 6


def test_a_run_of_few_epochs_is_called_too_short_with_a_command_and_numbers_inside_are_not_judged(page):
    vit, dhvt = json.loads(page.with_suffix(".json").read_text())
    assert dhvt["evidence"] is None  # of two, the first is asked what limits it
    assert vit["evidence"]["train_accuracy"] > 0.2
    assert not [f for f in vit["verdict"] if f["question"] == "inside"]
    assert vit["indicators"]["early rank"] > 0
    assert len(vit["advice"]) <= 5


def test_a_run_that_diverged_at_once_is_diagnosed_without_weights(tmp_path):
    run = tmp_path / "run"
    settings = ["epochs=2", "optim.lr=900", "optim.name=sgd", "optim.warmup_epochs=0"]
    vitling("train", "digits", *settings, "--recipe", "digits/resnet18_nano", "--out", run, "--quiet", code=2)
    said = vitling("diagnose", run)
    assert "is too high" in said
    assert len(said.strip().splitlines()) <= 8
    (numbers,) = json.loads((run / "diagnosis.json").read_text())
    assert numbers["verdict"][0]["name"] == "rate too high"
    assert numbers["verdict"][0]["command"].startswith("vitling train digits optim.lr=")


def test_parts_and_folds_are_trained_in_the_time_asked_for_and_found_again(runs):
    said = vitling("diagnose", runs / "dhvt_nano", "--learning-curve", "--label-errors", "--budget", "20s", "--json")
    (numbers,) = json.loads(said)
    assert "Twice the images would bring about" in numbers["learning_curve"]["sentence"]
    assert numbers["label_errors"]["how"] == "cross-validation"
    assert numbers["label_errors"]["images"] == 1438
    folds = {path: path.stat().st_mtime_ns for path in runs.glob("dhvt_nano/label-errors/*/run.json")}
    assert len(folds) == 4
    vitling("diagnose", runs / "dhvt_nano", "--label-errors", "--budget", "10s")
    assert {path: path.stat().st_mtime_ns for path in folds} == folds


def test_the_command_prints_the_verdict_and_keeps_the_raw_numbers(runs):
    said = vitling("diagnose", runs / "dhvt_nano", "--images", 60)
    assert "dhvt_nano: " in said
    folder = runs / "dhvt_nano"
    (numbers,) = json.loads((folder / "diagnosis.json").read_text())
    arrays = np.load(folder / "diagnosis.npz")
    assert arrays["dhvt_nano/logits"].shape == (60, 10)
    right = (arrays["dhvt_nano/logits"].argmax(1) == arrays["dhvt_nano/labels"]).mean()
    assert numbers["accuracy"] == pytest.approx(right)
    assert "test_looks" not in json.loads((folder / "run.json").read_text())  # the test split is left alone


def test_a_run_that_was_trained_on_the_pictures_shown_gets_no_accuracy(runs, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(runs / "dhvt_nano", other)
    recipe = other / "recipe.yaml"
    recipe.write_text(re.sub(r"(?m)^seed: 0$", "seed: 1", recipe.read_text()))
    vitling("diagnose", runs / "vit_nano", other, "--images", 30, "--out", tmp_path / "page.html")
    first, second = json.loads((tmp_path / "page.json").read_text())
    assert first["accuracy"] is not None
    assert second["accuracy"] is None
    assert any("was trained on some of these pictures" in note for note in second["notes"])


def test_a_folder_for_timm_is_diagnosed_on_data_of_choice(runs, tmp_path):
    vitling(
        "diagnose",
        f"local-dir:{runs / 'vit_nano' / 'best'}",
        "--data",
        "digits",
        "--images",
        40,
        "--out",
        tmp_path / "a",
    )
    (numbers,) = json.loads((tmp_path / "a.json").read_text())
    assert len(numbers["attention"]) == 4


def test_gradient_norms_of_every_layer_are_logged_at_every_validation(runs):
    lines = [json.loads(line) for line in (runs / "vit_nano" / "gradients.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [20 * epoch for epoch in range(1, 9)]
    assert {"patch_embed", "blocks.0", "blocks.3", "head"} <= set(lines[0]["norms"])
    assert all(norm > 0 for norm in lines[0]["norms"].values())


@needs_chromium
def test_the_page_is_quiet_fits_its_window_can_be_read_and_has_its_pictures_and_charts(page, tmp_path):
    check_page(page, tmp_path)
    with open_browser(tmp_path / "another profile") as tab:
        open_in(tab, page, 1200)
        unfold(tab)
        assert tab.evaluate("document.images.length") > 40
        charts = json.loads(
            tab.evaluate(
                "JSON.stringify([...document.querySelectorAll('.chart svg')].filter((svg) => svg.checkVisibility()).map((svg) => svg.getBoundingClientRect().width))"
            )
        )
        assert len(charts) >= 12
        assert min(charts) > 200
