"""Decoding of pings: the only place where received bytes become validated values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import msgspec.inspect
from msgspec import UNSET

from fedping.protocol.ping import BatchedPing, DocumentType, Payload, Ping, TelemetryPing
from fedping.protocol.update import EncodedUpdate
from fedping.server_jobs.ingest.answers import Rejection, outcome_rejection, rejection_of
from fedping.server_jobs.ingest.settings import OBJECT_COST

_P = TypeVar("_P", bound=Ping)

DECODING_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)
"""Exceptions that decoders raise for invalid bytes."""


_ABSENT = frozenset({UNSET})
"""Set for checks for absent fields, which are four times faster than comparisons of every value."""

_KEYS_OF_ENCODED = len(EncodedUpdate.__struct_fields__)

_BYTES_A_VALUE = 64
"""Maximum bytes of a number: 25 characters, plus a comma, a line break and indentation."""

_BYTES_A_LETTER = 12
"""Maximum bytes of a character: two escape sequences of six bytes."""

_BYTES_OF_KEYS = 4096
"""Maximum bytes of field names and white space."""

_ENVIRONMENT = 2048
"""Maximum commas of a browser's environment, with 64 bytes for each. An environment of 2018 has a few hundred."""


@dataclass(frozen=True)
class Bounds:
    """Maximum commas and bytes of a study's pings, including white space.

    They are checked before decoding, because a decoder creates all numbers of a list before it checks the length.
    ``look`` is the maximum memory, in bytes, to inspect an encoded update, which may be compressed.
    """

    commas: int
    size: int
    look: int = 0

    def check(self, body: bytes, start: int = 0, end: int | None = None) -> None:
        """Raise :class:`Rejection` if the ping from ``start`` to ``end`` in a body exceeds these bounds."""
        size, commas = (len(body) if end is None else end) - start, body.count(b",", start, end)
        if size > self.size or commas > self.commas:
            raise Rejection(
                "beyond_study",
                f"the ping has {size} bytes and {commas} commas, but this study allows at most {self.size} and "
                f"{self.commas}; send only the declared fields, and as many numbers as the model has weights",
            )

    @property
    def cost(self) -> int:
        """Maximum memory in bytes to decode a ping, without its encoded update."""
        return 4 * self.size + OBJECT_COST * self.commas


class Decoding:
    """The decoders of a document type."""

    def __init__(self, document: DocumentType) -> None:
        # The count of keys below finds repeated ones only for a known set of optional fields.
        structs = (document.ping, document.batched, document.telemetry, EncodedUpdate)
        optional = {field.name for struct in structs for field in msgspec.structs.fields(struct) if not field.required}
        assert optional == {"environment", "ticket"}
        self._ping = _Form(document.ping, document)
        self._batched = _Form(document.batched, document)
        self._telemetry = _Form(document.telemetry, document)

    def bounds(self, m: int, payload: int = 0, look: int = 0, *, telemetry: bool = False) -> Bounds:
        """Return the bounds for pings of a model with m weights and encoded updates of at most ``payload`` bytes.

        With ``telemetry``, pings may have Firefox' envelope. ``look`` is explained in :class:`Bounds`.
        """
        values, text = map(max, self._batched.room, (self._telemetry if telemetry else self._batched).room)
        update = max(_BYTES_A_VALUE * m, 2 * payload)
        size = update + _BYTES_A_VALUE * values + _BYTES_A_LETTER * text + _BYTES_OF_KEYS
        return Bounds(m + values, size, look)

    def ping(self, body: bytes) -> Ping:
        """Return the ping in a body; raise :class:`Rejection` if it is invalid."""
        return self._ping.decode(body)

    def batched(self, line: bytes) -> BatchedPing:
        """Return the ping in a line of a batch; raise :class:`Rejection` if it is invalid."""
        return self._batched.decode(line)

    def telemetry(self, body: bytes) -> TelemetryPing:
        """Return the ping in Firefox' envelope; raise :class:`Rejection` if it is invalid."""
        return self._telemetry.decode(body)

    def lines(self, body: bytes) -> list[BatchedPing] | None:
        """Return the pings of several lines, or None if any is invalid; callers then decode them one by one."""
        try:
            pings = self._batched.decoder.decode_lines(body)
        except DECODING_ERRORS:
            return None
        return pings if body.count(b":") == sum(map(self._batched.keys, pings)) else None


class _Form(Generic[_P]):
    """One form in which a document type is sent: alone, in a batch, or in telemetry.

    Attributes:
        room: maximum numbers of commas and of text characters in a document without its update.
    """

    def __init__(self, form: type[_P], document: DocumentType) -> None:
        payload = document.payload
        self.decoder = msgspec.json.Decoder(form)
        self._columns = frozenset(outcome.name for outcome in document.outcomes) if document.study else None
        self._whole = _WholeNumbers(form, payload)
        self._most = len(form.__struct_fields__) + len(payload.__struct_fields__) - len(payload.ALIASES)
        optional = [field.name for field in msgspec.structs.fields(payload) if not field.required]
        optional = [name for name in optional if name not in payload.ALIASES]
        # Two fields that always exist, because for one name it would not return a tuple.
        self._optional = attrgetter("study_variation", "model_version", *optional)
        self.room = _room_of(form, payload)

    def decode(self, body: bytes) -> _P:
        """Return the document in a body; raise :class:`Rejection` if it is invalid."""
        try:
            ping = self._decoded(body)
        except DECODING_ERRORS as error:
            rejection = None if self._columns is None else outcome_rejection(error, self._columns)
            raise rejection or rejection_of(error) from error
        # A body without repeated keys has one colon per key; further ones are inside texts.
        colons = self.keys(ping)
        if isinstance(ping, TelemetryPing):
            # The ignored environment may have anything, also repeated keys.
            unread = b"" if ping.environment is UNSET else bytes(ping.environment)
            colons += len(ping.application) + ping.creation_date.count(":") + unread.count(b":")
            hides = body.count(b"\\") > unread.count(b"\\")  # an escape hides a colon
        else:
            hides = False
        if body.count(b":") != colons or hides:
            _refuse_repeated_keys(body)
        return ping

    def _decoded(self, body: bytes) -> _P:
        try:
            return self.decoder.decode(body)
        except msgspec.ValidationError as error:
            if _FRACTION not in str(error):
                raise
        return self.decoder.decode(self._whole.rewritten(body))

    def keys(self, ping: _P) -> int:
        """Return the number of keys of a ping."""
        payload = ping.payload
        more = _KEYS_OF_ENCODED if isinstance(getattr(payload, "update", None), EncodedUpdate) else 0
        optional = self._optional(payload)
        absent = 0 if _ABSENT.isdisjoint(optional) else optional.count(UNSET)
        absent += (ping.ticket is UNSET) + (isinstance(ping, TelemetryPing) and ping.environment is UNSET)
        return self._most - absent + more


_FRACTION = "Expected `int`, got `float`"

_EXACT = 2**53
"""Largest integer up to which floats represent all integers exactly."""


class _WholeNumbers:
    """Rewrites documents with integers that were sent as ``5.0`` or ``5e0``.

    JSON Schema, and thus the published schema, accepts them as integers; some languages write all numbers this way.
    Only documents rejected for this reason are rewritten. Integer fields are decoded; all other fields are copied.
    """

    def __init__(self, form: type[Ping], payload: type[Payload]) -> None:
        inner = _unread(payload)
        self._decoder = msgspec.json.Decoder(_unread(form, payload=inner))
        self._of_form, self._of_payload = _integers(form), _integers(payload)

    def rewritten(self, body: bytes) -> bytes:
        """Return the document with whole numbers such as 1.0 written as 1; raise the decoder's errors."""
        found: Any = self._decoder.decode(body)
        self._rewrite(found, self._of_form)
        if found.payload is not UNSET:
            self._rewrite(found.payload, self._of_payload)
        return msgspec.json.encode(found)

    def _rewrite(self, found: Any, names: tuple[str, ...]) -> None:
        for name in names:
            if (sent := getattr(found, name)) is not UNSET:
                setattr(found, name, _as_integers(sent))


def _unread(struct: type[msgspec.Struct], **read: Any) -> type[msgspec.Struct]:
    """Return a struct with the same fields, all optional, and undecoded except those in ``read``."""
    fields = [
        (field.encode_name, read.get(field.name, msgspec.Raw) | msgspec.UnsetType, UNSET)
        for field in msgspec.structs.fields(struct)
    ]
    return msgspec.defstruct(f"Unread{struct.__name__}", fields, forbid_unknown_fields=True)


def _integers(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the encoded names of fields with integers or lists of integers."""
    return tuple(field.encode_name for field in _fields_of(struct) if _is_integer(field.type))


def _is_integer(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _is_integer(kind.type)
    if isinstance(kind, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
        return _is_integer(kind.item_type)
    if isinstance(kind, msgspec.inspect.LiteralType):
        return all(isinstance(value, int) for value in kind.values)
    return isinstance(kind, msgspec.inspect.IntType)


_Numbers: TypeAlias = int | float | list[int | float]
_NUMBERS: msgspec.json.Decoder[_Numbers] = msgspec.json.Decoder(_Numbers)


def _as_integers(sent: msgspec.Raw) -> msgspec.Raw:
    """Return a number or list of numbers with whole numbers written as integers, or any other value unchanged."""
    try:
        numbers = _NUMBERS.decode(sent)
    except DECODING_ERRORS:
        return sent  # the decoder rejects it with a reason
    whole = [_as_integer(number) for number in numbers] if isinstance(numbers, list) else _as_integer(numbers)
    return msgspec.Raw(msgspec.json.encode(whole))


def _as_integer(number: int | float) -> int | float:
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) <= _EXACT else number


def _fields_of(struct: type[msgspec.Struct]) -> tuple[msgspec.inspect.Field, ...]:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    return info.fields


def _room_of(*structs: type[msgspec.Struct]) -> tuple[int, int]:
    """Return the maximum numbers of commas and of text characters in a ping without its update."""
    info = [field for struct in structs for field in _fields_of(struct)]
    values = len(info)
    text = 0
    for field in info:
        kind = field.type.type if isinstance(field.type, msgspec.inspect.Metadata) else field.type
        if isinstance(kind, msgspec.inspect.StrType):
            text += _most(kind, field)
        elif isinstance(kind, msgspec.inspect.LiteralType):
            text += max((len(value) for value in kind.values if isinstance(value, str)), default=0)
        elif isinstance(kind, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
            values += _most(kind, field)
        elif isinstance(kind, msgspec.inspect.DictType):
            assert isinstance(kind.key_type, msgspec.inspect.StrType), f"'{field.name}' has keys that are no texts"
            entries = _most(kind, field)
            values += entries
            text += 2 * entries * _most(kind.key_type, field)  # its values are no longer than its keys
        elif isinstance(kind, msgspec.inspect.RawType):
            values += _ENVIRONMENT
    return values + text, text


def _most(kind: Any, field: msgspec.inspect.Field) -> int:
    assert kind.max_length is not None, f"'{field.name}' has no greatest length"
    return int(kind.max_length)


def _refuse_repeated_keys(body: bytes) -> None:
    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise Rejection("duplicate_key", "the ping has a key twice, so its value is ambiguous; send every key once")
        return found

    try:
        json.loads(body, object_pairs_hook=check)
    except DECODING_ERRORS as error:  # in the ignored environment
        raise rejection_of(error) from error


@lru_cache(maxsize=1024)
def decoding_of(document: DocumentType) -> Decoding:
    """Return the decoders of a document type."""
    return Decoding(document)
