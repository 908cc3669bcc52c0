"""Be told when torchvision and timm are imported, whoever does it: until then nothing of ours waits for torch.

Before torchvision, its operators are declared where they are missing; after timm, our families enter its registry.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from vitling.importing.operators import declare_torchvision_operators

if TYPE_CHECKING:
    from importlib.abc import Loader  # loads much, for two names


def watch_imports() -> None:
    """From now on; of a timm that is there already, at once. (Where there is None in its place, it counts as not installed.)"""
    if sys.modules.get("torchvision") is None:
        sys.meta_path.insert(0, _Watch("torchvision", before=declare_torchvision_operators))
    if sys.modules.get("timm") is not None:
        register_models()
    else:
        sys.meta_path.insert(0, _Watch("timm", after=register_models))


def register_models() -> None:
    """Enter every family into timm's registry. `import timm` does it where vitling has been imported; again, it changes nothing."""
    import_module("vitling.models")


class _Watch:
    """Calls back around the first import of a package that succeeds; everything else about it is Python's own."""

    def __init__(self, name: str, *, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None):
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
        if self.watch.before:
            self.watch.before()
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.watch in sys.meta_path:
            sys.meta_path.remove(self.watch)
        if self.watch.after:
            self.watch.after()
