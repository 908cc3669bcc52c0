"""Whether images are still those that a run was trained on, as far as a dataset's fingerprint does not tell.

The fingerprint of image files holds their names, labels and sizes: it is there at once, and the same on every machine. A run that
resumes also compares contents. Where a split was decoded into memory, that is every pixel; and always the bytes of files, of all
of them or, where they are many, of an even sample.
"""

import hashlib
import platform

import numpy as np
import PIL
from torch import Tensor

from vitling.data.augment.ragged import Ragged
from vitling.data.pipeline.loader import Resident, ResidentPictures, Source
from vitling.data.sources.archives import ArchiveImages
from vitling.data.sources.images import UNKNOWN_SIZE, FileImages, Images, evenly

SAMPLE_BYTES = 2**27


def hash_contents(images: Images, source: Source, split: str) -> dict[str, str]:
    """Hashes by what they are of: two of one name must be equal. Other decoders give other pixels, so those have another name."""
    if not isinstance(images, FileImages | ArchiveImages):
        return {}  # its fingerprint is made of its contents
    hashes = {f"files of {split}": _hash_files(images)}
    if isinstance(source, Resident | ResidentPictures):
        name = f"pixels of {split}, by Pillow {PIL.__version__} on {platform.machine()}"
        hashes[name] = _hash_pixels(source.images)
    return hashes


def _hash_pixels(images: Tensor | Ragged) -> str:
    digest = hashlib.sha256()
    for part in images.images if isinstance(images, Ragged) else [images]:
        digest.update(np.ascontiguousarray(part.numpy()).data)
    return digest.hexdigest()


def _hash_files(images: FileImages | ArchiveImages) -> str:
    """Of the bytes of all files, or of so many, evenly spaced, as are read in a moment."""
    sizes = images.sizes[images.rows].clip(min=0)
    if (unknown := images.sizes[images.rows] == UNKNOWN_SIZE).any():  # a look asks only some files for their size
        sizes = np.where(unknown, sizes[~unknown].mean(), sizes)
    count = len(images) if sizes.sum() <= SAMPLE_BYTES else max(1, int(SAMPLE_BYTES / sizes.mean()))
    digest = hashlib.sha256()
    for i in evenly(len(images), count):
        digest.update(hashlib.sha256(images.encoded(i)).digest())
    return digest.hexdigest()
