"""Every command and every block of Python in the documentation works, and every link leads somewhere.

Each page gets a folder with small stand-ins for what it names, and its blocks are carried out there from top to bottom. What
takes minutes, a network or a GPU is listed below with the reason, and is only resolved: parsed by the command line's own
parser, its recipes, settings, tables and options looked up. A command that is neither runnable nor listed fails.
"""

import ast
import contextlib
import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import typer
from command import call
from docs_folder import SHORT, break_things, make_folder
from docs_pages import PAGES, ROOT, TUTORIALS, Block, blocks, inline_commands, words

import vitling
from vitling.cli.main import app
from vitling.papers.plan import make_plan
from vitling.recipes import load_recipe, override, read_recipes

pytestmark = pytest.mark.slow

RESOLVED_PAGES = {
    "results.md": "measurements of minutes to hours",
    "reproducing.md": "tables and figures are made by tests/integration/test_reproduce.py",
    "five_papers.md": "each paper's own page and tests/integration/test_train.py train these",
}
RESOLVED_SUBCOMMANDS = {
    "improve": "minutes to hours; tests/integration/test_improve.py runs it",
    "app": "serves until it is ended; tests/integration/test_app.py drives it",
    "serve": "serves until it is ended; tests/unit/test_server.py drives it",
    "pretrain": "an hour; tests/integration/test_pretraining.py runs it",
    "demo": "two minutes; tests/integration/test_cli.py runs it",
}
RESOLVED = {
    "vitling diagnose RUN --learning-curve": "trains on parts; tests/integration/test_diagnose.py does",
    "vitling diagnose RUN --label-errors": "trains on folds; tests/integration/test_diagnose.py does",
    "vitling train path/to/folder --budget 30m --out runs/mine": "half an hour",
    "vitling train DATA --budget 5m --out runs/first": "five minutes; test_tutorials.py trains such a folder",
    "vitling train photos --out runs/photos --more 30m": "half an hour; tests/integration/test_budget.py trains one further",
    "vitling train DATA init=runs/images --out runs/mine": "a run without labels; test_pretraining.py begins from one",
    "vitling train DATA --unlabelled IMAGES --budget 2h --out runs/both": "two hours; test_pretraining.py trains both stages",
    "vitling train DATA --folds 5 --budget 1h --out runs/teacher": "an hour",
    "vitling train DATA method=self_training method_args.teacher=runs/teacher method_args.unlabelled=IMAGES --budget 1h "
    "--out runs/student": "an hour; test_pretraining.py trains one",
    "vitling train cifar100": "a download",
    "vitling study digits/vit_nano digits/dhvt_nano --jobs 2 --out studies/here": "sixty epochs",
    **{
        f"vitling study digits/vit_nano digits/dhvt_nano --on {engine} --out /shared/study": "a cluster; test_engines.py has one"
        for engine in (
            "ray",
            "ray://head:10001 --gpus-per-trial 1",
            "slurm:partition=gpu,time=240 --gpus-per-trial 1 --threads 8",
        )
    },
    "vitling reproduce dhvt/table6 --scale nano --on ray --out /shared/table6": "a cluster",
    "vitling train DATA --out s3://bucket/runs/mine": "a bucket; tests/unit/test_remote.py has storage in memory",
    "vitling evaluate s3://bucket/runs/mine": "the same",
    "vitling train cifar100 --recipe bootstrapping/cifar100_vit_s_joint": "a download and a GPU",
    "vitling train hf:owner/name": "a name in place of a real one",
    "vitling train hf:path/to/saved": "the package datasets, which is optional",
    "vitling relabel label_top5_train_nfnet IMAGENET --out labels/imagenet": "the authors' label maps",
    "vitling train IMAGENET --recipe lvvit/imagenet_s": "those maps, ImageNet and a GPU",
    "accelerate launch --num_processes 4 -m vitling train DATA --precision bf16": "four GPUs",
    "torchrun --standalone --nproc-per-node 4 -m vitling train DATA --precision bf16": "four GPUs",
    "torchrun --nnodes 2 --node-rank 0 --nproc-per-node 4 --master-addr first.example.org --master-port 29500 "
    "-m vitling train DATA --out runs/big": "two machines",
}
# Words that make a command short; the rest is typed as it stands. Training is shortened in `train_briefly`.
APPENDED = {"study": [*SHORT, "--seeds", "1"], "diagnose": ["--images", "16"]}
CHECKED_PYTHON = {
    "improving.md": "an hour; tests/integration/test_improve.py does the same in one minute",
    "python_api.md": "tests/integration/test_python_api.py runs it",
    "reproducing.md": "tests/integration/test_reproduce.py makes the same table",
    "planning.md": "half an hour of training",
    "pretraining.md": "an hour; tests/integration/test_pretraining.py does the same in seconds",
    "studies.md": "ten runs of thirty epochs",
}
PARSER = typer.main.get_command(app)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("docs"))


@pytest.fixture
def folder(stand_ins, tmp_path, monkeypatch) -> Path:
    """A copy of the stand-ins that a page may change, as the present folder."""
    shutil.copytree(stand_ins, tmp_path / "reader")
    monkeypatch.chdir(tmp_path / "reader")
    return tmp_path / "reader"


def has_steps(page: Path) -> bool:
    return (
        page not in TUTORIALS
        and page.name != "troubleshooting.md"
        and any(b.commands or b.language == "python" for b in blocks(page))
    )


@pytest.mark.parametrize("page", filter(has_steps, PAGES), ids=lambda page: page.name)
def test_the_blocks_of_a_page_work_one_after_another(page, folder):
    module = types.ModuleType(f"docs_{page.stem}")  # registering a model needs a module that can be found
    sys.modules[module.__name__] = module
    for block in blocks(page):
        if block.language == "python":
            run_python(block, page, module)
        for command in block.commands:
            try:
                resolve(command) if is_only_resolved(command, page) else run(command)
            except (Exception, SystemExit) as error:
                raise AssertionError(f"{page.name}: `{command}` failed: {error}") from error


def is_only_resolved(command: str, page: Path) -> bool:
    program, subcommand = command.split()[:2]
    listed = page.name in RESOLVED_PAGES or command in RESOLVED
    return listed or (program == "vitling" and subcommand in RESOLVED_SUBCOMMANDS)


def run_python(block: Block, page: Path, module: types.ModuleType) -> None:
    code = compile(block.text, page.name, "exec")
    if page.name in CHECKED_PYTHON:
        check_calls(block.text)
    else:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, vars(module))


def check_calls(code: str) -> None:
    """Functions of vitling that the code calls exist and take the arguments that it gives."""
    for called in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
        path = ast.unparse(called.func).split(".")
        if path[0] == "vitling":
            function = vitling
            for part in path[1:]:
                function = getattr(function, part)
            keywords = {item.arg: None for item in called.keywords if item.arg}
            inspect.signature(function).bind(*called.args, **keywords)


# --- commands ---------------------------------------------------------------------------------------------------------


def run(command: str) -> None:
    """Carry the command out, in this process where it is vitling's."""
    before, pipe, command = command.rpartition(" | ")
    given = subprocess.run(before, shell=True, capture_output=True, check=True).stdout if pipe else b""
    program, *arguments = words(command)
    if program == "vitling" and arguments[0] == "train":
        train_briefly(arguments[1:])
    elif program == "vitling":
        code, printed = type_in(*arguments, *APPENDED.get(arguments[0], []), stdin=given)
        assert code == 0, printed
    elif program == "torchrun":
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        result = subprocess.run(command, shell=True, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        assert "x 2" in result.stdout, result.stdout + result.stderr
    else:
        resolve(command)


def type_in(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """The command line with these words: its exit code and what it printed."""
    code, out, err = call(*arguments, stdin=stdin)
    return code, out + err


def train_briefly(arguments: list[str]) -> None:
    """What `vitling train` does with these words, for one epoch and without the page, which takes longer than the epoch."""
    asked = parse("train", arguments)
    settings = [*(asked["settings"] or []), *SHORT]
    recipe = override(load_recipe(asked["recipe"]), settings) if asked["recipe"] else None
    planned = vitling.plan(asked["data"], settings, recipe=recipe, brief=True).recipe
    out = asked["out"] or Path("runs") / f"trained-{len(list(Path('runs').iterdir()))}"
    planned = override(planned, {"data": asked["data"]})
    if asked["folds"]:
        assert vitling.train_folds(planned, out, asked["folds"], distill=asked["distill"]).finished
    else:
        assert vitling.train(planned, out).finished


def parse(name: str, arguments: list[str]) -> dict:
    return PARSER.commands[name].make_context(name, list(arguments)).params


def resolve(command: str) -> None:
    """Everything that the command names exists, as far as that can be known without carrying it out."""
    program, *arguments = shlex.split(command)
    if "-m" in arguments and "vitling" in arguments:
        program, *arguments = arguments[arguments.index("-m") + 1 :]
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "pip":
        extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert {extra for group in re.findall(r"\[([\w,]+)\]", command) for extra in group.split(",")} <= set(extras)
    elif program == "python":
        path = f"{arguments[1]}/__main__.py" if arguments[0] == "-m" else arguments[0]
        script = (ROOT / path).read_text()
        assert all(word in script for word in arguments[1:] if word.startswith("--"))
    else:
        assert program == "vitling", f"{program} is not a program that the documentation may use"
        resolve_vitling(*arguments)


def resolve_vitling(name: str, *arguments: str) -> None:
    asked = parse(name, arguments)
    if name == "train" and asked["recipe"]:
        override(load_recipe(asked["recipe"]), asked["settings"] or [])
    elif name == "study":
        read_recipes(asked["recipes"])
    elif name == "reproduce" and asked["name"]:
        make_plan(asked["name"], **{key: asked[key] for key in ("scale", "rows", "data", "epochs")})


def test_what_is_only_resolved_still_stands_in_the_documentation():
    there = {command for page in PAGES for block in blocks(page) for command in block.commands}
    assert RESOLVED.keys() <= there
    assert {*RESOLVED_PAGES, *CHECKED_PYTHON} <= {page.name for page in PAGES}


def test_commands_in_the_text_are_commands_with_options_that_exist():
    for page in PAGES:
        for command in [*inline_commands(page), *(form for block in blocks(page) for form in block.forms)]:
            name = command.split()[1]
            if name.startswith("-"):
                continue
            assert name in PARSER.commands, f"{page.name}: {command}"
            known = {option for parameter in PARSER.commands[name].params for option in parameter.opts} | {"--help"}
            assert set(re.findall(r"(?<!\S)\[?(--[\w-]+)", command)) <= known, f"{page.name}: {command}"


# --- troubleshooting --------------------------------------------------------------------------------------------------


def test_each_trouble_gives_the_message_that_the_page_shows(folder):
    break_things(folder)
    page = blocks(ROOT / "docs" / "troubleshooting.md")
    troubles = [(block.commands[0], page[i + 1].text) for i, block in enumerate(page) if block.commands]
    assert len(troubles) == 20
    for command, message in troubles:
        code, printed = type_in(*words(command)[1:])
        assert code == 2, f"{command}: {printed}"
        said = printed.strip().splitlines()[-1].replace(f"{folder}/", "")
        assert without_times(said) == without_times(message.strip()), command


def without_times(text: str) -> str:
    """Seconds, and the budget that would do, depend on the machine."""
    return re.sub(r"budget of \d+[smh] would", "budget of N would", re.sub(r"[\d.]+ s\b", "N s", text))


# --- spelling ---------------------------------------------------------------------------------------------------------


def test_words_are_spelt_as_in_a_dictionary(tmp_path):
    planted = tmp_path / "planted.md"
    planted.write_text("Recieve the acuracy.\n")
    pages = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *pages, planted], capture_output=True, text=True, check=False
    )
    found = done.stdout.splitlines()
    assert [line for line in found if str(planted) not in line] == []
    assert len(found) == 2  # it does look


# --- links ------------------------------------------------------------------------------------------------------------


def test_every_link_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")):
                path, _, heading = target.partition("#")
                aim = page.parent / path if path else page
                assert aim.exists(), f"{page.name}: {target}"
                assert not heading or heading in headings(aim), f"{page.name}: {target}"


def headings(page: Path) -> set[str]:
    """Addresses of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_readme_is_one_screen_and_leads_to_the_documentation():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 50
    assert readme.count("![") == 1
    assert readme.count("|---") == 3  # one table, of three columns
    assert "docs/index.md" in readme
