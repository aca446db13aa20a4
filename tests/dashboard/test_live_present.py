"""The Live page's current state, read from the files of ingest and of the landing folder."""

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from fedping.dashboard.live.feed import LineFeed, Lines, Paced, now_of, places
from fedping.dashboard.live.refused import TAIL_BYTES, WORDS, newest_refusals
from fedping.protocol.landing import Landing, open_landing, partition, write_landed
from fedping.protocol.study import Declared
from fedping.server_jobs.health.facts import CheckInput, Ingest, Landed, LineSnapshot, Uploads
from fedping.server_jobs.health.snapshot import LandedPings, ingest_snapshot
from fedping.server_jobs.ingest.answers import REASONS, Rejection
from fedping.server_jobs.ingest.counters import Counters, RejectionLog
from fedping.server_jobs.ingest.segments import SegmentWriter, created_ms
from fedping.server_jobs.ingest.settings import INGEST_LOCK
from fedping.server_jobs.processes import Lock
from tests.support.dashboard import dashboard_settings
from tests.support.landed import landed_table
from tests.support.versions import small_study
from tests.support.walks import walked_store

LATER = 2**62
"""A time at which all folders are old enough to count as unchanged."""

NONE_LANDED = Landed(version=0, pings=0, files=0, newest_ms=None)


def test_the_pings_of_the_newest_version_are_counted_from_footers(tmp_path: Path) -> None:
    folder = partition(tmp_path, "study", "main", 3)
    landed = LandedPings(open_landing(tmp_path), "study", "main")
    assert landed.of(3, LATER).pings == 0
    write_landed(folder, landed_table(5, 1), 1_000)
    write_landed(folder, landed_table(7, 2), 2_000)
    assert landed.of(3, LATER) == Landed(version=3, pings=12, files=2, newest_ms=2_000)
    assert landed.of(4, LATER).pings == 0
    (folder / "0000000003000-abc.parquet").write_bytes(b"PAR1 no")
    found = landed.of(3, LATER)
    assert (found.pings, found.files, found.unreadable) == (12, 2, ("0000000003000-abc.parquet",))


def test_a_file_that_landed_in_the_same_instant_as_the_listing_is_not_missed(tmp_path: Path) -> None:
    folder = partition(tmp_path, "study", "main", 0)
    landed = LandedPings(open_landing(tmp_path), "study", "main")
    write_landed(folder, landed_table(5, 1), 1_000)
    changed = folder.stat().st_mtime_ns
    assert landed.of(0, changed).pings == 5
    write_landed(folder, landed_table(7, 2), 2_000)
    os.utime(folder, ns=(changed, changed))  # as a file system with coarse times would say
    assert landed.of(0, changed + 1).pings == 12


def test_ingest_is_told_from_its_lock_its_counters_and_its_journal(tmp_path: Path) -> None:
    settings = dashboard_settings(tmp_path)
    journal = str(settings.journal)
    assert ingest_snapshot(places(settings)) == Ingest(state="absent", journal=journal)
    settings.journal.mkdir(parents=True)
    assert ingest_snapshot(places(settings)) == Ingest(state="stopped", journal=journal)
    before = set(settings.journal.iterdir())
    lock = Lock(settings.journal / INGEST_LOCK)
    assert lock.take()
    counters = Counters(settings.journal / ".counters")
    counters.add("accepted", 7)
    counters.add("landed", 5)
    counters.add("rejected.not_json", 2)
    segment = SegmentWriter(settings.journal, 1, "frecency-update")
    segment.append(b"{}\n{}\n", 2)
    found = ingest_snapshot(places(settings))
    began = created_ms(segment.path) / 1000
    assert found == Ingest(
        state="running",
        journal=journal,
        pending=2,
        segments=1,
        waiting_since=began,
        accepted=7,
        landed=5,
        rejected={"not_json": 2},
    )
    segment.roll()
    assert lock._file is not None
    os.close(lock._file)
    assert ingest_snapshot(places(settings)).state == "stopped"
    assert not before
    assert Lock(settings.journal / INGEST_LOCK).take(), "looking leaves nothing locked"


def test_looking_writes_nothing(tmp_path: Path) -> None:
    settings = dashboard_settings(tmp_path)
    settings.journal.mkdir(parents=True)
    ingest_snapshot(places(settings))
    assert list(settings.journal.iterdir()) == []


def test_what_takes_long_is_looked_at_less_often() -> None:
    now, looks = [0.0], []

    def look() -> int:
        now[0] += 3.0
        looks.append(now[0])
        return len(looks)

    paced = Paced(look, lambda: now[0])
    assert paced() == 1
    now[0] += 59
    assert paced() == 1
    now[0] += 2
    assert paced() == 2


def hint(newest: int, landed: Landed, ingest: Ingest) -> str:
    study = small_study()
    line = LineSnapshot(name="main", min_clients=1, landed=replace(landed, version=newest))
    facts = CheckInput(study="s", declared=Declared(), arms=study.arms, line=line, ingest=ingest, now=0.0)
    return now_of(newest, facts).hint


def test_what_is_waited_for_is_told_where_nothing_is_wrong() -> None:
    running = Ingest(state="running")
    some = Landed(version=0, pings=3, files=1, newest_ms=1)
    assert hint(4, NONE_LANDED, running) == (
        "No pings of version 4 have arrived yet; clients send them after they have fetched it."
    )
    assert "accepted pings land within 1 minute" in hint(4, NONE_LANDED, Ingest(state="running", pending=1, period=60))
    assert "'fedping round s'" in hint(0, some, running)
    assert hint(4, some, running) == ""
    assert hint(4, NONE_LANDED, Ingest(state="stopped", pending=128)) == "", "nothing lands while ingest is dead"


def test_every_reason_of_a_refusal_has_its_words() -> None:
    assert WORDS.keys() == REASONS.keys()


def test_the_newest_refusals_are_read_as_ingest_writes_them(tmp_path: Path) -> None:
    log = RejectionLog(tmp_path, "worker-0")
    log.add("study", Rejection("not_a_ping", "never written", "Expected `int` - at `$.rank_selected`"))
    log.add("other", Rejection("not_json", "never written"))
    log.add("", Rejection("path", "never written"))
    log.flush()
    (tmp_path / "worker-1.jsonl").write_text(
        '{"time": "1999-01-01T00:00:00+00:00", "left_out": 9}\nnot JSON\n{"no": 1}\n'
    )
    found = newest_refusals(tmp_path, "study")
    assert sorted(entry.reason or "" for entry in found) == ["", "not_a_ping", "path"]
    assert (found[-1].left_out, found[-1].reason) == (9, None)
    assert next(e for e in found if e.reason == "not_a_ping").detail == "Expected `int` - at `$.rank_selected`"
    assert newest_refusals(tmp_path / "nowhere", "study") == []
    assert len(newest_refusals(tmp_path, "study", most=1)) == 1


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    lines = [
        json.dumps({"time": f"2026-01-01T{k:08d}", "study": "s", "status": 400, "reason": "path"}) for k in range(2000)
    ]
    (tmp_path / "w.jsonl").write_text("\n".join([*lines, ""]))
    assert (tmp_path / "w.jsonl").stat().st_size > TAIL_BYTES
    assert [entry.time for entry in newest_refusals(tmp_path, "s", most=2)] == [
        "2026-01-01T00001999",
        "2026-01-01T00001998",
    ]


def test_each_landed_file_is_read_once_for_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    opened = Landing.open
    monkeypatch.setattr(Landing, "open", lambda self, file: read.append(file) or opened(self, file))
    walked_store(tmp_path / "store", small_study(), 1)
    file = write_landed(
        partition(tmp_path / "landing", "study", "main", 1), landed_table(5, 1, m=2, model_version=1), 1_000
    )
    change = LineFeed("study", "main", Lines(dashboard_settings(tmp_path))).since(None)
    assert change is not None
    assert change.data["now"].landed.pings == 5
    assert read == [file]


def test_a_ping_that_lands_is_told_without_any_row(tmp_path: Path) -> None:
    walked_store(tmp_path / "store", small_study(), 1)
    feed = LineFeed("study", "main", Lines(dashboard_settings(tmp_path)))
    first = feed.since(None)
    assert first is not None
    write_landed(partition(tmp_path / "landing", "study", "main", 1), landed_table(5, 1, m=2, model_version=1), 1_000)
    change = feed.since(first.position)
    assert change is not None
    assert (change.data["whole"], change.data["rows"]) == (False, ())
    assert change.data["now"].landed.pings == 5
    assert feed.since(change.position) is None


def test_the_bytes_of_updates_are_told_of_the_line_alone_and_never_beside_a_private_study() -> None:
    mine = Uploads(study="s", line="main", encoding="steps", updates=3, update_bytes=90)
    others = (replace(mine, study="t"), replace(mine, line="second"))
    line = LineSnapshot(name="main", min_clients=1, landed=Landed(version=0, pings=0, files=0, newest_ms=None))
    facts = CheckInput(
        study="s",
        declared=Declared(),
        arms=small_study().arms,
        line=line,
        ingest=Ingest(state="running", uploads=(*others, mine)),
        now=0.0,
    )
    assert now_of(0, facts).ingest.uploads == (mine,)
    assert now_of(0, replace(facts, discreet=True)).ingest.uploads == ()
