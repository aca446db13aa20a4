"""Places of clients' data: their permissions, and several hosts that share a landing folder."""

import http.client
import json
import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedping.protocol.landing import open_landing, partition
from fedping.protocol.storage import folder as folder_storage
from fedping.server_jobs.ingest.compactor import clear_unfinished
from fedping.server_jobs.ingest.duplicates import recently_landed
from fedping.server_jobs.ingest.segments import OPEN, segments
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import PATH, ingest_app, ingest_study, landed_ids, make_store
from tests.support.ingest_server import IngestServer
from tests.support.pings import ping_json
from tests.support.rounds import store_with
from tests.support.versions import WHEN


@pytest.fixture(
    params=[0o000, *(pytest.param(mask, marks=pytest.mark.long) for mask in (0o022, 0o077))],
    ids=lambda mask: f"umask {mask:03o}",
)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    try:
        yield request.param
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in found}


def test_what_clients_sent_is_for_the_owner_and_the_group_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    landing = tmp_path / "deep" / "landing"
    server = IngestServer(tmp_path / "store", landing, "--workers", "1", "--compact-every", "3600")
    server.start()
    post(server, [str(uuid.uuid4())])
    server.flush()
    post(server, [str(uuid.uuid4())])
    [path] = segments(landing / ".journal", OPEN)
    server.kill()
    data = path.read_bytes()
    path.write_bytes(data[:60] + b"!" + data[61:] + data[:100])  # a damaged frame, and one that was not finished
    server.start()
    post(server, ["nothing"])
    server.flush()
    while not list((landing / ".rejected").glob("*.jsonl")):
        time.sleep(0.01)
    found = modes(landing)
    server.stop()
    kinds = (".parquet", ".bad", ".torn", ".jsonl", ".counters", ".lock", "inherited", ".flush")
    for kind in kinds:
        assert any(name.endswith(kind) for name in found), kind
    for name, mode in found.items():
        expected = 0o750 if (landing / name).is_dir() or ("." not in name[1:] and "inherited" not in name) else 0o640
        assert mode == expected & ~umask, name
    public = tmp_path / "store" / "study" / "main" / "public" / "latest.json"
    assert stat.S_IMODE(public.stat().st_mode) == 0o666 & ~umask, "a static file server reads what is published"


def post(server: IngestServer, documents: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    for document in documents:
        connection.request("POST", f"{PATH}/{document}", json.dumps(ping_json()))
        answer = connection.getresponse()
        answer.read()
        assert answer.status == (400 if document == "nothing" else 200)
    connection.close()


def test_two_hosts_with_a_journal_each_share_a_landing_folder(tmp_path: Path) -> None:
    """Pings sent to both land twice and count once."""
    make_store(tmp_path / "store")
    landing = tmp_path / "landing"
    hosts = [
        IngestServer(tmp_path / "store", landing, "--journal", str(tmp_path / name), "--workers", "1")
        for name in ("journal-a", "journal-b")
    ]
    both, alone = ([str(uuid.uuid4()) for _ in range(count)] for count in (30, 20))
    for host in hosts:
        host.start()
    for k, host in enumerate(hosts):
        post(host, [*both, *alone[k::2]])
    for host in hosts:
        status = host.flush()
        assert (status["flushed"], status["missing"], status["accepted"]) == (True, 0, 40)
        post(host, ["nothing"])
    hosts[0].kill()
    post(hosts[1], [again := str(uuid.uuid4())])
    hosts[0].start()
    assert hosts[1].flush()["flushed"]
    for host in hosts:
        assert host.stop() == 0
    assert landed_ids(landing) == sorted([*both, *both, *alone, again])
    assert len(list((landing / ".rejected").glob("*.jsonl"))) >= 1
    store = store_with(tmp_path / "other", ingest_study())
    done = run_round(
        store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )
    assert done.status == "published"
    counts = store.head("study", "main").lineage.counts
    assert (counts["duplicate"], counts["used"]) == (30, 51)


def test_a_start_lists_only_the_folders_in_which_something_landed_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = ingest_app(tmp_path)
    documents = [str(uuid.uuid4()) for _ in range(5)]
    for document in documents:
        ingest.ping(document=document)
    ingest.land()
    [fresh] = {file.parent for file in open_landing(ingest.settings.landing).all_files()}
    for version in range(1, 40):
        old = partition(ingest.settings.landing, "study", "main", version)
        old.mkdir()
        (old / f"{version:013d}-ab.parquet").write_bytes(b"no need to look")
        os.utime(old, (1, 1))
    listed: list[Path] = []
    names = folder_storage._names

    def listing(folder: Path) -> list[str]:
        listed.append(folder)
        return names(folder)

    with monkeypatch.context() as patch:
        patch.setattr(folder_storage, "_names", listing)
        recently_landed(ingest.settings.landing)
    assert [folder for folder in listed if folder.name.startswith("iteration=")] == [fresh]
    for document in documents:
        ingest.ping(document=document)
    ingest.land()
    assert ingest.totals()["duplicates"] == 5


def test_unfinished_files_of_an_hour_ago_are_cleared_wherever_they_are(tmp_path: Path) -> None:
    settings = IngestSettings(store=tmp_path, landing=tmp_path / "landing", journal=tmp_path / "journal")
    settings.journal.mkdir()
    kept, cleared = [], []
    for version in range(3):
        folder = partition(settings.landing, "study", "main", version)
        folder.mkdir(parents=True)
        kept += [folder / ".2-b.parquet.tmp", folder / ".notes", folder / "1-a.parquet"]
        cleared.append(folder / ".1-a.parquet.tmp")
    cleared.append(settings.journal / ".1-a.frecency-update.new")
    for path in [*kept, *cleared]:
        path.write_bytes(b"x")
    for path in [*cleared, *kept[1::3], *kept[2::3]]:
        os.utime(path, (1, 1))
    clear_unfinished(settings)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in cleared)
