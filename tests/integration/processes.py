"""Several processes that train together, as torchrun starts them. One launch runs many recipes: each start takes seconds."""

import os
import subprocess
import sys
from pathlib import Path

import vitling
from vitling.recipes import Augment, Optim, Recipe, save_recipe
from vitling.runs.run import Run

# No dropout and no drop path: those are drawn for the rows of a process.
RECIPE = Recipe(
    model="hybrid_vit_test",
    model_args=dict(drop_path_rate=0.0),
    method_args=dict(mixup=0.2, cutmix=1.0, label_smoothing=0.1),
    data="digits",
    img_size=16,
    fraction=0.1,
    epochs=2,
    batch_size=32,
    augment=Augment(crop="pad"),
    optim=Optim(lr=1e-3, warmup_epochs=1),
)
NO_DROPOUT = "method_args.agent_args={mlp_drop_rate: 0}"
# Small steps by the gradient: Adam makes whole steps of gradients that are nothing but rounding, and large ones amplify it.
SGD = ["optim.name=sgd", "optim.momentum=0.9", "optim.lr=0.002"]
SCRIPT = """
import os, signal, sys
from pathlib import Path
import vitling
from vitling.callbacks import Callback
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

class StopAt(Callback):
    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == 5:
            os.kill(os.getpid(), signal.SIGINT)

folder, words = Path(sys.argv[1]), sys.argv[2:]
settings = Settings(threads=1, shard="shard" in words)
for file in sorted(folder.glob("*.yaml")):
    recipe = vitling.load_recipe(file)
    vitling.train(recipe, folder / file.stem, settings=settings)
    if "resume" in words:
        try:
            vitling.train(recipe, folder / "resumed" / file.stem, settings=settings, callback=StopAt())
            raise AssertionError("it was not interrupted")
        except Interrupted:
            vitling.train(recipe, folder / "resumed" / file.stem, settings=settings)
"""


def launch(*arguments, processes: int = 2) -> subprocess.CompletedProcess:
    """What `torchrun` does with these arguments."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *map(str, arguments)], env=environment, capture_output=True, text=True)


def train_together(folder: Path, recipes: dict[str, Recipe], *words: str) -> dict[str, Run]:
    """Each recipe trained by two processes into a folder of its name, all of them in one launch.

    With the word "shard" in shards; with "resume" once more into `resumed/`, interrupted in step 5.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, recipe in recipes.items():
        save_recipe(recipe, folder / f"{name}.yaml")
    (folder / "train.py").write_text(SCRIPT)
    result = launch(folder / "train.py", folder, *words)
    assert result.returncode == 0, result.stderr
    return {name: vitling.load_run(folder / name) for name in recipes}
