"""What a notebook shows: progress that does not flood it, and cards of results."""

import re
import sys

import pytest

import vitling
from vitling.cli.terminal import in_notebook, show_training
from vitling.errors import UserError
from vitling.recipes import Augment, Optim, Recipe
from vitling.runs.run import Run

TINY = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=1, num_heads=2),
    data="digits",
    fraction=0.1,
    epochs=3,
    batch_size=8,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(lr=3e-3, warmup_epochs=0),
)


@pytest.fixture
def displayed():
    """What IPython without a terminal is asked to show: (kind of message, HTML)."""
    pytest.importorskip("IPython")
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    before, shell.display_pub = shell.display_pub, CapturingDisplayPublisher()
    yield shell.display_pub.outputs
    shell.display_pub = before
    InteractiveShell.clear_instance()


def messages(displayed) -> list[tuple[bool, str]]:
    return [(message["update"], message["data"]["text/html"]) for message in displayed]


def test_a_training_is_one_display_that_changes_at_most_twice_a_second(displayed, tmp_path):
    class Recording(vitling.NotebookProgress):
        now = 0.0
        steps = 0

        def on_step(self, *step):
            self.now += 0.1  # seconds that a step takes
            self.steps += 1
            super().on_step(*step)

    progress = Recording(clock=lambda: progress.now)
    vitling.train(TINY, tmp_path / "run", settings=vitling.Settings(threads=1), callback=progress)
    shown = messages(displayed)
    assert [update for update, _ in shown] == [False] + [True] * (len(shown) - 1)  # one place in the page
    assert progress.steps >= 30
    # One every five steps, and when a task ends: reading twice, and the training.
    assert 3 <= len(shown) <= progress.steps / 5 + 8
    assert any("<progress" in html and "epoch 2/3" in html for _, html in shown)
    last = shown[-1][1]
    assert re.search(r"validation accuracy [0-9.]+ % after epoch 3, the best so far", last)
    assert "<progress" not in last


def test_what_is_shown_is_escaped_and_short(displayed):
    progress = vitling.NotebookProgress(clock=iter(range(1000)).__next__)
    for i in range(100):
        progress.log(f"<script>alert({i})</script>")
    last = messages(displayed)[-1][1]
    assert "<script>" not in last
    assert "&lt;script&gt;alert(99)" in last
    assert last.count("alert") == 8


def test_a_study_tells_its_runs_apart(displayed):
    progress = vitling.NotebookProgress(clock=iter(range(1000)).__next__)
    progress.on_study_start(2, 0)
    progress.on_run_start("a, seed 0").on_progress("reading train", 1, 10)
    progress.on_run_end("a, seed 0", "91.00 %")
    shown = [html for _, html in messages(displayed)]
    assert "2 runs, 0 of them" in shown[0]
    assert "a, seed 0: reading train" in shown[1]
    assert "a, seed 0: 91.00 %" in shown[-1]


def test_only_a_kernel_counts_as_a_notebook(displayed):
    from IPython import get_ipython

    assert not in_notebook()  # IPython in a terminal has none
    get_ipython().kernel = object()
    assert in_notebook()
    with show_training() as callback:
        assert isinstance(callback, vitling.NotebookProgress)


def test_without_ipython_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(UserError, match="needs IPython") as caught:
        vitling.NotebookProgress()
    assert "\n" not in str(caught.value)


# -- cards and tables --------------------------------------------------------------------------------------------------


def is_self_contained(html: str) -> bool:
    """No script, and nothing that a browser would fetch."""
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    return "<script" not in html and all(link.startswith(("#", "data:")) for link in links) and "@import" not in html


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return vitling.train(TINY, folder / "run<b>", settings=vitling.Settings(threads=1))


def test_a_run_shows_itself_with_its_curve(trained):
    html = trained._repr_html_()
    assert is_self_contained(html)
    assert "<svg" in html
    assert "vit_tiny_patch16_224 on digits" in html
    assert "run&lt;b&gt;" in html
    assert "run<b>" not in html
    assert "best validation accuracy" in html
    assert repr(trained) == f"Run({str(trained.path)!r})"


def test_a_run_that_has_not_begun_or_is_damaged_shows_itself_too(tmp_path):
    assert "not begun" in Run(tmp_path)._repr_html_()
    (tmp_path / "run.json").write_text("{")
    assert "run.json" in Run(tmp_path)._repr_html_()


@pytest.mark.slow
def test_an_evaluation_shows_itself_with_its_confusion_and_as_a_table(trained):
    result = vitling.evaluate(trained, split="val")
    result.notes.append("<i>a note</i>")
    html = result._repr_html_()
    assert is_self_contained(html)
    assert "<svg" in html
    assert f"{100 * result.top1:.1f} %" in html
    assert "&lt;i&gt;a note" in html
    pytest.importorskip("pandas")
    table = result.to_frame()
    screening = [f"{what}{end}" for what in ("specificity", "auroc") for end in ("", "_low", "_high")]
    assert list(table.columns) == ["class", "images", "accuracy", "accuracy_low", "accuracy_high", *screening]
    assert table["images"].sum() == result.images
    assert (table["accuracy"] * table["images"]).sum() == pytest.approx(result.top1 * result.images)


@pytest.mark.slow
def test_a_study_shows_itself_and_is_a_table(tmp_path):
    recipes = {"<a>": TINY, "b": vitling.override(TINY, {"optim.lr": 1e-3})}
    settings = vitling.Settings(threads=1)
    result = vitling.study(recipes, tmp_path / "study", seeds=2, split="val", settings=settings)
    html = result._repr_html_()
    assert is_self_contained(html)
    assert "<svg" in html
    assert "&lt;a&gt;" in html
    assert "<a>" not in html
    pytest.importorskip("pandas")
    table = result.to_frame()
    assert list(table["name"]) == ["<a>", "b"]
    assert [len(scores) for scores in table["scores"]] == [2, 2]
    assert table["mean"].tolist() == pytest.approx([row.mean for row in result.rows()])


@pytest.mark.slow
def test_a_table_without_pandas_is_one_line(trained, monkeypatch):
    result = vitling.evaluate(trained, split="val")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas") as caught:
        result.to_frame()
    assert "\n" not in str(caught.value)
