"""The site: it builds with every link checked, has every page, and its search works from the disk."""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from docs_pages import ROOT

import vitling
from vitling.cli.main import app
from vitling.recipes import Recipe
from vitling.recipes.schema import Augment, Optim

pytest.importorskip("mkdocs", reason='needs pip install "vitling[docs]"')
pytest.importorskip("mkdocstrings", reason='needs pip install "vitling[docs]"')
from mkdocs.exceptions import PluginError

pytestmark = pytest.mark.slow


def build(root: Path, to: Path) -> subprocess.CompletedProcess:
    """What `make docs` runs. With --quiet, warnings are not counted, and --strict lets everything pass."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(to)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = build(ROOT, folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def hook(name: str):
    spec = importlib.util.spec_from_file_location(f"hook_{name}", ROOT / "docs" / "hooks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_of_docs_is_in_the_navigation(site):
    front = (site / "index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        address = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / address).exists()
        assert f'href="{address}"' in front or address == "index.html", address


def test_a_page_that_somebody_adds_gets_its_place_and_one_that_is_missed_is_named():
    navigation = hook("navigation")
    listed = [page for section in navigation.ORDER.values() for page in section]
    sections = {
        name: pages
        for part in navigation.arrange([*listed, "improving.md", "tutorials/x.md"])
        for name, pages in part.items()
    }
    assert sections["How to"][-1] == "improving.md"
    assert sections["Tutorials"][-1] == "tutorials/x.md"
    with pytest.raises(PluginError, match=r"names data\.md, which docs/ does not have"):
        navigation.arrange([page for page in listed if page != "data.md"])


def test_every_key_every_option_and_every_public_name_has_its_place_in_the_reference(site):
    recipe = (site / "reference" / "recipe.html").read_text()
    for prefix, group in (("", Recipe), ("augment.", Augment), ("optim.", Optim)):
        for field in dataclasses.fields(group):
            if field.name not in ("augment", "optim"):
                assert f"<code>{prefix}{field.name}</code>" in recipe, field.name
    assert "images per optimiser step, over all processes" in recipe  # a comment beside a field
    assert "carved from train where the data brings no validation split" in recipe  # one above it
    assert "more than 0 and less than 1" in recipe  # its range

    commands = (site / "reference" / "commands.html").read_text()
    for name, command in typer.main.get_command(app).commands.items():
        for option in (option for parameter in command.params for option in parameter.opts if option.startswith("--")):
            assert command.hidden or f"<code>{option}</code>" in commands, f"{name} {option}"

    names = (site / "reference" / "python.html").read_text()
    for name in vitling.__all__:
        assert name.startswith("_") or f'id="vitling.{name}"' in names, name


def test_links_between_the_repository_and_the_site_are_moved():
    move = hook("outside").move_links
    assert move("[a](docs/data.md#a-csv)", "changelog.md") == "[a](data.md#a-csv)"
    assert move("[a](../SECURITY.md)", "app.md") == "[a](security.md)"
    assert move("[a](../../CONTRIBUTING.md)", "explanation/five_papers.md") == "[a](../contributing.md)"
    assert move("[a](https://x.org/docs/a.md) [b](#here) [c](models.md)", "data.md") == (
        "[a](https://x.org/docs/a.md) [b](#here) [c](models.md)"
    )


def test_a_link_that_leads_nowhere_stops_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    settings = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(re.sub(r"^hooks:\n(  - .*\n)+", "", settings, flags=re.MULTILINE))
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[b](b.md)\n")
    assert build(tmp_path, tmp_path / "site").returncode != 0
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[b](#b)\n")
    assert build(tmp_path, tmp_path / "site").returncode != 0
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[b](#a)\n")
    result = build(tmp_path, tmp_path / "site")
    assert result.returncode == 0, result.stdout + result.stderr


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]* src="?([^" >]+)|<link[^>]* href="?([^" >]+)', page.read_text()
        )
        assert not [address for pair in loaded for address in pair if address.startswith(("http:", "https:", "//"))], (
            page
        )


def test_search_finds_a_word_without_a_server(site, tmp_path):
    import browser

    index = re.search(r"\{.*\}", (site / "search" / "search_index.js").read_text(), re.DOTALL)[0]
    assert any("whitens" in page["text"] for page in json.loads(index)["docs"])
    if browser.CHROMIUM is None:
        pytest.skip("no Chromium here; the index was looked at")
    with browser.open_browser(tmp_path / "profile") as tab:
        tab.open(f"file://{site}/index.html?q=calibrated")
        assert "alibrated" in tab.wait_for("document.querySelector('.md-search-result__item')?.innerText")
        assert all(address.startswith(("file:", "data:", "blob:", "about:")) for address in tab.requests)
