"""What a release uploads: built, checked, installed where nothing of ours is, and used there."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import vitling

for package in ("build", "hatchling", "twine"):
    pytest.importorskip(package, reason='needs pip install "vitling[release]"')
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = """
import vitling

recipe = vitling.override(vitling.load_recipe("digits/vit_nano"), ["epochs=2"])
run = vitling.train(recipe, "runs/a")
reveal_type(vitling.evaluate(run).top1)
reveal_type(vitling.ViTClassifier(epochs=2))
vitling.train(recipe, run_dir=3)
vitling.no_such_name
"""


def run(*command, cwd: Path) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, env=environment)


def succeed(*command, cwd: Path) -> str:
    result = run(*command, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The sdist, and the wheel that is made from it alone."""
    folder = tmp_path_factory.mktemp("dist")
    succeed(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def python(built, tmp_path_factory) -> Path:
    """A fresh environment with the wheel in it. Dependencies are those of this one, whose own vitling it does not see."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "env", with_pip=False)
    own = folder / "env" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "env" / "bin" / "python"
    wheel = next(built.glob("*.whl"))
    install = [
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
        wheel,
    ]
    succeed(sys.executable, *install, cwd=folder)
    return python


def test_sdist_and_wheel_hold_what_they_should_and_pass_twine(built):
    succeed(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    wheel = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    tracked = succeed("git", "ls-files", "vitling", cwd=ROOT).split() if (ROOT / ".git").exists() else []
    assert set(tracked) <= set(wheel)
    assert {"vitling/py.typed", "vitling/__init__.pyi", "vitling/reports/template.html.j2"} <= set(wheel)
    assert {name.split("/")[0] for name in wheel} == {"vitling", f"vitling-{vitling.__version__}.dist-info"}
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert {"docs/index.md", "tests/conftest.py", "constraints.txt", "mkdocs.yml", "LICENSE", "CHANGELOG.md"} <= sdist
    assert not any(name.startswith((".venv", "site/", "runs/")) for name in sdist)


def test_the_installed_wheel_trains_and_predicts(python, tmp_path):
    where = succeed(python, "-c", "import vitling; print(vitling.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(python.parents[1])
    command = python.with_name("vitling")
    assert succeed(command, "--version", cwd=tmp_path).split() == ["vitling", vitling.__version__]
    short = ["epochs=1", "optim.warmup_epochs=0", "fraction=0.1", "model=dhvt_test", "model_args={}", "img_size=16"]
    succeed(command, "train", "digits", "--recipe", "digits/vit_nano", *short, "--out", "runs/a", cwd=tmp_path)
    assert (tmp_path / "runs" / "a" / "best" / "model.safetensors").exists()
    assert "top-1" in succeed(command, "evaluate", "runs/a", cwd=tmp_path)


def test_a_users_type_checker_sees_our_types(python, tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    # As in our own settings: these packages are large, and the program does not use them.
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\n[mypy-torch.*,timm.*,torchmetrics.*,huggingface_hub.*]\nfollow_imports = skip\n"
    )
    checked = ["-m", "mypy", "--python-executable", python, "--cache-dir", tmp_path / "cache", "program.py"]
    said = run(sys.executable, *checked, cwd=tmp_path).stdout
    assert 'Revealed type is "float"' in said.replace("builtins.", ""), said
    assert 'Revealed type is "vitling.estimator.classifier.ViTClassifier"' in said
    wrong = [line for line in said.splitlines() if line.startswith("program.py") and ": error:" in line]
    assert len(wrong) == 2, said
    assert '"run_dir"' in wrong[0]
    assert "no_such_name" in wrong[1]


def test_type_checkers_are_shown_every_public_name_where_it_is():
    from vitling import _PACKAGES, _PUBLIC

    stub = (ROOT / "vitling" / "__init__.pyi").read_text()
    shown = {name: home for home, name in re.findall(r"^from ([\w.]+) import (\w+) as \2$", stub, re.MULTILINE)}
    assert shown == {**_PUBLIC, **dict.fromkeys(_PACKAGES, "vitling")}


def test_version_changelog_and_citation_agree():
    version = vitling.__version__.removesuffix(".dev0")
    newest = re.search(r"^## (\S+?)(,.*)?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == version
    assert (newest[2] == ", unreleased") == vitling.__version__.endswith(".dev0")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
