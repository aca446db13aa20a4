"""A value that is refreshed regularly; an expensive one is refreshed less often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

EVERY = 1.0
"""The least number of seconds between two looks."""

SHARE = 20
"""Before the next look, wait this many times as long as the last one took: a twentieth of the time at most."""


class Paced(Generic[T]):
    """The last result of ``look``, which is called again once that is old enough."""

    def __init__(self, look: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._lock = threading.Lock()
        self._found: list[T] = []
        self._next = 0.0

    def __call__(self) -> T:
        """Return the value."""
        with self._lock:
            before = self._clock()
            if not self._found or before >= self._next:
                self._found = [self._look()]
                after = self._clock()
                self._next = after + max(EVERY, SHARE * (after - before))
            return self._found[0]
