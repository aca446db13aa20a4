"""The heartbeat fails with a sentence when pings would silently be lost, not land, or be useless.

Tests cause real failures if any user can: a file in place of a folder, a damaged file.
"""

import errno
import http.client
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedping.model_store import open_store
from fedping.server_jobs.ingest import heartbeat as health_module
from fedping.server_jobs.ingest.admission import Catalogue
from fedping.server_jobs.ingest.compactor import Compactor, attempt, compact_the_rest
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.heartbeat import LATE_AT_LEAST, LATE_PERIODS
from fedping.server_jobs.ingest.quarantine import FailureNote, failing
from fedping.server_jobs.ingest.segments import CLOSED, segments
from fedping.server_jobs.ingest.services import ServiceState
from fedping.server_jobs.ingest.settings import COMPACTOR_LOCK, IngestSettings
from fedping.server_jobs.processes import Lock
from tests.support.ingest_app import PATH, STUDY, IngestApp, ingest_app, make_store
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.pings import ping_json
from tests.support.versions import after


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    """Return a healthy ingest; this process holds the compactor's lock."""
    ingest = ingest_app(tmp_path)
    assert Lock(ingest.settings.journal / COMPACTOR_LOCK).take()
    assert told(ingest) == {}
    return ingest


def told(ingest: IngestApp) -> dict[str, str]:
    """Return the messages of failed checks in the operations port's heartbeat, after checking the status."""
    answer = ingest.operator.get("/__heartbeat__")
    assert answer.json is not None
    failed = {name: said for name, said in answer.json["checks"].items() if said != "ok"}
    assert answer.status_code == (503 if failed else 200)
    assert answer.json["status"] == ("error" if failed else "ok")
    return failed


def publish(ingest: IngestApp) -> int:
    store = open_store(ingest.settings.store)
    version = after(store.head(STUDY, "main"))
    store.publish(version)
    return version.iteration


def versions(ingest: IngestApp) -> Path:
    return ingest.settings.store / STUDY / "main" / "versions"


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def checks(server: IngestServer) -> dict[str, str]:
    """Return the failed checks of a running ingest's operations port."""
    connection = http.client.HTTPConnection("127.0.0.1", server.operations_port, timeout=240)
    connection.request("GET", "/__heartbeat__")
    answer = connection.getresponse()
    told: dict[str, str] = json.loads(answer.read())["checks"]
    connection.close()
    return told


def post_one(server: IngestServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    connection.request("POST", f"{PATH}/{uuid.uuid4()}", json.dumps(ping_json()))
    assert connection.getresponse().status == 200
    connection.close()


def test_a_compactor_that_is_gone(tmp_path: Path) -> None:
    assert "not running" in told(ingest_app(tmp_path))["compactor"]


def test_a_store_that_goes_away_costs_no_ping(ingest: IngestApp, tmp_path: Path) -> None:
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert "there is no model store at" in told(ingest)["store"]
    assert ingest.ping().status_code == 200
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    assert told(ingest) == {}


def test_a_study_that_goes_away(ingest: IngestApp, tmp_path: Path) -> None:
    (tmp_path / "store" / STUDY).rename(tmp_path / "elsewhere")
    ingest.services.catalogue.refresh()
    assert f"no longer has the study '{STUDY}'" in told(ingest)["store"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data.replace(b'"weights":[', b'"weights":["x",'),  # clients could still read it; rounds cannot
        lambda data: b"\xff" + data,
    ],
)
def test_a_head_that_cannot_be_read(ingest: IngestApp, damage: Callable[[bytes], bytes]) -> None:
    head = versions(ingest) / f"{publish(ingest)}.json"
    assert told(ingest) == {}
    whole = head.read_bytes()
    head.write_bytes(damage(whole))
    assert "versions/1.json" in told(ingest)["store"]
    assert "restore it" in told(ingest)["store"]
    head.write_bytes(whole)
    assert told(ingest) == {}


def test_an_older_backup_of_the_store_and_a_latest_that_is_gone(ingest: IngestApp) -> None:
    """Without any version, `latest.json` returns an error, while the heartbeat used to be healthy."""
    number = publish(ingest)
    assert told(ingest) == {}
    (versions(ingest) / f"{number}.json").unlink()
    assert f"is at version {number - 1}, but" in told(ingest)["store"]
    for left in versions(ingest).iterdir():
        left.unlink()
    assert "main" in told(ingest)["store"]


def test_the_newest_version_is_read_once_while_it_stays_the_same(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def open_and_count(where: Path) -> object:
        opened.append(where)
        return open_store(where)

    publish(ingest)
    monkeypatch.setattr(health_module, "open_store", open_and_count)
    assert told(ingest) == {}
    first = len(opened)
    assert told(ingest) == {}
    assert len(opened) == first + 1  # to check that the store exists


@pytest.mark.parametrize("what", ["landing", "journal"])
def test_a_folder_that_cannot_be_written(ingest: IngestApp, what: str) -> None:
    folder: Path = getattr(ingest.settings, what)
    shutil.rmtree(folder)
    folder.write_bytes(b"")
    assert f"the {what} folder {folder} cannot be written" in told(ingest)[what]


@pytest.mark.parametrize("what", ["landing", "journal"])
@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        ({"f_bavail": 2**30 // 4096 - 1}, "nearly full: 1,024 MiB are left"),
        ({"f_favail": 9}, "room for only 9 more files"),
    ],
)
def test_a_disk_that_is_nearly_full(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch, what: str, left: dict[str, int], sentence: str
) -> None:
    folder: Path = getattr(ingest.settings, what)
    roomy = {"f_bavail": 2**30 // 4096, "f_frsize": 4096, "f_blocks": 2**40 // 4096, "f_files": 1000, "f_favail": 10}

    def statvfs(path: Path) -> object:
        return SimpleNamespace(**{**roomy, **(left if path == folder else {})})

    monkeypatch.setattr(health_module.os, "statvfs", statvfs)
    assert sentence in told(ingest)[what]
    assert len(told(ingest)) == 1


def test_a_small_disk_is_not_full_for_being_small(ingest: IngestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimpleNamespace(f_bavail=25_000, f_frsize=4096, f_blocks=100_000, f_files=0, f_favail=0)
    monkeypatch.setattr(health_module.os, "statvfs", lambda _: small)
    assert told(ingest) == {}


def test_compaction_that_fails_says_since_when_and_why(ingest: IngestApp, tmp_path: Path) -> None:
    settings = ingest.settings
    note = FailureNote(settings.compaction_failing)
    compactor = Compactor(settings, Counters(settings.counters))
    shutil.rmtree(settings.landing)
    settings.landing.write_bytes(b"")  # nothing can be landed into a file
    ingest.ping()
    ingest.services.journals.roll()
    assert attempt(compactor, note) is None
    first = failing(settings.compaction_failing)
    assert first is not None
    assert attempt(compactor, note) is None
    said = told(ingest)["compaction"]
    assert f"failed 2 times since {first.since}" in said
    assert "Not a directory" in said or "File exists" in said
    assert str(settings.landing) in said
    # After this compactor has died, another one continues its counts.
    note = FailureNote(settings.compaction_failing)
    assert attempt(compactor, note) is None
    assert "failed 3 times" in told(ingest)["compaction"]
    settings.landing.unlink()
    assert compact_the_rest(compactor, note)
    assert told(ingest) == {}
    assert ingest.totals()["landed"] == 1


def test_a_compactor_that_ends_by_a_defect_has_noted_it_without_quoting_anybody(ingest: IngestApp) -> None:
    note = FailureNote(ingest.settings.compaction_failing)

    class Defective:
        def run_once(self) -> bool:
            raise ValueError("the query that a client has typed")

    with pytest.raises(ValueError, match="typed"):
        attempt(Defective(), note)  # type: ignore[arg-type]
    said = told(ingest)["compaction"]
    assert "ValueError" in said
    assert "typed" not in said


def test_the_note_needs_no_room_on_the_disk(tmp_path: Path) -> None:
    note = FailureNote(tmp_path / "note")
    size = (tmp_path / "note").stat().st_blocks, (tmp_path / "note").stat().st_size
    note.failed(os.strerror(errno.ENOSPC) * 1000)
    assert ((tmp_path / "note").stat().st_blocks, (tmp_path / "note").stat().st_size) == size
    assert failing(tmp_path / "note") is not None
    note.succeeded()
    assert failing(tmp_path / "note") is None


def test_what_is_on_disk_and_does_not_land(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path, compact_every=60.0)
    assert Lock(ingest.settings.journal / COMPACTOR_LOCK).take()
    began = ingest.services.began
    for _ in range(3):
        ingest.ping()
    ingest.services.journals.roll()
    [segment] = segments(ingest.settings.journal, CLOSED)
    late = LATE_PERIODS * 60.0
    os.utime(segment, (began, began - 1e6))  # of an ingest killed long ago: this one gets time to recover it
    assert told(ingest) == {}
    object.__setattr__(ingest.services, "began", began - late - 60)
    said = told(ingest)["backlog"]
    assert "3 pings" in said
    assert "--compact-every is 60" in said
    ingest.land()
    assert told(ingest) == {}
    # A worker that no longer rolls its segment is found by its open segment's age.
    ingest.ping()
    object.__setattr__(ingest.services, "began", 0.0)
    assert told(ingest) == {}
    [open_one] = ingest.settings.journal.glob("*.open")
    old = int((time.time() - late - 60) * 1000)
    open_one.rename(open_one.with_name(f"{old:013d}-{open_one.name.partition('-')[2]}"))
    assert "1 pings" in told(ingest)["backlog"]


def test_a_busy_machine_is_not_late(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path, compact_every=0.05)
    assert Lock(ingest.settings.journal / COMPACTOR_LOCK).take()
    ingest.ping()
    ingest.services.journals.roll()
    object.__setattr__(ingest.services, "began", 0.0)
    [segment] = segments(ingest.settings.journal, CLOSED)
    os.utime(segment, (0, time.time() - LATE_AT_LEAST / 2))
    assert told(ingest) == {}
    os.utime(segment, (0, time.time() - LATE_AT_LEAST - 1))
    assert "backlog" in told(ingest)


@pytest.mark.parametrize("kind", ["novel-update", "frecency-update.9"])
def test_pings_of_a_type_or_format_that_only_a_newer_fedping_knows(ingest: IngestApp, kind: str) -> None:
    old = int((time.time() - 1e6) * 1000)
    left = ingest.settings.journal / f"{old:013d}-0123456789ab.{kind}.closed"
    left.write_bytes(b"")
    os.utime(left, (0, old / 1000))
    object.__setattr__(ingest.services, "began", 0.0)
    assert f"{kind} is a ping type of a newer fedping" in told(ingest)["backlog"]


def test_a_running_ingest_tells_when_its_compaction_fails_and_when_it_is_well_again(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    landing, journal = tmp_path / "landing", tmp_path / "journal"
    with running_ingest(tmp_path / "store", landing, "--workers", "1", "--journal", str(journal)) as server:
        line = landing / f"study={STUDY}" / "line=main"
        line.parent.mkdir(parents=True)
        line.write_bytes(b"")  # where the pings' folder is to be
        post_one(server)
        wait_for(lambda: "failed" in checks(server)["compaction"])
        assert str(line) in checks(server)["compaction"]
        line.unlink()
        wait_for(server.is_well)
        assert server.flush()["landed"] == 1


def test_a_stopped_compactor_holds_its_lock_and_is_found_by_what_waits(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    journal = tmp_path / "journal"
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--workers", "1", "--journal", str(journal))
    server.start()
    compactor = server.compactor()
    try:
        os.kill(compactor, signal.SIGSTOP)
        post_one(server)
        wait_for(lambda: bool(segments(journal, CLOSED)))
        [segment] = segments(journal, CLOSED)
        ago = time.time() - 10 * LATE_AT_LEAST
        os.utime(segment, (ago, ago))
        settings = IngestSettings(store=tmp_path / "store", landing=tmp_path / "landing", journal=journal)
        store = open_store(settings.store)
        said = health_module.health(ServiceState(settings=settings, store=store, catalogue=Catalogue(store), began=0.0))
        assert said["compactor"] is None
        assert said["backlog"] is not None
        assert "1 pings" in said["backlog"]
    finally:
        os.kill(compactor, signal.SIGCONT)
        assert server.stop() == 0
