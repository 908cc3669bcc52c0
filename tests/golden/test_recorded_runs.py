"""Training gives the numbers that it gave when they were recorded: a change of structure changes no bit."""

import pytest
from recorded_runs import RUNS, find_record, records, what_is_left

pytestmark = pytest.mark.slow


def flat(tree, path=""):
    """Every number of a tree and its place; checksums, which no two processors share, are left out."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            if key == "checksums":
                continue
            yield from flat(value, f"{path}/{key}")
    else:
        yield path, tree


@pytest.mark.parametrize("name", RUNS)
def test_a_run_repeats_what_was_recorded(name, tmp_path):
    RUNS[name](tmp_path / "run")
    found, own = what_is_left(tmp_path / "run"), find_record()
    if own:
        assert found == own["runs"][name]
    else:  # another processor rounds differently
        assert dict(flat(found)) == pytest.approx(dict(flat(records()[0]["runs"][name])), rel=0.02, abs=0.02)


@pytest.mark.parametrize("record", records(), ids=lambda record: record["machine"]["processor"])
def test_the_resumed_run_is_the_uninterrupted_one(record):
    assert record["runs"]["resumed"] == record["runs"]["ema"]


def test_the_records_are_of_the_same_training():
    """Whatever the processor: the numbers agree as numbers, and so the same was run."""
    first, *others = records()
    for other in others:
        assert dict(flat(other["runs"])) == pytest.approx(dict(flat(first["runs"])), rel=0.02, abs=0.02)
