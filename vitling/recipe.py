"""Recipe: everything that defines an experiment, as frozen dataclasses. Load, save, override.

Where and how a run happens (device, precision, folders) is not here: those are flags, see `train.Settings`.
"""

import dataclasses
import shlex
import types
import typing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from vitling.errors import UserError, did_you_mean
from vitling.files import write_text


@dataclass(frozen=True)
class Augment:
    """What happens to a training image, drawn independently for each image."""

    crop: Literal["none", "pad", "resized"] = "pad"
    crop_padding: float = 0.125  # of the image side
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    hflip: float = 0.5
    vflip: float = 0.0
    randaugment: str = ""  # timm's notation, e.g. rand-m9-mstd0.5-inc1
    color_jitter: float = 0.0
    erase: float = 0.0
    repeats: int = 1  # repeated augmentation: views of each drawn image


@dataclass(frozen=True)
class Optim:
    """Optimiser and schedule. Times are in epochs."""

    name: str = "adamw"
    lr: float = 1e-3
    lr_per_batch: int = 0  # 512: lr is meant for a batch of 512 and scales linearly with batch_size; 0: lr as it stands
    weight_decay: float = 0.05
    decay_all: bool = False  # also biases, norms and what the model asks to leave out
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    schedule_per: Literal["step", "epoch"] = "step"
    schedule_lag_epochs: int = 0  # DHVT's release trains its first two epochs at the first epoch's rate
    warmup_epochs: float = 5.0
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    cooldown_epochs: int = 0  # the last ones of `epochs`, at min_lr
    decay_epochs: float = 30.0  # schedule=step
    decay_rate: float = 0.1
    clip_grad: float = 0.0
    layer_decay: float = 1.0
    lr_factors: dict[str, float] = field(default_factory=dict)  # name pattern -> factor, e.g. {"blocks.*": 0.01}
    sam_rho: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """One experiment. Every default is a value that trains."""

    # what learns
    model: str = "vit_tiny_patch16_224"
    model_args: dict[str, Any] = field(default_factory=dict)
    method: str = "supervised"
    method_args: dict[str, Any] = field(default_factory=dict)
    init: str = ""  # a run, a weights file or a hub name to start from
    freeze: tuple[
        str, ...
    ] = ()  # name patterns of parameters that stay as they are; "backbone" is all but the classifier
    # from what
    data: str = "digits"
    img_size: int | tuple[int, int] | None = None  # None: the size of the data, or the model's own for photographs
    train_size: int | tuple[int, int] | None = None  # training images are kept at this size before a resized crop
    channels: int | None = None
    fit: Literal["resize", "pad", "crop"] = "resize"
    mean: tuple[float, ...] | None = None  # None: of the training split
    std: tuple[float, ...] | None = None
    fraction: float = 1.0
    fraction_rule: Literal["vitling", "bootstrapping"] = "vitling"
    val_fraction: float = 0.1  # carved from train where the data brings no validation split
    folds: int = 0  # k-fold: the validation split is fold number `fold` of `folds`
    fold: int = 0
    balance: Literal["none", "sampler", "loss"] = "none"
    on_bad_image: Literal["error", "skip"] = "error"
    # how
    epochs: int = 100
    batch_size: int = 128  # images per optimiser step, over all processes
    accumulate: int = 1  # in so many parts
    augment: Augment = field(default_factory=Augment)
    optim: Optim = field(default_factory=Optim)
    ema_decay: float = 0.0
    ema_warmup: bool = True
    patience_epochs: int = 0  # stop when the validation accuracy has not risen for so long; 0: never
    validate_every: int = 1
    compile: Literal["off", "on", "auto"] = "off"
    seed: int = 0

    def __post_init__(self):
        for name in ("epochs", "batch_size", "accumulate", "validate_every"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "a whole number of at least 1")
        for name in ("seed", "patience_epochs", "folds", "fold"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "a whole number of at least 0")
        for name in ("weight_decay", "warmup_epochs", "min_lr", "cooldown_epochs", "clip_grad", "sam_rho"):
            _check(f"optim.{name}", getattr(self.optim, name), getattr(self.optim, name) >= 0, "at least 0")
        for name in ("img_size", "train_size"):
            size = getattr(self, name)
            sides = size if isinstance(size, tuple) else (size,)
            _check(name, size, size is None or min(sides) > 0, "more than 0")
        if self.optim.cooldown_epochs >= self.epochs:
            raise UserError(
                f"optim.cooldown_epochs={self.optim.cooldown_epochs} leaves nothing of epochs={self.epochs}."
            )
        if self.fold and not self.folds:
            raise UserError(f"fold={self.fold} is one of how many? Give folds= too, such as folds=5.")
        _check("fraction", self.fraction, 0 < self.fraction <= 1, "more than 0 and at most 1")
        _check("val_fraction", self.val_fraction, 0 < self.val_fraction < 1, "between 0 and 1")
        _check("ema_decay", self.ema_decay, 0 <= self.ema_decay < 1, "at least 0 and less than 1")
        _check("optim.lr", self.optim.lr, self.optim.lr > 0, "more than 0")
        _check("augment.repeats", self.augment.repeats, self.augment.repeats >= 1, "at least 1")
        if self.folds:
            _check("folds", self.folds, self.folds >= 2, "0 (off) or at least 2")
            _check("fold", self.fold, 0 <= self.fold < self.folds, f"0 to {self.folds - 1}, since folds={self.folds}")
        spare = self.epochs - self.optim.cooldown_epochs
        if self.optim.warmup_epochs and self.optim.warmup_epochs >= spare:
            raise UserError(
                f"optim.warmup_epochs={self.optim.warmup_epochs:g} leaves nothing of epochs={self.epochs}; "
                "lower warmup_epochs or raise epochs."
            )


def _check(key: str, value: Any, holds: bool, allowed: str) -> None:
    if not holds:
        raise UserError(f"{key}={value} is out of range; it must be {allowed}.")


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
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise UserError(f"{key}={value} cannot be read; write it as YAML, such as {key}=3 or {key}=[1, 2].") from None


def _find_group(tree: dict, key: str) -> tuple[dict, str]:
    """The group that a dotted key leads into, and what is left of the key: a name may hold dots itself."""
    while "." in key and isinstance(tree.get(key.split(".", 1)[0]), dict):
        group, key = key.split(".", 1)
        tree = tree[group]
    return tree, key


def scale_epochs(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe with another number of epochs, and the parts of its schedule in proportion."""
    share, optim = epochs / recipe.epochs, recipe.optim
    optim = replace(
        optim,
        warmup_epochs=round(share * optim.warmup_epochs, 3),
        decay_epochs=max(round(share * optim.decay_epochs, 3), 1e-3),
        cooldown_epochs=int(share * optim.cooldown_epochs),
    )
    return replace(recipe, epochs=epochs, optim=optim)


def to_dict(recipe: Recipe) -> dict:
    return dataclasses.asdict(recipe)


def from_dict(tree: dict) -> Recipe:
    """A recipe from plain values: unknown keys are refused, each field gets its declared type."""
    return _build(Recipe, tree, "")


def _build(kind: type, tree: dict, prefix: str):
    if not isinstance(tree, dict):
        raise UserError(f"{prefix.rstrip('.') or 'a recipe'} must be a group of keys, not {tree!r}.")
    types_of = typing.get_type_hints(kind)
    for key in tree:
        if key not in types_of:
            raise UserError(f"unknown recipe key '{prefix}{key}'. {did_you_mean(f'{prefix}{key}', all_keys())}")
    return kind(**{key: _convert(value, types_of[key], prefix + key) for key, value in tree.items()})


def _convert(value: Any, kind: Any, key: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _build(kind, value, f"{key}.")
    if origin in (types.UnionType, typing.Union):
        return _convert_union(value, args, key)
    if origin is Literal:
        value = {False: "off", True: "on"}.get(value, value) if isinstance(value, bool) else value  # YAML's on and off
        if value not in args:
            raise UserError(f"{key}={value} is not one of {', '.join(args)}. {did_you_mean(str(value), args)}")
        return value
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"{key} is a group; set its keys one by one, such as {key}.name=value.")
        return {name: _convert(item, args[1], f"{key}.{name}") for name, item in value.items()}
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
        value = (
            [yaml.safe_load(part) for part in value.replace("x", ",").split(",")]
            if _is_size(value)
            else value.split(",")
        )
        value = [part for part in value if part != ""]
    elif not isinstance(value, (list, tuple)):
        value = [value]
    kinds = args[:1] * len(value) if args[1:] == (...,) else args
    if len(kinds) != len(value):
        raise UserError(f"{key}={value} needs {len(kinds)} values separated by commas.")
    return tuple(_convert(part, kind, key) for part, kind in zip(value, kinds, strict=True))


def _is_size(text: str) -> bool:
    return all(part.isdigit() for part in text.split("x"))


def _convert_scalar(value: Any, kind: Any, key: str) -> Any:
    if kind is Any:
        return _number(value) if isinstance(value, str) else value
    if kind is bool and not isinstance(value, bool):
        raise UserError(f"{key}={value} must be true or false.")
    if kind is str:
        return "" if value is None else str(value)
    try:
        converted = kind(value)
    except (TypeError, ValueError, OverflowError):
        converted = None
    if (
        converted is None
        or (kind is int and converted != _number(value))
        or (isinstance(value, bool) and kind is not bool)
    ):
        raise UserError(f"{key}={value} must be {'a whole number' if kind is int else 'a number'}.")
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


def save_recipe(recipe: Recipe, path: Path) -> None:
    write_text(path, to_yaml(recipe))


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
    path = Path(source)
    path = path / "recipe.yaml" if path.is_dir() else path
    if path.suffix in (".yaml", ".yml"):
        try:
            tree = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise UserError(f"no recipe file at {path}.") from None
        except yaml.YAMLError as error:
            raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
        return from_dict(tree or {})
    from vitling.recipes import named_recipes

    recipes = named_recipes()
    if str(source) not in recipes:
        raise UserError(
            f"unknown recipe '{source}'. {did_you_mean(str(source), recipes)} `vitling list recipes` shows all."
        )
    return recipes[str(source)]()


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
                f"'{item}' is no recipe; write NAME, or \"LABEL: NAME key=value ...\" with balanced quotes."
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


__all__ = [
    "Augment",
    "Optim",
    "Recipe",
    "all_keys",
    "load_recipe",
    "override",
    "read_recipes",
    "replace",
    "save_recipe",
    "scale_epochs",
    "to_yaml",
]
