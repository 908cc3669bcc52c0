"""The course of a run and the budget that moves its end."""

import pytest

from vitling.training.budget import FIRST_RUN_SHARE, BudgetTooShort, Speed, Timekeeper, steps_within, write_budget
from vitling.training.course import Course
from vitling.training.duration import parse_duration

SPEED = Speed(fixed=5.0, step=0.1, validation=1.0, steps_per_epoch=10, validate_every=1, threads=1)


def test_a_straight_course_is_at_its_own_step():
    course = Course.straight(30, start=7)
    assert (course.start, course.end) == (7, 37)
    assert [course.position(step) for step in (7, 8, 36)] == [0, 1, 29]


def test_a_moved_end_bends_the_schedule_without_a_jump_and_completes_it():
    course = Course.straight(100)
    course.move_end(40, 60)
    assert course.position(39) == 39
    assert course.position(40) == pytest.approx(40)
    assert course.position(50) == pytest.approx(70)
    assert course.progress(60) == pytest.approx(1)
    course.move_end(50, 110)
    assert course.position(50) == pytest.approx(70)
    assert course.position(80) == pytest.approx(85)


def test_a_time_allows_steps_and_their_validations():
    assert steps_within(SPEED, 20.0) == 100  # a step and a tenth of a validation take 0.2 s


def test_a_budget_that_would_do_is_one_for_all_where_a_quarter_was_too_short():
    error = BudgetTooShort("vit", SPEED, left=-2.0, budget=3.0)  # 5 s are gone before the first of 20 steps of 0.2 s
    assert "a step of vit takes about 0.1 s here, and setup leaves 0.0 s of the budget of 3 s" in str(error)
    assert f"a budget of {write_budget(9.0)} would do" in str(error)
    first = error.of_whole(FIRST_RUN_SHARE)
    assert "a step of vit, trained first in 25 % of the budget, takes" in str(first)
    assert f"a budget of {write_budget(36.0)} would do" in str(first)


def looks(keeper: Timekeeper, pace: float, validation: float = 1.0, start: int = 0, seconds: float = 5.0) -> float:
    """Walk to the end at so many seconds per step: when it was reached."""
    step = start
    while step < keeper.course.end:
        if keeper.is_due(step):
            keeper.look(step, seconds)
        step, seconds = step + 1, seconds + pace
        if step % 10 == 0 or step == keeper.course.end:
            seconds += validation
            keeper.on_validation(validation)
    return seconds


@pytest.mark.parametrize("slower", [0.5, 1.0, 2.0, 3.5])
def test_a_run_ends_with_its_budget_however_fast_the_steps_are(slower):
    steps = steps_within(SPEED, 200 - 5 - 1)
    keeper = Timekeeper.begin(Course.straight(steps), SPEED, 200.0)
    assert looks(keeper, 0.1 * slower, validation=slower) == pytest.approx(200, rel=0.02)


def test_what_only_some_validations_do_is_a_share_of_each():
    keeper = Timekeeper.begin(Course.straight(100), SPEED, 200.0)
    keeper.on_validation(3.0, 2.0, 5)
    assert keeper.speed.validation == pytest.approx(1.4)
    keeper.on_validation(1.0)
    assert (keeper.speed.validation, keeper.validating) == (pytest.approx(1.4), 4.0)


def test_what_follows_the_training_gets_more_time_on_a_machine_that_became_slower():
    steps = steps_within(SPEED, 200 - 5 - 1)
    keeper = Timekeeper.begin(Course.straight(steps), SPEED, 200.0, reserve=10.0)
    ended = looks(keeper, 0.3, validation=3.0)
    assert ended + 3 * keeper.reserve == pytest.approx(200 + keeper.reserve, rel=0.02)


def test_recorded_looks_are_repeated_before_new_ones_are_taken():
    keeper = Timekeeper.begin(Course.straight(970), SPEED, 200.0)
    records = []
    for step in range(0, 401, keeper.every):
        records.append(keeper.look(step, 5 + 0.25 * step))
    assert records.pop(0) is None  # nothing is known yet of the pace
    assert None not in records
    course = Course.straight(970)
    again = Timekeeper(course, SPEED, 200.0, every=keeper.every, recorded=records)
    assert all(again.look(step, 1e6) is None for step in range(0, 401, keeper.every))
    assert course == keeper.course
    assert again.look(400 + keeper.every, 5 + 0.25 * 440) is not None


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.1, "5s"), (20, "25s"), (100, "120s"), (101, "3m"), (3000, "60m"), (9000, "3h")]
)
def test_a_budget_that_would_do_is_written_as_one_types_it_and_has_some_to_spare(seconds, written):
    assert write_budget(seconds) == written
    assert parse_duration(written, what="budget") > seconds
