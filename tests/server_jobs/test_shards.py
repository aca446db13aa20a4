"""Rounds with any number of shards: the bits depend only on this number and the files, not on the division of work."""

import dataclasses
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.landing_data import Traffic
from benchmarks.landing_data import land as land_traffic
from fedping.main import main
from fedping.model_store import open_store
from fedping.protocol import landing
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landed_file import UnreadableFile
from fedping.protocol.landing import (
    MOST_SHARDS,
    SHARDS,
    groups_for,
    landed_files,
    open_landing,
    partition,
    shard_of,
    shards_in,
    write_landed,
)
from fedping.protocol.limits import Limits
from fedping.protocol.pipeline import Krum, Median
from fedping.protocol.study import Study, study_from_toml
from fedping.server_jobs.deletion import erase, find_pings
from fedping.server_jobs.ingest.partitions import Layouts
from fedping.server_jobs.round import RoundOptions, recompute, run_round, shard, spark_engine
from fedping.server_jobs.round import aggregate as aggregates
from fedping.server_jobs.round.accumulator import merged, moments_of, no_moments, partial_size
from fedping.server_jobs.round.aggregate import RoundAggregate, combined
from fedping.server_jobs.round.aggregations import accumulator_for
from fedping.server_jobs.round.engine import Engine, NumpyEngine
from fedping.server_jobs.round.ping_file import PingReader, open_ping_file
from fedping.server_jobs.round.plan import Rules, Work, tasks_for
from fedping.server_jobs.round.shard import batch_rows, shard_partials
from fedping.server_jobs.round.spark_engine import SparkEngine
from fedping.server_jobs.round.step import pieces_of
from tests.experiments.test_laboratory_rounds import M, cohort, ids, study
from tests.server_jobs.test_ingest_compaction import batched, post_batch
from tests.support.effort import few_or_all
from tests.support.ingest_app import STUDY, ingest_app
from tests.support.laboratory_rounds import file_rounds, memory_rounds
from tests.support.landed import landed_table
from tests.support.rounds import FIRST_MS, WHEN, Ping, crowd, id_of, land, line_of, store_with, table_of, work_of
from tests.support.versions import small_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RULES = Rules(
    line=line_of(2), iteration=0, arms=("treatment", "control"), submits=(True, False), pings="frecency-update"
)
COUNTS = [16, 32, 256]
ENGINE = NumpyEngine()


def rules_of(shards: int, m: int = 2) -> Rules:
    return dataclasses.replace(RULES, shards=shards, line=line_of(m))


def aggregate(paths: Sequence[Path], rules: Rules, engine: Engine = ENGINE) -> RoundAggregate:
    return combined(engine.partials(work_of(paths, rules)), rules)


def write(folder: Path, pings: Sequence[Ping], at: int, groups: int) -> Path:
    """Land pings as one file with a number of row groups, even if there are few pings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landing, "groups_for", lambda rows, shards: shards)
        return write_landed(folder, table_of(pings), at, shards=groups)


def by_hand(files: Sequence[Sequence[Ping]], shards: int) -> tuple[list[float], list[float]]:
    """Return the mean and the spread of usable pings, one for each client, computed shard by shard and file by file.

    Each file has one row group, with fewer rows than a batch.
    """
    total = no_moments(2)
    for number in range(shards):
        own = no_moments(2)
        for file in files:
            mine = [p for p in file if int.from_bytes(id_of("client", p.client)[:2], "big") * shards >> 16 == number]
            if mine:
                updates = np.array([p.update for p in mine], np.float32)
                own = merged(own, moments_of(updates, np.ones(len(mine))))
        total = merged(total, own)
    return total.mean.tolist(), total.m2.tolist()


@pytest.mark.thorough
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 300),
    cut=st.integers(0, 300),
    shards=st.sampled_from([*COUNTS, 4096]),
)
@settings(deadline=None, max_examples=few_or_all(4, 60))
def test_the_sum_is_that_of_its_shards_in_their_order(seed: int, clients: int, cut: int, shards: int) -> None:
    pings = crowd(clients, seed=seed)
    files = [part for part in (pings[:cut], pings[cut:]) if part]
    with tempfile.TemporaryDirectory() as folder:
        paths = [write_landed(Path(folder), table_of(part), n, shards=shards) for n, part in enumerate(files)]
        found = aggregate(paths, rules_of(shards)).updates
    assert (list(found.mean), list(found.m2)) == by_hand(files, shards)
    assert found.clients == clients


@pytest.mark.thorough
@given(
    layouts=st.lists(st.sampled_from([1, 2, 16, 64, 512]), min_size=1, max_size=3),
    shards=st.sampled_from(COUNTS),
    tasks=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=few_or_all(4, 60))
def test_a_round_takes_files_of_any_layout(layouts: list[int], shards: int, tasks: int, seed: int) -> None:
    """The result is the same to the bit; copies of a document in files of other layouts are dropped."""
    rng = np.random.default_rng(seed)
    sent = [dataclasses.replace(p, client=int(rng.integers(40))) for p in crowd(120, seed=seed)]
    sent += [Ping(900, 3, payload=b"?"), Ping(901, 4, None)]
    parts = np.array_split(rng.permutation(len(sent)), len(layouts))
    copies = [[sent[i] for i in (*part, *rng.integers(0, len(sent), 10))] for part in parts]
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as plain:
        laid = [write(Path(here), part, n, of) for n, (part, of) in enumerate(zip(copies, layouts, strict=True))]
        assert [open_ping_file(path, RULES.document).shards for path in laid] == layouts
        flat = [write(Path(plain), part, n, 1) for n, part in enumerate(copies)]
        rules = rules_of(shards)
        found, other = aggregate(laid, rules), aggregate(flat, rules)
        work = work_of(laid, rules)
        apart = [p for some in tasks_for(work, tasks)[::-1] for p in shard_partials(work.paths, some, rules)]
        assert combined(apart, rules) == found
        assert aggregate(laid, rules, NumpyEngine(threads=3)) == found
    assert found.counts == other.counts
    assert found.counts["duplicate"] == 10 * len(layouts)
    assert (found.updates.clients, found.updates.weight) == (other.updates.clients, pytest.approx(other.updates.weight))
    np.testing.assert_allclose(found.updates.mean, other.updates.mean, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found.updates.m2, other.updates.m2, rtol=1e-11)


def test_what_is_left_out_where_there_is_no_room_depends_on_no_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "MOST_ROWS", 3)
    pings = crowd(600, seed=1)
    for shards in (64, 128):
        found = [
            aggregate([write(tmp_path / f"{groups}", pings, shards, groups)], rules_of(shards)).counts
            for groups in (1, 16, 64, 512)
        ]
        assert found == [found[0]] * 4
        assert 0 < found[0]["over_capacity"] < 600


@pytest.mark.parametrize("groups", [1, 16, 64, 256])
@pytest.mark.parametrize("shards", [16, 64, 256])
def test_a_task_reads_the_row_groups_that_may_have_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int, shards: int
) -> None:
    path, rules, read = write(tmp_path, crowd(600), 0, groups), rules_of(shards), list[int]()
    rows = PingReader.rows

    def noted(self: PingReader, group: int, rules: Rules) -> Iterator[object]:
        read.append(group)
        return rows(self, group, rules)

    monkeypatch.setattr(PingReader, "rows", noted)
    wanted = [shards // 4, shards // 4 + 1]
    list(shard_partials([str(path)], wanted, rules))
    expected = [
        group
        for group in range(groups)
        if any(group * shards < (s + 1) * groups and s * groups < (group + 1) * shards for s in wanted)
    ]
    assert read == expected
    assert len(read) <= max(1, 2 * groups // shards + 1)


def test_empty_row_groups_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attackers can choose ids so that all clients of a file are in one of thousands of row groups."""
    path, digests = write(tmp_path, crowd(20), 0, 4096), 0
    digest = xxhash.xxh3_64_digest

    def counted(data: bytes) -> bytes:
        nonlocal digests
        digests += 1
        return digest(data)

    monkeypatch.setattr(xxhash, "xxh3_64_digest", counted)
    assert aggregate([path], rules_of(64)).updates.clients == 20
    assert digests <= 20 * 10  # about the columns of the row groups that have a client, none of the 4,076 others


@pytest.mark.parametrize(("groups", "shards"), [(64, 16), (64, 256), (16, 64)])
def test_a_file_with_a_client_in_another_row_group_is_refused_at_any_number_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int, shards: int
) -> None:
    of = shard_of
    monkeypatch.setattr(landing, "shard_of", lambda ids, shards=SHARDS: (of(ids, shards) + 1) % shards)
    path = write(tmp_path, crowd(200), 0, groups)
    monkeypatch.undo()
    with pytest.raises(UnreadableFile, match="has clients of other shards in row group"):
        aggregate([path], rules_of(shards))


@pytest.mark.parametrize(
    ("said", "groups", "shards"),
    [
        (b"64", 64, 64),
        (b"64", 16, 1),
        (b"12", 12, 1),
        (b"1", 1, 1),
        (b"0x10", 16, 1),
        (b"", 16, 1),
        (b"131072", 131072, 1),
    ],
)
def test_a_footer_is_believed_only_if_it_can_be_true(said: bytes, groups: int, shards: int) -> None:
    assert shards_in({landing.SHARDS_KEY: said}, groups) == shards


def test_large_files_have_the_studys_row_groups_and_smaller_ones_fewer(tmp_path: Path) -> None:
    assert [groups_for(rows) for rows in (0, 4095, 4096, 10**9)] == [1, 1, 16, 16]
    assert [groups_for(rows, 256) for rows in (4095, 4096, 65_536, 200_000, 10**9)] == [1, 16, 32, 64, 256]
    file = write_landed(tmp_path, landed_table(70_000, seed=1), 1, shards=256)
    footer = pq.read_metadata(file)
    assert (footer.num_row_groups, footer.metadata[landing.SHARDS_KEY]) == (32, b"32")
    assert open_ping_file(file, RULES.document).shards == 32


def test_shards_are_the_first_bits_of_an_id() -> None:
    drawn = np.random.default_rng(1).integers(0, 256, (5000, 16), np.uint8)
    for shards in (1, 16, 4096, 2**16):
        expected = [int.from_bytes(bytes(each[:2]), "big") * shards >> 16 for each in drawn]
        assert shard_of(drawn, shards).tolist() == expected
    assert shard_of(drawn).tolist() == (drawn[:, 0] // 16).tolist()


@pytest.mark.parametrize("shards", [64, 256])
@pytest.mark.parametrize("clients", [4000, 9000])
def test_rounds_in_memory_come_to_the_bits_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, clients: int
) -> None:
    """Tested with row groups of several shards, and larger than a batch."""
    monkeypatch.setattr(landing, "GROUP_ROWS", 128)
    monkeypatch.setattr(shard, "BATCH_BYTES", 8 * M * 50)
    monkeypatch.setattr(shard, "LEAST_BATCH", 1)
    made = msgspec.structs.replace(study(line_of(2).pipeline), shards=shards)
    named = np.random.default_rng(shards).integers(0, 256, (clients, 16), np.uint8)
    block = next(iter(cohort(0, np.zeros(M), block=200)))
    some = np.sort(np.random.default_rng(2).choice(clients, clients - 5, replace=False))
    examples = np.arange(len(some)) % 7
    updates = np.random.default_rng(3).normal(size=(len(some), M)) * (examples > 0)[:, None]
    many = dataclasses.replace(
        block,
        clients=some,
        repeats=np.zeros(len(some), np.int64),
        pings=np.ones(len(some), np.int64),
        updates=updates.astype(np.float32),
        losses=np.minimum(examples, 1.0),
        examples=examples,
    )
    rounds = file_rounds(tmp_path, made, ENGINE, named, shards)
    memory = memory_rounds(made.lines[0], named, shards=shards)
    for each in (rounds, memory):
        each.run([many])
    [file] = (tmp_path / "landing").rglob("*.parquet")
    assert open_ping_file(file, made.document).shards == groups_for(len(some), shards)
    assert rounds.weights.tolist() == memory.weights.tolist()
    other = memory_rounds(made.lines[0], named)
    other.run([many])
    np.testing.assert_allclose(other.weights, memory.weights, rtol=1e-12)


def test_pieces_of_small_blocks_are_as_ever() -> None:
    shards = shard_of(ids())
    assert pieces_of(shards, np.ones(len(shards), np.bool_), batch_rows(M))[1][0][:2] == (0, 0)


@pytest.mark.spark
@pytest.mark.parametrize(
    "collected", [0, pytest.param(2**40, marks=pytest.mark.long)], ids=["by way of the disk", "at once"]
)
def test_spark_and_numpy_agree_to_the_last_bit_on_many_shards(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, collected: int
) -> None:
    traffic = Traffic(pings=6000, clients=700, duplicates=0.1)
    land_traffic(tmp_path, traffic, seed=1, rows_per_file=2000)
    monkeypatch.setattr(landing, "GROUP_ROWS", 100)
    tables = landed_table(6000, seed=2)
    write_landed(tmp_path, tables, 2**40, shards=64)
    monkeypatch.setattr(spark_engine, "COLLECTED_BYTES", collected)
    monkeypatch.setattr("fedping.server_jobs.round.spark_engine.tasks_for", lambda work, _: tasks_for(work, 5))
    rules = dataclasses.replace(
        rules_of(64, m=22), sees=True, salt=bytes(16), limits=Limits(votes="client", round_tails=0.025)
    )
    paths = landed_files(tmp_path)
    found, by_numpy = aggregate(paths, rules, SparkEngine(lambda: nullcontext(spark))), aggregate(paths, rules)
    assert found == by_numpy
    np.testing.assert_array_equal(found.registers, by_numpy.registers)
    assert found.updates.influence is not None
    sixteen = aggregate(paths, dataclasses.replace(rules, shards=16))
    assert found.counts == sixteen.counts
    assert found.arms["treatment"].winsorised == sixteen.arms["treatment"].winsorised
    np.testing.assert_allclose(found.updates.mean, sixteen.updates.mean, rtol=1e-12)


def test_the_driver_keeps_few_partials_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partials are computed and merged on demand, so that few of thousands exist at the same time."""
    path = write(tmp_path, crowd(500), 0, 64)
    rules = dataclasses.replace(rules_of(128), limits=Limits(round_tails=0.025), sees=True, salt=bytes(16))
    monkeypatch.setattr(shard, "TOTALS_BYTES", 1)  # 16 of them at a time in a task
    made = merged_so_far = ahead = 0
    real = accumulator_for(rules.line)

    def counting(partials: Iterator[aggregates.ShardPartial]) -> Iterator[aggregates.ShardPartial]:
        nonlocal made, ahead
        for each in partials:
            made += 1
            ahead = max(ahead, made - merged_so_far)
            yield each

    def merge(a: object, b: object) -> object:
        nonlocal merged_so_far
        merged_so_far += 1
        return real.merge(a, b)

    whole = aggregate([path], rules)
    monkeypatch.setattr(aggregates, "accumulator_for", lambda *_: real._replace(merge=merge))
    monkeypatch.setattr(aggregates, "_AT_ONCE", 3)
    again = combined(counting(iter(ENGINE.partials(work_of([path], rules)))), rules)
    assert again == whole
    assert (made, ahead) == (128, 1)


def test_a_task_works_on_few_shards_at_a_time_where_there_are_many_weights() -> None:
    assert [len(some) for some in shard.shard_groups(range(256), 1_000_000)] == [16] * 16
    assert [each for some in shard.shard_groups(range(4096), 22) for each in some] == list(range(4096))
    assert list(shard.shard_groups([], 22)) == []
    sizes = [len(some) * aggregates.partial_bytes(22) for some in shard.shard_groups(range(4096), 22)]
    assert max(sizes) <= shard.TOTALS_BYTES


def test_there_are_as_many_tasks_as_shards_at_most() -> None:
    work = Work(paths=(), rows=10_000, rules=rules_of(256))
    assert tasks_for(work, 1) == [tuple(range(256))]
    assert [len(tasks_for(work, cores)) for cores in (16, 200, 1000)] == [16, 200, 256]
    assert sorted(reduce(tuple.__add__, tasks_for(work, 100))) == list(range(256))


@pytest.mark.parametrize("shards", [0, 8, 24, 8192])
def test_a_number_of_shards_that_is_none_is_refused(shards: int) -> None:
    with pytest.raises(InvalidSettings, match="power of two from 16 to 4,096"):
        msgspec.structs.replace(small_study(), shards=shards)


def test_an_aggregation_that_keeps_updates_keeps_as_many_in_all() -> None:
    krum, line = accumulator_for(line_of(2, aggregate=Krum())), line_of(2, aggregate=Krum())
    assert [partial_size(krum, line, shards) for shards in (16, 64, 4096)] == [256, 64, 1]
    assert partial_size(accumulator_for(line_of(2)), line_of(2), MOST_SHARDS) is None
    long = line_of(1, aggregate=Krum())
    with pytest.raises(InvalidSettings, match="Set 'shards' to 2048"):
        partial_size(krum._replace(room=lambda m: 128), long, 4096)


def test_a_median_of_many_shards_keeps_no_more_than_of_sixteen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard keeps its own updates; if all exceed the memory, counts are kept instead."""
    path = write(tmp_path, crowd(1200, seed=4), 0, 64)
    rules = dataclasses.replace(rules_of(256), line=line_of(2, aggregate=Median()))
    exact = aggregate([path], rules).total.own
    assert exact.rows == 1200
    monkeypatch.setattr("fedping.server_jobs.round.robust.room_for_all", lambda m: 2**15 if m == 4 else 50)
    assert aggregate([path], dataclasses.replace(rules, shards=16)).total.own.counts is not None
    counted = aggregate([path], rules).total.own
    assert counted.counts is not None
    assert counted.counts.sum() == pytest.approx(2 * 1200)


def changed(made: Study, shards: int) -> Study:
    return msgspec.structs.replace(made, shards=shards)


def test_versions_keep_the_number_that_they_were_made_with(tmp_path: Path) -> None:
    """The number changes between rounds; each version is recomputed with its own, from files of any layout."""
    made = small_study()
    store = store_with(tmp_path / "store", made)
    for n, shards in enumerate((16, 64, 256, 32)):
        if n:
            store.studies.change(
                changed(made, shards),
                (f"shards: {shards}",),
                at=WHEN,
                by="",
                because="",
                after=store.history.newest("study"),
            )
        land(tmp_path, crowd(300, seed=n, version=n), iteration=n, at_ms=FIRST_MS + n)
        run_round(store, tmp_path, "study", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="test"))
    versions = [store.version("study", "main", n) for n in range(5)]
    assert [each.lineage.shards for each in versions] == [16, 16, 64, 256, 32]
    for n in range(5):
        assert recompute(store, tmp_path, "study", "main", n, ENGINE).identical
    path = tmp_path / "store/study/main/versions/3.json"
    lineage = msgspec.structs.replace(versions[3].lineage, shards=16)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(versions[3], lineage=lineage)))
    again = recompute(open_store(tmp_path / "store"), tmp_path, "study", "main", 3, ENGINE)
    assert any(each.startswith("shards") for each in again.differences)


def test_a_version_of_sixteen_shards_says_nothing_new_in_its_digest(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    head = store.head("study", "main")
    told = msgspec.json.decode(msgspec.json.encode(head))
    del told["lineage"]["shards"]
    assert msgspec.convert(told, type(head)).digest == head.digest
    other = msgspec.structs.replace(head, lineage=msgspec.structs.replace(head.lineage, shards=32))
    assert other.digest != head.digest
    assert b"shards" not in (tmp_path / "store/study/study.json").read_bytes()


def test_ingest_lays_files_out_as_the_study_says_even_where_it_cannot_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing, "GROUP_ROWS", 64)
    monkeypatch.setattr("fedping.server_jobs.ingest.partitions.LOOK_EVERY", 0.0)
    ingest = ingest_app(tmp_path)
    store = open_store(ingest.settings.store)
    made, rng = store.study(STUDY), np.random.default_rng(1)

    def landed_anew(number: int) -> bytes:
        post_batch(ingest, [batched() | {"clientId": str(UUID(bytes=rng.bytes(16)))} for _ in range(5000)])
        ingest.land()
        files = landed_files(partition(ingest.settings.landing, STUDY, "main", 0))
        assert len(files) == number
        return pq.read_metadata(files[-1]).metadata[landing.SHARDS_KEY]

    assert landed_anew(1) == b"16"
    store.studies.change(changed(made, 64), ("shards",), at=WHEN, by="", because="", after=store.history.newest(STUDY))
    assert landed_anew(2) == b"64"
    layouts = Layouts(ingest.settings.store)
    assert layouts.shards(STUDY) == 64
    (tmp_path / "store").rename(tmp_path / "away")
    assert [layouts.shards(STUDY), layouts.shards("another")] == [64, 16]
    assert landed_anew(3) == b"16"  # by a compactor that has never seen the study
    files = landed_files(partition(ingest.settings.landing, STUDY, "main", 0))
    rules = dataclasses.replace(RULES, line=made.line("main"), shards=256)
    assert aggregate(files, rules).updates.clients == 15_000


FILE = """
name = "large"
shards = {shards}

[[arms]]
name = "treatment"
share = 1.0
line = "main"
applies = true
submits = true

[[lines]]
name = "main"

[lines.pipeline]
aggregate = {{ by = "{by}" }}

[lines.spec]
name = "small"
model = "mine"
blocks = [{{ name = "w", shape = [{m}], step = {{ start = 1, min = 0.1, max = 3 }} }}]
"""


def test_a_study_says_how_many_shards_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "study.toml"
    file.write_text(FILE.format(shards=256, by="mean", m=3))
    assert study_from_toml(file).shards == 256
    assert main(["study", "check", str(file), "--own-model", "mine"]) == 0
    assert "a round divides the clients into 256 shards, so it runs at most that many tasks" in capsys.readouterr().out
    file.write_text(FILE.format(shards=100, by="mean", m=3))
    assert main(["study", "check", str(file), "--own-model", "mine"]) == 2
    assert "shards = 100, and it has to be a power of two" in capsys.readouterr().err
    file.write_text(FILE.format(shards=256, by="geometric_median", m=1_000_000))
    assert main(["study", "check", str(file), "--own-model", "mine"]) == 2
    told = capsys.readouterr().err
    assert "has room for 32 of 1,000,000 weights" in told
    assert "Set 'shards' to 32, or remove it." in told


def test_a_running_study_may_change_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, store = tmp_path / "study.toml", str(tmp_path / "store")
    file.write_text(FILE.format(shards=16, by="mean", m=3))
    given = [str(file), "--own-model", "mine", "--store", store]
    assert main(["study", "create", *given, "--landing", str(tmp_path / "landing")]) == 0
    file.write_text(FILE.format(shards=512, by="mean", m=3))
    assert main(["study", "change", *given]) == 0
    assert open_store(tmp_path / "store").studies.settings("large")[1].shards == 512
    assert main(["study", "history", "large", "--store", store]) == 0
    assert "shards: 16 -> 512" in capsys.readouterr().out


def test_a_client_is_forgotten_in_files_of_any_layout(tmp_path: Path) -> None:
    folder = partition(tmp_path, "study", "main", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landing, "GROUP_ROWS", 64)
        write_landed(folder, table_of(crowd(5000)), 1, shards=64)
        client = UUID(bytes=id_of("client", 77))
        [found] = [each for each in find_pings(open_landing(tmp_path), client) if each is not None]
        assert not isinstance(found, UnreadableFile)
        erase(found, client)
    [file] = landed_files(folder)
    left = open_ping_file(file, RULES.document)
    assert (left.rows, left.shards) == (4999, 64)
    assert not any(find_pings(open_landing(tmp_path), client))
    assert math.isfinite(aggregate([file], rules_of(64)).updates.mean[0])
