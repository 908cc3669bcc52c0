"""Put a study's table into docs/results.md.

    python benchmarks/results_page.py NAME STUDY       NAME is that of the markers <!-- NAME --> and <!-- /NAME -->

The tables of that page are written by commands, never by hand.
"""

import sys
from pathlib import Path

from vitling.files import write_text

RESULTS = Path(__file__).parents[1] / "docs" / "results.md"


def fill(name: str, text: str, page: Path = RESULTS) -> None:
    """Replace what stands between the markers of that name; they must be on the page."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    content = page.read_text()
    if begin not in content or end not in content:
        raise SystemExit(f"{page} has no markers {begin} and {end}; write them where the table belongs.")
    before, _, rest = content.partition(begin)
    write_text(page, f"{before}{begin}\n{text.strip()}\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    fill(sys.argv[1], (Path(sys.argv[2]) / "table.md").read_text())
