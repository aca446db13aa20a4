"""Landed pings built from arrays, equal to those that ingest writes, for simulations without ingest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING, landed_schema
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.errors import FedpingError
from fedping.protocol.ping import MODEL_UPDATE, DocumentType
from fedping.protocol.update import DENSE, Payloads
from fedping.protocol.weights import LARGEST


@dataclass(frozen=True)
class ModelPings:
    """Pings of k clients of one arm, all with the same version.

    Updates are stored in the form in which they are sent: float32 with unsigned zeros, or payloads of another encoding.

    Attributes:
        document_ids, client_ids: shape (k, 16), as bytes.
        arm: the arm's name.
        version: model version of the clients; -1 before they have fetched one.
        updates: directions of descent, shape (k, m), or their payloads; None if the arm submits none.
        losses: shape (k,).
        examples: number of examples of each ping, shape (k,).

    Raises:
        FedpingError: a number cannot be sent, as a result of diverging training.
        ValueError: a client without an example has a loss or an update.
    """

    document_ids: NDArray[np.uint8]
    client_ids: NDArray[np.uint8]
    arm: str
    version: int
    updates: NDArray[np.float32] | Payloads | None
    losses: NDArray[np.float64]
    examples: NDArray[np.int64]

    def __post_init__(self) -> None:
        if isinstance(self.updates, np.ndarray):
            with np.errstate(over="ignore"):
                object.__setattr__(self, "updates", self.updates.astype(np.float32) + np.float32(0))
        object.__setattr__(self, "losses", np.asarray(self.losses, dtype=np.float64) + 0.0)
        for what, numbers in (("loss", self.losses), ("update", self.updates)):
            if isinstance(numbers, np.ndarray) and numbers.size and not max(-numbers.min(), numbers.max()) <= LARGEST:
                raise FedpingError(
                    f"the {what} of a client of arm '{self.arm}' at version {self.version} is not a number within "
                    "±1e30, so it cannot be sent: the training diverges. Lower its rate, or scale the data"
                )
        idle = np.asarray(self.examples) == 0
        if self.losses[idle].any() or (isinstance(self.updates, np.ndarray) and self.updates[idle].any()):
            raise ValueError("a client without an example has loss 0 and an update of zeros")

    def __len__(self) -> int:
        return len(self.losses)


def landed_model_updates(pings: ModelPings, received_ms: NDArray[np.int64] | int) -> pa.Table:
    """Return the table that ingest would land for these pings, bit for bit, in their order.

    Args:
        pings: k pings.
        received_ms: Unix ms at which ingest accepted each ping, shape (k,), or all of them.
    """
    k = len(pings)
    columns: dict[str, pa.Array] = {
        "document_id": id_column(pings.document_ids),
        "client_id": id_column(pings.client_ids),
        "received_at": pa.array(np.broadcast_to(np.int64(received_ms), k)),
        "model_version": pa.array(np.full(k, pings.version)),
        "study_variation": text_column(np.zeros(k, np.int32), (pings.arm,)),
        "loss": pa.array(pings.losses),
        "examples": pa.array(pings.examples),
    }
    return landed_table(MODEL_UPDATE, columns, pings.updates)


def landed_table(
    document: DocumentType, columns: Mapping[str, pa.Array], updates: NDArray[np.floating] | Payloads | None
) -> pa.Table:
    """Return a table of landed pings of one type.

    Args:
        document: the type.
        columns: all columns except the update's, each of length k, with the schema's type or one that can be cast to
            it; a missing optional column is filled with nulls.
        updates: shape (k, m), or k payloads in another encoding; None if the pings carry none.
    """
    schema = landed_schema(document)
    k = len(columns["document_id"])
    if isinstance(updates, Payloads):
        encoding, payloads = updates.encoding, updates.column
    else:
        encoding, payloads = DENSE, pa.nulls(k, pa.binary()) if updates is None else dense_payloads(updates)
    made = {
        **{field.name: pa.nulls(k, field.type) for field in schema if field.nullable},
        UPDATE_ENCODING: text_column(np.zeros(k, np.int32), (encoding,), missing=updates is None),
        UPDATE: payloads,
        **columns,
    }
    return pa.table([made[field.name].cast(field.type) for field in schema], schema=schema)


def id_column(ids: NDArray[np.uint8]) -> pa.FixedSizeBinaryArray:
    """Return ids, shape (k, 16), as a column."""
    data = pa.py_buffer(np.ascontiguousarray(ids))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, data])


def text_column(codes: NDArray[np.integer], texts: tuple[str, ...], *, missing: bool = False) -> pa.DictionaryArray:
    """Return a dictionary column with the text at each position in ``texts``; a column of nulls if ``missing``."""
    mask = np.ones(len(codes), np.bool_) if missing else None
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=mask), pa.array(texts, pa.string()))
