"""What a file looks like from outside, and whether a further change of it would show there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeAlias

Sight: TypeAlias = tuple[int, int, int]
"""What changes when a file is replaced: its inode, when it was written, its size; zeros if there is none."""

SETTLED_NS = 2_000_000_000
"""Two changes that are further apart than this have different times, also where a file system keeps whole seconds."""


def file_stamp(path: Path) -> Sight:
    """Return what a file looks like from outside."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_mtime_ns, found.st_size


def is_settled(changed: int, now: int | None = None) -> bool:
    """Return whether a further change would show: what has just changed may change again with the same time.

    Args:
        changed: when it was changed, nanoseconds since 1970 (``st_mtime_ns``).
        now: the present moment likewise; the clock's if None.
    """
    return (time.time_ns() if now is None else now) - changed > SETTLED_NS
