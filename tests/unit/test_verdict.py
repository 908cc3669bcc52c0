"""The verdict: how a number is judged, and where every range comes from."""

import pytest

from vitling.diagnose.measures.rank import Rank
from vitling.diagnose.measures.similarity import Similarity
from vitling.diagnose.verdict import PLAIN, classify, healthy_kinds, known_indicators, references
from vitling.methods import find_omissions


def test_a_number_like_the_good_runs_is_fine():
    assert classify(0.20, [0.1, 0.25], [0.5, 0.6], "high") == "ok"
    assert classify(0.01, [0.1, 0.25], [0.5, 0.6], "high") == "ok"  # better than good


def test_a_number_near_the_plain_runs_is_a_problem_and_one_between_is_to_be_watched():
    assert classify(0.45, [0.1, 0.25], [0.5, 0.6], "high") == "problem"
    assert classify(0.90, [0.1, 0.25], [0.5, 0.6], "high") == "problem"
    assert classify(0.30, [0.1, 0.25], [0.5, 0.6], "high") == "watch"
    assert classify(0.25, [0.7, 0.8], [0.2, 0.3], "low") == "problem"
    assert classify(0.60, [0.7, 0.8], [0.2, 0.3], "low") == "watch"


def test_a_number_that_does_not_tell_good_from_plain_is_never_a_problem():
    assert classify(0.55, [0.1, 0.5], [0.4, 0.6], "high") == "ok"
    assert classify(1.05, [0.1, 0.5], [0.4, 0.6], "high") == "ok"  # two seeds do not span all chance
    assert classify(-0.45, [0.1, 0.5], [0.4, 0.6], "low") == "watch"
    assert classify(9.00, [0.1, 0.5], [0.4, 0.6], "high") == "watch"
    assert classify(0.60, [0.5], [], "high") == "watch"


def test_every_reference_run_says_how_it_was_made():
    provenance = references()["provenance"]
    assert provenance["command"] == "python benchmarks/reference_ranges.py"
    assert {"date", "torch", "timm"} <= set(provenance)
    for dataset in references()["datasets"]:
        seeds = {}
        for run in dataset["runs"]:
            assert {"model", "model_args", "method", "epochs", "parameters", "accuracy", "images"} <= set(run)
            seeds.setdefault(run["kind"], set()).add(run["seed"])
        assert all(len(found) >= 2 for found in seeds.values()), dataset["name"]


def test_healthy_means_better_than_every_plain_vit_on_the_same_data():
    for dataset in references()["datasets"]:
        plain = max(run["accuracy"] for run in dataset["runs"] if run["kind"] == PLAIN)
        for kind in healthy_kinds(dataset):
            assert all(run["accuracy"] > plain for run in dataset["runs"] if run["kind"] == kind)
    assert "DHVT" in healthy_kinds(references()["datasets"][0])


@pytest.mark.parametrize("indicator", known_indicators(), ids=lambda indicator: indicator.name)
def test_every_number_of_the_verdict_was_measured_on_the_reference_runs(indicator):
    for dataset in references()["datasets"]:
        assert all(indicator.name in run["indicators"] for run in dataset["runs"])


def test_on_digits_the_width_of_early_features_tells_dhvt_from_a_plain_vit():
    digits = next(dataset for dataset in references()["datasets"] if dataset["name"] == "digits")
    ranks = {
        kind: [r["indicators"]["early rank"] for r in digits["runs"] if r["kind"] == kind] for kind in (PLAIN, "DHVT")
    }
    assert max(ranks[PLAIN]) < min(ranks["DHVT"])


def test_the_advice_names_the_methods_that_say_they_help():
    rank, similarity = (measure.indicators[0].advice for measure in (Rank, Similarity))
    assert rank.endswith("(model=dhvt_nano), or method=bootstrap, which teaches locality.")
    assert similarity.endswith("(model_args.depth) or method=token_labeling, which gives each token its own label.")
    assert find_omissions()["bootstrap"].what == "agent"  # for a plan, which does without
