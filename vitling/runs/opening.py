"""`open_model`: the one way to get a model and what belongs to it, from whatever names one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import timm
import torch
from timm.layers import to_2tuple
from timm.models import load_state_dict_from_hf
from torch import Tensor, nn
from torch.hub import load_state_dict_from_url

import vitling.models  # noqa: F401  (registers our families)
from vitling.callbacks import Callback
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.errors import UserError, did_you_mean, first_line
from vitling.files import check_path
from vitling.models.weights import load_weights
from vitling.plugins import load_installed
from vitling.runs import hub
from vitling.runs.device import default_device
from vitling.runs.exported import ExportedModel, find_exported, open_exported
from vitling.runs.metadata import ModelMetadata
from vitling.runs.remote import as_url
from vitling.runs.run import Run, check_weights, load_run
from vitling.runs.timm_folder import build_with, load_network, read_config, read_saved_metadata
from vitling.validation.model_arguments import check_model_args

LOCAL = "local-dir:"
WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".pth", ".tar", ".bin", ".ckpt")
ALLOWED = "give a run, an exported folder, a weights file, an .onnx file, hf-hub:OWNER/NAME or a timm name with published weights"

Source: TypeAlias = Run | nn.Module | str | Path


@dataclass
class OpenedModel:
    """A model, how an image becomes its input, and what it calls its classes."""

    name: str
    network: nn.Module | ExportedModel  # a module is in eval mode, on its device
    preprocessing: Preprocessing
    class_names: list[str] | None = None  # None where the model does not name them
    run: Run | None = None  # None where it is not a run
    metadata: ModelMetadata | None = None  # None where it was not saved by vitling

    @property
    def module(self) -> nn.Module:
        """The network, for those who look inside it."""
        if isinstance(self.network, ExportedModel):
            raise only_outputs(self.name, self.network.kind)
        return self.network

    def require_classes(self, what: str) -> None:
        """For what takes its outputs for those of classes; `what` begins the sentence."""
        if self.metadata is not None:
            self.metadata.target.require_classes(what, self.name)

    def class_order(self, names: Sequence[str]) -> list[int] | None:
        """The model's number of each of these classes; None where it knows others.

        A model that does not name its classes numbers them as given.
        """
        known, wanted = self.class_names, list(names)
        if known == wanted or (known is None and self.module.num_classes == len(wanted)):
            return list(range(len(wanted)))
        if known is None or sorted(known) != sorted(wanted) or len(set(known)) < len(known):
            return None
        return [known.index(name) for name in wanted]

    @torch.inference_mode()
    def logits(self, pixels: Tensor) -> Tensor:
        """(B, classes), on the CPU, of uint8 images in the model's size."""
        if isinstance(self.network, ExportedModel):
            return torch.from_numpy(self.network(pixels.numpy()))
        device = next((p.device for p in self.network.parameters()), pixels.device)
        return self.preprocessing.score(self.network, self.preprocessing.normalize(pixels.to(device))).float().cpu()


def open_model(
    source: Source,
    *,
    which: str = "best",
    architecture: str | None = None,
    model_args: Mapping[str, Any] | None = None,
    max_value: int = 255,
    device: torch.device | str | None = None,
    callback: Callback | None = None,
) -> OpenedModel:
    """Open a model for use after its training, in eval mode on `device` (the accelerator, where there is one).

    A source is a run (`which` of its weights, best or last), an exported folder or a run's own best/, `local-dir:FOLDER`, a
    weights file, an .onnx file, `hf-hub:owner/name`, a timm name with published weights, or a module. A weights file is of the
    model in the config.json beside it, or of timm's `architecture` with these `model_args`. `max_value` is the pixel value of
    the data that becomes 255, where the model does not know it.
    """
    check_weights(which)
    kind, place = find_kind(source)
    if which != "best" and kind != "run":
        raise UserError(f"which={which} is for runs; {_name(source)} has only one set of weights.")
    if (architecture or model_args) and kind != "weights":
        raise UserError(f"architecture and model_args are for weights files; {_name(source)} knows its own.")
    if callback and kind in ("hub", "timm"):
        callback.on_progress(f"downloading {place}", 0, None)
    if kind == "module":
        opened = _of_network(_name(source), place, max_value)
    elif kind == "run":
        network = place.load_model(which)  # before anything else is read: a run may have none yet
        for line in place.plugin_changes("model"):
            (callback or Callback()).log(line)
        opened = _with_metadata(place.path.name, network, ModelMetadata.of_run(place), run=place)
    elif kind == "exported":
        network = open_exported(place)
        opened = _with_metadata(place.name, network, network.metadata)
    elif kind == "weights" and (architecture or model_args or not (place.parent / "config.json").exists()):
        opened = _of_network(place.name, _fill(place, architecture, model_args), max_value)
    elif kind == "weights":
        opened = _open_folder(place.name, place.parent, str(source), max_value, weights=place)
    elif kind == "folder":
        opened = _open_folder(place.resolve().name, place, str(source), max_value)
    elif kind == "hub":
        opened = _open_folder(str(source), hub.fetch_folder(place), str(source), max_value)
    else:
        opened = _of_network(place, _load_published(place), max_value)
    if isinstance(opened.network, nn.Module):
        opened.network.to(device or default_device()).eval()
    return opened


def only_outputs(name: str, kind: str) -> UserError:
    """What is said to those who want to look into an exported file."""
    return UserError(f"{name} is {kind}, which shows only its outputs; give the run or a timm folder.")


def find_kind(source: Source) -> tuple[str, Any]:  # a module, a Run, a Path or a name: the kind says which
    """Which kind of source this is, and where it is: the one grammar. What lies here comes before names."""
    if isinstance(source, nn.Module):
        return "module", source
    if isinstance(source, Run):
        return "run", source
    text = str(source)
    if text.startswith(LOCAL):
        return "folder", check_path(text.removeprefix(LOCAL))
    if text.startswith(hub.PREFIX):
        return "hub", text
    if as_url(text):
        return "run", load_run(text)
    path = check_path(text)
    if exported := find_exported(path):
        return "exported", exported
    if path.is_dir():
        return ("run", Run(path)) if (path / "run.json").exists() else ("folder", path)
    if path.is_file():
        if path.suffix not in WEIGHTS_SUFFIXES:
            raise UserError(f"{text} is not a model; files end in .onnx, {', '.join(WEIGHTS_SUFFIXES)}.")
        return "weights", path
    if text.startswith("timm/"):
        return "hub", hub.PREFIX + text
    load_installed()
    if timm.is_model(text):
        return "timm", text
    near = "" if "/" in text else did_you_mean(text, timm.list_models(), show=0)
    raise UserError(f"no model at {text}; {ALLOWED}. {near}".rstrip())


def run_behind(source: str | Path) -> Run | None:
    """The run that a source is or that it lies in: RUN, RUN/best, a companion, an export, a file in there. None where there is none."""
    text = str(source).removeprefix(LOCAL)
    if as_url(text):
        return load_run(text)
    path = check_path(text).resolve()
    if not path.exists():  # a published name, typed inside of a run
        return None
    for place in (path, *path.parents[:3]):
        if (place / "run.json").exists():
            return Run(place)
    return None


def find_weights(source: str | Path) -> Path | dict[str, Tensor]:
    """The weights that a source brings, for `load_weights` to fill another model with; no network is run."""
    kind, place = find_kind(source)
    if kind == "exported":
        raise UserError(f"{source} is exported, and no weights are taken from it; give the run or a timm folder.")
    if kind == "timm":
        return _load_published(place).state_dict()
    if kind == "hub":
        return hub.fetch_folder(place)
    return place.path if kind == "run" else place


def is_there(source: Source) -> bool:
    """Whether a source lies here, or is a name that may be downloaded."""
    try:
        kind, place = find_kind(source)
    except UserError:
        return False
    return kind != "folder" or place.is_dir()


def build_network(source: Source, *, device: torch.device | str) -> nn.Module:
    """The network of a source without its weights: enough to count it, and nothing large is downloaded."""
    kind, place = find_kind(source)
    if kind == "module":
        return place
    if kind == "exported":
        raise only_outputs(str(source), "exported")
    find_folder = {"run": lambda: place.path / "best", "weights": lambda: place.parent, "folder": lambda: place}.get(
        kind
    )
    folder = find_folder() if find_folder else None
    if folder:
        read_config(folder, _name(source))
    try:
        with torch.device(device):
            return timm.create_model(f"{LOCAL}{folder}" if folder else place)
    except Exception as error:  # a foreign config, or a hub that cannot be asked
        raise UserError(f"the network of {_name(source)} cannot be built: {first_line(error)}") from None


def published_classes(source: Source) -> int | None:
    """How many classes the published weights of a timm name have: known without a download. None of other sources."""
    kind, place = find_kind(source)
    return _published_config(place).num_classes if kind == "timm" else None


def timm_preprocessing(network: nn.Module, max_value: int = 255) -> Preprocessing:
    """How a network without a run sees an image: by its own channels and size, then by timm's config. The whole image is shown."""
    cfg = getattr(network, "pretrained_cfg", None) or {}
    channels, *size = cfg.get("test_input_size") or cfg.get("input_size") or (3, 224, 224)
    channels = _input_channels(network) or channels
    size = getattr(getattr(network, "patch_embed", None), "img_size", None) or size
    mean, std = (tuple(cfg.get(key) or ()) for key in ("mean", "std"))
    return Preprocessing(
        size=to_2tuple(size) if isinstance(size, int) else tuple(size),
        channels=channels,
        fit="pad" if cfg.get("crop_mode") == "border" else "resize",
        max_value=max_value,
        mean=mean if len(mean) == channels else (0.5,) * channels,
        std=std if len(std) == channels else (0.5,) * channels,
    )


def _input_channels(network: nn.Module) -> int | None:
    first = next((module for module in network.modules() if isinstance(module, nn.Conv2d)), None)
    return getattr(network, "in_chans", None) or (first.in_channels if first is not None else None)


# One function per kind


def _of_network(name: str, network: nn.Module, max_value: int) -> OpenedModel:
    names = (getattr(network, "pretrained_cfg", None) or {}).get("label_names")
    if not isinstance(names, list | tuple) or len(names) != getattr(network, "num_classes", None):
        names = None
    return OpenedModel(name, network, timm_preprocessing(network, max_value), None if names is None else list(names))


def _with_metadata(
    name: str, network: nn.Module | ExportedModel, metadata: ModelMetadata, run: Run | None = None
) -> OpenedModel:
    return OpenedModel(name, network, metadata.preprocessing, metadata.class_names, run, metadata)


def _open_folder(name: str, folder: Path, source: str, max_value: int, weights: Path | None = None) -> OpenedModel:
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; {ALLOWED}.")
    lacking = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any((folder / file).is_file() for file in hub.WEIGHTS) and weights is None:
        lacking.append("model.safetensors")
    if lacking:
        raise UserError(
            f"{source} is neither a run (no run.json) nor an exported folder (no {' and no '.join(lacking)})."
        )
    metadata = read_saved_metadata(folder, source)
    network = load_network(folder, source, weights)
    if metadata is None:
        return _of_network(name, network, max_value)
    if network.num_classes != len(metadata.class_names):
        raise UserError(
            f"the model in {source} has {network.num_classes} classes, but its config.json names {len(metadata.class_names)}."
        )
    return _with_metadata(name, network, metadata)


def _fill(path: Path, architecture: str | None, model_args: Mapping[str, Any] | None) -> nn.Module:
    """A network of that architecture with all of its weights from the file."""
    if architecture is None:
        raise UserError(
            f"the weights in {path} do not name their model; give architecture, a name of timm, and model_args."
        )
    load_installed()
    if not timm.is_model(architecture):
        raise UserError(
            f"unknown architecture '{architecture}'. {did_you_mean(architecture, timm.list_models(), show=0)}"
        )
    check_model_args(model_args or {}, own=False)
    try:
        network = timm.create_model(architecture, **(model_args or {}))
    except Exception as error:  # each family refuses its arguments in its own way
        raise UserError(
            f"architecture={architecture} cannot be built with model_args={model_args}: {first_line(error)}"
        ) from None
    report = load_weights(network, path)
    skipped = [f"{name}: {why}" for name, why in report.skipped.items() if name in network.state_dict()]
    if left := skipped + report.missing:  # `load_weights` leaves a classifier as made, which would only guess
        raise UserError(
            f"{path} does not fill {architecture} ({left[0]}); give the model_args that it was trained with, such as num_classes."
        )
    return network


def _load_published(name: str) -> nn.Module:
    config = _published_config(name)
    try:
        if config.custom_load:
            return timm.create_model(name, pretrained=True)  # NumPy arrays, which are not unpickled
        if config.hf_hub_id:
            file = [config.hf_hub_filename] if config.hf_hub_filename else []
            state = load_state_dict_from_hf(config.hf_hub_id, *file, weights_only=True)
        else:
            state = load_state_dict_from_url(config.url, map_location="cpu", progress=False, weights_only=True)
        return build_with(name, state)
    except Exception as error:  # the hub client raises many kinds: no network, no such name, no access
        raise UserError(f"the weights of {name} could not be downloaded: {first_line(error)}") from None


def _published_config(name: str) -> Any:  # timm's PretrainedCfg
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise UserError(f"no published weights {name}: {first_line(error)}") from None
    if not config.has_weights:
        raise UserError(f"{name} has no published weights; give a run or a folder of it.")
    return config


def _name(source: Source) -> str:
    return type(source).__name__ if isinstance(source, nn.Module) else str(getattr(source, "path", source))
