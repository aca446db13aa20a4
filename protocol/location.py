"""Locations of a model store or landed pings (a folder or bucket), and of other files (paths on this machine)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar, cast
from urllib.parse import unquote

from fedping.protocol.errors import InvalidSettings

_KINDS = {"s3": "bucket", "gs": "bucket", "az": "container"}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9]*)://([^/]*)/*(.*)\Z", re.DOTALL)
_ODD = re.compile(r"[?#%\ufffd]|\A\s|\s\Z")
"""Characters with which an address, when read again, would name another folder."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}[A-Za-z0-9]\Z")
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*\Z")

# `pathlib` makes one slash of two, and some systems write one themselves (dbfs:/). A drive of Windows has one letter.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)(.*)", re.DOTALL)

_SECRET = re.compile(r"(?<=//).*@|(?<=\?).*", re.DOTALL)
"""Parts of an address that may be secret, such as a password or token: before the host, and after a question mark."""


@dataclass(frozen=True)
class Bucket:
    """A bucket of an object store or a folder in it: ``s3://name/prefix``, ``gs://…`` or, for Azure, ``az://…``.

    Credentials, region and endpoint are not included; they come from the environment.
    """

    scheme: str
    name: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.name}" + (f"/{self.prefix}" if self.prefix else "")


Place: TypeAlias = Path | Bucket
"""A folder, a bucket, or a file in either; its ``str`` is the text that options accept."""

P = TypeVar("P", bound=Place)


def child(place: P, key: str) -> P:
    """Return the place at the relative path ``key``, with '/', below a place."""
    if isinstance(place, Bucket):
        return cast("P", replace(place, prefix=f"{place.prefix}/{key}" if place.prefix else key))
    return cast("P", place / key)


def base_name(place: Place) -> str:
    """Return the last part of a place's address: the name of a file or a folder."""
    return place.name if isinstance(place, Path) else place.prefix.rpartition("/")[2]


def parent(place: P) -> P:
    """Return the folder that contains a place."""
    if isinstance(place, Bucket):
        return cast("P", replace(place, prefix=place.prefix.rpartition("/")[0]))
    return cast("P", place.parent)


def key_in(folder: Place, place: Place) -> str:
    """Return the path of a place relative to a folder, with '/'; it doesn't depend on where the folder is."""
    if isinstance(place, Path):
        beginning, whole = f"{folder}/", str(place)
        if whole.startswith(beginning):  # of almost all places, and far quicker
            return whole[len(beginning) :]
        return place.relative_to(cast("Path", folder)).as_posix()
    return place.prefix.removeprefix(f"{cast('Bucket', folder).prefix}/")


def place_of(said: str | os.PathLike[str] | Bucket) -> Place:
    """Return the place that an option, a variable or a key of a file names.

    Raises:
        InvalidSettings: the text is neither a path nor a bucket's address, or the address contains more, such as a
            token.
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
        raise InvalidSettings(
            f"'{text}' does not name a {_KINDS[scheme]}. Give {scheme}://NAME or {scheme}://NAME/FOLDER"
        )
    parts = unquote(prefix).split("/") if prefix else []
    if any(part in ("", ".", "..") or _ODD.search(part) or not part.isprintable() for part in parts):
        raise InvalidSettings(
            f"{text!r} has an empty or odd part in its folder, or one with ?, #, % or a space at an end; give "
            f"{scheme}://{name}/FOLDER"
        )
    return Bucket(scheme, name, "/".join(parts))


def is_address(place: Bucket) -> bool:
    """Return whether :func:`place_of` maps the place's text back to it; some objects' names can't be in addresses."""
    try:
        return place_of(str(place)) == place
    except InvalidSettings:
        return False


def absolute(place: Place) -> str:
    """Return a place as text that another process can use from any working directory."""
    return str(place.absolute() if isinstance(place, Path) else place)


def without_secrets(said: str) -> str:
    """Return an address without parts that may be secret, for messages."""
    return _SECRET.sub("…", said) if "//" in said else said


def local_path(said: str | os.PathLike[str]) -> Path:
    """Return the path that an option, a variable or a key of a file names; ``file:///srv/x`` is ``/srv/x``.

    Raises:
        InvalidSettings: the text is the address of an object store, of a cluster's file system or of another machine;
            or it is empty, as from an unset variable.
    """
    text = os.fspath(said)
    if not text:
        raise InvalidSettings("the path is empty. Set its variable, or write '.' for this folder")
    found = _ADDRESS.match(text)
    if found is None:
        return Path(text)
    scheme, slashes, rest = found.groups()
    host, _, below = rest.partition("/") if slashes == "//" else ("", "", rest)
    if scheme.lower() == "file" and host in ("", "localhost"):
        return Path("/" + unquote(below))
    raise InvalidSettings(
        f"'{without_secrets(text)}' isn't a path on this machine. Only a model store and landed pings may be at "
        f"s3://, gs:// or az://; all other files are in local folders, not at {scheme}://. Give the path of a folder"
    )
