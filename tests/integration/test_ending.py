"""How a command ends: interrupted, terminated, with nobody reading what it prints, or with a reading process killed."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import call
from PIL import Image

import vitling
from vitling.callbacks import Callback
from vitling.cli.main import main
from vitling.recipes import Optim, Recipe, save_recipe
from vitling.training.beginning import train
from vitling.training.signals import Interrupted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals and descriptors are those of Unix"),
]

RECIPE = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    data="digits",
    epochs=2,
    fraction=0.3,
    optim=Optim(warmup_epochs=0),
)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "vitling", *map(str, arguments)]


def train_command(folder: Path, epochs: int, *more) -> list[str]:
    save_recipe(vitling.override(RECIPE, {"epochs": epochs}), folder / f"{epochs}.yaml")
    return command("train", "digits", "--recipe", folder / f"{epochs}.yaml", "--out", folder / "run", *more)


def start(arguments: list[str], **where) -> subprocess.Popen:
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen(arguments, text=True, **({"env": ENVIRONMENT} | pipes | where))


def wait_for(path: Path, process: subprocess.Popen) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


# -- signals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_training_ends_with_the_code_of_the_signal_and_resumes(tmp_path, number, code):
    process = start(train_command(tmp_path, 5000))
    wait_for(tmp_path / "run" / "metrics.jsonl", process)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code
    assert "the same command resumes it" in out
    assert err == ""
    assert vitling.load_run(tmp_path / "run").info["status"] == "interrupted"
    assert vitling.load_run(tmp_path / "run").load_checkpoint()[0]["step"] > 0
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]  # no lock, no half file


class SendAt(Callback):
    """A signal in a given step, or in the validation that follows an epoch."""

    def __init__(self, number, step=None):
        self.number, self.at = number, step

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == (self.at or RECIPE.epochs * steps):
            os.kill(os.getpid(), self.number)


def test_an_interruption_knows_its_signal(tmp_path):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with pytest.raises(Interrupted) as caught:
            train(RECIPE, tmp_path / str(code), callback=SendAt(number, 1))
        assert caught.value.exit_code == code


def test_a_signal_in_the_last_validation_is_not_forgotten(tmp_path):
    with pytest.raises(Interrupted, match="is finished; the same command goes on from there"):
        train(RECIPE, tmp_path / "run", callback=SendAt(signal.SIGINT))
    assert train(RECIPE, tmp_path / "run").finished


@pytest.mark.parametrize(
    ("number", "code", "jobs"), [(signal.SIGINT, 130, 2), (signal.SIGTERM, 143, 2), (signal.SIGTERM, 143, 1)]
)
def test_a_study_ends_with_the_code_of_the_signal_too(tmp_path, number, code, jobs):
    save_recipe(vitling.override(RECIPE, {"epochs": 5000}), tmp_path / "long.yaml")
    options = ["--seeds", 2, "--jobs", jobs, "--threads", 1, "--out", tmp_path / "study"]
    process = start(command("study", tmp_path / "long.yaml", *options))
    wait_for(tmp_path / "study" / "runs" / "long" / "fraction-1" / "seed-0" / "metrics.jsonl", process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert "the same command resumes" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_does_not_train_ends_with_the_code_of_the_signal(number, code, monkeypatch, capsys):
    class Signalling(io.BytesIO):
        def read(self, *size):
            os.kill(os.getpid(), number)
            return super().read(*size)

    before = signal.getsignal(signal.SIGTERM)
    interrupting = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Signalling(b"image.png")))
    monkeypatch.setattr(sys, "argv", ["vitling", "predict", "resnet18", "-"])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGINT, interrupting)
    assert ended.value.code == code
    assert "Traceback" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_a_killed_reading_process_is_one_line_of_the_command(tmp_path):
    process = start(train_command(tmp_path, 5000, "--memory-gb", 0, "--workers", 2))
    wait_for(tmp_path / "run" / "metrics.jsonl", process)
    readers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(readers[0]), signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 2, err
    assert err.startswith("error: a process that reads images died, perhaps because memory ran out")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_process_of_two_that_train_together_is_one_line_of_the_other(tmp_path, lost):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **ENVIRONMENT,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # as torchrun does
    arguments = train_command(tmp_path, 5000, "--checkpoint-seconds", 0)
    ranks = [start(arguments, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    wait_for(tmp_path / "run" / "metrics.jsonl", ranks[0])
    ranks[lost].kill()
    _, err = ranks[1 - lost].communicate()
    assert ranks[1 - lost].returncode == 2, err
    assert err.startswith("error: another process of this training has ended")
    assert len(err.splitlines()) == 1
    ranks[lost].communicate()
    assert vitling.load_run(tmp_path / "run").load_checkpoint()[0]["step"] > 0


# -- nobody reads ----------------------------------------------------------------------------------------------------


def test_a_closed_output_stops_the_printing_and_not_the_training(tmp_path):
    reader, writer = os.pipe()
    process = start(train_command(tmp_path, 2), stdout=writer)
    os.close(writer)
    os.close(reader)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert vitling.load_run(tmp_path / "run").finished
    assert (tmp_path / "run" / "report.html").exists()


def test_a_training_piped_into_head_trains_to_the_end(tmp_path):
    text = " ".join(f"'{word}'" for word in train_command(tmp_path, 2))
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {text} | head -1"], env=ENVIRONMENT, text=True, capture_output=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 1
    assert vitling.load_run(tmp_path / "run").finished


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_from_the_start_are_no_reason_to_fail(tmp_path, closed):
    text = " ".join(f"'{word}'" for word in train_command(tmp_path, 1))
    result = subprocess.run(["bash", "-c", f"{text} {closed}"], env=ENVIRONMENT, text=True, capture_output=True)
    assert result.returncode == 0
    assert vitling.load_run(tmp_path / "run").finished
    assert all(json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())


def test_a_closed_error_stream_keeps_the_exit_code(tmp_path):
    reader, writer = os.pipe()
    process = start(command("train", tmp_path / "nowhere"), stderr=writer)
    os.close(writer)
    os.close(reader)
    process.communicate()
    assert process.returncode == 2


def test_an_output_that_is_full_is_said_after_the_work(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "w") as full:
        process = start(command("list", "models"), stdout=full)
        _, err = process.communicate()
    assert process.returncode == 2
    assert err == "error: standard output cannot be written: No space left on device.\n"


def test_a_short_answer_piped_into_head_is_no_failure():
    text = " ".join(command("list", "models"))
    result = subprocess.run(["bash", "-c", f"set -o pipefail; {text} | head -1"], text=True, capture_output=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 1


# -- in one process ------------------------------------------------------------------------------------------------


def test_the_page_that_is_somebody_elses_is_left_and_the_training_is_done(tmp_path):
    arguments = train_command(tmp_path, 1)[3:]
    assert call(*arguments)[0] == 0
    (tmp_path / "run" / "report.html").write_text("notes on this run")
    code, _, err = call(*arguments)
    assert code == 0
    assert err.startswith("note: the page was not written:")
    assert (tmp_path / "run" / "report.html").read_text() == "notes on this run"


def test_warnings_of_others_do_not_surround_our_one_line(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("1", (9600, 9600)).save(tmp_path / "data" / name / f"{i}.png")  # Pillow warns: too many pixels
    arguments = ["-m", "vitling", "train", str(tmp_path / "data"), "--recipe", "digits/vit_nano"]
    quiet = start([sys.executable, *arguments], cwd=tmp_path)
    _, err = quiet.communicate()
    assert quiet.returncode == 2
    assert err.startswith("error: cannot read image")
    assert len(err.splitlines()) == 1
    asked = start([sys.executable, "-W", "default", *arguments], cwd=tmp_path)
    assert "DecompressionBombWarning" in asked.communicate()[1]
