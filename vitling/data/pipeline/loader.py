"""Batches: from a split that is resident in memory, or streamed through workers. Augmentation is the same either way.

Everything random in a step is drawn from a generator that depends on (seed, step) alone, for the whole global batch. So a
resumed run sees the same images, and each of several processes takes its rows of the same draw.
"""

import hashlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from vitling.data.augment.augment import Augment
from vitling.data.augment.ragged import Ragged
from vitling.data.pipeline.cache import Shelf
from vitling.data.pipeline.keeping import Keeping
from vitling.data.pipeline.sequential import Sequential, buffered_order
from vitling.data.pipeline.workers import read_batches
from vitling.data.sources.images import Images, load_image
from vitling.data.sources.streams import StreamImages
from vitling.errors import UserError
from vitling.recipes import Recipe

SHUFFLE_BUFFER = 8192  # images of a stream that wait, encoded, to be drawn from
Batch: TypeAlias = dict[str, Any]  # "image" (a tensor, or Ragged), "label", "index", and "target" where there are some


def step_seed(*parts: object) -> int:
    """A 63-bit seed that differs for every combination of parts."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_for(*parts: object) -> torch.Generator:
    return torch.Generator().manual_seed(step_seed(*parts))


class Resident:
    """A split decoded once, as uint8 (N, C, H, W)."""

    shards: Tensor | None = None  # of a stream: which shard each image is from, by which it is shuffled
    targets: Tensor | None = (
        None  # what is to be learnt where that is no class number; it goes along as batch["target"]
    )

    def __init__(self, images: Tensor, labels: Tensor):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: list[Tensor]) -> Iterator[Batch]:
        for index in plan:
            yield {"image": self.images[index], "label": self.labels[index], "index": index}

    def read_ahead(self, plan: list[Tensor]) -> None:
        """Everything is read."""


class ResidentPictures:
    """A training split decoded once, each picture as large as it is kept for crops of it."""

    shards: Tensor | None = None
    targets: Tensor | None = None

    def __init__(self, images: Ragged, labels: Tensor):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: list[Tensor]) -> Iterator[Batch]:
        for index in plan:
            yield {"image": self.images.select(index), "label": self.labels[index], "index": index}

    def read_ahead(self, plan: list[Tensor]) -> None:
        """Everything is read."""


class Streamed:
    """A split too large for memory: read and fitted by worker processes, batch by batch. They end with this object.

    Images are fitted to one size by `fit_args`, or each picture is as large as `keeping` keeps it. Those that lie on the `shelf` of a
    cache are not decoded again.
    """

    shards: Tensor | None = None
    targets: Tensor | None = None

    def __init__(
        self,
        images: Images,
        *,
        workers: int,
        keeping: Keeping | None = None,
        shelf: Shelf | None = None,
        **fit_args: Any,
    ):
        self.labels = torch.as_tensor(images.labels)
        self.plan: list[list[int]] = []
        self.begun: Iterator | None = None  # a pass by this plan, of which nothing has been taken yet
        self.loader = DataLoader(
            _FittedImages(images, keeping, shelf, fit_args),
            batch_sampler=self.plan,  # asked again for each pass, so one set of workers serves every epoch
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_collate,
            worker_init_fn=_leave_signals_to_training,
        )
        # Held from outside, so that the garbage collector never finds loader and queues in one heap of garbage: it would
        # close the queues first, and the loader would wait 5 s for each worker, which is never told to end.
        weakref.finalize(self, _end_workers, self.loader)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: list[Tensor]) -> Iterator[Batch]:
        if self.begun is None or self.plan != [index.tolist() for index in plan]:
            self.read_ahead(plan)
        assert self.begun is not None
        begun, self.begun = self.begun, None
        yield from map(_unpacked, begun)

    def read_ahead(self, plan: list[Tensor]) -> None:
        """Begin a pass: its first batches are read while the caller does something else."""
        self.plan[:] = [index.tolist() for index in plan]
        self.begun = read_batches(self.loader)


class StreamedShards:
    """A split that can only be read shard by shard, from the beginning of each: see `sequential`."""

    def __init__(self, images: StreamImages, *, workers: int, keeping: Keeping | None = None, **fit_args: Any):
        self.stream = Sequential(images, workers=workers, keeping=keeping, **fit_args)
        self.labels, self.shards = self.stream.labels, self.stream.shards
        self.targets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: list[Tensor]) -> Iterator[Batch]:
        for indices, images in self.stream.batches(plan):
            samples: list = [
                {"image": torch.tensor(image), "label": int(self.labels[i]), "index": i}
                for i, image in zip(indices, images, strict=True)
            ]
            yield _unpacked(_collate(samples))

    def read_ahead(self, plan: list[Tensor]) -> None:
        self.stream.read_ahead(plan)


Fitted: TypeAlias = Resident | Streamed | StreamedShards  # images of one size
Source: TypeAlias = Fitted | ResidentPictures


class _FittedImages(torch.utils.data.Dataset):
    def __init__(self, images: Images, keeping: Keeping | None, shelf: Shelf | None, fit_args: dict):
        self.images, self.keeping, self.shelf, self.fit_args = images, keeping, shelf, fit_args

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> dict | UserError:
        try:
            pixels = self.shelf.read(i) if self.shelf else None
            if pixels is None and self.keeping:
                pixels = self.keeping.load(self.images, i)
            elif pixels is None:
                pixels = load_image(self.images, i, **self.fit_args)
        except UserError as error:
            return error  # raised in a worker, it would arrive as text with a traceback in it
        return {"image": torch.tensor(pixels), "label": int(self.images.labels[i]), "index": i}


def _leave_signals_to_training(worker: int) -> None:
    """A worker in a group of its own does not get Ctrl-C: it reads on until training has saved its state."""
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()


def _end_workers(loader: DataLoader) -> None:
    loader._iterator = None  # they are told, and waited for, where nobody else holds it


def _collate(samples: list) -> Batch | UserError:
    """A batch, or the first image's error. Images of different sizes are packed: a worker would send each by a file of its own."""
    bad = [sample for sample in samples if isinstance(sample, UserError)]
    if bad:
        return bad[0]
    images = [sample.pop("image") for sample in samples]
    one_size = len({image.shape for image in images}) == 1
    return {"image": torch.stack(images) if one_size else Ragged(images).pack(), **default_collate(samples)}


def _unpacked(batch: Batch | UserError) -> Batch:
    if isinstance(batch, UserError):
        raise batch
    if isinstance(batch["image"], tuple):
        batch["image"] = Ragged.unpack(*batch["image"])
    return batch


def epoch_order(
    labels: Tensor,
    *,
    generator: torch.Generator,
    balance: str = "none",
    repeats: int = 1,
    shards: Tensor | None = None,
    buffer: int = SHUFFLE_BUFFER,
) -> Tensor:
    """The order in which an epoch shows the training images. Images in `shards` of a stream are shuffled with a buffer.

    balance="sampler": as many draws as images, each class equally likely. repeats > 1: repeated augmentation; each image of
    a shorter permutation comes `repeats` times in a row (DHVT's release: whole multiples of 256, see `whole_multiple`).
    """
    n = len(labels)
    if balance == "sampler":
        counts = labels.bincount()
        order = torch.multinomial(1.0 / counts[labels].double(), n, replacement=True, generator=generator)
    elif shards is not None:
        order = buffered_order(shards, buffer, generator)
    else:
        order = torch.randperm(n, generator=generator)
    if repeats > 1:
        order = order.repeat_interleave(repeats)[: whole_multiple(n)]
    return order


def whole_multiple(n: int, of: int = 256) -> int:
    """Images that an epoch of repeated augmentation shows: n cut to a multiple of 256, as released; n where it is less."""
    return n // of * of or n


def images_in_epoch(recipe: Recipe, images: int) -> int:
    return whole_multiple(images) if recipe.augment.repeats > 1 else images


def steps_in_epoch(recipe: Recipe, images: int) -> int:
    """Whole batches of an epoch over so many training images."""
    return images_in_epoch(recipe, images) // recipe.batch_size


class TrainLoader:
    """Augmented training batches, as a list of micro-batches per optimiser step."""

    def __init__(
        self,
        source: Source,
        augment: Augment,
        *,
        recipe: Recipe,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        with_geometry: bool = False,
        weights: Tensor | None = None,
        views: Sequence[Augment] = (),
    ):
        """`weights`, one per image of the source, go along with its label as batch["weight"].

        Each of `views` augments the same images once more, as batch["view_1"] and so on.
        """
        self.views = tuple(views)
        self.source, self.augment, self.recipe, self.device = source, augment, recipe, device
        self.rank, self.world = rank, world
        self.with_geometry, self.weights = with_geometry, weights
        self.steps_per_epoch = steps_in_epoch(recipe, len(source))
        if self.steps_per_epoch == 0:
            shown = images_in_epoch(recipe, len(source))
            raise UserError(
                f"batch_size={recipe.batch_size} is larger than the {shown} training images; lower batch_size to {shown} or less."
            )
        if recipe.batch_size % (world * recipe.accumulate):
            raise UserError(
                f"batch_size={recipe.batch_size} does not divide into {world} processes x accumulate={recipe.accumulate}; "
                f"try batch_size={max(1, recipe.batch_size // (world * recipe.accumulate)) * world * recipe.accumulate}."
            )

    def epoch(self, epoch: int, start: int = 0, stop: int | None = None) -> Iterator[list[dict[str, Tensor]]]:
        """The steps of an epoch from number `start` on, all or up to number `stop`. Who takes them all will want the next epoch's."""
        recipe = self.recipe
        plan = self._plan(epoch, start)[: None if stop is None else stop - start]
        for offset, batch in enumerate(self.source.batches(plan)):
            step = epoch * self.steps_per_epoch + start + offset
            draws = self._draw(recipe.batch_size, "augment", step)
            mine = [{name: value[self.rank :: self.world] for name, value in drawn.items()} for drawn in draws]
            if self.weights is not None:
                batch["weight"] = self.weights[batch["index"]]
            if self.source.targets is not None:
                batch["target"] = self.source.targets[batch["index"]]
            yield list(self._augmented(batch, mine, recipe.accumulate))
        if stop is None:
            self.source.read_ahead(self._plan(epoch + 1))

    def held_out(self, source: Fitted) -> Iterator[dict[str, Tensor]]:
        """Every image of another split once, in order and augmented as in training, but the same way every time."""
        plan = list(enumerate(torch.arange(len(source)).split(self.recipe.batch_size)))[self.rank :: self.world]
        for (number, index), batch in zip(plan, source.batches([index for _, index in plan]), strict=True):
            yield next(self._augmented(batch, self._draw(len(index), "held out", number), 1))

    def _draw(self, images: int, *where: object) -> list[dict[str, Tensor]]:
        """The draws of every view; those of the first do not depend on whether there are others."""
        return [
            augment.draw(images, generator_for(self.recipe.seed, *where, *([f"view {view}"] if view else [])))
            for view, augment in enumerate((self.augment, *self.views))
        ]

    def _plan(self, epoch: int, start: int = 0) -> list[Tensor]:
        """The images of each step."""
        recipe = self.recipe
        order = epoch_order(
            self.source.labels,
            generator=generator_for(recipe.seed, "order", epoch),
            balance=recipe.balance,
            repeats=recipe.augment.repeats,
            shards=self.source.shards,
            buffer=recipe.shuffle_buffer or SHUFFLE_BUFFER,
        )
        size = recipe.batch_size
        return [order[i * size : (i + 1) * size][self.rank :: self.world] for i in range(start, self.steps_per_epoch)]

    def _augmented(self, batch: Batch, draws: list[dict[str, Tensor]], parts: int) -> Iterator[dict[str, Tensor]]:
        for part in range(parts):
            micro = {name: value.tensor_split(parts)[part].to(self.device) for name, value in batch.items()}
            own, *others = ({name: value.tensor_split(parts)[part] for name, value in drawn.items()} for drawn in draws)
            pixels = micro["image"]
            if self.with_geometry:
                micro["image"], micro["geometry"] = self.augment.apply(micro["image"], own, return_geometry=True)
            else:
                micro["image"] = self.augment.apply(micro["image"], own)
            for number, (augment, drawn) in enumerate(zip(self.views, others, strict=True), start=1):
                micro[f"view_{number}"] = augment.apply(pixels, drawn)
            yield micro


def eval_batches(
    source: Fitted,
    normalize: Callable[[Tensor], Tensor],
    *,
    batch_size: int,
    device: torch.device,
    rank: int = 0,
    world: int = 1,
    again: bool = False,
) -> Iterator[dict[str, Tensor]]:
    """Every image once, in order, without augmentation; process `rank` of `world` gets every world-th batch.

    With `again`, the first ones are then read for the next time.
    """
    plan = list(torch.arange(len(source)).split(batch_size))[rank::world]
    for batch in source.batches(plan):
        if source.targets is not None:
            batch["target"] = source.targets[batch["index"]]
        moved = {name: value.to(device) for name, value in batch.items()}
        yield {**moved, "image": normalize(moved["image"])}
    if again:
        source.read_ahead(plan)
