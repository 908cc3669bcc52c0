"""Studies on engines that exist: a Ray cluster of two nodes on this machine, and submitit's local executor."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command import error

from vitling.callbacks import Callback, StudyCallback
from vitling.recipes import Augment, Optim, Recipe, override, save_recipe
from vitling.studies.study import Study, study
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

pytestmark = pytest.mark.slow

SMALL = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    epochs=2,
    batch_size=256,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(lr=3e-3, warmup_epochs=0.5),
)
LONG = override(SMALL, ["epochs=150"])
SETTINGS = Settings(threads=1, checkpoint_seconds=0.5)
PLUGIN = """
from timm.models.vision_transformer import VisionTransformer
from vitling.models import register_variants


class Travelling(VisionTransformer):
    @classmethod
    def default_cfg(cls, **arguments):
        return dict(first_conv="patch_embed.proj", classifier="head")


VARIANTS = {"travelling_test": dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2)}
register_variants(Travelling, VARIANTS)
"""


class Watcher(StudyCallback):
    """Does something once, at the third validation of the run with a label, and keeps what was logged."""

    def __init__(self, label: str = "", act=lambda: None):
        self.label, self.act, self.logged, self.validated, self.acted = label, act, [], 0, False

    def log(self, message):
        self.logged.append(message)

    def on_run_start(self, label):
        outer = self

        class Run(Callback):
            def log(self, message):
                outer.logged.append(message)

            def on_validation(self, record, timing):
                outer.validated += 1
                if (
                    label == outer.label and record["epoch"] == 3 and not outer.acted
                ):  # a run that resumes may repeat it
                    outer.acted = True
                    threading.Thread(target=outer.act).start()

        return Run()


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The scores of the same runs trained here without an interruption."""
    done = study({"small": SMALL, "long": LONG}, tmp_path_factory.mktemp("here"), seeds=1, settings=SETTINGS)
    return {row.name: row.scores for row in done.rows()}


@pytest.fixture
def cluster(monkeypatch):
    """A Ray cluster of a head without room for runs, and two nodes with room for one each."""
    pytest.importorskip("ray", reason="the package ray, which is an extra, is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    monkeypatch.setenv(
        "RAY_worker_niceness", "0"
    )  # other tests run beside these: Ray would have its workers wait for them
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 100 * 2**20}
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **memory})
    try:
        started.rooms = [started.add_node(num_cpus=1, **memory) for _ in range(2)]
        monkeypatch.setenv("RAY_ADDRESS", started.address)
        yield started
    finally:
        started.shutdown()


def find_process(run: Path) -> int:
    """The process that trains into a run."""
    found = []
    for job in Path("/tmp").glob("vitling-job-*.json"):
        if json.loads(job.read_text())["place"] == str(run):
            found += [
                int(folder.name)
                for folder in Path("/proc").glob("[0-9]*")
                if job.name.encode() in (folder / "cmdline").read_bytes()
            ]
    return found[0]


def test_a_study_on_ray_survives_the_death_of_a_node_and_gives_the_scores_of_one_process(cluster, expected, tmp_path):
    long_run = tmp_path / "study" / "runs" / "long" / "fraction-1" / "seed-0"

    def kill_its_node():
        """The node that trains the long run: everything of it dies at once, as of a machine that loses its power."""
        while not (long_run / "checkpoint" / "manifest.json").exists():
            time.sleep(0.05)
        child = find_process(long_run)
        parents = {child}
        while (parent := int((Path("/proc") / str(child) / "stat").read_text().rsplit(")", 1)[1].split()[1])) > 1:
            parents.add(parent)
            child = parent
        for node in cluster.rooms:
            if any(each[0].process.pid in parents for each in node.all_processes.values()):
                cluster.remove_node(node, allow_graceful=False)
                return

    watcher = Watcher("long, seed 0", kill_its_node)
    done = study(
        {"small": SMALL, "long": LONG}, tmp_path / "study", seeds=1, engine="ray", settings=SETTINGS, callback=watcher
    )
    assert not done.failures
    assert {row.name: row.scores for row in done.rows()} == expected
    assert any("the Ray node that trained it died" in line and "1 of 3 retries" in line for line in watcher.logged), (
        watcher.logged
    )
    assert any(line.startswith("resuming ") for line in watcher.logged)
    assert watcher.validated > 2  # progress came back while they ran
    assert not list(tmp_path.rglob("*.log"))


def test_ctrl_c_saves_the_runs_of_a_ray_cluster_and_a_plug_in_travels_to_its_nodes(cluster, tmp_path):
    plugin = tmp_path / "travelling.py"
    plugin.write_text(PLUGIN)
    save_recipe(override(SMALL, ["model=travelling_test", "model_args={}", "epochs=100000"]), tmp_path / "endless.yaml")
    code = f"""
import os, signal, sys, threading, time
from pathlib import Path
from vitling.cli.main import main

def press():
    while not Path({str(tmp_path / "out/runs/endless/fraction-1/seed-0/metrics.jsonl")!r}).exists():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press, daemon=True).start()
sys.argv = ["vitling", "study", {str(tmp_path / "endless.yaml")!r}, "--on", "ray", "--seeds", "1", "--import", {str(plugin)!r},
            "--out", {str(tmp_path / "out")!r}]
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert "the same command resumes" in ended.stderr
    run = Study(tmp_path / "out").runs["endless", 1.0, 0]
    assert run.info["status"] == "interrupted"
    assert [record["source"] for record in run.info["plugins"]] == [str(plugin)]


def test_without_a_ray_cluster_there_is_one_line_and_no_folder(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the package ray, which is an extra, is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    line = error("study", "digits/vit_nano", "--on", "ray", "--out", tmp_path / "out")
    assert line.startswith("error: no Ray cluster is running here")
    line = error("study", "digits/vit_nano", "--on", "ray://127.0.0.1:9", "--out", tmp_path / "out")
    assert line.startswith("error: no Ray cluster at ray://127.0.0.1:9")
    assert not (tmp_path / "out").exists()


def test_a_study_through_submitit_resumes_a_run_whose_job_died(expected, tmp_path):
    pytest.importorskip("submitit", reason="the package submitit, which is an extra, is not installed")
    run = tmp_path / "study" / "runs" / "long" / "fraction-1" / "seed-0"

    def kill_its_job():
        """Its process, and the job around it, once there is something to resume from."""
        while not (run / "checkpoint" / "manifest.json").exists():
            time.sleep(0.05)
        child = find_process(run)
        parent = int((Path("/proc") / str(child) / "stat").read_text().rsplit(")", 1)[1].split()[1])
        controller = int((Path("/proc") / str(parent) / "stat").read_text().rsplit(")", 1)[1].split()[1])
        for process in (controller, parent, child):
            os.kill(process, signal.SIGKILL)

    watcher = Watcher("long, seed 0", kill_its_job)
    recipes = {"small": SMALL, "long": LONG}
    done = study(
        recipes, tmp_path / "study", seeds=1, engine="slurm:cluster=local", settings=SETTINGS, callback=watcher
    )
    assert {row.name: row.scores for row in done.rows()} == expected
    assert any("ended as INTERRUPTED" in line and "1 of 3 retries" in line for line in watcher.logged), watcher.logged
    assert any(line.startswith("resuming ") for line in watcher.logged)
    assert sorted(path.name for path in (tmp_path / "study").iterdir() if path.name.startswith(".")) == []


def test_ctrl_c_saves_the_runs_of_submitit(tmp_path):
    pytest.importorskip("submitit", reason="the package submitit, which is an extra, is not installed")
    recipes = {"endless": override(SMALL, ["epochs=100000"])}
    arguments = dict(seeds=1, engine="slurm:cluster=local,time=60", settings=SETTINGS)
    with pytest.raises(Interrupted, match="the same command resumes them"):
        study(recipes, tmp_path, **arguments, callback=Watcher("endless, seed 0", press_ctrl_c))
    assert Study(tmp_path).runs["endless", 1.0, 0].info["status"] == "interrupted"


def test_a_child_whose_parent_is_killed_saves_and_ends(tmp_path):
    save_recipe(override(SMALL, ["epochs=100000"]), tmp_path / "endless.yaml")
    words = ["study", str(tmp_path / "endless.yaml"), "--seeds", "2", "--jobs", "2", "--threads", "1"]
    parent = subprocess.Popen(
        [sys.executable, "-m", "vitling", *words, "--out", str(tmp_path / "out")], stdout=subprocess.DEVNULL
    )
    runs = [tmp_path / "out" / "runs" / "endless" / "fraction-1" / f"seed-{seed}" for seed in (0, 1)]
    while not all((run / "metrics.jsonl").exists() for run in runs):
        assert parent.poll() is None
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    for _ in range(600):
        statuses = {json.loads((run / "run.json").read_text())["status"] for run in runs}
        if statuses == {"interrupted"}:
            return
        time.sleep(0.1)
    raise AssertionError(statuses)
