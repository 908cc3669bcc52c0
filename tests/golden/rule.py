"""Golden files: which there are, and the rules by which they state weights, inputs and tolerances, so that none need be stored.

A test asks for all files of its kind (`every`), and reads what one of them says from that file alone: entries where they are data,
and the few forms of sentence in which the files describe a random draw, labels or a tolerance. Another file in the folder is
another case. `VITLING_GOLDEN=FOLDER` takes the files of another folder.
"""

import json
import os
import re
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

DATA = Path(os.environ.get("VITLING_GOLDEN") or Path(__file__).parent / "data")


@cache
def golden(name: str) -> dict:
    return json.loads((DATA / f"{name}.json").read_text())


def files(kind: str, *entries: str) -> list[str]:
    """Names of all files that begin so and have these entries; a dot leads into an entry."""
    names = sorted(path.stem for path in DATA.glob(f"{kind}*.json"))
    return [name for name in names if all(_has(golden(name), entry) for entry in entries)]


def _has(file: dict, entry: str) -> bool:
    first, _, rest = entry.partition(".")
    return first in file and (not rest or _has(file[first], rest))


def every(kind: str, *entries: str):
    """A case of a test for each of these files."""
    return pytest.mark.parametrize("name", files(kind, *entries), ids=lambda name: name.partition("__")[2])


# Weights


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


def scaled(keys, scale: float, aliases: dict[str, str] | None = None) -> dict[str, torch.Tensor]:
    """The state dict of the rule of DHVT and Bootstrapping; entmax's alpha, a scalar, is left as made."""
    state = {}
    for key, shape, _ in keys:
        t = normal((aliases or {}).get(key, key), shape)
        if key.endswith("alpha"):
            state[key] = 1 + 0.05 * t if shape else torch.tensor(1.5)
        else:
            state[key] = scale * t if len(shape) >= 2 else about(key, t)
    return state


def overridden(file: dict, made: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state dict of the rule of T2T and LV-ViT: a scale per ending of a name, and what the model `made` where the file says so."""
    rule, state = file["fill"], {}
    for key, shape in file["state_dict"]:
        if key in rule["left_as_made"]:
            state[key] = made[key].clone()
        elif len(shape) >= 2:
            scales = [scale for suffix, scale in rule["suffix_overrides"] if key.endswith(suffix)]
            state[key] = (scales or [rule["default_scale"]])[-1] * normal(key, shape)
        else:
            state[key] = about(key, normal(key, shape))
    return state


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


# Inputs


def randn(shape, seed: int) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def images(file: dict) -> torch.Tensor:
    """The input of a network: shape and seed are data, or the shape follows from batch and size."""
    if "input" in file:
        return randn(file["input"]["shape"], file["input"]["seed"])
    channels = file["config"].get("in_chans", 3)
    return randn((file["batch"], channels, file["img_size"], file["img_size"]), seed_in(file["input_rule"]))


@dataclass(frozen=True)
class Draw:
    """One "2*randn(3,4) + 0.5 seed 7" of a sentence."""

    scale: float
    shape: tuple[int, ...]
    shift: float
    seed: int | None

    def tensor(self, seed: int | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Drawn in float32, then scaled and shifted in `dtype`."""
        return self.scale * randn(self.shape, self.seed if seed is None else seed).to(dtype) + self.shift


_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_DRAW = re.compile(
    rf"(?:(?P<scale>{_NUMBER})\*)?(?:torch\.)?randn\((?P<shape>[\d, ]+)\)"
    rf"(?: \+ (?P<shift>{_NUMBER})(?!\*))?(?:,? (?:with )?seed (?P<seed>\d+))?"
)


def draws(sentence: str) -> list[Draw]:
    """All normal draws that a sentence describes, in order."""
    found = [
        Draw(
            float(match["scale"] or 1),
            tuple(int(side) for side in match["shape"].split(",") if side.strip()),
            float(match["shift"] or 0),
            int(match["seed"]) if match["seed"] else None,
        )
        for match in _DRAW.finditer(sentence)
    ]
    assert found, f"no draw in: {sentence}"
    return found


def numbers_in(pattern: str, sentence: str) -> list[float]:
    """The numbers where a pattern has a `#`, in its first match."""
    match = re.search(pattern.replace("#", f"(-?{_NUMBER})"), sentence)
    assert match, f"no {pattern} in: {sentence}"
    return [float(group) for group in match.groups()]


def seed_in(sentence: str) -> int:
    """The seed that a sentence names, as `seed 7` or `manual_seed(7)`."""
    return int(numbers_in(r"seed[ (]#", sentence)[0])


def labels_in(sentence: str) -> torch.Tensor:
    """The labels of a sentence that says `labels [1,2]`."""
    match = re.search(r"labels \[([\d, ]+)\]", sentence)
    assert match, f"no labels in: {sentence}"
    return torch.tensor([int(label) for label in match[1].split(",")])


# Tolerances


# Of a family, for those of its files that state none.
STATED = dict.fromkeys(("dhvt", "bootstrapping"), "strict: abs 3e-5 + rel 2e-5")


def tolerance(file: dict, part: str, entry: str = "suggested_tolerance") -> dict[str, float]:
    """What the file allows in the part of its sentence that holds these words: rtol and atol, as torch.testing takes them."""
    sentence = file[entry] if entry in file else STATED[file["family"]]
    piece = next((piece for piece in sentence.split(";") if part in piece), None)
    assert piece is not None, f"no {part} in: {sentence}"
    found = {
        name: re.search(rf"{word} ({_NUMBER})", piece[piece.index(part) :])
        for name, word in (("rtol", "rel"), ("atol", "abs"))
    }
    assert any(found.values()), piece
    return {name: float(match[1]) if match else 0.0 for name, match in found.items()}


def assert_stored(ours, theirs, noise: float, spread: float = 1.0) -> None:
    """Equal to six stored digits and five times the noise that the file measured between float32 and float64.

    Numbers inside a network may be larger than its logits by their spread, and so is their noise.
    """
    theirs = torch.as_tensor(theirs, dtype=torch.float64)
    ours = torch.as_tensor(ours).detach().double()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5 * noise * max(1.0, spread))
