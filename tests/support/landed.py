"""Synthetic landed pings as Arrow tables, seeded."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from fedping.protocol.arrow import landed_schema
from fedping.protocol.encodings.dense import dense_payloads

ClientBytes = Callable[[np.random.Generator, int], np.ndarray]


def random_ids(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return n random ids, shape (n, 16)."""
    return np.frombuffer(rng.bytes(16 * n), dtype=np.uint8).reshape(n, 16)


def ids_column(ids: np.ndarray) -> pa.Array:
    """Return ids of shape (n, 16) as a column."""
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, pa.py_buffer(ids.tobytes())])


def landed_table(
    n: int,
    seed: int,
    *,
    m: int = 22,
    model_version: int = 0,
    arms: tuple[str, ...] = ("treatment",),
    updates: np.ndarray | None = None,
    client_bytes: ClientBytes = random_ids,
) -> pa.Table:
    """Return n valid landed pings of version ``model_version``, with random arms."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, m)) if updates is None else updates
    made = {
        "document_id": ids_column(random_ids(rng, n)),
        "client_id": ids_column(client_bytes(rng, n)),
        "received_at": pa.array(np.arange(n) + 1_700_000_000_000).cast(pa.timestamp("ms", tz="UTC")),
        "model_version": pa.array(np.full(n, model_version, np.int32)),
        "study_variation": _dictionary(rng.integers(0, len(arms), n), arms),
        "update_encoding": _dictionary(np.zeros(n, int), ("dense",)),
        "update": dense_payloads(values),
        "loss": pa.array(rng.exponential(20, n)),
        "frecency_scores": pa.array([[3.0, 1.0]] * n, type=landed_schema().field("frecency_scores").type),
        "rank_selected": pa.array(rng.integers(0, 3, n).astype(np.int32)),
        "selected_style": _dictionary(np.zeros(n, int), ("history",)),
        "study_addon_version": _dictionary(np.zeros(n, int), ("1.0.0",)),
    }
    ones = {f.name: pa.array(np.ones(n, np.int8)).cast(f.type) for f in landed_schema() if f.name not in made}
    return pa.table({**made, **ones}, schema=landed_schema())


def _dictionary(codes: np.ndarray, values: tuple[str, ...]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(values, pa.string()))
