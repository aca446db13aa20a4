"""Now, as every document and log of ours writes it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Return now, ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
