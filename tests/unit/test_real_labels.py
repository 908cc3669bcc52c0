"""ReaL's labels of ImageNet's validation images: the first has none, then come 970 and 795, 230 and 231, 809."""

import pytest
from timm.data import ImageNetInfo

from vitling.evaluation.real_labels import real_accuracy

SYNSETS = ImageNetInfo().label_names()
NAMES = [f"val/folder/ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 5)]


def test_a_prediction_counts_where_it_is_one_of_the_labels():
    assert real_accuracy([795, 231, 0], NAMES[1:], SYNSETS) == pytest.approx(2 / 3)
    assert real_accuracy([970, 230, 809], NAMES[1:], SYNSETS) == 1.0


def test_images_without_a_label_do_not_count():
    assert real_accuracy([0, 970], NAMES[:2], SYNSETS) == 1.0
    assert real_accuracy([0], NAMES[:1], SYNSETS) is None


def test_classes_may_be_numbered_in_another_order_or_be_a_part_of_them():
    assert real_accuracy([1, 0], NAMES[2:], ["n01440764", SYNSETS[230]]) == 0.5


def test_other_images_and_other_classes_have_no_such_labels():
    assert real_accuracy([0], ["test/cat/1.png"], SYNSETS) is None
    assert real_accuracy([0], NAMES[:1], ["cat", "dog"]) is None
    assert real_accuracy([], [], SYNSETS) is None
