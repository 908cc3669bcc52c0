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
    found, own = what_is_left(tmp_path / "run"), find_record(name)
    if own:
        assert found == own
    else:  # another processor rounds differently
        known = next(record["runs"][name] for record in records() if name in record["runs"])
        assert dict(flat(found)) == pytest.approx(dict(flat(known)), rel=0.02, abs=0.02)


@pytest.mark.parametrize("record", records(), ids=lambda record: record["machine"]["processor"])
def test_the_resumed_run_is_the_uninterrupted_one(record):
    assert record["runs"]["resumed"] == record["runs"]["ema"]


def test_the_records_are_of_the_same_training():
    """Whatever the processor: the numbers agree as numbers, and so the same was run."""
    first, *others = records()
    for other in others:
        both = first["runs"].keys() & other["runs"].keys()  # a run that changed is recorded anew where it can be run
        mine, theirs = ({name: record["runs"][name] for name in both} for record in (first, other))
        assert dict(flat(theirs)) == pytest.approx(dict(flat(mine)), rel=0.02, abs=0.02)
