"""Notation of times and numbers: ISO 8601 in documents and logs, and the true minus for people."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Return now, ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def milliseconds_of(time: str) -> int:
    """Return a time that is written so in milliseconds since 1970."""
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def time_at(milliseconds: float) -> str:
    """Return the notation of a time in milliseconds since 1970: ISO 8601 in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def format_count(number: int, noun: str) -> str:
    """Return a number of things: 1 ping, 1,200 pings."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def with_minus(written: str) -> str:
    """Return a number, or several, with the true minus (U+2212) in the place of every hyphen."""
    return written.replace("-", "\N{MINUS SIGN}")
