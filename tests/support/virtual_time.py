"""An event loop whose clock moves only when everybody waits: hours of back-off pass at once, and to the second."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Without a network: whoever waits for a socket here waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        selector = vars(self)["_selector"]
        self._look = selector.select
        selector.select = self._leap

    def time(self) -> float:
        return self._now

    def _leap(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits, and nothing is to come"
        self._now += timeout
        return self._look(0)


def in_virtual_time(job: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in a loop of its own that begins at second 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(job)
