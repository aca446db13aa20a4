"""Single landed pings, and a store with a study, for tests of rounds."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.arrow import landed_schema
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Line, Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round.ping_file import open_ping_file
from fedping.server_jobs.round.plan import Rules, Work
from tests.support.landed import landed_table

WHEN = "2026-01-01T00:00:00.000+00:00"
FIRST_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Ping:
    """One landed ping; numbers stand for ids. ``payload`` replaces the encoded update."""

    document: int
    client: int
    update: tuple[float, ...] | None = (1.0, -1.0)
    arm: str = "treatment"
    rank: int = 0
    loss: float = 1.0
    version: int = 0
    encoding: str | None = "dense"
    payload: bytes | None = None

    @property
    def bytes(self) -> bytes | None:
        if self.payload is not None or self.update is None:
            return self.payload
        return np.array(self.update, dtype="<f4").tobytes()


def id_of(kind: str, number: int) -> bytes:
    """Return a random-looking id that depends only on kind and number."""
    return hashlib.sha256(f"{kind}{number}".encode()).digest()[:16]


def table_of(pings: Sequence[Ping]) -> pa.Table:
    """Return pings as a landed table, in their order."""
    table = landed_table(len(pings), 0, m=2)
    columns = {
        "document_id": [id_of("document", p.document) for p in pings],
        "client_id": [id_of("client", p.client) for p in pings],
        "model_version": [p.version for p in pings],
        "study_variation": [p.arm for p in pings],
        "update_encoding": [p.encoding if p.bytes is not None else None for p in pings],
        "update": [p.bytes for p in pings],
        "loss": [p.loss for p in pings],
        "rank_selected": [p.rank for p in pings],
    }
    for name, values in columns.items():
        field = landed_schema().field(name)
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        column = pa.array(values, plain)
        column = column.dictionary_encode() if pa.types.is_dictionary(field.type) else column
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table


def land(
    landing: Path, pings: Sequence[Ping], *, study: str = "study", iteration: int = 0, at_ms: int = FIRST_MS
) -> Path:
    """Land pings as one file of a version of the line `main` and return its path."""
    return write_landed(partition(landing, study, "main", iteration), table_of(pings), at_ms)


def store_with(where: Path, study: Study) -> ModelStore:
    """Return a new store with a study and its version 0."""
    store = open_store(where, create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    return store


def work_of(paths: Sequence[Path], rules: Rules) -> Work:
    """Return an engine's work on some files, in the order given."""
    return Work(
        paths=tuple(map(str, paths)), rows=sum(open_ping_file(p, rules.document).rows for p in paths), rules=rules
    )


def line_of(m: int, **pipeline: Any) -> Line:
    """Return a line with ``m`` weights that start at 0, and these pipeline settings."""
    step = Step(start=1, min=0.1, max=3)
    weights = tuple(Weight(name=f"w{i}", start=0, step=step) for i in range(m))
    return Line(name="main", spec=ModelSpec(name="s", model="any", weights=weights), pipeline=Pipeline(**pipeline))


def crowd(clients: int, *, seed: int = 0, version: int = 0, m: int = 2, first_document: int = 0) -> list[Ping]:
    """Return one usable ping for each of some clients, with random updates."""
    rng = np.random.default_rng(seed)
    updates = rng.normal(0.5, 1, (clients, m)).astype(np.float32).tolist()
    return [Ping(first_document + i, i, tuple(u), version=version, loss=float(i % 7)) for i, u in enumerate(updates)]
