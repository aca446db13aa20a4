"""Records of TensorFlow (``tf.train.Example``), read from their bytes without TensorFlow.

A record is a protocol buffer: a map from names to lists of texts, of single-precision numbers or of whole numbers. Its
messages nest five deep, and a length beyond the record's end is rejected. So time and memory grow with the record
only.

Source: *Protocol Buffers Encoding*, and ``tensorflow/core/example/feature.proto``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10

Values: TypeAlias = "NDArray[Any] | list[bytes]"
"""The values of a feature: float32 or int64, shape (n,), or texts."""


class OddRecord(ValueError):
    """The bytes are not a record of TensorFlow, or are cut off."""


def features_of(record: bytes, wanted: Collection[str] | None = None) -> dict[str, Values]:
    """Return the features of a record by name.

    Args:
        record: the bytes of the record.
        wanted: the names of the features to return; all if None.

    Raises:
        OddRecord: the bytes are not a record, or are cut off.
    """
    found: dict[str, Values] = {}
    for features in _messages(memoryview(record), 1):
        for entry in _messages(features, 1):
            try:
                name = b"".join(_messages(entry, 1)).decode("utf-8")
            except UnicodeDecodeError as error:
                raise OddRecord("the name of a feature of a record is not UTF-8") from error
            if wanted is not None and name not in wanted:
                continue
            values = [_values(feature) for feature in _messages(entry, 2)]
            if len(values) != 1:
                raise OddRecord(f"a feature of a record has {len(values)} lists of values, not one")
            found[name] = values[0]
    return found


def _values(feature: memoryview) -> Values:
    texts: list[bytes] = []
    numbers: list[NDArray[Any]] = []
    kinds = set()
    for kind, _, values in _fields(feature):
        if not isinstance(values, memoryview) or kind not in (1, 2, 3):
            raise OddRecord(f"a feature of a record has values of an unknown kind ({kind})")
        kinds.add(kind)
        for number, wire, value in _fields(values):
            if number != 1:
                raise OddRecord(f"a list of values of a record has a field {number}")
            if kind == 1 and wire == _BYTES:
                texts.append(bytes(value))
            elif kind == 2 and wire in (_BYTES, _FOUR_BYTES):
                if len(value) % 4:
                    raise OddRecord("a list of numbers of a record is cut off")
                numbers.append(np.frombuffer(value, "<f4"))
            elif kind == 3 and wire in (_BYTES, _VARINT):
                numbers.append(_varints(value) if wire == _BYTES else np.array([value], np.uint64).view(np.int64))
            else:
                raise OddRecord(f"a list of values of a record is encoded in an unknown way ({wire})")
    if len(kinds) > 1:
        raise OddRecord("a feature of a record has values of several kinds")
    if kinds <= {1}:
        return texts
    if len(numbers) == 1:
        return numbers[0]
    return np.concatenate([np.empty(0, np.float32 if kinds == {2} else np.int64), *numbers])


def _messages(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the fields of a message with this number and a value of bytes."""
    for number, wire, value in _fields(message):
        if number == wanted and wire == _BYTES:
            yield value


def _fields(message: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield the number, the encoding and the value of each field: a whole number, or a part of ``message``."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if wire == _EIGHT_BYTES else 4
        else:
            raise OddRecord(f"a record has a field that is encoded in an unknown way ({wire})")
        if size > len(message) - at:
            raise OddRecord("a record is cut off")
        yield number, wire, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the whole number at a position, and the position after the number."""
    if at < len(message) and message[at] < 0x80:  # most are of one byte
        return message[at], at + 1
    value = 0
    for step, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return value & (2**64 - 1), at + step + 1
    raise OddRecord("a number of a record is cut off")


def _varints(packed: memoryview) -> NDArray[np.int64]:
    """Return the whole numbers in a packed field."""
    coded = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(coded < 0x80)
    if not len(coded):
        return np.empty(0, np.int64)
    if not len(ends) or ends[-1] != len(coded) - 1:
        raise OddRecord("a list of numbers of a record is cut off")
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if sizes.max() > _LONGEST_VARINT:
        raise OddRecord("a record contains a number with too many bytes")
    values = np.zeros(len(ends), np.uint64)
    for step in range(int(sizes.max())):
        more = sizes > step
        values[more] |= (coded[starts[more] + step] & 0x7F).astype(np.uint64) << np.uint64(7 * step)
    return values.view(np.int64)
