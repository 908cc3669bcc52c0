"""Comparing two models image by image."""

import pytest
import torch
from scipy.stats import binomtest

from vitling.errors import UserError
from vitling.evaluation.comparison import compare, mcnemar
from vitling.evaluation.metrics import measure


@pytest.mark.parametrize(("a", "b"), [(0, 0), (3, 3), (1, 8), (9, 1), (40, 2), (250, 200)])
def test_the_exact_test_is_scipys_two_sided_binomial_one(a, b):
    expected = binomtest(a, a + b).pvalue if a + b else 1.0
    assert mcnemar(a, b) == pytest.approx(expected, rel=1e-9)


def test_only_images_on_which_the_models_differ_count():
    labels = torch.tensor([0, 1] * 20)
    logits = torch.nn.functional.one_hot(labels, 2).float()
    worse = logits.clone()
    worse[:12] = worse[:12].flip(1)
    first, second = (measure(x, labels, ["a", "b"], data="pets", split="test") for x in (worse, logits))
    assert first.right == "0" * 12 + "1" * 28
    found = compare(first, second)
    assert (found.only_first, found.only_second) == (0, 12)
    assert found.certain
    assert not compare(first, first).certain


def test_other_images_are_refused():
    labels = torch.tensor([0, 1])
    first, second = (measure(torch.eye(2), labels, ["a", "b"], data=data, split="test") for data in ("cats", "dogs"))
    with pytest.raises(UserError, match="not the same images"):
        compare(first, second)
