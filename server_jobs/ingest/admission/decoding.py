"""From bytes to pings: the one place where what was sent becomes a validated value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import msgspec.inspect
from msgspec import UNSET

from fedping.protocol.documents import DOCUMENT_TYPES, DocumentType
from fedping.protocol.ping import BatchedPing, Ping, TelemetryPing, UpdatePayload
from fedping.protocol.update import EncodedUpdate
from fedping.server_jobs.ingest.admission.rejection import Rejection, rejection_of
from fedping.server_jobs.ingest.settings import OBJECT_COST

_P = TypeVar("_P", bound=Ping)

DECODING_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)
"""What a decoder may raise for bytes that somebody sent."""


_ABSENT = frozenset({UNSET})
"""To ask whether a field is absent in a quarter of the time that comparing every value takes."""

_KEYS_OF_ENCODED = len(EncodedUpdate.__struct_fields__)

_BYTES_A_VALUE = 64
"""A number of JSON has up to 25 characters; the rest is for a comma, and a line and indentation of its own."""

_BYTES_A_LETTER = 12
"""A character may be sent as two escapes of six."""

_BYTES_OF_KEYS = 4096
"""Room for the names of the fields and the white space between them."""

_ENVIRONMENT = 2048
"""How many commas the environment of a browser may have, and 64 bytes for each; one of 2018 has some hundreds."""


@dataclass(frozen=True)
class Bounds:
    """The most commas and bytes that a ping of a study can have, white space included.

    A decoder makes every number of a list before it looks at the list's length, so that both are looked at before.
    ``look`` is how many bytes it takes, at most, to look into an encoded update: few may inflate to many.
    """

    commas: int
    size: int
    look: int = 0

    def check(self, body: bytes, start: int = 0, end: int | None = None) -> None:
        """Raise :class:`Rejection` if the ping that stands from ``start`` to ``end`` in a body has more."""
        size, commas = (len(body) if end is None else end) - start, body.count(b",", start, end)
        if size > self.size or commas > self.commas:
            raise Rejection(
                "beyond_study",
                f"the ping has {size} bytes and {commas} commas, and no ping of this study has more than {self.size} "
                f"and {self.commas}; send the declared fields only, and as many numbers as the model has weights",
            )

    @property
    def cost(self) -> int:
        """How many bytes such a ping takes, at most, while it is decoded; a look into its update apart."""
        return 4 * self.size + OBJECT_COST * self.commas


class Decoding:
    """The decoders of one type of document."""

    def __init__(self, document: DocumentType) -> None:
        # Counting keys below finds repeated ones only because it is known which there are.
        structs = (document.ping, document.batched, document.telemetry, EncodedUpdate)
        optional = {field.name for struct in structs for field in msgspec.structs.fields(struct) if not field.required}
        assert optional == {"environment", "ticket"}
        self._ping = _Form(document.ping, document.payload)
        self._batched = _Form(document.batched, document.payload)
        self._telemetry = _Form(document.telemetry, document.payload)

    def bounds(self, m: int, payload: int = 0, look: int = 0, *, telemetry: bool = False) -> Bounds:
        """Return how much a ping of a model of m weights can have, whose update may be ``payload`` bytes in base64.

        With ``telemetry`` it may come in the envelope of Firefox. ``look`` is as in :class:`Bounds`.
        """
        values, text = map(max, self._batched.room, (self._telemetry if telemetry else self._batched).room)
        update = max(_BYTES_A_VALUE * m, 2 * payload)
        size = update + _BYTES_A_VALUE * values + _BYTES_A_LETTER * text + _BYTES_OF_KEYS
        return Bounds(m + values, size, look)

    def ping(self, body: bytes) -> Ping:
        """Return the ping in a body; raises :class:`Rejection` if it is none."""
        return self._ping.decode(body)

    def batched(self, line: bytes) -> BatchedPing:
        """Return the ping in a line of a batch; raises :class:`Rejection` if it is none."""
        return self._batched.decode(line)

    def telemetry(self, body: bytes) -> TelemetryPing:
        """Return the ping in an envelope of Firefox; raises :class:`Rejection` if it is none."""
        return self._telemetry.decode(body)

    def lines(self, body: bytes) -> list[BatchedPing] | None:
        """Return the pings of some lines at once, or None if any line is not a ping: then go line by line."""
        try:
            pings = self._batched.decoder.decode_lines(body)
        except DECODING_ERRORS:
            return None
        return pings if body.count(b":") == sum(map(self._batched.keys, pings)) else None


class _Form(Generic[_P]):
    """One form in which a type of document comes.

    Attributes:
        room: how many commas and how many characters of text such a document can have, its update apart.
    """

    def __init__(self, form: type[_P], payload: type[UpdatePayload]) -> None:
        self.decoder = msgspec.json.Decoder(form)
        self._whole = _WholeNumbers(form, payload)
        self._most = len(form.__struct_fields__) + len(payload.__struct_fields__) - len(payload.ALIASES)
        optional = [field.name for field in msgspec.structs.fields(payload) if not field.required]
        optional = [name for name in optional if name not in payload.ALIASES]
        # Two that are always there, for of one name it would return no tuple.
        self._optional = attrgetter("study_variation", "model_version", *optional)
        self.room = _room_of(form, payload)

    def decode(self, body: bytes) -> _P:
        """Return the document in a body; raises :class:`Rejection` if it is none."""
        try:
            ping = self._decoded(body)
        except DECODING_ERRORS as error:
            raise rejection_of(error) from error
        # A body without a repeated key has one colon a key, and more only within its texts.
        colons = self.keys(ping)
        if isinstance(ping, TelemetryPing):
            # What is dropped may say anything, twice too.
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
        """Return how many keys of its definition a ping has."""
        payload = ping.payload
        more = _KEYS_OF_ENCODED if isinstance(payload.update, EncodedUpdate) else 0
        optional = self._optional(payload)
        absent = 0 if _ABSENT.isdisjoint(optional) else optional.count(UNSET)
        absent += (ping.ticket is UNSET) + (isinstance(ping, TelemetryPing) and ping.environment is UNSET)
        return self._most - absent + more


_FRACTION = "Expected `int`, got `float`"

_EXACT = 2**53
"""Up to which size a float is the integer that was sent."""


class _WholeNumbers:
    """Rewrites a document in which an integer was sent as ``5.0`` or ``5e0``.

    JSON Schema's integers, and so the published schema, admit those: some languages write every number so. Only a
    document that the decoder has refused for it is rewritten. Its integers are decoded; all else is copied as sent.
    """

    def __init__(self, form: type[Ping], payload: type[UpdatePayload]) -> None:
        inner = _unread(payload)
        self._decoder = msgspec.json.Decoder(_unread(form, payload=inner))
        self._of_form, self._of_payload = _integers(form), _integers(payload)

    def rewritten(self, body: bytes) -> bytes:
        """Return the document with its integers written as such; raises what the decoder does of what it is not."""
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
    """Return a struct of the same fields, none of them required or decoded except ``read``."""
    fields = [
        (field.encode_name, read.get(field.name, msgspec.Raw) | msgspec.UnsetType, UNSET)
        for field in msgspec.structs.fields(struct)
    ]
    return msgspec.defstruct(f"Unread{struct.__name__}", fields, forbid_unknown_fields=True)


def _integers(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields, as they are sent, that are integers or lists of them."""
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
    """Return a number, or a list of numbers, with those that are whole written as integers; all else as it was sent."""
    try:
        numbers = _NUMBERS.decode(sent)
    except DECODING_ERRORS:
        return sent  # which the decoder refuses, and says why
    whole = [_as_integer(number) for number in numbers] if isinstance(numbers, list) else _as_integer(numbers)
    return msgspec.Raw(msgspec.json.encode(whole))


def _as_integer(number: int | float) -> int | float:
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) <= _EXACT else number


def _fields_of(struct: type[msgspec.Struct]) -> tuple[msgspec.inspect.Field, ...]:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    return info.fields


def _room_of(*structs: type[msgspec.Struct]) -> tuple[int, int]:
    """Return how many commas and how many characters of text a ping can have, its update apart."""
    info = [field for struct in structs for field in _fields_of(struct)]
    values = len(info)
    text = 0
    for field in info:
        kind = field.type.type if isinstance(field.type, msgspec.inspect.Metadata) else field.type
        if isinstance(kind, msgspec.inspect.StrType):
            text += _most(kind, field)
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
            raise Rejection(
                "duplicate_key", "the ping has a key twice, and which one counts is anyone's guess; send it once"
            )
        return found

    try:
        json.loads(body, object_pairs_hook=check)
    except DECODING_ERRORS as error:  # in what was not read
        raise rejection_of(error) from error


DECODINGS: Mapping[str, Decoding] = {name: Decoding(document) for name, document in DOCUMENT_TYPES.items()}
"""The decoders of every type of document, by its name."""
