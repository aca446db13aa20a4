"""A process that ends at one of its writes to the disk."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest


class _Killed(BaseException):
    """A process that ends between two writes."""


class Dying:
    """Ends a process at its n-th write to the disk, before or after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def run(self, at: int, after: bool, command: Callable[[], object]) -> bool:
        """Return whether the command came to its end before."""
        writes = iter(range(10_000))

        def write(real: Callable[..., Any], *given: Any) -> Any:
            if (dies := next(writes) == at) and not after:
                raise _Killed
            done = real(*given)
            if dies:
                raise _Killed
            return done

        with self.monkeypatch.context() as patched:
            for name in ("fsync", "replace"):
                patched.setattr(os, name, partial(write, getattr(os, name)))
            try:
                command()
            except _Killed:
                return False
        return True
