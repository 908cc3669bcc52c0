"""The Dockerfiles, as far as they can be tried without Docker: what they copy, whom they run as, and what they start."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
import typer
from tiny_run import images_of, make_tiny_run

from vitling.cli.main import app
from vitling.deploy.export import export

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE))
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def value(path: Path, name: str) -> str:
    return [rest for key, rest in instructions(path) if key == name][-1]


def test_there_is_one_for_serving_and_one_for_training():
    assert [path.name for path in FILES] == ["serve.Dockerfile", "train.Dockerfile"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_copied_exists_and_is_not_ignored(path):
    kept = [line[1:] for line in Path(f"{path}.dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        name for key, rest in instructions(path) if key == "COPY" and "--from" not in rest for name in rest.split()[:-1]
    ]
    assert {"constraints.txt", "pyproject.toml", "vitling"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists()
        assert any(fnmatch(name, pattern) for pattern in kept), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_slim_and_runs_as_a_user_without_rights(path):
    bases = [rest for key, rest in instructions(path) if key == "FROM"]
    assert all(re.match(r"python:3\.\d+-slim\b", base) for base in bases)
    user, group = value(path, "USER").split(":")
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_it_starts_is_a_command_of_vitling(path):
    program, *words = json.loads(value(path, "ENTRYPOINT")) + json.loads(value(path, "CMD"))
    assert program == "vitling"
    command = typer.main.get_command(app)
    if words[0] == "--help":
        return
    asked = command.commands[words[0]].make_context(words[0], words[1:]).params
    assert asked["model"] == "/model.onnx"
    assert asked["host"] == "0.0.0.0"
    assert str(asked["port"]) == value(path, "EXPOSE")
    assert f":{asked['port']}/health" in value(path, "HEALTHCHECK")


# What the slim image installs is enough, and a server writes nothing, so that the root may be read-only.

SERVE = """
import json, os, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[3])))  # as if they were not installed
written = []
def watch(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written.append(str(arguments[0]))
    elif event in ("os.mkdir", "os.rename", "os.remove", "tempfile.mkstemp", "tempfile.mkdtemp"):
        written.append(event)
sys.argv[0] = "vitling"
import anyio, asyncio
from vitling.cli.main import app
from vitling.deploy.predictor import Predictor
from vitling.deploy.server import create_server
import uvicorn
predictor = Predictor(sys.argv[1])
server = create_server(predictor)
sys.addaudithook(watch)
content = open(sys.argv[2], "rb").read()
padded = content + bytes(3 * 2**20)  # more than what forms keep in memory by default; PNG ends before it
body = b"--x\\r\\nContent-Disposition: form-data; name=\\"file\\"; filename=\\"a.png\\"\\r\\n\\r\\n" + padded + b"\\r\\n--x--\\r\\n"
async def ask():
    sent = []
    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}
    async def send(message):
        sent.append(message)
    headers = [(b"host", b"localhost"), (b"content-type", b"multipart/form-data; boundary=x")]
    scope = {"type": "http", "method": "POST", "path": "/predict", "raw_path": b"/predict", "query_string": b"", "headers": headers,
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "scheme": "http", "http_version": "1.1", "root_path": ""}
    await server(scope, receive, send)
    assert sent[0]["status"] == 200, sent
asyncio.run(ask())
files = sorted({name.partition(".")[0] for name, module in sys.modules.items() if getattr(module, "__file__", None)})
print(json.dumps({"written": written, "modules": files}))
"""


def closure(names: list[str]) -> set[str]:
    """Packages and all that they require."""
    found, waiting = set(), [name.lower().replace("_", "-") for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        with suppress(PackageNotFoundError):  # needed by other Pythons or systems only
            lines = [line for line in requires(name) or [] if "extra ==" not in line]
            waiting += [re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines]
    return found


@pytest.mark.slow
def test_the_server_of_the_slim_image_needs_only_what_is_listed_and_writes_nothing(tmp_path):
    for package in ("fastapi", "uvicorn", "onnxruntime"):
        pytest.importorskip(package, reason='needs pip install "vitling[export,serve]"')
    run = make_tiny_run(tmp_path)
    path = export(run, "onnx").path
    listed = [line for line in (ROOT / "docker" / "serve.txt").read_text().splitlines() if line[:1] not in ("#", "")]
    allowed, needed = closure(listed), {"vitling", "_distutils_hack"}  # ours; what Python loads at its start
    foreign = {
        module
        for module, owners in packages_distributions().items()
        if not allowed & {owner.lower().replace("_", "-") for owner in owners} and module not in needed
    }
    result = subprocess.run(
        [sys.executable, "-B", "-c", SERVE, path, images_of(run)[0], json.dumps(sorted(foreign))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["written"] == []
    assert foreign >= {"torch", "timm", "torchvision"}
    assert foreign.isdisjoint(said["modules"])
