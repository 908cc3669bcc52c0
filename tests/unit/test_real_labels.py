"""ReaL's labels of ImageNet's validation images."""

import pytest
from timm.data import ImageNetInfo

from vitling.evaluation.real_labels import real_accuracy

SYNSETS = ImageNetInfo().label_names()
NAMES = [f"val/{folder}/ILSVRC2012_val_{number:08d}.JPEG" for folder, number in (("n01", 1), ("n02", 2), ("n03", 3))]


def real(number: int) -> list[int]:
    """What ReaL says of an image, found by asking for every class alone."""
    name = [f"ILSVRC2012_val_{number:08d}.JPEG"]
    return [c for c in range(1000) if real_accuracy([c], name, SYNSETS) == 1.0]


def test_a_prediction_counts_where_it_is_one_of_the_labels():
    labels = [real(number) for number in (1, 2, 3)]
    assert all(labels)
    wrong = next(c for c in range(1000) if c not in labels[1])
    assert real_accuracy([labels[0][0], wrong, labels[2][-1]], NAMES, SYNSETS) == pytest.approx(2 / 3)


def test_images_without_a_label_do_not_count():
    unlabelled = next(
        n for n in range(1, 50_001) if real_accuracy([0], [f"ILSVRC2012_val_{n:08d}.JPEG"], SYNSETS) is None
    )
    first = real(1)[0]
    assert real_accuracy([first, 0], [NAMES[0], f"ILSVRC2012_val_{unlabelled:08d}.JPEG"], SYNSETS) == 1.0


def test_classes_may_be_numbered_in_another_order_or_be_a_part_of_them():
    synset = SYNSETS[real(1)[0]]
    assert real_accuracy([0], NAMES[:1], [synset, "n01440764"]) == 1.0


def test_other_images_and_other_classes_have_no_such_labels():
    assert real_accuracy([0], ["test/cat/1.png"], SYNSETS) is None
    assert real_accuracy([0], NAMES[:1], ["cat", "dog"]) is None
    assert real_accuracy([], [], SYNSETS) is None
