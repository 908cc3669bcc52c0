"""The shape of the package, beyond what import-linter checks."""

import ast
import re
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
