"""Parts of data: a run on a part never sees what the part leaves out."""

import json

import numpy as np
import pytest

from vitling.data.sources.dataset import open_dataset
from vitling.data.sources.parts import part_name, write_parts
from vitling.errors import UserError


@pytest.fixture
def divided(tmp_path):
    """An npz of 40 images whose pixels say which they are, and its division into two parts."""
    pixels = np.arange(40, dtype=np.uint8).reshape(40, 1, 1).repeat(8, 1).repeat(8, 2)
    labels = np.arange(40) % 4
    np.savez(
        tmp_path / "data.npz",
        train_images=pixels[:32],
        train_labels=labels[:32],
        test_images=pixels[32:],
        test_labels=labels[32:],
    )
    found = open_dataset(tmp_path / "data.npz").found
    parts = {
        "trial": {"train": ("train", np.arange(16)), "val": ("train", np.arange(16, 24))},
        "final": {
            "train": ("train", np.arange(24)),
            "val": ("train", np.arange(24, 32)),
            "test": ("test", np.arange(8)),
        },
    }
    write_parts(tmp_path / "parts.json", str(tmp_path / "data.npz"), found, parts)
    return tmp_path / "parts.json"


def seen(dataset) -> dict[str, list[int]]:
    return {
        split: [int(images.read(i)[0, 0, 0]) for i in range(len(images))] for split, images in dataset.splits.items()
    }


def test_a_part_holds_its_images_and_no_others(divided):
    trial = open_dataset(part_name("trial", divided))
    assert seen(trial) == {"train": list(range(16)), "val": list(range(16, 24))}
    final = open_dataset(part_name("final", divided))
    assert seen(final) == {"train": list(range(24)), "val": list(range(24, 32)), "test": list(range(32, 40))}
    assert trial.name == "data"
    assert trial.fingerprint != final.fingerprint


def test_a_part_that_is_not_there_is_refused_with_those_that_are(divided):
    with pytest.raises(UserError, match=r"has no part 'tral'\. Did you mean trial"):
        open_dataset(part_name("tral", divided))
    with pytest.raises(UserError, match="no such file"):
        open_dataset(part_name("trial", divided.with_name("gone.json")))


def test_a_part_of_data_that_has_changed_is_refused(divided):
    labels = np.arange(32) % 2
    images = np.zeros((32, 8, 8), np.uint8)
    np.savez(
        divided.parent / "data.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels
    )
    with pytest.raises(UserError, match="has changed since"):
        open_dataset(part_name("trial", divided))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [0, 99]},
        {"rows": [-1]},
        {"source": "validation"},
        {"rows": "all"},
    ],
)
def test_a_damaged_division_is_one_line(divided, change):
    tree = json.loads(divided.read_text())
    tree["parts"]["trial"]["val"] |= change
    divided.write_text(json.dumps(tree))
    with pytest.raises(UserError, match="corrupted"):
        open_dataset(part_name("trial", divided))
