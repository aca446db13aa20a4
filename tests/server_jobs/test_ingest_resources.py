"""Memory and disks in ingest's metrics, and the pings that a restart recovers from a killed ingest's journal."""

import json
import os
import shutil
import signal
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedping.server_jobs.ingest.resources import register, resources
from fedping.server_jobs.ingest.segments import OPEN, segments
from tests.support.ingest_app import PATH, ingest_app, landed_ids, make_store
from tests.support.ingest_server import IngestServer
from tests.support.pings import ping_json


def metrics(text: str) -> dict[tuple[str, str], float]:
    """Return the values of the resource metrics, by name and label."""
    return {
        (sample.name, *sample.labels.values()): sample.value  # type: ignore[misc]
        for family in text_string_to_metric_families(text)
        if family.name.startswith(("fedping_ingest_disk", "fedping_ingest_memory", "fedping_ingest_processes"))
        for sample in family.samples
    }


def test_the_disks_of_folders_are_told_and_those_of_nothing_are_not(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    found = metrics(ingest.operator.get("/metrics").text)
    disk = shutil.disk_usage(tmp_path)
    for folder in ("journal", "landing", "store"):
        assert found["fedping_ingest_disk_size_bytes", folder] == disk.total
        assert found["fedping_ingest_disk_free_bytes", folder] == pytest.approx(disk.free, rel=0.05)
    shutil.rmtree(tmp_path / "landing")
    assert sorted(resources(ingest.settings).disks) == ["journal", "store"]
    assert resources(ingest.settings, disks=False).disks == {}, "a disk that hangs would hold up the page"


def test_a_process_is_counted_while_it_lives_and_another_of_its_id_is_not(tmp_path: Path) -> None:
    settings = ingest_app(tmp_path).settings
    register(settings.counters, "worker")
    child = os.fork()
    if not child:
        register(settings.counters, "worker")
        block = bytearray(os.urandom(1)) * (64 * 2**20)
        (tmp_path / "ready").touch()
        time.sleep(120)
        os._exit(len(block) % 2)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    both = resources(settings)
    assert both.processes == {"worker": 2}
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    alone = resources(settings)
    assert alone.processes == {"worker": 1}
    assert both.memory["worker"] - alone.memory["worker"] > 48 * 2**20
    assert not list(settings.counters.glob(f"{child}-*")), "the files of dead processes do not pile up"
    (settings.counters / f"{os.getpid()}-worker.process").write_text("1")
    assert resources(settings).processes == {}, "the id is of a process that started at another time"
    (settings.counters / "1x-worker.process").write_text("1")
    assert resources(settings).processes == {}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[IngestServer]:
    make_store(tmp_path / "store")
    server = IngestServer(
        tmp_path / "store",
        tmp_path / "landing",
        *("--workers", "2", "--threads", "4", "--compact-every", "3600"),
        says=(tmp_path / "out", tmp_path / "err"),
    )
    yield server
    if server.is_up:
        server.kill()


def test_a_restart_says_how_many_pings_it_recovered(server: IngestServer, tmp_path: Path) -> None:
    server.start()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.operations_port}/metrics", timeout=60) as answer:
        found = metrics(answer.read().decode())
    number = {key[1]: value for key, value in found.items() if key[0] == "fedping_ingest_processes"}
    assert number == {"supervisor": 1, "server": 1, "worker": 2, "compactor": 1, "operations": 1}
    assert all(found["fedping_ingest_memory_bytes", name] > 2**20 for name in number)

    sent = [str(uuid.uuid4()) for _ in range(7)]
    for document in sent:
        request = urllib.request.Request(f"{server.url}{PATH}/{document}", json.dumps(ping_json()).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
    server.kill()
    journal = tmp_path / "landing" / ".journal"
    left = list(segments(journal, OPEN))
    with open(left[0], "rb+") as segment:  # the last write of one was cut short, so that it was never accepted
        first = segment.read(200).partition(b"\n")[0] + b"\n"
        segment.seek(0, os.SEEK_END)
        segment.write(first + b'{"half')
    assert "Recovered" not in (tmp_path / "out").read_text() + (tmp_path / "err").read_text()
    server.start()
    said = (tmp_path / "out").read_text() + (tmp_path / "err").read_text()
    segments_left = "1 segment" if len(left) == 1 else f"{len(left)} segments"
    assert f"Recovered 7 pings in {segments_left} of the journal" in said
    assert server.stop() == 0
    assert landed_ids(tmp_path / "landing") == sorted(sent)
