"""A process that runs one round and is killed by SIGKILL at a write of its store.

    python -m tests.support.killed_round WRITE FOLDER

It exits with 0 if the round has fewer writes.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedping.model_store.store import open_store
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.rounds import WHEN


def disturb(write: int) -> None:
    """Have this process killed before the ``write``-th hidden file gets its name."""
    left = write

    def counting(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **named: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args, **named)

        return call

    os.link, os.replace = counting(os.link), counting(os.replace)  # type: ignore[assignment]


if __name__ == "__main__":
    store, landing = open_store(Path(sys.argv[2]) / "store"), Path(sys.argv[2]) / "landing"
    disturb(int(sys.argv[1]))
    run_round(store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test"))
