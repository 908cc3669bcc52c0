"""Runs on object storage (s3://, gs://, whatever fsspec knows): a working folder on this machine, mirrored there.

An object is put whole or not at all, but several are not. So a file is never overwritten there: its object is called by its
content, `files/NAME/SHA256`, and `manifest.json`, put last, says which contents are the run. A reader, or a process killed at any
moment, finds the run of one manifest or of the next. Objects of the manifest before stay until the next one, for readers on
their way; older ones are removed.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypedDict

from vitling.data.sources.named import cache_folder
from vitling.errors import UserError, first_line
from vitling.files import is_temporary, replacing
from vitling.validation.documents import damaged, parse_json
from vitling.validation.values import Longest, Range

MANIFEST = "manifest.json"
_URL = re.compile(r"([a-z][a-z0-9+.]+):/+(?=[^/])(.*)", re.DOTALL)  # of two letters or more: C:/ is a drive
_LOCAL = ("file", "local")


class FileEntry(TypedDict):
    sha256: Annotated[str, Longest(64)]
    size: Annotated[int, Range(0, 10**15)]


class ManifestRecord(TypedDict):
    """manifest.json."""

    number: Annotated[int, Range(1, 10**12)]  # one more each time
    writer: Annotated[str, Longest(64)]  # who wrote it: another one means that two machines train into the same place
    files: dict[str, FileEntry]
    before: list[str]  # objects of the manifest before this one


def as_url(path: str | os.PathLike) -> str | None:
    """A place on other storage, as fsspec writes it; None for a path. `Path` makes s3:/bucket of s3://bucket, which is understood."""
    match = _URL.fullmatch(os.fspath(path))
    if match is None or Path(path).exists():
        return None
    protocol, rest = match.groups()
    return f"{protocol}://{'/' * (protocol in _LOCAL)}{rest.rstrip('/')}"


def working_folder(url: str) -> Path:
    """Where a run on other storage is worked on here: a place below another one lies below it here, too."""
    protocol, _, rest = url.partition("://")
    parts = [re.sub(r"[^\w.=@ -]", "_", part) for part in rest.split("/") if part]
    if {".", ".."} & set(parts):
        raise UserError(f"{url} is no place of its own; leave . and .. out.")
    return cache_folder() / "remote" / protocol / Path(*parts)


class Mirror:
    """A folder here and its copy there."""

    def __init__(self, url: str):
        self.url, self.folder = url, working_folder(url)
        self.leave_out = ""  # a folder in it that is not part of it
        self.writer, self.number = secrets.token_hex(8), 0
        self.known: dict[str, FileEntry] = {}  # what the manifest says that we read or wrote last
        self.not_fetched: set[str] = set()
        self.is_partial = False  # while files are fetched, and where one could not be: what lacks them is not published
        self.hashed: dict[str, tuple[int, int, str]] = {}  # size and time of a file when it was hashed
        self.storage, self.root = _connect(url)
        self.is_folder = url.startswith(tuple(f"{protocol}:" for protocol in _LOCAL))

    # -- from there ------------------------------------------------------------------------------------------------

    def fetch(self, *, checkpoints: bool = True) -> None:
        """Make the folder here what is there. What is here and not there was never published, and goes."""
        self.is_partial = True
        manifest = self._read_manifest()
        self.known = dict(manifest["files"]) if manifest else {}
        self.number = manifest["number"] if manifest else 0
        self.not_fetched = set() if checkpoints else {name for name in self.known if "checkpoint/" in name}
        for name in self._names_here():
            if name not in self.known:
                (self.folder / name).unlink()
        for name, entry in self.known.items():
            if name not in self.not_fetched and self._hash_here(name) != entry["sha256"]:
                self._fetch_file(name, entry)
        self.is_partial = False

    def _fetch_file(self, name: str, entry: FileEntry) -> None:
        digest = hashlib.sha256()
        with replacing(self.folder / name) as temporary, self._explained(f"reading {name} of"):
            try:
                with self.storage.open(self._object(name, entry), "rb") as there, open(temporary, "wb") as here:
                    while block := there.read(1 << 20):
                        digest.update(block)
                        here.write(block)
            except FileNotFoundError:
                raise UserError(
                    f"{name} of {self.url} is not there, though its manifest names it; where the run is being written, try again, else "
                    "restore it."
                ) from None
            if digest.hexdigest() != entry["sha256"]:
                raise UserError(f"{name} of {self.url} is corrupted: it is not what its manifest says; restore it.")

    def _read_manifest(self) -> ManifestRecord | None:
        with self._explained("reading"):
            try:
                text = self.storage.cat_file(f"{self.root}/{MANIFEST}")
            except FileNotFoundError:
                return None
        where = f"{self.url}/{MANIFEST}"
        manifest = parse_json(text.decode(errors="replace"), ManifestRecord, where)
        for name, entry in manifest["files"].items():
            # Somebody else may have written it: every name is one below the folder, every digest is one.
            plain = PurePosixPath(name)
            if (
                not plain.parts
                or plain.is_absolute()
                or ".." in plain.parts
                or "\0" in name
                or plain.as_posix() != name
            ):
                raise damaged(where, f"{name!r:.80} is not the name of a file of a run")
            if not re.fullmatch("[0-9a-f]{64}", entry["sha256"]):
                raise damaged(where, f"{entry['sha256']!r:.80} is not a SHA-256")
        return manifest

    # -- to there --------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Put what is new or has changed, then the manifest that names it, then remove what nobody needs any more."""
        if self.is_partial:
            return
        files = {name: self.known[name] for name in self.not_fetched}
        for name in self._names_here():
            if name not in self.not_fetched:
                files[name] = {"sha256": self._hash_here(name), "size": (self.folder / name).stat().st_size}
        if files == self.known:
            return
        there = self._read_manifest()
        if there and (there["number"], there["files"]) != (self.number, self.known) and there["writer"] != self.writer:
            raise UserError(
                f"another machine writes to {self.url}; nothing of it was overwritten. Choose another place."
            )
        before = sorted(self._object(name, entry) for name, entry in self.known.items())
        old = {f"{self.root}/{path}" for path in (there["before"] if there else [])}
        with self._explained("writing"):
            for name, entry in files.items():
                if self.known.get(name) != entry:
                    self._put(self._object(name, entry), self.folder / name)
            short = [path.removeprefix(f"{self.root}/") for path in before]
            manifest = {"number": self.number + 1, "writer": self.writer, "files": files, "before": short}
            self._put_manifest(json.dumps(manifest, indent=1, ensure_ascii=False).encode())
            needed = {*before, *(self._object(name, entry) for name, entry in files.items())}
            for path in sorted(old - needed):
                if path.startswith(f"{self.root}/files/") and ".." not in path.split("/"):
                    self._remove(path)
        self.known, self.number = files, self.number + 1

    def _put(self, path: str, source: Path) -> None:
        """An object whose name says its content: what a killed process left of it is put again."""
        if self.is_folder:
            self.storage.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.storage.put_file(str(source), path)

    def _put_manifest(self, data: bytes) -> None:
        path = f"{self.root}/{MANIFEST}"
        if self.is_folder:
            with replacing(path) as temporary:  # a folder overwrites in parts, which object storage never does
                temporary.write_bytes(data)
        else:
            self.storage.pipe_file(path, data)

    def _remove(self, path: str) -> None:
        try:
            self.storage.rm_file(path)
        except FileNotFoundError:
            return  # somebody tidied up

    # -- both ------------------------------------------------------------------------------------------------------

    def _object(self, name: str, entry: FileEntry) -> str:
        return f"{self.root}/files/{name}/{entry['sha256']}"

    def _names_here(self) -> Iterator[str]:
        """The files of the run, by their names below its folder."""
        for folder, inner, files in os.walk(self.folder):
            place = Path(folder).relative_to(self.folder)
            inner[:] = [
                name for name in inner if not name.startswith(".") and (place / name).as_posix() != self.leave_out
            ]
            for name in files:
                if not name.startswith(".") and not is_temporary(name) and not (Path(folder) / name).is_symlink():
                    yield (place / name).as_posix()

    def _hash_here(self, name: str) -> str:
        path = self.folder / name
        if not path.is_file():
            return ""
        status = path.stat()
        size, changed, digest = self.hashed.get(name, (-1, -1, ""))
        if (size, changed) != (status.st_size, status.st_mtime_ns):
            with open(path, "rb") as stream:
                digest = (
                    hashlib.file_digest(stream, "sha256").hexdigest()
                    if hasattr(hashlib, "file_digest")
                    else _sha256(stream)
                )
            self.hashed[name] = (status.st_size, status.st_mtime_ns, digest)
        return digest

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Storage that cannot be reached, or refuses us, is something the user can fix; each has exceptions of its own."""
        try:
            yield
        except (UserError, FileNotFoundError):
            raise
        except Exception as error:
            raise UserError(
                f"{doing} {self.url} failed: {first_line(error)} The run so far is in {self.folder}."
            ) from error


def _sha256(stream: Any) -> str:
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _connect(url: str) -> tuple[Any, str]:
    """fsspec's file system for a place, and what it calls it."""
    try:
        import fsspec  # an extra
    except ImportError:
        raise UserError(f'{url} needs the package fsspec: pip install "vitling[remote]".') from None
    protocol = url.partition("://")[0]
    try:
        storage, root = fsspec.core.url_to_fs(url)
    except ImportError as error:  # s3fs for s3://, gcsfs for gs://
        raise UserError(f"{url} needs a package more: {first_line(error)}") from None
    except ValueError as error:
        raise UserError(
            f"fsspec knows no storage {protocol}:// ({first_line(error)[:-1]}); s3:// and gs:// are some."
        ) from None
    except Exception as error:  # of the storage: no credentials, no such host
        raise UserError(f"{url} cannot be opened: {first_line(error)}") from None
    return storage, root.rstrip("/")


_mirrors: dict[str, Mirror] = {}  # one of each place in this process: it knows what was last there


def open_mirror(url: str) -> Mirror:
    if url not in _mirrors:
        _mirrors[url] = Mirror(url)
    return _mirrors[url]
