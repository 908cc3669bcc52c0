"""What the shell completes. Names are read from our source: torch takes seconds to import, a key press must not wait."""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from glob import escape, iglob
from os import environ
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def one_of(*names: str) -> Callable[[str], list[str]]:
    """A completion by fixed names."""

    def complete(incomplete: str) -> list[str]:
        return _starting(incomplete, names)

    return complete


def data(incomplete: str) -> list[str]:
    """Names of datasets; where none fits, the shell goes on with files."""
    return _starting(incomplete, dataset_names())


def recipes(incomplete: str) -> list[str]:
    from vitling.recipes import named_recipes

    return _starting(incomplete, named_recipes())


def settings(incomplete: str) -> list[str]:
    """Keys of a recipe, and the values of those that are names."""
    before = _before_equals()
    key, equals, value = (before + incomplete.removeprefix("=")).partition("=")
    if not equals:
        return _starting(key, (f"{name}=" for name in setting_keys()))
    names = {"model": model_names, "method": method_names}.get(key, list)()
    return [name if before else f"{key}={name}" for name in _starting(value, names)]


def recipes_and_settings(incomplete: str) -> list[str]:
    return recipes(incomplete) + settings(incomplete)


def runs(incomplete: str) -> list[str]:
    """Run directories that begin as typed, or lie one folder deeper."""
    typed = escape(incomplete)
    found = [*iglob(f"{typed}*/run.json"), *iglob(f"{typed}*/*/run.json")]
    return sorted(str(Path(path).parent) for path in found)


def tables(incomplete: str) -> list[str]:
    from vitling.papers import tables

    return _starting(incomplete, tables())


def model_names() -> list[str]:
    files = sorted((PACKAGE / "models").glob("*.py"))
    return [name for file in files for name in _keys_of(file, lambda table: table.endswith("VARIANTS"))]


def method_names() -> list[str]:
    return list(_keys_of(PACKAGE / "methods" / "__init__.py", lambda table: table == "METHODS"))


def export_targets() -> list[str]:
    return list(_keys_of(PACKAGE / "deploy" / "export.py", lambda table: table == "TARGETS"))


def dataset_names() -> list[str]:
    return ["digits", *_keys_of(PACKAGE / "data" / "sources" / "named.py", lambda table: table == "TORCHVISION")]


def setting_keys() -> list[str]:
    """Every key of a recipe, as it is written on the command line."""
    from vitling.recipes import Recipe

    recipe = Recipe()
    keys = []
    for field in fields(recipe):
        part = getattr(recipe, field.name)
        keys += [f"{field.name}.{inner.name}" for inner in fields(part)] if is_dataclass(part) else [field.name]
    return keys


def _before_equals() -> str:
    """`model=` where bash, for which an equals sign ends a word, asks about what follows it; empty in other shells."""
    if environ.get("_VITLING_COMPLETE") != "complete_bash":
        return ""
    words, here = environ["COMP_WORDS"].split("\n"), int(environ["COMP_CWORD"])
    equals = next((i for i in (here, here - 1) if i < len(words) and words[i] == "="), 0)
    return f"{words[equals - 1]}=" if equals else ""


def _keys_of(file: Path, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Keys of the tables that a file writes out under the wanted names."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and wanted(target.id) and isinstance(node.value, ast.Dict):
            yield from (str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
