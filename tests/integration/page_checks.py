"""What every page of ours must be, as a real browser shows it: quiet, as wide as its window, legible, and described."""

import json
from pathlib import Path

import pytest
from browser import CHROMIUM, Tab, open_browser

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
WIDTHS = (400, 1400)
SCHEMES = {"light": "rgb(251, 251, 249)", "dark": "rgb(21, 23, 26)"}

# Text that is shown, and its contrast (WCAG 2) with the nearest ground behind it. Numbers in the cells of a heat map lie on a
# picture, whose colour no style tells; their ink is chosen by the value of the cell.
FAINT = """(() => {
  const rgba = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return { r, g, b, a }; };
  const linear = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ({ r, g, b }) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour.a === 1) return colour;
    }
    return { r: 255, g: 255, b: 255 };
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    if (["SCRIPT", "STYLE", "OPTION"].includes(element.tagName) || element.disabled || element.closest("svg")?.querySelector("image")) continue;
    const style = getComputedStyle(element);
    const ink = rgba(element.closest("svg") ? style.fill : style.color), behind = ground(element);
    const [high, low] = [luminance(ink), luminance(behind)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05), large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) found.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return JSON.stringify(found);
})()"""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNDESCRIBED = """JSON.stringify([
  ...[...document.images].filter((image) => !image.alt.trim()).map((image) => image.outerHTML.slice(0, 80)),
  ...[...document.querySelectorAll("svg")].filter((svg) => !svg.closest("[role=img]")?.getAttribute("aria-label")).map((svg) => svg.outerHTML.slice(0, 80)),
  ...[...document.querySelectorAll("button, select, input, a")].filter((one) => !(one.getAttribute("aria-label") || one.innerText || one.labels?.length)).map((one) => one.outerHTML.slice(0, 80)),
])"""
LOADED = "document.readyState === 'complete' && [...document.images].every((image) => image.loading === 'lazy' || image.complete)"


def check_page(page: Path, tmp_path: Path) -> None:
    """Open a page in every width and scheme, and each of its tabs; everything that it should be is asserted."""
    with open_browser(tmp_path / "profile", "--host-resolver-rules=MAP * ~NOTFOUND") as tab:
        for width in WIDTHS:
            for scheme, ground in SCHEMES.items():
                open_in(tab, page, width, scheme)
                assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == ground
                unfold(tab)
                names = json.loads(
                    tab.evaluate("JSON.stringify([...document.querySelectorAll('.tabs a')].map((a) => a.hash))")
                )
                for name in names or [""]:
                    if name:
                        tab.evaluate(f"document.querySelector('.tabs a[href=\"{name}\"]').click()")
                    where = f"{page.name}{name} at {width} px, {scheme}"
                    assert tab.evaluate(WIDER) <= 0, where
                    assert json.loads(tab.evaluate(FAINT)) == [], where
        assert json.loads(tab.evaluate(UNDESCRIBED)) == []
        broken = "[...document.images].filter((image) => image.complete && !image.naturalWidth).length"
        assert tab.evaluate(broken) == 0
        assert tab.complaints == []
        assert [address for address in tab.requests if not address.startswith(("data:", "about:", page.as_uri()))] == []


def open_in(tab: Tab, page: Path, width: int, scheme: str = "light") -> None:
    tab.resize(width)
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.open("about:blank")
    tab.open(page.as_uri())
    tab.wait_for(f"location.href.startsWith('file:') && {LOADED}")


def unfold(tab: Tab) -> None:
    tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
