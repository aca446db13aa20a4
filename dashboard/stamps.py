"""When files and folders were changed, and how far that can be trusted."""

from __future__ import annotations

import time

SETTLED_NS = 2_000_000_000
"""Two changes that are further apart than this have different times, also where a file system keeps whole seconds."""


def settled(changed: int, now: int | None = None) -> bool:
    """Return whether a further change would show: what has just changed may change again with the same time.

    Args:
        changed: when it was changed, nanoseconds since 1970 (``st_mtime_ns``).
        now: the present moment likewise; the clock's if None.
    """
    return (time.time_ns() if now is None else now) - changed > SETTLED_NS
