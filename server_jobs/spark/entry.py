"""The program run by `spark-submit`: the `fedping` command inside a Spark application.

This file is sent to a cluster separately from the packages, which are in a zip, so it imports no modules from its
folder. In a zip, this file is also the ``__main__``. Words ``FEDPING_…=VALUE`` before the command are environment
variables of the submitting process, which clusters don't pass on by themselves.
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
    """Set the variables at the start of a command line, run the command, and return its exit code."""
    command = list(words)
    while command and command[0].startswith("FEDPING_") and "=" in command[0]:
        name, _, value = command.pop(0).partition("=")
        os.environ[name] = value
    end_with_parent()
    return main(command)


def end_with_parent() -> None:
    """Send SIGTERM to this process when the JVM that started it ends, for example because a driver is killed.

    Between two rounds of a schedule, the process wouldn't notice that end by itself.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
