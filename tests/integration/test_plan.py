"""`vitling plan` and `vitling train` without a recipe, as commands: photographs, bad files, leaks, budgets, bad input."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from command import error, start, vitling
from PIL import Image

from vitling import load_recipe, load_run

FLOWERS = Path(__file__).parents[2].parent / "shared" / "data" / "flowers10"
SMALL = ["model_args.embed_dim=24", "model_args.depth=1", "model_args.num_heads=2", "img_size=16"]


def a_picture(seed: int, size=(120, 100)) -> Image.Image:
    blobs = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(blobs).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Two classes in two splits, one test image that is a training image made smaller, and two broken files."""
    root = tmp_path_factory.mktemp("photographs")
    for number, (split, count) in enumerate((("train", 12), ("test", 4))):
        for kind in (1, 2):
            (root / split / f"kind{kind}").mkdir(parents=True)
            for i in range(count):
                a_picture(1000 * number + 100 * kind + i).save(root / split / f"kind{kind}" / f"{i}.jpg")
    a_picture(103).resize((60, 50)).save(root / "test" / "kind2" / "leak.png")
    whole = (root / "train" / "kind1" / "0.jpg").read_bytes()
    (root / "train" / "kind1" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "train" / "kind2" / "nothing.jpg").write_bytes(b"")
    return root


@pytest.fixture(scope="module")
def planned(photographs):
    return json.loads(vitling("plan", photographs, *SMALL, "--json"))


def test_a_plan_counts_and_names_what_is_wrong_with_the_data(planned):
    survey = planned["survey"]
    assert survey["images"] == {"train": 24, "test": 9}
    assert sorted(survey["unreadable"]) == ["train/kind1/cut.jpg", "train/kind2/nothing.jpg"]
    assert survey["leaks"]["test"] == {"count": 1, "examples": [["test/kind2/leak.png", "train/kind1/3.jpg"]]}
    assert survey["copies"]["count"] == 0
    assert (survey["channels"], survey["bits"], survey["largest"]) == (3, 8, [100, 120])


def test_a_plan_gives_a_recipe_a_time_and_a_band(planned):
    assert planned["recipe"]["on_bad_image"] == "skip"
    assert planned["recipe"]["img_size"] == 16
    assert planned["seconds"] > 0
    assert planned["speed"]["steps_per_epoch"] == 5
    assert 0 <= planned["expected"]["low"] < planned["expected"]["high"] <= 1
    assert {choice["what"]: choice["reason"] for choice in planned["choices"]}["image size"] == "as you asked"


def test_a_plan_reads_well_saves_its_recipe_and_fits_a_budget(photographs, tmp_path):
    saved = tmp_path / "mine.yaml"
    settings = [*SMALL, "model=vit_tiny_patch16_224", "model_args.patch_size=1"]
    shown = vitling("plan", photographs, *settings, "--budget", "30s", "--save", saved, "--why")
    for part in (
        "unreadable",
        "train/kind1/cut.jpg",
        "leaks",
        "test/kind2/leak.png",
        "as you asked",
        "a budget of 30 s",
    ):
        assert part in shown
    assert shown.count("warning: patches of 1 pixels are small") == 1
    assert shown.count("published weights") == 1
    assert f"next: vitling train {photographs} --recipe {saved}" in shown
    recipe = load_recipe(saved)
    assert recipe.data == str(photographs)
    assert 1 < recipe.epochs < 100_000
    assert recipe.optim.warmup_epochs < recipe.epochs
    assert "exists" in error("plan", photographs, "--save", saved)
    assert load_recipe(saved) == recipe


def test_a_plan_is_about_ten_lines_and_its_next_command_is_the_one_that_was_planned(photographs):
    shown = vitling("plan", photographs, *SMALL, "--budget", "30s", "--threads", "1")
    lines = shown.strip().splitlines()
    assert len(lines) <= 16
    assert [line.split()[0] for line in lines if line[:1].strip()] == [
        *("data", "classes", "images", "unreadable", "leaks", "train", "epochs", "time", "expect"),
        *("note:", "next:", "why:"),
    ]
    asked = f"{photographs} {' '.join(SMALL)} --budget 30s --threads 1"
    assert f"next: vitling train {asked}\n" in shown
    assert f"why:  vitling plan {asked} --why" in shown


@pytest.mark.slow
def test_training_without_a_recipe_does_what_the_plan_says_and_resumes(photographs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", photographs, *SMALL, "epochs=2"]
    shown = vitling(*command)
    assert shown.count("planned: ") == 1
    assert "2 of 35 images cannot be read and were skipped" in shown
    assert "is finished already" in vitling(*command)
    [folder] = (tmp_path / "runs").iterdir()
    run = load_run(folder)
    assert run.info["asked"] == {"plan": {"data": str(photographs), "settings": [*SMALL, "epochs=2"]}, "budget": None}
    planned = json.loads(vitling("plan", *command[1:], "--json"))
    assert run.info["plan"]["choices"] == planned["choices"]
    assert run.recipe.model == planned["recipe"]["model"]
    assert "its epochs is '2', not '3'" in error("train", photographs, *SMALL, "epochs=3", "--out", folder)


@pytest.mark.slow
def test_a_planned_run_with_a_budget_keeps_its_plan_when_it_resumes(tmp_path):
    command = ["train", "digits", "--budget", "20s", "--threads", "1", "--out", tmp_path / "run"]
    assert start(*command).returncode == 0
    before = load_run(tmp_path / "run").info["plan"]
    assert before["step_seconds"]
    assert "is finished already" in start(*command).stdout
    assert load_run(tmp_path / "run").info["plan"] == before


@pytest.mark.slow
def test_harmful_settings_are_warned_of_in_training_too(tmp_path):
    settings = ["epochs=1", "optim.warmup_epochs=0", "fraction=0.1", "batch_size=8", "model_args.patch_size=1"]
    shown = vitling("train", "digits", "--recipe", "digits/vit_nano", *settings, "--out", tmp_path / "run")
    assert shown.count("warning: patches of 1 pixels") == 1
    assert "planned" not in shown


def test_a_budget_that_ends_within_the_first_epoch_is_planned_for(tmp_path):
    """As `train` would take it: of very many images a part is shown, once."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (200_000, 16, 16), dtype=np.uint8), rng.integers(0, 5, 200_000)
    np.savez(tmp_path / "many.npz", train_images=images, train_labels=labels)
    command = ["plan", tmp_path / "many.npz", "model=hybrid_vit_nano", "--budget", "20s", "--threads", "1"]
    found = json.loads(vitling(*command, "--json"))
    assert 0 < found["epochs"] < 1
    assert found["recipe"]["epochs"] == 1
    assert found["seconds"] <= 20
    assert "% of the images, once" in vitling(*command)


def test_a_saved_recipe_is_trained_in_the_precision_that_its_time_was_planned_for(tmp_path):
    """A recipe says nothing of it, so the command that is proposed does."""
    saved = tmp_path / "recipe.yaml"
    command = ["plan", "digits", "epochs=2", "--threads", "1", "--precision", "bf16"]
    assert f"--recipe {saved} --precision bf16" in vitling(*command, "--save", saved)
    assert "vitling train digits epochs=2 --precision bf16 --threads 1" in vitling(*command)
    assert "as you asked" in vitling(*command, "--why")
    given = json.loads(vitling("plan", "digits", "--recipe", saved, "--threads", "1", "--json"))
    assert given["precision"] == "no"  # as `train` takes a recipe
    out = vitling("plan", "digits", "--device", "cuda:a100", "--budget", "30m")
    assert "next: vitling train digits --budget 30m    (on NVIDIA A100; here it plans for this machine)" in out
    assert "why:  vitling plan digits --budget 30m --device cuda:a100 --why" in out
    line = error("plan", "digits", "--device", "cuda:a100", "--precision", "bf16")
    assert line == "error: device=cuda:a100 has a precision of its own; leave precision=bf16 out."


def test_named_data_is_planned_for():
    result = json.loads(vitling("plan", "digits", *SMALL[:3], "--json"))
    assert result["recipe"]["img_size"] == [8, 8]
    assert result["survey"]["leaks"]["test"]["count"] == 0
    assert result["hint"] == ""


def test_bad_data_is_one_clear_line(tmp_path):
    def folder(name: str, **files: bytes) -> Path:
        (tmp_path / name).mkdir()
        for file, content in files.items():
            path = tmp_path / name / file.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        return tmp_path / name

    buffer = io.BytesIO()
    a_picture(1).save(buffer, "PNG")
    picture = buffer.getvalue()
    assert "only 2 other files (.pdf)" in error("plan", folder("papers", a__1_pdf=b"%PDF", b__1_pdf=b"%PDF"))
    assert "holds no images, only 1 other files (.pdf)" in error("plan", folder("paper", a_pdf=b"%PDF"))
    assert "is empty; expected one folder per class" in error("plan", folder("empty"))
    assert "holds 1 image but no class folders" in error("plan", folder("one", a_png=picture))
    assert "has only one class ('a')" in error("plan", folder("alone", a__1_png=picture, a__2_png=picture))
    assert "no such path" in error("plan", tmp_path / "nowhere")
    assert "--budget 'soon' is not a duration" in error("plan", "digits", "--budget", "soon")
    many = folder("many", **{f"c{i}__1_png": picture for i in range(50)})
    assert "only one training image of classes 'c0', 'c1', 'c10', 'c11', 'c12' and 45 more" in error("plan", many)
    assert "none of its 4 images can be read, the first: a/1.png" in error(
        "plan", folder("broken", a__1_png=b"x", a__2_png=b"y", b__1_png=b"z", b__2_png=b"w")
    )


@pytest.mark.slow
@pytest.mark.skipif(not FLOWERS.exists(), reason="the photographs of flowers are not here")
def test_a_folder_of_photographs_is_planned_for():
    result = json.loads(vitling("plan", FLOWERS, *SMALL, "--json"))
    assert result["survey"]["images"] == {"train": 800, "test": 368}
    assert 1 <= result["survey"]["leaks"]["test"]["count"] < 10
    assert "init=timm/" in result["hint"]
