"""Centred kernel alignment: how similar are two layers, or all layers of two networks?

Linear kernel throughout: K = X X^T of features flattened to (images, everything else). The minibatch estimator is Nguyen et al.
2021 (eq. 3) on HSIC_1 of Song et al. 2012. A U-centred Gram matrix turns HSIC_1 into a plain inner product, so that all pairs of
layers are one matrix product, and so each feature is reduced to (B, B) numbers in the hook that sees it.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from vitling.errors import UserError, did_you_mean, first_line
from vitling.models.inspect import evaluating, find_blocks, first_tensor, images_of, watch
from vitling.runs.device import to_float64

SMALLEST_BATCH = 4  # HSIC_1 divides by n - 3
COLUMNS = 1536  # features centred at a time: 128 rows of them stay in the cache, and no power of two collides in it

# ---------------------------------------------------------------------------------------------------------------------
# Two layers


@torch.no_grad()
def gram(x: Tensor) -> tuple[Tensor, Tensor]:
    """X X^T of the features less their batch mean, and how large it would be from the rounding of that mean alone.

    HSIC does not change when all rows shift equally, but float32 does not survive a common mean that is large. Centred
    piece by piece, the features are read once and never copied whole.
    """
    x = _rows(x)
    half = len(x) // 2
    result = x.new_zeros(len(x), len(x))
    mean_square = x.new_zeros(())
    scratch = x.new_empty(len(x), min(COLUMNS, x.shape[1]))
    ones = x.new_full((len(x),), 1 / len(x))
    for piece in x.split(COLUMNS, dim=1):
        mean = ones @ piece
        centred = torch.sub(piece, mean, out=scratch[:, : piece.shape[1]])
        result[:half].addmm_(centred[:half], centred.T)
        result[half:, half:].addmm_(centred[half:], centred[half:].T)
        mean_square += mean @ mean
    result[half:, :half] = result[:half, half:].T  # a quarter of the products saved
    return to_float64(result), 64 * torch.finfo(x.dtype).eps ** 2 * to_float64(mean_square)


def _rows(x: Tensor) -> Tensor:
    """(B, ...) -> (B, p) without a copy where memory allows: the order of the columns does not matter to X X^T."""
    x = x if x.dtype == torch.float64 else x.float()
    order = sorted(range(1, x.ndim), key=x.stride, reverse=True)
    return x.permute(0, *order).flatten(1)


def u_centre(gram: Tensor) -> Tensor:
    """A Gram matrix without its diagonal, less what rows and columns have in common: HSIC_1 is the inner product of two."""
    n = len(gram)
    gram = gram - gram.diag().diag()
    rows = gram.sum(dim=1)
    gram = gram - (rows[:, None] + rows) / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
    return gram.fill_diagonal_(0)


def hsic1(x: Tensor, y: Tensor) -> Tensor:
    """Unbiased estimate of the Hilbert-Schmidt independence criterion of two sets of features, (n, ...) each."""
    x, y = _pair(x, y)
    _check_batch(len(x))
    K, L = u_centre(gram(x)[0]), u_centre(gram(y)[0])
    return (K * L).sum() / (len(x) * (len(x) - 3))


def linear_cka(x: Tensor, y: Tensor, *, unbiased: bool = False) -> Tensor:
    """CKA of two sets of features of the same images, (n, ...) each; NaN where one of them is constant.

    The biased form lies in 0..1 but is high for few images and wide features whatever they hold; the unbiased one needs
    four images and can come out slightly negative.
    """
    x, y = _pair(x, y)
    if len(x) < 2:
        raise UserError("CKA compares images with each other, but one image was given; give dozens of them.")
    if unbiased:
        return minibatch_cka([(x, y)])
    (K, noise_x), (L, noise_y) = gram(x), gram(y)
    if not (K.norm() > noise_x and L.norm() > noise_y):
        return K.new_tensor(math.nan)
    return (K * L).sum() / (K.norm() * L.norm())


def minibatch_cka(batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Unbiased CKA from pairs of features, batch by batch: a ratio of means of HSIC_1, every batch of one weight."""
    comparison = Comparison()
    for x, y in batches:
        x, y = _pair(x, y)
        comparison.begin_batch(len(x))
        comparison.add(0, "features", x)
        comparison.add(1, "features", y)
        comparison.end_batch()
    return comparison.result().matrix[0, 0]


def _pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    if x.ndim < 2 or y.ndim < 2 or len(x) != len(y):
        raise UserError(
            f"features of shape {tuple(x.shape)} and {tuple(y.shape)}: CKA needs (n, ...) of the same n images, in one order."
        )
    return tuple(z if z.is_floating_point() else z.float() for z in (x, y))


def _check_batch(n: int) -> None:
    if n < SMALLEST_BATCH:
        raise UserError(f"a batch of {n} images: unbiased CKA needs at least {SMALLEST_BATCH} in a batch, better 64.")


# ---------------------------------------------------------------------------------------------------------------------
# Two networks


@dataclass
class CkaMatrix:
    """CKA of every layer of one network with every layer of another, both in the order in which they run."""

    matrix: Tensor  # (rows, columns); NaN where undefined
    rows: list[str]
    columns: list[str]
    row_aliases: dict[str, str] = field(default_factory=dict)  # another name of a row's tensor -> the row
    column_aliases: dict[str, str] = field(default_factory=dict)
    undefined_rows: list[str] = field(default_factory=list)  # layers that are constant over the images, or not finite
    undefined_columns: list[str] = field(default_factory=list)
    skipped_rows: list[str] = field(default_factory=list)  # modules that never ran, or gave nothing per image
    skipped_columns: list[str] = field(default_factory=list)
    batches: int = 0
    images: int = 0

    def defined(self) -> "CkaMatrix":
        """The same without the layers that are constant, whose rows or columns are NaN."""
        rows, columns = (~self.matrix.isnan().all(dim=dim) for dim in (1, 0))
        return replace(
            self,
            matrix=self.matrix[rows][:, columns],
            rows=[name for name, keep in zip(self.rows, rows, strict=True) if keep],
            columns=[name for name, keep in zip(self.columns, columns, strict=True) if keep],
        )

    def value(self, row: str, column: str) -> float:
        """CKA of two layers by name; a tensor that has several names is found under each. "" is the whole model."""
        i, j = (
            self._index(name, names, aliases)
            for name, names, aliases in (
                (row, self.rows, self.row_aliases),
                (column, self.columns, self.column_aliases),
            )
        )
        return self.matrix[i, j].item()

    @staticmethod
    def _index(name: str, names: list[str], aliases: dict[str, str]) -> int:
        name = aliases.get(name, name)
        if name not in names:
            raise UserError(f"no layer '{name}' was compared. {did_you_mean(name, [*names, *aliases])}")
        return names.index(name)


class Side:
    """One network's layers: their U-centred Gram matrices in this batch and their names."""

    def __init__(self):
        self.names: dict[str, None] = {}  # an ordered set
        self.aliases: dict[str, str] = {}
        self.skipped: dict[str, None] = {}
        self.noise: dict[str, Tensor] = {}  # what rounding alone would give as HSIC_1 of a layer with itself
        self.grams: dict[str, Tensor] = {}
        self.seen: dict[tuple, str] = {}

    def add(self, name: str, x: Tensor, batch: int) -> None:
        if x.ndim == 0 or len(x) % batch or not x.is_floating_point():
            self.skipped[name] = None
            return
        key = _identity(x, batch)
        if key in self.seen:
            self.aliases[name] = self.seen[key]
            return
        self.seen[key] = name
        K, noise = gram(x if len(x) == batch else x.reshape(batch, -1))  # windows lie image after image
        scale = math.sqrt(batch * (batch - 3))
        self.grams[name] = u_centre(K).flatten() / scale
        self.noise[name] = self.noise.get(name, 0) + (noise / scale) ** 2
        self.names[name] = None
        self.aliases.pop(name, None)

    def note_silent(self, hooked: list[str]) -> None:
        """Report which of the watched modules never ran."""
        known = {*self.names, *self.aliases}
        self.skipped |= {name: None for name in hooked if name not in known}

    def stacked(self) -> Tensor:
        """Gram matrices of this batch, a row per layer."""
        if list(self.grams) != list(self.names):
            changed = set(self.names) ^ set(self.grams)
            raise UserError(
                f"layers {sorted(changed)[:5]} ran on some batches only; compare models that run the same layers on every batch."
            )
        rows = torch.stack(list(self.grams.values()))
        self.grams, self.seen = {}, {}
        return rows


def _identity(x: Tensor, batch: int) -> tuple:
    """Equal for two outputs that hold the same numbers of each image in the same memory, whatever their shape.

    A weak reference to the storage keeps its address from being used again within the batch, and nothing else of it. The number
    of in-place changes, `_version`, has no public name; autograd goes by it too.
    """
    dense = x.stride(0) * len(x) == x.numel() and x.numel() > 0
    layout = x.numel() if dense and _is_dense(x) else (x.shape, x.stride())
    return StorageWeakRef(x.untyped_storage()), x.storage_offset(), x._version, batch, layout


def _is_dense(x: Tensor) -> bool:
    """Whether the numbers of the tensor fill a stretch of memory without gaps and overlaps, in any order of axes."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


class Comparison:
    """Running means of HSIC_1 between the layers of two networks, or of one with itself. Needs no memory per image."""

    def __init__(self, *, same: bool = False):
        self.sides = (Side(),) if same else (Side(), Side())
        self.cross: Tensor | float = 0.0
        self.own: list[Any] = [0.0 for _ in self.sides]  # tensors after the first batch
        self.batch = self.batches = self.images = 0

    def begin_batch(self, images: int) -> bool:
        """Announce a batch; False if it is too short to say anything, and is then left out."""
        self.batch = images if images >= SMALLEST_BATCH else 0
        if not self.batch:
            warnings.warn(
                f"left out a batch of {images}: unbiased CKA needs {SMALLEST_BATCH} images in a batch.", stacklevel=2
            )
        return self.batch > 0

    def add(self, side: int, name: str, x: Tensor) -> None:
        """Take in what a layer of network 0 or 1 gave for the batch."""
        if self.batch:
            self.sides[side].add(name, x, self.batch)

    def end_batch(self) -> None:
        if not self.batch:
            return
        rows = [side.stacked() for side in self.sides]
        self.cross = self.cross + rows[0] @ rows[-1].T
        self.own = [total + row.square().sum(dim=1) for total, row in zip(self.own, rows, strict=True)]
        self.batches += 1
        self.images += self.batch

    def result(self) -> CkaMatrix:
        if not self.batches:
            raise UserError(
                f"no batch had the {SMALLEST_BATCH} images that unbiased CKA needs; give more images or larger batches."
            )
        norms, undefined = [], []  # of each side
        for side, hsic in zip(self.sides, self.own, strict=True):
            noise = torch.stack([torch.as_tensor(side.noise[name]) for name in side.names])
            constant = ~(hsic > noise)
            undefined.append([name for name, is_constant in zip(side.names, constant, strict=True) if is_constant])
            norms.append(torch.where(constant, math.nan, hsic.sqrt()))
        first, last = self.sides[0], self.sides[-1]
        return CkaMatrix(
            matrix=self.cross / torch.outer(norms[0], norms[-1]),
            rows=list(first.names),
            columns=list(last.names),
            row_aliases=first.aliases,
            column_aliases=last.aliases,
            undefined_rows=undefined[0],
            undefined_columns=undefined[-1],
            skipped_rows=list(first.skipped),
            skipped_columns=list(last.skipped),
            batches=self.batches,
            images=self.images,
        )


def cka_matrix(
    model_a: nn.Module,
    model_b: nn.Module,
    batches: Iterable,
    *,
    layers: str = "all",
    prepare_a: Callable[[Tensor], Tensor] | None = None,
    prepare_b: Callable[[Tensor], Tensor] | None = None,
) -> CkaMatrix:
    """Unbiased minibatch CKA of all layers of two networks, or of one with itself, in one pass over the images.

    `layers` is "all" (every module: norms and activations, containers and the model itself) or "blocks". Networks that want
    different images of the same pictures (another size, another normalisation) get them from `prepare_a` and `prepare_b`.
    """
    models = [model_a] if model_a is model_b else [model_a, model_b]
    prepares = [prepare_a, prepare_b][: len(models)]
    names = [layer_names(model, layers) for model in models]
    comparison = Comparison(same=len(models) == 1)
    with ExitStack() as stack:
        stack.enter_context(evaluating(*models))
        for side, model in enumerate(models):
            stack.enter_context(watch(model, names[side], partial(comparison.add, side)))
        for batch in batches:
            images = images_of(batch)
            if comparison.begin_batch(len(images)):
                for model, prepare in zip(models, prepares, strict=True):
                    run(model, images if prepare is None else prepare(images))
                comparison.end_batch()
    for compared, hooked in zip(comparison.sides, names, strict=True):
        compared.note_silent(hooked)
    return comparison.result()


def layer_names(model: nn.Module, layers: str) -> list[str]:
    """The modules to compare: "all", the model itself included, or "blocks"."""
    if layers not in ("all", "blocks"):
        raise UserError(f"layers={layers!r} is unknown; use 'all' or 'blocks'.")
    names = find_blocks(model) if layers == "blocks" else [name for name, _ in model.named_modules()]
    if not names:
        raise UserError(f"{type(model).__name__} has no sequence of blocks; use layers='all'.")
    return names


def run(model: nn.Module, images: Tensor) -> Tensor:
    """The model's output; images that it cannot take are the user's to change."""
    try:
        return first_tensor(model(images))
    except UserError:
        raise
    except (AssertionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{type(model).__name__} cannot take images of {tuple(images.shape[1:])}: {first_line(error)} "
            "Give each model its own with prepare_a and prepare_b."
        ) from error
