"""The inside of a network is judged only by ranges of its own kind that told good runs from bad ones; else numbers stand alone."""

from types import SimpleNamespace

import pytest

from vitling.diagnose.indicator import Indicator
from vitling.diagnose.verdict import judge_indicator, known_indicators, measured_ranges, references

RANK = Indicator("rank", lambda d: None, "Its rank is {value:.2f}.", "low")


def known(datasets: int, model: str = "dhvt_nano", good: float = 0.8, bad: float = 0.2) -> dict:
    """Reference runs of one family: on each dataset a good one and a bad one."""
    runs = [
        {"model": model, "parameters": 200_000, "accuracy": 0.9, "indicators": {"rank": good}},
        {"model": model, "parameters": 200_000, "accuracy": 0.5, "indicators": {"rank": bad}},
    ]
    return {"datasets": [{"runs": runs} for _ in range(datasets)]}


def diagnosis_of(model: str, parameters: int = 250_000) -> SimpleNamespace:
    run = SimpleNamespace(recipe=SimpleNamespace(model=model))
    return SimpleNamespace(subject=SimpleNamespace(run=run, parameters=parameters))


def test_a_number_like_the_bad_runs_of_its_family_on_three_datasets_is_a_finding():
    finding = judge_indicator(RANK, 0.1, diagnosis_of("dhvt_nano"), known(3))
    assert (finding.state, finding.question) == ("watch", "inside")
    assert "3 datasets" in finding.reference
    assert judge_indicator(RANK, 0.79, diagnosis_of("dhvt_nano"), known(3)) is None  # like the good ones


def test_two_datasets_are_too_few_for_a_judgement():
    assert judge_indicator(RANK, 0.1, diagnosis_of("dhvt_nano"), known(2)) is None


@pytest.mark.parametrize(("model", "parameters"), [("vit_nano", 250_000), ("dhvt_nano", 5_000_000)])
def test_another_family_or_size_gives_no_judgement(model, parameters):
    assert judge_indicator(RANK, 0.1, diagnosis_of(model, parameters), known(3)) is None


def test_a_number_that_failed_to_tell_good_from_bad_on_one_dataset_is_no_sign():
    mixed = {"datasets": [*known(3)["datasets"], *known(1, good=0.3, bad=0.4)["datasets"]]}
    assert measured_ranges("rank", "dhvt_nano", 200_000, "low", mixed) is None


def test_every_reference_run_says_how_it_was_made():
    provenance = references()["provenance"]
    assert provenance["command"] == "python benchmarks/reference_ranges.py"
    assert {"date", "torch", "timm"} <= set(provenance)
    for dataset in references()["datasets"]:
        for run in dataset["runs"]:
            assert {"model", "model_args", "method", "epochs", "parameters", "accuracy", "images"} <= set(run)


@pytest.mark.parametrize("indicator", known_indicators(), ids=lambda indicator: indicator.name)
def test_no_number_is_judged_by_the_runs_that_we_have_so_far(indicator):
    """Two datasets, and no bad run beside a good one of the same family: the page says so, and judges nothing."""
    for dataset in references()["datasets"]:
        assert all(indicator.name in run["indicators"] for run in dataset["runs"])
    for model in ("vit_tiny_patch16_224", "dhvt_nano", "boot_vit_nano"):
        assert measured_ranges(indicator.name, model, 200_000, indicator.bad) is None
