"""Tables and figures of the papers end to end at nano scale, on a few digits."""

import json
import re

import numpy as np
import pytest
from browser import CHROMIUM
from page_checks import check_page
from sklearn.datasets import load_digits

from vitling.cli.main import app
from vitling.errors import UserError
from vitling.evaluation.evaluation import read_evaluation
from vitling.papers.figures import draw_figure
from vitling.papers.plan import Request
from vitling.papers.reproduction import preview, reproduce
from vitling.training.settings import Settings

pytestmark = pytest.mark.slow

SETTINGS = Settings(threads=1)


@pytest.fixture(scope="module")
def few_digits(tmp_path_factory) -> str:
    """130 training and 40 test images: two steps an epoch."""
    digits = load_digits()
    images, labels = (digits.images * 15.9).astype(np.uint8), digits.target
    path = tmp_path_factory.mktemp("data") / "few_digits.npz"
    parts = dict(train_images=images[:130], train_labels=labels[:130])
    np.savez(path, **parts, test_images=images[130:170], test_labels=labels[130:170])
    return str(path)


def _vitling(*arguments: str) -> None:
    app(list(map(str, arguments)), standalone_mode=False)


def test_a_table_is_trained_shown_beside_the_paper_and_not_trained_twice(few_digits, tmp_path, capsys):
    command = ("reproduce", "dhvt/table6", "--scale", "nano", "--rows", "positions,SOPE", "--epochs", 1, "--seeds", 1)
    command += ("--data", few_digits, "--threads", 1, "--out", tmp_path / "out")
    _vitling(*command)
    shown = capsys.readouterr().out
    assert "paper's top-1 %" in shown
    assert "80.85" in shown
    assert "+13.26" in shown
    first = json.loads((tmp_path / "out" / "reproduce.json").read_text())
    assert [row["label"] for row in first["rows"]] == ["positions", "SOPE, DAFF, head tokens"]
    assert first["rows"][0]["paper"] == [{"data": "CIFAR-100", "top1": 67.59, "params_millions": None, "gmacs": None}]
    ours = [row["ours"] for row in first["rows"]]
    assert all(0 <= one["mean"] <= 100 and one["split"] == "test" and one["epochs"] == 1 for one in ours)
    assert ours[1]["difference"] == pytest.approx(ours[1]["mean"] - ours[0]["mean"])
    assert first["rows"][0]["parameters"] > 1e5
    assert first["rows"][0]["macs"] > 1e6
    page = (tmp_path / "out" / "reproduce.html").read_text()
    assert "80.85" in page
    assert "vitling" in page
    assert 'href="study.html"' in page
    assert (tmp_path / "out" / "study.html").exists()
    if CHROMIUM:
        check_page(tmp_path / "out" / "reproduce.html", tmp_path / "browser")
    written = sorted((tmp_path / "out").rglob("metrics.jsonl"))
    before = [path.stat().st_mtime_ns for path in written]
    _vitling(*command, "--json")
    assert json.loads(capsys.readouterr().out)["rows"] == first["rows"]
    assert [path.stat().st_mtime_ns for path in written] == before


def test_an_agents_accuracy_comes_from_the_run_of_its_vit(few_digits, tmp_path):
    rows = "ViT-S with base,Agent-S base, joint"
    options = dict(scale="nano", rows=rows, epochs=1, seeds=1, data=few_digits, settings=SETTINGS)
    result = reproduce("bootstrapping/table5", tmp_path / "out", **options)
    vit, agent = result.results
    assert len(result.study.runs) == 1
    run = next(iter(result.study.runs.values()))
    assert agent.ours.scores == [100 * read_evaluation(run).companions["agent"]]
    assert agent.ours.difference == pytest.approx(agent.ours.mean - vit.ours.mean)
    assert run.info["test_looks"] == 1
    assert vit.size != agent.size
    assert "agents are of the epoch whose model was best" in result.to_markdown()


def test_a_dry_run_estimates_the_time_and_writes_nothing(few_digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = preview(Request("diagnosis/table1", "nano", "ViT", few_digits, epochs=2), settings=SETTINGS)
    twice = preview(Request("diagnosis/table1", "nano", "ViT", few_digits, budget_seconds=60, seeds=2))
    assert list(result.seconds) == ["ViT"]
    assert result.seconds["ViT"] > 0
    assert "measured on a few steps" in result.to_markdown()
    assert "2 runs, 2 seeds each, 2 min in all" in twice.to_markdown()
    assert not list(tmp_path.iterdir())


def test_layers_of_both_networks_are_compared_on_a_page(few_digits, tmp_path):
    request = Request("diagnosis/fig7", "nano", epochs=1, seeds=1, data=few_digits)
    page = draw_figure(request, tmp_path / "pair", settings=SETTINGS).read_text()
    assert "ViT and ResNet-18" in page
    assert "CKA of every pair of layers, unbiased, over 40 images in 1 batches" in page  # the whole test split
    layers = re.search(r"(\d+) layers of the ViT and (\d+) of ResNet-18, norms and activations included", page)
    assert min(map(int, layers.groups())) > 40  # not the 6 and 8 blocks alone

    def drawn(name: str) -> str:
        return draw_figure(
            Request(name, "nano"), tmp_path / name, runs=tmp_path / "pair", settings=SETTINGS
        ).read_text()

    assert "Each layer by itself" in drawn("diagnosis/fig4")
    assert drawn("diagnosis/fig8").count("layer 1<") > drawn("diagnosis/fig4").count("layer 1<")  # over more pictures
    curves = drawn("diagnosis/fig3")
    assert "validation accuracy, mean over the seeds" in curves
    assert curves.count("<svg") == 1  # the paper's three datasets fall together
    maps = drawn("diagnosis/fig5")
    assert "in a real forward pass" in maps
    assert "What the release draws: the convolutions alone" in maps


def test_head_tokens_and_features_are_drawn(few_digits, tmp_path):
    request = Request("dhvt/fig4", "nano", epochs=1, seeds=1, data=few_digits)
    tokens = draw_figure(request, tmp_path / "tokens", settings=SETTINGS).read_text()
    assert "What each head token sees in blocks.1.attn" in tokens  # of the second block
    assert "head token 3" in tokens
    request = Request("t2t/fig2", "nano", "T2T-ViT-24,ResNet50*", epochs=1, seeds=1, data=few_digits)
    features = draw_figure(request, tmp_path / "features", settings=SETTINGS).read_text()
    assert "Feature maps: T2T-ViT-24" in features
    assert "Feature maps: ResNet50*" in features


def test_a_row_that_is_tested_larger_reads_the_run_of_the_smaller_size(few_digits, tmp_path):
    options = dict(scale="nano", rows="LV-ViT-L,LV-ViT-L at 448", epochs=1, seeds=1, data=few_digits, settings=SETTINGS)
    result = reproduce("lvvit/table10", tmp_path / "out", **options)
    small, large = result.results
    assert len(result.study.runs) == 1
    run = next(iter(result.study.runs.values()))
    assert sorted(path.name for path in run.path.glob("evaluation*")) == [
        "evaluation-test-48x48.json",
        "evaluation-test.json",
    ]
    assert large.size.macs > small.size.macs
    assert [len(r.ours.scores) for r in (small, large)] == [1, 1]
    assert "89.7" in result.to_markdown()  # the paper's, by ReaL's labels


def test_the_paper_s_hours_stand_beside_our_time(few_digits, tmp_path):
    options = dict(scale="nano", rows="alone", epochs=1, seeds=1, data=few_digits, settings=SETTINGS)
    shown = reproduce("bootstrapping/table4", tmp_path / "out", **options)
    head, (row,) = shown.table()
    assert row[head.index("paper's time")] == "3.3 h"
    assert row[head.index("our time")].endswith((" s", " min"))


def test_data_with_a_val_split_alone_is_tested_on_that_and_says_so(few_digits, tmp_path, capsys):
    arrays = dict(np.load(few_digits))
    np.savez(tmp_path / "no_test.npz", **{name.replace("test", "val"): array for name, array in arrays.items()})
    command = ("reproduce", "dhvt/table6", "--scale", "nano", "--rows", "positions", "--epochs", 1, "--seeds", 1)
    _vitling(*command, "--data", tmp_path / "no_test.npz", "--threads", 1, "--out", tmp_path / "out", "--json")
    assert json.loads(capsys.readouterr().out)["rows"][0]["ours"]["split"] == "val"
    shown = (tmp_path / "out" / "reproduce.md").read_text()
    assert "The test split is no_test's val" in shown
    assert "carved from its train" in shown


def test_curves_and_sensitivity_are_drawn_from_the_same_kind_of_study(few_digits, tmp_path):
    curve = Request("bootstrapping/fig5", "nano", "ViT", epochs=2, seeds=1, data=few_digits)
    curves = draw_figure(curve, tmp_path / "curves", settings=SETTINGS).read_text()
    assert "Alone, joint and shared: validation accuracy" in curves
    assert curves.count("<svg") == 1  # panels of the same runs fall together
    weight = Request("bootstrapping/fig6", "nano", "temperature 4", epochs=1, seeds=1, data=few_digits)
    weights = draw_figure(weight, tmp_path / "weights", settings=SETTINGS)
    assert "The temperature; mean" in weights.read_text()


def test_a_figure_of_sizes_needs_no_runs_and_other_figures_say_where_theirs_should_be(tmp_path):
    page = draw_figure(Request("t2t/fig1", rows="T2T-ViT-7,ResNet50*"), tmp_path / "sizes").read_text()
    assert "T2T-ViT-7" in page
    assert "Top-1 accuracy over MACs" in page
    with pytest.raises(UserError, match="no study at"):
        draw_figure(Request("bootstrapping/fig5"), tmp_path / "x", runs=tmp_path / "nowhere")
    with pytest.raises(UserError, match="JFT-300M"):
        draw_figure(Request("diagnosis/fig6"), tmp_path / "y")
