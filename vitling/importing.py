"""What happens when torchvision and timm are imported, whoever does it; until then nothing of ours waits for torch.

Before torchvision: its compiled operators are declared where they cannot be loaded. pip's wheel is compiled against a GPU build of
torch, and beside a CPU-only one `import torchvision` (and so `import timm`) ends with "operator torchvision::nms does not exist".
Declaring the two operators that it decorates is enough, since nothing here calls them.

After timm: our families enter its registry.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader  # loads much, for two names

_kept: list[Any] = []  # a declaration lives as long as its library


def watch_imports() -> None:
    """Be told when torchvision and timm are imported; of a timm that is there already, at once."""
    if "torchvision" not in sys.modules:
        sys.meta_path.insert(0, _Watch("torchvision", before=declare_torchvision_operators))
    if "timm" in sys.modules:
        register_models()
    else:
        sys.meta_path.insert(0, _Watch("timm", after=register_models))


def register_models() -> None:
    """Enter every family into timm's registry. `import timm` does it where vitling has been imported; again, it changes nothing."""
    import_module("vitling.models")


def declare_torchvision_operators() -> None:
    """Declare what is missing before torchvision is imported; nothing where its library loads, or after that import."""
    if "torchvision" in sys.modules or _library_loads():
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)


def torchvision_mended() -> bool:
    """Whether that was necessary here."""
    return bool(_kept)


def _library_loads() -> bool:
    """Whether torchvision is absent, or its library loads as torchvision itself will load it in a moment."""
    import torch

    found = find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return True
    for path in Path(found.submodule_search_locations[0]).glob("_C.*"):
        try:
            torch.ops.load_library(path)
        except (OSError, RuntimeError):
            return False
    return hasattr(torch.ops.torchvision, "nms")


def _nothing() -> None:
    return


class _Watch:
    """Calls back around the first import of a package that succeeds; everything else about it is Python's own."""

    def __init__(self, name: str, *, before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing):
        self.name, self.before, self.after = name, before, after
        self.asking = False

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.name or self.asking:
            return None
        self.asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self.asking = False
        if spec and spec.loader:
            spec.loader = cast("Loader", _Told(spec.loader, self))
        return spec


class _Told:
    """Loads the package with its own loader, in whose name it stands afterwards."""

    def __init__(self, loader: "Loader", watch: _Watch):
        self.loader, self.watch = loader, watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        self.watch.before()
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.watch in sys.meta_path:
            sys.meta_path.remove(self.watch)
        self.watch.after()
