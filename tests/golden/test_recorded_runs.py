"""Training gives the numbers that it gave when they were recorded: a change of structure changes no bit."""

import json

import pytest
from recorded_runs import FILE, RUNS, machine, what_is_left

pytestmark = pytest.mark.slow
RECORDED = json.loads(FILE.read_text())


def flat(tree, path=""):
    """Every leaf of a tree and its place."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from flat(value, f"{path}/{key}")
    else:
        yield path, tree


@pytest.mark.parametrize("name", RUNS)
def test_a_run_repeats_what_was_recorded(name, tmp_path):
    RUNS[name](tmp_path / "run")
    found, recorded = what_is_left(tmp_path / "run"), RECORDED["runs"][name]
    if machine() == RECORDED["machine"]:
        assert found == recorded
    else:  # another processor rounds differently
        del found["checksums"], recorded["checksums"]
        assert dict(flat(found)) == pytest.approx(dict(flat(recorded)), rel=0.02, abs=0.02)


def test_the_resumed_run_is_the_uninterrupted_one():
    assert RECORDED["runs"]["resumed"] == RECORDED["runs"]["ema"]
