"""Advice: commands that can be pasted, fit the time that the run had, and can be trained with this network and data."""

import math
import shlex
from pathlib import Path
from typing import Any

from vitling.errors import UserError
from vitling.models import build_model
from vitling.recipes import override
from vitling.runs.run import Run
from vitling.training.setup import check_settings

LEAST_BUDGET = 30  # seconds that a plan needs to have a choice


def changed_recipe(run: Run, changes: dict[str, Any], *, name: str, budget_seconds: float | None = None) -> str:
    """Train the run's recipe again with some settings changed; empty where these cannot be trained."""
    try:
        recipe = override(run.recipe, changes)
        check_settings(recipe)
        size = run.preprocessing().size
        build_model(
            recipe.model,
            num_classes=len(run.class_names),
            in_chans=run.preprocessing().channels,
            img_size=size,
            **recipe.model_args,
        )
    except UserError:
        return ""
    settings = [f"{key}={_as_setting(value)}" for key, value in changes.items()]
    budget = ["--budget", _as_time(budget_seconds)] if budget_seconds else []
    words = ["vitling", "train", run.recipe.data, *settings, "--recipe", str(run.path / "recipe.yaml")]
    return shlex.join([*words, *budget, "--out", _free(run, name)])


def planned_run(run: Run) -> str:
    """What a plan would train on this data in the time that the run had."""
    words = ["vitling", "train", run.recipe.data, "--budget", _as_time(run_seconds(run))]
    return shlex.join([*words, "--out", _free(run, "planned")])


def more_training(run: Run, times: float) -> str:
    """Train the run further for so many times the time that it had; empty where it has no state to go on from."""
    if not run.finished or run.last_checkpoint() is None:
        return ""
    seconds = _as_time(times * run_seconds(run))
    return shlex.join(["vitling", "train", run.recipe.data, "--out", str(run.path), "--more", seconds])


def further_diagnosis(run: Run, option: str) -> str:
    return shlex.join(["vitling", "diagnose", str(run.path), option])


def look_at_data(run: Run) -> str:
    return shlex.join(["vitling", "plan", run.recipe.data])


def run_seconds(run: Run) -> float:
    """Wall time of the whole run."""
    return max(float(run.info.get("wall_seconds", 0.0)), 1.0)


def _as_time(seconds: float) -> str:
    seconds = max(LEAST_BUDGET, math.ceil(seconds))
    if seconds < 120:
        return f"{seconds}s"
    return f"{math.ceil(seconds / 60)}m" if seconds < 7200 else f"{seconds / 3600:.1f}h"


def _as_setting(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.3g}"
    if value is None:
        return "null"
    return str(value)


def _free(run: Run, name: str) -> str:
    """A folder beside the run that is not there yet."""
    base = run.path.with_name(f"{run.path.name}-{name}")
    candidates = [base, *(Path(f"{base}-{number}") for number in range(2, 1000))]
    return str(next((path for path in candidates if not path.exists()), base))
