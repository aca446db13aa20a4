"""A process that runs one command line and is killed by SIGKILL at a write in the middle.

    python -m tests.support.killed_command WRITE WORD...

A write is a link, a rename or a removal of a file. The process exits with 0 if the command has fewer writes.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedping.main import main
from tests.support import forked

ROOT = Path(__file__).parents[2]


def killed_at(write: int, *words: str) -> int:
    """Run a command in a process that is killed at a write; return its exit code, negative if it was killed."""
    return forked.run(
        [sys.executable, "-m", "tests.support.killed_command", str(write), *words],
        cwd=ROOT,
        check=False,
        capture_output=True,
    ).returncode


def _disturb(write: int) -> None:
    left = write

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **named: Any) -> Any:
            nonlocal left
            if not str(path).endswith(".tmp") or real not in (unlink,):  # removing temporary files is not a step
                left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(path, *args, **named)

        return call

    unlink = os.unlink
    os.link, os.replace, os.rename = counting(os.link), counting(os.replace), counting(os.rename)
    os.unlink = counting(unlink)


if __name__ == "__main__":
    _disturb(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
