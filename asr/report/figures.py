"""Numbers as people read them: one way for report.txt and report.html."""

from collections.abc import Mapping
from typing import Any

ABSENT = "-"


def number(value: float | None, style: str = "d", unit: str = "") -> str:
    """``value`` in a format, ``-`` where there is none."""
    return ABSENT if value is None else format(value, style) + unit


def interval(low: float | None, high: float | None, style: str = ".2f") -> str:
    """``5.83 to 7.47``."""
    return ABSENT if low is None or high is None else f"{low:{style}} to {high:{style}}"


def duration(seconds: float | None) -> str:
    """``h:mm:ss``."""
    if seconds is None:
        return ABSENT
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def megabytes(count: float | None) -> str:
    """A count of bytes in 10^6."""
    return ABSENT if count is None else f"{count / 1e6:.1f}"


def errors_of(counts: Mapping[str, Any]) -> str:
    """``412 / 5636``: errors of reference words."""
    return f"{counts['errors']} / {counts['words']}"


def yes_or_no(value: bool | None) -> str:
    """``-`` where nothing can be said."""
    return ABSENT if value is None else ("yes" if value else "no")
