"""A folder in timm's format, config.json and weights, read as data: no code of such a folder is run.

timm only builds the network and fits the tensors to it. Reading them is left to `models.weights`, because older timm unpickles
whatever a folder holds.
"""

from pathlib import Path
from typing import Annotated, TypedDict

import timm
import torch
from torch import Tensor, nn

import vitling.models  # noqa: F401  (registers our families)
from vitling.errors import UserError, first_line
from vitling.models.weights import read_weights
from vitling.plugins import PluginRecord, require_plugins
from vitling.runs.metadata import ModelMetadata
from vitling.validation.documents import damaged, read_json
from vitling.validation.model_arguments import check_model_args
from vitling.validation.values import Channels, Range, Side, check

PLUGINS = "vitling_plugins"  # a key of config.json
Classes = Annotated[int, Range(0, 10_000_000)]


class _Architecture(TypedDict):
    architecture: str


class PretrainedConfig(TypedDict, total=False):
    """What of timm's `pretrained_cfg` decides how a network is built or fed."""

    num_classes: Classes
    input_size: tuple[Channels, Side, Side]
    mean: list[float]
    std: list[float]


class ModelArgs(TypedDict, total=False):
    """Of the arguments of a network, those that say what it takes and gives."""

    num_classes: Classes
    in_chans: Channels
    img_size: Side | tuple[Side, Side]


class Config(_Architecture, total=False):
    """config.json."""

    num_classes: Classes
    model_args: ModelArgs
    pretrained_cfg: PretrainedConfig


def read_config(folder: Path, source: str) -> dict:
    """What a folder says of its model; `source` is what the user called it."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise UserError(f"config.json of {source} does not name a timm architecture, so it cannot be built.")
    architecture = config["architecture"].partition(".")[0]
    require_plugins(_read_plugins(config, path), {"model": architecture}, f"the model in {source}")
    if not timm.is_model(architecture):
        raise UserError(
            f"config.json of {source} names the architecture {config['architecture']!r:.80}, which timm does not know."
        )
    try:
        check(config, Config, "")
        check_model_args(config.get("model_args", {}), own=False)
    except UserError as error:
        raise damaged(str(path), str(error).rstrip(".")) from None
    stated = (config, config.get("pretrained_cfg", {}), config.get("model_args", {}))
    if len(counts := {part["num_classes"] for part in stated if "num_classes" in part}) > 1:
        # timm would leave the classifier as made, and the answers would be random ones.
        raise damaged(str(path), f"it states several numbers of classes, {', '.join(map(str, sorted(counts)))}")
    return config


def _read_plugins(config: dict, path: Path) -> list[PluginRecord]:
    """What was imported where the model was trained."""
    plugins = config.get(PLUGINS, [])
    try:
        check(plugins, list[PluginRecord], PLUGINS)
    except UserError as error:
        raise damaged(str(path), str(error).rstrip(".")) from None
    return plugins


def read_saved_metadata(folder: Path, source: str | None = None) -> ModelMetadata | None:
    """What vitling wrote into a folder's config.json, checked against the rest of it; None where it did not write it."""
    path, config = folder / "config.json", read_config(folder, source or str(folder))
    if config.get("vitling") is None:
        return None
    metadata = ModelMetadata.from_dict(config["vitling"], source or str(path))
    seen, cfg = metadata.preprocessing, config.get("pretrained_cfg", {})
    for what, here, there in (
        ("class names", metadata.class_names, config.get("label_names")),
        ("number of classes", len(metadata.class_names), config.get("num_classes")),
        ("input size", [seen.channels, *seen.size], cfg.get("input_size")),
        *((name, list(getattr(seen, name)), _unlike_published(config, name)) for name in ("mean", "std")),
    ):
        if there is not None and here != there:
            raise damaged(str(path), f"it states the {what} twice, and not alike")
    return metadata


def _unlike_published(config: dict, name: str) -> list[float] | None:
    """A mean or deviation that was written for this model; None where it is still that of the published weights."""
    published = timm.get_pretrained_cfg(config["architecture"], allow_unregistered=True)
    stated = config.get("pretrained_cfg", {}).get(name)
    return None if published and stated == list(getattr(published, name)) else stated


def load_network(folder: Path, source: str, weights: Path | None = None) -> nn.Module:
    """The network of a folder, on the CPU, with its weights or those of another file."""
    config = read_config(folder, source)
    try:
        state = read_weights(weights or folder)
        network = build_with(f"local-dir:{folder}", state)
    except Exception as error:  # a damaged or foreign file can make the readers raise anything
        raise UserError(f"the model in {source} cannot be loaded: {first_line(error)}") from None
    if "vitling" in config and weights is None:
        _check_shapes(network, state, source)
    if broken := next((name for name, x in network.named_parameters() if not torch.isfinite(x).all()), None):
        raise UserError(f"the weights in {source} are corrupted: {broken} holds numbers that are not finite.")
    return network


def _check_shapes(network: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """What we saved fits as it is; timm would adapt or leave out what does not, and the answers would be other ones."""
    own = network.state_dict()
    for name in {**own, **state}:
        here, there = (tuple(x[name].shape) if name in x else None for x in (own, state))
        if here != there:
            words = (
                ("it lacks" if there is None else "it has no place for")
                if None in (here, there)
                else "another shape of"
            )
            raise UserError(
                f"the weights in {source} are not those of its config.json: {words} {name}; restore them from a copy."
            )


def build_with(name: str, state: dict[str, Tensor]) -> nn.Module:
    """timm's network of that name with these tensors in place of those that timm would look for itself."""
    overlay = {"source": "", "state_dict": state}
    network = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    network.pretrained_cfg.pop("state_dict")  # the network has them now
    return network.eval()
