"""Digests: one canonical byte form of a value and its SHA-256, so that sameness can be written down."""

from __future__ import annotations

import hashlib

import msgspec

_canonical = msgspec.json.Encoder(order="sorted")


def canonical_json(value: object) -> bytes:
    """Return the JSON of a Struct or builtin with sorted keys and no white space: equal values, equal bytes."""
    return _canonical.encode(value)


def digest_of(value: object) -> str:
    """Return the SHA-256 (hexadecimal) of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
