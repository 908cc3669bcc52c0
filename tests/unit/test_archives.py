"""Zip and tar archives of class folders: read where they lie, and what is refused."""

import io
import stat
import struct
import tarfile
import zipfile
from itertools import islice

import numpy as np
import pytest
from image_trees import message, save, sizes, tree
from PIL import Image

from vitling.data import BadImage, decode, open_dataset
from vitling.data.sources.archives import read_zip, walk_tar
from vitling.errors import UserError

FLAT = ("cat", "dog")
SPLIT = ("train/cat", "train/dog", "test/cat", "test/dog")


def zipped(folder, path, *, inside="", method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(file, inside + str(file.relative_to(folder)))
    return path


def tarred(folder, path, *, inside="."):
    with tarfile.open(path, "w") as archive:
        archive.add(folder, inside)
    return path


def png(value=0, size=(6, 5)):
    stream = io.BytesIO()
    Image.new("RGB", size, (value,) * 3).save(stream, "PNG")
    return stream.getvalue()


def pack(path, *entries):
    """A tar of the given headers and contents."""
    with tarfile.open(path, "w") as archive:
        for entry, content in entries:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def entry(name, **what):
    info = tarfile.TarInfo(name)
    for key, value in what.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize("folders", [FLAT, SPLIT])
@pytest.mark.parametrize("inside", ["", "photos/", "a/photos/"])
@pytest.mark.parametrize("kind", [zipped, tarred])
def test_an_archive_of_class_folders_gives_the_pixels_of_its_folder(tmp_path, kind, inside, folders):
    folder = tree(tmp_path / "photos", *folders)
    path = kind(
        folder, tmp_path / f"photos.{'zip' if kind is zipped else 'tar'}", inside=inside or ("." * (kind is tarred))
    )
    packed, plain = open_dataset(path), open_dataset(folder)
    assert packed.class_names == plain.class_names
    assert sizes(packed) == sizes(plain)
    for split, images in plain.splits.items():
        assert packed.splits[split].names == images.names
        size = dict(size=(5, 6), channels=3)
        assert decode(packed.splits[split], **size).equal(decode(images, **size))
        assert packed.splits[split].labels.tolist() == images.labels.tolist()


def test_a_stored_zip_and_a_deflated_one_have_one_fingerprint(tmp_path):
    folder = tree(tmp_path / "photos", *FLAT)
    stored = zipped(folder, tmp_path / "a.zip", method=zipfile.ZIP_STORED)
    assert open_dataset(stored).fingerprint == open_dataset(zipped(folder, tmp_path / "b.zip")).fingerprint


def test_an_image_of_a_zip_that_changed_changes_the_fingerprint(tmp_path):
    folder = tree(tmp_path / "photos", *FLAT, size=(4, 4))
    before = open_dataset(zipped(folder, tmp_path / "a.zip")).fingerprint
    data = bytearray((folder / "cat/0.png").read_bytes())
    data[-1] ^= 1  # as long as before
    (folder / "cat/0.png").write_bytes(data)
    assert open_dataset(zipped(folder, tmp_path / "b.zip")).fingerprint != before


def test_arrays_in_an_archive_are_images(tmp_path):
    folder = tmp_path / "arrays"
    for label in FLAT:
        (folder / label).mkdir(parents=True)
        for i in range(2):
            np.save(folder / label / f"{i}.npy", np.full((4, 4, 5), i, np.uint8))
    dataset = open_dataset(zipped(folder, tmp_path / "arrays.zip"), channels=5)
    assert dataset.splits["train"].read(1).tolist() == np.full((4, 4, 5), 1).tolist()


def test_what_macos_leaves_in_archives_is_ignored(tmp_path):
    folder = tree(tmp_path / "photos", *FLAT)
    path = zipped(folder, tmp_path / "a.zip", inside="photos/")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/photos/cat/._0.png", b"x")
        archive.writestr("photos/cat/.DS_Store", b"x")
    assert sizes(open_dataset(path)) == {"train": 6}


def test_an_archive_that_is_read_in_another_process_is_the_same(tmp_path):
    import pickle

    images = read_zip(zipped(tree(tmp_path / "photos", *FLAT), tmp_path / "a.zip")).splits["train"]
    assert (pickle.loads(pickle.dumps(images)).read(4) == images.read(4)).all()


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../evil.png", "/etc/evil.png", "cat/../../evil.png", "C:/evil.png", "..\\evil.png"])
def test_a_path_that_leads_outside_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, png())
    assert "leads outside of it" in message(tmp_path / "a.zip")
    assert "leads outside of it" in message(pack(tmp_path / "a.tar", (entry(name), png())))


def test_a_link_in_an_archive_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        link = zipfile.ZipInfo("cat/0.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert "holds a link (cat/0.png)" in message(tmp_path / "a.zip")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        path = pack(tmp_path / "a.tar", (entry("cat/0.png", type=kind, linkname="/etc/passwd"), b""))
        assert "tar -h" in message(path)


def test_a_device_in_a_tar_is_refused(tmp_path):
    path = pack(tmp_path / "a.tar", (entry("cat/0.png", type=tarfile.CHRTYPE, devmajor=1, devminor=5), b""))
    assert "a device or a pipe (cat/0.png)" in message(path)


@pytest.mark.parametrize("size", [-512, -1024, -1])
def test_a_member_of_a_tar_that_points_back_is_refused(tmp_path, size):
    """Read as it stands, it comes after itself, for ever."""
    path = pack(tmp_path / "a.tar", *((entry(f"cat/{i}.png"), png()) for i in range(4)))
    with tarfile.open(path) as archive:
        offset = archive.getmembers()[2].offset
    content = bytearray(path.read_bytes())
    content[offset + 124 : offset + 136] = (256**12 + size).to_bytes(12, "big")
    content[offset + 148 : offset + 156] = b" " * 8
    content[offset + 148 : offset + 156] = b"%06o\0 " % sum(content[offset : offset + 512])
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"cat/2.png announces {size} bytes"):
        list(islice(walk_tar(path), 100))


def test_folders_in_folders_without_end_are_refused(tmp_path):
    name = f"cat/{'a/' * 3000}0.png"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, png())
    assert "more than 100 deep" in message(tmp_path / "a.zip")
    assert "more than 100 deep" in message(pack(tmp_path / "a.tar", (entry(name), png())))


@pytest.mark.parametrize("kept", [0.2, 0.6, 0.97])
def test_a_zip_that_was_cut_short_is_refused(tmp_path, kept):
    path = zipped(tree(tmp_path / "photos", *FLAT), tmp_path / "a.zip")
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    assert "is not a whole zip archive" in message(path)


def test_a_tar_that_was_cut_short_is_refused_wherever_it_was_cut(tmp_path):
    path = tarred(tree(tmp_path / "photos", *FLAT, count=2), tmp_path / "a.tar")
    whole = path.read_bytes()
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    end = members[-1].offset_data + 512
    for length in [*range(700, end, 512), members[-1].offset, members[-1].offset_data, end - 512, end]:
        path.write_bytes(whole[:length])
        assert "copy or download it again" in message(path), length


def test_an_empty_file_is_no_archive(tmp_path):
    for name in ("a.zip", "a.tar"):
        (tmp_path / name).write_bytes(b"")
        assert "is not a whole" in message(tmp_path / name)


def test_an_encrypted_zip_is_refused(tmp_path):
    path = zipped(tree(tmp_path / "photos", *FLAT), tmp_path / "a.zip")
    data = bytearray(path.read_bytes())
    start = data.find(b"PK\1\2")
    data[start + 8] |= 1
    path.write_bytes(data)
    assert "is encrypted" in message(path)


def test_a_zip_packed_by_another_method_is_refused(tmp_path):
    path = zipped(tree(tmp_path / "photos", *FLAT), tmp_path / "a.zip", method=zipfile.ZIP_LZMA)
    assert "method lzma" in message(path)


@pytest.mark.parametrize("ending", ["tar.gz", "tgz", "tar.bz2", "tar.xz"])
def test_a_tar_that_is_compressed_as_a_whole_is_refused_and_says_what_to_do(tmp_path, ending):
    (tmp_path / f"photos.{ending}").write_bytes(b"\x1f\x8b")
    said = message(tmp_path / f"photos.{ending}")
    assert "tar -xf" in said
    assert "photos.zip" in said


def test_a_member_that_holds_more_than_it_announces_is_a_bad_image(tmp_path):
    """A bomb: 4 KB of zip that would unpack to 4 MB."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for label in FLAT:
            archive.writestr(f"{label}/0.png", png())
            archive.writestr(f"{label}/1.png", png())
        archive.writestr("cat/2.png", bytes(2**22))
    data = bytearray(path.read_bytes())
    place = data.rfind(b"PK\1\2")
    assert struct.unpack_from("<L", data, place + 24)[0] == 2**22
    struct.pack_into("<L", data, place + 24, 100)
    path.write_bytes(data)
    images = read_zip(path).splits["train"]
    with pytest.raises(BadImage, match="announces 100 bytes and holds more"):
        images.read(2)
    assert open_dataset(path, on_bad_image="skip").skipped == ["cat/2.png"]


def test_a_member_that_announces_too_much_is_a_bad_image(tmp_path):
    path = zipped(tree(tmp_path / "photos", *FLAT), tmp_path / "a.zip")
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\1\2")
    struct.pack_into("<L", data, place + 24, 2**31)
    path.write_bytes(data)
    with pytest.raises(BadImage, match=r"announces 2,147,483,648 bytes"):
        read_zip(path).splits["train"].read(0)


def test_a_bit_that_flipped_in_a_zip_is_a_bad_image(tmp_path):
    path = zipped(tree(tmp_path / "photos", *FLAT), tmp_path / "a.zip", method=zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[data.find(b"\x89PNG") + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadImage, match="checksum"):
        read_zip(path).splits["train"].read(0)


def test_an_empty_image_of_an_archive_is_named(tmp_path):
    folder = tree(tmp_path / "photos", *FLAT)
    (folder / "cat/1.png").write_bytes(b"")
    assert "cat/1.png" in message(zipped(folder, tmp_path / "a.zip"))
    assert "the file is empty" in message(tarred(folder, tmp_path / "a.tar"))


def test_an_archive_without_class_folders_says_what_is_expected(tmp_path):
    save(tmp_path / "photos/0.png")
    assert "no class folders" in message(zipped(tmp_path / "photos", tmp_path / "a.zip"))
