"""What can only be read from the beginning: buffered shuffling, and exactly the same rest when it resumes."""

import io
import os
import signal
import tarfile
import threading
from dataclasses import replace

import pytest
import torch
from image_trees import message, sizes
from PIL import Image
from safetensors.torch import load_file

import vitling
from vitling.callbacks import Callback
from vitling.data import open_dataset
from vitling.data.augment.augment import Augment
from vitling.data.pipeline.loader import Resident, Streamed, StreamedShards, TrainLoader, generator_for
from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.pipeline.sequential import buffered_order
from vitling.errors import UserError
from vitling.recipes import Optim, Recipe
from vitling.training.beginning import train
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

datasets = pytest.importorskip("datasets", reason="datasets is not installed")
PER_SHARD, SHARDS = 20, 5
FIT = dict(size=(8, 8), channels=3, fit="resize", max_value=255)
RECIPE = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    epochs=2,
    batch_size=8,
    shuffle_buffer=16,
    optim=Optim(warmup_epochs=0),
)


def png(value):
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (value, 255 - value, 0)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hub(tmp_path):
    """A dataset in five files, as the hub has it; the pixel value is the number of the image."""
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["round", "flat"]))
    folder = tmp_path / "hub/data"
    folder.mkdir(parents=True)
    for k in range(SHARDS):
        numbers = range(PER_SHARD * k, PER_SHARD * (k + 1))
        rows = {"image": [{"bytes": png(i), "path": None} for i in numbers], "label": [i % 2 for i in numbers]}
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(folder / f"train-{k:05}-of-{SHARDS:05}.parquet")
    return f"hf-stream:{tmp_path / 'hub'}"


def source(images, **reading):
    return load_split(
        images, "train", reading=Reading(**{"memory_gb": 0, "workers": 2, "cache": False, **reading}), **FIT
    )


def loader(of, recipe=RECIPE):
    augment = Augment(8, mean=(0.5,) * 3, std=(0.25,) * 3, crop="pad", crop_padding=1)
    return TrainLoader(of, augment, recipe=recipe, device="cpu")


# --- the order --------------------------------------------------------------------------------------------------------


def order_of(buffer, seed=0, shards=10, each=30):
    return buffered_order(torch.arange(shards).repeat_interleave(each), buffer, generator_for(seed)).tolist()


@pytest.mark.parametrize("buffer", [1, 7, 64, 300, 1000])
def test_every_image_comes_once(buffer):
    assert sorted(order_of(buffer)) == list(range(300))


def test_no_image_comes_before_it_can_have_been_read():
    order = order_of(buffer=40)
    shard_order = list(dict.fromkeys(i // 30 for i in sorted(order, key=lambda i: order.index(i) // 90)))
    assert sorted(shard_order) == list(range(10))
    # At any time the images that are out belong to no more shards than those and the buffer fill.
    for n in range(1, 301):
        assert len({i // 30 for i in order[:n]}) <= -(-(n + 40) // 30)


def test_a_larger_buffer_shuffles_further():
    def moved(buffer):
        order = torch.tensor(order_of(buffer, shards=1, each=300))
        return (order.argsort() - torch.arange(300)).abs().float().mean().item()

    assert moved(1) == 0
    assert 0 < moved(8) < moved(64) < moved(300)


def test_each_epoch_and_seed_has_its_own_order():
    assert order_of(50, seed=0) == order_of(50, seed=0)
    assert order_of(50, seed=0) != order_of(50, seed=1)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_stream_has_the_images_and_classes_of_what_it_streams(hub):
    dataset = open_dataset(hub)
    assert dataset.class_names == ["round", "flat"]
    assert sizes(dataset) == {"train": 100}
    train = dataset.splits["train"]
    assert [int(train.read(i)[0, 0, 0]) for i in (0, 1, 25, 99, 3)] == [0, 1, 25, 99, 3]
    assert train.labels.tolist() == [0, 1] * 50


def test_its_labels_are_read_once(hub, monkeypatch):
    from vitling.data.sources.streams import HubShard

    open_dataset(hub)
    monkeypatch.setattr(HubShard, "labels", None)
    assert sizes(open_dataset(hub)) == {"train": 100}


def test_corrupted_labels_are_read_again(hub, tmp_path):
    open_dataset(hub)
    [path] = (tmp_path / "cache/streams").iterdir()
    for damage in (b"", b"[[1", b"{}", b"[" * 100_000):
        path.write_bytes(damage)
        assert sizes(open_dataset(hub)) == {"train": 100}


def test_a_stream_gives_the_same_batches_as_memory_and_as_the_cache(hub):
    train = open_dataset(hub).splits["train"].subset([i for i in range(100) if i % 7])
    streamed, resident, cached = source(train), source(train, memory_gb=1), source(train, cache=True, workers=0)
    assert isinstance(streamed, StreamedShards)
    assert isinstance(resident, Resident)
    assert isinstance(cached, Streamed)
    for epoch in range(2):
        for [a], [b], [c] in zip(*(loader(of).epoch(epoch) for of in (streamed, resident, cached)), strict=True):
            assert a["index"].equal(b["index"])
            assert a["image"].equal(b["image"])
            assert a["image"].equal(c["image"])
            assert a["label"].equal(b["label"])


@pytest.mark.parametrize("start", [1, 5, 11])
def test_the_rest_of_an_epoch_is_the_same_from_any_step(hub, start):
    train = open_dataset(hub).splits["train"]
    whole = list(loader(source(train)).epoch(1))
    rest = list(loader(source(train)).epoch(1, start))
    assert len(rest) == len(whole) - start
    for [a], [b] in zip(whole[start:], rest, strict=True):
        assert a["image"].equal(b["image"])


def test_repeated_augmentation_shows_a_streamed_image_several_times(hub):
    train = open_dataset(hub).splits["train"]
    recipe = replace(RECIPE, augment=replace(RECIPE.augment, repeats=2))
    for [a], [b] in zip(
        loader(source(train), recipe).epoch(0), loader(source(train, memory_gb=1), recipe).epoch(0), strict=True
    ):
        assert a["image"].equal(b["image"])


def test_a_reader_that_nobody_wants_any_more_ends(hub):
    of = source(open_dataset(hub).splits["train"])
    next(loader(of).epoch(0))
    del of
    readers = [thread for thread in threading.enumerate() if thread.name == "shards"]
    for thread in readers:
        thread.join(timeout=20)
        assert not thread.is_alive()


def test_a_bad_image_of_a_stream_is_named(hub, tmp_path):
    dataset = open_dataset(hub)
    stream = dataset.splits["train"]
    part = stream.parts[2]
    part.images = lambda: iter([b"no image"] * PER_SHARD)
    with pytest.raises(UserError, match=r"cannot read image train\[4\d\]"):
        list(loader(source(stream)).epoch(0))


def test_a_stream_that_broke_off_is_one_line(hub):
    stream = open_dataset(hub).splits["train"]

    def broken():
        yield png(0)
        raise ConnectionResetError("connection reset by peer")

    stream.parts[1].images = broken
    with pytest.raises(UserError, match=r"shard 1 of train could not be read \(connection reset by peer\)"):
        list(loader(source(stream)).epoch(0))
    stream.parts[1].images = lambda: iter([png(0)] * 3)
    with pytest.raises(UserError, match="holds 3 images, 20 were there"):
        list(loader(source(stream)).epoch(0))


# --- training ---------------------------------------------------------------------------------------------------------


class StopAt(Callback):
    """Behaves like a user who presses Ctrl-C in a given step."""

    def __init__(self, step):
        self.at = step

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if epoch * steps + step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hub", "remote"])
def test_a_run_on_a_stream_that_was_interrupted_ends_as_one_that_was_not(hub, tmp_path, kind, request):
    recipe = replace(RECIPE, data=hub if kind == "hub" else request.getfixturevalue("remote"))
    settings = Settings(reading=Reading(memory_gb=0, workers=1, cache=False))
    train(recipe, tmp_path / "whole", settings=settings)
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "cut", settings=settings, callback=StopAt(15))  # in the second epoch
    train(recipe, tmp_path / "cut", settings=settings)
    whole, cut = (vitling.load_run(tmp_path / name) for name in ("whole", "cut"))
    assert [m["val_loss"] for m in whole.metrics()] == [m["val_loss"] for m in cut.metrics()]
    ours, theirs = (load_file(next((tmp_path / name).rglob("model.safetensors"))) for name in ("whole", "cut"))
    assert all(ours[key].equal(theirs[key]) for key in ours)


def test_a_buffer_is_refused_where_everything_is_shuffled(tmp_path):
    with pytest.raises(UserError, match="shuffle_buffer=16 is for streams"):
        train(replace(RECIPE, data="digits"), tmp_path / "run")


def test_a_stream_cannot_be_drawn_from_at_will(hub, tmp_path):
    with pytest.raises(UserError, match="use balance=loss"):
        train(replace(RECIPE, data=hub, balance="sampler"), tmp_path / "run")


# --- shards on a server -----------------------------------------------------------------------------------------------


def tar_of(path, numbers):
    with tarfile.open(path, "w") as archive:
        for i in numbers:
            for name, content in ((f"{i:05}.png", png(i)), (f"{i:05}.cls", str(i % 2).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def server(tmp_path):
    """Shards at an address: fsspec opens files by theirs as it does https:// and s3://, without further packages."""
    (tmp_path / "www").mkdir()
    return f"file://{tmp_path / 'www'}", tmp_path / "www"


@pytest.fixture
def remote(server):
    address, folder = server
    for k in range(3):
        tar_of(folder / f"train-{k:03}.tar", range(30 * k, 30 * (k + 1)))
    return address + "/train-{000..002}.tar"


def test_shards_on_a_server_are_a_stream(remote):
    dataset = open_dataset(remote)
    assert sizes(dataset) == {"train": 90}
    train = dataset.splits["train"]
    assert [int(train.read(i)[0, 0, 0]) for i in (0, 31, 89)] == [0, 31, 89]
    for [a], [b] in zip(loader(source(train)).epoch(0), loader(source(train, memory_gb=1)).epoch(0), strict=True):
        assert a["image"].equal(b["image"])


def test_what_a_server_does_not_have_is_one_line(server, remote):
    address, folder = server
    assert "could not be read" in message(address + "/nowhere-{0..3}.tar")
    whole = (folder / "train-001.tar").read_bytes()
    with tarfile.open(folder / "train-001.tar") as archive:
        end = archive.getmembers()[-1].offset_data + 512
    for length in (end // 2, end):
        (folder / "train-001.tar").write_bytes(whole[:length])
        said = message(remote)
        assert "train-001.tar" in said or "shard 1" in said
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        middle = archive.getmembers()[len(archive.getmembers()) // 2].offset
    (folder / "train-001.tar").write_bytes(
        whole[:middle] + b"?" * 512 + whole[middle + 512 :]
    )  # a header in the middle
    assert f"train-001.tar is damaged at byte {middle:,}" in message(remote)
    assert "download anything else" in message(address + "/photos.zip")


def test_a_path_outside_is_refused_on_a_server_too(server):
    address, folder = server
    with tarfile.open(folder / "evil.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../0.png"))
    assert "leads outside of it" in message(address + "/evil.tar")


def test_a_hub_name_that_is_not_given_or_must_not_be_fetched_is_one_line():
    assert "names no dataset" in message("hf-stream:")
    assert "download=False" in message("hf-stream:owner/name", download=False)
