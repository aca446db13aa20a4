"""Synthetic landed pings: any number of pings of one version, or those of a study whose clients and arms differ.

The same seed lands the same rows in any number of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedping.protocol.arrow import landed_schema
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.enrolment import Assignment
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.ping import NOTHING_SELECTED

WEEK_MS = 7 * 24 * 3600 * 1000
FIRST_MS = 1_530_000_000_000


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Settings of the pings of one version.

    Attributes:
        pings: number of pings.
        clients: number of clients.
        m: number of weights.
        arms: names of the arms; the first submits updates, the others don't.
        control: share of pings in the arms without updates, drawn at random; unused with ``dealt``.
        duplicates: share of pings that a client sent a second time, with the same document id.
        unselected: share of pings without a choice.
        model_version: the version of the pings.
        dealt: the assignment of clients to arms; None for random arms.
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


ARMS = {"treatment": 0.6, "control": 0.2, "control-no-decay": 0.2}
"""The shares of the arms in 2018."""


@dataclass(frozen=True, kw_only=True)
class StudyTraffic:
    """Settings of a study's pings for an analysis, all of one line; clients differ, and each has one arm.

    Attributes:
        pings: number of pings.
        clients: number of clients.
        arms: the shares of the arms.
        effect: factor of the characters typed in an arm; 1 if absent.
        spread: standard deviation of the logarithm of a client's mean number of characters.
        activity: standard deviation of the logarithm of a client's number of searches.
        duplicates: see :class:`Traffic`.
        unselected: see :class:`Traffic`.
        iterations: the versions, with equal numbers of pings.
        line: the line.
        study: the study.
    """

    pings: int
    clients: int
    arms: Mapping[str, float] = field(default_factory=lambda: dict(ARMS))
    effect: Mapping[str, float] = field(default_factory=dict)
    spread: float = 0.4
    activity: float = 1.0
    duplicates: float = 0.01
    unselected: float = 0.1
    iterations: tuple[int, ...] = (0,)
    line: str = "main"
    study: str = "firefox-2018"


def land(folder: Path, traffic: Traffic, seed: int, rows_per_file: int = 100_000) -> list[Path]:
    """Write the pings as landed files of at most ``rows_per_file`` rows each; return the files' paths."""
    tables = landed_tables(traffic, seed, rows_per_file)
    return [write_landed(folder, table, FIRST_MS + i) for i, table in enumerate(tables)]


def landed_tables(traffic: Traffic, seed: int, rows: int) -> Iterator[pa.Table]:
    """Yield the pings in tables of at most ``rows`` rows; the duplicates of a table's pings are in the next table."""
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


def land_study(landing: Path, traffic: StudyTraffic, seed: int, rows_per_file: int = 100_000) -> list[Path]:
    """Write the pings of a study, drawn from a seed, and return the files."""
    rng = np.random.default_rng(seed)
    crowd = _Crowd(rng, traffic)
    plain = Traffic(
        pings=traffic.pings, clients=traffic.clients, m=1, duplicates=traffic.duplicates, unselected=traffic.unselected
    )
    files, tables = [], list(enumerate(landed_tables(plain, seed, rows_per_file)))
    for i, table in tables:
        iteration = traffic.iterations[i * len(traffic.iterations) // len(tables)]
        folder = partition(landing, traffic.study, traffic.line, iteration)
        version = pa.array(np.full(table.num_rows, iteration, np.int32))
        files.append(write_landed(folder, _with(crowd.behaving(table), "model_version", version), FIRST_MS + i))
    return files


class _Crowd:
    """Clients, each with an arm, a mean number of characters and an activity; active clients get more pings."""

    def __init__(self, rng: np.random.Generator, traffic: StudyTraffic) -> None:
        n, self._names = traffic.clients, list(traffic.arms)
        shares = np.array([traffic.arms[name] for name in self._names])
        self._ids = np.frombuffer(rng.bytes(16 * n), np.uint8).reshape(n, 16)
        self._arm = rng.choice(len(shares), n, p=shares / shares.sum())
        factor = np.array([traffic.effect.get(name, 1.0) for name in self._names])
        self._typing = 4 * np.exp(rng.normal(0, traffic.spread, n)) * factor[self._arm]
        weights = np.exp(rng.normal(0, traffic.activity, n))
        self._reach = np.cumsum(weights) / weights.sum()

    def behaving(self, table: pa.Table) -> pa.Table:
        """Return the pings with clients, arms and typed characters, which are the same in all copies of a document."""
        draws = _words(table.column("document_id"))
        who = np.minimum(np.searchsorted(self._reach, draws[:, 0] / 2**32), len(self._arm) - 1)
        characters = np.floor(-np.log((draws[:, 1] + 1) / 2**32) * self._typing[who] + 0.5)
        ids = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(who), [None, pa.py_buffer(self._ids[who].tobytes())]
        )
        arms = pa.DictionaryArray.from_arrays(pa.array(self._arm[who].astype(np.int32)), pa.array(self._names))
        table = _with(_with(table, "client_id", ids), "study_variation", arms)
        return _with(table, "num_chars_typed", pa.array(characters.astype(np.int32)))


def _words(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return the first two 32-bit words of random ids as numbers, shape (n, 2)."""
    data = np.frombuffer(b"".join(column.to_pylist()), dtype="<u4").reshape(-1, 4)
    return data[:, :2].astype(np.float64)


def _with(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), values)
