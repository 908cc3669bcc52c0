"""`vitling demo` as a user sees it: the whole story, and again."""

import json
import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def demo(folder):
    command = [sys.executable, "-m", "vitling", "demo", "--no-open"]
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_demo_tells_the_whole_story_and_finds_it_again(tmp_path):
    shown = demo(tmp_path)
    for part in (
        "1. Look",
        "1,438 train, 359 test",
        "2. Train",
        "2 runs",
        "3. Compare",
        "4. Say why",
        "What to try next",
    ):
        assert part in shown
    accuracies = [float(found) for found in re.findall(r"([\d.]+) % +[\d.]+ to [\d.]+ ", shown)]
    assert len(accuracies) == 2
    assert accuracies[1] > accuracies[0] > 80
    assert "default is better, and the difference is significant" in shown

    folder = tmp_path / "vitling-demo"
    runs = [folder / "runs" / name / "fraction-1" / "seed-0" for name in ("plain-ViT", "default")]
    infos = [json.loads((run / "run.json").read_text()) for run in runs]
    assert [info["test_looks"] for info in infos] == [1, 1]
    page = folder / "diagnosis.html"
    assert "runs/default/" in page.read_text()
    for _, path in re.findall(r"vitling (evaluate|export) (\S+)", shown):
        assert (tmp_path / path / "run.json").exists()

    made = {path: path.stat().st_mtime_ns for path in [page, *(run / "best" / "model.safetensors" for run in runs)]}
    again = demo(tmp_path)
    assert "2 runs, 2 of them finished already" in again
    assert again.partition("3. Compare")[2] == shown.partition("3. Compare")[2]
    assert {path: path.stat().st_mtime_ns for path in made} == made
