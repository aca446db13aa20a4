"""The journal is deleted while ingest runs: answered pings are saved if possible, and losses are reported."""

import http.client
import json
import shutil
import time
import urllib.error
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from fedping.server_jobs.ingest.backlog import missing, note_inherited
from fedping.server_jobs.ingest.segments import CLOSED, OPEN, segments
from fedping.server_jobs.ingest.worker import Ticker
from tests.support.ingest_app import PATH, IngestApp, ingest_app, landed_ids, make_store
from tests.support.ingest_server import IngestServer
from tests.support.pings import ping_json

BODY = json.dumps(ping_json())


def accepted(ingest: IngestApp, count: int) -> list[str]:
    documents = [str(uuid.uuid4()) for _ in range(count)]
    assert {ingest.ping(document=document).status_code for document in documents} == {200}
    return documents


def unlinked(journal: Path) -> None:
    for path in segments(journal, OPEN):
        path.unlink()


def renamed(journal: Path) -> None:
    journal.rename(journal.with_name("old-journal"))


def replaced(journal: Path) -> None:
    renamed(journal)
    journal.mkdir()


def removed(journal: Path) -> None:
    shutil.rmtree(journal)


def swapped(journal: Path) -> None:
    [path] = segments(journal, OPEN)
    path.unlink()
    path.write_bytes(b"")


CLEANING = [unlinked, renamed, replaced, removed, swapped]


@pytest.mark.parametrize("clean", CLEANING)
@pytest.mark.parametrize("noticed_by", ["the next ping", "the ticker", "the roll", "a full disk"])
def test_a_segment_that_is_removed_while_it_is_written_is_written_again(
    tmp_path: Path,
    clean: Callable[[Path], None],
    noticed_by: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ingest = ingest_app(tmp_path)
    documents = accepted(ingest, 40)
    clean(ingest.settings.journal)
    if noticed_by == "the next ping":
        documents += accepted(ingest, 1)
    elif noticed_by == "the ticker":
        Ticker(ingest.services).tick()
        assert len(segments(ingest.settings.journal, OPEN)) == 1 + (clean is swapped)
    elif noticed_by == "a full disk":
        with monkeypatch.context() as patch:
            patch.setattr("fedping.server_jobs.ingest.segments.os.write", full)
            assert ingest.ping().status_code == 507
        documents += accepted(ingest, 1)
    ingest.land()
    assert landed_ids(ingest.settings.landing) == sorted(documents)
    assert "was removed or moved while it was being written" in capsys.readouterr().err
    if clean in (unlinked, swapped):  # otherwise the counters are lost too
        assert missing(ingest.settings) == 0
        assert ingest.totals()["rescued"] == 1


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_what_cannot_be_written_again_is_refused_until_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest = ingest_app(tmp_path)
    documents = accepted(ingest, 5)
    journal = ingest.settings.journal
    shutil.rmtree(journal)
    journal.write_text("a file where the folder was")
    ticker = Ticker(ingest.services)
    for _ in range(3):
        ticker.tick()
    assert ingest.ping().status_code == 500
    assert capsys.readouterr().err.count("before you stop ingest") == 1
    journal.unlink()
    ticker.tick()
    documents += accepted(ingest, 1)
    ingest.land()
    assert set(documents) <= set(landed_ids(ingest.settings.landing))


def test_a_rolled_segment_that_is_removed_is_missed(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    accepted(ingest, 40)
    ingest.services.journals.roll()
    more = accepted(ingest, 3)
    assert missing(ingest.settings) == 0
    [path] = segments(ingest.settings.journal, CLOSED)
    aside = path.rename(tmp_path / path.name)
    assert missing(ingest.settings) == 40
    heartbeat = ingest.operator.get("/__heartbeat__")
    assert heartbeat.status_code == 503
    assert "40 accepted pings" in heartbeat.json["checks"]["balance"]
    assert b"fedping_ingest_pings_missing 40.0" in ingest.operator.get("/metrics").data
    ingest.land()
    assert landed_ids(ingest.settings.landing) == sorted(more)
    assert ingest.operator.get("/__status__").json["missing"] == 40
    aside.rename(path)  # it is put back, as the heartbeat says
    ingest.land()
    assert missing(ingest.settings) == 0


def test_what_an_earlier_ingest_left_hides_nothing(tmp_path: Path) -> None:
    before = ingest_app(tmp_path)
    accepted(before, 30)
    before.services.journals.roll()
    shutil.rmtree(before.settings.counters)
    note_inherited(before.settings)
    ingest = ingest_app(tmp_path)
    accepted(ingest, 4)
    ingest.land()
    assert ingest.totals()["landed"] == 34
    accepted(ingest, 5)
    ingest.services.journals.roll()
    assert missing(ingest.settings) == 0
    for path in segments(ingest.settings.journal, CLOSED):
        path.unlink()
    assert missing(ingest.settings) == 5


def send(server: IngestServer, count: int) -> list[str]:
    documents = [str(uuid.uuid4()) for _ in range(count)]
    for document in documents:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
        connection.request("POST", f"{PATH}/{document}", BODY)
        assert connection.getresponse().status == 200
        connection.close()
    return documents


def test_a_real_ingest_lands_what_was_in_removed_segments_before_it_says_that_it_is_flushed(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--workers", "2", "--compact-every", "3600")
    server.start()
    documents = send(server, 40)
    unlinked(tmp_path / "landing" / ".journal")
    documents += send(server, 3)
    assert server.flush()["flushed"]
    assert landed_ids(tmp_path / "landing") == sorted(documents)
    assert server.is_well()
    assert server.stop() == 0


def test_a_real_ingest_whose_rolled_segments_vanish_says_so_at_every_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store")
    journal = tmp_path / "landing" / ".journal"
    # A roll after each ping; a file in the way of the study's folder keeps the compactor from landing them, also those
    # that it had opened when they vanished.
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--workers", "1", "--compact-every", "0.05")
    blocked = tmp_path / "landing" / "study=study"
    blocked.parent.mkdir()
    blocked.write_text("")
    server.start()
    send(server, 10)
    while segments(journal, OPEN):
        time.sleep(0.01)
    for path in segments(journal, CLOSED):
        path.unlink()
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.operator_asks("/__flush__?timeout=0.2", "POST")
    assert refused.value.code == 504
    assert json.loads(refused.value.read())["missing"] == 10
    with pytest.raises(urllib.error.HTTPError) as unwell:
        server.ask("/__heartbeat__")
    assert unwell.value.code == 503
    assert server.stop() == 1
    assert "not all accepted pings are in Parquet: 10" in capfd.readouterr().out
