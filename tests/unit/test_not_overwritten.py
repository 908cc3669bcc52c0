"""Nothing that we did not write is ever overwritten, whoever put it there and under whichever of our names."""

import json
import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import vitling
from vitling.callbacks import Callback
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.sources.dataset import open_dataset
from vitling.deploy.neighbours import open_neighbours
from vitling.diagnose.diagnosis import diagnose, diagnose_run
from vitling.diagnose.paged import evaluate
from vitling.errors import UserError
from vitling.evaluation.temperature import calibrate
from vitling.files import json_with, new, starting_with, write_text
from vitling.methods.token_labeling.label_maps import LabelMaps
from vitling.methods.token_labeling.relabeling import export_to_authors, relabel
from vitling.papers.figures import draw_figure
from vitling.papers.plan import Request
from vitling.papers.reproduction import reproduce
from vitling.recipes import Optim, Recipe, save_recipe
from vitling.reports.page import Page, write_page
from vitling.runs.run import Run
from vitling.studies.demo import run_demo
from vitling.studies.engines.local import LocalEngine
from vitling.studies.study import study
from vitling.training.settings import Settings

TINY = dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2)
PRECIOUS = "three years of work"
DIGITS = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    data="digits",
    epochs=1,
    fraction=0.2,
    optim=Optim(warmup_epochs=0),
)


@pytest.fixture
def data(tmp_path):
    for name, shade in (("dark", 30), ("bright", 200)):
        (tmp_path / "data" / "train" / name).mkdir(parents=True)
        (tmp_path / "data" / "test" / name).mkdir(parents=True)
        for i in range(12):
            image = Image.new("RGB", (8, 8), (shade + i, shade, shade))
            image.save(tmp_path / "data" / ("train" if i < 8 else "test") / name / f"{i}.png")
    return tmp_path / "data"


@pytest.fixture
def run(data, tmp_path):
    """A run directory as training leaves it, with weights that were never trained."""
    opened, run = open_dataset(data), Run(tmp_path / "run")
    run.path.mkdir()
    run.save_recipe(Recipe(data=str(data), model="vit_tiny_patch16_224", model_args=TINY, val_fraction=0.25))
    run.update(
        class_names=opened.class_names,
        preprocessing=Preprocessing((8, 8), 3, "resize", 255, (0.5,) * 3, (0.25,) * 3),
        data=dict(name=opened.name, fingerprint=opened.fingerprint, splits=sorted(opened.splits)),
    )
    torch.manual_seed(0)
    run.save_model("best", timm.create_model("vit_tiny_patch16_224", num_classes=2, **TINY), opened.class_names, TINY)
    return run


def put(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PRECIOUS)


def begun_study(folder, budget_seconds=None):
    """A study's folder before its first run."""
    plan = dict(names=[], seeds=[], fractions=[], split="val", budget_seconds=budget_seconds, recipes={}, macs={})
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({**plan, "environment": {}, "failures": []}))
    return folder


def refused(function, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- the rule ------------------------------------------------------------------------------------------------------


def test_a_file_is_only_replaced_where_it_is_known_to_be_ours(tmp_path):
    ours = json_with("top1")
    write_text(tmp_path / "a.json", '{"top1": 1}', ours)
    write_text(tmp_path / "a.json", '{"top1": 2}', ours)
    assert (tmp_path / "a.json").read_text() == '{"top1": 2}'
    for foreign in (PRECIOUS, "", "[]", "{}", '{"top2": 1}', "[" * 100_000, "\udcff"):
        (tmp_path / "a.json").write_bytes(foreign.encode(errors="surrogateescape"))
        assert "was not written by vitling" in refused(write_text, tmp_path / "a.json", '{"top1": 3}', ours)
        assert (tmp_path / "a.json").read_bytes() == foreign.encode(errors="surrogateescape")
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_file_is_known_by_its_beginning_and_its_mark(tmp_path):
    ours = starting_with(b"| recipe |", b"name,", mark=b"seed")
    for text, expected in (("| recipe | seed", True), ("name,seed", True), ("name,", False), ("seed name,", False)):
        (tmp_path / "table").write_text(text)
        assert ours(tmp_path / "table") is expected


def test_a_place_that_is_taken_while_we_work_is_not_overwritten_either(tmp_path):
    def write_while_another_does():
        with vitling.files.replacing(tmp_path / "a.txt", ours=new) as temporary:
            temporary.write_text("ours")
            put(tmp_path / "a.txt")

    assert "exists already and is not overwritten" in refused(write_while_another_does)
    assert (tmp_path / "a.txt").read_text() == PRECIOUS
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_link_to_somebodys_file_is_not_followed_into_it(tmp_path):
    put(tmp_path / "thesis.html")
    (tmp_path / "page.html").symlink_to(tmp_path / "thesis.html")
    assert "was not written by vitling" in refused(write_page, Page("t", []), tmp_path / "page.html")
    assert (tmp_path / "thesis.html").read_text() == PRECIOUS


def test_a_page_replaces_a_page_and_nothing_else(tmp_path):
    write_page(Page("old", []), tmp_path / "page.html")
    write_page(Page("new", []), tmp_path / "page.html")
    assert "<title>new</title>" in (tmp_path / "page.html").read_text()
    (tmp_path / "page.html").write_text("<!doctype html><title>my notes on vitling</title>")
    assert "was not written by vitling" in refused(write_page, Page("t", []), tmp_path / "page.html")


# -- every command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["photos.html", "photos.npz", "photos.json"])
def test_a_diagnosis_leaves_what_lies_beside_its_page(name, tmp_path):
    put(tmp_path / name)
    measured = []

    class Watch(Callback):
        def on_progress(self, task, done, total):
            measured.append(task)

    model = timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **TINY)
    text = refused(diagnose_run, model, data="digits", images=8, out=tmp_path / "photos.html", callback=Watch())
    assert name in text
    assert "was not written by vitling" in text
    assert measured == []  # it is said before the work
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {name: PRECIOUS}


def test_a_diagnosis_leaves_an_archive_of_arrays_that_is_not_its_own(tmp_path):
    np.savez(tmp_path / "photos.npz", images=np.zeros((3, 8, 8)))
    before = (tmp_path / "photos.npz").read_bytes()
    model = timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **TINY)
    refused(diagnose_run, model, data="digits", images=8, out=tmp_path / "photos.html")
    assert (tmp_path / "photos.npz").read_bytes() == before


@pytest.mark.slow
def test_a_diagnosis_replaces_its_own_files(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **TINY)
    for images in (8, 9):
        diagnose_run(model, data="digits", images=images, out=tmp_path / "page.html")
    assert json.loads((tmp_path / "page.json").read_text())[0]["images"] == 9
    with np.load(tmp_path / "page.npz") as arrays:
        assert len(arrays["VisionTransformer/labels"]) == 9


def test_the_numbers_of_an_evaluation_are_given_though_somebodys_file_has_the_name(run):
    put(run.path / "evaluation-test.json")
    result = evaluate(run)
    assert result.images == 8
    assert not result.kept
    assert result.notes[-1].startswith("the run does not keep these numbers:")
    assert (run.path / "evaluation-test.json").read_text() == PRECIOUS
    (run.path / "evaluation-test.json").unlink()
    assert evaluate(run).kept
    assert evaluate(run).kept  # its own is replaced
    assert run.info["test_looks"] == 2


def test_a_calibration_and_the_neighbours_are_not_kept_in_the_place_of_somebodys_file(run):
    (run.path / "calibration.json").write_text('{"camera": [1, 2, 3]}')
    assert calibrate(run).temperature > 0
    assert (run.path / "calibration.json").read_text() == '{"camera": [1, 2, 3]}'
    save_file({"mine": torch.zeros(2)}, run.path / "neighbours-best.safetensors")
    before = (run.path / "neighbours-best.safetensors").read_bytes()
    assert len(open_neighbours(run, run.load_model()).images) == 12
    assert (run.path / "neighbours-best.safetensors").read_bytes() == before


def test_a_recipe_is_saved_into_a_new_file(tmp_path):
    put(tmp_path / "recipe.yaml")
    assert "exists already" in refused(save_recipe, DIGITS, tmp_path / "recipe.yaml", ours=new)


@pytest.mark.parametrize("name", ["table.md", "table.csv", "study.html"])
def test_a_study_asks_before_it_trains_whether_its_files_are_its_own(name, tmp_path):
    folder = begun_study(tmp_path / "study")
    put(folder / name)
    text = refused(study, {"a": DIGITS}, folder, seeds=1, split="val")
    assert name in text
    assert "was not written by vitling" in text
    assert (folder / name).read_text() == PRECIOUS
    assert not (folder / "runs").exists()


def test_a_folder_of_the_users_in_a_study_survives_the_measuring_of_speeds(tmp_path):
    folder = begun_study(tmp_path / "study", budget_seconds=10)
    put(folder / "measuring" / "thesis.tex")
    too_large = replace(DIGITS, batch_size=10_000)
    assert "batch_size=10000 is larger" in refused(study, {"a": too_large}, folder, seeds=1, budget_seconds=10)
    assert (folder / "measuring" / "thesis.tex").read_text() == PRECIOUS


def test_a_study_in_processes_leaves_a_log_that_is_not_its_own(tmp_path):
    put(tmp_path / "seed-0.log")
    settings = Settings(threads=1)
    text = refused(
        LocalEngine().complete_run, DIGITS, tmp_path / "seed-0", split="val", settings=settings, callback=Callback()
    )
    assert "seed-0.log exists already and was not written by vitling" in text
    assert (tmp_path / "seed-0.log").read_text() == PRECIOUS


@pytest.mark.parametrize("name", ["reproduce.md", "reproduce.json", "reproduce.html"])
def test_a_reproduction_asks_before_it_trains_whether_its_files_are_its_own(name, tmp_path):
    put(tmp_path / name)
    text = refused(reproduce, "dhvt/table6", tmp_path, scale="nano", seeds=1, epochs=1)
    assert f"{name} exists already and was not written by vitling" in text
    assert os.listdir(tmp_path) == [name]


def test_a_figure_is_not_drawn_over_somebodys_page(tmp_path):
    put(tmp_path / "figure.html")
    text = refused(draw_figure, Request("t2t/fig1"), tmp_path)
    assert "figure.html exists already and was not written by vitling" in text


def test_the_demo_asks_before_it_trains(tmp_path):
    put(tmp_path / "demo" / "diagnosis.npz")
    assert "diagnosis.npz exists already" in refused(run_demo, tmp_path / "demo")


def test_the_authors_maps_are_not_replaced_by_ours_and_equal_ones_stay(data, tmp_path):
    model = timm.create_model("diag_resnet18_test", img_size=16, num_classes=2, in_chans=3).eval()
    maps = relabel(model, str(data), tmp_path / "maps", size=16, top_k=1)
    export_to_authors(maps, str(data), tmp_path / "authors")
    files = sorted((tmp_path / "authors").rglob("*"))
    assert len([f for f in files if f.suffix == ".pt"]) == 16
    times = {path: path.stat().st_mtime_ns for path in files}
    export_to_authors(maps, str(data), tmp_path / "authors")
    assert {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "authors").rglob("*"))} == times
    (tmp_path / "authors" / "dark" / "3.pt").unlink()
    torch.save(torch.ones(2, 1, 1, 1).half(), tmp_path / "authors" / "dark" / "5.pt")
    put(tmp_path / "authors" / "dark" / "3.tmp")
    assert "5.pt exists already" in refused(export_to_authors, maps, str(data), tmp_path / "authors")
    assert not (tmp_path / "authors" / "dark" / "3.pt").exists()  # it is said before anything is written
    (tmp_path / "authors" / "dark" / "5.pt").unlink()
    export_to_authors(maps, str(data), tmp_path / "authors")
    assert (tmp_path / "authors" / "dark" / "3.tmp").read_text() == PRECIOUS


def test_label_maps_resume_over_a_part_that_a_kill_left_and_over_nothing_else(data, tmp_path):
    model = timm.create_model("diag_resnet18_test", img_size=16, num_classes=2, in_chans=3).eval()
    whole = relabel(model, str(data), tmp_path / "maps", size=16, top_k=1)
    part, header = tmp_path / "maps" / "part-00000.npy", tmp_path / "maps" / "maps.json"
    content = part.read_bytes()
    for left in (b"", content[:50], content[:-3]):
        part.write_bytes(left)
        header.write_text(json.dumps({**json.loads(header.read_text()), "done": 0}))
        relabel(model, str(data), tmp_path / "maps", size=16, top_k=1)
        assert part.read_bytes() == content
    part.write_text(PRECIOUS)
    header.write_text(json.dumps({**json.loads(header.read_text()), "done": 0}))
    assert "part-00000.npy exists already" in refused(relabel, model, str(data), tmp_path / "maps", size=16, top_k=1)
    assert part.read_text() == PRECIOUS
    assert len(whole) == len(LabelMaps(tmp_path / "maps", whole.header, 0))


def test_a_users_copy_of_a_checkpoint_stays(tmp_path):
    run = Run(tmp_path / "run")
    for step in (1, 2, 3):
        run.write_checkpoint({"step": step}, step)
        run.confirm_checkpoint()
        put(tmp_path / "run" / "checkpoint" / f"step-{step:09d}-before-the-change.pt")
    names = sorted(os.listdir(tmp_path / "run" / "checkpoint"))
    assert [name for name in names if "before" not in name] == [
        "manifest.json",
        "step-000000002.pt",
        "step-000000003.pt",
    ]
    assert len([name for name in names if "before" in name]) == 3


def test_a_lock_of_somebody_else_is_left_alone_and_ours_is_gone_afterwards(tmp_path):
    put(tmp_path / "run" / ".lock")
    with Run(tmp_path / "run").locked():
        with pytest.raises(UserError, match="another process is training into"), Run(tmp_path / "run").locked():
            pass
        assert len(os.listdir(tmp_path / "run")) == 2
    assert os.listdir(tmp_path / "run") == [".lock"]
    assert (tmp_path / "run" / ".lock").read_text() == PRECIOUS


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot remove a folder in use")
def test_a_folder_that_is_removed_under_a_lock_does_not_hide_the_reason(tmp_path):
    def lose_the_folder():
        with Run(tmp_path / "run").locked():
            shutil.rmtree(tmp_path / "run")
            raise RuntimeError("the reason")

    with pytest.raises(RuntimeError, match="the reason"):
        lose_the_folder()


def test_a_diagnosis_that_cannot_be_written_is_shown(run, capsys):
    from vitling.cli.commands.diagnose import diagnose as command

    put(run.path / "diagnosis.json")
    assert "diagnosis.json exists already" in refused(command, str(run.path), images=8, quiet=True)
    assert "run: " in capsys.readouterr().out
    assert (run.path / "diagnosis.json").read_text() == PRECIOUS
    assert not (run.path / "diagnosis.html").exists()
    assert len(diagnose(run.path, images=8)) == 1
