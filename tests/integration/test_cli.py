"""The command line end to end, as a subprocess: good input, bad input, exit codes."""

import csv
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from command import error, start, vitling
from PIL import Image

from vitling.cli.main import app

pytestmark = pytest.mark.slow

COLOURS = ["img_size=16", "train_size=20", "batch_size=16", "epochs=4", "optim.warmup_epochs=1"]
COLOURS += ["model_args.patch_size=4", "model_args.embed_dim=24", "model_args.depth=2", "model_args.num_heads=2"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder of photographs of two kinds and many sizes: red ones and blue ones."""
    root, rng = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 10)):
        for kind, channel in (("red", 0), ("blue", 2)):
            (root / split / kind).mkdir(parents=True)
            for i in range(count):
                height, width = rng.integers(20, 60, 2)
                pixels = rng.integers(0, 80, (height, width, 3), dtype=np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(root / split / kind / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def run(photographs, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "colours"
    result = vitling("train", photographs, *COLOURS, "--out", out)
    assert "stopped: all 4 epochs are done" in result
    assert f"next: vitling evaluate {out}" in result
    return out


def test_training_again_says_that_it_is_finished(photographs, run):
    assert "is finished already" in vitling("train", photographs, *COLOURS, "--out", run)


def test_evaluation_as_a_table_and_as_json(run):
    assert "top-1" in vitling("evaluate", run)
    result = json.loads(vitling("evaluate", run, "--json"))
    assert result["images"] == 20
    assert result["top1"] > 0.9
    assert result["class_names"] == ["blue", "red"]
    assert np.sum(result["confusion"]) == 20
    assert {"macro_f1", "ece", "per_class", "top1_interval"} <= result.keys()
    assert json.loads((run / "run.json").read_text())["test_looks"] == 2


def test_the_validation_part_can_be_evaluated_too(run):
    assert json.loads(vitling("evaluate", run, "--split", "val", "--json"))["images"] == 8


def test_prediction_gives_our_class_names_for_files_and_folders(run, photographs):
    files = [photographs / "test" / "red" / "0.png", photographs / "test" / "blue"]
    predictions = json.loads(vitling("predict", run, *files, "--json"))
    assert len(predictions) == 11
    assert predictions[0]["classes"][0] == "red"
    assert sum(predictions[0]["probabilities"]) == pytest.approx(1, abs=1e-4)
    rows = list(csv.reader(vitling("predict", run, *files, "--csv", "--top", "1").splitlines()))
    assert rows[0] == ["path", "class", "probability"]
    assert len(rows) == 12
    assert "red" in vitling("predict", run, files[0])


def test_lists_and_recipes_are_shown(tmp_path):
    assert "dhvt_nano" in vitling("list", "models", "dhvt")
    assert "digits/vit_nano" in vitling("list", "recipes")
    assert "supervised" in vitling("list", "methods")
    assert "cifar100" in vitling("list", "datasets")
    (tmp_path / "mine.yaml").write_text(vitling("show", "digits/vit_nano"))
    assert "model: vit_tiny_patch16_224" in vitling("show", tmp_path / "mine.yaml")


def test_help_needs_no_torch():
    code = "import sys; sys.argv = ['vitling', '--help']\nfrom vitling.cli.main import main\ntry: main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("False")


@pytest.mark.parametrize("first", ["vitling", "torch, vitling", "vitling, torchvision.transforms.v2"])
def test_vitling_first_makes_a_mismatched_torchvision_importable(first):
    code = (
        f"import {first}\nimport torchvision, timm\nassert timm.is_model('dhvt_nano')\nimport torchvision.transforms.v2"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_wrong_command_exits_with_2_and_without_a_traceback(tmp_path):
    result = start("train", tmp_path / "nowhere")
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_wrong_commands_are_one_clear_line(tmp_path, photographs, run):
    (tmp_path / "empty").mkdir()
    assert "nowhere" in error("train", tmp_path / "nowhere")
    assert "empty" in error("train", tmp_path / "empty")
    assert "unknown recipe key 'epoch'. Did you mean epochs or soup_epochs?" in error(
        "train", "digits", "epoch=3", "--out", tmp_path / "a"
    )
    assert "unknown recipe 'digits/vit'" in error("train", "digits", "--recipe", "digits/vit")
    assert "--budget 'soon' is not a duration" in error("train", "digits", "--budget", "soon", "--out", tmp_path / "a")
    assert "precision=half is not one of" in error("train", "digits", "--precision", "half", "--out", tmp_path / "a")
    assert "holds another run" in error("train", "digits", "--out", run)
    assert "no run at" in error("evaluate", tmp_path / "nowhere")
    assert "is not a run directory" in error("evaluate", photographs)
    assert "vall" in error("evaluate", run, photographs, "--split", "vall")
    assert "choose one" in error("predict", run, photographs, "--json", "--csv")
    assert "leave data= out" in error("train", "digits", "data=cifar10")
    assert "no image at" in error("predict", run, tmp_path / "nothing.png")
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    assert "broken.png" in error("predict", run, tmp_path / "broken.png")
    assert "no models called 'nosuch'" in error("list", "models", "nosuch")
    assert not (tmp_path / "a").exists()


def test_a_command_typed_wrongly_is_one_line_that_names_the_help(tmp_path):
    assert error("trian") == "error: no such command 'trian'. Did you mean 'train', 'pretrain'? See `vitling --help`."
    assert error("train") == "error: missing argument 'DATA'. See `vitling train --help`."
    assert "no such option: --nosuch" in error("train", "digits", "--nosuch")
    assert "'--threads'" in error("train", "digits", "--threads", "0")
    assert "'--threads'" in error("train", "digits", "--threads", "two")
    for option in ("--memory-gb", "--checkpoint-seconds"):
        assert f"'{option}'" in error("train", "digits", option, "-1", "--out", tmp_path / "a")
    assert "no list of dogs. Allowed: datasets, methods, models, recipes." in error("list", "dogs")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("given", ["0", "513", "two"])
def test_a_value_that_is_not_allowed_is_named_with_its_option(given):
    message = error("study", "anything", "--jobs", given)
    assert "'--jobs'" in message
    assert given in message.replace("'--jobs'", "")


def test_what_is_no_run_or_a_broken_one_is_one_clear_line(run, photographs, tmp_path):
    broken = {name: tmp_path / name for name in ("corrupted", "weights")}
    for copy in broken.values():
        shutil.copytree(run, copy)
    (broken["corrupted"] / "run.json").write_text("{")
    (broken["weights"] / "best" / "model.safetensors").write_bytes(b"xx")
    for command in (["evaluate"], ["predict"], ["export"], ["diagnose"]):
        images = [photographs / "test" / "red"] if command == ["predict"] else []
        assert "run.json is corrupted" in error(*command, broken["corrupted"], *images)
        assert "cannot be loaded" in error(*command, broken["weights"], *images)
    assert f"no run at {tmp_path / 'nowhere'}" in error("app", tmp_path / "nowhere")
    for command in (["diagnose", "nowhere"], ["diagnose", run, "nowhere"], ["predict", "nowhere", photographs]):
        assert "no model at nowhere; give a run, an exported folder" in error(*command)
    (tmp_path / "file").touch()
    for command in (["train", "digits", "--recipe", "digits/vit_nano"], ["study", "digits/vit_nano"], ["demo"]):
        assert "is a file; choose another folder" in error(*command, "--out", tmp_path / "file")
    assert "precision=half is not one of" in error("study", "digits/vit_nano", "--precision", "half")
    assert not (tmp_path / "study").exists()


def test_results_are_data_with_json(run, tmp_path):
    assert json.loads(vitling("list", "methods", "--json"))["supervised"].startswith("Cross-entropy")
    assert json.loads(vitling("show", "digits/vit_nano", "--json"))["optim"]["warmup_epochs"] == 3
    (diagnosis,) = json.loads(vitling("diagnose", run, "--images", "8", "--out", tmp_path, "--json"))
    assert diagnosis["headline"]
    assert (tmp_path / "diagnosis.html").exists()
    exported = json.loads(vitling("export", run, "--to", "timm", "--out", tmp_path / "timm", "--json"))
    assert exported["metadata"]["class_names"] == ["blue", "red"]


def test_every_command_that_shows_progress_can_be_quiet():
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert commands[:4] == ["demo", "plan", "train", "pretrain"]
    options = {command: vitling(command, "--help") for command in commands}
    assert {command for command in commands if "--quiet" not in options[command]} == {"doctor", "list", "show"}
    assert {command for command in commands if "--json" not in options[command]} == {
        "demo",
        "train",
        "pretrain",
        "app",
        "relabel",
        "serve",
    }


def test_another_setting_gets_a_folder_of_its_own_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for fraction in ("0.2", "0.3", "0.2"):
        settings = ["epochs=1", "optim.warmup_epochs=0", f"fraction={fraction}"]
        vitling("train", "digits", *settings, "--recipe", "digits/vit_nano", "-q")
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["digits-vit_nano", "digits-vit_nano-2"]


def test_data_with_classes_that_the_run_does_not_know_is_refused(run, tmp_path):
    for kind in ("green", "red"):
        (tmp_path / "test" / kind).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (16, 16)).save(tmp_path / "test" / kind / f"{i}.png")
    assert "green" in error("evaluate", run, tmp_path)


def test_a_missing_tracker_says_how_to_get_it(tmp_path):
    if find_spec("mlflow"):
        pytest.skip("mlflow is installed here")
    assert 'pip install "vitling[trackers]"' in error("train", "digits", "--mlflow", "--out", tmp_path / "a")


def test_data_larger_than_the_limit_is_streamed_with_the_same_result(photographs, run, tmp_path):
    flags = ["--memory-gb", "0", "--workers", "1", "--quiet"]
    vitling("train", photographs, *COLOURS, "--out", tmp_path / "streamed", *flags)
    streamed, resident = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (tmp_path / "streamed", run)
    )
    assert [r["train_loss"] for r in streamed] == pytest.approx([r["train_loss"] for r in resident], rel=1e-6)
