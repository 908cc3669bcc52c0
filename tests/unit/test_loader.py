import gc
import multiprocessing
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image
from rule import files, golden

from vitling.data import ArrayImages, BadImage, FileImages
from vitling.data.augment.augment import Augment
from vitling.data.pipeline.loader import Resident, Streamed, TrainLoader, epoch_order, eval_batches
from vitling.errors import UserError
from vitling.recipes import Augment as AugmentSpec
from vitling.recipes import Recipe, replace

RECIPE = Recipe(batch_size=8, augment=AugmentSpec(randaugment="rand-m9-mstd0.5-inc1"))
AUGMENT = Augment(
    8, mean=(0.5,), std=(0.25,), crop="pad", crop_padding=2, erase=0.5, randaugment="rand-m9-mstd0.5-inc1"
)


def images_and_labels(n=40, classes=4):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 8, 8, 1), dtype=np.uint8), np.arange(n) % classes


def resident(n=40):
    images, labels = images_and_labels(n)
    return Resident(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels))


def streamed(workers, n=40):
    images, labels = images_and_labels(n)
    return Streamed(ArrayImages(images, labels), workers=workers, size=(8, 8), fit="resize", channels=1, max_value=255)


def loader(source=None, recipe=RECIPE, **where):
    return TrainLoader(source or resident(), AUGMENT, recipe=recipe, device="cpu", **where)


def test_streamed_images_are_augmented_like_resident_ones():
    for [a], [b] in zip(loader().epoch(0), loader(streamed(workers=0)).epoch(0), strict=True):
        assert torch.equal(a["image"], b["image"])
        assert torch.equal(a["label"], b["label"])


@pytest.mark.slow  # starts reading processes
def test_workers_give_the_same_batches_as_none():
    alone, helped = loader(streamed(workers=0)), loader(streamed(workers=2))
    for epoch in (0, 1):
        for [a], [b] in zip(alone.epoch(epoch), helped.epoch(epoch), strict=True):
            assert all(torch.equal(a[name], b[name]) for name in ("image", "label", "index"))


@pytest.mark.slow  # starts reading processes
@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_read_ahead_is_taken_only_where_it_is_what_comes(workers):
    ahead, fresh = loader(streamed(workers)), loader()
    for epoch, start, taken in [(0, 0, 5), (1, 0, 5), (5, 0, 5), (6, 2, 3), (7, 0, 2), (7, 0, 5), (8, 0, 5)]:
        batches = zip(ahead.epoch(epoch, start), fresh.epoch(epoch, start), strict=True)
        for [a], [b] in batches if taken == 5 - start else islice(batches, taken):
            assert all(torch.equal(a[name], b[name]) for name in ("image", "label", "index")), (epoch, start)


@pytest.mark.slow  # starts reading processes
@pytest.mark.parametrize("passes", ["whole", "abandoned"])
@pytest.mark.parametrize("owner", ["a name", "a cycle"])
def test_reading_processes_end_when_told_with_the_split_they_read(owner, passes, monkeypatch):
    killed = []

    def terminate(process):  # what the loader does to a process that has not ended within five seconds
        killed.append(process)
        process.kill()

    monkeypatch.setattr(multiprocessing.Process, "terminate", terminate)
    split = streamed(workers=2)
    batches = split.batches(list(torch.arange(40).split(8)))
    next(batches)
    if passes == "whole":
        list(batches)
    readers = multiprocessing.active_children()
    assert len(readers) == 2
    if owner == "a cycle":  # as a run in progress is: only the garbage collector ends it
        split.itself = split
    del batches, split
    gc.collect()
    assert not killed
    assert [reader.exitcode for reader in readers] == [0, 0]


@pytest.mark.slow  # starts reading processes
@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_met_while_streaming_is_one_clear_line(tmp_path, workers):
    for i in range(8):
        Image.new("L", (8, 8), i).save(tmp_path / f"{i}.png")
    (tmp_path / "5.png").write_bytes(b"no image")
    images = FileImages([f"{i}.png" for i in range(8)], [0, 1] * 4, root=tmp_path)
    split = Streamed(images, workers=workers, size=(8, 8), fit="resize", channels=1, max_value=255)
    with pytest.raises(BadImage) as caught:
        list(eval_batches(split, torch.Tensor.float, batch_size=2, device="cpu"))
    assert str(caught.value).startswith(f"cannot read image {tmp_path / '5.png'}: Pillow does not recognise it")
    assert "\n" not in str(caught.value)


def test_an_epoch_entered_in_the_middle_goes_on_as_it_would_have():
    whole = [batch["image"] for [batch] in loader().epoch(3)]
    rest = [batch["image"] for [batch] in loader().epoch(3, start=2)]
    assert len(whole) == 5
    assert all(torch.equal(a, b) for a, b in zip(whole[2:], rest, strict=True))


def test_two_processes_share_the_batch_of_one():
    one = next(iter(loader().epoch(0)))[0]
    two = [next(iter(loader(rank=rank, world=2).epoch(0)))[0] for rank in (0, 1)]
    joined = torch.empty_like(one["image"])
    joined[0::2], joined[1::2] = two[0]["image"], two[1]["image"]
    assert torch.equal(joined, one["image"])


def test_micro_batches_are_the_batch_in_parts():
    one = next(iter(loader().epoch(0)))[0]
    parts = next(iter(loader(recipe=replace(RECIPE, accumulate=4)).epoch(0)))
    assert len(parts) == 4
    assert torch.equal(torch.cat([part["image"] for part in parts]), one["image"])


def test_every_image_comes_once_per_epoch_and_epochs_differ():
    seen = [torch.cat([batch["index"] for [batch] in loader().epoch(e)]) for e in (0, 1)]
    assert sorted(seen[0].tolist()) == list(range(40))
    assert not torch.equal(*seen)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(UserError, match="batch_size=64 is larger than the 40 training images"):
        loader(recipe=replace(RECIPE, batch_size=64))


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(UserError, match="does not divide into 2 processes x accumulate=3"):
        loader(recipe=replace(RECIPE, accumulate=3), world=2)


def test_the_sampler_shows_rare_classes_as_often_as_common_ones():
    labels = torch.tensor([0] * 900 + [1] * 100)
    order = epoch_order(labels, generator=torch.Generator().manual_seed(0), balance="sampler")
    assert len(order) == 1000
    assert 440 < labels[order].sum() < 560


@pytest.mark.parametrize(
    "case",
    [case for name in files("dhvt__", "repeated_augmentation") for case in golden(name)["repeated_augmentation"]],
)
def test_repeated_augmentation_shows_what_the_release_shows(case):
    labels = torch.zeros(case["dataset_len"], dtype=torch.long)
    order = epoch_order(labels, generator=torch.Generator().manual_seed(case["epoch"]), repeats=3)
    for rank in case["ranks"]:
        mine = order[rank["rank"] :: case["world"]]
        assert mine[: len(rank["first24"])].tolist() == rank["first24"]
        assert (len(mine), len(mine.unique()), mine.sum()) == (rank["length"], rank["distinct"], rank["sum"])


def test_evaluation_sees_every_image_once_in_order_over_any_number_of_processes():
    source = resident(37)
    for world in (1, 2, 3):
        parts = [
            eval_batches(source, torch.Tensor.float, batch_size=8, device="cpu", rank=r, world=world)
            for r in range(world)
        ]
        index = torch.cat([batch["index"] for part in parts for batch in part])
        assert sorted(index.tolist()) == list(range(37))
