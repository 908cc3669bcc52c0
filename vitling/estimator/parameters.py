"""Parameters of the estimator as changes to a recipe, in the words of the command line."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitling.errors import UserError
from vitling.recipes import Augment

NO_AUGMENTATION = Augment(crop="none", hflip=0.0)
Settings = Sequence[str] | Mapping[str, Any]


def as_settings(settings: Settings, named: Mapping[str, Any], augment: Augment | Mapping | bool) -> list[str]:
    """All that is asked for as key=value. The same key in two places is refused, because one would be ignored."""
    if isinstance(settings, str):
        raise UserError(f"settings={settings!r} is one text; give a list, such as [{settings!r}].")
    given = _texts(settings) if isinstance(settings, Mapping) else list(settings)
    keys = [text.partition("=")[0].strip() for text in given]
    changes = {key: value for key, value in named.items() if value is not None}
    for key in changes:
        if key in keys:
            raise UserError(f"{key}= is given twice, as a parameter and in settings; leave one out.")
    fields = _augment_fields(augment)
    if fields and any(key.startswith("augment.") for key in keys):
        raise UserError("augment= is given twice, as a parameter and in settings; leave one out.")
    return given + _texts({**changes, **{f"augment.{key}": value for key, value in fields.items()}})


def _augment_fields(augment: Augment | Mapping | bool) -> dict[str, Any]:
    if isinstance(augment, bool | np.bool_):
        return {} if augment else dataclasses.asdict(NO_AUGMENTATION)
    if isinstance(augment, Augment):
        return dataclasses.asdict(augment)
    if isinstance(augment, Mapping):
        return dict(augment)
    raise UserError(
        f"augment={augment!r} is not allowed; give True (the recipe's), False (none), a dict such as "
        "{'hflip': 0.0}, or a vitling.recipes.Augment."
    )


def _texts(changes: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_text(value)}" for key, value in changes.items()]


def _text(value: Any) -> str:
    """A value as a setting is written: text as it is, all else as JSON, which is YAML."""
    return value if isinstance(value, str) else json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):  # of a grid that NumPy made
        return value.tolist()
    raise UserError(f"{value!r} cannot be a setting; give text, numbers, lists or dicts of them.")
