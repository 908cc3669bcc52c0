"""torchvision's compiled operators, where its own library cannot be loaded.

pip's torchvision wheel is compiled against a GPU build of torch. Beside a CPU-only torch its operators cannot load, and
`import torchvision` (and so `import timm`) ends with "operator torchvision::nms does not exist". Declaring the two operators
that it decorates is enough, since nothing here calls them.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_kept: list[Any] = []  # a declaration lives as long as its library


def declare_torchvision_operators() -> None:
    """Declare what is missing before torchvision is imported; nothing where its library loads, or after that import."""
    if "torchvision" in sys.modules or _library_loads():
        return
    import torch  # when torchvision, which imports it too, is about to be imported

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)


def torchvision_mended() -> bool:
    """Whether that was necessary here."""
    return bool(_kept)


def _library_loads() -> bool:
    """Whether torchvision is absent, or its library loads as torchvision itself will load it in a moment."""
    import torch  # when torchvision, which imports it too, is about to be imported

    found = find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return True
    for path in Path(found.submodule_search_locations[0]).glob("_C.*"):
        try:
            torch.ops.load_library(path)
        except (OSError, RuntimeError):
            return False
    return hasattr(torch.ops.torchvision, "nms")
