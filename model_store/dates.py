"""The dates of versions: which of them show that the clock of a machine is wrong."""

from __future__ import annotations

from fedping.protocol.notation import milliseconds_of

CLOCKS_APART_MS = 60_000
"""How far two clocks may be apart without a word, in milliseconds; those that follow NTP are within a few of them."""


def date_trouble(created: str, parent_created: str | None, now_ms: float) -> str | None:
    """Return in words why a version's date cannot be right; None if it can.

    Args:
        created: when the version was published, by the clock of the machine that published it, ISO 8601 in UTC.
        parent_created: when its parent was; None of a version without one.
        now_ms: the present moment by this machine's clock, in milliseconds since 1970.
    """
    made = milliseconds_of(created)
    if made > now_ms + CLOCKS_APART_MS:
        return f"is dated {_minute(created)}, which is still to come by this machine's clock"
    if parent_created is not None and made < milliseconds_of(parent_created) - CLOCKS_APART_MS:
        return f"is dated {_minute(created)}, before its parent of {_minute(parent_created)}"
    return None


def _minute(time: str) -> str:
    return f"{time[:16].replace('T', ' ')} UTC"
