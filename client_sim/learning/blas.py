"""One thread for matrix products while clients train.

The products of single clients are small: a second thread costs more than it brings, and several times as much where
other processes want the same processors. Whoever has processors to spare runs several blocks side by side instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any


class _Limit:
    """Holds the limit as long as anybody is inside, in whichever thread."""

    def __init__(self) -> None:
        self._lock, self._inside, self._limit = Lock(), 0, None

    def enter(self, controller: Any) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = controller.limit(limits=1, user_api="blas")
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            limit: Any = self._limit
            if self._inside == 0:
                limit.restore_original_limits()


_LIMIT = _Limit()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let NumPy's matrix products use one thread each, if ``threadpoolctl`` is there, as it is beside scikit-learn."""
    controller = _controller()
    if controller is None:
        yield
        return
    _LIMIT.enter(controller)
    try:
        yield
    finally:
        _LIMIT.leave()


@cache
def _controller() -> Any:
    try:
        return import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None
