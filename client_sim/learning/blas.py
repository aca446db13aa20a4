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
                _let_this_thread_control(controller)
                self._limit = controller.limit(limits=1, user_api="blas")
            self._inside += 1

    def leave(self, controller: Any) -> None:
        with self._lock:
            self._inside -= 1
            limit: Any = self._limit
            if self._inside == 0:
                _let_this_thread_control(controller)
                limit.restore_original_limits()


def _let_this_thread_control(controller: Any) -> None:
    """Newer threadpoolctl heeds only the thread that set OpenBLAS' limit first; here, it is whoever comes or goes."""
    for library in controller.lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


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
        _LIMIT.leave(controller)


@cache
def _controller() -> Any:
    try:
        return import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None
