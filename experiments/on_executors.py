"""What work for a run begins with on one of Spark's executors: it sees the run's folder, and is alone at its piece."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedping.experiments.run_process import alone
from fedping.protocol.errors import FedpingError

LOCKS = ".running"
"""The folder of the locks in that of a run, while its work is spread."""


@contextmanager
def one_at_a_time(out: Path, number: int) -> Iterator[None]:
    """Hold the lock on a piece of work of the run in a folder, so that one who was taken for lost does not do it too.

    Raises:
        FedpingError: the folder is not there.
    """
    if not out.is_dir():
        raise FedpingError(
            f"the executor on {socket.gethostname()} does not see the folder {out}: give --out in a folder that all "
            "machines of the cluster share, by the same path"
        )
    (out / LOCKS).mkdir(exist_ok=True)
    with alone(out / LOCKS / str(number)):
        yield


def forget_locks(out: Path) -> None:
    """Remove all locks, when no work goes on any more; also those that a driver has left that was killed."""
    shutil.rmtree(out / LOCKS, ignore_errors=True)
