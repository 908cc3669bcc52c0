"""Comparing two models image by image."""

import json
from math import comb

import numpy as np
import pytest
import torch

from vitling.errors import UserError
from vitling.evaluation.comparison import compare, mcnemar
from vitling.evaluation.intervals import paired_interval
from vitling.evaluation.metrics import Evaluation, measure


@pytest.mark.parametrize(("a", "b"), [(0, 0), (3, 3), (1, 8), (9, 1), (40, 2), (250, 200)])
def test_the_p_value_is_that_of_the_exact_mcnemar_test(a, b):
    tail = sum(comb(a + b, k) for k in range(min(a, b) + 1))
    assert mcnemar(a, b) == pytest.approx(min(1.0, 2 * tail / 2 ** (a + b)), rel=1e-9)


def test_only_images_on_which_the_models_differ_count():
    labels = torch.tensor([0, 1] * 20)
    logits = torch.nn.functional.one_hot(labels, 2).float()
    worse = logits.clone()
    worse[:12] = worse[:12].flip(1)
    first, second = (measure(x, labels, ["a", "b"], data="pets", split="test") for x in (worse, logits))
    assert first.correct == "0" * 12 + "1" * 28
    found = compare(first, second)
    assert (found.only_first, found.only_second) == (0, 12)
    assert found.significant
    assert not compare(first, first).significant


def test_other_images_are_refused():
    labels = torch.tensor([0, 1])
    first, second = (measure(torch.eye(2), labels, ["a", "b"], data=data, split="test") for data in ("cats", "dogs"))
    with pytest.raises(UserError, match="not the same images"):
        compare(first, second)


def test_an_evaluation_is_read_back_also_where_an_older_version_wrote_it():
    written = measure(torch.eye(2), torch.tensor([0, 0]), ["a", "b"], data="cats", split="test")
    older = json.loads(written.to_json())
    older["right"] = older.pop("correct")
    assert written.correct == "10"
    with pytest.warns(DeprecationWarning, match="Evaluation.right is now correct"):
        assert written.right == "10"
    for text in (written.to_json(), json.dumps(older)):
        found = Evaluation.from_json(text)
        assert (found.correct, found.top1, found.confusion) == (written.correct, written.top1, written.confusion)


def test_the_paired_interval_is_that_of_bonett_and_price():
    # 9 and 1 of 48 images: (10 - 2) / 50 = 0.16, and 1.959964 sqrt((0.24 - 0.16^2) / 50) = 0.128344
    assert paired_interval(9, 1, 48) == pytest.approx((0.16 - 0.128344, 0.16 + 0.128344), abs=1e-5)
    low, high = paired_interval(1, 9, 48)
    assert (low, high) == pytest.approx((-0.288344, -0.031656), abs=1e-5)


def test_models_that_never_differ_have_an_interval_all_the_same():
    low, high = paired_interval(0, 0, 100)
    assert low == -high < 0


@pytest.mark.parametrize(
    ("first", "second", "images"), [(0.06, 0.03, 150), (0.1, 0.1, 60), (0.2, 0.05, 400), (0.02, 0.0, 300)]
)
def test_the_paired_interval_holds_the_truth_in_about_95_of_100_draws_and_seldom_claims_too_much(first, second, images):
    draws = np.random.default_rng(0).multinomial(images, [first, second, 1 - first - second], size=4000)
    low, high = np.array([paired_interval(int(a), int(b), images) for a, b, _ in draws]).T
    assert np.mean((low <= first - second) & (first - second <= high)) > 0.93
    assert np.mean(low > first - second) < 0.025
