"""Data that would hang, fill the memory or end in a traceback: refused in one line, by looking at it and not by reading it."""

import io
import os
import zipfile

import numpy as np
import pytest
from image_trees import message, npz_arrays, save, tree

from vitling.data import decode, open_dataset
from vitling.data.sources.images import read_image, read_layout, read_size
from vitling.deploy.inputs import find_images
from vitling.errors import UserError


def refused(function, *arguments, **options) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what is no file --------------------------------------------------------------------------------------------------


def test_a_fifo_among_the_images_is_refused(tmp_path):
    tree(tmp_path, "a", "b", count=4)
    os.mkfifo(tmp_path / "a" / "5.png")
    assert "a/5.png: it is a folder, a pipe or a device" in message(tmp_path)
    assert open_dataset(tmp_path, on_bad_image="skip").skipped == ["a/5.png"]


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/urandom", "nowhere"])
def test_a_link_to_a_device_or_to_nowhere_is_refused(tmp_path, target):
    tree(tmp_path, "a", "b", count=4)
    (tmp_path / "a" / "5.png").symlink_to(target)
    assert "a/5.png" in message(tmp_path)
    assert open_dataset(tmp_path, on_bad_image="skip").skipped == ["a/5.png"]


@pytest.mark.parametrize("suffix", [".png", ".npy", ".jpg"])
@pytest.mark.parametrize("read", [read_image, read_layout, read_size])
def test_a_pipe_is_never_opened_as_an_image(tmp_path, read, suffix):
    os.mkfifo(tmp_path / f"x{suffix}")
    assert "a named pipe, not a file" in refused(read, str(tmp_path / f"x{suffix}"))


def test_a_pipe_is_no_image_to_predict(tmp_path):
    os.mkfifo(tmp_path / "x.png")
    assert "is a named pipe, not an image" in refused(find_images, [tmp_path / "x.png"])
    assert "is a device, not an image" in refused(find_images, ["/dev/zero"])


@pytest.mark.parametrize("name", ["x.csv", "x.txt", "x.npz", "x_train.lst"])
def test_a_pipe_is_no_table(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert "is a named pipe" in message(tmp_path / name)


def test_a_table_may_list_a_device_or_a_pipe_without_hanging(tmp_path):
    tree(tmp_path, "img", count=4)
    os.mkfifo(tmp_path / "img" / "pipe.png")
    for odd in ("/dev/zero", "img/pipe.png", "img", "a\0b", "x" * 5000, "/proc/self/mem"):
        rows = [f"img/{i}.png,{label}" for i in range(4) for label in "ab"]
        (tmp_path / "a.csv").write_bytes("\n".join(["path,label", *rows, f"{odd},a"]).encode())
        assert "cannot read image" in message(tmp_path / "a.csv")
        assert len(open_dataset(tmp_path / "a.csv", on_bad_image="skip").skipped) == 1


def test_folders_that_link_to_themselves_are_refused(tmp_path):
    tree(tmp_path, "a", "b", count=3)
    for name in ("x", "y"):
        (tmp_path / "a" / name).symlink_to(tmp_path / "a")
    assert "is a link to a folder that it lies in" in message(tmp_path)


def test_folders_in_folders_without_end_are_refused(tmp_path):
    tree(tmp_path, "a", "b", count=3)
    (tmp_path / "a" / "/".join(["c"] * 120)).mkdir(parents=True)
    assert "holds folders in folders, more than 100 deep" in message(tmp_path)


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_class_whose_name_is_no_utf8_is_refused(tmp_path):
    tree(tmp_path, "a", "b", count=3)
    os.rename(tmp_path / "b", os.fsencode(tmp_path) + b"/caf\xe9")
    assert r"b'caf\xe9' is not UTF-8" in message(tmp_path)


@pytest.mark.parametrize("name", ["a\nb", "a\rb"])
def test_a_class_whose_name_is_several_lines_is_refused(tmp_path, name):
    tree(tmp_path, "a", name, count=3)
    assert "is not UTF-8 text of one line" in message(tmp_path)


def test_a_class_of_a_table_with_an_endless_name_is_refused(tmp_path):
    tree(tmp_path, "img", count=4)
    rows = [f"img/{i}.png,{label}" for i in range(4) for label in ("a", "b" * 5000)]
    (tmp_path / "a.csv").write_text("\n".join(["path,label", *rows]))
    assert "at most 1000 characters" in message(tmp_path / "a.csv")


def test_files_whose_names_are_no_utf8_are_read(tmp_path):
    tree(tmp_path, "a", "b", count=3)
    os.rename(tmp_path / "a" / "0.png", os.fsencode(tmp_path) + b"/a/\xff\xfe.png")
    dataset = open_dataset(tmp_path)
    assert len(decode(dataset.splits["train"], size=(4, 4), channels=3)) == 6
    assert len(dataset.fingerprint) == 64


def test_labels_that_are_endless_numbers_are_names(tmp_path):
    tree(tmp_path, "img", count=4)
    rows = [f"img/{i}.png,{label}" for i in range(4) for label in ("7" * 900, "8" * 900)]
    (tmp_path / "a.csv").write_text("\n".join(["path,label", *rows]))
    assert open_dataset(tmp_path / "a.csv").class_names == ["7" * 900, "8" * 900]


# --- arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [10**9, 2**31, 2**40, 2**63 - 1, 1000])
def test_labels_far_beyond_the_images_are_refused(tmp_path, label):
    arrays = npz_arrays()
    arrays["train_labels"] = np.array([*range(11), label])
    np.savez(tmp_path / "a.npz", **arrays)
    assert str(label) in message(tmp_path / "a.npz")


def test_labels_that_wrap_around_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **{**npz_arrays(), "train_labels": np.full(12, 2**64 - 1, np.uint64)})
    assert "integers from 0 are expected" in message(tmp_path / "a.npz")


def header(shape, descr="|u1") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def announcing(path, shape, **header_options) -> None:
    """An archive whose first array announces a shape that nothing follows."""
    np.savez(path, **{name: array for name, array in npz_arrays().items() if name != "train_images"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("train_images.npy", header(shape, **header_options))


@pytest.mark.parametrize("shape", [(20 * 2**30 // 3072, 32, 32, 3), (2**40, 8, 8, 3), (10**30, 8, 8), (-1, 8, 8, 3)])
def test_an_npz_that_announces_more_than_it_holds_is_refused_by_its_header(tmp_path, shape):
    announcing(tmp_path / "a.npz", shape)
    assert "train_images announces" in message(tmp_path / "a.npz")


def test_an_npz_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    from vitling.validation import memory

    (tmp_path / "memory.max").write_text("1000\n")
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (tmp_path / "memory.max",))
    np.savez_compressed(tmp_path / "a.npz", **npz_arrays())
    assert "of memory; save the images as files" in message(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff", b"\x80\x04.", bytes(1000)]
)
def test_an_npz_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    message(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "text", ["{'descr': '|u1'}", "(" * 9000, "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "\xff" * 50]
)
def test_a_header_that_is_damaged_is_refused(tmp_path, text):
    body = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin1")
    np.savez(tmp_path / "a.npz", **{name: array for name, array in npz_arrays().items() if name != "train_images"})
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("train_images.npy", body)
    message(tmp_path / "a.npz")
    (tmp_path / "x.npy").write_bytes(body)
    refused(read_image, str(tmp_path / "x.npy"))


@pytest.mark.parametrize("shape", [(2**20, 2**20, 3), (2**40, 8), (10**9, 10**9, 10**9), (100, 100)])
def test_an_npy_image_that_announces_more_than_it_holds_is_refused(tmp_path, shape):
    (tmp_path / "x.npy").write_bytes(header(shape))
    for read in (read_image, read_layout, read_size):
        refused(read, str(tmp_path / "x.npy"))


def test_a_whole_npy_image_is_read_into_memory_of_its_own(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    image = read_image(str(tmp_path / "x.npy"))
    assert image.flags.writeable
    assert not isinstance(image, np.memmap)
    assert image.sum() == sum(range(48))


@pytest.mark.parametrize(
    "names",
    [np.array("x"), np.array(3), np.zeros(3, "V4"), np.array([b"\xff", b"y", b"z"]), np.array(["\ud800", "y", "z"])],
    ids=["text", "number", "bytes of nothing", "not UTF-8", "half a character"],
)
def test_class_names_that_are_no_list_of_names_are_refused(tmp_path, names):
    np.savez(tmp_path / "a.npz", **npz_arrays(), class_names=names)
    assert "class_names" in message(tmp_path / "a.npz")


def test_class_names_may_be_bytes_or_numbers(tmp_path):
    for names in (np.array(["ä".encode(), b"y", b"z"]), np.array([[5], [6], [7]])):
        np.savez(tmp_path / "a.npz", **npz_arrays(), class_names=names)
        assert open_dataset(tmp_path / "a.npz").class_names in (["ä", "y", "z"], ["5", "6", "7"])


def test_class_names_that_are_no_text_do_not_matter_and_objects_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **npz_arrays(), class_names=np.array([{}, {}, {}], dtype=object))
    assert "array of Python objects, which is never unpickled" in message(tmp_path / "a.npz")


def test_arrays_that_we_do_not_know_are_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", **npz_arrays(), notes=np.array([{}], dtype=object))
    assert len(open_dataset(tmp_path / "a.npz").splits["train"]) == 12


def test_a_class_of_a_table_cannot_lead_label_maps_out_of_their_folder(tmp_path):
    from vitling.methods.token_labeling.author_maps import map_paths

    save(tmp_path / "0.png")
    (tmp_path / "a.csv").write_text(
        "path,label\n" + "\n".join(f"0.png,{name}" for name in ("../../x", "../../x", "b", "b"))
    )
    dataset = open_dataset(tmp_path / "a.csv")
    assert "cannot be a folder" in refused(map_paths, tmp_path, dataset.splits["train"], dataset.class_names)
