"""Decoded images that are kept on disk: the same pixels, never stale, bounded, safe against other processes and against damage."""

import multiprocessing
import os
import pickle
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from image_trees import save, tree
from PIL import Image

from vitling.data import decode, open_dataset
from vitling.data.pipeline import cache as module
from vitling.data.pipeline.cache import PixelCache, open_cache
from vitling.data.pipeline.keeping import Keeping, keep_images
from vitling.data.pipeline.loader import Resident, Streamed
from vitling.data.pipeline.reading import Reading, load_pictures, load_split
from vitling.data.sources import images as sources
from vitling.errors import UserError

COUNT = 40  # of each class
HOW = dict(size=(5, 6), channels=3)
FIT = dict(size=(5, 6), channels=3, fit="resize", max_value=255)


@pytest.fixture
def folder(tmp_path):
    return tree(tmp_path / "photos", "cat", "dog", count=COUNT)


@pytest.fixture
def cache(tmp_path):
    return PixelCache(tmp_path / "cache", 2**24)


@pytest.fixture
def decoded(monkeypatch):
    """The names of the images that were decoded."""
    names = []
    real = sources.read_image

    def counting(source, *, name=None, **how):
        names.append(name)
        return real(source, name=name, **how)

    monkeypatch.setattr(sources, "read_image", counting)
    return names


def training(folder):
    return open_dataset(folder).splits["train"]


def segments(cache):
    return sorted(cache.folder.glob("*/*.pixels"))


def test_a_second_start_decodes_nothing(folder, cache, decoded):
    first = decode(training(folder), cache=cache, **HOW)
    assert len(decoded) == 2 * COUNT
    second = decode(training(folder), cache=cache, **HOW)
    assert len(decoded) == 2 * COUNT
    assert second.equal(first)
    assert second.equal(decode(training(folder), **HOW))


def test_other_splits_of_the_same_images_share_them(folder, cache, decoded):
    decode(training(folder), cache=cache, **HOW)
    decoded.clear()
    part = training(folder).subset([70, 3, 41])
    assert decode(part, cache=cache, **HOW).equal(decode(part, **HOW))
    assert len(decoded) == 3  # those of the comparison


def test_another_size_or_fit_is_another_image(folder, cache, decoded):
    decode(training(folder), cache=cache, **HOW)
    for how in (
        dict(HOW, size=(4, 4)),
        dict(HOW, fit="pad"),
        dict(HOW, channels=1),
        dict(HOW, interpolation="bilinear"),
    ):
        decoded.clear()
        decode(training(folder), cache=cache, **how)
        assert len(decoded) == 2 * COUNT, how


def test_a_file_that_changed_in_place_is_decoded_again(folder, cache):
    decode(training(folder), cache=cache, **HOW)
    path = folder / "cat/7.png"
    before = path.stat()
    pixels = Image.open(path)
    changed = Image.new("RGB", pixels.size, (8,) * 3)
    changed.save(path)
    assert path.stat().st_size == before.st_size  # the fingerprint of the data cannot tell
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert decode(training(folder), cache=cache, **HOW).equal(decode(training(folder), **HOW))


def test_few_images_are_not_worth_a_file(tmp_path, cache):
    decode(training(tree(tmp_path / "few", "cat", "dog", count=3)), cache=cache, **HOW)
    assert not segments(cache)


def test_arrays_are_not_kept(cache):
    arrays = sources.ArrayImages(np.zeros((100, 9, 9, 3), np.uint8), [0] * 100)
    decode(arrays, cache=cache, **HOW)
    assert not segments(cache)


def test_pictures_that_crops_are_cut_from_are_kept_in_their_own_sizes(tmp_path, cache, decoded):
    for i in range(COUNT):
        for label in ("cat", "dog"):
            save(tmp_path / "photos" / label / f"{i}.png", i, size=(6 + i % 5, 9))
    keeping = Keeping(size=(4, 4), fit="crop", channels=3, spare=1.5)
    images = training(tmp_path / "photos")
    first = keep_images(images, keeping, cache=cache)
    decoded.clear()
    again = keep_images(images, keeping, cache=cache)
    assert not decoded
    assert all(a.equal(b) for a, b in zip(first.images, again.images, strict=True))
    plain = keep_images(images, keeping)
    assert all(a.equal(b) for a, b in zip(plain.images, again.images, strict=True))


def test_streamed_images_are_decoded_once_and_the_batches_are_the_same(folder, cache, monkeypatch):
    monkeypatch.setenv("VITLING_CACHE", str(cache.folder))
    reading = Reading(memory_gb=0, workers=0)
    plan = list(torch.randperm(2 * COUNT).split(16))
    streams = [
        load_split(training(folder), "train", reading=r, **FIT) for r in (reading, replace(reading, cache=False))
    ]
    assert all(isinstance(stream, Streamed) for stream in streams)
    assert segments(cache)
    for one, other in zip(*(stream.batches(plan) for stream in streams), strict=True):
        assert one["image"].equal(other["image"])
        assert one["label"].equal(other["label"])


def test_streamed_pictures_are_decoded_once_too(folder, cache, monkeypatch, decoded):
    monkeypatch.setenv("VITLING_CACHE", str(cache.folder))
    keeping = Keeping(size=(4, 4), fit="crop", channels=3, spare=1.5)
    stream = load_pictures(training(folder), "train", keeping, reading=Reading(memory_gb=0, workers=0))
    decoded.clear()
    assert len(list(stream.batches([torch.arange(8)]))) == 1
    assert not decoded


def test_a_shelf_can_be_sent_to_another_process(folder, cache):
    images = training(folder)
    pixels = decode(images, cache=cache, **HOW)
    shelf = cache.shelf(images, fit="resize", max_value=255, test_crop=None, interpolation="bicubic", **HOW)
    assert (pickle.loads(pickle.dumps(shelf)).read(5) == pixels[5].numpy()).all()


# --- damage -----------------------------------------------------------------------------------------------------------


def test_every_byte_may_be_corrupted(folder, cache):
    images = training(folder)
    pixels = decode(images, cache=cache, **HOW)
    whole = segments(cache)[0].read_bytes()
    for place in [0, 3, 20, 500, 5000, len(whole) - 3000, len(whole) - 400, len(whole) - 20, len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        for path in segments(cache):
            path.unlink()
        next(iter(cache.folder.iterdir())).joinpath("a.pixels").write_bytes(damaged)
        assert decode(images, cache=cache, **HOW).equal(pixels), place


@pytest.mark.parametrize("left", [0, 10, 100, 5000, -1])
def test_a_segment_that_was_cut_short_is_removed(folder, cache, left):
    images = training(folder)
    pixels = decode(images, cache=cache, **HOW)
    path = segments(cache)[0]
    path.write_bytes(path.read_bytes()[:left])
    assert decode(images, cache=cache, **HOW).equal(pixels)
    assert not path.exists()
    assert len(segments(cache)) == 1


def test_a_pickle_in_the_place_of_a_segment_is_not_loaded(folder, cache, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trapped"),)

    images = training(folder)
    decode(images, cache=cache, **HOW)
    segments(cache)[0].write_bytes(pickle.dumps(Trap()) * 50)
    decode(images, cache=cache, **HOW)
    assert not (tmp_path / "trapped").exists()


def test_a_cache_that_cannot_be_written_is_said_and_does_not_stop_reading(folder, tmp_path):
    from vitling.callbacks import Callback

    class Noting(Callback):
        notes: list[str] = []  # noqa: RUF012 (one test)

        def log(self, message):
            self.notes.append(message)

    (tmp_path / "file").write_text("in the way")
    pixels = decode(training(folder), cache=PixelCache(tmp_path / "file/cache", 2**24), callback=Noting(), **HOW)
    assert pixels.equal(decode(training(folder), **HOW))
    assert len(Noting.notes) == 1
    assert "not kept for the next start" in Noting.notes[0]


def test_what_was_decoded_before_a_bad_image_is_kept(folder, cache, decoded):
    images = training(folder)
    (folder / "dog/39.png").write_bytes(b"no image, but some bytes of text")
    with pytest.raises(UserError, match=r"39\.png"):
        decode(images, cache=cache, threads=1, **HOW)
    assert segments(cache)


# --- size -------------------------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_makes_room(folder, tmp_path, monkeypatch):
    images, cache = training(folder), PixelCache(tmp_path / "cache", 26_000)  # one set takes 80 x 90 bytes and a table
    monkeypatch.setattr(module, "SPARE_BYTES", 0)
    sizes = [(5, 6), (6, 5), (3, 10)]
    for k, size in enumerate(sizes[:2]):
        decode(images, size=size, channels=3, cache=cache)
        for path in segments(cache):
            if path.stat().st_mtime > time.time() - 1000:
                os.utime(path, (k + 1, k + 1))
    old, newer = sorted(segments(cache), key=lambda path: path.stat().st_mtime)
    decode(images, size=sizes[0], channels=3, cache=cache)  # the older one is used again
    decode(images, size=sizes[2], channels=3, cache=cache)
    assert old.exists()
    assert not newer.exists()
    assert sum(path.stat().st_size for path in segments(cache)) <= cache.limit


def test_data_that_is_larger_than_the_cache_is_not_kept(folder, tmp_path):
    cache = PixelCache(tmp_path / "cache", 1000)
    decode(training(folder), cache=cache, **HOW)
    assert not segments(cache)


def test_many_segments_are_written_where_one_would_be_large(folder, cache, monkeypatch):
    monkeypatch.setattr(module, "SEGMENT_BYTES", 2000)
    pixels = decode(training(folder), cache=cache, **HOW)
    assert len(segments(cache)) > 2
    assert decode(training(folder), cache=cache, **HOW).equal(pixels)


def test_what_a_killed_process_left_is_removed_after_a_day(folder, cache):
    shelf = cache.folder / "0"
    shelf.mkdir(parents=True)
    left, fresh = shelf / ".a.vitling-00000000.pixels", shelf / ".b.vitling-00000000.pixels"
    for path in (left, fresh):
        path.write_bytes(b"part")
    os.utime(left, (1, 1))
    decode(training(folder), cache=cache, **HOW)
    assert not left.exists()
    assert fresh.exists()


# --- two processes ----------------------------------------------------------------------------------------------------


def _decode_and_compare(folder, place, results):
    images = training(folder)
    cache = PixelCache(place, 2**24)
    results.put(all(decode(images, cache=cache, **HOW).equal(decode(images, **HOW)) for _ in range(5)))


@pytest.mark.slow
def test_processes_that_write_at_once_do_not_disturb_each_other(folder, cache):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_decode_and_compare, args=(folder, cache.folder, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=300) for _ in processes] == [True, True]
    for process in processes:
        process.join()


# --- where it is ------------------------------------------------------------------------------------------------------


def test_the_environment_says_where_and_how_large(monkeypatch, tmp_path):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path / "here"))
    monkeypatch.setenv("VITLING_CACHE_GB", "2")
    found = open_cache()
    assert (found.folder, found.limit) == (tmp_path / "here", 2**31)
    assert open_cache(False) is None
    monkeypatch.setenv("VITLING_CACHE_GB", "0")
    assert open_cache() is None
    for wrong in ("much", "-1", "nan"):
        monkeypatch.setenv("VITLING_CACHE_GB", wrong)
        with pytest.raises(UserError, match=f"VITLING_CACHE_GB={wrong} is not a size"):
            open_cache()


def test_reading_without_a_cache_writes_none(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path / "here"))
    load = dict(name="train", **FIT)
    assert isinstance(load_split(training(folder), reading=Reading(cache=False), **load), Resident)
    assert not (tmp_path / "here").exists()
    load_split(training(folder), reading=Reading(), **load)
    assert (tmp_path / "here").exists()
