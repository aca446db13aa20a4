"""From the journal to Parquet: every ping once, in its partition, despite interruptions."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.protocol.arrow import landed_schema
from fedping.protocol.encodings.dense import dense_updates
from fedping.protocol.landing import SHARDS_KEY, landed_files, partition
from fedping.protocol.ping import FRECENCY_UPDATE
from fedping.server_jobs.ingest import compactor as compactor_module
from fedping.server_jobs.ingest.backlog import Backlog, backlog, note_inherited, wait_until_landed
from fedping.server_jobs.ingest.compactor import Compactor
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.duplicates import RecentDocuments, first_of_each, keys_in, keys_of
from fedping.server_jobs.ingest.segments import CLOSED, OPEN, segments
from tests.support.ingest_app import PATH, IngestApp, ingest_app, landed_ids
from tests.support.pings import ping_json
from tests.support.versions import small_study


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return at_version_1(tmp_path)


def at_version_1(folder: Path, **settings: Any) -> IngestApp:
    """Return an ingest that believes its line to be at version 1."""
    made = ingest_app(folder, **settings)
    made.services.catalogue.rules("study").heads["main"].known = 1
    return made


def post_batch(ingest: IngestApp, pings: list[dict[str, Any]]) -> None:
    answer = ingest.post(PATH, "\n".join(map(json.dumps, pings)).encode())
    assert answer.json == {"accepted": len(pings), "rejected": []}


def batched(document: str | None = None, **payload: Any) -> dict[str, Any]:
    return {"documentId": document or str(uuid.uuid4()), **ping_json(**payload)}


def test_every_field_arrives_as_it_was_sent(ingest: IngestApp) -> None:
    sent = batched(selected_style='é "x"\n\x00', update=[0.1 * k for k in range(22)], frecency_scores=[])
    control = batched(study_variation="control", update=None, model_version=-1)
    post_batch(ingest, [sent, control])
    ingest.land()
    [file] = landed_files(partition(ingest.settings.landing, "study", "main", 0))
    table = pq.ParquetFile(file).read()
    assert table.schema.equals(landed_schema())
    row = table.to_pylist()[0]
    for name, value in sent["payload"].items():
        if name != "update":
            assert row[name] == value, name
    assert row["update_encoding"] == "dense"
    decoded, usable = dense_updates(table.column("update").combine_chunks(), 22)
    assert usable.all()
    np.testing.assert_array_equal(decoded[0], np.array(sent["payload"]["update"], np.float32))
    assert uuid.UUID(bytes=row["document_id"]) == uuid.UUID(sent["documentId"])
    assert uuid.UUID(bytes=row["client_id"]) == uuid.UUID(sent["clientId"])
    [other] = landed_files(partition(ingest.settings.landing, "study", "main", -1))
    silent = pq.ParquetFile(other).read().to_pylist()[0]
    assert (silent["update"], silent["update_encoding"]) == (None, None)


def test_pings_go_to_the_partition_of_their_line_and_version(ingest: IngestApp) -> None:
    kinds = [
        ({"model_version": -1}, "main", -1),
        ({"model_version": 0}, "main", 0),
        ({"model_version": 1}, "main", 1),
        ({"study_variation": "control", "update": None}, "main", 0),
        ({"study_variation": "plain", "update": None, "model_version": -1}, None, -1),
    ]
    sent = [(batched(**payload), line, version) for payload, line, version in kinds for _ in range(7)]
    post_batch(ingest, [ping for ping, _, _ in sent])
    ingest.land()
    for line, version in {(line, version) for _, line, version in sent}:
        folder = partition(ingest.settings.landing, "study", line, version)
        expected = sorted(p["documentId"] for p, where, n in sent if (where, n) == (line, version))
        ids = [
            str(uuid.UUID(bytes=i))
            for file in landed_files(folder)
            for i in pq.ParquetFile(file).read().column("document_id").to_pylist()
        ]
        assert sorted(ids) == expected
        assert len(landed_files(folder)) == 1


def test_a_repeated_document_lands_once_also_across_segments(ingest: IngestApp) -> None:
    document = str(uuid.uuid4())
    assert ingest.ping(document=document).status_code == 200
    post_batch(ingest, [batched(document), batched(document.upper()), batched()])
    ingest.services.journals.roll()
    assert ingest.ping(document=document).status_code == 200
    ingest.land()
    ids = landed_ids(ingest.settings.landing)
    assert len(ids) == len(set(ids)) == 2
    sums = ingest.totals()
    assert (sums["accepted"], sums["landed"], sums["duplicates"]) == (5, 2, 3)


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30),
)
def test_the_first_of_each_id_is_kept(rows: list[tuple[int, int]]) -> None:
    ids = np.array([[a] * 8 + [b] * 8 for a, b in rows], dtype=np.uint8).reshape(-1, 16)
    expected = [row not in rows[:k] for k, row in enumerate(rows)]
    assert first_of_each(ids).tolist() == expected


def fill(ingest: IngestApp, pings: int) -> list[str]:
    """Journal pings of three versions in two segments; return their ids."""
    made = [batched(model_version=k % 3 - 1) for k in range(pings)]
    post_batch(ingest, made[: pings // 2])
    ingest.services.journals.roll()
    post_batch(ingest, made[pings // 2 :])
    ingest.services.journals.roll()
    return sorted(ping["documentId"] for ping in made)


def test_a_retry_of_what_has_landed_lands_no_second_time_even_after_a_restart(ingest: IngestApp) -> None:
    ids = fill(ingest, 20)
    ingest.land()
    post_batch(ingest, [batched(ids[3]), batched(ids[3], model_version=1), batched()])
    ingest.land()  # with a new compactor
    landed = landed_ids(ingest.settings.landing)
    assert len(landed) == 21
    assert set(ids) < set(landed)


def test_one_id_in_two_studies_is_two_documents(tmp_path: Path) -> None:
    """Two fleets with the same seed would otherwise have each other's pings as duplicates."""
    ingest = ingest_app(tmp_path, others=[small_study("another", m=22)])
    made = [batched() for _ in range(8)]
    lines = "\n".join(map(json.dumps, made)).encode()
    for path in (PATH, "/submit/another/frecency-update/1") * 2:  # each twice: the second time they are duplicates
        assert ingest.post(path, lines).status_code == 200
    ingest.land()
    for path in (PATH, "/submit/another/frecency-update/1"):
        assert ingest.post(path, lines).status_code == 200
    ingest.land()  # with a new compactor, which knows landed pings by their files
    ids = sorted(ping["documentId"] for ping in made)
    for study in ("study", "another"):
        landed = ingest.settings.landing.glob(f"study={study}/line=main/iteration=0/*.parquet")
        found = [i for file in landed for i in pq.ParquetFile(file).read().column("document_id").to_pylist()]
        assert sorted(str(uuid.UUID(bytes=i)) for i in found) == ids
    sums = ingest.totals()
    assert (sums["landed"], sums["duplicates"]) == (16, 32)


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "another"])), max_size=30))
def test_keys_tell_documents_apart_by_id_and_study(rows: list[tuple[int, str]]) -> None:
    ids = np.array([[number] * 16 for number, _ in rows], dtype=np.uint8).reshape(-1, 16)
    keys = keys_of(ids, pa.chunked_array([pa.array([study for _, study in rows], pa.string())]))
    assert first_of_each(keys).tolist() == [row not in rows[:k] for k, row in enumerate(rows)]
    for key, (number, study) in zip(keys, rows, strict=True):
        assert keys_in(study, np.full((1, 16), number, np.uint8)).tolist() == [key.tolist()]


@given(
    blocks=st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=6),
    asked=st.lists(st.integers(0, 40), max_size=20),
)
def test_recent_documents_are_remembered_exactly(blocks: list[list[int]], asked: list[int]) -> None:
    def ids(numbers: list[int]) -> np.ndarray:
        return np.array([uuid.UUID(int=n * 2**61).bytes for n in numbers], dtype="S16").view(np.uint8).reshape(-1, 16)

    recent = RecentDocuments()
    for block in blocks:
        recent.add(ids(block))
    everything = {n for block in blocks for n in block}
    held = recent.holds(ids(asked)).tolist()
    assert all(n in everything for n, is_held in zip(asked, held, strict=True) if is_held)
    # Ids that share their last half may hide each other, which only costs a second row.
    alone = {n for n in everything if not any(other != n and (other - n) % 8 == 0 for other in everything)}
    assert all(is_held for n, is_held in zip(asked, held, strict=True) if n in alone)


class Stopped(Exception):
    """Stands for a crash."""


@pytest.mark.parametrize("written", [0, 1, 2, 3])
@pytest.mark.parametrize("unlinked", [0, 1])
@pytest.mark.parametrize("same_process", [True, False])
def test_a_pass_that_stopped_anywhere_is_completed_without_a_duplicate(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch, written: int, unlinked: int, same_process: bool
) -> None:
    ids = fill(ingest, 30)
    real_write = compactor_module.write_landed
    calls: list[Path] = []

    def write(folder: Path, *args: Any, **named: Any) -> Path:
        if len(calls) == written:
            raise Stopped
        calls.append(folder)
        return real_write(folder, *args, **named)

    compactor = Compactor(ingest.settings, Counters(ingest.settings.counters))
    with monkeypatch.context() as patch:
        if written < 3:
            patch.setattr(compactor_module, "write_landed", write)
        else:
            patch.setattr(compactor_module.Compactor, "_count", lambda *_: (_ for _ in ()).throw(Stopped()))
        with pytest.raises(Stopped):
            compactor.run_once()
    if written == 3 and unlinked:
        segments(ingest.settings.journal, CLOSED)[0].unlink()
    # More arrives before the second attempt: retries of what has landed, in a segment that sorts before the others.
    post_batch(ingest, [batched(ids[0]), batched(ids[-1])])
    ingest.services.journals.roll()
    newest = segments(ingest.settings.journal, CLOSED)[-1]
    newest.rename(newest.with_name("0000000000001-early.closed"))
    if not same_process:
        compactor = Compactor(ingest.settings, Counters(ingest.settings.counters))
    compactor._suspects.discard("0000000000001-early.closed")
    while compactor.run_once():
        pass
    landed = landed_ids(ingest.settings.landing)
    assert set(landed) == set(ids)
    if not unlinked:
        assert landed == ids
    assert not segments(ingest.settings.journal, CLOSED)


def test_a_landing_folder_that_fails_for_a_while_loses_nothing(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(ingest, 12)

    def fail(*_: Any, **__: Any) -> Path:
        raise OSError(28, "No space left on device")

    compactor = Compactor(ingest.settings, Counters(ingest.settings.counters))
    with monkeypatch.context() as patch:
        patch.setattr(compactor_module, "write_landed", fail)
        for _ in range(3):
            with pytest.raises(OSError, match="space"):
                compactor.run_once()
    assert ingest.totals()["failed_passes"] == 3
    assert compactor.run_once()
    assert landed_ids(ingest.settings.landing) == ids


def test_a_damaged_piece_is_set_aside_and_the_rest_lands(ingest: IngestApp) -> None:
    documents = [str(uuid.uuid4()) for _ in range(5)]
    for document in documents:
        assert ingest.ping(document=document).status_code == 200
    ingest.services.journals.roll()
    [path] = segments(ingest.settings.journal, CLOSED)
    data = bytearray(path.read_bytes())
    data[data.find(documents[2].encode())] ^= 1
    path.write_bytes(data)
    ingest.land()
    assert landed_ids(ingest.settings.landing) == sorted(documents[:2] + documents[3:])
    assert ingest.totals()["quarantined"] == 1
    [kept] = ingest.settings.quarantine.iterdir()
    assert documents[2][1:].encode() in kept.read_bytes()


@pytest.mark.parametrize("record", [b'{"study":"x"}\n', b"not json\n", b"[1]\n", b"\xff\xfe\n"])
def test_a_whole_frame_that_is_no_record_is_set_aside_alone(ingest: IngestApp, record: bytes) -> None:
    ids = fill(ingest, 6)
    ingest.services.journals.of(FRECENCY_UPDATE).append(record, 1)
    document = str(uuid.uuid4())
    ingest.ping(document=document)
    ingest.land()
    assert landed_ids(ingest.settings.landing) == sorted([*ids, document])
    assert ingest.totals()["quarantined"] == 1


STRANGERS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("suffix", [OPEN, CLOSED])
@pytest.mark.parametrize("kind", [*STRANGERS, "name"])
def test_what_only_bears_a_segments_name_is_left_alone_and_told_once(
    ingest: IngestApp, kind: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = ingest.settings.journal
    stranger = Path(
        os.fsdecode(os.fsencode(journal) + b"/0000000000001-a" + b"\xff" * (kind == "name") + suffix.encode())
    )
    STRANGERS.get(kind, Path.touch)(stranger)
    ids = fill(ingest, 6)
    note_inherited(ingest.settings)
    compactor = Compactor(ingest.settings, Counters(ingest.settings.counters))
    while compactor.run_once():
        pass
    assert not compactor.run_once()
    assert landed_ids(ingest.settings.landing) == ids
    assert os.path.lexists(stranger)
    assert backlog(journal) == Backlog(0, 0)
    assert wait_until_landed(journal, timeout=0)
    told = [line for line in capsys.readouterr().err.splitlines() if "not a journal segment" in line]
    assert len(told) == 1
    assert "0000000000001-a" in told[0]
    told[0].encode("ascii")


@pytest.mark.parametrize("kind", ["pipe", "folder", "file", "dangling"])
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_in_the_place_of_the_quarantine_keeps_nothing_from_landing(
    ingest: IngestApp, kind: str, whole: bool
) -> None:
    """Covers a foreign entry in place of the folder, and of the file for a segment."""
    ids = fill(ingest, 6)
    ingest.services.journals.of(FRECENCY_UPDATE).append(b"not json\n", 1)
    ingest.services.journals.roll()
    if whole:
        place = ingest.settings.quarantine
    else:
        ingest.settings.quarantine.mkdir()
        [damaged] = [path for path in segments(ingest.settings.journal, CLOSED) if b"not json" in path.read_bytes()]
        place = ingest.settings.quarantine / f"{damaged.stem}.{damaged.read_bytes().index(b'not json')}.bad"
    {**STRANGERS, "file": Path.touch}[kind](place)
    ingest.land()
    assert landed_ids(ingest.settings.landing) == ids
    assert ingest.totals()["quarantined"] == 1
    kept = [path for path in ingest.settings.journal.rglob("*.bad") if path.is_file()]
    assert [path.read_bytes()[-9:] for path in kept] == [b"not json\n"]


def test_files_of_many_rows_are_sharded_by_client(ingest: IngestApp) -> None:
    rng = np.random.default_rng(1)
    pings = [batched() | {"clientId": str(uuid.UUID(bytes=rng.bytes(16)))} for _ in range(5000)]
    post_batch(ingest, pings)
    ingest.land()
    [file] = landed_files(partition(ingest.settings.landing, "study", "main", 0))
    assert pq.read_metadata(file).metadata[SHARDS_KEY] == b"16"


def test_large_models_land(tmp_path: Path) -> None:
    m = 30_000
    ingest = ingest_app(tmp_path, m=m, roll_bytes=10**6)
    rng = np.random.default_rng(5)
    updates = rng.normal(size=(6, m))
    for update in updates:
        assert ingest.ping(ping_json(update=update.tolist())).status_code == 200
    ingest.land()
    decoded = [
        dense_updates(pq.ParquetFile(file).read().column("update").combine_chunks(), m)[0]
        for file in landed_files(partition(ingest.settings.landing, "study", "main", 0))
    ]
    found = np.concatenate(decoded)
    assert sorted(found[:, 0].tolist()) == sorted(updates[:, 0].astype(np.float32).tolist())


def test_a_segment_that_was_copied_in_from_elsewhere_lands(ingest: IngestApp, tmp_path: Path) -> None:
    other = at_version_1(tmp_path / "other")
    ids = fill(other, 4)
    for path in segments(other.settings.journal, CLOSED):
        shutil.copy(path, ingest.settings.journal / f"restored-{path.name}")
    ingest.land()
    assert landed_ids(ingest.settings.landing) == ids


def test_segments_of_every_format_that_is_known_land_and_one_that_is_not_stays_whole(ingest: IngestApp) -> None:
    for kind in ("", ".frecency-update", ".frecency-update.2", ".frecency-update.3", ".frecency-update.1"):
        assert ingest.ping().status_code == 200
        ingest.services.journals.roll()
        (segment,) = ingest.settings.journal.glob("*.frecency-update.2.closed")
        segment.rename(segment.with_name(f"{segment.name.partition('.')[0]}{kind}.closed"))
        ingest.land()
    assert len(landed_ids(ingest.settings.landing)) == 3
    left = sorted(path.name.partition(".")[2] for path in ingest.settings.journal.glob("*.closed"))
    assert left == ["frecency-update.1.closed", "frecency-update.3.closed"]
    assert not list(ingest.settings.quarantine.glob("*"))
