"""The shape of the package, beyond what import-linter checks."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vitling
from vitling.methods import METHODS

PACKAGE = Path(vitling.__file__).parent
OUTSIDE_METHODS = sorted(file for file in PACKAGE.rglob("*.py") if not file.is_relative_to(PACKAGE / "methods"))


# A method's name as a word; a part of a longer name, or of a module's path, is none.
METHOD = re.compile(rf"(?<![\w.])({'|'.join(METHODS)})(?!\w|\.\w)")
MAY_NAME_METHODS = {
    "recipes/schema.py": "the default of `method`",
    "papers/bootstrapping.py": "the paper's tables",
    "papers/lvvit.py": "the paper's tables",
    "papers/t2t.py": "the paper's tables",
    # To be removed: it says in its own words what `methods.find_omissions` says of the agent.
}


def test_the_top_level_holds_few_files():
    assert len(list(PACKAGE.glob("*.py"))) <= 7


@pytest.mark.parametrize("file", OUTSIDE_METHODS, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_nobody_outside_methods_knows_a_method_by_name(file):
    """No string outside documentation names one, whether it is compared, set or part of a sentence."""
    place = file.relative_to(PACKAGE).as_posix()
    if place.startswith("recipes/named/") or place in MAY_NAME_METHODS:
        return
    for node in strings_of(ast.parse(file.read_text())):
        assert not METHOD.search(node.value), f"line {node.lineno} names a method: {node.value!r}"


def strings_of(tree):
    """Every string that is no docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def test_an_import_inside_a_function_says_why():
    """A comment on its line or above it. In cli/ the reason is always one: the command line is quick."""
    for file in PACKAGE.rglob("*.py"):
        lines = file.read_text().splitlines()
        tree = ast.parse("\n".join(lines))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        inside = {n.lineno for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)}
        for number in inside if not file.is_relative_to(PACKAGE / "cli") else ():
            start = number - 1
            while start in inside:  # imports that follow each other share a comment
                start -= 1
            assert any("#" in line for line in lines[start - 1 : number]), f"{file}, line {number}"


def test_only_the_command_line_names_flags_and_what_writes_commands_to_be_pasted():
    flag = re.compile(r"(?<![\w-])--[a-z]")
    writes_commands = {"advice.py", "causes.py", "numbers_page.py", "process.py", "run_parts.py"}
    for file in PACKAGE.rglob("*.py"):
        if file.name in writes_commands:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and not file.is_relative_to(PACKAGE / "cli")
            ):
                assert not flag.search(node.value), f"{file}, line {node.lineno}: {node.value}"


def test_only_three_public_verbs_and_the_commands_have_the_name_of_their_module():
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == file.stem
    }
    commands = {name for name in found if name.startswith("cli/")}
    assert found - commands == {"deploy/export.py", "planning/plan.py", "studies/study.py"}


def test_no_function_shadows_its_module():
    """No package gives a function the name of one of its modules."""
    for init in PACKAGE.rglob("__init__.py"):
        modules = {file.stem for file in init.parent.glob("*.py")} | {
            d.parent.name for d in init.parent.glob("*/__init__.py")
        }
        named = {
            alias.asname or alias.name
            for node in ast.parse(init.read_text()).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if node.module != init.parent.name
        }
        public = {name for name in named if name in modules and name.islower()}
        imported_modules = {
            alias.name
            for node in ast.parse(init.read_text()).body
            if isinstance(node, ast.ImportFrom)
            and node.module == ".".join(["vitling", *init.parent.relative_to(PACKAGE).parts])
            for alias in node.names
        }
        assert not public - imported_modules, f"{init}: {public - imported_modules}"


def test_each_change_of_the_table_in_contributing_touches_at_most_three_files_that_exist():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text.partition("| to add | touch |")[2], flags=re.MULTILINE)
    assert len(rows) >= 12
    for change, files in rows:
        paths = re.findall(r"[\w/]+\.(?:py|md|json)\b", files)
        assert 1 <= len(paths) <= 3, change
        for path in paths:
            known = (
                path
                if path.startswith(("SECURITY", "benchmarks/", "docs/", "tests/", "torture/", "vitling/"))
                else f"vitling/{path}"
            )
            pattern = re.sub("NAME|PAPER", "*", known)
            assert list(PACKAGE.parent.glob(pattern)), (change, path)


@pytest.mark.slow
def test_a_new_family_and_a_new_package_are_checked_without_a_line_in_pyproject(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "vitling", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    families = tmp_path / "vitling" / "models"
    (families / "good.py").write_text(
        "from vitling.errors import UserError\nfrom vitling.models.contract import TokenContract\n"
    )
    (families / "copied.py").write_text("from vitling.models.dhvt import DHVT\n")
    (families / "trained.py").write_text("from vitling.recipes import Recipe\n")
    (tmp_path / "vitling" / "drawer.py").write_text("")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    for text in (
        "vitling.models.copied is not allowed to import vitling.models.dhvt",
        "vitling.models.trained is not allowed to import vitling.recipes",
        "drawer",
    ):
        assert text in result.stdout
    assert "models.good" not in result.stdout
