"""Ingest in this process: the real application over a real journal, and helpers to read its landed pings."""

import json
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from werkzeug.test import Client, TestResponse

from fedping.model_store import ModelStore, open_store
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Place
from fedping.protocol.study import Arm, Study
from fedping.server_jobs.ingest.application import Edge
from fedping.server_jobs.ingest.compactor import Compactor
from fedping.server_jobs.ingest.counters import Counters, totals
from fedping.server_jobs.ingest.operations import Operations
from fedping.server_jobs.ingest.services import Services
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.ingest.worker import services_for
from fedping.server_jobs.optimize import first_versions
from tests.support.pings import ping_json
from tests.support.versions import WHEN, small_study, version_0

STUDY = "study"
PATH = f"/submit/{STUDY}/frecency-update/1"


def ingest_study(m: int = 22) -> Study:
    """Return a study with three arms: one submits, one only follows the line, one has no line."""
    study = small_study(STUDY, m=m)
    plain = Arm(name="plain", share=0.1, decays=True)
    arms = (replace_share(study.arms[0], 0.5), study.arms[1], plain)
    return Study(name=STUDY, arms=arms, lines=study.lines)


def replace_share(arm: Arm, share: float) -> Arm:
    """Return an arm with another share."""
    import msgspec

    return msgspec.structs.replace(arm, share=share)


def make_store(folder: Path, m: int = 22, others: Sequence[Study] = ()) -> ModelStore:
    """Make a store with :func:`ingest_study` and other studies, at version 0."""
    store = open_store(folder, create=True)
    study = ingest_study(m)
    store.create_study(study, (version_0(study),))
    for study in others:
        store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    return store


@dataclass
class IngestApp:
    """The applications of one worker and of the operations port, without processes."""

    settings: IngestSettings
    services: Services
    app: Edge
    client: Client
    operator: Client

    def post(self, path: str, data: bytes, **kwargs: Any) -> TestResponse:
        """POST bytes, with a Content-Length even for no bytes."""
        environ = {"CONTENT_LENGTH": str(len(data))}
        return self.client.post(path, data=data, environ_overrides=environ, **kwargs)

    def ping(self, ping: Any = None, *, document: str | None = None, path: str = PATH, **kwargs: Any) -> TestResponse:
        """POST one ping; by default a valid one."""
        body = json.dumps(ping_json() if ping is None else ping).encode()
        return self.post(f"{path}/{document or uuid.uuid4()}", body, content_type="application/json", **kwargs)

    def land(self) -> None:
        """Roll the journal and compact until the backlog is empty."""
        self.services.journals.roll()
        compactor = Compactor(self.settings, Counters(self.settings.counters))
        while compactor.run_once():
            pass

    def totals(self) -> dict[str, int]:
        """Return the counters of ingest."""
        return totals(self.settings.counters)


def ingest_app(folder: Path, m: int = 22, others: Sequence[Study] = (), **settings: Any) -> IngestApp:
    """Return an ingest in a folder, with its own store (:func:`make_store`)."""
    make_store(folder / "store", m, others)
    journal = folder / "journal"
    journal.mkdir(parents=True, exist_ok=True)
    (folder / "landing").mkdir(exist_ok=True)
    made = replace(IngestSettings(store=folder / "store", landing=folder / "landing", journal=journal), **settings)
    services = services_for(made, "worker-0")
    app = Edge(services)
    return IngestApp(made, services, app, Client(app), Client(Operations(services)))


def landed_ids(landing: Place, version: int | None = None) -> list[str]:
    """Return the sorted document ids of all landed pings, or of a version's, including duplicates."""
    files = [
        file for file in open_landing(landing).all_files() if version is None or f"/iteration={version}/" in str(file)
    ]
    batches = (batch for file in files for batch in open_landed(file).batches(["document_id"]))
    return sorted(str(uuid.UUID(bytes=i)) for batch in batches for i in batch.column(0).to_pylist())


def old_frames_of(*parts: bytes) -> bytes:
    """Return journal frames in the format before FPJ2."""
    return b"".join(b"FPJ1 %08x %010d %08d\n" % (zlib.crc32(p), len(p), p.count(b"\n")) + p for p in parts)
