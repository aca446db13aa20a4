"""Small data sets in TensorFlow Federated's file formats."""

import sqlite3
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Clients = Mapping[str, Mapping[str, Any]]
"""Examples by client and feature: an array, or a list of texts as bytes."""


def hdf5(file: Path, clients: Clients) -> None:
    """Write clients in the layout of TFF's HDF5 files; skip the test without h5py."""
    h5py = pytest.importorskip("h5py")
    file.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(file, "w") as opened:
        examples = opened.create_group("examples")
        for client, features in clients.items():
            group = examples.create_group(client)
            for name, values in features.items():
                if isinstance(values, list):
                    group.create_dataset(name, data=np.array(values, object), dtype=h5py.string_dtype())
                else:
                    group.create_dataset(name, data=values)


def sqlite(file: Path, splits: Mapping[str, Clients], index: bool = False) -> None:
    """Write the clients of several splits in the layout of TFF's SQLite files."""
    file.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(file)
    database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
    database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
    if index:
        database.execute("CREATE INDEX of_clients ON examples (client_id)")
    for split, clients in splits.items():
        for client, features in clients.items():
            rows = [dict(zip(features, row, strict=True)) for row in zip(*features.values(), strict=True)]
            database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(rows)))
            for row in rows:
                database.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, client, record(row)))
    database.commit()
    database.close()


def record(features: Mapping[str, Any]) -> bytes:
    """Return a TensorFlow record: bytes as a text, arrays as lists of single-precision or whole numbers."""
    entries = b""
    for name, value in features.items():
        entries += field(1, field(1, name.encode()) + field(2, _feature(value)))
    return field(1, entries)


def _feature(value: Any) -> bytes:
    if isinstance(value, bytes):
        return field(1, field(1, value))
    numbers = np.asarray(value).reshape(-1)
    if numbers.dtype.kind == "f":
        return field(2, field(1, struct.pack(f"<{len(numbers)}f", *numbers)))
    return field(3, field(1, b"".join(varint(int(number)) for number in numbers)))


def field(number: int, content: bytes) -> bytes:
    """Return a bytes field of a protocol buffer."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Return a whole number as protocol buffers encode it."""
    value &= 2**64 - 1
    coded = b""
    while value > 127:
        coded += bytes([value & 127 | 128])
        value >>= 7
    return coded + bytes([value])


def characters(seed: int, classes: Sequence[int]) -> dict[str, Any]:
    """Return examples of FEMNIST: random pictures of these classes."""
    pixels = np.random.default_rng(seed).random((len(classes), 28, 28), np.float32)
    return {"pixels": pixels, "label": np.array(classes, np.int32)}


def objects(seed: int, classes: Sequence[int]) -> dict[str, Any]:
    """Return examples of CIFAR-100: random pictures of these classes."""
    image = np.random.default_rng(seed).integers(0, 256, (len(classes), 32, 32, 3), np.uint8)
    label = np.array(classes, np.int64)[:, None]
    return {"coarse_label": label // 5, "image": image, "label": label}


def sentences(*tokens: str) -> dict[str, Any]:
    """Return examples of StackOverflow."""
    count = len(tokens)
    return {
        "creation_date": [b"2010-01-08 09:34:05 UTC"] * count,
        "score": np.arange(count),
        "tags": [b"css|css3"] * count,
        "title": [b"rounded corners"] * count,
        "tokens": [each.encode() for each in tokens],
        "type": [b"answer"] * count,
    }
