"""How much memory there is for us: the machine's, or what its container allows."""

import os
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
UNKNOWN = 2**34  # bytes, where the system does not say


def total_memory() -> int:
    """Bytes, of the machine or of the container if that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN
    return min([total, *_container_limits()])


def _container_limits() -> list[int]:
    """Bytes that the container may use, by control groups of version 2 and 1; without a limit they say "max" or a huge number."""
    texts = [path.read_text().strip() for path in CGROUP_LIMITS if os.access(path, os.R_OK)]
    return [int(text) for text in texts if text.isdigit()]
