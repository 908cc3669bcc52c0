"""Two things that must happen the moment another package is imported, in whatever order people import.

* After `torchvision.extension`: pip's torchvision wheel is compiled against a GPU build of torch. Beside a CPU-only torch its
  operators cannot load and `import torchvision` (and so `import timm`) dies on "operator torchvision::nms does not exist".
  Declaring the two operators that it decorates is enough, since nothing here calls them.
* After `timm`: our families enter timm's registry, without `import vitling` having to wait seconds for torch.

A `.pth` file installed beside the package imports this module when Python starts (well under a millisecond), so that
`import timm` works before `import vitling` too.
"""

import sys


def declare_torchvision_operators() -> None:
    """Give torchvision the names of its compiled operators where its own library could not be loaded."""
    import torch

    missing = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "DEF")
        for name in missing:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _keep.append(library)  # the declaration lives as long as this object


def register_families() -> None:
    import vitling.models  # noqa: F401  (importing it registers)


_keep: list = []
_after = {"torchvision.extension": declare_torchvision_operators}


class _AfterImport:
    """Finds nothing itself: lets the other finders answer, then runs a function after the module has run."""

    def find_spec(self, name, path=None, target=None):
        if name not in _after:
            return None
        import importlib.util  # here, because this module runs at every start of Python and that import is slow

        action = _after.pop(name)  # popped first: the search below asks every finder again, this one included
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            _after[name] = action
            return None
        run_module = spec.loader.exec_module

        def exec_module(module):
            run_module(module)
            action()

        spec.loader.exec_module = exec_module
        return spec


def watch() -> None:
    """Start watching imports. Calling it again changes nothing."""
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def watch_timm() -> None:
    """Register our families with timm: now if it is here, else as soon as it is."""
    if "timm" in sys.modules:
        register_families()
    else:
        _after["timm"] = register_families


watch()
