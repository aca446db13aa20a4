"""Notation of times and numbers: ISO 8601 in documents and logs, and the minus sign U+2212 in readable text."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Return the present time, ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def milliseconds_of(time: str) -> int:
    """Return a time of this notation (:func:`utc_now`) in milliseconds since 1970."""
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def time_at(milliseconds: float) -> str:
    """Return a time in milliseconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 ping, 1,200 pings."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def with_minus(written: str) -> str:
    """Return a text of numbers with the minus sign U+2212 in place of every hyphen."""
    return written.replace("-", "\N{MINUS SIGN}")
