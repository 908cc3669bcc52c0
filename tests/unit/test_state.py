"""Which epoch's weights become the run's."""

import pytest

from vitling.training.course import Course
from vitling.training.state import State


def accepted_epochs(accuracies, *, images, keep):
    state = State(Course.straight(10))
    found = [e for e, top1 in enumerate(accuracies, 1) if state.accept(top1, 1.0, e, images=images, keep=keep)]
    assert state.best_epoch == found[-1]
    assert state.best == (accuracies[found[-1] - 1], -1.0)
    assert state.highest == max(accuracies)
    return found


def test_the_best_epoch_is_kept_or_the_last_within_a_standard_error_of_it():
    accuracies = [0.3, 0.6, 0.5, 0.56, 0.57]
    assert accepted_epochs(accuracies, images=100, keep="best") == [1, 2]
    assert accepted_epochs(accuracies, images=100, keep="last_good") == [1, 2, 4, 5]  # a standard error of 4.9 points
    assert accepted_epochs(accuracies, images=10_000, keep="last_good") == [1, 2]  # of half a point


def test_what_got_worse_for_good_does_not_creep_away_from_the_best():
    slow_decay = [0.8 - 0.01 * epoch for epoch in range(30)]
    assert accepted_epochs(slow_decay, images=400, keep="last_good") == [1, 2, 3]  # never 2 points below the highest


@pytest.mark.parametrize("keep", ["best", "last_good"])
def test_equal_accuracies_are_decided_by_the_loss_or_by_the_time(keep):
    state = State(Course.straight(10))
    taken = [state.accept(0.5, loss, e, images=100, keep=keep) for e, loss in enumerate((1.0, 0.9, 1.1), 1)]
    assert taken == ([True, True, False] if keep == "best" else [True, True, True])


def test_a_further_part_replaces_the_best_only_by_what_is_as_good():
    state = State(Course.straight(10))
    assert state.accept(0.8, 1.0, 1, images=100, keep="last_good")
    state.begin_part(2)
    assert [state.accept(top1, 1.0, e, images=100, keep="last_good") for e, top1 in enumerate((0.78, 0.79), 2)] == [
        False
    ] * 2
    assert state.accept(0.8, 1.0, 4, images=100, keep="last_good")
    assert state.accept(0.79, 1.0, 5, images=100, keep="last_good")  # within a part, a later epoch is kept
