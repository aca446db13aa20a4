"""A process that runs a fedping command, and kills itself or waits for another process at a named moment of its round.

    python -m tests.support.disturbed_round MOMENT WAIT_FOLDER ARGUMENT...

MOMENT is a step of the round (the process is killed right after it); `link`, `linked`: before and after a version's
file gets its name; `second_link`, `second_linked`: the same for the next version's file; `replace`, `replaced`:
before and after the first public file gets its name; or `wait`: before a version's file gets its name, the process
writes a file into WAIT_FOLDER, and continues when there is a file `go`.
"""

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fedping.commands.round
from fedping.main import main

PASSED_OVER = (".probe-", "/.published/", "/.attempts/")
"""Files that publish nothing: of the check whether publishing works, and notes next to the pings."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def around(name: str, before: Callable[[], None], after: Callable[[], None], *, first: int = 1) -> None:
    """Call functions before and after a function of `os`, from its ``first``-th call on."""
    real, left = getattr(os, name), first

    def call(*args: Any) -> None:
        if any(part in str(args[-1]) for part in PASSED_OVER):
            real(*args)
            return
        nonlocal left
        left -= 1
        if left > 0:
            real(*args)
            return
        before()
        real(*args)
        after()

    setattr(os, name, call)


def wait(folder: Path) -> None:
    (folder / f"ready-{secrets.token_hex(4)}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


def disturb(moment: str, folder: Path) -> None:
    def nothing() -> None: ...

    def on_step(step: str) -> None:
        if step == moment:
            die()

    @contextmanager
    def progress(_: str) -> Iterator[Callable[[str], None]]:
        yield on_step

    fedping.commands.round._progress = progress
    if moment == "wait":
        around("link", lambda: wait(folder), nothing)
    elif moment in ("link", "replace"):
        around(moment, die, nothing)
    elif moment in ("linked", "replaced"):
        around(moment.removesuffix("ed") if moment == "linked" else "replace", nothing, die)
    elif moment == "second_link":
        around("link", die, nothing, first=2)
    elif moment == "second_linked":
        around("link", nothing, die, first=2)


if __name__ == "__main__":
    disturb(sys.argv[1], Path(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
