"""Numbers as a distribution over bins and back, and classes whose names are grades."""

import numpy as np
import pytest
from scipy.stats import norm

from vitling.data.bins import FEWEST, MOST, SIGMA, Bins
from vitling.data.grades import find_grades, read_grades
from vitling.errors import UserError


@pytest.fixture
def ages() -> np.ndarray:
    return np.random.default_rng(0).normal(50, 15, 300)


def test_a_distribution_sums_to_one_and_its_mean_is_the_number(ages):
    bins = Bins.of(ages)
    shares = bins.distribute(ages)
    assert shares.shape == (300, len(bins))
    assert shares.dtype == np.float32
    assert np.allclose(shares.sum(axis=1), 1, atol=1e-6)
    assert np.abs(bins.mean(shares) - ages).max() < 1e-3 * bins.width


def test_a_distribution_is_the_gaussian_integrated_over_the_bins(ages):
    bins = Bins.of(ages)
    [shares] = bins.distribute(ages[:1])
    below = norm.cdf(bins.edges, loc=ages[0], scale=SIGMA * bins.width)
    assert np.allclose(shares, np.diff(below) / (below[-1] - below[0]), atol=1e-6)


def test_mixed_distributions_stand_for_mixed_numbers(ages):
    bins = Bins.of(ages)
    one, other = bins.distribute(ages[:2])
    assert bins.mean((0.3 * one + 0.7 * other)[None])[0] == pytest.approx(0.3 * ages[0] + 0.7 * ages[1], abs=1e-2)


def test_more_images_get_narrower_bins(ages):
    assert len(Bins.of(np.arange(20.0))) == FEWEST
    assert FEWEST < len(Bins.of(np.arange(3000.0))) < MOST
    assert len(Bins.of(np.arange(20000.0))) == MOST


def test_the_bins_reach_beyond_the_training_numbers(ages):
    bins = Bins.of(ages)
    assert bins.edges[0] < ages.min() - 2 * bins.width
    assert bins.edges[-1] > ages.max() + 2 * bins.width
    assert np.allclose(np.diff(bins.edges), bins.width)


def test_counts_with_a_long_tail_are_learnt_as_their_logarithm():
    counts = np.floor(np.random.default_rng(0).lognormal(2, 1.2, 1000))
    bins = Bins.of(counts)
    assert bins.scale == "log1p"
    assert np.allclose(bins.mean(bins.distribute(counts)), counts, rtol=1e-3, atol=1e-2)
    assert float(bins.names[-1].split()[-1]) > counts.max()


@pytest.mark.parametrize("numbers", [np.linspace(0, 10, 100), np.r_[-1, np.exp(np.linspace(0, 9, 100))]])
def test_even_and_negative_numbers_stay_as_they_are(numbers):
    assert Bins.of(numbers).scale == "linear"


def test_an_interval_holds_its_part_of_the_distribution():
    bins = Bins.of(np.linspace(0, 100, 2000))
    [[low, high]] = bins.interval(bins.distribute(np.array([50.0])))
    sigma = SIGMA * bins.width
    assert low == pytest.approx(50 - 1.645 * sigma, abs=0.4 * bins.width)
    assert high == pytest.approx(50 + 1.645 * sigma, abs=0.4 * bins.width)


def test_bins_are_named_by_their_ends_and_all_names_differ():
    names = Bins.of(1e6 + np.linspace(0, 1, 500)).names
    assert len(set(names)) == len(names)
    assert all(" to " in name for name in names)


def test_each_number_lies_in_its_bin(ages):
    bins = Bins.of(ages)
    place = bins.place(np.r_[ages, -1e6, 1e6])
    edges = np.array(bins.edges)
    assert (edges[place[:-2]] <= ages).all()
    assert (ages < edges[place[:-2] + 1]).all()
    assert place[-2:].tolist() == [0, len(bins) - 1]


def test_bins_survive_a_file(ages):
    bins = Bins.of(ages)
    assert Bins.from_dict(bins.to_dict(), "x") == bins


@pytest.mark.parametrize(
    "change", [{"edges": [1.0, 1.0, 2.0]}, {"edges": [0.0, 1.0]}, {"scale": "sqrt"}, {"median": "1"}]
)
def test_bins_of_a_damaged_file_are_refused(ages, change):
    with pytest.raises(UserError, match="bins of x"):
        Bins.from_dict({**Bins.of(ages).to_dict(), **change}, "x")


def test_equal_numbers_cannot_be_learnt():
    with pytest.raises(UserError, match="nothing to learn"):
        Bins.of(np.full(10, 3.0))


@pytest.mark.parametrize(
    ("names", "grades"),
    [
        (["0", "1", "2"], [0, 1, 2]),
        (["grade_0", "grade_1", "grade_10"], [0, 1, 10]),
        (["stage-1", "stage-2", "stage-3"], [1, 2, 3]),
        (["-1", "0", "0.5"], [-1, 0, 0.5]),
    ],
)
def test_names_with_a_number_each_are_grades(names, grades):
    assert read_grades(names, "x").tolist() == grades


@pytest.mark.parametrize(
    "names",
    [
        ["0", "1"],
        ["mild", "severe", "none"],
        ["3_cats", "2_dogs", "1_bird"],
        ["1", "1.0", "2"],
        ["a1b2", "a1b3", "a1b4"],
    ],
)
def test_other_names_are_no_grades(names):
    assert find_grades(names) is None
    with pytest.raises(UserError, match="labels=grades needs three or more classes named by different numbers"):
        read_grades(names, "x")
