"""Writes landing folders: a killed ingest's journal, a log of rejections, a quarantine, and damaged files."""

import json
import shutil
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from werkzeug.test import Client

from fedping.protocol.landing import landed_files, partition
from fedping.server_jobs.ingest.application import Edge
from fedping.server_jobs.ingest.operations import Operations
from fedping.server_jobs.ingest.services import services_for
from fedping.server_jobs.ingest.settings import IngestSettings
from tests.golden.reading.landings import DAMAGES
from tests.golden.writing.common import ids, land, line, stored, study
from tests.support.ingest_app import PATH, IngestApp, ingest_study
from tests.support.pings import ping_json


def write(folder: Path) -> None:
    write_journal(folder / "journal")
    write_damages(folder / "damages")


def write_journal(folder: Path) -> None:
    """Leave four landed pings, a closed segment, an open one, a rejected ping, and a damaged segment."""
    app = ingest_in(folder)
    answered: list[str] = []
    batch(app, "landed", 4, answered)
    app.land()
    batch(app, "spoilt", 3, [])
    app.services.journals.roll()
    (segment,) = app.settings.journal.glob("*.closed")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    app.land()
    batch(app, "closed", 5, answered)
    app.services.journals.roll()
    batch(app, "open", 2, answered)
    batch(app, "landed", 1, [])  # once more
    assert app.ping({**ping_json(), "type": "another"}).status_code == 400
    assert app.ping(ping_json(study_variation="nobody")).status_code == 400
    app.services.flush()
    (folder / "answered.json").write_text(json.dumps(answered))


def ingest_in(folder: Path) -> IngestApp:
    """Return an ingest in this process, with a store from which rounds can continue."""
    stored(folder, ingest_study())
    journal = folder / "journal"
    journal.mkdir(parents=True)
    (folder / "landing").mkdir()
    settings = IngestSettings(store=folder / "store", landing=folder / "landing", journal=journal)
    services = services_for(settings, "worker-0")
    edge = Edge(services)
    return IngestApp(settings, services, edge, Client(edge), Client(Operations(services)))


def batch(app: IngestApp, name: str, count: int, answered: list[str]) -> None:
    """Post pings with ids derived from a name."""
    documents = [str(UUID(bytes=each.tobytes())) for each in ids("document", name, k=count)]
    clients = [str(UUID(bytes=each.tobytes())) for each in ids("client", name, k=count)]
    lines = [
        {"documentId": document, **ping_json(), "clientId": client}
        for document, client in zip(documents, clients, strict=True)
    ]
    answer = app.post(PATH, "\n".join(map(json.dumps, lines)).encode())
    assert answer.json == {"accepted": count, "rejected": []}, answer.json
    answered.extend(documents)


def write_damages(folder: Path) -> None:
    """Land one intact file of every line, and a damaged or foreign file next to it."""
    made = study("damages", [line(name) for name in DAMAGES])
    stored(folder, made)
    for name in DAMAGES:
        land(folder / "landing", made, name, 0)
        [first, second] = landed_files(partition(folder / "landing", "damages", name, 0))
        globals()[f"_{name.replace('-', '_')}"](first, second)


def _whole(first: Path, second: Path) -> None: ...


def _flipped(first: Path, second: Path) -> None:
    data = bytearray(first.read_bytes())
    data[len(data) // 3] ^= 4
    first.write_bytes(data)


def _cut(first: Path, second: Path) -> None:
    first.write_bytes(first.read_bytes()[:-100])


def _empty(first: Path, second: Path) -> None:
    second.write_bytes(b"")


def _text(first: Path, second: Path) -> None:
    second.write_bytes(b"no Parquet at all\n")


def _newer(first: Path, second: Path) -> None:
    table = pq.read_table(first, partitioning=None)
    pq.write_table(table.replace_schema_metadata({b"fedping.format": b"99"}), first)


def _by_others(first: Path, second: Path) -> None:
    pq.write_table(pq.read_table(first, partitioning=None).replace_schema_metadata(None), first)


def _other_columns(first: Path, second: Path) -> None:
    pq.write_table(pa.table({"loss": [1.0]}), first)


def _other_names(first: Path, second: Path) -> None:
    shutil.copy(first, first.with_name(f"{first.name}.bak"))
    shutil.copy(first, first.with_name("README.parquet"))
    shutil.copy(first, first.with_name(f".{first.name}.abc.tmp"))
    (first.parent / "deeper").mkdir()
    shutil.copy(first, first.parent / "deeper" / first.name)


def _twice(first: Path, second: Path) -> None:
    shutil.copy(first, first.with_name(f"1{first.name[1:]}".replace(".parquet", "0.parquet")))
