import errno
import os

import pytest

from vitling.errors import UserError
from vitling.files import append_text, remove_leftovers, replacing, temporary_place, write_bytes, write_text


def test_a_written_file_holds_what_was_given_and_nothing_else_is_left(tmp_path):
    write_text(tmp_path / "new" / "folder" / "a.json", "grüße")
    write_bytes(tmp_path / "new" / "folder" / "b.bin", b"\x00\xff")
    assert (tmp_path / "new/folder/a.json").read_text(encoding="utf-8") == "grüße"
    assert sorted(os.listdir(tmp_path / "new/folder")) == ["a.json", "b.bin"]


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path):
    write_text(tmp_path / "a.json", "old")

    def write_half(text):
        with replacing(tmp_path / "a.json") as temporary:
            temporary.write_text(text[: len(text) // 2])
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        write_half("newer")
    assert (tmp_path / "a.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_temporary_name_keeps_the_extension_and_the_folder(tmp_path):
    with replacing(tmp_path / "weights.safetensors") as temporary:
        assert temporary.suffix == ".safetensors"
        assert temporary.parent == tmp_path
        temporary.touch()


def test_a_full_disk_is_the_users_to_fix(tmp_path):
    with pytest.raises(UserError, match="no space left on the device"), replacing(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert os.listdir(tmp_path) == []


def test_a_broken_disk_is_the_users_to_fix_too(tmp_path):
    for number in (errno.EIO, errno.EFBIG, errno.ESTALE):
        with pytest.raises(UserError, match=f"cannot write .*a: {os.strerror(number)}"), replacing(tmp_path / "a"):
            raise OSError(number, os.strerror(number))  # as a write raises it, without the name of a file
    assert os.listdir(tmp_path) == []


def test_an_error_about_another_file_is_not_about_ours(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a"):
        (tmp_path / "source").read_text()


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    for name in ("run.json", "weights", "odd.na\nme.txt", "x" * 200 + ".safetensors"):
        temporary_place(tmp_path / name).touch()
    temporary_place(tmp_path / "folder").mkdir()
    kept = [".run.json", ".notes.1234abcd.txt", "run.vitling-1234abcd.json", ".a.vitling-12.json"]
    for name in kept:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_folder_in_the_place_of_the_file_is_the_users_to_fix(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        write_text(tmp_path / "a", "x")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        write_text(tmp_path / "file" / "b", "x")
    assert sorted(os.listdir(tmp_path)) == ["a", "file"]


def test_a_link_stays_a_link(tmp_path):
    write_text(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("write", [write_text, append_text])
def test_a_device_or_a_pipe_is_never_written_to_or_replaced(tmp_path, write):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(UserError, match=r"cannot write .*it is a named pipe"):
            write(tmp_path / name, "x")
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]
    assert (tmp_path / "pipe").is_fifo()
