"""A helper that answers a request and is killed by SIGKILL at a named step.

python -m tests.support.killed_helper STEP FOLDER REQUEST
"""

import os
import signal
import sys
from pathlib import Path

from fedping.helper.folder import open_folder
from fedping.helper.requests import reply
from tests.support.helping import NOW


def die(at: str, step: str) -> None:
    if step == at:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    wanted, folder, request = sys.argv[1:]
    reply(open_folder(Path(folder)), Path(request).read_bytes(), NOW, on_step=lambda step: die(wanted, step))
