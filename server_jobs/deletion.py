"""Removing landed pings for good: which of them, and which versions can no longer be computed again without them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedping.protocol.errors import FedpingError, TemporaryFailure
from fedping.protocol.landing import open_landing
from fedping.protocol.local_files import for_the_group
from fedping.protocol.location import Place

LOCK = ".giving-up.lock"


@contextmanager
def deletion_lock(landing: Place, *, looks: bool = False) -> Iterator[None]:
    """Be the only one that removes anything from a landing folder; the system lets go of the lock whoever dies.

    Whoever only ``looks`` needs no lock, and may be somebody who cannot write there. In a bucket there are no locks:
    removing twice is removing once there, and what somebody else has written meanwhile is not written over.

    Raises:
        FedpingError: somebody else does so now, or there is no such folder, or it may not be written.
    """
    open_landing(landing).check()
    if looks or not isinstance(landing, Path):
        yield
        return
    try:
        with open(landing / LOCK, "a", opener=for_the_group) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise TemporaryFailure(
            f"another 'fedping landing' command removes pings from {landing} now; run this one again when it is done"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # which is told of every command
        where = error.filename or landing / LOCK
        raise FedpingError(
            f"cannot write {os.fspath(where)}: {error.strerror}; run the command as the user of ingest, and run it "
            "again: what is removed by now stays so"
        ) from error


def in_words(numbers: tuple[int, ...]) -> str:
    """Return versions in words: "3", "3 to 9", "3 to 9, 12"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in runs)
