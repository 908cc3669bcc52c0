"""Durations as text. Free of torch, so that a typo is reported at once."""

import re

from vitling.errors import UserError
from vitling.inputs.values import show

LONGEST = 10 * 365 * 86400  # seconds


def parse_duration(text: str, *, what: str) -> float:
    """Seconds in "90s", "30m", "1.5h" or "1h30m"; a bare number is minutes. `what` names the setting in the error."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip().lower())
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        seconds = float(text) * 60
    else:
        seconds = (
            sum(float(n or 0) * unit for n, unit in zip(parts.groups(), (3600, 60, 1), strict=True)) if parts else 0.0
        )
    if not 0 < seconds <= LONGEST:
        raise UserError(f"{what} '{show(text)}' is not a duration of up to ten years; write 90s, 30m or 2h.")
    return seconds
