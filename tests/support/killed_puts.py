"""Kills the process at a write to a bucket."""

import os
import signal
from itertools import count
from typing import Any

import obstore


def die_at_put(number: int, when: str) -> None:
    """Have this process killed "before" or "after" its ``number``-th put from now on."""
    puts, put = count(1), obstore.put

    def killing(*args: Any, **options: Any) -> Any:
        dies = next(puts) == number
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = put(*args, **options)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    obstore.put = killing  # type: ignore[assignment]
