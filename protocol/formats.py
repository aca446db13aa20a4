"""Formats: numbers in documents that identify the rules by which they were written.

Every document that fedping writes and reads again is the JSON of an object whose first member is ``"format":<number>``;
a document without this member has format 1. The number grows when an older program would misread the document. A new
field with a default does not increase it (:mod:`fedping.protocol.digest`). A reader knows every format up to its own,
permanently, and reports a newer one as newer instead of guessing.

The member belongs to the file, like a checksum: no digest covers it, except a version's, whose ``format`` is a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Raw, Struct, json

from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError

_MEMBER = re.compile(rb'(\s*\{)\s*"format"\s*:\s*([0-9]+)\s*(,|(?=\}))')
_DIGITS = 9
"""Maximum digits of a format number; a longer number counts as a newer format."""

FORMAT_KEY = b"fedping.format"
"""Key in the footer of a landed file: the format that it was written in; 1 if it is absent."""


class NewerFormat(FedpingError):
    """A document has a format that this version of fedping doesn't know; a later version wrote it."""


def with_format(document: bytes, number: int = 1) -> bytes:
    """Return the JSON of an object with its format in front."""
    start = document.index(b"{") + 1
    comma = b"" if document[start:].lstrip()[:1] == b"}" else b","
    return b'%b"format":%d%b%b' % (document[:start], number, comma, document[start:])


def format_of(document: bytes) -> int:
    """Return the format number of a document; 1 if the document has none."""
    found = _MEMBER.match(document)
    return int(found[2][: _DIGITS + 1]) if found else 1


def without_format(document: bytes, what: str, newest: int = 1) -> bytes:
    """Return a document without its format: the inverse of :func:`with_format`.

    Args:
        document: the bytes that were read; without a format they are returned unchanged.
        what: the document's name for a sentence, ideally its location.
        newest: the newest format that the reader knows.

    Raises:
        NewerFormat: the document has a newer format.
    """
    refuse_newer(format_of(document), what, newest)
    found = _MEMBER.match(document)
    return found[1] + document[found.end() :] if found else document


def unknown_member(document: bytes, read: Any, place: str = "") -> str | None:
    """Return the place of a member that is no field of the struct read from the document; None if all are fields.

    Such a member comes from a later version of fedping. The struct can be used, but has another digest. Only values
    with structs in them are decoded, so long vectors cost next to nothing.

    Args:
        document: the JSON.
        read: the struct, or a list or table of structs in its place.
        place: its place in the whole document.
    """
    inside: Iterable[tuple[Any, Any]] = ()
    members: Any = ()
    if isinstance(read, Struct):
        members = json.decode(document, type=dict[str, Raw])
        known = dict(zip(read.__struct_encode_fields__, read.__struct_fields__, strict=True))
        if beyond := members.keys() - known.keys() - {read.__struct_config__.tag_field}:
            return f"{place}{min(beyond)}"
        inside = ((name, getattr(read, field)) for name, field in known.items() if name in members)
    elif isinstance(read, dict) and any(isinstance(each, Struct) for each in read.values()):
        members, inside = json.decode(document, type=dict[str, Raw]), read.items()
    elif isinstance(read, tuple | list) and read and isinstance(read[0], Struct):
        members, inside = json.decode(document, type=list[Raw]), enumerate(read)
    found = (unknown_member(bytes(members[name]), each, f"{place}{name}.") for name, each in inside)
    return next((each for each in found if each is not None), None)


def refuse_newer(number: int, what: str, newest: int = 1) -> None:
    """Raise :class:`NewerFormat` if a document has a format that its reader does not know."""
    if number > newest:
        raise NewerFormat(
            f"{what} has format {number}, and fedping {__version__} reads up to format {newest}: a later version of "
            "fedping has written it; upgrade fedping here and run the same command again"
        )
