"""The journal: atomic frames, many requests in one flush, and a disk that fills up."""

import errno
import io
import json
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.server_jobs.ingest import segments as segment_module
from fedping.server_jobs.ingest.backlog import backlog
from fedping.server_jobs.ingest.counters import Counters, totals
from fedping.server_jobs.ingest.journal import Journal, NotStored
from fedping.server_jobs.ingest.partitions import close_abandoned
from fedping.server_jobs.ingest.quarantine import Piece
from fedping.server_jobs.ingest.segments import (
    CLOSED,
    OPEN,
    SegmentWriter,
    count_rows,
    frame_header,
    is_abandoned,
    payloads,
    scan,
    segments,
)
from tests.support.ingest_app import PATH, ingest_app, landed_ids, old_frames_of
from tests.support.pings import ping_json


def frames_of(*parts: bytes) -> bytes:
    return b"".join(frame_header(part, part.count(b"\n")) + part for part in parts)


PARTS = st.lists(st.binary(max_size=60), max_size=5)


@given(parts=PARTS, cut=st.integers(0, 500))
def test_a_segment_that_ends_anywhere_has_the_frames_that_are_whole(parts: list[bytes], cut: int) -> None:
    data = frames_of(*parts)[:cut]
    contents = scan(data, unfinished=True)
    found = list(payloads(data, contents.frames))
    assert found == parts[: len(found)]
    ends = [len(frames_of(*parts[:k])) for k in range(len(parts) + 1)]
    assert len(found) == max(k for k, end in enumerate(ends) if end <= len(data))
    torn = [(piece.start, piece.end, piece.rows, piece.cause) for piece in contents.damaged]
    whole = max(end for end in ends if end <= len(data))
    assert torn == ([] if len(data) in ends else [(whole, len(data), 0, "torn")])


@given(parts=st.lists(st.binary(min_size=50, max_size=90), min_size=1, max_size=4), cut=st.integers(1, 130))
def test_a_rolled_segment_that_has_lost_its_end_is_damaged_and_not_torn(parts: list[bytes], cut: int) -> None:
    whole = frames_of(*parts)
    data = whole[: max(0, len(whole) - cut)]
    contents = scan(data)
    assert [piece.cause for piece in contents.damaged] in ([], ["short"], ["header"])
    assert all(piece.cause != "torn" for piece in contents.damaged)


@given(parts=PARTS, new=st.lists(st.binary(max_size=60), max_size=3))
def test_segments_of_earlier_versions_are_read_and_may_be_mixed(parts: list[bytes], new: list[bytes]) -> None:
    data = old_frames_of(*parts) + frames_of(*new)
    contents = scan(data)
    assert list(payloads(data, contents.frames)) == [*parts, *new]
    assert contents.rows == count_rows(io.BytesIO(data)) == sum(part.count(b"\n") for part in [*parts, *new])
    assert not contents.damaged


@given(parts=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=5), data=st.data())
def test_a_changed_byte_costs_its_own_frame_and_no_other(parts: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(frames_of(*parts))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    contents = scan(bytes(whole))
    found = list(payloads(bytes(whole), contents.frames))
    ends = [len(frames_of(*parts[: k + 1])) for k in range(len(parts))]
    hit = next(k for k, end in enumerate(ends) if at < end)
    kept = parts[:hit] + parts[hit + 1 :]
    # A change of case in the checksum, or of the number of lines, leaves the payload readable.
    assert found in (kept, parts)


@given(junk=st.binary(max_size=300))
def test_any_bytes_can_be_scanned_and_are_accounted_for(junk: bytes) -> None:
    contents = scan(junk)
    assert sum(piece.end - piece.start for piece in contents.damaged) == len(junk) or contents.frames


def make_journal(folder: Path, roll_bytes: int = 10**9) -> Journal:
    return Journal(folder, roll_bytes, Counters(folder / ".counters"), "frecency-update")


def stored(folder: Path) -> list[bytes]:
    found = []
    for path in [*segments(folder, OPEN), *segments(folder, CLOSED)]:
        data = path.read_bytes()
        found += [line for payload in payloads(data, scan(data).frames) for line in payload.splitlines()]
    return sorted(found)


def test_what_many_threads_append_is_there_when_they_return_and_in_few_flushes(tmp_path: Path) -> None:
    journal = make_journal(tmp_path)
    missing: list[bytes] = []
    real_sync = os.fdatasync
    slow = threading.Event()

    def append(worker: int) -> None:
        for number in range(20):
            line = f"{worker}-{number}".encode()
            journal.append(line + b"\n", 1)
            if worker == 0 and line not in stored(tmp_path):
                missing.append(line)

    def sync(file: int) -> None:
        slow.wait(0.002)
        real_sync(file)

    segment_module.os.fdatasync = sync
    try:
        threads = [threading.Thread(target=append, args=(k,)) for k in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        segment_module.os.fdatasync = real_sync
    assert not missing
    assert stored(tmp_path) == sorted(f"{w}-{n}".encode() for w in range(16) for n in range(20))
    assert totals(tmp_path / ".counters")["accepted"] == 320
    assert totals(tmp_path / ".counters")["commits"] < 160


def test_a_segment_is_rolled_by_size_and_on_request(tmp_path: Path) -> None:
    journal = make_journal(tmp_path, roll_bytes=100)
    journal.append(b"x" * 50 + b"\n", 1)
    assert len(segments(tmp_path, OPEN)) == 1
    journal.append(b"x" * 50 + b"\n", 1)
    assert (len(segments(tmp_path, OPEN)), len(segments(tmp_path, CLOSED))) == (0, 1)
    journal.append(b"y\n", 1)
    assert backlog(tmp_path).pings == 3
    journal.roll()
    journal.roll()
    assert (len(segments(tmp_path, OPEN)), len(segments(tmp_path, CLOSED))) == (0, 2)


def test_a_segment_is_not_taken_from_a_living_writer_and_is_cut_once_it_died(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from fedping.server_jobs.ingest.segments import SegmentWriter
writer = SegmentWriter(Path({str(tmp_path)!r}), 1, "frecency-update")
writer.append(b"one\\n", 1)
os.write(writer._file, b"FPJ2 torn")
print("ready", flush=True)
input()
"""
    cut: list[Piece] = []
    with subprocess.Popen(
        [os.sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        [path] = segments(tmp_path, OPEN)
        assert not is_abandoned(path)
        assert close_abandoned(tmp_path, cut.extend) == 0
        writer.kill()
    assert close_abandoned(tmp_path, cut.extend) == 1
    assert [(piece.data, piece.damage.cause, piece.damage.rows) for piece in cut] == [(b"FPJ2 torn", "torn", 0)]
    [closed] = segments(tmp_path, CLOSED)
    assert closed.read_bytes() == frames_of(b"one\n")


def test_a_rolled_segment_and_one_that_vanished_are_not_abandoned(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 1, "frecency-update")
    path = writer.path
    writer.append(b"one\n", 1)
    writer.roll()
    assert not is_abandoned(path)


@pytest.mark.parametrize("failing", ["write", "fdatasync"])
@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_a_failed_write_stores_nothing_is_told_and_does_not_stop_the_next(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: str,
    number: int,
    full: bool,
) -> None:
    journal = make_journal(tmp_path)
    journal.append(b"before\n", 1)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(segment_module.os, failing, fail)
        with pytest.raises(NotStored) as refused:
            journal.append(b"lost\n", 1)
        with pytest.raises(NotStored):
            journal.append(b"lost\n", 1)
    assert refused.value.full is full
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "Pings are rejected" in line]
    assert os.strerror(number) in line
    assert ("is full" in line) is full
    journal.append(b"after\n", 1)
    assert stored(tmp_path) == [b"after", b"before"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder]).returncode:
        pytest.skip("A FULL DISK IS NOT TESTED: a small one can only be mounted by root, with mount installed")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_answers_507_and_goes_on_when_there_is_room(tmp_path: Path, small_disk: Path) -> None:
    ingest = ingest_app(tmp_path, journal=small_disk)
    ballast = small_disk / "ballast"
    body = json.dumps(ping_json()).encode()
    accepted: list[str] = []

    def post() -> int:
        document = str(uuid.uuid4())
        answer = ingest.post(f"{PATH}/{document}", body)
        if answer.status_code == 200:
            accepted.append(document)
        else:
            assert "disk" in answer.json["error"]
        return answer.status_code

    ballast.write_bytes(bytes(200_000))
    codes = [post() for _ in range(500)]
    assert set(codes) == {200, 507}
    assert ingest.totals()["rejected.disk_full"] == codes.count(507)
    ballast.unlink()
    assert [post() for _ in range(20)] == [200] * 20
    ingest.land()
    assert landed_ids(ingest.settings.landing) == sorted(accepted)
    assert ingest.totals()["quarantined"] == 0


@settings(max_examples=50)
@given(text=st.text(max_size=64))
def test_any_text_is_one_line_of_the_journal(text: str) -> None:
    import msgspec

    from fedping.protocol.ping import FRECENCY_UPDATE
    from fedping.server_jobs.ingest.segments import JournalRecord, encode_records

    ping = msgspec.convert(ping_json(selected_style=text), FRECENCY_UPDATE.ping)
    record = JournalRecord(
        document_id=uuid.UUID(int=1),
        client_id=ping.client_id,
        received_at=1,
        payload=ping.payload,
        study="s",
        line=None,
    )
    lines = encode_records([record, record])
    assert lines.count(b"\n") == 2
    assert lines.endswith(b"\n")
