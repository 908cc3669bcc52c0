"""WebDataset's shards, parquet tables, Kaggle's lists and saved Hugging Face datasets."""

import io
import json
import pickle
import sys
import tarfile

import numpy as np
import pytest
from image_trees import message, sizes
from PIL import Image

from vitling.data import decode, open_dataset
from vitling.data.sources.shards import expand_braces

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
import pyarrow.parquet as pq  # noqa: E402


def png(value=0, size=(6, 5)):
    stream = io.BytesIO()
    Image.new("RGB", size, (value,) * 3).save(stream, "PNG")
    return stream.getvalue()


def shard(path, samples):
    """A tar of {name: bytes} in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in samples.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def numbered(first, count, classes=2):
    """Samples whose pixel value is their number, and whose class is the number's remainder."""
    return {
        name: content
        for i in range(first, first + count)
        for name, content in ((f"{i:05}.png", png(i)), (f"{i:05}.cls", str(i % classes).encode()))
    }


def values(images):
    return [int(images.read(i).max()) for i in range(len(images))]


# --- WebDataset -------------------------------------------------------------------------------------------------------


def test_a_folder_of_shards_is_read_shard_by_shard(tmp_path):
    for k in range(3):
        shard(tmp_path / f"train-{k:04}.tar", numbered(4 * k, 4))
    shard(tmp_path / "val-0000.tar", numbered(50, 4))
    dataset = open_dataset(tmp_path)
    assert sizes(dataset) == {"train": 12, "val": 4}
    assert dataset.class_names == ["0", "1"]
    assert values(dataset.splits["train"]) == list(range(12))
    assert dataset.splits["train"].labels.tolist() == [0, 1] * 6
    assert dataset.splits["train"].names[5] == "train-0001.tar/00005.png"


def test_shards_in_folders_of_splits_are_told_apart(tmp_path):
    shard(tmp_path / "train/0000.tar", numbered(0, 4))
    shard(tmp_path / "test/0000.tar", numbered(10, 4))
    dataset = open_dataset(tmp_path)
    assert sizes(dataset) == {"train": 4, "test": 4}
    assert not [note for note in dataset.notes if "are in both" in note]


def test_a_pattern_with_braces_names_its_shards(tmp_path):
    for k in range(3):
        shard(tmp_path / f"a-{k:02}.tar", numbered(4 * k, 4))
    dataset = open_dataset(str(tmp_path / "a-{00..01}.tar"))
    assert sizes(dataset) == {"train": 8}
    assert "no such file" in message(str(tmp_path / "a-{00..07}.tar"))


def test_braces_stand_for_numbers_of_one_width():
    assert expand_braces("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert expand_braces("{0..1}-{0..1}") == ["0-0", "0-1", "1-0", "1-1"]
    assert expand_braces("plain.tar") == ["plain.tar"]


def test_a_single_shard_is_told_from_a_tar_of_folders(tmp_path):
    assert sizes(open_dataset(shard(tmp_path / "a.tar", numbered(0, 6)))) == {"train": 6}


def test_labels_may_be_in_json_and_be_words(tmp_path):
    samples = {}
    for i in range(4):
        samples[f"{i}.png"] = png(i)
        samples[f"{i}.json"] = json.dumps({"label": ["cat", "dog"][i % 2], "width": 6}).encode()
    assert open_dataset(shard(tmp_path / "a.tar", samples)).class_names == ["cat", "dog"]


def test_class_names_lie_beside_the_shards(tmp_path):
    shard(tmp_path / "train-0.tar", numbered(0, 4))
    (tmp_path / "classnames.txt").write_text("round\nflat\n")
    assert open_dataset(tmp_path).class_names == ["round", "flat"]
    (tmp_path / "classnames.txt").write_text("round\n")
    assert "has 1 names, but the labels go up to 1" in message(tmp_path)


def test_webdatasets_own_writer_writes_what_we_read(tmp_path):
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    with webdataset.TarWriter(str(tmp_path / "train-000000.tar")) as writer:
        for i in range(6):
            writer.write({"__key__": f"sample{i:06}", "png": png(i), "cls": i % 2})
    dataset = open_dataset(tmp_path)
    assert values(dataset.splits["train"]) == list(range(6))
    assert dataset.splits["train"].labels.tolist() == [0, 1] * 3


def test_a_sample_without_a_label_is_named(tmp_path):
    samples = numbered(0, 4)
    del samples["00002.cls"]
    assert "sample 00002 has no label; give it a file .cls" in message(shard(tmp_path / "a.tar", samples))


def test_a_shard_that_was_cut_short_is_one_line(tmp_path):
    shard(tmp_path / "train-0.tar", numbered(0, 4))
    path = shard(tmp_path / "train-1.tar", numbered(4, 4))
    path.write_bytes(path.read_bytes()[:2900])
    said = message(tmp_path)
    assert str(path) in said
    assert "copy or download it again" in said


def test_samples_whose_files_do_not_stand_together_are_refused(tmp_path):
    samples = {"0.png": png(), "1.png": png(), "0.cls": b"0", "1.cls": b"1"}
    assert "has no label" in message(shard(tmp_path / "a.tar", samples))


def test_an_archive_beside_class_folders_does_not_hide_them(tmp_path):
    for label in ("cat", "dog"):
        for i in range(2):
            (tmp_path / label).mkdir(exist_ok=True)
            (tmp_path / label / f"{i}.png").write_bytes(png(i))
    shard(tmp_path / "photos.tar", numbered(0, 4))
    assert open_dataset(tmp_path).class_names == ["cat", "dog"]


# --- parquet ----------------------------------------------------------------------------------------------------------


def pandas_table(path, count=6, first=0, **columns):
    table = {
        "image": [png(i) for i in range(first, first + count)],
        "label": [["cat", "dog"][i % 2] for i in range(count)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pyarrow.table({**table, **columns}), path, row_group_size=4)
    return path


def test_a_table_of_bytes_as_pandas_writes_it_is_data(tmp_path):
    dataset = open_dataset(pandas_table(tmp_path / "cats.parquet", 10))
    assert dataset.class_names == ["cat", "dog"]
    assert values(dataset.splits["train"]) == list(range(10))
    images = dataset.splits["train"]
    assert [int(images.read(i).max()) for i in (9, 0, 5, 2)] == [9, 0, 5, 2]
    assert int(pickle.loads(pickle.dumps(images.subset([7]))).read(0).max()) == 7


def test_a_table_as_hugging_face_writes_it_is_data_with_its_class_names(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["round", "flat"]))
    rows = {"image": [{"bytes": png(i), "path": None} for i in range(6)], "label": [1, 0] * 3}
    table = datasets.Dataset.from_dict(rows, features=features)
    (tmp_path / "data").mkdir()
    table.to_parquet(tmp_path / "data/train-00000-of-00001.parquet")
    table.to_parquet(tmp_path / "data/test-00000-of-00001.parquet")
    dataset = open_dataset(tmp_path)
    assert dataset.class_names == ["round", "flat"]
    assert sizes(dataset) == {"train": 6, "test": 6}
    assert dataset.splits["train"].labels.tolist() == [1, 0] * 3
    assert values(dataset.splits["train"]) == list(range(6))


def test_a_column_of_splits_divides_a_table(tmp_path):
    split = ["train"] * 4 + ["test"] * 2
    assert sizes(open_dataset(pandas_table(tmp_path / "a.parquet", split=split))) == {"train": 4, "test": 2}


def test_threads_that_read_a_table_read_each_image_as_one_would(tmp_path):
    images = open_dataset(pandas_table(tmp_path / "a.parquet", 60)).splits["train"]
    pixels = decode(images, size=(5, 6), channels=3, threads=8)
    assert pixels[:, 0, 0, 0].tolist() == list(range(60))


def test_another_image_changes_the_fingerprint_of_a_table(tmp_path):
    one = open_dataset(pandas_table(tmp_path / "a.parquet")).fingerprint
    assert open_dataset(pandas_table(tmp_path / "a.parquet", first=1)).fingerprint != one


def test_tables_that_cannot_be_read_say_why(tmp_path):
    path = pandas_table(tmp_path / "a.parquet")
    path.write_bytes(path.read_bytes()[:200])
    assert "is not a whole parquet file" in message(path)
    pq.write_table(pyarrow.table({"label": [0, 1]}), path)
    assert "no column of image bytes; its columns are: label" in message(path)
    pq.write_table(pyarrow.table({"image": [png(), png()]}), path)
    assert "no column label" in message(path)
    pq.write_table(pyarrow.table({"one": [png()], "two": [png()], "label": [0]}), path)
    assert "several columns of bytes (one, two)" in message(path)
    pq.write_table(pyarrow.table({"image": [png()] * 4, "label": [0, 1, None, 0]}), path)
    assert "1 images of split 'train' have no label" in message(path)
    pq.write_table(pyarrow.table({"image": [png(), png(), None, png()], "label": [0, 1, 1, 0]}), path)
    assert "a.parquet[2]: the cell is empty" in message(path)
    pq.write_table(pyarrow.table({"image": [png()] * 4, "label": [0.0, 1.0, 0.0, 1.0]}), path)
    assert "label holds 0.0; class names or integers are expected" in message(path)


def test_a_table_without_pyarrow_is_one_line_with_the_extra(tmp_path, monkeypatch):
    path = pandas_table(tmp_path / "a.parquet")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    assert 'needs the package pyarrow; install it with: pip install "vitling[parquet]"' in message(path)


# --- Kaggle's lists, saved datasets -----------------------------------------------------------------------------------


def pictures(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        (folder / name).write_bytes(png(i))


@pytest.mark.parametrize("column", ["id", "image_id", "Id", "image_name", "id_code"])
@pytest.mark.parametrize("folder", ["", "train", "train_images", "images", "train/train"])
def test_kaggles_names_without_extension_are_found(tmp_path, column, folder):
    pictures(tmp_path / folder, "a1.png", "b2.png", "c3.png", "d4.jpg")
    (tmp_path / "train.csv").write_text(f"{column},label\na1,cat\nb2,dog\nc3,cat\nd4,dog\n")
    dataset = open_dataset(tmp_path / "train.csv")
    assert dataset.class_names == ["cat", "dog"]
    assert values(dataset.splits["train"]) == [0, 1, 2, 3]


def test_of_two_columns_the_one_that_is_no_name_is_the_label(tmp_path):
    pictures(tmp_path / "train", "a.png", "b.png", "c.png", "d.png")
    (tmp_path / "labels.csv").write_text("id,breed\na,boxer\nb,pug\nc,boxer\nd,pug\n")
    dataset = open_dataset(tmp_path / "labels.csv")
    assert dataset.class_names == ["boxer", "pug"]
    assert "the labels of labels.csv are its column breed" in dataset.notes


def test_kaggles_test_list_without_labels_is_left_out(tmp_path):
    pictures(tmp_path / "train_images", "a.png", "b.png", "c.png", "d.png")
    (tmp_path / "train.csv").write_text("image_id,label\na,0\nb,1\nc,0\nd,1\n")
    (tmp_path / "test.csv").write_text("image_id\ne\n")
    dataset = open_dataset(tmp_path / "train.csv")
    assert sizes(dataset) == {"train": 4}
    assert any("test.csv was left out" in note for note in dataset.notes)
    assert "no column label" in message(tmp_path / "test.csv")


def test_two_files_of_one_name_are_not_guessed_between(tmp_path):
    pictures(tmp_path, "a.png", "a.jpg", "b.png")
    (tmp_path / "x.csv").write_text("id,label\nb,0\na,1\n")
    assert "with different extensions" in message(tmp_path / "x.csv")


def test_a_name_that_is_nowhere_is_named(tmp_path):
    pictures(tmp_path, "a.png", "b.png")
    (tmp_path / "x.csv").write_text("id,label\na,0\nb,1\nnowhere,0\n")
    assert "nowhere: no such file" in message(tmp_path / "x.csv")


def test_a_saved_dataset_needs_no_prefix(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["round", "flat"]))
    rows = {"image": [{"bytes": png(i), "path": None} for i in range(6)], "label": [1, 0] * 3}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    dataset = open_dataset(tmp_path / "saved")
    assert dataset.class_names == ["round", "flat"]
    assert np.array_equal(values(dataset.splits["train"]), np.arange(6))
    assert dataset.fingerprint == open_dataset(f"hf:{tmp_path / 'saved'}").fingerprint
