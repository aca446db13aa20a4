"""Digests: one canonical byte form of a value and its SHA-256, so that sameness can be written down."""

from __future__ import annotations

import hashlib

import msgspec

_canonical = msgspec.json.Encoder(order="sorted")


def canonical_json(value: msgspec.Struct) -> bytes:
    """Return the JSON of a document with sorted keys and no white space: equal documents, equal bytes.

    It is decoded once in between, because a float field that was given a whole number is written ``1`` by the program
    that made it and ``1.0`` by the one that read it.
    """
    return _canonical.encode(msgspec.json.decode(_canonical.encode(value), type=type(value)))


def digest_of(value: msgspec.Struct) -> str:
    """Return the SHA-256 (hexadecimal) of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
