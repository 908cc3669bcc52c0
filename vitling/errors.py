"""UserError and "did you mean"."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A user error in one line. The command line prints it without a traceback and exits 2."""


def did_you_mean(given: str, allowed: Iterable[str], *, show: int = 12) -> str:
    """The end of an error message: the nearest allowed names, or a short list of them when none is near."""
    allowed = sorted(set(map(str, allowed)))
    near = difflib.get_close_matches(given, allowed, n=3, cutoff=0.6)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    more = f" and {len(allowed) - show} more" if len(allowed) > show else ""
    return f"Allowed: {', '.join(allowed[:show])}{more}." if allowed and show else ""


def one_line(text: str) -> str:
    """Text with its control characters written out: a file or class may be called anything, and a message stays one line."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def first_line(error: Exception, *, longest: int = 200) -> str:
    """What another library's exception says, as the end of one of our lines: torch puts a title before its reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text[:longest].rstrip(". ") + "."
