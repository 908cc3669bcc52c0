"""Runs on storage that fsspec reaches: whole or not there, and the same as runs in a folder."""

import json

import pytest

pytest.importorskip("fsspec", reason="the package fsspec, which is an extra, is not installed")

import fsspec
import torch

import vitling
from vitling.errors import UserError
from vitling.files import write_text
from vitling.recipes import Augment, Optim, Recipe, override
from vitling.runs import remote
from vitling.runs.remote import Mirror, as_url, working_folder
from vitling.runs.run import Run, load_run
from vitling.studies.study import Study, study
from vitling.training.settings import Settings

SMALL = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    epochs=2,
    batch_size=256,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(lr=3e-3, warmup_epochs=0.5),
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that makes this process another machine: with a working folder of its own, and no memory of mirrors."""

    def become(name: str) -> None:
        monkeypatch.setenv("VITLING_DATA", str(tmp_path / name))
        monkeypatch.setattr(remote, "_mirrors", {})

    become("first")
    return become


@pytest.fixture(params=["memory://runs", "file://"])
def url(request, tmp_path):
    """Object storage in memory, and a folder behind fsspec."""
    yield request.param + f"/{tmp_path.name}/run" if request.param != "file://" else f"file://{tmp_path}/there/run"
    storage = fsspec.filesystem("memory")
    storage.store.clear()


def names(url: str) -> set[str]:
    storage, root = fsspec.core.url_to_fs(url)
    return {path.removeprefix(root) for path in storage.find(root)}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket/a/run", "s3://bucket/a/run"),
        ("s3:/bucket/a/run/", "s3://bucket/a/run"),
        ("gs://bucket/run", "gs://bucket/run"),
        ("file:/tmp/run", "file:///tmp/run"),
        ("file:///tmp/run", "file:///tmp/run"),
        ("runs/mine", None),
        ("/runs/mine", None),
        ("C:/runs/mine", None),
        ("hf-hub:owner/name", None),
        ("local-dir:/tmp/run", None),
        ("stack:cells", None),
    ],
)
def test_a_url_is_told_from_a_path_also_when_path_has_taken_a_slash_from_it(given, url):
    assert as_url(given) == url


def test_a_place_below_another_one_is_worked_on_below_it():
    assert working_folder("s3://b/study/runs/x") == working_folder("s3://b/study") / "runs" / "x"
    with pytest.raises(UserError, match=r"leave \. and \.\. out"):
        working_folder("s3://b/../../etc")


def test_what_is_published_on_one_machine_is_fetched_on_another(machine, url):
    here = Mirror(url)
    write_text(here.folder / "run.json", "{}")
    write_text(here.folder / "best" / "config.json", "first")
    here.publish()
    write_text(here.folder / "best" / "config.json", "second")
    here.publish()
    machine("second")
    there = Mirror(url)
    write_text(there.folder / "stale.txt", "never published")
    there.fetch()
    assert (there.folder / "best" / "config.json").read_text() == "second"
    assert not (there.folder / "stale.txt").exists()


def test_a_process_killed_between_the_objects_and_the_manifest_leaves_the_run_as_it_was(machine, url, monkeypatch):
    here = Mirror(url)
    write_text(here.folder / "metrics.jsonl", "1\n")
    here.publish()

    def die(data):
        raise KeyboardInterrupt

    monkeypatch.setattr(here, "_put_manifest", die)
    write_text(here.folder / "metrics.jsonl", "1\n2\n")
    with pytest.raises(KeyboardInterrupt):
        here.publish()
    machine("second")
    there = Mirror(url)
    there.fetch()
    assert (there.folder / "metrics.jsonl").read_text() == "1\n"


def test_objects_stay_for_one_manifest_more_and_then_go(machine, url):
    here = Mirror(url)
    for text in ("one", "two", "three", "four"):
        write_text(here.folder / "run.json", text)
        here.publish()
    assert len([name for name in names(url) if name.startswith("/files/run.json/")]) == 2


def test_a_second_machine_that_writes_is_refused_and_overwrites_nothing(machine, url):
    first = Mirror(url)
    write_text(first.folder / "run.json", "one")
    first.publish()
    machine("second")
    second = Mirror(url)
    second.fetch()
    write_text(second.folder / "run.json", "two")
    second.publish()
    write_text(first.folder / "run.json", "three")
    with pytest.raises(UserError, match=r"another machine writes to .*; nothing of it was overwritten"):
        first.publish()
    machine("third")
    third = Mirror(url)
    third.fetch()
    assert (third.folder / "run.json").read_text() == "two"


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_a_manifest_that_leads_out_of_the_folder_is_refused(machine, url, name):
    storage, root = fsspec.core.url_to_fs(url)
    files = {name: {"sha256": "0" * 64, "size": 1}}
    storage.makedirs(root, exist_ok=True)
    storage.pipe_file(f"{root}/manifest.json", json.dumps(dict(number=1, writer="x", files=files, before=[])).encode())
    with pytest.raises(UserError, match="is not the name of a file of a run"):
        Mirror(url).fetch()


def test_an_object_that_was_changed_is_refused(machine, url):
    here = Mirror(url)
    write_text(here.folder / "run.json", "{}")
    here.publish()
    storage, root = fsspec.core.url_to_fs(url)
    (path,) = [path for path in storage.find(root) if "/files/" in path]
    storage.pipe_file(path, b"something else")
    machine("second")
    before, there = names(url), Mirror(url)
    with pytest.raises(UserError, match=r"run.json of .* is corrupted"):
        there.fetch()
    there.publish()  # as whoever held the run does in the end: what lacks a file is not published
    assert names(url) == before
    assert json.loads(storage.cat_file(f"{root}/manifest.json"))["number"] == 1


def test_an_object_that_is_gone_is_one_line_and_nothing_is_published_without_it(machine, url):
    here = Mirror(url)
    write_text(here.folder / "run.json", "{}")
    here.publish()
    storage, root = fsspec.core.url_to_fs(url)
    (path,) = [path for path in storage.find(root) if "/files/" in path]
    storage.rm_file(path)
    machine("second")
    there = Mirror(url)
    with pytest.raises(UserError, match=r"run.json of .* is not there, though its manifest names it"):
        there.fetch()
    there.publish()
    assert json.loads(storage.cat_file(f"{root}/manifest.json"))["number"] == 1


def test_storage_that_does_not_exist_or_lacks_its_package_is_one_line(machine):
    with pytest.raises(UserError, match="fsspec knows no storage moon://"):
        Run("moon://base/run")
    with pytest.raises(UserError, match="no run at memory://nothing/here"):
        load_run("memory://nothing/here")
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match=r"s3://bucket/run needs a package more: .*s3fs"):
            Run("s3://bucket/run")


def test_nothing_else_is_written_into_folders_that_are_called_like_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="only runs and studies are written to other storage"):
        write_text("s3:/bucket/model.onnx", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_begun_on_one_machine_resumes_on_another_and_ends_as_in_a_folder(machine, tmp_path):
    url, settings = f"memory://{tmp_path.name}/run", Settings(threads=1, checkpoint_seconds=0.0)
    expected = vitling.train(SMALL, tmp_path / "folder", settings=settings)

    class Killed(BaseException):
        """As a machine that loses its power: nothing is saved, nothing is published."""

    class Kill(vitling.Callback):
        def on_step(self, epoch, step, steps, loss, images_per_second):
            if epoch == 1 and step == 3:
                remote._mirrors[url].publish = lambda: None
                raise Killed

    with pytest.raises(Killed):
        vitling.train(SMALL, url, settings=settings, callback=Kill())
    machine("second")
    run = vitling.train(SMALL, url, settings=settings)
    assert run.place == url
    assert run.metrics() == expected.metrics()
    machine("third")
    found = vitling.evaluate(url)
    assert found.top1 == vitling.evaluate(expected).top1
    machine("fourth")
    assert load_run(url).info["test_looks"] == 1
    model = vitling.open_model(url, device="cpu").module
    assert all(map(torch.equal, model.state_dict().values(), expected.load_model().state_dict().values()))


@pytest.mark.slow
def test_a_study_on_other_storage_is_found_again_by_another_machine(machine, tmp_path):
    url, settings = f"memory://{tmp_path.name}/study", Settings(threads=1)
    first = study({"small": SMALL}, url, seeds=1, settings=settings)
    machine("second")
    again = study({"small": SMALL, "fast": override(SMALL, ["optim.lr=1e-2"])}, url, seeds=1, settings=settings)
    assert again.rows()[0] == first.rows()[0]
    assert again.runs["small", 1.0, 0].info["test_looks"] == 1
    assert [row.name for row in Study(url).rows()] == ["small", "fast"]
