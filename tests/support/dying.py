"""Simulates a process that dies at one of its writes to the disk."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest


class _Killed(BaseException):
    """Stands for the death of a process between two writes."""


class Dying:
    """Ends the simulated process before or after its n-th write to the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def run(self, at: int, after: bool, command: Callable[[], object]) -> bool:
        """Run a command that dies at a write; return whether it finished before."""
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
