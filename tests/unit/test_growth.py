"""The learning curve: parts of a known law, and what is said of twice the images."""

import pytest

from vitling.diagnose.growth import Part, fit_learning_curve


def parts(power: float, tested: int = 100_000) -> list[Part]:
    return [Part(n, 1 - 0.4 * (n / 125) ** power, tested) for n in (125, 250, 500, 1000)]


def test_a_power_law_is_continued():
    curve = fit_learning_curve(parts(-0.5))
    now = 0.4 * 8**-0.5
    assert curve.gain == pytest.approx(now * (1 - 2**-0.5), rel=0.02)
    assert curve.interval[0] <= curve.gain <= curve.interval[1]
    assert curve.sentence == "Twice the images would bring about 4 ± 0 points." or "about 4 ±" in curve.sentence


def test_few_held_out_images_make_a_wide_interval():
    narrow, wide = (fit_learning_curve(parts(-0.5, tested)) for tested in (100_000, 100))
    assert wide.interval[1] - wide.interval[0] > 5 * (narrow.interval[1] - narrow.interval[0])


def test_a_flat_curve_promises_nothing():
    assert fit_learning_curve(parts(0.0)).gain == pytest.approx(0.0, abs=0.01)


def test_parts_without_errors_promise_nothing():
    curve = fit_learning_curve([Part(n, 1.0, 50) for n in (100, 200, 400)])
    assert curve.gain == pytest.approx(0.0, abs=0.01)
