"""The plug-in of docs/extending.md, from an empty folder to an installed package, as a reader would do it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()

pytestmark = pytest.mark.slow


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_plug_in_of_the_page_works_from_an_empty_folder_to_a_package(tmp_path):
    for text in [blocks("py")[0], blocks("toml")[0]]:
        name = text.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
    site = tmp_path / "site"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}

    def run(command: str) -> subprocess.CompletedProcess:
        program, *words = shlex.split(command)
        if program == "pip":  # into a folder of the test, and without a network
            words = [*words, "--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--target", str(site)]
        if words[0] == "study":
            words += ["--threads", "1"]
        return subprocess.run(
            [sys.executable, "-m", program, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    imported, installed = ([line for line in block.splitlines() if line] for block in blocks("sh"))
    for command in imported:
        done = run(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    refused = run("vitling evaluate run")
    said = next(text for text in blocks("text") if text.startswith("error: run needs model striped_vit_test"))
    assert (refused.returncode, hide(refused.stderr)) == (2, hide(said))
    for command in installed:
        done = run(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    listed = run("vitling list models striped")
    assert "of the plug-in vitling-stripes 0.1" in listed.stdout


def hide(text: str) -> str:
    """Where the file is and what it hashes to are each reader's own."""
    return re.sub(r"SHA-256 \w+", "SHA-256", re.sub(r"import \S+ first", "import FILE first", text.strip()))
