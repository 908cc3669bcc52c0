"""Dividing labelled images: validation, folds, fractions."""

import numpy as np
import pytest

from vitling.data import carve_validation, k_folds, open_dataset, take_fraction
from vitling.data.pipeline.training_data import split_training
from vitling.errors import UserError
from vitling.recipes import Recipe

UNEVEN = np.repeat(np.arange(4), [100, 40, 9, 2])[np.random.default_rng(0).permutation(151)]


def test_a_carved_validation_split_keeps_the_proportions_of_the_classes():
    labels = np.tile(np.arange(5), 40)
    train, val = carve_validation(labels, fraction=0.1, seed=3)
    assert np.bincount(labels[val]).tolist() == [4] * 5
    assert sorted([*train, *val]) == list(range(200))


def test_every_class_has_an_image_on_both_sides_however_rare_it_is():
    train, val = carve_validation(UNEVEN, fraction=0.1, seed=0)
    assert len(val) == 15
    assert np.bincount(UNEVEN[val], minlength=4).min() == 1
    assert np.bincount(UNEVEN[train], minlength=4).min() >= 1


@pytest.mark.parametrize(("fraction", "count"), [(0.001, 4), (0.11, 17), (0.66, 100), (0.999, 147)])
def test_a_carved_split_has_exactly_its_part_of_the_images(fraction, count):
    train, val = carve_validation(UNEVEN, fraction=fraction, seed=0)
    assert len(val) == count
    assert set(UNEVEN[train]) == set(UNEVEN[val]) == {0, 1, 2, 3}


def test_carving_depends_on_the_seed_and_on_nothing_else():
    first, again, other = (carve_validation(UNEVEN, seed=seed)[1] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_classes_are_drawn_independently():
    _, val = carve_validation(np.repeat([0, 1], 50), fraction=0.2, seed=0)
    assert not np.array_equal(val[:10], val[10:] - 50)


def test_more_images_of_one_class_leave_the_draw_of_the_others_alone():
    before, after = (take_fraction(np.repeat([0, 1], [30, n]), 0.2, seed=0) for n in (20, 90))
    assert np.array_equal(before[:6], after[:6])


def test_a_class_with_one_image_cannot_be_divided_and_is_named():
    with pytest.raises(UserError, match="class 'rare' cannot be divided: each needs at least two images"):
        carve_validation(np.array([0, 0, 0, 1]), class_names=["common", "rare"])


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_an_impossible_validation_split_says_what_is_possible(fraction):
    with pytest.raises(UserError, match="not between 0 and 1"):
        carve_validation(UNEVEN, fraction=fraction)


def test_each_image_is_validated_in_exactly_one_fold():
    folds = k_folds(UNEVEN, 5, seed=0)
    assert sorted(np.concatenate([val for _, val in folds])) == list(range(len(UNEVEN)))
    for train, val in folds:
        assert sorted([*train, *val]) == list(range(len(UNEVEN)))
        assert len(val) in (30, 31)
        assert set(UNEVEN[train]) == {0, 1, 2, 3}
        assert abs(np.bincount(UNEVEN[val], minlength=4) - np.array([20, 8, 1.8, 0.4])).max() <= 1


def test_folds_repeat_with_the_seed():
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(k_folds(UNEVEN, 3, 7), k_folds(UNEVEN, 3, 7), strict=True))
    assert any(
        not np.array_equal(a[1], b[1]) for a, b in zip(k_folds(UNEVEN, 3, 7), k_folds(UNEVEN, 3, 8), strict=True)
    )


@pytest.mark.parametrize("k", [1, 152])
def test_a_wrong_number_of_folds_is_an_error(k):
    with pytest.raises(UserError, match="choose 2 to 151"):
        k_folds(UNEVEN, k)


def test_a_fraction_takes_the_same_part_of_every_class():
    kept = take_fraction(UNEVEN, 0.1, seed=0)
    assert np.bincount(UNEVEN[kept]).tolist() == [10, 4, 1, 1]


@pytest.mark.parametrize("rule", ["vitling", "bootstrapping"])
def test_a_small_fraction_lies_inside_a_larger_one(rule):
    labels = np.repeat(np.arange(3), 60)
    small, half, whole = (set(take_fraction(labels, f, 5, rule)) for f in (0.1, 0.5, 1.0))
    assert small < half < whole == set(range(180))


def test_the_vitling_rule_depends_on_the_seed_and_the_bootstrapping_rule_does_not():
    assert not np.array_equal(take_fraction(UNEVEN, 0.2, 0), take_fraction(UNEVEN, 0.2, 1))
    labels = np.repeat(np.arange(3), 60)
    a, b = (take_fraction(labels, 0.2, seed, "bootstrapping") for seed in (0, 1))
    assert np.array_equal(a, b)


def test_the_bootstrapping_rule_shuffles_each_class_with_its_own_number():
    labels = np.array([1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1])
    expected = []
    for c in range(2):
        files = [i for i, label in enumerate(labels) if label == c]
        np.random.default_rng(seed=c).shuffle(files)
        expected += files[: round(0.5 * len(files))]
    assert take_fraction(labels, 0.5, rule="bootstrapping").tolist() == sorted(expected)


@pytest.mark.parametrize(
    ("fraction", "rule", "message"),
    [
        (0.0, "vitling", r"fraction 0.0 is not in \(0, 1\]"),
        (1.5, "vitling", r"fraction 1.5 is not in \(0, 1\]"),
        (0.5, "bootstraping", "Did you mean bootstrapping"),
        (0.1, "bootstrapping", "leaves nothing of class 3"),
    ],
)
def test_an_impossible_fraction_is_an_error(fraction, rule, message):
    with pytest.raises(UserError, match=message):
        take_fraction(UNEVEN, fraction, rule=rule)


def labelled(tmp_path, per_class=40):
    labels = np.arange(3 * per_class) % 3
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    np.savez(tmp_path / "data.npz", train_images=images, train_labels=labels)
    return open_dataset(tmp_path / "data.npz"), labels


def places(images):
    return {int(images.read(i).flat[0]) for i in range(len(images))}


def test_the_papers_part_is_taken_of_all_images_and_validation_is_carved_from_that_part(tmp_path):
    dataset, labels = labelled(tmp_path)
    for seed in (0, 1):
        recipe = Recipe(fraction=0.25, fraction_rule="bootstrapping", val_fraction=0.1, seed=seed)
        train, val = split_training(dataset, recipe)
        assert places(train) | places(val) == set(take_fraction(labels, 0.25, rule="bootstrapping"))
        assert (len(train), len(val)) == (27, 3)


def test_our_own_fractions_are_all_validated_on_the_same_images(tmp_path):
    dataset, _ = labelled(tmp_path)
    parts = [split_training(dataset, Recipe(fraction=fraction)) for fraction in (0.25, 0.5, 1.0)]
    assert len({frozenset(places(val)) for _, val in parts}) == 1
    assert [len(train) for train, _ in parts] == [27, 54, 108]
