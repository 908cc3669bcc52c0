"""Recipes from names, files and settings, and back: load, override, save."""

import dataclasses
import shlex
import types
import typing
from pathlib import Path
from typing import Any, Literal

import yaml

from vitling.errors import UserError, did_you_mean
from vitling.files import Ours, check_path, write_text
from vitling.plugins import PluginRecord, require_plugins
from vitling.recipes.earlier import bring_up_to_date
from vitling.recipes.named import named_recipes
from vitling.recipes.schema import Augment, Optim, Recipe
from vitling.validation.documents import damaged, parse_yaml, read_json, read_yaml
from vitling.validation.values import check, show


def override(recipe: Recipe, settings: dict[str, Any] | list[str]) -> Recipe:
    """The recipe with some keys changed; `["optim.lr=3e-4", "model_args.depth=6"]` or the same as a dict."""
    tree = to_dict(recipe)
    pairs = settings.items() if isinstance(settings, dict) else (_read_pair(text, tree) for text in settings)
    for key, value in pairs:
        node, rest = _find_group(tree, key)
        node[rest] = value
    return from_dict(tree)


def _read_pair(text: str, tree: dict) -> tuple[str, Any]:
    """A setting from the command line. What is text in a recipe stays as it was typed; the rest is read as YAML."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise UserError(f"'{text}' is not a setting; write key=value, such as epochs=50 or optim.lr=3e-4.")
    node, rest = _find_group(tree, key)
    if isinstance(node.get(rest), str) or not value:
        return key, value
    try:
        return key, parse_yaml(value, key)
    except UserError:
        raise UserError(
            f"{key}={show(value)} cannot be read; write it as YAML, such as {key}=3 or {key}=[1, 2]."
        ) from None


def _find_group(tree: dict, key: str) -> tuple[dict, str]:
    """The group that a dotted key leads into, and what is left of the key: a name may hold dots itself."""
    while "." in key and isinstance(tree.get(key.split(".", 1)[0]), dict):
        group, key = key.split(".", 1)
        tree = tree[group]
    return tree, key


def to_dict(recipe: Recipe) -> dict:
    return dataclasses.asdict(recipe)


def from_dict(tree: dict) -> Recipe:
    """A recipe from plain values: unknown keys are refused, each field gets its declared type. Earlier records mean what they meant."""
    return _build(Recipe, bring_up_to_date(tree) if isinstance(tree, dict) else tree, "")


def _build(kind: type, tree: dict, prefix: str) -> Any:
    if not isinstance(tree, dict):
        raise UserError(f"{prefix.rstrip('.') or 'a recipe'} must be a group of keys, not {show(tree)}.")
    types_of = typing.get_type_hints(kind)
    for key in tree:
        if key not in types_of:
            raise UserError(
                f"unknown recipe key '{prefix}{show(key)}'. {did_you_mean(f'{prefix}{show(key)}', all_keys())}"
            )
    return kind(**{key: _convert(value, types_of[key], prefix + key) for key, value in tree.items()})


def _convert(value: Any, kind: Any, key: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _build(kind, value, f"{key}.")
    if origin in (types.UnionType, typing.Union):
        return _convert_union(value, args, key)
    if origin is Literal:
        value = {False: "off", True: "on"}.get(value, value) if isinstance(value, bool) else value  # YAML's on and off
        if value not in args:
            raise UserError(
                f"{key}={show(value)} is not one of {', '.join(map(str, filter(None, args)))}. {did_you_mean(show(value), args)}"
            )
        return value
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"{key} is a group; set its keys one by one, such as {key}.name=value.")
        return {name: _convert(item, args[1], f"{key}.{show(name)}") for name, item in value.items()}
    if origin is tuple:
        return _convert_tuple(value, args, key)
    return _convert_scalar(value, kind, key)


def _convert_union(value: Any, args: tuple, key: str) -> Any:
    if value is None or (value in ("none", "null", "") and type(None) in args):
        return None
    failures = []
    for option in args:
        if option is not type(None):
            try:
                return _convert(value, option, key)
            except UserError as error:
                failures.append(error)
    raise failures[0]


def _convert_tuple(value: Any, args: tuple, key: str) -> tuple:
    if isinstance(value, str):
        value = [part for part in (value.replace("x", ",") if _is_size(value) else value).split(",") if part != ""]
    elif not isinstance(value, (list, tuple)):
        value = [value]
    kinds = args[:1] * len(value) if args[1:] == (...,) else args
    if len(kinds) != len(value):
        raise UserError(f"{key}={','.join(map(show, value))} needs {len(kinds)} values separated by commas.")
    return tuple(_convert(part, kind, key) for part, kind in zip(value, kinds, strict=True))


def _is_size(text: str) -> bool:
    return all(part.isdigit() for part in text.split("x"))


def _convert_scalar(value: Any, kind: Any, key: str) -> Any:
    if kind is Any:
        return _number(value) if isinstance(value, str) else value
    if kind is bool and not isinstance(value, bool):
        raise UserError(f"{key}={show(value)} must be true or false.")
    if kind is str:
        if isinstance(value, bool | list | tuple | dict):
            raise UserError(f"{key}={show(value)} must be text; put it in quotes.")
        return "" if value is None else str(value) if isinstance(value, str | float) else show(value)
    try:
        converted = kind(value)
        whole = kind is not int or converted == _number(value)
    except (TypeError, ValueError, OverflowError):
        converted, whole = None, False
    if not whole or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{key}={show(value)} must be {'an integer' if kind is int else 'a number'}.")
    return converted


def _number(value: Any) -> Any:
    """YAML reads 5e-4 as text; this reads it as the number that was meant."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def all_keys() -> list[str]:
    """Every key a recipe knows, groups written with a dot."""
    keys = []
    for item in dataclasses.fields(Recipe):
        group = {"augment": Augment, "optim": Optim}.get(item.name)
        keys += [f"{item.name}.{inner.name}" for inner in dataclasses.fields(group)] if group else [item.name]
    return keys


def save_recipe(recipe: Recipe, path: Path, ours: Ours | None = None) -> None:
    write_text(path, to_yaml(recipe), ours)


def to_yaml(recipe: Recipe) -> str:
    return yaml.safe_dump(
        _plain(to_dict(recipe)), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def load_recipe(source: str | Path) -> Recipe:
    """A recipe by name (`digits/vit_nano`), from a YAML file, or from a run directory."""
    path = check_path(source)
    run, path = path, path / "recipe.yaml" if path.is_dir() else path
    if path.suffix in (".yaml", ".yml"):
        recipe = read_recipe(path)[0]
        if run.is_dir():
            _require_plugins(recipe, run)
        return recipe
    recipes = named_recipes()
    if str(source) not in recipes:
        raise UserError(
            f"unknown recipe '{show(str(source))}'. {did_you_mean(show(str(source)), recipes)} `vitling list recipes` shows all."
        )
    return recipes[str(source)]()


def _require_plugins(recipe: Recipe, run: Path) -> None:
    """The recipe of a run may name what a plug-in registers: say so, instead of a name that nobody knows."""
    if not (run / "run.json").exists():
        return
    info = read_json(run / "run.json")
    records = info.get("plugins", []) if isinstance(info, dict) else []
    try:
        check(records, list[PluginRecord], "plugins")
    except UserError as error:
        raise damaged(str(run / "run.json"), str(error).rstrip(".")) from None
    if records:
        needed = {"model": recipe.model, "method": recipe.method, "data": recipe.data.partition(":")[0]}
        require_plugins(records, needed, str(run))


def read_recipe(path: Path) -> tuple[Recipe, dict]:
    """The recipe in a YAML file, and the keys that stand in it; a recipe has defaults for the others."""
    if not path.exists():
        raise UserError(f"no recipe file at {path}.")
    tree = read_yaml(path)
    tree = {} if tree is None else tree
    try:
        return from_dict(tree), tree
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_recipes(items: list[str]) -> dict[str, Recipe]:
    """Recipes and their names from the words of a command line.

    An item is a recipe as `load_recipe` takes it; in quotes it may bring settings of its own and a name:
    `"no head tokens: digits/dhvt_nano model_args.head_tokens=false"`. An item that is a setting changes all recipes.
    """
    shared = [item for item in items if _is_setting(item)]
    recipes: dict[str, Recipe] = {}
    for item in items:
        if _is_setting(item):
            continue
        name, colon, text = item.partition(": ")
        try:
            source, *own = shlex.split(text if colon else item)
        except ValueError:
            raise UserError(
                f"'{item}' is not a recipe; write NAME, or \"LABEL: NAME key=value ...\" with balanced quotes."
            ) from None
        name = name.strip() if colon else " ".join([_short_name(source), *own])
        if name in recipes:
            raise UserError(f"two recipes are called '{name}'; give one a name of its own: \"NAME: {item}\".")
        recipes[name] = override(load_recipe(source), [*shared, *own])
    return recipes


def _is_setting(item: str) -> bool:
    first = item.split(maxsplit=1)[:1]
    return bool(first) and "=" in first[0] and ": " not in item


def _short_name(source: str) -> str:
    """The name of a recipe; of a file or a run, without its folders."""
    path = Path(source)
    return path.name if path.is_dir() else path.stem if path.suffix in (".yaml", ".yml") else source
