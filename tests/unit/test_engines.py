"""Engines: what is refused before anything is trained."""

import sys
from types import SimpleNamespace

import pytest
import torch

from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.recipes import Recipe
from vitling.studies.engines import create_engine
from vitling.studies.engines.base import Job
from vitling.studies.study import study
from vitling.training.settings import Settings


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("kubernetes", "unknown engine 'kubernetes'. Allowed: local, ray, slurm. Write local, ray"),
        ("rays", "unknown engine 'rays'. Did you mean ray?"),
        ("", "unknown engine ''"),
        ("local:2", "unknown engine 'local:2'"),
        ("slurm:partition", "slurm:partition cannot be read; write slurm:partition=gpu,time=240"),
        ("slurm:partitoin=gpu", "unknown SLURM option 'partitoin'. Did you mean partition?"),
        ("slurm:cluster=moon", "cluster=moon is not one of slurm, local"),
    ],
)
def test_an_engine_that_does_not_exist_is_refused(on, message, tmp_path):
    with pytest.raises(UserError) as raised:
        study({"a": Recipe()}, tmp_path / "study", engine=on)
    assert message in str(raised.value)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("on", ["ray:10001", "ray:/head"])
def test_an_address_that_is_none_of_ray_is_refused(on):
    pytest.importorskip("ray", reason="the package ray, which is an extra, is not installed")
    with pytest.raises(UserError, match="write ray for the cluster of this machine, or ray://HOST:10001"):
        create_engine(on)


def test_a_ray_node_without_vitling_is_one_line_and_not_tried_again(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="the package ray, which is an extra, is not installed")
    trace = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'vitling'"
    died = ray.exceptions.ActorDiedError(
        ray.exceptions.RayTaskError("Trial.__init__", trace, RuntimeError(), ip="1.2.3.4")
    )
    begun = []

    def begin(actor, callback):
        begun.append(actor)
        raise died

    engine = create_engine("ray")
    monkeypatch.setattr(engine, "_watch", begin)
    actors = SimpleNamespace(options=lambda **asked: SimpleNamespace(remote=lambda job: "the actor"))
    engine.ray = SimpleNamespace(
        exceptions=ray.exceptions, nodes=list, remote=lambda kind: actors, is_initialized=lambda: False
    )
    with pytest.raises(
        UserError, match=r"could not begin the run \(ModuleNotFoundError: No module named 'vitling'\); install"
    ):
        engine.complete_run(Recipe(), tmp_path / "run", split="val", settings=Settings(), callback=Callback())
    assert begun == ["the actor"]


@pytest.mark.parametrize(("on", "package"), [("ray", "ray"), ("ray://head:10001", "ray"), ("slurm", "submitit")])
def test_an_engine_whose_package_is_missing_is_one_line_with_the_extra(on, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError) as raised:
        create_engine(on)
    extra = on.partition(":")[0]
    assert str(raised.value) == f'the engine {extra} needs the package {package}: pip install "vitling[{extra}]".'


@pytest.mark.parametrize("gpus", [-1, float("nan"), 1.5, 5000])
def test_a_number_of_gpus_that_cannot_be_is_refused(gpus):
    with pytest.raises(UserError, match="gpus_per_trial"):
        create_engine("local", gpus)


def test_more_gpus_than_this_machine_has_are_refused():
    count = torch.cuda.device_count()
    with pytest.raises(UserError, match=f"gpus_per_trial={count + 1}, but this machine has {count} GPUs"):
        create_engine("local", count + 1)


def test_slurm_gives_whole_gpus_only():
    with pytest.raises(UserError, match="SLURM gives whole GPUs"):
        create_engine("slurm", 0.5)


def test_slurm_on_a_machine_without_it_is_one_line_and_no_folder(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="the package submitit, which is an extra, is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no SLURM here: sbatch and srun are not on the path"):
        study({"a": Recipe()}, tmp_path / "study", engine="slurm")
    assert not (tmp_path / "study").exists()


def test_a_budget_is_refused_where_runs_are_trained_elsewhere(tmp_path):
    pytest.importorskip("submitit", reason="the package submitit, which is an extra, is not installed")
    with pytest.raises(UserError, match="budget_seconds is measured on this machine"):
        study({"a": Recipe()}, tmp_path / "study", engine="slurm", budget_seconds=60)


def test_a_job_survives_its_journey(tmp_path):
    import json

    job = Job(
        Recipe(epochs=7), str(tmp_path / "run"), "val", Settings(threads=3, trackers=("wandb",)), processes=2, attempt=4
    )
    assert Job.from_dict(json.loads(job.to_json())) == job
