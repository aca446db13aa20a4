"""From bytes to pings: the one place where what was sent becomes a validated value."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from protocol.ping import BatchedPing, FrecencyPayload, Ping
from server_jobs.ingest.admission.rejection import Rejection, rejection_of

_ping_decoder = msgspec.json.Decoder(Ping)
_batched_decoder = msgspec.json.Decoder(BatchedPing)
_P = TypeVar("_P", Ping, BatchedPing)

_PING_KEYS = len(Ping.__struct_fields__) + len(FrecencyPayload.__struct_fields__)
_BATCHED_KEYS = _PING_KEYS + 1
# Counting keys below finds repeated ones only because every field has to be there.
assert all(f.required for struct in (BatchedPing, FrecencyPayload) for f in msgspec.structs.fields(struct))

DECODING_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)
"""What a decoder may raise for bytes that somebody sent."""


def decode_ping(body: bytes) -> Ping:
    """Return the ping in a body; raises :class:`Rejection` if it is none."""
    return _decode(_ping_decoder, body, _PING_KEYS)


def decode_batched(line: bytes) -> BatchedPing:
    """Return the ping in a line of a batch; raises :class:`Rejection` if it is none."""
    return _decode(_batched_decoder, line, _BATCHED_KEYS)


def decode_batch(body: bytes) -> list[BatchedPing] | None:
    """Return all the pings of a batch at once, or None if any line is not a ping: then go line by line."""
    try:
        pings = _batched_decoder.decode_lines(body)
    except DECODING_ERRORS:
        return None
    return pings if body.count(b":") == _BATCHED_KEYS * len(pings) else None


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
