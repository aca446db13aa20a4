"""The Arrow schema of a landed ping: :class:`protocol.ping.LandedPing` with the payload of its type, field by field.

An absent optional field is null. A UUID is 16 bytes, an update its tag and its payload (`fedping.protocol.update`), a
repeated text a dictionary. The type of a number follows from the bounds of its annotation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fedping.protocol.formats import FORMAT_KEY
from fedping.protocol.ping import FRECENCY_UPDATE, DocumentType, LandedPing, Payload

UPDATE_ENCODING = "update_encoding"
UPDATE = "update"


@functools.lru_cache(maxsize=1024)
def landed_schema(document: DocumentType = FRECENCY_UPDATE) -> pa.Schema:
    """Return the schema of the landed files of a study with this type of pings."""
    return pa.schema(list(_fields(LandedPing, document.payload)), metadata={FORMAT_KEY: b"%d" % document.format})


def _fields(struct: type[msgspec.Struct], payload: type[Payload]) -> Iterator[pa.Field]:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        if field.name == "payload":
            yield from _fields(payload, payload)
        elif field.name == UPDATE:
            yield pa.field(UPDATE_ENCODING, pa.dictionary(pa.int32(), pa.string()))
            yield pa.field(UPDATE, pa.binary())
        elif field.name == "received_at":
            yield pa.field(field.name, pa.timestamp("ms", tz="UTC"), nullable=False)
        elif field.name not in payload.ALIASES:
            absent = not field.required and field.name not in payload.ALIASES.values()
            yield pa.field(field.name, _arrow_type(field.type), nullable=absent)


def counted(pings: pa.Table | pa.RecordBatch, document: DocumentType) -> pa.Array:
    """Return the column of landed pings that determines their numbers of examples, shape (k,)."""
    if not document.counted_by:
        return pa.array([1], pa.int32()).take(pa.nulls(len(pings), pa.int32()).fill_null(0))
    first, *others = (pings.column(name) for name in document.counted_by if name in pings.schema.names)
    return pc.coalesce(first, *others) if first.null_count else first


def _arrow_type(kind: Any) -> pa.DataType:
    extra: dict[str, Any] = {}
    if isinstance(kind, msgspec.inspect.Metadata):
        extra, kind = kind.extra or {}, kind.type
    match kind:
        case msgspec.inspect.UUIDType():
            return pa.binary(16)
        case msgspec.inspect.BoolType():
            return pa.bool_()
        case msgspec.inspect.IntType(le=int(le)) if le < 2**31:
            return pa.int32()
        case msgspec.inspect.IntType():
            return pa.int64()
        case msgspec.inspect.FloatType():
            return pa.float32() if extra.get("arrow") == "float32" else pa.float64()
        case msgspec.inspect.StrType():
            return pa.dictionary(pa.int32(), pa.string())
        case msgspec.inspect.LiteralType(values=values) if all(isinstance(v, int) for v in values):
            return pa.int8()
        case msgspec.inspect.LiteralType(values=values) if all(isinstance(v, str) for v in values):
            return pa.dictionary(pa.int32(), pa.string())
        case msgspec.inspect.VarTupleType(item_type=item):
            return pa.list_(pa.field("element", _arrow_type(item), nullable=False))
    raise TypeError(f"no Arrow type is defined for {kind!r}; add it to this function")
