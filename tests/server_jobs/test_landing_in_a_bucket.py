"""Pings that land in a bucket: the same files, rounds, counts and commands as in a folder, also with faults."""

import json
import os
import random
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests

import fedping
from fedping.analysis.study.count import count_study
from fedping.analysis.study.metrics import METRICS, Window
from fedping.analysis.study.tally import StudyTally
from fedping.main import main
from fedping.model_store import ModelStore
from fedping.protocol.landed_file import LandedFile, UnreadableFile, open_landed
from fedping.protocol.landing import OLDER, copy_landed, landed_files, open_landing, partition, rewrite, write_landed
from fedping.protocol.location import Place, base_name, child, key_in, parent, place_of
from fedping.protocol.object_store import PATIENCE_VARIABLE, StorageAway
from fedping.protocol.storage import ChangedMeanwhile, open_storage
from fedping.server_jobs.ingest.segments import CLOSED, segments
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.server_jobs.test_ingest_compaction import at_version_1, fill
from tests.server_jobs.test_store_in_a_bucket import CLIENTS, ROUNDS, digests, post, small_study
from tests.support import forked
from tests.support.effort import few_or_all
from tests.support.ingest_app import STUDY, make_store
from tests.support.ingest_server import running_ingest
from tests.support.landed import landed_table
from tests.support.object_server import Bucket, bucket_of, environment, object_server
from tests.support.processes import wait_until
from tests.support.rounds import WHEN, crowd, land, store_with

ROOT = Path(__file__).parents[2]
MANY = 5_000
"""Number of pings in a file with the layout by shards."""

FEW = 500
"""Number of pings in a file with one row group, which needs a tenth of the requests to a bucket."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_server() as address:
        yield address


@pytest.fixture
def bucket(endpoint: str) -> Iterator[Bucket]:
    with bucket_of(endpoint) as made:
        yield made


@pytest.fixture(params=["folder", "bucket"])
def landing(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a landing folder that doesn't exist yet, on a disk or in a bucket."""
    if request.param == "folder":
        return tmp_path / "pings" / "landing"
    return place_of(f"{request.getfixturevalue('bucket').url}/pings/landing")


def landed(landing: Place) -> Place:
    """Land pings for three rounds."""
    for version in range(ROUNDS):
        pings = crowd(CLIENTS, seed=version, version=version, first_document=CLIENTS * version)
        land(landing, pings, iteration=version)  # type: ignore[arg-type]
    return landing


def copied(landing: Place, to: Place) -> Place:
    for file in open_landing(landing).all_files():
        copy_landed(file, child(to, key_in(landing, file)))
    return to


def rounds(store: ModelStore, landing: Place, engine: Any, many: int = ROUNDS) -> None:
    for _ in range(many):
        run_round(store, landing, "study", "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test"))


def as_text(tally: StudyTally) -> str:
    """Return a whole tally as text, for comparison."""
    return json.dumps(asdict(tally), default=lambda array: array.tolist())


# --- the layout, the same in both ---


def test_what_has_landed_is_found_by_study_line_and_iteration(landing: Place) -> None:
    assert not open_landing(landing).exists()
    assert (
        open_landing(landing).all_files()
        == open_landing(landing).lines("s")
        == open_landing(landing).iterations("s", "main")
        == []
    )
    assert open_landing(landing).files_by_iteration("s", "main") == {}
    table = landed_table(3, 1)
    made = [write_landed(partition(landing, "s", "main", n), table, 1_000 + n) for n in (OLDER, 2, 10)]
    other = write_landed(partition(landing, "s", None, -1), table, 5_000)
    beside = write_landed(partition(landing, "s2", "main", 0), table, 6_000)
    assert open_landing(landing).exists()
    assert open_landing(landing).lines("s") == ["main", "none"]
    assert open_landing(landing).iterations("s", "main") == [OLDER, 2, 10]
    found = open_landing(landing).files_by_iteration("s", "main")
    assert list(found) == [OLDER, 2, 10]
    assert [file for files in found.values() for file in files] == made
    assert landed_files(partition(landing, "s", "main", 2)) == [made[1]]
    assert sorted(open_landing(landing).all_files(), key=str) == sorted([*made, other, beside], key=str)
    assert open_landing(landing).all_files(since_ms=5_500) == [beside]


def test_of_two_files_the_earlier_name_comes_first_and_hidden_ones_are_left_out(landing: Place) -> None:
    folder = partition(landing, "s", "main", 0)
    late, early = (write_landed(folder, landed_table(2, n), n) for n in (20, 3))
    copy_landed(early, child(folder, f".{base_name(early)}"))
    copy_landed(early, child(folder, f"_{base_name(early)}"))
    copy_landed(early, child(folder, "README"))
    assert landed_files(folder) == [early, late]
    assert open_landing(landing).all_files() == [early, late]


def test_a_removed_file_is_gone_and_removed_again_without_a_word(landing: Place) -> None:
    file = write_landed(partition(landing, "s", "main", 0), landed_table(2, 1), 1)
    open_landing(landing).remove(file)
    open_landing(landing).remove(file)
    assert open_landing(landing).all_files() == []
    assert open_landing(landing).iterations("s", "main") == []
    with pytest.raises(FileNotFoundError):
        open_landed(file)


def test_notes_are_kept_beside_the_pings_and_are_none_of_them(landing: Place) -> None:
    assert open_landing(landing).read_published("s3://models/live", "s", "main") == -1
    open_landing(landing).record_published("s3://models/live", "s", "main", 41)
    open_landing(landing).record_published("s3://models/live", "s", "main", 42)
    assert open_landing(landing).read_published("s3://models/live", "s", "main") == 42
    assert open_landing(landing).read_published("s3://models/other", "s", "main") == -1
    assert open_landing(landing).all_files() == []


@pytest.mark.parametrize("rows", [50, MANY])
def test_the_same_pings_are_the_same_bytes_and_read_alike(rows: int, landing: Place, tmp_path: Path) -> None:
    table = landed_table(rows, 7)
    here = write_landed(partition(landing, "s", "main", 0), table, 1, token="same")
    there = write_landed(partition(tmp_path / "other", "s", "main", 0), table, 1, token="same")
    one, other = open_landed(here), open_landed(there)
    assert (one.digest, one.size) == (other.digest, other.size)
    columns = ["client_id", "update", "loss"]
    for groups in (None, [0]):
        mine, theirs = (pa.Table.from_batches(each.batches(columns, groups)) for each in (one, other))
        assert mine.equals(theirs)
    one.verify(columns)


def test_a_file_is_written_again_with_fewer_pings(landing: Place) -> None:
    file = write_landed(partition(landing, "s", "main", 0), landed_table(MANY, 1), 1, {b"note": b"kept"})
    rewrite(file, lambda table: table.slice(0, 10))
    again = open_landed(file)
    assert again.footer.num_rows == 10
    assert again.footer.metadata[b"note"] == b"kept"
    open_landing(landing).remove(file)
    with pytest.raises(FileNotFoundError):
        rewrite(file, lambda table: table)


def test_a_copy_that_was_damaged_is_made_again(landing: Place, tmp_path: Path) -> None:
    file = write_landed(partition(tmp_path, "s", "main", 0), landed_table(FEW, 1), 1)
    unsealed = partition(tmp_path, "s", "main", 1) / "2-b.parquet"
    unsealed.parent.mkdir()
    pq.write_table(landed_table(FEW, 2), unsealed)
    for mine in (file, unsealed):
        copy = child(landing, key_in(tmp_path, mine))
        assert [copy_landed(mine, copy) for _ in range(2)] == [True, False]
        whole = bytearray(mine.read_bytes())
        whole[len(whole) // 3] ^= 1
        open_storage(parent(copy)).write(base_name(copy), [bytes(whole)])
        assert [copy_landed(mine, copy) for _ in range(2)] == [True, False]
        assert bytes(open_storage(parent(copy)).tail(base_name(copy), 2 * len(whole))[0]) == mine.read_bytes()


def test_a_file_that_changes_while_it_is_copied_leaves_no_copy(landing: Place, tmp_path: Path) -> None:
    file = write_landed(partition(landing, "s", "main", 0), landed_table(FEW, 1), 1)
    to = tmp_path / "copy.parquet"
    verify = LandedFile.verify

    def then_it_shrinks(self: LandedFile, columns: Sequence[str]) -> None:
        verify(self, columns)
        open_storage(parent(file)).write(base_name(file), [b"short"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LandedFile, "verify", then_it_shrinks)
        with pytest.raises(UnreadableFile, match="was changed while it was copied"):
            copy_landed(file, to)
    assert list(tmp_path.rglob("*copy*")) == []


def test_an_object_that_was_cut_since_its_footer_was_read_is_damaged(landing: Place) -> None:
    file = write_landed(partition(landing, "s", "main", 0), landed_table(50_000, 1), 1)
    opened = open_landed(file)
    open_storage(parent(file)).write(base_name(file), [b"short"])
    with pytest.raises(UnreadableFile, match="is damaged"):
        list(opened.batches(["client_id"]))


# --- reading from a bucket ---


def test_side_by_side_columns_come_in_one_request_and_others_are_not_fetched(bucket: Bucket) -> None:
    landing = place_of(bucket.url)
    file = open_landed(write_landed(partition(landing, "s", "main", 0), landed_table(MANY, 1), 1))
    before = bucket.seen()["GET"]
    list(file.batches(["document_id", "client_id", "model_version", "loss"], [3]))
    assert bucket.seen()["GET"] - before <= 3


@pytest.mark.parametrize("kind", ["slow_down", "throttled", "error", "cut", "reset"])
def test_what_fails_in_passing_is_read_again(kind: str, bucket: Bucket) -> None:
    landing = place_of(bucket.url)
    table = landed_table(MANY, 3)
    file = write_landed(partition(landing, "s", "main", 0), table, 1)
    bucket.faults(kind, most=3)
    [found] = open_landing(landing).all_files()
    assert found == file
    with open_landed(found).opened() as opened:
        assert opened.read().num_rows == MANY
    assert bucket.seen()["failed"] >= 3


@pytest.mark.long
@pytest.mark.thorough
def test_a_list_of_many_pages_that_breaks_off_is_whole(bucket: Bucket) -> None:
    landing = place_of(bucket.url)
    folder = partition(landing, "s", "main", 0)
    import obstore
    from obstore.store import S3Store

    raw = S3Store(bucket.url.removeprefix("s3://"), client_options={"allow_http": True})
    names = [f"{n:013d}-a.parquet" for n in range(few_or_all(1_001, 2_300))]
    for name in names:
        obstore.put(raw, f"{key_in(landing, folder)}/{name}", b"")
    bucket.faults("cut", share=0.5, seed=3, most=4)
    assert [base_name(file) for file in open_landing(landing).all_files()] == names
    assert bucket.seen()["failed"] > 0


def test_a_flipped_bit_and_a_replaced_object_are_told(bucket: Bucket) -> None:
    import obstore
    from obstore.store import S3Store

    landing = place_of(bucket.url)
    file = write_landed(partition(landing, "s", "main", 0), landed_table(MANY, 3), 1)
    opened = open_landed(file)
    raw = S3Store(bucket.url.removeprefix("s3://"), client_options={"allow_http": True})
    key = key_in(landing, file)
    data = bytearray(obstore.get(raw, key).bytes())
    data[len(data) // 2] ^= 1
    obstore.put(raw, key, bytes(data))
    with pytest.raises(UnreadableFile, match="differs from what was written") as told:
        opened.verify(opened.footer.schema.to_arrow_schema().names)
    assert f"move it out of the way to '{bucket.url}/" in str(told.value)
    obstore.put(raw, key, bytes(data[: len(data) // 2]))
    with pytest.raises(UnreadableFile, match="is not a whole Parquet file"):
        open_landed(file)


def test_a_bucket_that_is_away_is_no_damaged_file(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.3")
    landing = place_of(f"{bucket.url}/x")
    file = write_landed(partition(landing, "s", "main", 0), landed_table(MANY, 3), 1)
    opened = open_landed(file)
    bucket.faults("error")
    for ask in (
        lambda: open_landing(landing).all_files(),
        lambda: open_landed(file),
        lambda: list(opened.batches(["client_id"])),
        lambda: open_landing(landing).read_published("s", "s", "main"),
        lambda: open_landing(landing).exists(),
    ):
        with pytest.raises(StorageAway, match="in the object store"):
            ask()


def test_what_somebody_else_has_written_since_it_was_read_is_not_written_over(landing: Place) -> None:
    file = write_landed(partition(landing, "s", "main", 0), landed_table(30, 3), 1)

    def meanwhile(table: pa.Table) -> pa.Table:
        rewrite(file, lambda table: table.slice(0, 20))
        return table.slice(0, 10)

    with pytest.raises(ChangedMeanwhile, match="at the same time"):
        rewrite(file, meanwhile)
    assert open_landed(file).footer.num_rows == 20


def test_a_file_whose_answer_was_lost_as_it_was_written_again_is_written(bucket: Bucket) -> None:
    landing = place_of(bucket.url)
    file = write_landed(partition(landing, "s", "main", 0), landed_table(30, 3), 1)
    bucket.faults("lost", method="PUT", most=1)
    rewrite(file, lambda table: table.slice(0, 10))
    assert open_landed(file).footer.num_rows == 10


# --- rounds, commands and counts ---


def test_rounds_over_a_bucket_make_the_versions_of_a_folder_and_compute_them_again(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    here = landed(tmp_path / "landing")
    there = copied(here, place_of(f"{bucket.url}/landing"))
    one, other = (store_with(tmp_path / name, small_study()) for name in ("one", "other"))
    rounds(one, here, NumpyEngine())
    before = bucket.seen()
    rounds(other, there, NumpyEngine())
    requests_a_round = (sum(bucket.seen().values()) - sum(before.values())) / ROUNDS
    assert digests(one) == digests(other)
    assert requests_a_round <= 25
    for version in range(1, ROUNDS + 1):
        asked = ["store", "recompute", "study", "main", str(version), "--store", str(tmp_path / "one")]
        assert main([*asked, "--landing", str(there)]) == 0


@pytest.fixture
def knowing(bucket: Bucket, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the tests' shared session, whose workers get the bucket's keys by their environment."""
    for name, value in environment(bucket.endpoint, bucket.scheme).items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return spark


@pytest.mark.spark
def test_executors_read_a_bucket_themselves_and_the_versions_are_made_in_it(
    tmp_path: Path, bucket: Bucket, knowing: Any
) -> None:
    from fedping.server_jobs.round.spark_engine import SparkEngine

    here = landed(tmp_path / "landing")
    there = copied(here, place_of(f"{bucket.url}/landing"))
    one, other = (store_with(place, small_study()) for place in (tmp_path / "one", place_of(f"{bucket.url}/models")))
    rounds(one, here, NumpyEngine())
    rounds(other, there, SparkEngine(lambda: nullcontext(knowing)))
    assert digests(one) == digests(other)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.thorough
def test_a_study_is_counted_from_a_bucket_as_from_a_folder(tmp_path: Path, bucket: Bucket, knowing: Any) -> None:
    here = tmp_path / "landing"
    study = small_study()
    for version in (0, 1):
        table = landed_table(MANY, version, model_version=version)
        write_landed(partition(here, study.name, "main", version), table, version)
    there = copied(here, place_of(bucket.url))
    metrics = METRICS[: few_or_all(1, 3)]
    for window in [Window(first=1, last=1), Window()][: few_or_all(1, 2)]:
        one, other = (as_text(count_study(knowing, where, study, metrics, window)) for where in (here, there))
        assert one == other


@pytest.mark.spark
def test_an_analysis_names_a_damaged_file_of_a_bucket(tmp_path: Path, bucket: Bucket, knowing: Any) -> None:
    here = tmp_path / "landing"
    whole, half = (write_landed(partition(here, "study", "main", 0), landed_table(60, n), n) for n in (1, 2))
    there = copied(here, place_of(bucket.url))
    open_storage(there).write(key_in(here, half), [half.read_bytes()[:2000]])
    with pytest.raises(UnreadableFile, match="is not a whole Parquet file") as refused:
        count_study(knowing, there, small_study(), ())
    assert half.name in str(refused.value)
    assert whole.name not in str(refused.value)


def test_the_commands_take_a_landing_folder_in_a_bucket(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPING_STORE", f"{bucket.url}/models")
    monkeypatch.setenv("FEDPING_LANDING", f"{bucket.url}/landing")
    store_with(place_of(f"{bucket.url}/models"), small_study())
    assert main(["round", "study", "--engine", "numpy"]) == 1
    assert f"no landing folder exists at {bucket.url}/landing" in capsys.readouterr().err
    landed(place_of(f"{bucket.url}/landing"))
    for _ in range(ROUNDS):
        assert main(["round", "study", "--engine", "numpy"]) == 0
    assert main(["study", "health", "study"]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err
    batches = fedping.read_pings(f"{bucket.url}/landing", "study", columns=["client_id"])
    assert sum(batch.num_rows for batch in batches) == ROUNDS * CLIENTS
    assert main(["landing", "prune", "study", "--keep", "1"]) == 0
    assert f"{ROUNDS - 1} landed files" in capsys.readouterr().out
    [left] = open_landing(place_of(f"{bucket.url}/landing")).all_files()
    client = next(iter(open_landed(left).batches(["client_id"]))).column(0)[0].as_py()
    assert main(["landing", "forget", client.hex()]) == 0
    assert "1 ping in 1 landed file removed" in capsys.readouterr().out
    assert open_landed(left).footer.num_rows == CLIENTS - 1


def test_a_landing_folder_is_copied_into_a_bucket_and_back(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    here, away, back = landed(tmp_path / "landing"), f"{bucket.url}/away", tmp_path / "back"
    store = store_with(tmp_path / "store", small_study())
    rounds(store, here, NumpyEngine())
    bucket.faults("slow_down", share=0.2, seed=1)
    said = ["landing", "copy", "study", "--store", str(tmp_path / "store"), "--landing"]
    assert main([*said, str(here), "--to", away]) == 0
    bucket.well()
    assert f"3 landed files are in {away}, 3 of them new" in capsys.readouterr().out
    assert main([*said, str(here), "--to", away]) == 0
    assert "0 of them new" in capsys.readouterr().out
    assert main([*said, away, "--to", str(back)]) == 0
    files = [key_in(here, file) for file in open_landing(here).all_files()]
    assert files == [key_in(back, file) for file in open_landing(back).all_files()]
    assert all((here / file).read_bytes() == (back / file).read_bytes() for file in files)  # type: ignore[operator]
    for landing in (away, back):
        again = ["store", "recompute", "study", "main", "3", "--store", str(tmp_path / "store")]
        assert main([*again, "--landing", str(landing)]) == 0


def test_pings_of_a_study_that_the_store_does_not_have_are_not_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path / "store", small_study())
    here = landed(tmp_path / "landing")
    land(here, crowd(3), study="another")  # type: ignore[arg-type]
    said = ["landing", "copy", "--store", str(tmp_path / "store"), "--landing", str(here), "--to", str(tmp_path / "to")]
    assert main([*said, "another"]) == 1
    assert "no study 'another'" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
    assert main(said) == 0
    assert "so they are not copied: another; correct --store" in capsys.readouterr().err
    assert {key_in(tmp_path / "to", file).split("/")[0] for file in open_landing(tmp_path / "to").all_files()} == {
        "study=study"
    }


# --- ingest ---


@pytest.mark.long
def test_ingest_lands_in_a_bucket_and_keeps_pings_while_it_is_away(tmp_path: Path, bucket: Bucket) -> None:
    place = f"{bucket.url}/landing"
    make_store(tmp_path / "store")
    said = ("--workers", "1", "--journal", str(tmp_path / "journal"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PATIENCE_VARIABLE, "0.5")
        with running_ingest(tmp_path / "store", place, *said) as ingest:
            assert open_landing(place_of(place)).exists(), "before anything has landed"
            assert [post(ingest.url) for _ in range(3)] == [200] * 3
            assert ingest.flush()["landed"] == 3
            bucket.faults("error")
            assert [post(ingest.url) for _ in range(4)] == [200] * 4
            assert wait_until(lambda: not ingest.is_well())
            waiting = requests.get(f"http://127.0.0.1:{ingest.operations_port}/metrics", timeout=60).text
            [age] = [line for line in waiting.splitlines() if line.startswith("fedping_ingest_oldest_pending_seconds")]
            assert float(age.split()[1]) > 0
            bucket.well()
            assert wait_until(ingest.is_well)
            assert ingest.flush()["landed"] == 7
    rows = [open_landed(file).footer.num_rows for file in open_landing(place_of(place)).all_files()]
    assert sum(rows) == 7
    assert {base_name(file).startswith(".") for file in open_landing(place_of(place)).all_files()} == {False}


def test_ingest_tells_what_is_wrong_with_a_bucket_before_it_starts(tmp_path: Path, bucket: Bucket) -> None:
    make_store(tmp_path / "store")
    environment = {**os.environ, PATIENCE_VARIABLE: "0.2"}
    cases = {
        "s3://no-such-bucket/x": "'no-such-bucket' does not exist. Create it",
        "s3://key:secret@bucket/x": "has a name, a password or a token in it",
        "hdfs://name/x": "isn't a path on this machine",
    }
    for landing, sentence in cases.items():
        command = [sys.executable, "-m", "fedping", "ingest", "--store", str(tmp_path / "store"), "--landing", landing]
        ended = forked.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ended.returncode != 0
        assert sentence in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "secret" not in ended.stderr
    bucket.faults("denied", method="PUT")
    command[-1] = f"{bucket.url}/x"
    ended = forked.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "give credentials that may" in ended.stderr


KILLED = """
import sys
from pathlib import Path
from fedping.protocol.location import place_of
from fedping.server_jobs.ingest.compactor import Compactor
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.settings import IngestSettings
from tests.support.killed_puts import die_at_put

die_at_put(int(sys.argv[3]), sys.argv[4])
journal = Path(sys.argv[2])
settings = IngestSettings(store=journal, landing=place_of(sys.argv[1]), journal=journal)
while Compactor(settings, Counters(settings.counters)).run_once():
    pass
"""


@pytest.mark.thorough
def test_compaction_that_is_killed_among_faults_loses_no_ping_and_lands_none_twice(
    tmp_path: Path, bucket: Bucket
) -> None:
    """Each compaction of pings in three partitions is killed at one of its writes, and repeated until it finishes."""
    draws, kills = random.Random(4), 0
    for attempt in range(few_or_all(2, 60)):
        landing = f"{bucket.url}/{attempt}"
        ingest = at_version_1(tmp_path / str(attempt), landing=place_of(landing))
        documents, journal = fill(ingest, 12), ingest.settings.journal
        while segments(journal, CLOSED):
            bucket.faults(draws.choice(["slow_down", "lost", "cut", "throttled"]), share=0.15, seed=draws.randrange(99))
            call = [landing, str(journal), str(draws.randrange(1, 4)), draws.choice(["before", "after"])]
            ended = forked.run([sys.executable, "-c", KILLED, *call], cwd=ROOT)
            assert ended.returncode in (-signal.SIGKILL, 0)
            kills += ended.returncode != 0
            bucket.well()
        batches = fedping.read_pings(landing, STUDY, columns=["document_id"])
        found = [str(uuid.UUID(bytes=i)) for batch in batches for i in batch.column(0).to_pylist()]
        assert sorted(found) == documents
    assert kills > 0
