"""A short part of the bench: `make torture` is the long one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, signals and /proc"),
]


def python(*arguments, cwd=ROOT) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(("part", "trials"), [("kills", 2), ("faults", 3), ("inputs", 8), ("endpoints", 2)])
def test_a_short_bench_holds(part, trials):
    if part == "endpoints":
        pytest.importorskip("gradio", reason='gradio is not installed: pip install "vitling[app]"')
    done = python("-m", "torture", part, "--seed", 1, "--trials", trials, "--examples", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{part}" in done.stdout


def test_a_soak_of_seconds_measures_memory(tmp_path):
    done = python("-m", "torture", "soak", "--minutes", 0.1, "--trials", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resident steps in" in done.stdout


def disturb(folder, kind, at, *more):
    command = ["train", "digits", "--recipe", "digits/vit_nano", "--out", "run", "--quiet"]
    quick = ["epochs=1", "fraction=0.1", "optim.warmup_epochs=0", "batch_size=32"]
    return python("-m", "torture.injection", "--kind", kind, "--at", at, *more, "--", *command, *quick, cwd=folder)


def test_a_disturbance_comes_at_its_operation(tmp_path):
    ended = disturb(tmp_path, "half written", 14)
    assert ended.returncode == 1
    assert "exit code -9" in ended.stderr
    (half,) = (tmp_path / "run").rglob(".*.vitling-*")  # what was being written
    full = disturb(tmp_path, "full", 14)
    assert "exit code 2: error: no space left on the device" in full.stderr
    assert not half.exists()
    assert disturb(tmp_path, "none", 0).returncode == 0
