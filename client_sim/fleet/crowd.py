"""Many clients at the network at once: each begins at its own moment, and only so many talk at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeAlias

Sleep: TypeAlias = Callable[[float], Awaitable[Any]]
"""Waits for so many seconds; ``asyncio.sleep``, or a test's own."""

Job: TypeAlias = Callable[[asyncio.Semaphore], Coroutine[Any, Any, None]]
"""One client's business. A place is taken for it when it begins; it gives the place back, and may take one again."""


async def each(jobs: Iterable[tuple[float, Job]], at_once: int, sleep: Sleep) -> None:
    """Run all jobs, at most ``at_once`` of them holding a place at any time.

    Jobs are made as there is room for them, so that a million of them need no more memory than those under way.

    Args:
        jobs: when each begins, in seconds from now, ascending; and the job. Who finds no place begins when there is.
        at_once: the number of places.
        sleep: how to wait.
    """
    places = asyncio.Semaphore(at_once)
    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.TaskGroup() as group:
        for moment, job in jobs:
            # By the clock, not from job to job: time spent waiting for a place has passed for those behind, too.
            if (wait := began + moment - clock()) > 0:
                await sleep(wait)
            await places.acquire()
            group.create_task(job(places))
