"""A folder in timm's format, config.json and weights, read as data: no code of such a folder is run.

timm only builds the network and fits the tensors to it. Reading them is left to `models.weights`, because older timm unpickles
whatever a folder holds.
"""

import json
from pathlib import Path

import timm
from torch import Tensor, nn

import vitling.models  # noqa: F401  (registers our families)
from vitling.errors import UserError, first_line
from vitling.models.weights import read_weights


def read_config(folder: Path, source: str) -> dict:
    """What a folder says of its model; `source` is what the user called it."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        raise UserError(f"config.json of {source} is not valid JSON; export or download it again.") from None
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise UserError(f"config.json of {source} does not name a timm architecture, so it cannot be built.")
    return config


def load_network(folder: Path, source: str, weights: Path | None = None) -> nn.Module:
    """The network of a folder, on the CPU, with its weights or those of another file."""
    try:
        return build_with(f"local-dir:{folder}", read_weights(weights or folder))
    except Exception as error:  # a damaged or foreign file can make the readers raise anything
        raise UserError(f"the model in {source} cannot be loaded: {first_line(error)}") from None


def build_with(name: str, state: dict[str, Tensor]) -> nn.Module:
    """timm's network of that name with these tensors in place of those that timm would look for itself."""
    overlay = {"source": "", "state_dict": state}
    network = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    network.pretrained_cfg.pop("state_dict")  # the network has them now
    return network.eval()
