"""Every number that a recipe, a method or a command takes has a declared range; NaN and infinity are refused everywhere."""

import dataclasses
import types
import typing
from typing import Annotated, Any, Literal

import pytest
import typer

from vitling.cli import options
from vitling.cli.main import COMMANDS
from vitling.cli.terminal import parse_budget, parse_fractions, parse_seeds, parse_size
from vitling.data.augment.randaugment import RandAugment
from vitling.data.pipeline.reading import Reading
from vitling.errors import UserError
from vitling.inputs.values import Range, check
from vitling.methods import METHODS, _parameters, check_method
from vitling.recipes import Augment, Optim, Recipe, from_dict, override, to_dict
from vitling.training.settings import Settings


def ranges(kind: Any, ranged: bool = False) -> list[tuple[type, bool]]:
    """The numeric types in an annotation, and whether each is inside of a range."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return ranges(arguments[0], ranged or any(isinstance(part, Range) for part in arguments[1:]))
    if origin is Literal:
        return []
    if origin in (types.UnionType, typing.Union, tuple, list, dict):
        return [found for part in arguments if part is not ... for found in ranges(part, ranged)]
    return [(kind, ranged)] if kind in (int, float) else []


@pytest.mark.parametrize("group", [Recipe, Augment, Optim, RandAugment])
def test_every_number_of_a_recipe_has_a_range(group):
    kinds = typing.get_type_hints(group, include_extras=True)
    assert [name for name, kind in kinds.items() if not all(ranged for _, ranged in ranges(kind))] == []


@pytest.mark.parametrize("name", METHODS)
def test_every_number_of_a_method_has_a_range(name):
    kinds = _parameters(METHODS[name]) | _parameters(METHODS[name].prepare)
    assert [key for key, kind in kinds.items() if not all(ranged for _, ranged in ranges(kind))] == []


def numeric_keys() -> list[str]:
    groups = {"": Recipe, "augment.": Augment, "optim.": Optim}
    return [
        prefix + name
        for prefix, group in groups.items()
        for name, kind in typing.get_type_hints(group, include_extras=True).items()
        if ranges(kind) and name != "lr_factors"
    ]


@pytest.mark.parametrize("text", ["nan", ".nan", "inf", "-.inf", "1e400", "-1e300"])
@pytest.mark.parametrize("key", numeric_keys())
def test_no_number_of_a_recipe_may_be_nan_or_infinite(key, text):
    with pytest.raises(UserError, match=key.replace(".", r"\.")) as error:
        override(Recipe(), [f"{key}={text}"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "setting",
    [
        "augment.crop_padding=1e9",
        "augment.crop_padding=-0.1",
        "augment.crop_scale=0.9,0.1",
        "augment.crop_ratio=0,1",
        "augment.hflip=1.5",
        "augment.color_jitter=-1",
        "augment.color_jitter=1e9",
        "augment.repeats=0",
        "optim.lr=0",
        "optim.lr_per_batch=-512",
        "optim.weight_decay=-0.1",
        "optim.momentum=1",
        "optim.betas=0.9,1.0",
        "optim.betas=-0.9,0.9",
        "optim.eps=-1",
        "optim.warmup_lr=-1",
        "optim.decay_epochs=0",
        "optim.decay_rate=0",
        "optim.layer_decay=0",
        "optim.layer_decay=-1",
        "optim.layer_decay=2",
        "optim.lr_factors.head=-1",
        "optim.lr_factors.head=nan",
        "optim.schedule_lag_epochs=-1",
        "channels=0",
        "mean=127,127,127",
        "std=0,1,1",
        "fraction=nan",
        "val_fraction=1",
        "epochs=1000000000000",
        "seed=99999999999999999999",
        "img_size=1000000",
        "ema_decay=1",
    ],
)
def test_a_meaningless_number_is_refused_with_what_is_allowed(setting):
    with pytest.raises(UserError, match=r"is out of range; it must be .+\.") as error:
        override(Recipe(), [setting])
    assert str(error.value).startswith(setting.partition("=")[0])


@pytest.mark.parametrize(
    "text", ["9" * 5000, "[" * 5000, "2001-99-99", "2001-01-01", "!!binary aGk=", "&a [*a]", "{1: 2}", "{? [1]: 2}"]
)
@pytest.mark.parametrize(
    "key", ["epochs", "optim.lr", "model_args.depth", "method_args.mixup", "augment.crop_scale", "img_size"]
)
def test_what_yaml_makes_of_odd_text_is_refused_in_one_line(key, text):
    with pytest.raises(UserError) as error:
        override(Recipe(), [f"{key}={text}"])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_recipe_that_is_made_in_python_is_checked_as_one_that_is_read():
    for wrong in (
        lambda: Optim(lr=float("nan")),
        lambda: Augment(hflip="often"),
        lambda: Recipe(epochs=0),
        lambda: Recipe(epochs="3"),
    ):
        with pytest.raises(UserError):
            wrong()
    assert from_dict(to_dict(Recipe())) == Recipe()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("supervised", {"mixup": float("nan")}),
        ("supervised", {"mixup": -1}),
        ("supervised", {"cutmix": float("inf")}),
        ("supervised", {"mixup": "much"}),
        ("supervised", {"mixup": True}),
        ("supervised", {"label_smoothing": 2}),
        ("supervised", {"mix_prob": -0.1}),
        ("supervised", {"mix_mode": "elements"}),
        ("bootstrap", {"temperature": 0}),
        ("bootstrap", {"agent_lr": -1}),
        ("bootstrap", {"agent_weight_decay": float("nan")}),
        ("bootstrap", {"agent_clip_grad": -1}),
        ("bootstrap", {"share": "yes"}),
        ("bootstrap", {"agent_args": [1]}),
        ("bootstrap", {"feature_weight": -1}),
        ("distillation", {"teacher_weight": 0}),
        ("distillation", {"teacher": 3}),
        ("distillation", {"kind": "medium"}),
        ("token_labeling", {"cls_weight": -1}),
        ("token_labeling", {"dense_weight": float("nan")}),
        ("token_labeling", {"top_k": 0}),
        ("token_labeling", {"annotator_epochs": 1.5}),
        ("token_labeling", {"annotator_size": 0}),
        ("token_labeling", {"relabel": "maybe"}),
        ("token_bootstrap", {"mutual_weight": -1}),
        ("token_bootstrap", {"mixup": -1}),
    ],
)
def test_an_argument_of_a_method_keeps_to_its_range(name, arguments):
    with pytest.raises(UserError, match=f"method_args.{next(iter(arguments))}=") as error:
        check_method(name, arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "config", ["rand-m9-n1000000", "rand-n0", "rand-m1000", "rand-mstd99999", "rand-p2", "rand-n" + "9" * 5000]
)
def test_a_policy_of_a_million_operations_is_refused(config):
    with pytest.raises(UserError, match="Try rand-m9"):
        RandAugment.parse(config)


def option_parameters() -> list[tuple[str, str, Any]]:
    found = []
    for commands in COMMANDS.values():
        for name, function in commands.items():
            for key, kind in typing.get_type_hints(function, include_extras=True).items():
                if key != "return" and ranges(kind):
                    found.append((name, key, kind))
    return found


def test_every_number_of_a_command_has_both_bounds_and_is_finite():
    numbers = option_parameters()
    assert len(numbers) > 10
    for name, key, kind in numbers:
        option = next(part for part in typing.get_args(kind)[1:] if isinstance(part, typer.models.OptionInfo))
        assert None not in (option.min, option.max), f"{name} --{key}"
        assert option.callback is options.finite or ranges(kind)[0][0] is int, f"{name} --{key}"


@pytest.mark.parametrize("given", ["1000000000000", "9" * 5000, "0", "-1", "1.5", "nan", "0," * 20000 + "0", "²"])
def test_seeds_that_nobody_could_train_are_refused(given):
    with pytest.raises(UserError, match="--seeds") as error:
        parse_seeds(given)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("parse", "given"),
    [
        (parse_size, "0"),
        (parse_size, "9" * 5000),
        (parse_size, "100000"),
        (parse_size, "²"),
        (parse_fractions, "nan"),
        (parse_fractions, "1" * 500),
        (parse_budget, "9" * 400),
        (parse_budget, "nan"),
        (parse_budget, "infs"),
    ],
)
def test_numbers_as_text_on_the_command_line_keep_to_their_range(parse, given):
    with pytest.raises(UserError) as error:
        parse(given)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Settings(threads=0),
        lambda: Settings(threads=10**9),
        lambda: Settings(checkpoint_seconds=float("nan")),
        lambda: Settings(budget_seconds=-1),
        lambda: Reading(memory_gb=float("nan")),
        lambda: Reading(workers=-1),
        lambda: Reading(workers=100_000),
    ],
)
def test_settings_keep_to_their_range(wrong):
    with pytest.raises(UserError, match=r"is out of range; it must be"):
        wrong()


def test_a_range_says_what_it_allows():
    assert str(Range(0, 1)) == "at least 0 and at most 1"
    assert str(Range(above=0)) == "more than 0"
    assert 10**400 not in Range(0, 1)
    assert 10**400 in Range(0)
    assert float("nan") not in Range()
    check(3, int | None, "x")
    check(None, int | None, "x")
    assert dataclasses.fields(Recipe)[-1].name == "seed"  # a run looks for it to know that its recipe is whole
