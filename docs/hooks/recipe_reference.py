"""The page on the recipe's keys, from the dataclasses in vitling/recipes/schema.py: defaults, ranges and the comments beside them."""

import dataclasses
import inspect
import re
import types
import typing
from typing import Annotated, Any, Literal

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from vitling.recipes.schema import Augment, Optim, Recipe

URI = "reference/recipe.md"
INTRODUCTION = """# Every key of a recipe

A recipe is everything that defines an experiment. On the command line its keys are set with `key=value`, in Python with
`vitling.override(recipe, ["key=value"])`. `vitling show NAME` prints all of them for a recipe. [Training](../training.md#what-a-recipe-says)
explains them in groups; this page is generated from the code, so nothing is missing.
"""
WORDS = {bool: "true or false", int: "integer", float: "number", str: "text", Any: "anything", types.NoneType: "none"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, URI, content=describe_recipe()))
    return files


def describe_recipe() -> str:
    tables = [
        ("The experiment", Recipe, ""),
        ("Augmentation", Augment, "augment."),
        ("Optimiser and schedule", Optim, "optim."),
    ]
    return "\n".join([INTRODUCTION, *(_describe(title, group, prefix) for title, group, prefix in tables)])


def _describe(title: str, group: Any, prefix: str) -> str:
    kinds, remarks = typing.get_type_hints(group, include_extras=True), read_remarks(group)
    rows = ["| key | default | allowed | |", "|---|---|---|---|"]
    for field in dataclasses.fields(group):
        if not dataclasses.is_dataclass(kinds[field.name]):  # those have tables of their own
            cells = [f"`{prefix}{field.name}`", _default(field), describe_kind(kinds[field.name]), remarks[field.name]]
            rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return f"## {title}\n\n{inspect.getdoc(group)}\n\n" + "\n".join(rows) + "\n"


def _default(field: dataclasses.Field) -> str:
    value = field.default_factory() if callable(field.default_factory) else field.default
    if value is None or value in ("", (), {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def describe_kind(kind: Any) -> str:
    """What an annotation allows, in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return ", ".join([describe_kind(arguments[0]), *map(str, arguments[1:])])
    if origin is Literal:
        return ", ".join(f"`{option}`" for option in arguments)
    if origin in (types.UnionType, typing.Union):
        return "; or ".join(dict.fromkeys(describe_kind(part) for part in arguments))
    if origin is dict:
        return f"keys of your own, each {describe_kind(arguments[1])}"
    if origin is tuple:
        several = "any number of" if arguments[-1] is ... else {2: "two"}.get(len(arguments), str(len(arguments)))
        return f"{several} ({describe_kind(arguments[0])})"
    return WORDS[kind]


def read_remarks(group: Any) -> dict[str, str]:
    """The comments of the fields: beside each, or on the lines right above it."""
    remarks, above, names = {}, [], {field.name for field in dataclasses.fields(group)}
    name = None
    for line in inspect.getsource(group).splitlines():
        code, _, comment = line.partition("# ")
        if not code.strip():
            above = [*above, comment.strip()] if comment else []
            name = None
        elif (starts := re.match(r"    (\w+):", code)) and starts[1] in names:
            name = starts[1]
            remarks[name] = " ".join([*(() if _is_heading(above) else above), comment.strip()]).strip()
            above = []
        elif name and comment:  # a definition of several lines
            remarks[name] = f"{remarks[name]} {comment.strip()}".strip()
        if code.startswith("    def "):
            break
    return remarks


def _is_heading(comments: list[str]) -> bool:
    """Whether these comments head a group of fields ("what learns", "from what", "how")."""
    return len(comments) == 1 and len(comments[0].split()) <= 2
