"""An event loop whose clock advances only when all tasks wait: hours of backoff pass at once, exact to the second."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time, without a network: waiting for a socket never ends.

    Work in a thread takes the time passed to :meth:`spend`, by default none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        selector = vars(self)["_selector"]
        self._look = selector.select
        selector.select = self._leap

    def time(self) -> float:
        return self._now

    def spend(self, seconds: float) -> None:
        """Let time pass, called from a thread that all tasks wait for."""
        self._now += seconds

    def _leap(self, timeout: float | None = None) -> Any:
        if timeout is None:
            woken = self._look(60)
            assert woken, "everybody waits, and nothing is to come"
            return woken
        self._now += timeout
        return self._look(0)


def in_virtual_time(job: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in a new loop that begins at second 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(job)
