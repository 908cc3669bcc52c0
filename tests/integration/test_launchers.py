"""The launchers of docs/many_devices.md start training: SLURM's script, and Ray."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vitling

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "many_devices.md").read_text()
# What the script needs of them: a name, and the command once per node with what SLURM tells it.
SCONTROL = "#!/bin/sh\necho 127.0.0.1\n"
SRUN = """#!/bin/sh
export SLURM_NNODES=2
SLURM_NODEID=1 "$@" &
SLURM_NODEID=0 "$@"
code=$?
wait $! && exit $code
"""


def test_the_script_for_slurm_trains_on_its_nodes(tmp_path):
    [script] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    words = "digits --recipe digits/vit_nano epochs=1 optim.warmup_epochs=0 fraction=0.1"
    script = script.replace("--nproc-per-node 4", "--nproc-per-node 1").replace(
        "DATA --out runs/big", f"{words} --out run"
    )
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "job": script}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "SLURM_JOB_NODELIST": "two", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(["sh", "job"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    run = vitling.load_run(tmp_path / "run")
    assert run.finished
    assert run.info["processes"] == 2


def test_ray_trains_with_two_workers(tmp_path):
    pytest.importorskip("ray.train.torch", reason="ray is an optional package")
    [code] = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    recipe = tmp_path / "recipe.yaml"
    changes = ["epochs=1", "optim.warmup_epochs=0", "fraction=0.1"]
    vitling.recipes.save_recipe(vitling.override(vitling.load_recipe("digits/vit_nano"), changes), recipe)
    code = code.replace("digits/vit_nano", str(recipe)).replace("/shared/runs/ray", str(tmp_path / "run"))
    start = "import ray\nray.init(num_cpus=3, include_dashboard=False)\n"
    (tmp_path / "job.py").write_text(start + code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    result = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    run = vitling.load_run(tmp_path / "run")
    assert run.finished
    assert run.info["processes"] == 2
