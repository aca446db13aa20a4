"""Where a model store or the landed pings lie: in a folder of this machine, or in a bucket of an object store."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar, cast
from urllib.parse import unquote

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.local_path import local_path

_KINDS = {"s3": "bucket", "gs": "bucket", "az": "container"}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9]*)://([^/]*)/*(.*)\Z", re.DOTALL)
_ODD = re.compile(r"[?#%\ufffd]|\A\s|\s\Z")
"""What would name another folder when the address is read again."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}[A-Za-z0-9]\Z")
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*\Z")


@dataclass(frozen=True)
class Bucket:
    """A bucket of an object store, or a part of it: ``s3://name/prefix``, ``gs://…`` or, of Azure, ``az://…``.

    Credentials, region and endpoint are not part of it: they come from the environment.
    """

    scheme: str
    name: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.name}" + (f"/{self.prefix}" if self.prefix else "")


Place: TypeAlias = Path | Bucket
"""Where a store or the landed pings lie, or one file there; ``str`` of it is what an option takes."""

P = TypeVar("P", bound=Place)


def child(place: P, key: str) -> P:
    """Return a place below another; ``key`` is the way there, with '/'."""
    if isinstance(place, Bucket):
        return cast("P", replace(place, prefix=f"{place.prefix}/{key}" if place.prefix else key))
    return cast("P", place / key)


def base_name(place: Place) -> str:
    """Return the last part of a place's address: the name of a file or a folder."""
    return place.name if isinstance(place, Path) else place.prefix.rpartition("/")[2]


def parent(place: P) -> P:
    """Return the folder that a place lies in."""
    if isinstance(place, Bucket):
        return cast("P", replace(place, prefix=place.prefix.rpartition("/")[0]))
    return cast("P", place.parent)


def key_in(folder: Place, place: Place) -> str:
    """Return the way from a folder to a place below it, with '/'; the same wherever the folder lies."""
    if isinstance(place, Path):
        return place.relative_to(cast("Path", folder)).as_posix()
    return place.prefix.removeprefix(f"{cast('Bucket', folder).prefix}/")


def place_of(said: str | os.PathLike[str] | Bucket) -> Place:
    """Return the place that an option, a variable or a key of a file names.

    Raises:
        InvalidSettings: it is neither a path nor the address of a bucket, or an address with more than that in it.
    """
    if isinstance(said, Bucket | Path):
        return said
    text = os.fspath(said)
    found = _URL.match(text.strip())
    if found is None or (scheme := found[1].lower()) not in _KINDS:
        return local_path(text)
    name, prefix = found[2], found[3].rstrip("/")
    if re.search(r"[^A-Za-z0-9._-]", name) or re.search(r"[?#]", unquote(text)):  # may be a secret: is not repeated
        raise InvalidSettings(
            f"the address of the {_KINDS[scheme]} has a name, a password or a token in it; give {scheme}://NAME/FOLDER "
            "alone, and credentials by the environment"
        )
    if not (_CONTAINER if scheme == "az" else _BUCKET).match(name):
        raise InvalidSettings(f"'{text}' names no {_KINDS[scheme]}; give {scheme}://NAME or {scheme}://NAME/FOLDER")
    parts = unquote(prefix).split("/") if prefix else []
    if any(part in ("", ".", "..") or _ODD.search(part) or not part.isprintable() for part in parts):
        raise InvalidSettings(
            f"{text!r} has an empty or odd part in its folder, or one with ?, #, % or a space at an end; give "
            f"{scheme}://{name}/FOLDER"
        )
    return Bucket(scheme, name, "/".join(parts))


def is_address(place: Bucket) -> bool:
    """Return whether :func:`place_of` gives the place again for its text; objects may have names that do not."""
    try:
        return place_of(str(place)) == place
    except InvalidSettings:
        return False


def absolute(place: Place) -> str:
    """Return a place as another process has to be told it, whatever folder it works in."""
    return str(place.absolute() if isinstance(place, Path) else place)
