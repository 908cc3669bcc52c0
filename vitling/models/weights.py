"""Read and write checkpoints: ours, the authors', timm's, Hugging Face's.

Whatever the file, a weight ends in one of the lists of a `LoadReport`; what is not accounted for raises. Nothing here runs
code from a file: safetensors and `torch.load(weights_only=True)` are the only two readers.
"""

import argparse
import json
import math
import os
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from timm.layers import resample_abs_pos_embed, to_2tuple
from timm.models import adapt_input_conv
from timm.utils import unwrap_model
from torch import Tensor, nn

from vitling.errors import UserError, did_you_mean
from vitling.files import replacing, write_bytes, write_text
from vitling.models.contract import classifier_names, model_cfg, square_grid, stated_grid

# Where a checkpoint file keeps its weights, in the order we look: timm and T2T, LV-ViT; DHVT, Bootstrapping; T2T's transfer.
_ENTRIES = ("state_dict", "model", "net", "model_state_dict", "model_state")
_AVERAGED = ("state_dict_ema", "model_ema")
# Left by DataParallel, torch.compile and our methods; a joint checkpoint of Bootstrapping holds two networks.
_WRAPPERS = ("module.", "_orig_mod.")
_OWNERS = ("model.", "models.vit.", "models.cnn.")
# What a folder holds: of timm and Hugging Face, then of a run of ours.
_IN_FOLDER = ("model.safetensors", "pytorch_model.bin", "best/model.safetensors", "last/model.safetensors")
# Plain data that training scripts leave beside the weights: their command line, and an accuracy as a NumPy number.
_scalar = np.float64().__reduce__()[0]  # how pickle makes a NumPy number; the module of it has no public name
_PLAIN_DATA = [argparse.Namespace, np.dtype, *{type(np.dtype(kind)) for kind in "efdilB?"}]
_PLAIN_DATA += [(_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]


@dataclass
class LoadReport:
    """What became of every weight of a checkpoint and of a model."""

    source: str = "the given weights"
    loaded: list[str] = field(default_factory=list)
    adapted: dict[str, str] = field(default_factory=dict)  # loaded after a change of shape, and which
    skipped: dict[str, str] = field(default_factory=dict)  # in the file, not used on purpose, and why
    missing: list[str] = field(default_factory=list)  # in the model, not in the file: left as made
    unexpected: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"loaded {len(self.loaded)} of {len(self.loaded) + len(self.missing)} tensors from {self.source}"]
        for what in ("adapted", "skipped", "mismatched"):
            entries = [f"{key} ({why})" for key, why in getattr(self, what).items()]
            parts += [f"{what} {_some(entries)}"] if entries else []
        for what in ("missing", "unexpected"):
            parts += [f"{what} {_some(getattr(self, what))}"] if getattr(self, what) else []
        return "; ".join(parts)


def load_weights(
    model: nn.Module,
    source: str | os.PathLike | Mapping,
    *,
    strict: bool = True,
    use_ema: bool = False,
    grid: tuple[int, int] | None = None,
) -> LoadReport:
    """Fill a model from a file, a folder or a dict of weights, and say what was done with each of them.

    A classifier for another number of classes is left as made, position embeddings and the first layer take the model's size;
    anything else that does not fit raises, unless `strict=False`. `use_ema` picks the averaged weights of a file that has
    both. `grid` is the token grid (rows, columns) of the checkpoint, needed only if it is neither square nor recorded.
    """
    model = unwrap_model(model)
    name = "the given weights"
    if isinstance(source, Mapping):
        content: object = source
    else:
        path = _weights_file(Path(source))
        content, recorded = _read(path)
        grid, name = grid or recorded, str(path)
    state, entry = _pick_state(content, name, use_ema)
    state, report = adapt_state(state, model, grid=grid)
    report.source = f"{name} ({entry})" if entry else name
    if not report.loaded:
        raise UserError(
            f"{report.source} holds nothing of this {type(model).__name__}: it has {_some(state)}; "
            f"the model has {_some(model.state_dict())}."
        )
    if strict and (problems := _problems(report, model)):
        raise UserError(
            f"{report.source} does not fit this {type(model).__name__}: {problems}. strict=False takes the rest."
        )
    model.load_state_dict({key: state[key] for key in report.loaded}, strict=False)
    return report


def read_weights(source: str | os.PathLike) -> dict[str, Tensor]:
    """The tensors of a file or folder by the names they have there, and nothing else of it."""
    path = _weights_file(Path(source))
    content, _ = _read(path)
    return _pick_state(content, str(path), use_ema=False)[0]


def save_weights(
    model: nn.Module,
    path: str | os.PathLike,
    *,
    naming: str = "vitling",
    metadata: Mapping[str, str] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model's weights as .safetensors, or as .pt, .pth, .pth.tar for loaders that want those.

    `naming="authors"` gives the key names of the release that the model comes from, under the entries its loader looks for. `state`
    is the model's state where it has been gathered from several processes.
    """
    model, path = unwrap_model(model), Path(path)
    if naming not in ("vitling", "authors"):
        raise UserError(f"unknown naming {naming!r}. {did_you_mean(naming, ('vitling', 'authors'))}")
    state = model.state_dict() if state is None else state
    if naming == "authors" and hasattr(model, "to_authors"):
        state = model.to_authors(state)
    metadata = {str(key): str(value) for key, value in (metadata or {}).items()}
    if (grid := stated_grid(model)) is not None:
        metadata.setdefault("grid", f"{grid[0]}x{grid[1]}")
    # Every name gets memory of its own: safetensors refuses tied weights, and other loaders expect all names.
    state = {key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in state.items()}
    if path.suffix == ".safetensors":
        # As bytes, because its own writer hides a full disk behind an error of another kind.
        write_bytes(path, to_safetensors(state, {"format": "pt", **metadata}))
    elif path.suffix in (".pt", ".pth", ".tar"):
        content = {"state_dict": state, "metadata": metadata}
        if naming == "authors":
            content["model"] = state  # DHVT and Bootstrapping look here; the tensors are stored once
        with replacing(path) as temporary, temporary.open("wb") as file:
            torch.save(content, file)
    else:
        raise UserError(f"unknown weights format: {path}; end it in .safetensors, .pt, .pth or .pth.tar.")


def to_safetensors(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The content of a .safetensors file: the same bytes for the same tensors and metadata.

    safetensors itself writes the metadata in an order that is another one in each call, so its head is written again in ours.
    """
    content = safetensors.torch.save(dict(state), metadata=dict(metadata))
    size = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + size])
    head["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + memoryview(content)[8 + size :]


def save_for_timm(
    model: nn.Module,
    folder: str | os.PathLike,
    *,
    model_args: Mapping | None = None,
    label_names: list[str] | None = None,
    cfg: Mapping | None = None,
    metadata: Mapping[str, str] | None = None,
    entries: Mapping | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` and `load_weights` read.

    `model_args` are the arguments, besides the number of classes, that the model was created with; `cfg` replaces entries of
    its `pretrained_cfg`, such as the mean and std of the images; `entries` are further ones of config.json, which timm ignores;
    `state` is as in `save_weights`.
    """
    model, folder, model_args = unwrap_model(model), Path(folder), dict(model_args or {})
    full = {**model.pretrained_cfg, "num_classes": model.num_classes, **(cfg or {})}
    for where_from in ("url", "file", "hf_hub_id", "hf_hub_filename", "source", "state_dict", "tag", "custom_load"):
        full.pop(where_from, None)
    in_chans, *img_size = full["input_size"]
    in_chans, img_size = model_args.get("in_chans", in_chans), to_2tuple(model_args.get("img_size", img_size))
    full["input_size"] = [in_chans, *img_size]
    if in_chans not in (1, 3):
        full.pop("first_conv", None)  # timm would take its weight for one of three channels, fail, and draw a new one
    # The number of classes stands at the top, once: transformers hands it over beside the `model_args`, and both would be too many.
    config = {
        "architecture": full.pop("architecture"),
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        **({"label_names": list(label_names)} if label_names else {}),
        "model_args": {key: value for key, value in model_args.items() if key != "num_classes"},
        "pretrained_cfg": {key: value for key, value in full.items() if value is not None},
        **(entries or {}),
    }
    save_weights(model, folder / "model.safetensors", metadata=metadata, state=state)
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")


def adapt_state(
    state: Mapping[str, Tensor], model: nn.Module, *, grid: tuple[int, int] | None = None
) -> tuple[dict[str, Tensor], LoadReport]:
    """Bring a state dict to the names and shapes of a model: what fits is in `report.loaded`, the rest is explained."""
    report = LoadReport()
    own = model.state_dict()
    state = _own_names(dict(state), model, report)
    _leave_classifier(state, model, report)
    if "pos_embed" in own and "pos_embed" in state:
        _fit(state, "pos_embed", _resize_pos_embed(state["pos_embed"], own["pos_embed"], model, grid), report)
    _adapt_first_layer(state, own, model, report)
    _fill_tied(state, own)
    for key, value in own.items():
        if key not in state:
            report.missing.append(key)
        elif state[key].shape != value.shape:
            report.mismatched[key] = f"{_shape(state[key])} in the file, {_shape(value)} here"
        else:
            report.loaded.append(key)
    report.unexpected += [key for key in state if key not in own]
    return state, report


# Files


def _weights_file(path: Path) -> Path:
    if path.is_dir():
        for name in _IN_FOLDER:
            if (path / name).is_file():
                return path / name
        raise UserError(f"no weights in the folder {path}; it should hold one of {', '.join(_IN_FOLDER)}.")
    if not path.is_file():
        near = did_you_mean(path.name, os.listdir(path.parent), show=6) if path.parent.is_dir() else ""
        raise UserError(f"no file or folder {path}. {near}".rstrip())
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty; copy or download it again.")
    return path


def _read(path: Path) -> tuple[object, tuple[int, int] | None]:
    """The content of a checkpoint file, and the token grid if it was recorded."""
    try:
        if path.suffix == ".safetensors":
            with safetensors.safe_open(path, framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}, _parse_grid(file.metadata())  # noqa: SIM118
        with torch.serialization.safe_globals(_PLAIN_DATA):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if wanted := re.search(r"GLOBAL (\S+)", str(error)):
            raise UserError(
                f"{path} wants to run code when it is opened ({wanted[1]}), which is refused; "
                "save its state_dict alone, or as safetensors, where you trust it."
            ) from error
        raise _unreadable(path, "not what torch.save writes") from error
    except Exception as error:  # a damaged file can make the readers raise anything
        raise _unreadable(path, str(error) or type(error).__name__) from error
    return content, _parse_grid(content.get("metadata")) if isinstance(content, dict) else None


def _unreadable(path: Path, reason: str) -> UserError:
    reason = reason.strip().splitlines()[0][:160]
    return UserError(f"cannot read {path} as weights ({reason}); it is cut short, damaged, or no checkpoint.")


def _pick_state(content, name: str, use_ema: bool) -> tuple[dict, str]:
    """The state dict inside a checkpoint's content, and the entry it stood under."""
    if not isinstance(content, Mapping):
        raise UserError(f"{name} holds a {type(content).__name__}, not a dict of weights.")
    if use_ema:
        entries: tuple[str, ...] = _AVERAGED
        if not any(entry in content for entry in entries):
            raise UserError(f"{name} has no averaged weights, only {_some(content)}; leave out use_ema.")
    else:
        entries = (*_ENTRIES, *_AVERAGED)
    for entry in entries:
        if isinstance(content.get(entry), Mapping):
            state, inner = _pick_state(content[entry], name, use_ema=False)
            return state, f"{entry}.{inner}" if inner else entry
    if not any(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{name} holds no weights, only {_some(content) or 'nothing'}.")
    return {key: value for key, value in content.items() if isinstance(value, Tensor)}, ""


# Names


def _own_names(state: dict[str, Tensor], model: nn.Module, report: LoadReport) -> dict[str, Tensor]:
    """Strip wrappers, pick this model's part of a checkpoint of several networks, translate the authors' names."""
    for wrapper in _WRAPPERS:
        state = {key.removeprefix(wrapper): value for key, value in state.items()}
    own = model.state_dict()
    translations: list[Callable] = [dict] + ([model.from_authors] if hasattr(model, "from_authors") else [])
    best, best_owner, most = state, "", (-1, 0)
    for owner in (*_OWNERS, ""):
        part = {key.removeprefix(owner): value for key, value in state.items() if key.startswith(owner)}
        for translate in translations if part else ():
            if translate is not dict and part.keys() <= own.keys():
                continue  # already ours
            named = translate(part)
            known = sum(key in own and own[key].ndim == value.ndim for key, value in named.items())
            fitting = (known, known - len(named))  # of equally good readings the one with fewer unknown names
            if fitting > most:
                best, best_owner, most = named, owner, fitting
    others = sorted({".".join(key.split(".")[:2]) for key in state if not key.startswith(best_owner)})
    report.skipped |= {f"{other}.*": "another part of the checkpoint" for other in others}
    return best


def _fill_tied(state: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    """Writers may store weights that are one tensor in the model only once: give the other names the same value."""
    names: dict[tuple, list[str]] = {}
    for key, value in own.items():
        if value.device.type != "meta":
            names.setdefault((value.data_ptr(), value.shape, value.stride()), []).append(key)
    for tied in names.values():
        stored = next((key for key in tied if key in state), None)
        if stored is not None:
            for key in tied:
                state.setdefault(key, state[stored])


# Shapes


def _leave_classifier(state: dict[str, Tensor], model: nn.Module, report: LoadReport) -> None:
    """Take the classifiers out of the state if any of them is for another number of classes, or the model has none."""
    own = model.state_dict()
    classifiers = classifier_names(model)
    keys = [key for key in state if key.rpartition(".")[0] in classifiers]
    if all(key in own and own[key].shape[:1] == state[key].shape[:1] for key in keys):
        return
    for key in keys:
        there, here = len(state.pop(key)), len(own[key]) if key in own else 0
        report.skipped[key] = f"{there} classes in the file, {here} here"


def _fit(state: dict[str, Tensor], key: str, value: Tensor, report: LoadReport) -> None:
    if value is not state[key]:
        report.adapted[key] = f"{_shape(state[key])} -> {_shape(value)}"
        state[key] = value


def _resize_pos_embed(there: Tensor, here: Tensor, model: nn.Module, grid: tuple[int, int] | None) -> Tensor:
    """Position embeddings for another token grid: bicubic on the grid, rows of class tokens kept (as the releases do)."""
    new_grid = stated_grid(model)
    if here.ndim != 3 or new_grid is None or there.shape[-1] != here.shape[-1]:
        return there
    new_prefix = here.shape[1] - math.prod(new_grid)
    if there.ndim == 4:  # (1, rows, columns, D)
        grid, there = tuple(there.shape[1:3]), there.flatten(1, 2)
    if there.ndim != 3 or (there.shape == here.shape and (grid is None or tuple(grid) == tuple(new_grid))):
        return there
    prefix, grid = _split_rows(there.shape[1], new_prefix, grid)
    patches = resample_abs_pos_embed(there[:, prefix:], new_grid, grid, num_prefix_tokens=0, antialias=False)
    # The row of a class token that the checkpoint lacks is left as made; one that the model lacks goes.
    rows = there[:, :new_prefix] if prefix >= new_prefix else here[:, :new_prefix].to(there)
    return torch.cat([rows, patches], dim=1)


def _split_rows(rows: int, prefix: int, grid: tuple[int, int] | None) -> tuple[int, tuple[int, int]]:
    """How many of a position embedding's rows come before the patches, and the grid of these."""
    for count in (prefix, 1, 0, 2):
        if grid is not None and rows - count == math.prod(grid):
            return count, (grid[0], grid[1])
    for count in (prefix, 1, 0, 2):
        if grid is None and (square := square_grid(rows - count)):
            return count, square
    given = f"grid={tuple(grid)} does not fit" if grid is not None else "no square grid fits"
    raise UserError(f"{given} a position embedding of {rows} rows; pass grid=(rows, columns) of the checkpoint.")


def _adapt_first_layer(state: dict[str, Tensor], own: dict[str, Tensor], model: nn.Module, report: LoadReport) -> None:
    """Weights for another number of input channels, such that grey images give about the same response."""
    first = model_cfg(model).get("first_conv") or ()
    first = first if isinstance(first, str) else next(iter(first), "")
    weight = f"{first}.weight"
    if weight not in own or weight not in state or state[weight].ndim != own[weight].ndim:
        return
    old, new = state[weight].shape[1], own[weight].shape[1]
    in_chans = new if own[weight].ndim == 4 else model.in_chans  # else a linear layer over patches, channels outermost
    if old == new or (old * in_chans) % new:
        return
    old, new = old * in_chans // new, in_chans
    module = first.split(".")[0] + "."
    for key, there in state.items():
        if key in own and key.startswith(module) and there.ndim == own[key].ndim:
            axes = [axis for axis in range(there.ndim) if there.shape[axis] != own[key].shape[axis]]
            if len(axes) == 1 and there.shape[axes[0]] * new == own[key].shape[axes[0]] * old:
                _fit(state, key, _adapt_channels(there, axes[0], old, new), report)


def _adapt_channels(there: Tensor, axis: int, old: int, new: int) -> Tensor:
    x = there.movedim(axis, 0).unflatten(0, (old, -1))  # (in_chans, pixels, ...)
    if there.numel() == there.shape[axis]:  # a scale or shift of each input
        x = x.mean(0, keepdim=True).expand(new, *x.shape[1:])
    elif old == 3:
        x = adapt_input_conv(new, x.flatten(1).T[..., None, None])[..., 0, 0].T.unflatten(1, x.shape[1:])
    else:
        x = x.sum(0, keepdim=True).expand(new, *x.shape[1:]) / new
    return x.flatten(0, 1).movedim(0, axis).contiguous()


def _parse_grid(metadata: Mapping | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)x(\d+)", str((metadata or {}).get("grid")))
    return (int(match[1]), int(match[2])) if match else None


# Words


def _problems(report: LoadReport, model: nn.Module) -> str:
    """What a strict load must not pass over: everything that is left, besides a classifier that the file lacks."""
    classifiers = classifier_names(model)
    missing = [key for key in report.missing if key.rpartition(".")[0] not in classifiers]
    parts = [f"{len(missing)} missing ({_some(missing)})"] if missing else []
    parts += [f"{len(report.unexpected)} unexpected ({_some(report.unexpected)})"] if report.unexpected else []
    mismatched = [f"{key}: {why}" for key, why in report.mismatched.items()]
    return ", ".join(parts + ([f"{len(mismatched)} of another shape ({_some(mismatched)})"] if mismatched else []))


def _some(names, show: int = 3) -> str:
    names = list(names)
    return ", ".join(map(str, names[:show])) + (f" and {len(names) - show} more" if len(names) > show else "")


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
