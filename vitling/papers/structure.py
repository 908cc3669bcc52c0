"""What a Description prints of us: sizes read off the networks as they are built, settings off the recipes, counts off the data."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from vitling.data.sources.dataset import open_dataset
from vitling.errors import UserError
from vitling.methods import find_method
from vitling.optim import peak_lr
from vitling.papers.estimate import build_on_meta
from vitling.papers.plan import Line, described_recipe
from vitling.recipes import Recipe
from vitling.training.settings import Settings

RANDAUGMENT = re.compile(r"-m(?P<magnitude>[\d.]+).*-mstd(?P<spread>[\d.]+)")


@dataclass(frozen=True)
class Described:
    """A network and, where it is of a recipe of ours, that recipe."""

    network: nn.Module
    recipe: Recipe | None
    img_size: int

    @property
    def blocks(self) -> nn.Sequential:
        return getattr(self.network, "layers", None) or self.network.blocks  # of an agent, of a ViT

    def setting(self, read: Callable[[Recipe], Any]) -> Any:
        return read(self.recipe) if self.recipe else None


def read_description(line: Line, columns: list[str], settings: Settings) -> tuple[dict[str, Any], str]:
    """Our entries of a row, by column, and why there are none where that is so."""
    if line.row.describes == "data":
        return _count_data(line, settings)
    recipe = described_recipe(line.row)
    assert recipe is not None  # such rows name a network, with its size
    assert isinstance(recipe.img_size, int)
    network = build_on_meta(recipe, line.row.data.classes, 3)
    described = Described(network, recipe if line.row.describes else None, recipe.img_size)
    return {column: _read(column, described) for column in columns}, ""


def _read(column: str, described: Described) -> Any:
    """An entry; a column that is neither a size nor a setting is a technique that the recipe's method uses or not."""
    if column in READERS:
        return READERS[column](described)
    return described.setting(lambda recipe: column in find_method(recipe.method).techniques(recipe))


# ---------------------------------------------------------------------------------------------------------------------
# Networks


def _heads(described: Described) -> int:
    own = getattr(described.network, "num_heads", None)  # an agent's heads are the taps of its convolutions
    return own or described.blocks[0].attn.num_heads


def _mlp_width(described: Described) -> int:
    return described.blocks[0].mlp.fc1.out_features


def _token_layer(described: Described) -> nn.Module | None:
    return getattr(getattr(described.network, "tokens_to_token", None), "attention1", None)


def _token_kind(described: Described) -> str | None:
    layer = _token_layer(described)
    return None if layer is None else "Performer" if hasattr(layer, "kqv") else "Transformer"


def _token_layers(described: Described) -> int | None:
    module = getattr(described.network, "tokens_to_token", None)
    return None if module is None else sum(hasattr(module, f"attention{number}") for number in (1, 2))


def _token_width(described: Described) -> int | None:
    layer = _token_layer(described)
    return None if layer is None else layer.norm2.normalized_shape[0]


def _token_mlp(described: Described) -> int | None:
    layer = _token_layer(described)
    linears = [] if layer is None else [m for m in layer.mlp.modules() if isinstance(m, nn.Linear)]
    return linears[0].out_features if linears else None


def _has_parameter(described: Described, part: str) -> bool:
    return any(part in name for name, _ in described.network.named_parameters())


# ---------------------------------------------------------------------------------------------------------------------
# Settings


def _randaugment(recipe: Recipe) -> str | None:
    found = RANDAUGMENT.search(recipe.augment.randaugment)
    return f"{found['magnitude']}/{found['spread']}" if found else None


def _of(read: Callable[[Recipe], Any]) -> Callable[[Described], Any]:
    return lambda described: described.setting(read)


READERS: dict[str, Callable[[Described], Any]] = {
    "layers": lambda described: len(described.blocks),
    "width": lambda described: described.network.embed_dim,
    "heads": _heads,
    "MLP width": _mlp_width,
    "MLP ratio": lambda described: _mlp_width(described) / described.network.embed_dim,
    "T2T transformer": _token_kind,
    "T2T layers": _token_layers,
    "T2T width": _token_width,
    "T2T MLP width": _token_mlp,
    "LayerScale": lambda described: _has_parameter(described, "gamma_"),
    "class attention": lambda described: hasattr(described.network, "blocks_token_only"),
    "scaled residuals": lambda described: getattr(described.blocks[0], "skip_lam", 1.0) != 1.0,
    "test size": lambda described: described.img_size,
    "epochs": _of(lambda recipe: recipe.epochs),
    "batch size": _of(lambda recipe: recipe.batch_size),
    "learning rate": _of(peak_lr),
    "schedule": _of(lambda recipe: recipe.optim.schedule),
    "weight decay": _of(lambda recipe: recipe.optim.weight_decay),
    "warm-up epochs": _of(lambda recipe: recipe.optim.warmup_epochs),
    "dropout": _of(lambda recipe: recipe.model_args.get("drop_rate", 0.0)),
    "stochastic depth": _of(lambda recipe: recipe.model_args.get("drop_path_rate", 0.0)),
    "mixup alpha": _of(lambda recipe: recipe.method_args.get("mixup")),
    "erasing": _of(lambda recipe: recipe.augment.erase),
    "RandAugment": _of(_randaugment),
    "RandAugment used": _of(lambda recipe: bool(recipe.augment.randaugment)),
}


# ---------------------------------------------------------------------------------------------------------------------
# Data


def _count_data(line: Line, settings: Settings) -> tuple[dict[str, Any], str]:
    """Images and classes of the row's data where it is here: nothing is downloaded for a table of numbers."""
    if not line.data:
        return {}, f"{line.row.data.name} cannot be downloaded; give its folder as data"
    try:
        dataset = open_dataset(line.data, root=settings.reading.root if line.row.data.named else None, download=False)
    except UserError as error:
        return {}, str(error)
    test = next((split for split in (line.row.data.test_split, "test", "val") if split in dataset.splits), None)
    train, classes = len(dataset.splits["train"]), len(dataset.class_names)
    return {
        "training images": train,
        "test images": len(dataset.splits[test]) if test else None,
        "classes": classes,
        "images per class": round(train / classes),
    }, ""
