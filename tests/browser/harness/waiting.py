"""Waits for conditions, never for a fixed time."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
LONGEST = 240.0
"""Timeout of a condition, in seconds; machines may be busy."""


def happens(condition: Callable[[], object], seconds: float) -> bool:
    """Return whether a condition becomes true within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def wait_for(find: Callable[[], Found], what: str, seconds: float = LONGEST) -> Found:
    """Call a function until its result is true, and return it; fail with ``what`` on a timeout."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
    return found
