"""Odd names and numbers on the command line: one line and code 2, or the thing that was asked for; never a traceback, never a hang."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from command import error, start, vitling
from PIL import Image

pytestmark = pytest.mark.slow

TINY = [
    "model=vit_tiny_patch16_224",
    "model_args.patch_size=4",
    "model_args.embed_dim=16",
    "model_args.depth=1",
    "model_args.num_heads=2",
]
TINY += ["epochs=1", "batch_size=4", "optim.warmup_epochs=0", "augment.crop=none"]


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(
                tmp_path / "photos" / name / f"{i}.png"
            )
    return tmp_path / "photos"


@pytest.mark.parametrize(
    "settings",
    [
        ["model_args.num_classes=5"],
        ["model_args.img_size=99"],
        ["model_args.in_chans=1"],
        ["model_args.embed_dim=0"],
        ["model_args.patch_size=0"],
        ["model_args.norm_layer=x"],
        ["model_args.checkpoint_path=/etc/passwd"],
        ["augment.crop_padding=nan"],
        ["augment.crop_padding=1e9"],
        ["augment.randaugment=rand-m9-n1000000"],
        ["optim.layer_decay=nan"],
        ["method_args.mixup=-1"],
        ["method_args.mixup=nan"],
        ["augment.color_jitter=-1"],
        ["epochs=" + "9" * 5000],
        ["freeze=no_such_layer"],
        ["optim.lr_factors.no_such_layer=1"],
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_train_and_plan(photos, tmp_path, settings):
    assert error("train", photos, "--recipe", "digits/vit_nano", *TINY, *settings, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["study", "digits/vit_nano", "--seeds", "1000000000000"],
        ["study", "digits/vit_nano", "--seeds", "9" * 5000],
        ["study", "digits/vit_nano", "--jobs", "9" * 5000],
        ["study", "digits/vit_nano", "--fractions", "nan"],
        ["train", "digits", "--memory-gb", "nan"],
        ["train", "digits", "--memory-gb", "inf"],
        ["train", "digits", "--checkpoint-seconds", "nan"],
        ["train", "digits", "--threads", "1000000000"],
        ["train", "digits", "--workers", "1000000"],
        ["train", "digits", "--budget", "9" * 400],
        ["plan", "digits", "--budget", "nan"],
        ["plan", "x" * 5000],
        ["train", "x" * 5000],
        ["train", "digits", "--recipe", "x" * 5000],
        ["train", "digits", "--recipe", "x" * 5000 + ".yaml"],
        ["train", "digits", "--out", "x" * 5000, "--recipe", "digits/vit_nano"],
        ["evaluate", "x" * 5000],
        ["predict", "x" * 5000, "a.png"],
        ["diagnose", "x" * 5000],
        ["export", "x" * 5000],
        ["relabel", "x" * 5000, "digits"],
        ["relabel", "resnet18", "digits", "--size", "9" * 5000],
        ["show", "x" * 5000],
        ["show", "/dev/zero"],
        ["train", "/dev/zero"],
    ],
)
def test_an_argument_that_cannot_be_is_one_line(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(error(*arguments)) < 700


def test_a_recipe_that_is_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "r.yaml")
    assert "not a file" in error("train", "digits", "--recipe", tmp_path / "r.yaml")


def test_photos_whose_names_are_no_utf8_train_and_predict(photos, tmp_path):
    odd = os.fsdecode(os.fsencode(photos) + b"/cat/\xff\xfe.png")
    os.rename(photos / "cat" / "0.png", odd)
    (photos / "dog" / "bad.png").write_bytes(b"no image")
    os.rename(photos / "dog" / "bad.png", os.fsdecode(os.fsencode(photos) + b"/dog/\xe9.png"))
    settings = [*TINY, "on_bad_image=skip", "val_fraction=0.3"]
    done = start("train", photos, "--recipe", "digits/vit_nano", *settings, "--out", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"]["skipped"] == ["dog/\udce9.png"]
    assert vitling("predict", tmp_path / "run", odd, "--json")
    command = [sys.executable, "-m", "vitling", "predict", str(tmp_path / "run"), odd, "--csv"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    assert b"\xff\xfe.png" in printed


def test_a_class_folder_whose_name_is_no_utf8_is_one_line(photos, tmp_path):
    os.rename(photos / "cat", os.fsencode(photos) + b"/caf\xe9")
    assert "is not UTF-8" in error("train", photos, "--recipe", "digits/vit_nano", *TINY, "--out", tmp_path / "run")


def test_a_message_about_a_name_of_several_lines_is_one_line(tmp_path):
    assert r"a\nb" in error("train", tmp_path / "a\nb.csv")
