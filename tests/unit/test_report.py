"""The page builder and the charts: self-contained, safe with any name, right in what it shows."""

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import numpy as np
import pytest
import torch
from PIL import Image

import vitling
from vitling.data.pipeline.loader import Resident
from vitling.diagnose import diagnose, write_diagnosis
from vitling.diagnose.match import match_layers
from vitling.diagnose.run_page import build_run_page, mistakes_section, update_run_page, write_run_page
from vitling.evaluation.calibration import reliability_curve
from vitling.evaluation.predictions import Predictions
from vitling.recipes import Augment, Optim, Recipe, replace
from vitling.reports import plots
from vitling.reports.page import (
    Chart,
    Code,
    Facts,
    Findings,
    Gallery,
    Link,
    Links,
    Page,
    Picture,
    Section,
    Strip,
    Table,
    Text,
    Tile,
    as_picture,
    encode,
    kept_sections,
    render,
    write_page,
)
from vitling.runs.run import Run

NASTY = '<script>alert("x")</script> & $5_{x}$ 猫'


@pytest.fixture(scope="module")
def html():
    class Finding:
        state, sentence, reference, advice = "problem", NASTY, "Measured: 1 to 2.", "try depth=4"
        command, gain = f"vitling train {NASTY}", 2.0

    svg = plots.confusion(np.array([[3, 1], [0, 4]]), [NASTY, "b"])
    parts = [
        Text(NASTY),
        Facts({NASTY: NASTY}),
        Findings([Finding]),
        Table(("a", "b"), [(NASTY, 0.5)], NASTY),
        Chart(svg, NASTY),
        Strip([[Picture(np.zeros((4, 4), np.uint8), NASTY)]], "pictures"),
        Gallery([Tile(encode(np.zeros((1, 4, 4), np.uint8), 4), NASTY, NASTY, "b", 0.5)], NASTY),
        Links([Link.between(NASTY, Path("a b") / "#page.html", Path("page.html"))]),
        Code(NASTY),
        Code(NASTY, "folded"),
    ]
    return render(Page(NASTY, [Section("One", parts), Section("Two", []), Section("Three", [])]))


def test_a_page_asks_the_network_for_nothing_and_its_policy_runs_no_script_but_ours(html):
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert html.count("<script") == 1
    assert not re.search(r"<[^>]*\son\w+=", html.replace(script, ""))
    for resource in re.findall(r"""(?:src|href)=["']([^"']*)["']""", html):
        assert resource.startswith(("data:", "#")) or resource == "a%20b/%23page.html", resource
    assert not re.search(r"@import|url\((?!#)", html)


def test_names_of_any_kind_are_shown_and_not_run(html):
    assert "&lt;script&gt;" in html
    assert "猫" in html
    assert html.count("<html") == 1


def test_a_page_knows_light_and_dark_paper_and_phones(html):
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert 'name="viewport"' in html


def test_every_section_can_be_reached_from_the_top(html):
    anchors = re.findall(r'<a href="#([^"]+)"', html)
    assert len(anchors) == 3
    for anchor in anchors:
        assert f'<section id="{anchor}">' in html


def test_a_picture_on_the_page_holds_the_pixels_it_was_given():
    pixels = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8)
    uri = as_picture(pixels).data_uri
    read = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))
    np.testing.assert_array_equal(read, pixels.permute(1, 2, 0).numpy())


def test_a_large_picture_is_stored_no_larger_than_a_sharp_screen_shows_it():
    uri = as_picture(torch.zeros(3, 300, 600, dtype=torch.uint8), width=50).data_uri
    assert Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size == (100, 50)


@pytest.mark.parametrize(
    ("channels", "shape"), [(1, (5, 7)), (2, (5, 7)), (3, (5, 7, 3)), (4, (5, 7, 3)), (9, (5, 7, 3))]
)
def test_images_of_any_number_of_channels_become_pictures(channels, shape):
    assert as_picture(torch.zeros(channels, 5, 7, dtype=torch.uint8)).pixels.shape == shape


def test_ids_in_two_charts_of_one_page_never_meet():
    first, second = (plots.lines([1, 2], {"a": [0.1, 0.2]}, x="x", y="y") for _ in range(2))
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg in (first, second):  # and what is referred to is there
        names = set(re.findall(r'\bid="([^"]+)"', svg))
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg)) <= names


def test_charts_take_the_colour_of_the_page():
    svg = plots.lines([1, 2], {"a": [0.1, 0.2]}, x="epoch", y="loss")
    assert "currentColor" in svg
    assert plots.INK not in svg
    assert "epoch" in svg
    assert "loss" in svg


def test_every_chart_draws_with_labelled_axes_whatever_it_is_given():
    nan = float("nan")
    torch.manual_seed(0)
    matrix = torch.rand(5, 3)
    per_class = [{"name": NASTY, "images": 3, "accuracy": 1.0, "interval": (0.4, 1.0)}]
    per_class += [{"name": "none", "images": 0, "accuracy": None, "interval": None}]
    probabilities = torch.rand(20, 4).softmax(dim=1)
    charts = {
        "layer": plots.layer_lines({"a": [0.1, None, 0.3], "b": [nan, 0.2]}, y="rank", unit=True),
        "head": plots.head_values({"a": [[0.1, 0.2], [0.3]]}, y="distance", dashed={"even": 0.5}),
        "same depth": plots.best_match(match_layers(matrix), rows="ViT", columns="CNN"),
        "CKA": plots.cka_heat_map(
            matrix.fill_diagonal_(nan), list("abcde"), list("xyz"), row_title="r", column_title="c"
        ),
        "confidence": plots.reliability(reliability_curve(probabilities, torch.arange(20) % 4)),
        "accuracy": plots.class_accuracy(per_class),
        "gradient norm": plots.gradient_norms([{"step": 1, "norms": {"blocks.0": 0.0, "head": 1.0}}]),
        "prediction": plots.confusion(np.eye(40, dtype=int), [f"class {i}" for i in range(40)]),
    }
    for label, svg in charts.items():
        assert label in svg
        assert len(svg) < 60_000
    assert "nan" not in charts["layer"].lower().replace("tenant", "")


def test_what_a_broken_writer_leaves_behind_is_the_old_page(tmp_path):
    path = write_page(Page("old", []), tmp_path / "page.html")
    with pytest.raises(jinja2.UndefinedError):
        write_page(Page("new", [None]), path)
    assert "<title>old</title>" in path.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_the_command_line_starts_without_matplotlib():
    code = "import sys; sys.argv = ['vitling']; import vitling.cli.main, vitling.cli.terminal; sys.exit(any(m in sys.modules for m in ('matplotlib', 'torch', 'jinja2')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    recipe = Recipe(
        model="vit_tiny_patch16_224",
        model_args=dict(patch_size=4, embed_dim=16, depth=2, num_heads=2),
        fraction=0.2,
        epochs=2,
        batch_size=32,
        augment=Augment(crop="none", hflip=0.0),
        optim=Optim(warmup_epochs=0),
    )
    return vitling.train(recipe, tmp_path_factory.mktemp("report") / "run")


@pytest.mark.slow
def test_the_page_of_a_run_has_all_that_a_reader_asks_for(run):
    html = write_run_page(run).read_text()
    for tab in ("Training", "Test", "Classes", "Images", "Inside", "How to use it"):
        assert f"<h2>{tab}</h2>" in html
    titles = ("Learning curves", "Validation", "Which classes", "Mistakes", "Attention", "Speed", "To repeat it")
    for title in titles:
        assert f"<h3>{title}</h3>" in html
    for text in (run.info["data"]["fingerprint"], run.info["environment"]["torch"], "images/s", "temperature"):
        assert text in html
    assert len(re.findall("data:image/(png|jpeg)", html)) > 6  # mistakes, right answers and attention
    assert "mathdefault" not in html


@pytest.mark.slow
def test_the_page_never_looks_at_the_test_split_but_repeats_what_was_seen(run):
    assert "test accuracy" not in write_run_page(run).read_text()
    assert "test_looks" not in run.info
    result = vitling.evaluate(run)
    for html in ((run.path / "report.html").read_text(), write_run_page(run).read_text()):
        assert f"{100 * result.top1:.1f} % of 359 images" in html
        assert "looked at once" in html
        assert "Which classes does it confuse? Of 359 test images." in html
    assert run.info["test_looks"] == 1


def section(html: str, title: str) -> str:
    (found,) = re.findall(rf"<!-- section {title} -->(.*?)<!-- end of section -->", html, re.DOTALL)
    return found


@pytest.mark.slow
def test_a_page_that_is_written_again_keeps_what_took_predictions_and_shows_what_came_since(run, monkeypatch):
    before = write_run_page(run).read_text()
    assert "Of 144 validation images" in section(before, "Mistakes")

    def refuse(*args, **kwargs):
        raise AssertionError("the validation images were predicted again")

    monkeypatch.setattr("vitling.diagnose.run_page.predict_validation", refuse)
    vitling.evaluate(run)
    evaluated = (run.path / "report.html").read_text()
    assert "Of 359 test images" in section(evaluated, "Mistakes")
    wrong = run.path / "evaluation-test.json"
    assert evaluated.count("data-truth=") == json.loads(wrong.read_text())["correct"].count("0")
    assert section(evaluated, "Validation").strip() == section(before, "Validation").strip()

    assert f"vitling diagnose {run.path}" in section(evaluated, "Diagnosis")
    write_diagnosis(diagnose(run.path, images=16))
    diagnosed = (run.path / "report.html").read_text()
    assert 'href="diagnosis.html"' in section(diagnosed, "Diagnosis")
    assert section(diagnosed, "Mistakes").strip() == section(evaluated, "Mistakes").strip()
    assert 'href="report.html"' in (run.path / "diagnosis.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', diagnosed)
    assert len(set(ids)) == len(ids)  # those of charts that another process drew among them


@pytest.mark.slow
def test_a_page_of_other_weights_is_not_kept(run, tmp_path):
    other = shutil.copytree(run.path, tmp_path / "other")
    page = write_run_page(Run(other))
    page.write_text(page.read_text().replace('name="about" content="', 'name="about" content="0'))
    page.write_text(page.read_text().replace("Where does it look?", "OLD"))
    assert "OLD" not in update_run_page(Run(other)).read_text()
    page.write_text(page.read_text().replace("Where does it look?", "KEPT"))
    assert "KEPT" in update_run_page(Run(other)).read_text()


@pytest.mark.slow
def test_every_run_from_python_gets_a_page_unless_it_is_told_not_to(run, tmp_path):
    assert (run.path / "report.html").exists()
    recipe = replace(run.recipe, epochs=1, fraction=0.1)
    bare = vitling.train(recipe, tmp_path / "bare", settings=vitling.Settings(page=False))
    vitling.evaluate(bare)
    assert not (bare.path / "report.html").exists()
    (bare.path / "report.html").write_text("notes")
    result = vitling.evaluate(bare)
    assert "the page was not written again" in result.notes[-1]
    assert (bare.path / "report.html").read_text() == "notes"


@pytest.mark.slow
def test_a_page_of_ten_thousand_test_images_stays_below_ten_megabytes(run, tmp_path):
    torch.manual_seed(0)
    images = torch.randint(0, 256, (10_000, 3, 32, 32), dtype=torch.uint8)  # noise: nothing compresses worse
    labels = torch.arange(10_000) % 10
    seen = Predictions(torch.randn(10_000, 10), Resident(images, labels), run.preprocessing())
    found = mistakes_section(seen, run.class_names, "test")
    (gallery,) = found.parts
    assert len(gallery.tiles) > 500
    assert re.search(r"[\d,]+ of (8,9|9,0)\d\d: the page has no room", gallery.caption)
    kept = kept_sections(write_run_page(run), run.weights_digest("best")) | {"Mistakes": found}
    assert len(render(build_run_page(run, kept=kept)).encode()) < 10_000_000


@pytest.mark.slow
def test_the_page_of_a_cnn_says_that_there_is_no_attention(run, tmp_path):
    recipe = replace(run.recipe, model="diag_resnet18_nano", model_args={}, epochs=1, fraction=0.1)
    html = write_run_page(vitling.train(recipe, tmp_path / "cnn")).read_text()
    assert "the model has no attention" in html
