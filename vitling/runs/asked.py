"""What a command asks of a run, and how one run's is told from another's: the same command again means the same run."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from vitling.recipes import Recipe, to_dict
from vitling.recipes.earlier import earlier_forms


def asked_for(recipe: Recipe, budget_seconds: float | None) -> dict:
    """What a command asks for, before the data resolves it; the same again means the same run."""
    return jsonable({"recipe": to_dict(recipe), "budget": f"{budget_seconds:g}s" if budget_seconds else None})


def asked_plan(data: str, settings: Sequence[str], budget_seconds: float | None) -> dict:
    """The same of a command that leaves the recipe to a plan: what is planned depends on the machine, what is asked does not."""
    planned = {"data": data, "settings": list(settings)}
    return {"plan": planned, "budget": f"{budget_seconds:g}s" if budget_seconds else None}


def asked_ensemble(asked: dict, folds: int, distill: bool) -> dict:
    """The same of a command that trains all folds."""
    return {**asked, "ensemble": f"{folds} folds" + (", distilled" if distill else "")}


def recipe_digest(recipe: Recipe) -> str:
    return _digest(to_dict(recipe))


def is_digest_of(digest: str, recipe: Recipe) -> bool:
    """Whether this version, or an earlier one with fewer keys, gives the recipe that digest."""
    tree = to_dict(recipe)
    return digest in map(_digest, [tree, *earlier_forms(tree)])


def _digest(tree: dict) -> str:
    return hashlib.sha256(json.dumps(jsonable(tree), sort_keys=True).encode()).hexdigest()


def difference(known: dict, asked: dict) -> str:
    """The first setting in which two runs differ, as text."""
    for what in ("budget", "ensemble"):
        old, new = (one.get(what) or "none" for one in (known, asked))
        if old != new:
            return f"its {what} is {old}, not {new}"
    old, new = _set(known), _set(asked)
    if "plan" in known or "plan" in asked:  # a plan sets what it likes beside what was asked for
        keys = [key for key in (new if "plan" in asked else old) if key in old or "recipe" not in known]
    else:
        keys = list({**old, **new})
    key = next((key for key in keys if str(old.get(key)) != str(new.get(key))), None)
    if key is None:
        return "its recipe was planned, not given" if "plan" in known else "its recipe was given, not planned"
    return f"its {key} is {old.get(key)!r}, not {new.get(key)!r}"


def _set(asked: dict) -> dict:
    """What a command sets, by key."""
    if "plan" not in asked:
        return flat(asked["recipe"])
    settings = (text.partition("=") for text in asked["plan"]["settings"])
    return {**{key.strip(): value.strip() for key, _, value in settings}, "data": asked["plan"]["data"]}


def flat(tree: dict, prefix: str = "") -> dict:
    """A tree of settings as dotted keys."""
    keys: dict = {}
    for key, value in tree.items():
        keys.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value})
    return keys


def jsonable(value):
    """Plain JSON values, tuples as lists, so that what is read back compares equal."""
    return json.loads(json.dumps(value, default=asdict))
