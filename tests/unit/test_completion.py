"""Shell completion: the names are the real ones, and no key press waits for torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vitling.cli import completion
from vitling.data.sources.named import NAMES
from vitling.deploy.export import TARGETS
from vitling.methods import METHODS
from vitling.models import our_models


def test_names_read_from_the_source_are_those_that_are_registered():
    assert sorted(completion.model_names()) == sorted(our_models())
    assert completion.method_names() == list(METHODS)
    assert sorted(completion.dataset_names()) == sorted(NAMES)
    assert completion.export_targets() == list(TARGETS)


def test_settings_complete_keys_and_then_the_names_they_take():
    assert "optim.lr=" in completion.settings("optim.")
    assert completion.settings("epo") == ["epochs="]
    assert completion.settings("method=boot") == ["method=bootstrap"]
    assert "model=dhvt_nano" in completion.settings("model=dhvt")
    assert completion.settings("epochs=") == []


def test_runs_are_found_one_and_two_folders_deep(tmp_path, monkeypatch):
    for run in ("one", "runs/two", "runs/[three]"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.json").write_text("{}")
    (tmp_path / "runs" / "no-run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert completion.runs("") == ["one", "runs/[three]", "runs/two"]
    assert completion.runs("runs/[") == ["runs/[three]"]
    assert completion.runs(f"{tmp_path}/o") == [f"{tmp_path}/one"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vitling train digits --recipe digits/v", "digits/vit_nano"),
        ("vitling train cifar10", "cifar100"),
        ("vitling train digits model=dhvt_n", "model=dhvt_nano"),
        ("vitling reproduce dhvt/table6", "dhvt/table6"),
        ("vitling export RUN --to on", "onnx"),
    ],
)
def test_the_shell_gets_names_without_torch(line, expected):
    """A torch that cannot be imported would show."""
    asked = {"_VITLING_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    code = "import sys; sys.modules['torch'] = None; sys.argv[0] = 'vitling'; from vitling.cli.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert expected in result.stdout.split(), result.stderr


IN_BASH = """
eval "$(_VITLING_COMPLETE=source_bash vitling)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_vitling_completion vitling
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("vitling train digits --recipe digits/v", "digits/vit_nano"),
        ("vitling train digits meth", "method="),
        ("vitling train digits method = boot", "bootstrap"),  # an equals sign ends a word of bash
        ("vitling train digits method =", "bootstrap"),
    ],
)
def test_the_script_that_is_installed_works_in_bash(words, expected):
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        ["bash", "-c", IN_BASH, "bash", *words.split()],
        env={**os.environ, "PATH": search},
        capture_output=True,
        text=True,
    )
    assert expected in result.stdout.split(), result.stderr
