import errno
import os
import stat

import pytest

from vitling.errors import UserError
from vitling.files import append_text, replacing, write_bytes, write_text


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


def test_what_is_no_file_is_neither_replaced_nor_written_to_whatever_leads_there(tmp_path):
    """A link in a stranger's run could point to a device of the system, which root may replace; a pipe stands for it here."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.json").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link.json", "folder"):
        with pytest.raises(UserError, match="not a file"):
            write_text(tmp_path / name, "mine")
    for name in ("pipe", "link.json"):
        with pytest.raises(UserError, match="not a file"):
            append_text(tmp_path / name, "mine")
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link.json", "pipe"]
