"""Limits matrix products to one thread while clients train.

The products of single clients are small: a second thread costs more time than it saves, and several times more when
other processes use the same processors. Use spare processors to run several blocks side by side instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any


class _Limit:
    """Keeps the limit in place while any thread is in :func:`one_thread`."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = Lock(), 0, list[int | None]()

    def enter(self, libraries: list[Any]) -> None:
        with self._lock:
            if self._inside == 0:
                _let_this_thread_control(libraries)
                self._before = [library.get_num_threads() for library in libraries]
                _set_threads(libraries, [1] * len(libraries))
            self._inside += 1

    def leave(self, libraries: list[Any]) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _let_this_thread_control(libraries)
                _set_threads(libraries, self._before)


def _let_this_thread_control(libraries: list[Any]) -> None:
    """Let any thread set or lift OpenBLAS' limit; newer threadpoolctl obeys only the thread that set it first."""
    for library in libraries:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


def _set_threads(libraries: list[Any], counts: list[int | None]) -> None:
    for library, count in zip(libraries, counts, strict=True):
        if count is not None:
            library.set_num_threads(count)


_LIMIT = _Limit()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit NumPy's matrix products to one thread if ``threadpoolctl``, which scikit-learn requires, is installed."""
    libraries = _libraries()
    if not libraries:
        yield
        return
    _LIMIT.enter(libraries)
    try:
        yield
    finally:
        _LIMIT.leave(libraries)


def kernels() -> tuple[str, ...]:
    """Return the version and kernel of NumPy's matrix product libraries, such as "openblas 0.3.31 SkylakeX".

    The result is empty without ``threadpoolctl``. The kernel is the library's choice for this processor.
    """
    # SciPy's wheels have their own library, which only some processes of a run load.
    told = (library.info() for library in _libraries() if "scipy.libs" not in library.filepath)
    each = (" ".join(str(one.get(key) or "?") for key in ("internal_api", "version", "architecture")) for one in told)
    return tuple(sorted(set(each)))


@cache
def _libraries() -> list[Any]:
    """Return a controller for each loaded library of matrix products, including NumPy's."""
    try:
        controller = import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return []
    return [library for library in controller.lib_controllers if library.user_api == "blas"]
