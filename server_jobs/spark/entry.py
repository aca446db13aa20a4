"""The program that `spark-submit` runs: the `fedping` command, with Spark's application around it.

On a cluster this file is sent alone, with the packages in a zip beside it, so it imports nothing of its own folder.
Within such a zip it is also the ``__main__``. Words ``FEDPING_…=VALUE`` before the command are environment variables
of the process that submitted it; no cluster passes them on by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from fedping.main import main

LOOK_SECONDS = 1


def run(words: Sequence[str]) -> int:
    """Run a command line after its variables, and return its exit code."""
    command = list(words)
    while command and command[0].startswith("FEDPING_") and "=" in command[0]:
        name, _, value = command.pop(0).partition("=")
        os.environ[name] = value
    end_with_parent()
    return main(command)


def end_with_parent() -> None:
    """Send SIGTERM to this process once the JVM that started it has ended, as when a driver is killed.

    Between two rounds of a schedule the process would not notice.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
