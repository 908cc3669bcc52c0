"""Data: any labelled images in, uint8 tensors of one size out. The names load on first use: reading an image needs no torch."""

from importlib import import_module as _import_module

from vitling._deprecated import accept_old_arguments as _accept_old_arguments
from vitling._deprecated import find_old_name as _find_old_name

_PUBLIC = {
    "ArrayImages": "sources.images",
    "BadImage": "sources.images",
    "Dataset": "sources.dataset",
    "FileImages": "sources.images",
    "Found": "sources.tree",
    "HubImages": "sources.images",
    "Images": "sources.images",
    "carve_validation": "splits",
    "channel_statistics": "pipeline.decoding",
    "decode": "pipeline.decoding",
    "fit_image": "sources.images",
    "k_folds": "splits",
    "load_image": "sources.images",
    "open_dataset": "sources.dataset",
    "register_source": "sources.registered",
    "take_fraction": "splits",
}
_PARTS = ("augment", "pipeline", "sources", "splits", "threads")
__all__ = sorted(_PUBLIC)


def __getattr__(name: str):
    if name in _PARTS:
        return _import_module(f"vitling.data.{name}")
    if name not in _PUBLIC:
        return _find_old_name(__name__, name, stacklevel=4)
    value = _accept_old_arguments(getattr(_import_module(f"vitling.data.{_PUBLIC[name]}"), name), __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
