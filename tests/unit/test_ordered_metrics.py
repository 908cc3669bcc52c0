"""Distances and rank correlations against scikit-learn's and SciPy's, and the squared earth mover's distance."""

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from vitling.evaluation.ordered import measure_distances
from vitling.methods.ordered import squared_emd


@pytest.fixture
def grades() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 200).astype(float)
    return np.round(truth + rng.normal(0, 1, 200), 1), truth


def test_distances_equal_those_of_scikit_learn(grades):
    predicted, truth = grades
    found = measure_distances(predicted, truth, squares=True, likeliest=np.round(predicted))
    assert found["mae"] == pytest.approx(mean_absolute_error(truth, predicted))
    assert found["mae_likeliest"] == pytest.approx(mean_absolute_error(truth, np.round(predicted)))
    assert found["rmse"] == pytest.approx(root_mean_squared_error(truth, predicted))
    assert found["r2"] == pytest.approx(r2_score(truth, predicted))


def test_rank_correlations_equal_those_of_scipy(grades):
    predicted, truth = grades
    found = measure_distances(predicted, truth, pairs=True)
    assert found["spearman"] == pytest.approx(spearmanr(predicted, truth).statistic)
    assert found["kendall"] == pytest.approx(kendalltau(predicted, truth).statistic)


def test_intervals_hold_the_number_and_shrink_with_more_images(grades):
    predicted, truth = grades
    few = measure_distances(predicted[:50], truth[:50], squares=True, pairs=True)
    many = measure_distances(np.tile(predicted, 4), np.tile(truth, 4), squares=True, pairs=True)
    for name in ("mae", "rmse", "r2", "spearman", "kendall"):
        low, high = few[f"{name}_interval"]
        assert low < few[name] < high
        assert many[f"{name}_interval"][1] - many[f"{name}_interval"][0] < high - low


def test_intervals_are_over_groups_where_there_are_some(grades):
    predicted, truth = np.repeat(grades[0][:40], 5), np.repeat(grades[1][:40], 5)
    alone = measure_distances(predicted, truth)["mae_interval"]
    grouped = measure_distances(predicted, truth, groups=np.repeat(np.arange(40).astype(str), 5))["mae_interval"]
    assert grouped[1] - grouped[0] > 1.5 * (alone[1] - alone[0])


def test_coverage_is_the_share_of_truths_inside(grades):
    predicted, truth = grades
    inside = np.arange(200) % 10 > 0
    found = measure_distances(predicted, truth, inside=inside)
    assert found["coverage"] == pytest.approx(0.9)
    assert found["coverage_interval"][0] < 0.9 < found["coverage_interval"][1]


def test_a_constant_prediction_has_no_correlation_and_a_constant_truth_no_r2():
    truth = np.arange(20.0)
    found = measure_distances(np.full(20, 3.0), truth, pairs=True)
    assert found["spearman"] is None
    assert found["kendall"] is None
    assert measure_distances(truth, np.full(20, 3.0), squares=True)["r2"] is None


def test_the_squared_emd_equals_its_formula():
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(4, 5)), rng.dirichlet(np.ones(5), 4)
    expected = []
    for row, target in zip(logits, targets, strict=True):
        shares = np.exp(row) / np.exp(row).sum()
        expected.append(sum((shares[: k + 1].sum() - target[: k + 1].sum()) ** 2 for k in range(5)))
    assert squared_emd(torch.tensor(logits), torch.tensor(targets)).numpy() == pytest.approx(expected, rel=1e-5)


def test_the_squared_emd_grows_with_the_distance():
    certain = torch.full((3, 5), -20.0)
    certain[torch.arange(3), torch.tensor([0, 1, 4])] = 20.0
    truth = torch.eye(5)[[0, 0, 0]]
    assert squared_emd(certain, truth).tolist() == pytest.approx([0, 1, 4], abs=1e-4)
