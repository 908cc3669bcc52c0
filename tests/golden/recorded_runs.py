"""A dozen short runs over every method and kind of training, and what they left: losses, gradient norms, weights.

    python tests/golden/recorded_runs.py          # writes data/recorded_runs.json anew, after a change of numerics that is meant
    python tests/golden/recorded_runs.py --add    # adds a record of this machine, at a commit whose numbers are those recorded

A change of structure must leave every number as it is, to the last bit. Bits depend on the processor and on torch's build, so the
file holds a record for each kind of machine, with the commit it was taken at; elsewhere numbers are compared as numbers.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

import vitling
from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.recipes import Augment, Optim, Recipe, override, save_recipe
from vitling.training.beginning import train
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

FILE = Path(__file__).parent / "data" / "recorded_runs.json"
ONE_THREAD = Settings(threads=1)

BASE = Recipe(
    model="hybrid_vit_test",
    model_args=dict(drop_path_rate=0.1),
    method_args=dict(mixup=0.2, cutmix=1.0, label_smoothing=0.1),
    data="digits",
    img_size=16,
    fraction=0.3,
    epochs=2,
    batch_size=64,
    augment=Augment(crop="pad", hflip=0.5, randaugment="rand-m9-mstd0.5-inc1", erase=0.25),
    optim=Optim(lr=2e-3, warmup_epochs=1),
    ema_decay=0.9,
)


def _plain(folder: Path, *settings: str, where: Settings = ONE_THREAD) -> None:
    train(override(BASE, ["ema_decay=0", *settings]), folder, settings=where)


def ema(folder: Path) -> None:
    train(BASE, folder, settings=ONE_THREAD)


def resumed(folder: Path) -> None:
    """Interrupted in its second epoch and taken up again: the numbers are those of `ema`."""

    class StopAt(Callback):
        def on_step(self, epoch, step, steps, loss, images_per_second):
            if epoch * steps + step == 7:
                os.kill(os.getpid(), signal.SIGINT)

    try:
        train(BASE, folder, settings=ONE_THREAD, callback=StopAt())
        raise AssertionError("it was not interrupted")
    except Interrupted:
        train(BASE, folder, settings=ONE_THREAD)


def two_processes(folder: Path) -> None:
    recipe = folder.with_suffix(".yaml")
    save_recipe(override(BASE, ["ema_decay=0"]), recipe)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "vitling", "train", "digits", "--recipe", str(recipe), "--threads", "1", "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([*torchrun, *command], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def muon(folder: Path) -> None:
    _plain(folder, "optim.name=muon")


def sam(folder: Path) -> None:
    _plain(folder, "model=dhvt_test", "model_args.drop_path_rate=0", "optim.sam_rho=0.05")


def sgd_in_parts(folder: Path) -> None:
    settings = ["optim.name=sgd", "accumulate=2", "balance=sampler", "augment.repeats=3", "optim.layer_decay=0.7"]
    _plain(folder, "model=boot_vit_test", "optim.clip_grad=1", "optim.schedule=step", *settings)


def balanced_loss(folder: Path) -> None:
    settings = ["model=diag_vit_test", "balance=loss", "folds=4", "fold=1", "validate_every=2", "augment.crop=resized"]
    _plain(folder, "train_size=20", "augment.color_jitter=0.4", "model_args.drop_path_rate=0", *settings)


def half_precision(folder: Path) -> None:
    _plain(folder, "model=lvvit_test", where=Settings(threads=1, precision="bf16"))


def streamed(folder: Path) -> None:
    reading = Reading(memory_gb=0, workers=1)
    _plain(folder, "model=t2t_vit_test", where=Settings(threads=1, reading=reading))


def bootstrap_joint(folder: Path) -> None:
    _plain(folder, "model=boot_vit_test", "method=bootstrap")


def bootstrap_shared(folder: Path) -> None:
    _plain(folder, "model=boot_vit_test", "method=bootstrap", "method_args.share=true")


def distillation(folder: Path) -> None:
    teacher = folder.with_name("teacher")
    _plain(teacher, "model=resnet9_test", "epochs=1", "optim.warmup_epochs=0", "model_args.drop_path_rate=0")
    _plain(folder, "method=distillation", f"method_args.teacher={teacher}", "method_args.kind=soft")


def token_labeling(folder: Path) -> None:
    settings = ["method_args.relabel=auto", "method_args.annotator_epochs=1", "method_args.mixup=0"]
    _plain(folder, "model=lvvit_test", "method=token_labeling", "method_args.cutmix=0", *settings)


def token_bootstrap(folder: Path) -> None:
    settings = ["method_args.relabel=auto", "method_args.annotator_epochs=1", "model_args.drop_path_rate=0"]
    _plain(folder, "model=dhvt_test", "method=token_bootstrap", *settings)


def fine_tuned(folder: Path) -> None:
    """From the weights of another run, with its first layers frozen and learning rates by name."""
    start = folder.with_name("start")
    _plain(start, "epochs=1", "optim.warmup_epochs=0")
    _plain(folder, f"init={start}", "freeze=patch_embed.*", "optim.lr_factors={'blocks.*': 0.1}")


RUNS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (
        ema, resumed, two_processes, muon, sam, sgd_in_parts, balanced_loss, half_precision, streamed, bootstrap_joint,
        bootstrap_shared, distillation, token_labeling, token_bootstrap, fine_tuned,
    )
}  # fmt: skip


def what_is_left(folder: Path) -> dict:
    """The numbers of a run: those that it logged, and its weights as a checksum and as norms."""
    run = vitling.load_run(folder)
    weights = {which: load_file(folder / which / "model.safetensors") for which in ("best", "last")}
    return {
        "metrics": run.metrics(),
        "gradients": run.gradients(),
        "checksums": {which: _checksum(state) for which, state in weights.items()},
        "norms": {which: _norm(state) for which, state in weights.items()},
    }


def _checksum(state: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(name.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _norm(state: dict[str, torch.Tensor]) -> float:
    return sum(value.double().square().sum().item() for value in state.values()) ** 0.5


def machine() -> dict[str, str]:
    """What the last bits depend on."""
    lines = [line.split(":") for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()]
    cpu = {key.strip(): value.strip() for key, value in lines}
    flags = cpu.get("flags", "").split()
    return {
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "processor": cpu["model name"],
        "family": f"{cpu['cpu family']}/{cpu['model']}",  # hypervisors give many processors one name
        # They hide instructions, too, and bf16 is rounded as those do that there are.
        "bf16": " ".join(flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags),
    }


def records() -> list[dict]:
    """What was recorded: a machine, the commit that was run there, and its runs."""
    return json.loads(FILE.read_text())


def find_record(name: str) -> dict | None:
    """What the run of that name left on this kind of machine, if it was recorded: the record that says most of the machine."""
    here = machine().items()
    own = [known for known in records() if known["machine"].items() <= here and name in known["runs"]]
    if name == "half_precision":  # older records do not say which instructions there were
        own = [known for known in own if "bf16" in known["machine"]]
    return max(own, key=lambda known: len(known["machine"]))["runs"][name] if own else None


def record(add: bool = False) -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, function in RUNS.items():
            (Path(folder) / name).mkdir()
            function(Path(folder) / name / "run")
            found[name] = what_is_left(Path(folder) / name / "run")
            print(name, found[name]["metrics"][-1]["train_loss"], flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True)
    others = [known for known in records() if known["machine"] != machine()] if add else []
    taken = {"machine": machine(), "commit": commit.stdout.strip(), "runs": found}
    FILE.write_text(json.dumps([*others, taken], indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    record("--add" in sys.argv[1:])
