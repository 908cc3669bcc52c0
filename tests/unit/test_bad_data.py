"""What is said about images that cannot be read and data that cannot be used: one line, before anything is trained."""

import shutil

import numpy as np
import pytest
from image_trees import message, npz_arrays, save, sizes, tree

from vitling.data import BadImage, decode, open_dataset

# --- bad images -------------------------------------------------------------------------------------------------------


def spoilt_tree(tmp_path):
    tree(tmp_path, "a", "b", count=4)
    good = (tmp_path / "a/0.png").read_bytes()
    (tmp_path / "a/1.png").write_bytes(good[: len(good) // 2])
    (tmp_path / "b/2.png").write_bytes(b"")
    return tmp_path


def test_bad_images_are_skipped_and_counted_when_asked(tmp_path):
    dataset = open_dataset(spoilt_tree(tmp_path), on_bad_image="skip")
    assert dataset.skipped == ["a/1.png", "b/2.png"]
    assert any("2 of 8 images cannot be read and were skipped" in note for note in dataset.notes)
    assert dataset.splits["train"].labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(decode(dataset.splits["train"], size=(4, 4), channels=3)) == 6


def test_a_bad_image_is_an_error_by_default_and_named(tmp_path):
    spoilt_tree(tmp_path)
    assert "b/2.png: the file is empty (0 bytes)" in message(tmp_path)
    (tmp_path / "b/2.png").unlink()
    with pytest.raises(BadImage, match=r"a/1\.png"):
        decode(open_dataset(tmp_path).splits["train"], size=(4, 4), channels=3)


def test_missing_files_of_a_list_are_skipped_too(tmp_path):
    tree(tmp_path, "img")
    rows = [f"img/{i}.png,{label}" for i in (0, 1, 7) for label in "ab"]
    (tmp_path / "a.csv").write_text("\n".join(["path,label", *rows]))
    assert open_dataset(tmp_path / "a.csv", on_bad_image="skip").skipped == ["img/7.png"] * 2


def test_when_every_image_is_bad_nothing_is_left_to_train(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"x")
    assert "none of its 2 images can be read, the first: a/1.png" in message(tmp_path, on_bad_image="skip")


# --- bad data ---------------------------------------------------------------------------------------------------------


def test_an_unknown_name_brings_a_suggestion():
    assert message("cifar11") == "unknown dataset 'cifar11', and no such path. Did you mean cifar10 or cifar100?"
    assert "Allowed: cifar10, cifar100, digits" in message("zzz")


@pytest.mark.parametrize("given", ["no/such/folder", "missing.csv", "./pets", ""])
def test_no_such_path(given):
    assert f"no such path: {given}" in message(given)


def test_no_such_root(tmp_path):
    assert "no such folder" in message("mnist", root=tmp_path / "nowhere")


def test_a_single_file_of_another_kind(tmp_path):
    save(tmp_path / "cat.png")
    assert (
        "is a single .png file; a folder of class folders, of .tar shards or of .parquet tables, and .npz, .zip"
        in message(tmp_path / "cat.png")
    )


def test_an_empty_folder(tmp_path):
    assert "is empty; expected one folder per class" in message(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert "no images in the class folders" in message(tmp_path)


def test_images_without_class_folders(tmp_path):
    save(tmp_path / "1.png")
    assert "holds 1 image but no class folders" in message(tmp_path)


def test_splits_without_class_folders_are_not_taken_for_two_classes(tmp_path):
    tree(tmp_path, "train", "test")
    assert "has test, train but no class folders inside; expected train/CLASS/IMAGE" in message(tmp_path)


def test_a_test_folder_without_labels_is_left_out_and_said(tmp_path):
    tree(tmp_path, "train/a", "train/b", "test")
    dataset = open_dataset(tmp_path)
    assert sizes(dataset) == {"train": 6}
    assert dataset.notes == ["folder 'test' beside the splits left out"]


def test_an_empty_class_folder_is_named(tmp_path):
    tree(tmp_path, "a", "b")
    (tmp_path / "ghost").mkdir()
    assert "class folder 'ghost'" in message(tmp_path)


def test_one_class_only(tmp_path):
    assert "has only one class ('a'); at least two are needed" in message(tree(tmp_path, "a"))


def test_a_class_with_one_image_is_named(tmp_path):
    tree(tmp_path, "a", "b")
    save(tmp_path / "rare/1.png")
    assert "only one training image of class 'rare'; at least two are needed" in message(tmp_path)


def test_classes_that_differ_between_splits_are_named(tmp_path):
    tree(tmp_path, "train/a", "train/b", "test/a", "test/b", "test/c")
    assert "class 'c' of test missing in train" in message(tmp_path)
    shutil.rmtree(tmp_path / "test/b")
    shutil.rmtree(tmp_path / "test/c")
    assert "class 'b' of train missing in test" in message(tmp_path)


def test_labels_missing_from_a_split_are_named(tmp_path):
    arrays = npz_arrays() | {"class_names": np.array(["x", "y", "z"])}
    arrays["val_labels"] = np.zeros(6, int)
    np.savez(tmp_path / "a.npz", **arrays)
    assert "classes 'y', 'z' of train missing in val" in message(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **(npz_arrays() | {"class_names": np.array(["x", "y", "z", "ghost"])}))
    assert "no training images of class 'ghost'" in message(tmp_path / "a.npz")


def test_class_names_must_differ(tmp_path):
    np.savez(tmp_path / "a.npz", **npz_arrays(), class_names=np.array(["x", "y", "x"]))
    assert "class name 'x' used more than once" in message(tmp_path / "a.npz")


def test_a_root_that_would_be_ignored_is_refused(tmp_path):
    for given in ("digits", "hf:owner/name", str(tmp_path), "a.npz"):
        assert f"does not apply to {given}" in message(given, root=tmp_path)


def test_two_folders_for_one_split(tmp_path):
    tree(tmp_path, "train/a", "train/b", "val/a", "val/b", "valid/a", "valid/b")
    assert "two folders for the val split, val and valid" in message(tmp_path)


def test_no_training_split(tmp_path):
    tree(tmp_path, "test/a", "test/b")
    assert "has no train split, only test" in message(tmp_path)


def test_an_unknown_way_with_bad_images(tmp_path):
    assert "unknown on_bad_image 'skipp'. Did you mean skip?" in message(tmp_path, on_bad_image="skipp")


# --- the classes of a trained model -----------------------------------------------------------------------------------


def test_labels_are_numbered_as_a_trained_model_numbers_them(tmp_path):
    tree(tmp_path, "test/dog", "test/ant", count=1)
    dataset = open_dataset(tmp_path, class_names=["cat", "dog", "ant"])
    assert dataset.class_names == ["cat", "dog", "ant"]
    assert dataset.splits["test"].labels.tolist() == [2, 1]
    assert "class 'ant' that the model does not know; it knows classes 'cat', 'dog'" in message(
        tmp_path, class_names=["cat", "dog"]
    )


def test_numbers_that_the_model_knows_as_names_are_taken_by_name(tmp_path):
    names = sorted(str(i) for i in range(12))
    dataset = open_dataset(tree(tmp_path, "test/0", "test/1", "test/2", count=1), class_names=names)
    assert [names[label] for label in dataset.splits["test"].labels] == ["0", "1", "2"]
    assert dataset.notes == []
    assert "class '2' that the model does not know" in message(tmp_path, class_names=["0", "1", "x"])


def test_numbers_are_taken_by_position_where_the_model_knows_none_of_them(tmp_path):
    tree(tmp_path, "test/0", "test/1", count=1)
    dataset = open_dataset(tmp_path, class_names=["cat", "dog", "ant"])
    assert dataset.splits["test"].labels.tolist() == [0, 1]
    assert "have no names; 0 is taken for 'cat', and so on" in dataset.notes[0]
    assert "'0', '1' that the model does not know" in message(tmp_path, class_names=["cat"])
