"""The shape of the package, beyond what import-linter checks."""

import ast
import re
from pathlib import Path

import pytest

import vitling
from vitling.methods import METHODS

PACKAGE = Path(vitling.__file__).parent
OUTSIDE_METHODS = sorted(file for file in PACKAGE.rglob("*.py") if not file.is_relative_to(PACKAGE / "methods"))


def test_the_top_level_holds_few_files():
    assert len(list(PACKAGE.glob("*.py"))) <= 7


@pytest.mark.parametrize("file", OUTSIDE_METHODS, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_nobody_outside_methods_asks_for_a_method_by_name(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "method":
            names = [c.value for c in node.comparators if isinstance(c, ast.Constant)]
            assert not set(names) & set(METHODS), f"line {node.lineno} compares with {names}"


def test_only_the_command_line_names_flags():
    flag = re.compile(r"(?<![\w-])--[a-z]")
    for file in PACKAGE.rglob("*.py"):
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
