"""How the golden files' sentences are read."""

import pytest
import torch
from rule import Draw, draws, labels_in, numbers_in, randn, seed_in, tolerance


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("torch.randn(2,17,48) with seed 11", [Draw(1, (2, 17, 48), 0, 11)]),
        ("2*torch.randn(3,12,4,4) + 0.5 seed 52 [batch, channel]", [Draw(2, (3, 12, 4, 4), 0.5, 52)]),
        (
            "vit logits 3*randn(4,10) seed 31; agent logits 3*randn(4,10) seed 32",
            [Draw(3, (4, 10), 0, s) for s in (31, 32)],
        ),
        ("softmax(1.5*randn(2,3,17,17), dim=-1)", [Draw(1.5, (2, 3, 17, 17), 0, None)]),
        ("X = randn(64,20) seed 7 + 2.0*randn(1,20) seed 8", [Draw(1, (64, 20), 0, 7), Draw(2, (1, 20), 0, 8)]),
    ],
)
def test_the_draws_of_a_sentence_are_found(sentence, found):
    assert draws(sentence) == found


def test_a_draw_is_scaled_and_shifted_in_the_precision_that_is_asked_for():
    expected = 0.3 * randn((5,), 7).double() + 0.25
    assert torch.equal(Draw(0.3, (5,), 0.25, 7).tensor(dtype=torch.float64), expected)


def test_labels_numbers_and_seeds_are_found_and_a_sentence_without_them_is_refused():
    assert labels_in("cross-entropy (mean) with labels [1,2,0]; L2 norm").tolist() == [1, 2, 0]
    assert numbers_in(r"dense # cls #", "TokenLabelCrossEntropy dense 0.5 cls 1") == [0.5, 1]
    assert seed_in("generator=torch.Generator().manual_seed(9))") == 9
    with pytest.raises(AssertionError, match="no labels in"):
        labels_in("cross-entropy")


@pytest.mark.parametrize(
    ("sentence", "part", "rtol", "atol"),
    [
        ("strict: abs 3e-5*max(1,std of logits) + rel 2e-5 (noise); loose: abs 2e-4", "strict", 2e-5, 3e-5),
        ("float64: rel 1e-8; float32 features: abs 1e-4", "float32", 0, 1e-4),
        ("float64 abs 1e-7; float32 abs 2e-4 + rel 1e-4", "float32", 1e-4, 2e-4),
        ("rel 1e-7; indices exact", "rel", 1e-7, 0),
    ],
)
def test_the_tolerance_of_a_sentence_is_found(sentence, part, rtol, atol):
    assert tolerance({"suggested_tolerance": sentence}, part) == {"rtol": rtol, "atol": atol}
