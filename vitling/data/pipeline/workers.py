"""Processes that read images and die, as of a lack of memory: one line of ours instead of torch's traceback."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from vitling.errors import UserError

_DEATH = re.compile(
    r"DataLoader worker \(pid[^)]*\)?[^)]*\) "
    r"(?:is killed by signal: (?P<signal>[\w ]+)|exited unexpectedly(?: with exit code (?P<code>-?\d+))?)"
)


@contextmanager
def deaths_explained() -> Iterator[None]:
    """Around all that goes on while images are streamed: torch raises the death of a worker wherever the main process stands."""
    try:
        yield
    except RuntimeError as error:
        deaths = [found for cause in (error.__cause__, error) if (found := _DEATH.search(str(cause)))]
        if not deaths:
            raise
        how = deaths[0]["signal"] and f" (signal: {deaths[0]['signal'].strip()})"
        how = how or (deaths[0]["code"] and f" (exit code {deaths[0]['code']})") or ""
        raise UserError(
            f"a process that reads images died{how}, perhaps because memory ran out; what was saved stays, and the same "
            "command goes on from there. Fewer workers need less memory, workers=0 reads in this process."
        ) from None
