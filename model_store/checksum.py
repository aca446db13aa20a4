"""The seal of a document in the store, without which one flipped bit would silently make another model.

The last member of the JSON object is ``,"seal":"<32 hexadecimal digits>"``, the XXH3-128 of all bytes before it. It
belongs to the file and not to the document, so no digest of a study or a version includes it. Documents of older stores
have none.

A bit may flip in the seal itself: what has a seal's frame or its very digits in that place, and not both, is damaged,
and no document without a seal.
"""

from __future__ import annotations

import re

_MEMBER = re.compile(rb',"seal":"([0-9a-f]{32})"\}')
_BEFORE, _AFTER = b',"seal":"', b'"}'
_LENGTH = len(_BEFORE) + 32 + len(_AFTER)


def sealed(document: bytes) -> bytes:
    """Return the JSON of a non-empty object with its seal added."""
    body = memoryview(document)[:-1]
    return b"".join((body, _BEFORE, _digest(body), _AFTER))


def is_whole(data: bytes) -> bool:
    """Return whether a document matches its seal; one without a seal does."""
    seal, digest = data[-_LENGTH:], _digest(memoryview(data)[:-_LENGTH])
    before, digits, after = seal[: len(_BEFORE)], seal[len(_BEFORE) : -len(_AFTER)], seal[-len(_AFTER) :]
    if digits == digest:
        return (before, after) == (_BEFORE, _AFTER)
    return before != _BEFORE


def unsealed(data: bytes) -> bytes:
    """Return a document without its seal, if it has one."""
    return data[:-_LENGTH] + b"}" if _MEMBER.fullmatch(data[-_LENGTH:]) else data


def _digest(body: memoryview) -> bytes:
    import xxhash

    return xxhash.xxh3_128_hexdigest(body).encode()
