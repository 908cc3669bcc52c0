"""Zip and tar archives, read where they lie: any image at once, nothing is unpacked.

What an archive says of itself is not trusted. Paths that lead outside, links and devices are refused, a member gives no more bytes than it
announces, and an archive that was cut short is noticed before anything is read from it.
"""

import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from vitling.data.sources.images import BadImage, EncodedImages, Images, identify
from vitling.data.sources.tree import DEEPEST, SPLITS, Found, Tree, is_hidden, is_image, read_tree
from vitling.errors import UserError, first_line

MOST_BYTES = 2**29  # of one image, unpacked; Pillow has its own limit of pixels
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_BLOCK = 512  # bytes, of a tar


class Member(NamedTuple):
    """A file in an archive: where its bytes lie, and how many they are packed and unpacked."""

    name: str
    offset: int
    packed: int
    size: int
    deflated: bool = False
    checksum: int = -1  # CRC-32 of the unpacked bytes; -1 where the archive has none


class ArchiveImages(EncodedImages):
    """The images among the members of one or several archives."""

    has_file_names = True

    def __init__(
        self,
        archives: Sequence[Path],
        members: Sequence[tuple[int, Member]],
        labels: Sequence[int] | np.ndarray,
        names: Sequence[str] | None = None,
    ):
        """A member stands with the number of its archive. Images are called as their members unless `names` are given."""
        super().__init__(labels, names if names is not None else [member.name for _, member in members])
        self.archives = [os.fspath(path) for path in archives]
        self.table = np.array([(number, *member[1:]) for number, member in members], np.int64).reshape(-1, 6)

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each member of the source, unpacked."""
        return self.table[:, 3]

    def shown_name(self, i: int) -> str:
        return f"{self.names[i]} in {self.archives[self.table[self.rows[i], 0]]}"

    def encoded(self, i: int) -> bytes:
        """The bytes of image i."""
        number, offset, packed, size, deflated, checksum = self.table[self.rows[i]].tolist()
        if size == 0:
            raise BadImage(self.shown_name(i), "the file is empty (0 bytes)")
        if size > MOST_BYTES:
            raise BadImage(self.shown_name(i), f"it announces {size:,} bytes; images of up to {MOST_BYTES:,} are read")
        try:
            with open(self.archives[number], "rb") as file:
                data = read_member(file, offset, packed, size, bool(deflated), checksum)
        except (OSError, ValueError, zlib.error) as error:
            raise BadImage(self.shown_name(i), first_line(error).rstrip(".")) from error
        return data

    def source(self, i: int) -> BytesIO:
        return BytesIO(self.encoded(i))

    def identities(self) -> list[bytes]:
        whole = [identify(path) for path in self.archives]
        places = self.table[self.rows, :2].tolist()
        return [whole[number] and whole[number][:8] + offset.to_bytes(8, "little") for number, offset in places]

    def content(self) -> bytes:
        return self.table[self.rows][:, [3, 5]].tobytes()


def read_member(file: IO[bytes], offset: int, packed: int, size: int, deflated: bool, checksum: int) -> bytes:
    """The bytes of a member, and never more than it announces."""
    file.seek(offset)
    if checksum >= 0:  # of a zip: the directory tells where a header of variable length begins
        header = file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\3\4":
            raise ValueError("the archive is corrupted where its directory says that it lies")
        *_, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        file.seek(name_length + extra_length, os.SEEK_CUR)
    data = file.read(packed)
    if len(data) < packed:
        raise ValueError("the archive ends in the middle of it")
    if deflated:
        unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
        data = unpacking.decompress(data, size + 1)
    if len(data) != size:
        raise ValueError(f"it announces {size:,} bytes and holds {'more' if len(data) > size else 'fewer'}")
    if checksum >= 0 and zlib.crc32(data) != checksum:
        raise ValueError("its checksum is wrong, so the archive is corrupted")
    return data


# --- what an archive lists --------------------------------------------------------------------------------------------


def list_zip(path: Path) -> list[Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise UserError(
            f"{path} is not a whole zip archive ({first_line(error)[:-1]}); copy or download it again"
        ) from error
    members = []
    for entry in entries:
        name = _safe_name(path, entry.filename)
        kind = entry.external_attr >> 16
        if stat.S_ISLNK(kind):
            raise _link(path, entry.filename, "pack what it points to, without zip's option -y")
        if entry.is_dir() or not is_image(name):
            members.append(Member(name, 0, 0, 0))
            continue
        if entry.flag_bits & 1:
            raise UserError(f"{path} is encrypted ({entry.filename}); unpack it and give the folder")
        if entry.compress_type not in (STORED, DEFLATED):
            method = zipfile.compressor_names.get(entry.compress_type, str(entry.compress_type))  # type: ignore[attr-defined]
            raise UserError(
                f"{path} is packed by the method {method} ({entry.filename}); stored and deflate are read: unpack it and give the folder"
            )
        place = entry.header_offset, entry.compress_size, entry.file_size
        if entry.header_offset + entry.compress_size > os.path.getsize(path):
            raise _cut_short(path, entry.filename)
        members.append(Member(name, *place, entry.compress_type == DEFLATED, entry.CRC))
    return [member for member, entry in zip(members, entries, strict=True) if not entry.is_dir()]


def list_tar(path: Path) -> list[Member]:
    """The files of a tar, from its headers: their contents are skipped."""
    return [member for member, _ in walk_tar(path)]


def walk_tar(path: Path, contents: Sequence[str] = ()) -> Iterator[tuple[Member, bytes]]:
    """The files of a tar, each with its content where its name ends in one of `contents`."""
    total = os.path.getsize(path)
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for entry in archive:
                name = check_tar_entry(path, entry)
                if entry.isdir():
                    continue
                if entry.offset_data + entry.size > total:
                    raise _cut_short(path, entry.name)
                content = b""
                if name.lower().endswith(tuple(contents)) and entry.size <= MOST_BYTES:
                    place = file.tell()
                    file.seek(entry.offset_data)
                    content = file.read(entry.size)
                    file.seek(place)
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep every header
                yield Member(name, entry.offset_data, entry.size, entry.size), content
            file.seek(archive.offset)
            if file.read(_BLOCK) != bytes(_BLOCK):  # two empty blocks are its end
                raise _cut_short(path, "its end mark")
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} is not a whole tar archive ({first_line(error)[:-1]}); copy or download it again"
        ) from error


def check_tar_entry(path: Path | str, entry: tarfile.TarInfo) -> str:
    """The name of what a tar holds; refused is everything but files and folders inside of it."""
    name = _safe_name(path, entry.name)
    if entry.size < 0:  # what follows would be what was before, again and again
        raise UserError(f"{path} is damaged: {entry.name[:80]} announces {entry.size} bytes; copy or download it again")
    if entry.issym() or entry.islnk():
        raise _link(path, entry.name, "pack what it points to (tar -h)")
    if entry.sparse is not None:
        raise UserError(f"{path} holds a sparse file ({entry.name}); pack it as an ordinary file (tar without -S)")
    if not (entry.isreg() or entry.isdir()):
        raise UserError(f"{path} holds a device or a pipe ({entry.name}); only files and folders are read")
    return name


def _safe_name(path: Path | str, name: str) -> str:
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or "\0" in name or (len(parts[0]) == 2 and parts[0][1] == ":"):
        raise UserError(f"{path} holds '{name[:80]}', a path that leads outside of it; such an archive is not read")
    if len(parts) > DEEPEST:
        raise UserError(
            f"{path} holds folders in folders, more than {DEEPEST} deep ({name[:80]}...); pack it again, flatter"
        )
    return "/".join(part for part in parts if part not in ("", "."))


def _link(path: Path | str, name: str, remedy: str) -> UserError:
    return UserError(f"{path} holds a link ({name[:80]}), which could lead outside of it; {remedy}")


def _cut_short(path: Path | str, name: str) -> UserError:
    return UserError(f"{path} was cut short: it ends before {name[:80]}; copy or download it again")


# --- a tree of class folders in an archive ----------------------------------------------------------------------------


class ArchiveTree(Tree):
    """The folders of an archive. A single folder around all others, as most archives have it, is left out."""

    def __init__(self, path: Path, members: Iterable[Member]):
        self.path = path
        self.members: dict[str, Member] = {}
        self.folders: dict[str, tuple[set[str], list[str]]] = {"": (set(), [])}
        for member in members:
            parts = member.name.split("/")
            if any(map(is_hidden, parts)):
                continue
            if member.name in self.members:
                raise UserError(f"{path} holds {member.name} twice; pack it again")
            self.members[member.name] = member
            for depth in range(1, len(parts)):
                above, here = "/".join(parts[: depth - 1]), "/".join(parts[:depth])
                self.folders.setdefault(above, (set(), []))[0].add(parts[depth - 1])
                self.folders.setdefault(here, (set(), []))
            self.folders["/".join(parts[:-1])][1].append(parts[-1])
        self.root = self._root()

    def _root(self) -> str:
        here = ""
        while True:
            folders, files = self.folders[here]
            only = next(iter(folders)) if len(folders) == 1 else ""
            inner = f"{here}/{only}" if here else only
            if not only or only.lower() in SPLITS or any(map(is_image, files)) or not self.folders[inner][0]:
                return here
            here = inner

    def _place(self, name: str) -> str:
        return "/".join(part for part in (self.root, name) if part)

    def scan(self, folder: str) -> tuple[list[str], list[str]]:
        folders, files = self.folders[self._place(folder)]
        return sorted(folders), files

    def images(self, names: Sequence[str], labels: Sequence[int]) -> Images:
        return ArchiveImages([self.path], [(0, self.members[self._place(name)]) for name in names], labels, names)

    def show(self, folder: str) -> str:
        return f"{self.path}:{folder}" if folder else str(self.path)


def read_zip(path: Path) -> Found:
    """A zip of class folders."""
    return read_tree(ArchiveTree(path, list_zip(path)))


def refuse_compressed(path: Path) -> None:
    """Refuse a tar that is compressed as a whole: no image in it can be read without all those before it."""
    if ending := next((ending for ending in COMPRESSED_TARS if path.name.lower().endswith(ending)), None):
        plain = path.name[: -len(ending)]
        raise UserError(
            f"{path} is compressed as a whole, so that no image can be read without all before it; "
            f"unpack it (tar -xf {path.name}) and give the folder, or make it {plain}.tar or {plain}.zip"
        )
