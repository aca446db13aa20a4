"""Files that hold a secret: written once, and for nobody but their owner."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedping.protocol.folders import sync_folder


def write_secret(path: Path, secret: bytes) -> None:
    """Write a secret, in hexadecimal, into a new file that nobody but its owner may read; it is on disk after that.

    Raises:
        OSError: it cannot be written, or the file is there already (FileExistsError).
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secret.hex() + "\n")
        file.flush()
        os.fsync(handle)
    sync_folder(path.parent)


def others_may_use(mode: int) -> bool:
    """Return whether somebody else than the owner may do anything with a file of this mode."""
    return bool(mode & (stat.S_IRWXG | stat.S_IRWXO))
