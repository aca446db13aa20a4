"""Synthetic landed pings at any scale, seeded: the same seed lands the same rows, whatever the number of files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedping.protocol.arrow import landed_schema
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.enrolment import Assignment
from fedping.protocol.landing import write_landed
from fedping.protocol.ping import NOTHING_SELECTED

WEEK_MS = 7 * 24 * 3600 * 1000
FIRST_MS = 1_530_000_000_000


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the pings of one version look like.

    ``duplicates`` is the share of pings that a client sent a second time, with the same document id; ``unselected`` of
    those that ended without a choice. Of ``arms`` the first submits updates, the others carry none. ``dealt`` deals
    clients to the arms; without it each ping names one at random, the others than the first with the share ``control``.
    """

    pings: int
    clients: int
    m: int = 22
    arms: tuple[str, ...] = ("treatment", "control")
    control: float = 0.2
    duplicates: float = 0.01
    unselected: float = 0.1
    model_version: int = 0
    dealt: Assignment | None = None


def land(folder: Path, traffic: Traffic, seed: int, rows_per_file: int = 100_000) -> list[Path]:
    """Write the pings as landed files of at most ``rows_per_file`` rows and return their paths."""
    tables = landed_tables(traffic, seed, rows_per_file)
    return [write_landed(folder, table, FIRST_MS + i) for i, table in enumerate(tables)]


def landed_tables(traffic: Traffic, seed: int, rows: int) -> Iterator[pa.Table]:
    """Yield the pings in tables of at most ``rows`` rows; the retries of a table's pings are in the next one."""
    rng = np.random.default_rng(seed)
    clients = rng.integers(0, 256, size=(traffic.clients, 16), dtype=np.uint8)
    done, retried = 0, None
    while done < traffic.pings:
        k = min(rows, traffic.pings - done)
        table = _table(rng, traffic, clients[rng.integers(0, traffic.clients, k)])
        if retried is not None:
            table = pa.concat_tables([retried, table])[:k].unify_dictionaries()
        yield table
        done += k
        retried = table[: round(k * traffic.duplicates)]


def _table(rng: np.random.Generator, traffic: Traffic, client_ids: NDArray[np.uint8]) -> pa.Table:
    k = len(client_ids)
    rank = np.where(rng.random(k) < traffic.unselected, NOTHING_SELECTED, rng.geometric(0.6, k) - 1)
    arm = (rng.random(k) < traffic.control) * rng.integers(1, max(2, len(traffic.arms)), k)
    if traffic.dealt is not None:
        arm = traffic.dealt.places(client_ids).astype(np.int64)
    chose = rank != NOTHING_SELECTED
    made = {
        "document_id": _ids(rng.integers(0, 256, size=(k, 16), dtype=np.uint8)),
        "client_id": _ids(client_ids),
        "received_at": pa.array(FIRST_MS + rng.integers(0, WEEK_MS, k), pa.timestamp("ms", tz="UTC")),
        "model_version": pa.array(np.full(k, traffic.model_version, np.int32)),
        "study_variation": _texts(arm, traffic.arms),
        "update_encoding": _texts(np.zeros(k, np.int32), ("dense",), missing=arm != 0),
        "update": _updates(rng, traffic.m, chose, missing=arm != 0),
        "loss": pa.array(np.where(chose, rng.exponential(20, k), 0.0)),
        "frecency_scores": _score_lists(rng, k),
        "rank_selected": pa.array(rank.astype(np.int32)),
        "num_chars_typed": pa.array(rng.poisson(4, k).astype(np.int32)),
        "time_end_interaction": pa.array(rng.integers(300, 9000, k)),
        "selected_style": _texts(rng.integers(0, 3, k), ("", "autofill", "bookmark")),
        "study_addon_version": _texts(np.zeros(k, np.int32), ("1.0.0",)),
    }
    rest = {f.name: pa.array(np.ones(k, np.int8)).cast(f.type) for f in landed_schema() if f.name not in made}
    return pa.table({**made, **rest}, schema=landed_schema())


def _updates(rng: np.random.Generator, m: int, chose: NDArray[np.bool_], missing: NDArray[np.bool_]) -> pa.Array:
    values = rng.standard_normal((len(chose), m), dtype=np.float32) * np.float32(3) + np.float32(0.1)
    payloads = dense_payloads(values * chose[:, None])
    return pc.if_else(pa.array(missing), pa.scalar(None, payloads.type), payloads).cast(pa.binary())


def _score_lists(rng: np.random.Generator, k: int) -> pa.Array:
    values = pa.array((rng.random(6 * k) * 2000).astype(np.float32))
    kind = landed_schema().field("frecency_scores").type
    return pa.ListArray.from_arrays(pa.array(np.arange(0, 6 * k + 1, 6, dtype=np.int32)), values, type=kind)


def _ids(ids: NDArray[np.uint8]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(ids))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, data])


def _texts(
    codes: NDArray[np.integer], values: tuple[str, ...], missing: NDArray[np.bool_] | None = None
) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=missing), pa.array(values))
