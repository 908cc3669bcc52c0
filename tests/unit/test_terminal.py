"""What the command line shows: the live bar in a terminal, text of users that looks like markup, what to do next."""

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from vitling.cli import terminal
from vitling.cli.terminal.console import console, fold, print_pairs, print_whole
from vitling.cli.terminal.watching import Watch
from vitling.deploy.prediction import Prediction
from vitling.evaluation.comparison import Comparison
from vitling.evaluation.metrics import Evaluation
from vitling.runs.run import Run
from vitling.studies.demo import Contender, Story

FACTS = dict(model="vit", parameters=1e6, method="supervised", data="[pets]", train_images=90, val_images=10, classes=2)
FACTS |= dict(input=[3, 8, 8], epochs=2, steps_per_epoch=3, lr=1e-3, device="cpu", processes=1, start_epoch=0)
INFO = dict(stopped="all 2 epochs are done", wall_seconds=3.0, best=dict(val_top1=0.5, epoch=2))

LISTENING = """
from pathlib import Path
from vitling.cli import terminal
with terminal.show_training() as callback:
    for done in (1, 2):
        callback.on_progress("reading train", done, 2)
    callback.on_start({facts})
    callback.on_step(0, 1, 3, 0.7, 100.0)
    print(type(callback).__name__)
"""


def a_run(folder, **data):
    run = Run(folder)
    run.update(**INFO, data=data)
    return run


@pytest.fixture
def printed(monkeypatch):
    """What goes to the console, in a wide one without colours."""
    out = io.StringIO()
    monkeypatch.setattr(console, "_file", out)  # `file` would be given back as today's standard output, for good
    monkeypatch.setattr(console, "width", 200)
    return out


def test_the_live_bar_follows_a_whole_training_in_a_terminal(tmp_path):
    out = io.StringIO()
    with terminal.live_progress(Console(file=out, force_terminal=True, width=80, highlight=False)) as progress:
        live = terminal.Live(progress)
        live.log("recipe [bold]")
        for split in ("train", "val"):
            for done in (5, 10):
                live.on_progress(f"reading {split}", done, 10)
                progress.refresh()
        assert progress.tasks == []
        live.on_start(FACTS)
        for epoch in (0, 1):
            for step in (1, 2, 3):
                live.on_step(epoch, step, 3, 0.75, 321.0)
                progress.refresh()
            record = dict(epoch=epoch + 1, train_loss=0.75, val_top1=0.5, val_loss=0.7, best_top1=0.5, best_epoch=1)
            live.on_validation(record, dict(images_per_second=321.0))
        [bar] = progress.tasks
        assert (bar.completed, bar.total) == (6, 6)
        live.on_end(a_run(tmp_path, splits=["test", "train"]))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    for part in (
        "recipe [bold]",
        "on [pets]",
        "reading val",
        "5/10",
        "epoch 2/2  loss 0.750  val 50.00 %  321 images/s 0:00:",
        "stopped: all 2",
    ):
        assert part in shown


def validated(epoch: int, top1: float, loss: float) -> dict:
    return dict(epoch=epoch, train_loss=1.0, val_top1=top1, val_loss=loss, best_top1=top1, best_epoch=epoch)


def test_a_validation_is_a_line_of_80_columns_with_a_curve_of_those_before_it():
    out = io.StringIO()
    with terminal.live_progress(Console(file=out, force_terminal=True, width=80, highlight=False)) as progress:
        live = terminal.Live(progress)
        live.on_start(FACTS | dict(epochs=120, start_epoch=0))
        live.began -= 3000  # so that much time is left
        for epoch in range(1, 21):
            live.watch.add(validated(epoch, epoch / 20, 1.0))
        line = live.line(validated(110, 0.9912, 1.0))
        assert len(live.line(validated(1100, 0.9912, 1.0))) <= 80
    assert len(line) <= 80
    assert re.search("  ▁[▁-█]*█  best 99.1 % in 110  ", line), line


def test_a_curve_has_a_character_for_each_validation_until_there_is_no_more_room():
    watch = Watch()
    watch.add(validated(1, 0.2, 2.0))
    assert watch.curve(12) == ""  # one dot is no curve
    watch.add(validated(2, 0.9, 1.0))
    assert watch.curve(12) == "▁█"
    for epoch in range(3, 60):
        watch.add(validated(epoch, 0.9, 1.0))
    assert watch.curve(12) == "▁" + "█" * 11


def test_overfitting_is_said_once_when_the_validation_loss_has_been_rising_for_a_while(printed):
    plain = terminal.Plain()
    plain.on_start(FACTS | dict(epochs=20))
    losses = [2.0, 1.0, 1.05, 1.04, 1.2, 1.3, 1.4]
    for epoch, loss in enumerate(losses, 1):
        plain.on_validation(validated(epoch, 0.5, loss), {})
    said = [line for line in printed.getvalue().splitlines() if line.startswith("overfitting")]
    assert len(said) == 1
    assert "lowest in epoch 2 (1.000, now 1.200)" in said[0]
    healthy = terminal.Plain()
    healthy.on_start(FACTS | dict(epochs=20))
    for epoch, loss in enumerate([2.0, 1.0, 1.05, 0.9, 0.95, 0.85, 0.86], 1):
        healthy.on_validation(validated(epoch, 0.5, loss), {})
    assert printed.getvalue().count("overfitting") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.slow  # a process of its own
def test_training_in_a_terminal_of_its_own_gets_the_live_bar():
    import pty

    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING.format(facts=FACTS)], stdout=slave, stderr=slave, stdin=slave, env=env
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # how Linux reports that the other side is gone
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert process.wait() == 0, shown.decode()
    assert b"Live" in shown
    assert b"Traceback" not in shown


def test_next_is_the_test_set_only_where_there_is_one(tmp_path, printed):
    terminal.Plain().on_end(a_run(tmp_path / "a", splits=["test", "train"]))
    terminal.Plain().on_end(a_run(tmp_path / "b", splits=["train"]))
    shown = printed.getvalue()
    assert f"next: vitling evaluate {tmp_path / 'a'}    (the test set: look once)" in shown
    assert f"next: vitling evaluate {tmp_path / 'b'} --split val " in shown


def test_the_end_says_what_the_number_means(tmp_path, printed):
    terminal.Plain().on_end(a_run(tmp_path / "a", splits=["test", "train"], val_images=40))
    terminal.Plain().on_end(a_run(tmp_path / "b", splits=["train"], val_images=40))
    meaning = (
        "That is 20 of 40 images that it did not learn from (95 % interval 35 to 65 %). The epoch was chosen by them: "
    )
    assert meaning + "the test set decides." in printed.getvalue()
    assert meaning + "expect a little less on new images." in printed.getvalue()


def test_names_that_look_like_markup_or_emoji_are_printed_as_they_are(tmp_path, printed):
    names = ["[ok]", "[red]a[/red]", ":smile:", "[/]"]
    rows = [{"name": name, "images": 1, "accuracy": 1.0, "interval": (0.2, 1.0)} for name in names]
    evaluation = Evaluation("[data]", "test", 4, 1.0, (0.5, 1.0), None, 1.0, 0.1, 0.1, names, rows, [[1] * 4] * 4)
    evaluation.notes = ["[a] note"]
    terminal.show_evaluation(evaluation, tmp_path / "[run]")
    shown = printed.getvalue()
    assert all(shown.count(name) == 3 for name in names)  # per class, and twice in the confusion matrix
    for part in ("[data], test split", "note: [a] note", "[run]/evaluation-test.json"):
        assert part in shown

    terminal.show_predictions([Prediction("[x].png", names, [0.4, 0.3, 0.2, 0.1])], "table")
    row = printed.getvalue().splitlines()[-2]
    assert all(name in row for name in ["[x].png", *names])


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_skipped_images_are_told_on_standard_error(form, printed, capsys):
    predictions = [Prediction("a.png", ["cat"], [1.0]), Prediction("b.png", [], [], "no such file")]
    terminal.show_predictions(predictions, form)
    out, err = capsys.readouterr()
    assert err == "skipped b.png: no such file\n"
    assert "a.png" in out + printed.getvalue()
    assert ("b.png" in out + printed.getvalue()) == (form == "json")


def a_story(folder, only_first, only_second, p_value):
    result = Evaluation("digits", "test", 359, 0.9, (0.86, 0.93), None, 0.9, 0.1, 0.1, [], [], [])
    contenders = []
    for name in ("plain ViT", "DHVT [b]"):
        run = a_run(folder / name)
        run.update(parameters=1234, epochs_trained=3)
        contenders.append(Contender(name, run, result, f"verdict of {name}"))
    return Story(*contenders, Comparison(only_first, only_second, p_value), folder / "diagnosis.html")


def test_the_demo_names_a_winner_only_where_luck_is_no_explanation(tmp_path, printed):
    terminal.show_story(a_story(tmp_path, 2, 30, 1e-6))
    shown = printed.getvalue()
    assert (
        "Only DHVT [b] is correct on 30 digits, only plain ViT on 2: so DHVT [b] is better, and the difference is significant"
        in shown
    )
    assert "verdict of plain ViT" in shown
    assert f"page: {tmp_path / 'diagnosis.html'}" in shown
    assert f"vitling evaluate {tmp_path / 'DHVT [b]'}" in shown
    terminal.show_story(a_story(tmp_path, 5, 3, 0.73))
    last = printed.getvalue()[len(shown) :]
    assert "Only plain ViT is correct on 5 digits, only DHVT [b] on 3: so the difference is not significant" in last


@pytest.mark.parametrize(
    ("wanted", "at_a_screen", "opened"),
    [(True, False, True), (None, False, False), (None, True, True), (False, True, False)],
)
def test_a_page_opens_where_somebody_sits_at_a_screen_or_asks_for_it(
    wanted, at_a_screen, opened, tmp_path, monkeypatch
):
    addresses = []
    monkeypatch.setattr("webbrowser.open", addresses.append)
    screen = io.StringIO()
    screen.isatty = lambda: at_a_screen
    monkeypatch.setattr(console, "_file", screen)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    terminal.open_page(tmp_path / "page.html", wanted)
    assert addresses == ([(tmp_path / "page.html").as_uri()] if opened else [])


@pytest.fixture
def narrow(printed, monkeypatch):
    """A terminal of 80 columns."""
    monkeypatch.setattr(console, "width", 80)
    monkeypatch.setattr(console, "_force_terminal", True)
    monkeypatch.setattr(console, "_color_system", None)
    return printed


def test_prose_breaks_between_words_and_a_path_or_command_never():
    path = "pictures/" + "very-long-folder/" * 6
    assert fold(f"the images lie in {path} and stay there", 40) == ["the images lie in", path, "and stay there"]
    command = f"next: vitling evaluate {path}"
    assert fold(f"{command}    (once, when everything is decided)", 40) == [
        command,
        "  (once, when everything is decided)",
    ]
    text = "token-labeling is " * 9
    assert all(len(line) <= 40 for line in fold(text, 40))
    assert " ".join(line.strip() for line in fold(text, 40)) == text.strip()


def test_a_table_that_is_wider_than_the_terminal_becomes_records(narrow):
    head = ["row", *(f"number {i} of a paper" for i in range(6))]
    print_whole(head, [["SOPE", *map(str, range(6))], ["DAFF", *map(str, range(6, 12))]])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", narrow.getvalue()).splitlines()
    assert lines[0] == "SOPE"
    assert [line.split() for line in lines if "number 5" in line] == [
        ["number", "5", "of", "a", "paper", "5"],
        ["number", "5", "of", "a", "paper", "11"],
    ]
    assert max(map(len, lines)) <= 80


def test_texts_go_below_names_that_leave_no_room_beside_them(narrow, capsys):
    print_pairs([("a" * 60, "some words about it that need a line of their own"), ("b", "c")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["a" * 60, "    some words about it that need a line of their own"]
    assert max(map(len, lines)) <= 80
