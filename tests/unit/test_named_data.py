"""Datasets by name: where their files may lie, and what is said where they do not."""

import gzip
import os
import pickle
import struct

import numpy as np
import pytest
from image_trees import message, save, sizes, tree

from vitling.data import decode, open_dataset
from vitling.data.sources.named import DEBIAN_FOLDERS, NAMES

# --- names ------------------------------------------------------------------------------------------------------------


def test_digits_are_embedded_with_a_fixed_test_split():
    dataset, again = open_dataset("digits"), open_dataset("Digits")
    assert sizes(dataset) == {"train": 1438, "test": 359}
    assert dataset.class_names == [str(i) for i in range(10)]
    assert (dataset.channels, dataset.max_value) == (1, 255)
    assert dataset.fingerprint == again.fingerprint
    assert np.bincount(dataset.splits["test"].labels).min() >= 35
    assert not set(dataset.splits["train"].names) & set(dataset.splits["test"].names)
    pixels = decode(dataset.splits["train"], size=(8, 8), channels=1)
    assert pixels.shape == (1438, 1, 8, 8)
    assert (pixels.min(), pixels.max()) == (0, 255)


def idx_tree(folder, *, zipped=True):
    """The four files of MNIST's format, 20 and 10 images of 4 x 4."""
    folder.mkdir(parents=True)
    for word, n in (("train", 20), ("t10k", 10)):
        images = struct.pack(">4B3I", 0, 0, 8, 3, n, 4, 4) + bytes(i for i in range(n) for _ in range(16))
        labels = struct.pack(">4BI", 0, 0, 8, 1, n) + bytes(i % 10 for i in range(n))
        for name, data in ((f"{word}-images-idx3-ubyte", images), (f"{word}-labels-idx1-ubyte", labels)):
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / name).write_bytes(data)
    return folder


def test_fashion_mnist_is_read_where_debians_files_lie(tmp_path):
    dataset = open_dataset("fashion-mnist", root=idx_tree(tmp_path / "debian"))
    assert sizes(dataset) == {"train": 20, "test": 10}
    assert dataset.class_names[9] == "Ankle boot"
    assert dataset.splits["train"].read(13).tolist() == [[[13]] * 4] * 4
    assert dataset.splits["train"].labels[13] == 3
    assert dataset.channels == 1


def test_mnist_is_read_from_torchvisions_folder_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITLING_DATA", str(tmp_path))
    idx_tree(tmp_path / "MNIST" / "raw", zipped=False)
    dataset = open_dataset("MNIST", download=False)
    assert sizes(dataset) == {"train": 20, "test": 10}
    assert str(tmp_path) in dataset.notes[0]


def test_a_torn_idx_file_is_named(tmp_path):
    folder = idx_tree(tmp_path / "x", zipped=False)
    with open(folder / "t10k-images-idx3-ubyte", "r+b") as file:
        file.truncate(100)
    assert "t10k-images-idx3-ubyte is not a complete idx file" in message("mnist", root=folder)


@pytest.mark.skipif(
    not os.path.isdir(DEBIAN_FOLDERS["fashion-mnist"]), reason="Debian's dataset-fashion-mnist is not installed"
)
def test_debians_package_is_found_without_being_named(tmp_path, monkeypatch):
    monkeypatch.setenv("VITLING_DATA", str(tmp_path))
    dataset = open_dataset("fashion-mnist", download=False)
    assert sizes(dataset) == {"train": 60000, "test": 10000}


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn"])
def test_a_download_that_fails_says_what_to_do(tmp_path, monkeypatch, name):
    monkeypatch.setenv("VITLING_DATA", str(tmp_path))
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nobody listens there
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    for kwargs in ({}, {"download": False}):
        text = message(name, **kwargs)
        assert f"{name} is not in {tmp_path} and was not downloaded" in text
        assert "connect to the network once" in text
        assert "root=FOLDER" in text


def test_every_name_is_a_dataset_of_torchvision():
    import torchvision.datasets

    from vitling.data.sources.named import TORCHVISION

    assert {"fashion-mnist", "mnist", "cifar10", "cifar100", "svhn"} <= set(TORCHVISION)
    assert all(hasattr(torchvision.datasets, row.kind) and "train" in row.splits for row in TORCHVISION.values())
    assert set(NAMES) == {"digits", *TORCHVISION}


# Small copies of torchvision's layouts. Its checksums are switched off, since the content is ours.


def lay_cifar100(root, monkeypatch):
    import torchvision.datasets.cifar as module

    monkeypatch.setattr(module, "check_integrity", lambda *_: True)
    folder = root / "cifar-100-python"
    folder.mkdir()
    rows = np.repeat(np.arange(4, dtype=np.uint8)[:, None], 3072, axis=1)
    rows[:, 1024:] = 9  # red counts, green and blue are 9
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps({"data": rows, "fine_labels": [0, 1, 0, 1]}))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple", "bear"]}))
    return ["apple", "bear"], (0, 1, 0, 1), (3, 9, 9)


def lay_svhn(root, monkeypatch):
    import torchvision.datasets.svhn as module
    from scipy.io import savemat

    monkeypatch.setattr(module, "check_integrity", lambda *_: True)
    images = np.full((32, 32, 3, 4), 9, np.uint8)
    images[:, :, 0] = np.arange(4)
    for split in ("train", "test"):
        savemat(root / f"{split}_32x32.mat", {"X": images, "y": np.array([[10], [1], [10], [1]], np.uint8)})
    return ["0", "1"], (0, 1, 0, 1), (3, 9, 9)


def lay_eurosat(root, monkeypatch):
    tree(root / "eurosat" / "2750", "Forest", "River", count=4)
    return ["Forest", "River"], (0, 0, 0, 0, 1, 1, 1, 1), (3, 3, 3)


def lay_gtsrb(root, monkeypatch):
    for c in range(2):
        for i in range(2):
            save(root / f"gtsrb/GTSRB/Training/0000{c}/{i}.ppm", 3 * i)
            save(root / f"gtsrb/GTSRB/Final_Test/Images/{c}{i}.ppm", 3)
    lines = ["Filename;ClassId", *(f"{c}{i}.ppm;{c}" for c in range(2) for i in range(2))]
    (root / "gtsrb/GT-final_test.csv").write_text("\n".join(lines))
    return ["0", "1"], (0, 0, 1, 1), (3, 3, 3)


def lay_dtd(root, monkeypatch):
    names = ["banded/1.png", "banded/2.png", "woven/1.png", "woven/2.png"]
    for i, name in enumerate(names):
        save(root / "dtd/dtd/images" / name, i)
    (root / "dtd/dtd/labels").mkdir()
    for split in ("train", "val", "test"):
        (root / f"dtd/dtd/labels/{split}1.txt").write_text("\n".join(names))
    return ["banded", "woven"], (0, 0, 1, 1), (3, 3, 3)


def lay_oxford_pets(root, monkeypatch):
    folder = root / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    names = ["Abyssinian_1", "Abyssinian_2", "great_dane_1", "great_dane_2"]
    for name in names:
        save(folder / f"images/{name}.jpg", 3)
    lines = [f"{name} {1 + i // 2} 1 1" for i, name in enumerate(names)]
    for split in ("trainval", "test"):
        (folder / f"annotations/{split}.txt").write_text("\n".join(lines))
    return ["Abyssinian", "Great Dane"], (0, 0, 1, 1), (3, 3, 3)


def lay_imagenette(root, monkeypatch):
    for split in ("train", "val"):
        for wnid in ("n01440764", "n02102040"):
            for i in range(2):
                path = root / f"imagenette2/{split}/{wnid}/{i}.png"
                save(path, 3)
                path.rename(path.with_suffix(".jpeg"))
    return ["tench", "English springer"], (0, 0, 1, 1), (3, 3, 3)


@pytest.mark.parametrize("name", ["cifar100", "svhn", "eurosat", "gtsrb", "dtd", "oxford-pets", "imagenette"])
def test_torchvisions_datasets_are_read_from_a_folder_that_has_them(tmp_path, monkeypatch, name):
    class_names, labels, last_pixel = globals()[f"lay_{name.replace('-', '_')}"](tmp_path, monkeypatch)
    dataset = open_dataset(name, root=tmp_path, download=False)
    assert dataset.class_names == class_names
    assert dataset.splits["train"].labels.tolist() == list(labels)
    assert tuple(dataset.splits["train"].read(len(labels) - 1)[0, 0]) == last_pixel
    assert ("test" in dataset.splits) == (name != "eurosat")


def test_a_name_wins_over_a_folder_and_says_so(tmp_path, monkeypatch):
    tree(tmp_path / "digits", "a", "b")
    monkeypatch.chdir(tmp_path)
    assert any("write ./digits" in note for note in open_dataset("digits").notes)
    assert open_dataset("./digits").class_names == ["a", "b"]
