"""Landed pings of institutions, each specified by a test."""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid5

import numpy as np
import pyarrow as pa

from fedping.protocol.enrolment import enrol
from fedping.protocol.landed_table import id_column, landed_table
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.ping import MODEL_UPDATE
from fedping.protocol.study import Study

NAMES = UUID(int=7)


@dataclass(frozen=True, kw_only=True)
class Said:
    """The content of one ping; a client is given by its number in the arm."""

    client: int
    arm: str
    version: int = 0
    loss: float = 1.0
    examples: int = 100
    received_ms: int = 1_000
    document: int = 0
    confusion: tuple[int, ...] | None = None
    named: str | None = None


def client_in(study: Study, arm: str, number: int) -> UUID:
    """Return the id of a client of an arm."""
    found = (uuid5(NAMES, f"{number} {k}") for k in range(10_000))
    return next(one for one in found if (dealt := enrol(study, str(one))) is not None and dealt.name == arm)


def land(landing: Path, study: Study, *pings: Said, m: int | None = None, landed_ms: int = 1_000) -> None:
    """Land pings of one line, each in its version's folder.

    ``named`` is the arm that a ping names, if not its own; with ``m``, all have an update of this length.
    """
    for number, version in enumerate(sorted({ping.version for ping in pings})):
        some = [ping for ping in pings if ping.version == version]
        k = len(some)
        documents = [uuid5(NAMES, f"{p.client} {p.arm} {version} {p.document}").bytes for p in some]
        clients = [client_in(study, ping.arm, ping.client).bytes for ping in some]
        columns = {
            "document_id": id_column(np.frombuffer(b"".join(documents), np.uint8).reshape(k, 16)),
            "client_id": id_column(np.frombuffer(b"".join(clients), np.uint8).reshape(k, 16)),
            "received_at": pa.array([ping.received_ms for ping in some]),
            "model_version": pa.array([version] * k),
            "study_variation": pa.array([ping.named or ping.arm for ping in some]).dictionary_encode(),
            "loss": pa.array([ping.loss for ping in some]),
            "examples": pa.array([ping.examples for ping in some]),
            "confusion": pa.array([ping.confusion for ping in some], pa.list_(pa.int32())),
        }
        table = landed_table(MODEL_UPDATE, columns, None if m is None else np.ones((k, m)))
        write_landed(partition(landing, study.name, "main", version), table, landed_ms + number)
