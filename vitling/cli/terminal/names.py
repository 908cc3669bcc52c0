"""Lists of what there is: models, recipes, methods, datasets."""

import json

import vitling
from vitling.cli.terminal.console import print_line, print_pairs
from vitling.errors import UserError, did_you_mean
from vitling.plugins import load_installed, provided


def show_names(what: str, pattern: str, as_json: bool = False) -> None:
    """Names and a line about each; the first line of a docstring is that line."""
    kinds = {"models": _models, "recipes": _recipes, "methods": _methods, "datasets": _datasets}
    if what not in kinds:
        raise UserError(f"there is no list of {what}. {did_you_mean(what, kinds)}")
    rows = [row for row in kinds[what]() if pattern in row[0]]
    if not rows:
        raise UserError(f"no {what} called '{pattern}'; `vitling list {what}` shows all.")
    if as_json:
        print(json.dumps(dict(rows), indent=1, ensure_ascii=False))
        return
    print_pairs(rows)
    if what == "models":
        print_line(
            "and every model of timm (timm.list_models()), such as vit_tiny_patch16_224, deit_small_patch16_224, resnet18"
        )


def _first_line(thing) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _models() -> list[tuple[str, str]]:
    from vitling.models import FAMILIES, our_models

    load_installed()
    about = {family.__name__.rpartition(".")[2]: _first_line(family) for family in FAMILIES}
    rows = [(name, about[family]) for name, family in our_models().items()]
    return rows + [
        (name, f"of the plug-in {plugin.package or plugin.source}") for name, plugin in provided("model").items()
    ]


def _recipes() -> list[tuple[str, str]]:
    from vitling.recipes import named_recipes

    return [(name, _first_line(function)) for name, function in named_recipes().items()]


def _methods() -> list[tuple[str, str]]:
    vitling.register_models()  # first: beside a torchvision of another build, timm cannot be imported without

    from vitling.methods import METHODS

    load_installed()
    return [(name, _first_line(method)) for name, method in METHODS.items()]


def _datasets() -> list[tuple[str, str]]:
    from vitling.data.sources.named import NAMES
    from vitling.data.sources.registered import SOURCES

    load_installed()
    return [*NAMES.items(), *((name, source.about) for name, source in SOURCES.items())]
