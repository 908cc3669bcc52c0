"""What the documentation asks its readers to type: the blocks and commands of a page, in their order."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))  # have a test of their own, on data of their own
PROGRAMS = ("vitling", "accelerate", "torchrun", "python", "pip", "make", "find")

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(vitling [^`]+)`")
_COMMENT = re.compile(r"\s{2,}#.*|\s+# .*|\s{2,}(?![-\\]).*")  # some pages explain a command two spaces to its right


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and its text."""

    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands in it, each on one line and without the words beside it."""
        if self.language not in ("", "bash"):
            return []
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        return [_COMMENT.sub("", line).strip() for line in lines if line.split(" ")[0] in PROGRAMS]

    @property
    def forms(self) -> list[str]:
        """Commands in general, with [options], A|B and dots, as a block of text may show them."""
        lines = re.sub(r"\n +", " ", self.text).splitlines() if self.language == "text" else []
        return [line for line in lines if line.startswith("vitling ")]


def blocks(page: Path) -> list[Block]:
    return [Block(language, text) for language, text in _BLOCK.findall(page.read_text())]


def inline_commands(page: Path) -> list[str]:
    """What the text calls by `vitling ...`."""
    text = _BLOCK.sub("", page.read_text())
    return [" ".join(command.split()) for command in _INLINE.findall(text)]


def words(command: str) -> list[str]:
    """The command's words, as a shell would split them and fill in its wildcards in the present folder."""
    filled = [sorted(map(str, Path().glob(word))) if "*" in word else [word] for word in shlex.split(command)]
    return [word for group in filled for word in group]
