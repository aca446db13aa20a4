"""From bytes to pings: the one place where what was sent becomes a validated value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from protocol.documents import DOCUMENT_TYPES, DocumentType
from protocol.ping import BatchedPing, Ping
from server_jobs.ingest.admission.rejection import Rejection, rejection_of

_P = TypeVar("_P", bound=Ping)

DECODING_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)
"""What a decoder may raise for bytes that somebody sent."""


class Decoding:
    """The decoders of one type of document."""

    def __init__(self, document: DocumentType) -> None:
        # Counting keys below finds repeated ones only because every field has to be there.
        structs = (document.batched, document.payload)
        assert all(field.required for struct in structs for field in msgspec.structs.fields(struct))
        self._ping = msgspec.json.Decoder(document.ping)
        self._batched = msgspec.json.Decoder(document.batched)
        self._batched_keys = sum(len(struct.__struct_fields__) for struct in structs)
        self._ping_keys = self._batched_keys - 1

    def ping(self, body: bytes) -> Ping:
        """Return the ping in a body; raises :class:`Rejection` if it is none."""
        return _decode(self._ping, body, self._ping_keys)

    def batched(self, line: bytes) -> BatchedPing:
        """Return the ping in a line of a batch; raises :class:`Rejection` if it is none."""
        return _decode(self._batched, line, self._batched_keys)

    def batch(self, body: bytes) -> list[BatchedPing] | None:
        """Return all the pings of a batch at once, or None if any line is not a ping: then go line by line."""
        try:
            pings = self._batched.decode_lines(body)
        except DECODING_ERRORS:
            return None
        return pings if body.count(b":") == self._batched_keys * len(pings) else None


def _decode(decoder: msgspec.json.Decoder[_P], body: bytes, keys: int) -> _P:
    try:
        ping = decoder.decode(body)
    except DECODING_ERRORS as error:
        raise rejection_of(error) from error
    # Every field is required, so a body without a repeated key has one colon a key, and more only within its texts.
    if body.count(b":") != keys:
        _refuse_repeated_keys(body)
    return ping


def _refuse_repeated_keys(body: bytes) -> None:
    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise Rejection(
                "duplicate_key", "the ping has a key twice, and which one counts is anyone's guess; send it once"
            )
        return found

    json.loads(body, object_pairs_hook=check)


DECODINGS: Mapping[str, Decoding] = {name: Decoding(document) for name, document in DOCUMENT_TYPES.items()}
"""The decoders of every type of document, by its name."""
