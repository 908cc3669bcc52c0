"""What can only be read from the beginning: Hugging Face datasets that are not downloaded, and tar shards on a server.

The labels are read once, in a pass over all shards, and kept on disk; with them everything else is known beforehand: the classes,
the splits, and the order of every epoch, in which a training that resumes goes on. Images are read when they are needed, shard by shard.
"""

import hashlib
import json
import os
import re
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from vitling.data.sources.archives import MOST_BYTES, Member, check_tar_entry
from vitling.data.sources.images import BadImage, EncodedImages, Images
from vitling.data.sources.named import cache_folder, hub_classes, hub_columns, import_datasets, in_hub
from vitling.data.sources.shards import LABEL_ENDINGS, expand_braces, group_samples, label_of, name_classes, split_of
from vitling.data.sources.tree import SPLITS, Found, is_image
from vitling.errors import UserError, first_line
from vitling.files import replacing

HUB = "hf-stream:"
RECENT_BYTES = 2**27  # encoded images that were passed and may be asked for next, as by several threads
REMEMBERED_BYTES = 2**15  # of a tar; tarfile reads 10 KB at a time
HEADS_OF = 64  # shards of which a sample is taken
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Shard(Protocol):
    """A part of a stream that can be opened by itself."""

    def labels(self) -> Iterator[Any]:
        """The label of each sample."""

    def images(self) -> Iterator[bytes | None]:
        """The encoded image of each sample, in the same order; None for an empty cell."""


class StreamImages(EncodedImages):
    """Images in shards that are read from the beginning. Asking for them in order is fast, in any other order slow."""

    def __init__(self, shards: Sequence[Shard], counts: Sequence[int], labels: np.ndarray, name: str, identity: str):
        super().__init__(labels, [f"{name}[{i}]" for i in range(len(labels))])
        self.parts, self.identity = list(shards), identity
        self.starts = np.cumsum([0, *counts])
        self._begin()

    def _begin(self) -> None:
        self.lock = threading.Lock()
        self.recent: OrderedDict[int, bytes | None] = OrderedDict()
        self.recent_bytes = 0
        self.reading: tuple[int, int, Iterator[bytes | None]] | None = None  # shard, next row, the images that follow

    def __getstate__(self) -> dict[str, Any]:
        own = ("lock", "recent", "recent_bytes", "reading")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    @property
    def shards(self) -> np.ndarray:
        """The number of each image's shard."""
        return np.searchsorted(self.starts, self.rows, side="right") - 1

    def sample(self, count: int) -> np.ndarray:
        """The first images of evenly spaced shards, as many of each: the rest would have to be read to get any further."""
        by_shard = [np.flatnonzero(self.shards == shard) for shard in np.unique(self.shards)]
        chosen = [by_shard[k] for k in np.linspace(0, len(by_shard) - 1, min(len(by_shard), HEADS_OF)).astype(int)]
        return np.sort(np.concatenate([rows[: -(-count // len(chosen))] for rows in chosen]))[:count]

    def walk(self, shard: int) -> Iterator[tuple[int, bytes | None]]:
        """The rows of a shard, each with its encoded image."""
        first, stop = int(self.starts[shard]), int(self.starts[shard + 1])
        row = first
        with _explained(f"shard {shard} of {self.names[0].partition('[')[0] if self.names else 'the stream'}"):
            for data in self.parts[shard].images():
                if row == stop:
                    break
                yield row, data
                row += 1
        if row < stop:
            raise UserError(
                f"shard {shard} of the stream holds {row - first} images, {stop - first} were there when its labels were read; "
                "it was cut short or has changed: download it again, or train anew"
            )

    def encoded(self, i: int) -> bytes:
        """The bytes of image i; everything before it in its shard is passed."""
        row = int(self.rows[i])
        with self.lock:
            if row not in self.recent:
                self._advance(row)
            data = self.recent[row]
        return self.check(i, data)

    def _advance(self, row: int) -> None:
        shard = int(np.searchsorted(self.starts, row, side="right") - 1)
        if self.reading is None or self.reading[0] != shard or self.reading[1] > row:
            self.reading = shard, int(self.starts[shard]), (data for _, data in self.walk(shard))
        _, place, images = self.reading
        while place <= row:
            data = next(images)
            self.recent[place] = data
            self.recent_bytes += len(data or b"")
            place += 1
            while self.recent_bytes > RECENT_BYTES and len(self.recent) > 1:
                self.recent_bytes -= len(self.recent.popitem(last=False)[1] or b"")
        self.reading = shard, place, images

    def check(self, i: int, data: bytes | None) -> bytes:
        if not data:
            raise BadImage(self.names[i], "the cell is empty")
        return data

    def source(self, i: int) -> BytesIO:
        return BytesIO(self.encoded(i))

    def fetched(self, i: int, data: bytes | None) -> "FetchedImage":
        """Image i alone, of which the bytes are here."""
        return FetchedImage(self, i, self.check(i, data))

    def identities(self) -> list[bytes]:
        return [
            hashlib.blake2b(f"{self.identity}/{row}".encode(), digest_size=16).digest() for row in self.rows.tolist()
        ]

    def content(self) -> bytes:
        return hashlib.sha256(self.identity.encode() + self.rows.tobytes()).digest()


class FetchedImage(EncodedImages):
    """One image of a stream, in memory."""

    def __init__(self, stream: StreamImages, i: int, data: bytes):
        super().__init__([stream.labels[i]], [stream.names[i]])
        self.alpha, self.data = stream.alpha, data

    def source(self, i: int) -> BytesIO:
        return BytesIO(self.data)

    def content(self) -> bytes:
        return hashlib.sha256(self.data).digest()


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """One line for whatever a network, a server or a damaged shard makes the packages below raise."""
    try:
        yield
    except (UserError, GeneratorExit):
        raise
    except Exception as error:
        raise UserError(
            f"{what} could not be read ({first_line(error).rstrip('.')[:200]}); check the connection and the data. "
            "What was saved stays: the same command goes on from there"
        ) from error


def _read_labels(shards: Sequence[Shard], identity: str, what: str) -> list[list[Any]]:
    """The labels of every shard: as they were read before, or in a pass over all of them."""
    path = _place_of_labels(identity)
    try:
        known = json.loads(path.read_bytes()) if path and path.is_file() else None
        if isinstance(known, list) and len(known) == len(shards) and all(isinstance(part, list) for part in known):
            return known
    except (ValueError, OSError, RecursionError):
        pass  # corrupted: it is written again
    labels = []
    for number, shard in enumerate(shards):
        with _explained(f"shard {number} of {what}"):
            labels.append(list(shard.labels()))
    if path:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(labels))
    return labels


def _place_of_labels(identity: str) -> Path | None:
    folder = os.environ.get("VITLING_CACHE") or cache_folder() / "pixels"
    if os.environ.get("VITLING_CACHE_GB") in ("0", "0.0"):
        return None
    return Path(folder).expanduser() / "streams" / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"


# --- Hugging Face -----------------------------------------------------------------------------------------------------


@dataclass
class HubShard:
    """One of the files that a dataset of the hub consists of."""

    table: Any
    image: str
    label: str
    number: int

    def _part(self, column: str) -> Any:
        return self.table.select_columns([column]).shard(num_shards=self.table.num_shards, index=self.number)

    def labels(self) -> Iterator[Any]:
        for row in self._part(self.label):
            yield row[self.label]

    def images(self) -> Iterator[bytes | None]:
        from datasets import Image  # of the extra hub

        # Left encoded, so that rotation, palettes and depth are treated as they are for files.
        for row in self._part(self.image).cast_column(self.image, Image(decode=False)):
            cell = row[self.image]
            if cell and cell["bytes"] is None and cell["path"]:
                yield _read_cell(cell["path"])
            else:
                yield cell and cell["bytes"]


def _read_cell(path: str) -> bytes:
    import fsspec  # of datasets

    with fsspec.open(path, "rb") as file:
        return file.read(MOST_BYTES)


def read_hub_stream(address: str, download: bool) -> Found:
    """`owner/name`, `owner/name:config`, or a folder that load_dataset reads; nothing is downloaded but what is read."""
    datasets = import_datasets(f"{HUB}{address}")
    if not address:
        raise UserError(f"{HUB} names no dataset; write {HUB}owner/name")
    if not download and not os.path.exists(address):
        raise UserError(f"{HUB}{address} is read from the hub, which download=False forbids; use hf:{address}")
    path, config = address, None
    if not os.path.exists(address) and ":" in address:
        path, config = address.rsplit(":", 1)
    with in_hub(datasets, f"{HUB}{address}"):
        builder = datasets.load_dataset_builder(path, config)
        tables = builder.as_streaming_dataset()
    notes, by_split = ["it is streamed: shuffled shard by shard, with a buffer"], {}
    for given, table in tables.items():
        if (split := SPLITS.get(given.lower())) and split not in by_split:
            by_split[split] = table if table.features else table._resolve_features()
        else:
            notes.append(f"split '{given}' of {HUB}{address} left out")
    if "train" not in by_split:
        raise UserError(f"{HUB}{address} has no train split; its splits are: {', '.join(tables)}")
    image, label = hub_columns(by_split["train"], f"{HUB}{address}")
    files = getattr(builder.config, "data_files", None) or {}
    version = repr(
        [builder.hash, builder.config.name, [(k, list(v), getattr(v, "origin_metadata", 0)) for k, v in files.items()]]
    )
    parts, labels = {}, {}
    for split, table in by_split.items():
        parts[split] = [HubShard(table, image, label, number) for number in range(table.num_shards)]
        labels[split] = _read_labels(parts[split], f"{version}/{split}/{image}/{label}", f"{HUB}{address}")
    values = {value for of_split in labels.values() for of_shard in of_split for value in of_shard}
    class_names, number_of = hub_classes(by_split["train"].features[label], values)
    splits: dict[str, Images] = {}
    for split in by_split:
        numbers = np.array([number_of(v) for of_shard in labels[split] for v in of_shard], np.int64)
        if (numbers < 0).all():
            notes.append(f"split '{split}' of {HUB}{address} has no labels and was left out")
            continue
        if (numbers < 0).any():
            raise UserError(f"{HUB}{address}: {int((numbers < 0).sum())} images of split '{split}' have no label")
        counts = list(map(len, labels[split]))
        splits[split] = StreamImages(parts[split], counts, numbers, split, f"{version}/{split}/{image}")
    if "train" not in splits:
        raise UserError(f"{HUB}{address}: no image of its train split has a label in column {label}")
    return Found(class_names, splits, notes)


# --- tar shards on a server -------------------------------------------------------------------------------------------


def is_address(data: str) -> bool:
    return bool(_ADDRESS.match(data))


@dataclass
class RemoteTar:
    """A WebDataset shard at an address."""

    address: str

    def _samples(self) -> Iterator[tuple[str, bytes]]:
        import fsspec  # of the extra hub

        with fsspec.open(self.address, "rb") as stream:
            file = _Ending(stream)
            with tarfile.open(fileobj=file, mode="r|") as archive:  # type: ignore[call-overload]
                for key, files in group_samples(self._files(archive)):
                    images = [(member.name, content) for member, content in files if is_image(member.name)]
                    if images:
                        yield label_of(self.address, key, {m.name: content for m, content in files}), images[0][1]
            file.check_end(archive.offset, self.address)

    def _files(self, archive: tarfile.TarFile) -> Iterator[tuple[Member, bytes]]:
        for entry in archive:
            name = check_tar_entry(self.address, entry)
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep every header
            if not entry.isreg() or not (is_image(name) or name.lower().endswith(LABEL_ENDINGS)):
                continue
            if entry.size > MOST_BYTES:
                raise UserError(f"{self.address}: {name} announces {entry.size:,} bytes; up to {MOST_BYTES:,} are read")
            content = archive.extractfile(entry)
            assert content is not None  # a regular file
            yield Member(name, 0, entry.size, entry.size), content.read()

    def labels(self) -> Iterator[str]:
        return (label for label, _ in self._samples())

    def images(self) -> Iterator[bytes]:
        return (image for _, image in self._samples())


class _Ending:
    """A file that remembers what was read last, by which a tar that was cut short or damaged is known: tarfile takes either for its end."""

    def __init__(self, stream: IO[bytes]):
        self.stream, self.last, self.read_bytes = stream, b"", 0

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.last, self.read_bytes = (self.last + data)[-REMEMBERED_BYTES:], self.read_bytes + len(data)
        return data

    def check_end(self, offset: int, address: str) -> None:
        """Refuse a tar that does not end where the next file would begin."""
        block = self.last[max(0, len(self.last) - (self.read_bytes - offset)) :][:512]
        if len(block) < 512:
            raise UserError(f"{address} was cut short: it ends before its end mark; copy it to the server again")
        if any(block):
            raise UserError(f"{address} is damaged at byte {offset:,}; copy it to the server again")


def read_remote(data: str) -> Found:
    """Shards at `https://`, `s3://` and whatever else fsspec opens."""
    addresses = expand_braces(data)
    if not all(address.partition("?")[0].lower().endswith(".tar") for address in addresses):
        raise UserError(
            f"{data} is read over the network, where only WebDataset's .tar shards are; download anything else and give its path"
        )
    try:
        import fsspec  # of the extra hub
    except ImportError:
        raise UserError(f'{data} needs the package fsspec; install it with: pip install "vitling[hub]"') from None
    found: dict[str, list[str]] = {}
    for address in addresses:
        found.setdefault(split_of(address.partition("?")[0]), []).append(address)
    notes = ["it is streamed: shuffled shard by shard, with a buffer"]
    versions = []
    for address in addresses:
        with _explained(address):
            system, path = fsspec.core.url_to_fs(address)
            facts = system.info(path)
        known = ("size", "ETag", "etag", "mtime", "LastModified", "last_modified", "created")
        versions.append((address, [str(facts.get(fact)) for fact in known]))
    parts = {split: [RemoteTar(address) for address in shards] for split, shards in found.items()}
    labels = {split: _read_labels(parts[split], f"{versions}/{split}", data) for split in parts}
    everything = [label for of_split in labels.values() for of_shard in of_split for label in of_shard]
    class_names, number = name_classes(everything, None, notes)
    splits = {
        split: StreamImages(
            parts[split],
            list(map(len, labels[split])),
            np.array([number[label] for of_shard in labels[split] for label in of_shard], np.int64),
            split,
            f"{versions}/{split}",
        )
        for split in parts
    }
    return Found(class_names, splits, notes)
