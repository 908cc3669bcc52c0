"""The page of a run in a real browser: tabs, curves to zoom into, mistakes to filter; on paper and without JavaScript, all of it.

The pages of studies, diagnoses, improvements, reproductions and the app are looked at where these are made.
"""

import json
import re

import pytest
from browser import open_browser
from page_checks import check_page, needs_chromium, open_in

import vitling
from vitling.recipes import Augment, Optim, Recipe

pytestmark = [pytest.mark.slow, needs_chromium]

RECIPE = Recipe(
    model="vit_tiny_patch16_224",
    model_args=dict(patch_size=4, embed_dim=16, depth=2, num_heads=2),
    fraction=0.2,
    epochs=3,
    batch_size=32,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(lr=3e-3, warmup_epochs=0),
)
PANELS = "JSON.stringify([...document.querySelectorAll('.tab')].map((panel) => panel.checkVisibility()))"
VISIBLE = "[...document.querySelectorAll('.gallery .picture')].filter((tile) => tile.checkVisibility()).length"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of a run that was trained and evaluated from Python."""
    run = vitling.train(RECIPE, tmp_path_factory.mktemp("pages") / "run")
    assert vitling.evaluate(run).kept
    return run.path / "report.html"


@pytest.fixture(scope="module")
def tab(report, tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as tab:
        open_in(tab, report, 1400)
        yield tab


def test_the_page_of_a_run_is_quiet_fits_its_window_can_be_read_and_is_described(report, tmp_path):
    check_page(report, tmp_path)


SOUND = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>sound</title><style>
body { background: rgb(251, 251, 249); color: #222; margin: 0 }
@media (prefers-color-scheme: dark) { body { background: rgb(21, 23, 26); color: #ddd } }
</style></head><body><p>words</p></body></html>"""
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
FLAWS = {
    "faint words": "<p style='color: #999; background: #fff'>words</p>",
    "a wide row": "<div style='width: 1500px'>words</div>",
    "a picture without words": f"<img src='{PIXEL}'>",
    "a picture that is broken": "<img src='data:image/gif;base64,R0lG' alt='nothing'>",
    "a button without words": "<button></button>",
    "an error": "<script>undefined.nothing</script>",
    "something from elsewhere": "<img src='https://example.com/a.png' alt='elsewhere'>",
}


def test_a_sound_page_passes(tmp_path):
    (tmp_path / "page.html").write_text(SOUND)
    check_page(tmp_path / "page.html", tmp_path)


@pytest.mark.parametrize("flaw", FLAWS)
def test_every_flaw_is_seen(flaw, tmp_path):
    (tmp_path / "page.html").write_text(SOUND.replace("</body>", f"{FLAWS[flaw]}</body>"))
    with pytest.raises(AssertionError):
        check_page(tmp_path / "page.html", tmp_path)


def test_one_tab_is_shown_at_a_time_by_click_by_key_and_by_address(tab, report):
    assert json.loads(tab.evaluate(PANELS)) == [True] + [False] * 5
    tab.evaluate("document.querySelectorAll('.tabs a')[3].click()")
    assert json.loads(tab.evaluate(PANELS)) == [False] * 3 + [True] + [False] * 2
    assert tab.evaluate("location.hash") == "#tab-images"
    tab.evaluate("document.querySelectorAll('.tabs a')[3].focus()")
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
    assert json.loads(tab.evaluate(PANELS)) == [False] * 4 + [True, False]
    assert tab.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    tab.open(f"{report.as_uri()}#to-repeat-it")
    tab.wait_for("document.readyState === 'complete' && document.querySelectorAll('.tab')[5].checkVisibility()")


def test_a_curve_is_zoomed_into_by_dragging_and_back_by_a_double_click(tab, report):
    open_in(tab, report, 1400)
    tab.evaluate("document.querySelector('.zooms').scrollIntoView({ block: 'center' })")
    ticks = "JSON.stringify([...document.querySelectorAll('.zooms')[0].querySelectorAll('svg text')].filter((t) => t.checkVisibility()).map((t) => t.textContent))"
    line = "document.querySelector('.zooms [vector-effect]').getAttribute('transform')"
    whole = tab.evaluate(ticks)
    assert tab.evaluate(line) == "matrix(1 0 0 1 0 0)"
    x, y, width, height = json.loads(
        tab.evaluate(
            "(() => { const r = document.querySelector('.zooms svg').getBoundingClientRect(); return JSON.stringify([r.x, r.y, r.width, r.height]); })()"
        )
    )
    corners = [(x + a * width, y + b * height) for a, b in ((0.45, 0.3), (0.55, 0.4), (0.7, 0.6))]
    tab.drag(*corners)
    scale, *_ = map(float, re.findall(r"[\d.-]+", tab.evaluate(line)))
    assert 2 < scale < 6
    assert tab.evaluate(ticks) != whole
    shown = [float(text) for text in json.loads(tab.evaluate(ticks)) if re.fullmatch(r"[\d.]+", text)]
    assert len(shown) >= 4
    tab.evaluate("document.querySelector('.zooms svg').dispatchEvent(new MouseEvent('dblclick', { bubbles: true }))")
    assert tab.evaluate(line) == "matrix(1 0 0 1 0 0)"
    assert tab.evaluate(ticks) == whole


def test_mistakes_are_filtered_by_class_and_confidence_and_shown_in_parts(tab, report):
    evaluation = json.loads((report.parent / "evaluation-test.json").read_text())
    confusion = evaluation["confusion"]
    open_in(tab, report, 1400)
    tab.evaluate("document.querySelectorAll('.tabs a')[3].click()")
    wrong = evaluation["correct"].count("0")
    assert wrong > 60
    assert tab.evaluate(VISIBLE) == 60
    tab.evaluate("document.querySelector('.more').click()")
    assert tab.evaluate(VISIBLE) == min(120, wrong)
    choose = "(() => {{ const s = document.querySelectorAll('.filter select')[{}]; s.value = '={}'; s.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()"
    truth = max(range(10), key=lambda i: sum(confusion[i]) - confusion[i][i])
    tab.evaluate(choose.format(0, truth))
    assert tab.evaluate(VISIBLE) == min(60, sum(confusion[truth]) - confusion[truth][truth])
    guess = max((j for j in range(10) if j != truth), key=lambda j: confusion[truth][j])
    tab.evaluate(choose.format(1, guess))
    assert tab.evaluate(VISIBLE) == confusion[truth][guess] > 0
    assert f"{confusion[truth][guess]} of {wrong} mistakes" in tab.evaluate(
        "document.querySelector('.filter').innerText"
    )
    least = "(() => { const s = document.querySelector('.filter [type=range]'); s.value = '1'; s.dispatchEvent(new Event('input', { bubbles: true })); })()"
    tab.evaluate(least)
    assert tab.evaluate(VISIBLE) == 0


def test_on_paper_and_without_javascript_the_page_is_whole(report, tmp_path):
    with open_browser(tmp_path / "profile") as tab:
        open_in(tab, report, 1400)
        tab.call("Emulation.setEmulatedMedia", media="print")
        assert json.loads(tab.evaluate(PANELS)) == [True] * 6
        assert not tab.evaluate("document.querySelector('nav').checkVisibility()")
        assert len(tab.call("Page.printToPDF")["data"]) > 20_000
        tab.call("Emulation.setEmulatedMedia", media="")
        tab.call("Emulation.setScriptExecutionDisabled", value=True)
        open_in(tab, report, 400)
        assert json.loads(tab.evaluate(PANELS)) == [True] * 6
        assert not tab.evaluate("document.querySelector('.filter').checkVisibility()")
        evaluation = json.loads((report.parent / "evaluation-test.json").read_text())
        assert tab.evaluate(VISIBLE) == evaluation["correct"].count("0")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
