"""Formats: by which rules a document was written, said by the document itself.

Whatever fedping writes down and reads again is the JSON of an object whose first member is ``"format":<number>``; one
without is of format 1. The number grows when an older program would misread what is new. A field that is added with a
default does not make it grow (:mod:`fedping.protocol.digest`). A reader knows every format up to its own, for good, and
says of a newer one that it is newer, instead of guessing.

The member is of the file, as a seal is: no digest knows of it, but for that of a version, whose ``format`` is a field.
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
"""No format of ours has more; what has is beyond all of them."""

FORMAT_KEY = b"fedping.format"
"""Key in the footer of a landed file: the format that it was written in; 1 if it is absent."""


class NewerFormat(FedpingError):
    """A document was written by a later version of fedping, in a format that this one does not know."""


def with_format(document: bytes, number: int = 1) -> bytes:
    """Return the JSON of an object with its format in front."""
    start = document.index(b"{") + 1
    comma = b"" if document[start:].lstrip()[:1] == b"}" else b","
    return b'%b"format":%d%b%b' % (document[:start], number, comma, document[start:])


def format_of(document: bytes) -> int:
    """Return the format of a document; 1 if it does not say."""
    found = _MEMBER.match(document)
    return int(found[2][: _DIGITS + 1]) if found else 1


def without_format(document: bytes, what: str, newest: int = 1) -> bytes:
    """Return a document as it was before :func:`with_format`.

    Args:
        document: what was read; without a format it is returned as it is.
        what: it is, for a sentence: where it lies, best of all.
        newest: the newest format that the reader knows.

    Raises:
        NewerFormat: it is of a newer one.
    """
    refuse_newer(format_of(document), what, newest)
    found = _MEMBER.match(document)
    return found[1] + document[found.end() :] if found else document


def unknown_member(document: bytes, read: Any, place: str = "") -> str | None:
    """Return where a document has a member that is no field of the struct that was read from it; None if it has none.

    A later version of fedping has written that. What was read can be used, but has another digest. Nothing is decoded
    but what has structs in it, so that long vectors cost next to nothing.

    Args:
        document: the JSON.
        read: the struct, or what is in its place a list or table of structs.
        place: where in the whole document it is.
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
