"""The most important runs of benchmarks/sick_runs.py: the diagnosis names the cause first, and nothing in a healthy run."""

from argparse import Namespace

import pytest
from sick_runs import CASES, folder_of, outcome, recipe_of

from vitling.diagnose.diagnosis import diagnose
from vitling.training.beginning import train

pytestmark = pytest.mark.slow

DIGITS = (
    "rate 100 times too high, DHVT",
    "rate 300 times too low, DHVT",
    "two epochs, DHVT",
    "30 % of the labels shuffled, DHVT",
    "one class with three images, DHVT",
    "a fifth of the test images in train, DHVT",
    "mirrored digits",
    "healthy: DHVT",
)


@pytest.mark.parametrize("name", DIGITS)
def test_the_cause_is_named_first(name, tmp_path):
    case, args = CASES[name], Namespace(out=tmp_path)
    (result,) = diagnose(train(recipe_of(case, args), folder_of(name, args)))
    problems = [finding.name for finding in result.findings if finding.state == "problem"]
    assert outcome(case, problems) == "right", problems
    assert all(finding.command.startswith("vitling ") for finding in result.findings if finding.state == "problem")
