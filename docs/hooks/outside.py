"""Pages of the site that lie outside of docs/, where GitHub and packages look for them, and the links to and from them."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/augment.md": "benchmarks/augment.md",
    "benchmarks/crops.md": "benchmarks/crops.md",
}
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(root / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they work in the repository, turned into links that work in the site."""
    return move_links(markdown, page.file.src_uri)


def move_links(markdown: str, uri: str) -> str:
    """The text of the page `uri` with each link from the repository's layout to the site's."""
    here = posixpath.dirname({new: old for old, new in PAGES.items()}.get(uri, f"docs/{uri}"))
    there = posixpath.dirname(uri)

    def move(link: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(here, link[1]))  # in the repository
        moved = PAGES.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(moved, there or ".")

    return _LINK.sub(move, markdown)
