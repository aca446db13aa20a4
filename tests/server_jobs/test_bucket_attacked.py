"""A landing folder in a bucket with foreign objects, in a deleted bucket, or in one that denies access."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import pytest
import requests
from obstore.store import S3Store

from fedping.model_store import ModelStore, open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import UnreadableFile, open_landed
from fedping.protocol.landing import (
    landed_at,
    landed_files,
    open_landing,
    partition,
    rewrite,
    write_landed,
)
from fedping.protocol.location import Place, key_in, place_of
from fedping.protocol.object_store import PATIENCE_VARIABLE, StorageAway
from fedping.server_jobs.ingest.compactor import Compactor, compact_the_rest
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.duplicates import recently_landed
from fedping.server_jobs.ingest.quarantine import FailureNote, failing
from fedping.server_jobs.ingest.segments import CLOSED, segments
from fedping.server_jobs.round import RoundOptions, run_round, shard
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.plan import rules_for
from tests.server_jobs.test_ingest_compaction import at_version_1, fill
from tests.server_jobs.test_store_in_a_bucket import small_study
from tests.support.ingest_app import PATH, STUDY, ingest_study, make_store
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.landed import landed_table
from tests.support.object_server import SCHEMES, Bucket, bucket_of
from tests.support.pings import ping_json
from tests.support.processes import wait_until
from tests.support.rounds import WHEN, crowd, land, store_with, work_of

ROOT = Path(__file__).parents[2]
CLIENTS = 20


@pytest.fixture(params=["s3"])
def bucket(request: pytest.FixtureRequest, object_servers: Callable[[str], str]) -> Iterator[Bucket]:
    with bucket_of(object_servers(request.param), request.param) as made:
        yield made


@pytest.fixture
def landing(bucket: Bucket) -> Place:
    return place_of(f"{bucket.url}/landing")


def key_of(folder: Place) -> str:
    return str(folder).split("/", 3)[3]


def a_round(store: ModelStore, landing: Place, on_step: Callable[[str], None] = lambda _: None) -> str:
    """Run a round, and return its outcome."""
    when, engine = (lambda: WHEN), NumpyEngine()
    made = run_round(
        store, landing, "study", "main", engine, RoundOptions(clock=when, code_version="test", on_step=on_step)
    )
    return made.status


def ready(tmp_path: Path, landing: Place) -> tuple[ModelStore, Place]:
    """Return a store with pings for its first round, and the pings' file."""
    return store_with(tmp_path / "store", small_study()), land(landing, crowd(CLIENTS))  # type: ignore[arg-type]


# --- foreign objects ---


@pytest.mark.parametrize("odd", ["%23", "%3F", "%2520"])
def test_a_file_whose_name_is_no_address_is_told_by_rounds_and_does_not_stop_compaction(
    odd: str, bucket: Bucket, landing: Place, tmp_path: Path
) -> None:
    store, file = ready(tmp_path, landing)
    now_ms = int(time.time() * 1000)
    write_landed(partition(landing, "study", "main", 0), landed_table(7, 1), now_ms)
    bucket.put(f"{key_of(partition(landing, 'study', 'main', 0))}/{now_ms}-a{odd}b.parquet")
    with pytest.raises(UnreadableFile, match="has a name with"):
        a_round(store, landing)
    assert len(recently_landed(landing)._sorted) == 7
    assert open_landed(file).footer.num_rows == CLIENTS


@pytest.mark.parametrize("bucket", SCHEMES, indirect=True)
def test_an_empty_file_is_told_as_one_and_does_not_stop_compaction(
    bucket: Bucket, landing: Place, tmp_path: Path
) -> None:
    store, _ = ready(tmp_path, landing)
    now_ms = int(time.time() * 1000)
    bucket.put(f"{key_of(partition(landing, 'study', 'main', 0))}/{now_ms}-empty.parquet")
    with pytest.raises(UnreadableFile, match=r"empty\.parquet is not a whole Parquet file"):
        a_round(store, landing)
    assert len(recently_landed(landing)._sorted) == 0


def test_an_object_that_cannot_be_asked_for_is_named_with_what_to_do(bucket: Bucket, landing: Place) -> None:
    bucket.put("landing/study=study//x")
    with pytest.raises(StorageAway, match=r"landing/study=study//x.*; remove that object"):
        open_landing(landing).all_files()


def test_names_that_begin_alike_are_kept_apart(bucket: Bucket) -> None:
    here = place_of(f"{bucket.url}/landing")
    mine = write_landed(partition(here, "a", "main", 1), landed_table(3, 1), 1)
    for place, study, line, iteration in [("landing2", "a", "main", 1), ("landing", "ab", "main", 1)]:
        write_landed(partition(place_of(f"{bucket.url}/{place}"), study, line, iteration), landed_table(3, 1), 1)
    write_landed(partition(here, "a", "main2", 1), landed_table(3, 1), 1)
    write_landed(partition(here, "a", "main", 10), landed_table(3, 1), 1)
    assert {key_in(here, file).split("/")[0] for file in open_landing(here).all_files()} == {"study=a", "study=ab"}
    assert open_landing(here).lines("a") == ["main", "main2"]
    assert list(open_landing(here).files_by_iteration("a", "main")) == [1, 10]
    assert landed_files(partition(here, "a", "main", 1)) == [mine]


# --- changes during a round ---


def test_a_file_that_goes_or_changes_under_a_round_ends_it_and_the_next_goes_on(landing: Place, tmp_path: Path) -> None:
    store, file = ready(tmp_path, landing)
    late = land(landing, crowd(5, seed=2, first_document=500), at_ms=1_800_000_000_000)  # type: ignore[arg-type]

    def changed(step: str) -> None:
        if step == "listed":
            rewrite(file, lambda table: table.slice(0, 10))

    def gone(step: str) -> None:
        if step == "listed":
            open_landing(landing).remove(late)

    for happens in (changed, gone):
        with pytest.raises(FedpingError):
            a_round(store, landing, happens)
        assert store.iterations("study", "main") == [0]
    assert a_round(store, landing) == "published"
    assert store.head("study", "main").lineage.counts["used"] == 10


@pytest.mark.parametrize("kind", ["expired", "denied"])
def test_credentials_that_end_in_a_round_are_told_and_nothing_is_half_done(
    kind: str, bucket: Bucket, landing: Place, tmp_path: Path
) -> None:
    store, _ = ready(tmp_path, landing)
    with pytest.raises(StorageAway, match="give credentials that may, and have not expired"):
        a_round(store, landing, lambda step: bucket.faults(kind) if step == "listed" else None)
    bucket.well()
    assert store.iterations("study", "main") == [0]
    assert a_round(store, landing) == "published"


def test_whoever_may_only_read_the_pings_can_run_rounds(bucket: Bucket, landing: Place, tmp_path: Path) -> None:
    store, _ = ready(tmp_path, landing)
    bucket.faults("denied", method="PUT")
    assert a_round(store, landing) == "published"


READER = """
import sys
from fedping.protocol.landed_file import open_landed
file = open_landed(sys.argv[1])
print("opened", flush=True)
sys.stdin.readline()
list(file.batches(["client_id", "document_id"]))
"""


def test_ctrl_c_is_heeded_while_pings_are_waited_for(bucket: Bucket, landing: Place) -> None:
    file = write_landed(partition(landing, "s", "main", 0), landed_table(5_000, 1), 1)
    environment = {**os.environ, PATIENCE_VARIABLE: "300"}  # longer than the test waits
    command = [sys.executable, "-c", READER, str(file)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as reader:  # type: ignore[call-overload]
        assert reader.stdout.readline() == "opened\n"
        bucket.faults("hangs")
        before = bucket.seen()["GET"]
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert wait_until(lambda: bucket.seen()["GET"] > before)
        reader.send_signal(signal.SIGINT)
        try:
            assert reader.wait(240) in (-signal.SIGINT, 130)
        finally:
            bucket.well()
            reader.kill()


# --- requests ---


def test_a_small_file_takes_one_request(bucket: Bucket, landing: Place) -> None:
    table = landed_table(50, 1)
    file = write_landed(partition(landing, "s", "main", 0), table, 1)
    before = bucket.seen()["GET"]
    opened = open_landed(file)
    opened.verify(["client_id", "update"])
    with opened.opened() as read:
        assert read.read(columns=["loss"]).equals(table.select(["loss"]))
    assert bucket.seen()["GET"] - before == 1


def test_a_compactor_that_starts_looks_at_each_small_file_of_the_last_hour_once(bucket: Bucket, landing: Place) -> None:
    now_ms = int(time.time() * 1000)
    for n in range(40):
        write_landed(partition(landing, "s", "main", n), landed_table(5, n), now_ms)
    before = bucket.seen()["GET"]
    assert len(recently_landed(landing)._sorted) == 200
    assert bucket.seen()["GET"] - before <= 40 + 2


def test_a_task_holds_so_many_bytes_of_small_files_and_reads_the_others_again(
    bucket: Bucket, landing: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, file = ready(tmp_path, landing)
    late = land(landing, crowd(5, seed=2, first_document=500), at_ms=1_800_000_000_000)  # type: ignore[arg-type]
    monkeypatch.setattr(shard, "MOST_HELD_BYTES", open_landed(file).size)
    work = work_of([file, late], rules_for(store.study("study"), "main", 0, key=b""))  # type: ignore[list-item]
    before = bucket.seen()["GET"]
    list(NumpyEngine().partials(work))
    assert bucket.seen()["GET"] - before > 2, "of two small files that are both held"
    monkeypatch.undo()
    before = bucket.seen()["GET"]
    list(NumpyEngine().partials(work))
    assert bucket.seen()["GET"] - before == 2


# --- ingest ---


def test_whoever_stops_waits_for_one_more_attempt_and_not_for_three(
    bucket: Bucket, landing: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.1")
    ingest = at_version_1(tmp_path, landing=landing)
    fill(ingest, 5)
    note = FailureNote(ingest.settings.compaction_failing)
    bucket.faults("error")
    compactor = Compactor(ingest.settings, Counters(ingest.settings.counters))
    assert not compact_the_rest(compactor, note, 1)
    told = failing(ingest.settings.compaction_failing)
    assert told is not None
    assert told.times == 1
    bucket.well()
    assert compact_the_rest(compactor, note, 1)


def put_again(bucket: Bucket) -> None:
    requests.put(f"{bucket.endpoint}/{bucket.name}", timeout=60).raise_for_status()


def take_away(bucket: Bucket) -> None:
    """Delete a bucket with its contents."""
    raw = S3Store(bucket.name, client_options={"allow_http": True})
    for listed in obstore.list(raw):
        for each in listed:
            obstore.delete(raw, each["path"])
    requests.delete(f"{bucket.endpoint}/{bucket.name}", timeout=60).raise_for_status()


def post(url: str, document: str) -> int:
    body = json.dumps(ping_json()).encode()
    headers = {"Content-Type": "application/json"}
    return requests.post(f"{url}{PATH}/{document}", body, headers=headers, timeout=240).status_code


def test_pings_outlive_the_bucket_and_a_stop_without_it(
    tmp_path: Path, bucket: Bucket, landing: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.5")
    make_store(tmp_path / "store")
    journal, says = tmp_path / "journal", (tmp_path / "out", tmp_path / "err")
    said = ("--workers", "1", "--journal", str(journal))
    ingest = IngestServer(tmp_path / "store", landing, *said, says=says)  # type: ignore[arg-type]
    ingest.start()
    documents = [str(uuid.uuid4()) for _ in range(6)]
    try:
        take_away(bucket)
        assert [post(ingest.url, document) for document in documents[:3]] == [200] * 3
        sentence = f"'{bucket.name}' does not exist. Create it"
        assert wait_until(lambda: sentence in says[1].read_text())
        assert wait_until(lambda: not ingest.is_well())
        put_again(bucket)
        assert wait_until(ingest.is_well)
        assert ingest.flush()["landed"] == 3
        take_away(bucket)
        assert [post(ingest.url, document) for document in documents[3:]] == [200] * 3
        assert ingest.stop() == 1
        assert segments(journal, CLOSED)
        put_again(bucket)
        ingest.start()
        assert ingest.flush()["landed"] == 3
        assert not segments(journal, CLOSED)
    finally:
        with contextlib.suppress(AssertionError):
            ingest.stop()
    assert "Traceback" not in says[1].read_text()


def test_two_hosts_with_one_landing_folder_in_a_bucket_have_a_ping_twice_and_a_round_counts_it_once(
    tmp_path: Path, landing: Place
) -> None:
    store_with(tmp_path / "store", ingest_study())
    documents = [str(uuid.uuid4()) for _ in range(4)]
    with contextlib.ExitStack() as running:
        said = [("--workers", "1", "--journal", str(tmp_path / f"host{n}")) for n in range(2)]
        hosts = [running.enter_context(running_ingest(tmp_path / "store", landing, *each)) for each in said]  # type: ignore[arg-type]
        assert {post(host.url, document) for host in hosts for document in documents} == {200}
        for host in hosts:
            assert host.flush()["landed"] == len(documents)
    assert len({landed_at(file) for file in open_landing(landing).all_files()}) >= 1
    store = open_store(tmp_path / "store")
    made = run_round(
        store, landing, STUDY, "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )
    assert (made.counts["used"], made.counts["duplicate"]) == (len(documents), len(documents))
