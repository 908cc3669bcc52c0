"""Weights and inputs rebuilt from the rule that the golden files state, so that no weights need to be stored."""

import json
import zlib
from pathlib import Path

import torch


def golden(name: str) -> dict:
    return json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())


def normal(key: str, shape) -> torch.Tensor:
    """Standard normal numbers that depend on nothing but the key and the shape."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(zlib.crc32(key.encode())))


def about(key: str, t: torch.Tensor) -> torch.Tensor:
    """A vector of the rule: scales and variances about one, the rest about zero, and counters at zero."""
    if not t.ndim:
        return torch.tensor(0)
    if key.endswith("running_var"):
        return 1 + 0.05 * t.abs()
    return (1 if key.endswith("weight") else 0) + 0.05 * t


def fan_in(keys, rule: dict, salt: str = "salt") -> dict[str, torch.Tensor]:
    """The state dict of the diagnosis files' rule, in float64: matrices shrink with the square root of their inputs."""
    state = {}
    for key, shape in keys:
        t = normal(rule[salt] + key, shape).double()
        if key in rule["unit"]:
            state[key] = t
        else:
            state[key] = t / (t.numel() / shape[0]) ** 0.5 if t.ndim >= 2 else about(key, t)
    return state
