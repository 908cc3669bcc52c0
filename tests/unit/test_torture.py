"""The bench itself: it notices what it is there to notice, and says how to repeat it. tests/integration/test_torture.py lets it hurt."""

import io
import json

import pytest

from benchmarks.results_page import fill
from torture.__main__ import write_figures
from torture.bench import Part, Tally, all_held, markdown, run_bench, summary
from torture.commands import check_budgeted, compare_folders, find_litter
from torture.injection import Outcome
from torture.material import chance
from torture.soak import Soak


class Dice(Part):
    """Holds unless a one is rolled."""

    name, about = "dice", "rolls of dice"

    def try_one(self, number, tally):
        tally.count(number, "a one" if chance(self.seed, self.name, number).randint(1, 6) == 1 else "", "rolls")


class Coins(Part):
    name, about, trials = "coins", "coins", 2

    def try_one(self, number, tally):
        tally.count(number, "")
        tally.figures.append(("sides", "2"))


def bench(tmp_path, *kinds, **how):
    return run_bench(kinds, tmp_path, seed=3, seconds=0.0, stream=io.StringIO(), **how)


def test_what_did_not_hold_is_told_with_the_command_that_repeats_it(tmp_path):
    (tally,) = tallies = bench(tmp_path, Dice, trials=50)
    assert tally.tried == 50
    assert tally.held == 50 - len(tally.problems)
    assert tally.problems
    assert not all_held(tallies)
    number = tally.problems[0][0]
    assert f"repeat: python -m torture dice --seed 3 --trial {number}" in summary(tallies, 3)
    (again,) = bench(tmp_path, Dice, only=number)
    assert again.problems == [(number, "a one")]


def test_every_part_is_tried_once_however_short_the_time_and_none_more_often_than_it_is_worth(tmp_path):
    assert [tally.tried for tally in bench(tmp_path, Dice, Coins)] == [1, 1]
    assert [tally.tried for tally in bench(tmp_path, Dice, Coins, trials=5)] == [5, 2]


def test_the_soak_has_figures_of_its_own_that_a_bench_without_it_leaves_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- torture -->\nold\n<!-- /torture -->\n<!-- soak -->\nan hour\n<!-- /soak -->\n")
    tried, soaked = Tally("dice", tried=7, held=7), Tally("soak", tried=3, held=3)
    kinds = {"dice": Dice, "soak": Soak}
    write_figures(page, [tried], kinds, seed=1, minutes=4)
    assert "| `dice` |" in page.read_text()
    assert "an hour" in page.read_text()
    write_figures(page, [soaked], kinds, seed=1, minutes=100)
    assert "an hour" not in page.read_text()
    assert "`python -m torture soak --minutes 100 --seed 1`" in page.read_text()
    assert "| `dice` |" in page.read_text()


def test_the_page_shows_what_was_tried_and_measured(tmp_path):
    tallies = bench(tmp_path, Dice, Coins, trials=2)
    (tmp_path / "page.md").write_text("before\n<!-- torture -->\nold\n<!-- /torture -->\nafter\n")
    fill("torture", markdown(tallies, {"dice": Dice, "coins": Coins}, "With `make torture`"), tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert f"| `dice` | rolls of dice (2 rolls) | 2 | {tallies[0].held} |" in page
    assert "| sides | 2 |" in page
    assert "old" not in page
    assert page.endswith("after\n")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("best/model.safetensors", b"\x01\x02\x04", "best/model.safetensors differs"),
        ("metrics.jsonl", None, "'metrics.jsonl'] lost"),
        ("extra", b"", "['extra'] new"),
        ("run.json", b'{"status": "running", "wall_seconds": 3}', "run.json differs in status"),
        ("run.json", b'{"status": "finished", "wall_seconds": 9}', ""),
        ("timing.jsonl", b"another time", ""),
    ],
)
def test_a_bit_that_differs_is_noticed_and_a_time_is_not(tmp_path, file, content, message):
    for name in ("whole", "found"):
        (tmp_path / name / "best").mkdir(parents=True)
        (tmp_path / name / "best" / "model.safetensors").write_bytes(b"\x01\x02\x03")
        (tmp_path / name / "metrics.jsonl").write_text("{}\n")
        (tmp_path / name / "timing.jsonl").write_text("{}\n")
        (tmp_path / name / "run.json").write_text('{"status": "finished", "wall_seconds": 3}')
    changed = tmp_path / "found" / file
    changed.unlink() if content is None else changed.write_bytes(content)
    found = compare_folders(tmp_path / "whole", tmp_path / "found")
    assert message in found if message else found == ""


def test_a_run_with_a_budget_is_checked_in_itself(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "model.safetensors").touch()
    (tmp_path / "budget.jsonl").write_text('{"step": 0, "end": 8}\n')
    lines = [{"step": step, "val_top1": step / 10, "val_loss": 1.0} for step in (4, 8)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    info = {"status": "finished", "steps_trained": 8, "best": {"val_top1": 0.8}}
    (tmp_path / "run.json").write_text(json.dumps(info))
    assert check_budgeted(tmp_path) == ""
    (tmp_path / "run.json").write_text(json.dumps({**info, "best": {"val_top1": 0.4}}))
    assert "best" in check_budgeted(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({**info, "status": "running"}))
    assert "running" in check_budgeted(tmp_path)


def test_what_is_left_behind_is_noticed(tmp_path):
    (tmp_path / "run").mkdir()
    assert find_litter(tmp_path) == ""
    (tmp_path / "run" / ".run.vitling-12345678.json").touch()
    assert "run/.run.vitling-12345678.json" in find_litter(tmp_path)


@pytest.mark.parametrize(
    ("code", "err", "well"),
    [
        (2, "error: no such path x.\n", True),
        (2, "warning\nerror: no such path x.\n", False),
        (1, "error: no such path x.\n", False),
        (2, "Traceback (most recent call last)\n", False),
        (None, "error: x\n", False),
    ],
)
def test_failing_well_is_one_line_and_exit_code_2(code, err, well):
    assert Outcome(code, "", err).failed_well == well
