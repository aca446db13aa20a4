"""Where a person says that files are: a path of this machine, never an address that would silently become a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from fedping.protocol.errors import InvalidSettings

# `pathlib` makes one slash of two, and some systems write one themselves (dbfs:/). A drive of Windows has one letter.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)(.*)", re.DOTALL)

_SECRET = re.compile(r"(?<=//).*@|(?<=\?).*", re.DOTALL)
"""What of an address may be a password or a token: what stands before the host, and behind a question mark."""


def without_secrets(said: str) -> str:
    """Return what somebody has typed, to be repeated in a message: of an address without what may be secret."""
    return _SECRET.sub("…", said) if "//" in said else said


def local_path(said: str | os.PathLike[str]) -> Path:
    """Return the path that an option, a variable or a key of a file names; ``file:///srv/x`` is ``/srv/x``.

    Raises:
        InvalidSettings: it is the address of an object store, of a cluster's file system or of another machine; or it
            is empty, as a variable that nobody has set.
    """
    text = os.fspath(said)
    if not text:
        raise InvalidSettings("the path is empty; set the variable that it comes from, or write '.' for this folder")
    found = _ADDRESS.match(text)
    if found is None:
        return Path(text)
    scheme, slashes, rest = found.groups()
    host, _, below = rest.partition("/") if slashes == "//" else ("", "", rest)
    if scheme.lower() == "file" and host in ("", "localhost"):
        return Path("/" + unquote(below))
    raise InvalidSettings(
        f"'{without_secrets(text)}' is no path of this machine: fedping keeps files in folders, and not behind "
        f"{scheme}://, but for a model store and landed pings, which may be at s3://, gs:// or az://; give the path of "
        "a folder"
    )
