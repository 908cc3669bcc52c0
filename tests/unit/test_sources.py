"""Every form of data that open_dataset takes: folders, lists, arrays, Hugging Face."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from image_trees import message, npz_arrays, save, sizes, tree

from vitling.data import decode, open_dataset
from vitling.data.pipeline import reading
from vitling.validation import memory

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_tree_without_splits_is_all_training_data(tmp_path):
    dataset = open_dataset(tree(tmp_path / "pets", "dog", "cat"))
    assert dataset.name == "pets"
    assert dataset.class_names == ["cat", "dog"]
    assert (dataset.channels, dataset.max_value) == (3, 255)
    train = dataset.splits["train"]
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.labels.dtype == np.int64
    assert train.names == ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png", "dog/2.png"]
    assert train.read(4).tolist() == [[[1, 1, 1]] * 6] * 5


@pytest.mark.parametrize("val", ["val", "valid", "validation", "Val", "VALIDATION"])
def test_splits_are_found_by_any_usual_name(tmp_path, val):
    tree(tmp_path, "Train/a", "Train/b", count=4)
    tree(tmp_path, f"{val}/a", f"{val}/b", "test/a", "test/b", count=2)
    dataset = open_dataset(tmp_path)
    assert sizes(dataset) == {"train": 8, "val": 4, "test": 4}
    assert list(dataset.splits) == ["train", "val", "test"]


def test_images_in_nested_folders_belong_to_the_class_above(tmp_path):
    tree(tmp_path, "a/patient1", "a/patient2/left", "b", count=2)
    assert np.bincount(open_dataset(tmp_path).splits["train"].labels).tolist() == [4, 2]


def test_a_class_may_be_called_train(tmp_path):
    dataset = open_dataset(tree(tmp_path, "train", "bus", "test"))
    assert dataset.class_names == ["bus", "test", "train"]
    assert sizes(dataset) == {"train": 9}


def test_what_is_no_image_is_left_out_and_said(tmp_path):
    tree(tmp_path, "train/a", "train/b", "extra/c")
    (tmp_path / "train/a/notes.txt").write_text("hello")
    (tmp_path / "train/a/.DS_Store").write_bytes(b"")
    save(tmp_path / "train/loose.png")
    dataset = open_dataset(tmp_path)
    assert sizes(dataset) == {"train": 6}
    notes = " | ".join(dataset.notes)
    assert "'extra'" in notes
    assert "1 files" in notes
    assert ".txt" in notes
    assert "1 images" in notes


def test_arrays_of_twelve_channels_in_a_tree(tmp_path):
    for name in ("a/1", "a/2", "b/1", "b/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{name}.npy", np.full((4, 4, 12), 1000, np.uint16))
    dataset = open_dataset(tmp_path)
    assert (dataset.channels, dataset.max_value) == (12, 1023)
    decoded = decode(dataset.splits["train"], size=(4, 4), channels=12, max_value=dataset.max_value)
    assert decoded.unique().tolist() == [249]


# --- channels and depth -----------------------------------------------------------------------------------------------


def test_grey_images_give_one_channel_and_a_mixture_three(tmp_path):
    tree(tmp_path, "a", "b", mode="L")
    assert open_dataset(tmp_path).channels == 1
    assert open_dataset(tmp_path, channels=3).channels == 3
    save(tmp_path / "b/colour.png", 9)
    mixed = open_dataset(tmp_path)
    assert mixed.channels == 3
    assert any("mixed" in note for note in mixed.notes)
    assert decode(mixed.splits["train"], size=(5, 6), channels=3)[1].unique().tolist() == [1]


def test_transparent_images_give_three_channels_and_four_when_asked(tmp_path):
    tree(tmp_path, "a", "b", mode="RGBA")
    assert open_dataset(tmp_path).channels == 3
    asked = open_dataset(tmp_path, channels=4)
    assert asked.channels == 4
    assert asked.splits["train"].read(2).tolist() == [[[2, 2, 2, 2]] * 6] * 5


def test_white_is_the_smallest_depth_that_holds_sixteen_bit_images(tmp_path):
    tree(tmp_path, "a", "b", mode="I;16")
    assert open_dataset(tmp_path).max_value == 255
    save(tmp_path / "a/bright.png", 3000, mode="I;16")
    dataset = open_dataset(tmp_path)
    assert (dataset.channels, dataset.max_value) == (1, 4095)


def test_a_wrong_number_of_channels_names_an_image(tmp_path):
    tree(tmp_path, "a", "b")
    assert "image a/0.png has 3 channels where 12 are wanted" in message(tmp_path, channels=12)
    assert "channels=0 is not possible" in message(tmp_path, channels=0)


# --- the fingerprint --------------------------------------------------------------------------------------------------


def test_the_fingerprint_knows_content_but_neither_place_nor_time(tmp_path):
    tree(tmp_path / "one", "a", "b")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    os.utime(tmp_path / "two/a/0.png", (1, 1))
    first = open_dataset(tmp_path / "one").fingerprint
    assert open_dataset(tmp_path / "two").fingerprint == first
    save(tmp_path / "two/a/0.png", size=(60, 50))
    assert open_dataset(tmp_path / "two").fingerprint != first
    shutil.copy(tmp_path / "one/a/0.png", tmp_path / "two/a/0.png")
    assert open_dataset(tmp_path / "two").fingerprint == first
    (tmp_path / "two/a/0.png").rename(tmp_path / "two/a/9.png")
    assert open_dataset(tmp_path / "two").fingerprint != first


def test_a_changed_label_changes_the_fingerprint(tmp_path):
    tree(tmp_path, "img", count=4)
    prints = set()
    for labels in ("aabb", "abab"):
        rows = [f"img/{i}.png,{label}" for i, label in enumerate(labels)]
        (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
        prints.add(open_dataset(tmp_path / "labels.csv").fingerprint)
    assert len(prints) == 2


def test_one_changed_pixel_changes_the_fingerprint_of_an_array(tmp_path):
    arrays = npz_arrays()
    np.savez(tmp_path / "a.npz", **arrays)
    first = open_dataset(tmp_path / "a.npz").fingerprint
    arrays["test_images"][3, 0, 0, 0] ^= 1
    np.savez(tmp_path / "a.npz", **arrays)
    assert open_dataset(tmp_path / "a.npz").fingerprint != first


# --- CSV and lists ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", ["path,label", "File;Class", "image\ttarget\tage", "id,filename,label", "\ufefffile_name,category"]
)
def test_a_csv_of_paths_and_labels(tmp_path, header):
    tree(tmp_path, "img")
    delimiter = max(",;\t", key=header.count)
    rows = [("img/0.png", "cat"), ("img/1.png", "cat"), ("img/2.png", "dog"), ("img/0.png", "dog")]
    extra = {"id": lambda row: ("7", *row), "image": lambda row: (*row, "44")}.get(header.split(delimiter)[0], tuple)
    lines = [header, *(delimiter.join(extra(row)) for row in rows)]
    (tmp_path / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    dataset = open_dataset(tmp_path / "labels.csv")
    assert dataset.class_names == ["cat", "dog"]
    assert dataset.splits["train"].labels.tolist() == [0, 0, 1, 1]
    assert dataset.splits["train"].read(2)[0, 0, 0] == 2


def test_a_csv_may_name_splits_and_another_root(tmp_path):
    tree(tmp_path / "elsewhere", "img")
    rows = [f"img/{i}.png,{label},{split}" for split in ("train", "Valid", "test") for i in (0, 1) for label in (10, 9)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label,split", *rows]))
    dataset = open_dataset(tmp_path / "labels.csv", root=tmp_path / "elsewhere")
    assert sizes(dataset) == {"train": 4, "val": 4, "test": 4}
    assert dataset.class_names == ["9", "10"]  # numbers in the order of numbers


def test_images_that_two_splits_share_are_said(tmp_path):
    tree(tmp_path, "img", count=5)
    rows = [f"img/{i}.png,{'ab'[i % 2]},train" for i in range(5)] + ["img/3.png,b,test", "img/4.png,a,test"]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label,split", *rows]))
    assert open_dataset(tmp_path / "labels.csv").notes == ["2 images are in both train and test, the first: img/3.png"]


def test_lists_in_domainnets_form_come_in_pairs(tmp_path):
    folders = ["clipart/aircraft_carrier", "clipart/The Eiffel Tower"]
    tree(tmp_path, *folders)
    for split, numbers in (("train", (0, 1)), ("test", (2,))):
        lines = [f"{folder}/{i}.png {label}\n" for label, folder in enumerate(folders) for i in numbers]
        (tmp_path / f"clipart_{split}.txt").write_text("".join(lines) + "\n")
    for given in ("train", "test"):
        dataset = open_dataset(tmp_path / f"clipart_{given}.txt")
        assert sizes(dataset) == {"train": 4, "test": 2}
        assert dataset.class_names == ["aircraft_carrier", "The Eiffel Tower"]
        assert dataset.splits["test"].labels.tolist() == [0, 1]


def test_a_list_without_telling_folders_keeps_the_numbers_as_names(tmp_path):
    tree(tmp_path, "img")
    (tmp_path / "all.txt").write_text("img/0.png 1\nimg/1.png 0\nimg/2.png 1\nimg/0.png 0\n")
    assert open_dataset(tmp_path / "all.txt").class_names == ["0", "1"]


def test_a_csv_without_the_columns_says_which_it_has(tmp_path):
    (tmp_path / "a.csv").write_text("picture,label\nx.png,cat\n")
    assert "no column path (or file, filename, image, id); its columns are: picture, label" in message(
        tmp_path / "a.csv"
    )
    (tmp_path / "a.csv").write_text("path,width,height\nx.png,3,4\n")
    assert "no column label (or class, target); its columns are: path, width, height" in message(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("")
    assert "its columns are: none" in message(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "path,label\n", "lists no images"),
        ("a.csv", "path,label\nimg/0.png,\n", "line 2 has no label"),
        ("a.csv", "path,label\nimg/0.png\n", "line 2 has no label"),
        ("a.csv", "path,label,split\nimg/0.png,cat,dev\n", "line 2: split 'dev' is not one of train, val"),
        ("a.csv", "path,label\nimg/0.png,a\nimg/9.png,b\nimg/8.png,b\n", "img/9.png: no such file; 1 more"),
        ("a.txt", "img/0.png\n", "line 1 is 'img/0.png'; expected a path and a label"),
        ("a.txt", "\n\n", "lists no images"),
    ],
)
def test_a_faulty_list_names_the_line(tmp_path, name, text, expected):
    tree(tmp_path, "img")
    (tmp_path / name).write_text(text)
    assert expected in message(tmp_path / name)


def test_a_list_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"path,label\n\xff\xfe.png,a\n")
    assert "is not a table in UTF-8 text" in message(tmp_path / "a.csv")


# --- npz --------------------------------------------------------------------------------------------------------------


def test_an_npz_in_medmnists_layout(tmp_path):
    arrays = npz_arrays() | {"class_names": np.array(["x", "y", "z"])}
    arrays |= {name: value[:, None] for name, value in arrays.items() if name.endswith("labels")}
    np.savez(tmp_path / "med.npz", **arrays)
    dataset = open_dataset(tmp_path / "med.npz")
    assert (dataset.name, dataset.class_names, dataset.channels) == ("med", ["x", "y", "z"], 3)
    assert sizes(dataset) == {"train": 12, "val": 6, "test": 6}
    assert dataset.splits["val"].labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert dataset.splits["test"].names[5] == "test_images[5]"
    decoded = decode(dataset.splits["train"], size=(8, 8), channels=3)
    assert np.array_equal(decoded.numpy(), arrays["train_images"].transpose(0, 3, 1, 2))


@pytest.mark.parametrize(("shape", "channels"), [((8, 6), 1), ((8, 6, 1), 1), ((8, 6, 4), 4), ((8, 6, 12), 12)])
def test_an_npz_may_have_any_number_of_channels(tmp_path, shape, channels):
    np.savez(tmp_path / "a.npz", **npz_arrays(shape))
    dataset = open_dataset(tmp_path / "a.npz")
    assert dataset.channels == channels
    assert dataset.class_names == ["0", "1", "2"]


def test_white_of_a_sixteen_bit_npz_is_exact(tmp_path):
    arrays = npz_arrays(dtype=np.uint16)
    assert arrays["train_images"].max() < 256
    np.savez(tmp_path / "a.npz", **arrays)
    assert open_dataset(tmp_path / "a.npz").max_value == 255
    arrays["train_images"][7, 1, 1, 1] = 16384
    np.savez(tmp_path / "a.npz", **arrays)
    assert open_dataset(tmp_path / "a.npz").max_value == 32767


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"train_labels": None}, "no array train_labels; its arrays are: train_images"),
        ({"train_images": np.zeros((12, 8), np.uint8)}, "train_images has the shape (12, 8); expected (N, height"),
        ({"train_images": np.zeros((12, 3, 32, 32), np.uint8)}, "channels first; save it as images.transpose(0, 2, 3, 1)"),
        ({"train_images": np.zeros((12, 8, 8, 3), np.float32)}, "is float32; uint8 and uint16 are allowed: multiply by 255"),
        ({"train_images": np.zeros((12, 8, 8, 3), np.int64)}, "is int64; uint8 and uint16 are allowed"),
        ({"train_images": np.full(12, {}, dtype=object)}, "train_images is an array of Python objects"),
        ({"class_names": np.array(["x", "y", "z"], dtype=object)}, "class_names is an array of Python objects"),
        ({"class_names": np.array(["x", "y"])}, "class_names has 2 names, but the labels go up to 2"),
        ({"train_labels": np.zeros(11, int)}, "train_labels has the shape (11,); expected (12,) or (12, 1)"),
        ({"train_labels": np.zeros((12, 3), int)}, "one label per image is needed, not several"),
        ({"train_labels": np.zeros(12)}, "train_labels is float64; integers from 0"),
        ({"train_labels": np.full(12, -1)}, "train_labels holds -1; integers from 0"),
        ({"test_images": np.zeros((6, 8, 8), np.uint8)}, "the splits have different channels"),
    ],
)  # fmt: skip
def test_an_npz_with_wrong_arrays_is_refused(tmp_path, change, expected):
    arrays = {name: value for name, value in (npz_arrays() | change).items() if value is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    assert expected in message(tmp_path / "a.npz")


def test_an_npz_that_is_none_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    for content in (b"", b"no archive", b"PK\x03\x04 broken"):
        path.write_bytes(content)
        text = message(path)
        assert "cannot be read as .npz" in text
        assert "pickle" not in text
    np.savez(path, images=np.zeros(3))
    assert "no train_images and train_labels; its arrays are: images" in message(path)
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    assert "holds a single array" in message(path)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def hub_table(tmp_path, count=6, labels=None):
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")
    tree(tmp_path / "src", "x", count=count)
    files = [str(tmp_path / f"src/x/{i}.png") for i in range(count)]
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    labels = labels or [i % 2 for i in range(count)]
    return datasets, datasets.Dataset.from_dict({"image": files, "label": labels}, features=features)


def test_a_hub_dataset_saved_to_disk(tmp_path):
    datasets, table = hub_table(tmp_path)
    hidden = hub_table(tmp_path, labels=[-1] * 6)[1]
    datasets.DatasetDict(train=table, validation=table.select(range(4)), test=hidden).save_to_disk(tmp_path / "saved")
    dataset = open_dataset(f"hf:{tmp_path / 'saved'}")
    assert sizes(dataset) == {"train": 6, "val": 4}
    assert any("no labels" in note for note in dataset.notes)
    assert dataset.class_names == ["cat", "dog"]
    assert dataset.splits["train"].labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert dataset.splits["val"].subset([3]).read(0)[0, 0, 0] == 3
    assert decode(dataset.splits["train"], size=(4, 4), channels=3).flatten(1)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.fingerprint == open_dataset(f"hf:{tmp_path / 'saved'}").fingerprint


def test_a_folder_that_hugging_face_reads(tmp_path, monkeypatch):
    datasets, _ = hub_table(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    tree(tmp_path / "imagefolder", "train/cat", "train/dog", "test/cat", "test/dog")
    dataset = open_dataset(f"hf:{tmp_path / 'imagefolder'}")
    assert sizes(dataset) == {"train": 6, "test": 6}
    assert dataset.class_names == ["cat", "dog"]


def test_hub_labels_without_names_are_named_by_their_values(tmp_path):
    datasets, table = hub_table(tmp_path)
    table = table.cast_column("label", datasets.Value("int64"))
    table.map(lambda row: {"label": row["label"] + 7}).save_to_disk(tmp_path / "saved")
    dataset = open_dataset(f"hf:{tmp_path / 'saved'}")
    assert dataset.class_names == ["7", "8"]
    assert dataset.splits["train"].labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_a_hub_table_without_the_columns_says_which_it_has(tmp_path):
    datasets, table = hub_table(tmp_path)
    ages = table.rename_column("label", "age").cast_column("age", datasets.Value("int64"))
    ages.save_to_disk(tmp_path / "a")
    assert "no column 'label'; its columns are: image, age" in message(f"hf:{tmp_path / 'a'}")
    table.remove_columns("image").save_to_disk(tmp_path / "b")
    assert "no column of images; its columns are: label" in message(f"hf:{tmp_path / 'b'}")


def test_a_hub_dataset_that_cannot_be_reached_is_one_line():
    pytest.importorskip("datasets", reason="the hub extra is not installed")
    assert "hf:nobody/nothing could not be opened" in message("hf:nobody/nothing", download=False)


def test_the_hub_without_its_package_says_how_to_install_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    assert 'pip install "vitling[hub]"' in message("hf:owner/name")


# --- the machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "gigabytes"), [(str(2**30), 0.25), ("max", None), (str(2**62), None)])
def test_memory_for_images_keeps_to_the_limit_of_the_container(tmp_path, monkeypatch, limit, gigabytes):
    monkeypatch.setattr(memory, "CGROUP_LIMITS", ())
    physical = reading.default_memory_gb()
    (tmp_path / "memory.max").write_text(limit + "\n")
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (tmp_path / "nowhere", tmp_path / "memory.max"))
    assert reading.default_memory_gb() == (gigabytes or physical)


# --- real data --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "flowers10").is_dir(), reason="flowers10 is not at hand")
def test_flowers10_as_a_tree_of_jpegs_of_many_sizes():
    dataset = open_dataset(SHARED / "flowers10")
    assert sizes(dataset) == {"train": 800, "test": 368}
    assert (len(dataset.class_names), dataset.channels, dataset.notes) == (10, 3, [])
    some = dataset.splits["train"].subset(np.arange(0, 800, 40))
    assert len({some.read(i).shape for i in range(len(some))}) > 5
    assert decode(some, size=(32, 48), fit="pad", channels=3).shape == (20, 3, 32, 48)


@pytest.mark.skipif(not (SHARED / "cifar100_small.npz").is_file(), reason="cifar100_small.npz is not at hand")
def test_cifar100_small_as_npz():
    dataset = open_dataset(SHARED / "cifar100_small.npz")
    assert sizes(dataset) == {"train": 10000, "test": 10000}
    assert dataset.class_names[:2] == ["apple", "aquarium_fish"]
    assert np.bincount(dataset.splits["train"].labels).tolist() == [100] * 100


# --- volumes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(28, 28, 28), (64, 64, 64), (16, 64, 64), (8, 8, 8), (20, 64, 48), (90, 64, 48)])
def test_volumes_are_not_read_as_channels(tmp_path, shape):
    """MedMNIST's 3-D sets are (N, depth, height, width)."""
    np.savez(tmp_path / "nodule.npz", **npz_arrays(shape))
    text = message(tmp_path / "nodule.npz")
    assert f"{shape[0]} x {shape[1]} x {shape[2]}, which looks like a volume" in text
    assert f"save its slices as images, (N, height, width), or say channels={shape[2]}" in text
    assert open_dataset(tmp_path / "nodule.npz", channels=shape[2]).channels == shape[2]


def test_volumes_in_files_are_not_read_as_channels_either(tmp_path):
    for name in ("a", "b"):
        for i in range(3):
            (tmp_path / name).mkdir(exist_ok=True)
            np.save(tmp_path / name / f"{i}.npy", np.zeros((28, 28, 28), np.uint8))
    assert "looks like a volume" in message(tmp_path)


@pytest.mark.parametrize("shape", [(64, 64, 13), (8, 6, 12), (32, 32, 4), (4, 4, 4), (224, 224, 32)])
def test_images_of_several_channels_are_no_volumes(tmp_path, shape):
    np.savez(tmp_path / "bands.npz", **npz_arrays(shape))
    assert open_dataset(tmp_path / "bands.npz").channels == shape[2]
