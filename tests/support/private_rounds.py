"""Landed pings of private lines, and rounds on them, for tests of private rounds."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedping.protocol.arrow import landed_schema
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.ping import PRIVATE_UPDATE
from fedping.protocol.privacy import frame_of, vectors_of
from fedping.protocol.study import Study
from tests.support.private import client_of
from tests.support.rounds import FIRST_MS, id_of


@dataclass(frozen=True)
class PrivatePing:
    """One landed ping of a private line, possibly from an attacker."""

    client: bytes
    payload: bytes | None
    arm: str = "treatment"
    version: int = 0
    encoding: str | None = "private"
    document: bytes | None = None


def client(study: Study, arm: str, number: int) -> bytes:
    """Return the id of a client of an arm; each number is another client."""
    return client_of(study, arm, number).bytes


def payloads_of(study: Study, updates: np.ndarray, losses: np.ndarray, tops: np.ndarray) -> list[bytes]:
    """Return honest clients' payloads for updates, shape (k, m), losses and top choices, both (k,)."""
    line = study.lines[0]
    assert line.privacy is not None
    vectors = vectors_of(frame_of(line.privacy, line.spec), updates, losses, tops, line.privacy.loss)
    return [each.astype("<i4").tobytes() for each in vectors]


def private_crowd(
    study: Study, n: int, *, seed: int = 0, version: int = 0, arm: str = "treatment"
) -> list[PrivatePing]:
    """Return one ping for each of n clients of an arm; another seed gives other clients."""
    rng = np.random.default_rng(seed)
    m = study.lines[0].spec.m
    sent = payloads_of(study, rng.normal(0.5, 1, (n, m)), rng.uniform(0, 1, n), rng.integers(0, 2, n).astype(float))
    return [
        PrivatePing(client(study, arm, 10_000 * (1 + seed) + i), payload, arm, version)
        for i, payload in enumerate(sent)
    ]


def land_private(
    landing: Path, study: Study, pings: Sequence[PrivatePing], *, iteration: int = 0, at_ms: int = FIRST_MS
) -> Path:
    """Land pings as one file of a version of the line `main`, and return its path."""
    ids = [
        p.document or id_of("document", int.from_bytes(hashlib.sha256(b"%d %d" % (at_ms, i)).digest()[:7], "big"))
        for i, p in enumerate(pings)
    ]
    values = {
        "document_id": ids,
        "client_id": [p.client for p in pings],
        "received_at": [at_ms] * len(pings),
        "model_version": [p.version for p in pings],
        "study_variation": [p.arm for p in pings],
        "update_encoding": [p.encoding for p in pings],
        "update": [p.payload for p in pings],
    }
    schema = landed_schema(PRIVATE_UPDATE)
    columns = {}
    for name in schema.names:
        kind = schema.field(name).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        column = (
            pa.array(values[name], pa.int64()).cast(plain) if name == "received_at" else pa.array(values[name], plain)
        )
        columns[name] = column.dictionary_encode() if pa.types.is_dictionary(kind) else column
    return write_landed(partition(landing, study.name, "main", iteration), pa.table(columns, schema=schema), at_ms)
