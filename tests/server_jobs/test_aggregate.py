"""The aggregate equals plain Python's on the same pings, obeys its laws, and has the same bits on all engines."""

import dataclasses
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedping.protocol.landing
import fedping.server_jobs.round.shard
from benchmarks.landing_data import Traffic
from benchmarks.landing_data import land as land_traffic
from fedping.model_store.version import Aggregate, ArmSummary, InputFile
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import UnreadableFile
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import SHARDS, landed_files, write_landed
from fedping.protocol.limits import Limits
from fedping.server_jobs.round import ping_filter
from fedping.server_jobs.round.accumulator import merged, moments_of, no_moments
from fedping.server_jobs.round.aggregate import RoundAggregate, combined
from fedping.server_jobs.round.engine import Engine, NumpyEngine
from fedping.server_jobs.round.ping_filter import RARE, REASONS, client_groups, key_of_lots, thinned
from fedping.server_jobs.round.plan import Rules, tasks_for
from fedping.server_jobs.round.shard import shard_partials
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.support.effort import few_or_all
from tests.support.rounds import Ping, line_of, table_of, work_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = Rules(
    line=line_of(2), iteration=0, arms=("treatment", "control"), submits=(True, False), pings="frecency-update"
)
KEY = bytes(range(32))
number = st.floats(-1000, 1000, width=32)

pings = st.builds(
    Ping,
    document=st.integers(0, 10**9),
    client=st.integers(0, 12),
    update=st.one_of(st.tuples(number, number), st.none()),
    arm=st.sampled_from(["treatment", "treatment", "treatment", "control", "elsewhere"]),
    rank=st.sampled_from([-1, 0, 0, 0, 1, 2]),
    loss=st.one_of(st.floats(0, 1e6), st.floats(0, 1e6), st.just(math.nan)),
    version=st.sampled_from([0, 0, 0, 0, 0, 1]),
    encoding=st.sampled_from(["dense", "dense", "dense", "dense", "unheard-of"]),
    payload=st.sampled_from([None] * 8 + [b"", b"abc", np.array([1, np.nan], "<f4").tobytes()]),
)


@st.composite
def with_retries(draw: st.DrawFn, max_size: int = 40) -> list[Ping]:
    """Draw pings with different documents, some sent twice, in any order."""
    once = draw(st.lists(pings, max_size=max_size, unique_by=lambda p: p.document))
    again = draw(st.lists(st.sampled_from(once), max_size=10)) if once else []
    return draw(st.permutations(once + again))


def fate(ping: Ping, rules: Rules) -> str:
    """Return the outcome of a ping that isn't a duplicate, by the rules in order."""
    trains = dict(zip(rules.arms, rules.submits, strict=True))
    if ping.version != rules.iteration:
        return "wrong_version"
    if not math.isfinite(ping.loss):
        return "bad_loss"
    if not trains.get(ping.arm, False):
        return "other_arm"
    if ping.rank < 0:
        return "no_example"
    if ping.bytes is None:
        return "no_update"
    good = len(ping.bytes) == 4 * rules.m and np.isfinite(np.frombuffer(ping.bytes, "<f4")).all()
    return "used" if good and ping.encoding == "dense" else "bad_update"


def plain_aggregate(sent: Sequence[Ping], rules: Rules) -> RoundAggregate:
    """Return the aggregate by exact sums, in two passes."""
    once = list({ping.document: ping for ping in sent}.values())
    fates = [fate(ping, rules) for ping in once]
    used = [ping for ping, became in zip(once, fates, strict=True) if became == "used"]
    per_client = Counter(ping.client for ping in used)
    weights = [1 / per_client[p.client] if rules.line.pipeline.weighting == "client" else 1.0 for p in used]
    total = math.fsum(weights)
    columns = list(
        zip(*(p.update if p.payload is None else np.frombuffer(p.payload, "<f4") for p in used), strict=True)
    )
    mean = tuple(math.fsum(w * x for w, x in zip(weights, c, strict=True)) / total for c in columns) or (0.0,) * rules.m
    m2 = tuple(
        math.fsum(w * (x - mid) ** 2 for w, x in zip(weights, c, strict=True))
        for c, mid in zip(columns, mean, strict=False)
    )
    counts = Counter(fates)
    counts["duplicate"] = len(sent) - len(once)
    arms = {}
    for arm in rules.arms:
        mine = [p for p in once if p.arm == arm and fate(p, rules) not in ("wrong_version", "bad_loss")]
        chose = [p for p in mine if p.rank >= 0]
        loss = math.fsum(p.loss for p in chose) / len(chose) if chose else None
        rank = math.fsum(p.rank for p in chose) / len(chose) if chose else None
        arms[arm] = ArmSummary(pings=len(mine), examples=len(chose), loss=loss, rank_selected=rank)
    updates = Aggregate(pings=len(used), clients=len(per_client), weight=total, mean=mean, m2=m2 or (0.0,) * rules.m)
    return RoundAggregate(
        counts={reason: counts[reason] for reason in REASONS if reason not in RARE}, arms=arms, updates=updates
    )


def assert_close(found: RoundAggregate, expected: RoundAggregate, scale: float) -> None:
    """Check that all counts are equal, and all means within 1e-12 of the averaged numbers' size."""
    assert found.counts == expected.counts
    assert (found.updates.pings, found.updates.clients) == (expected.updates.pings, expected.updates.clients)
    np.testing.assert_allclose(found.updates.weight, expected.updates.weight, rtol=1e-12)
    np.testing.assert_allclose(found.updates.mean, expected.updates.mean, rtol=1e-12, atol=1e-12 * scale)
    spread = scale * scale * max(1.0, expected.updates.weight)
    np.testing.assert_allclose(found.updates.m2, expected.updates.m2, rtol=1e-12, atol=1e-12 * spread)
    for arm, summary in expected.arms.items():
        assert (found.arms[arm].pings, found.arms[arm].examples) == (summary.pings, summary.examples)
        if summary.examples:
            np.testing.assert_allclose(found.arms[arm].loss, summary.loss, rtol=1e-12, atol=1e-300)
            np.testing.assert_allclose(found.arms[arm].rank_selected, summary.rank_selected, rtol=1e-12, atol=1e-300)


def aggregate(paths: Sequence[Path], rules: Rules = RULES, engine: Engine | None = None) -> RoundAggregate:
    return combined((engine or NumpyEngine()).partials(work_of(paths, rules)), rules)


def landed(folder: Path, sent: Sequence[Ping], cuts: Sequence[int] = ()) -> list[Path]:
    """Land pings as one file, or cut into several files."""
    edges = [0, *sorted(cuts), len(sent)]
    parts = [sent[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]
    return sorted(write_landed(folder, table_of(part), i) for i, part in enumerate(parts) if part)


@pytest.fixture(params=[False, True], ids=["one row group", "sixteen shards"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Land small files in ingest's layout for small files, or for large ones."""
    if request.param:
        monkeypatch.setattr(fedping.protocol.landing, "SINGLE_GROUP_ROWS", 1)


laws = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=few_or_all(20, 100)
)


@pytest.mark.thorough
@laws
@given(
    sent=with_retries(), weighting=st.sampled_from(["client", "ping"]), cuts=st.lists(st.integers(0, 40), max_size=3)
)
def test_equal_to_plain_python(layout: None, sent: list[Ping], weighting: str, cuts: list[int]) -> None:
    rules = dataclasses.replace(RULES, line=line_of(2, weighting=weighting))
    with tempfile.TemporaryDirectory() as folder:
        found = aggregate(landed(Path(folder), sent, [min(c, len(sent)) for c in cuts]), rules)
    assert_close(found, plain_aggregate(sent, rules), scale=1000)
    assert sum(found.counts.values()) == len(sent)


@pytest.mark.thorough
@laws
@given(sent=with_retries(), data=st.data())
def test_the_order_of_rows_and_files_and_their_number_do_not_matter(
    layout: None, sent: list[Ping], data: st.DataObject
) -> None:
    other = data.draw(st.permutations(sent))
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=4))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        assert_close(aggregate(landed(Path(two), other, cuts)), aggregate(landed(Path(one), sent)), scale=1000)


@pytest.mark.thorough
@laws
@given(sent=with_retries(), tasks=st.integers(1, SHARDS), rows=st.integers(16, 40))
def test_who_computes_which_shard_changes_no_bit(layout: None, sent: list[Ping], tasks: int, rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = landed(Path(folder), sent, [len(sent) // 2])
        whole = aggregate(paths)
        work = work_of(paths, RULES)
        parts = [p for shards in tasks_for(work, tasks)[::-1] for p in shard_partials(work.paths, shards, RULES)]
        assert combined(parts, RULES) == whole
        assert aggregate(paths, engine=NumpyEngine(threads=3)) == whole


@given(st.lists(st.lists(number, min_size=2, max_size=2), min_size=1, max_size=30), st.data())
def test_moments_merge_to_the_two_pass_moments(values: list[list[float]], data: st.DataObject) -> None:
    x = np.array(values, dtype=np.float32)
    w = np.array(data.draw(st.lists(st.floats(0.01, 10), min_size=len(x), max_size=len(x))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(x)), max_size=4)))
    found = no_moments(2)
    for a, b in zip([0, *cuts], [*cuts, len(x)], strict=True):
        found = merged(found, moments_of(x[a:b], w[a:b]))
    mean = (x.astype(float) * w[:, None]).sum(axis=0) / w.sum()
    np.testing.assert_allclose(found.weight, w.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(found.m2, (w[:, None] * (x - mean) ** 2).sum(axis=0), rtol=1e-9, atol=1e-6)


def test_the_recurrence_is_the_one_of_the_thesis() -> None:
    """For each update H, the new mean is the old one plus (H - mean) / (i + 1)."""
    rng = np.random.default_rng(3)
    found, mean = no_moments(1), np.zeros(1)
    for i, h in enumerate(rng.normal(size=(50, 1))):
        found = merged(found, moments_of(h[None], np.ones(1)))
        mean = mean + (h - mean) / (i + 1)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-14)


def test_it_keeps_its_precision_far_from_zero() -> None:
    """Subtracting sums of squares would lose a variance of 1 at a distance of a million."""
    x = np.float32(1e6) + np.random.default_rng(1).integers(-2, 3, (40_000, 1)).astype(np.float32)
    found = no_moments(1)
    for start in range(0, len(x), 1000):
        found = merged(found, moments_of(x[start : start + 1000], np.ones(1000)))
    np.testing.assert_allclose(found.m2 / found.weight, x.astype(float).var(axis=0), rtol=1e-10)


def test_a_clients_rejected_ping_does_not_weaken_its_others(tmp_path: Path, layout: None) -> None:
    """A payload is known as invalid only once it is read; the weights 1 / n must be adjusted then."""
    spoilt = np.array([np.inf, 1], "<f4").tobytes()
    sent = [Ping(1, 1, (4.0, 0.0)), Ping(2, 1, payload=spoilt), Ping(3, 1, payload=b"short"), Ping(4, 2, (0.0, 2.0))]
    found = aggregate(landed(tmp_path, sent))
    assert found.updates.mean == (2.0, 1.0)
    assert (found.counts["used"], found.counts["bad_update"], found.updates.clients) == (2, 2, 2)


def test_many_pings_of_one_client_are_one_vote(tmp_path: Path) -> None:
    loud = [Ping(i, 0, (8.0, 8.0)) for i in range(99)]
    paths = landed(tmp_path, [*loud, Ping(100, 1, (0.0, 0.0))])
    np.testing.assert_allclose(aggregate(paths).updates.mean, 4.0, rtol=1e-12)
    np.testing.assert_allclose(
        aggregate(paths, dataclasses.replace(RULES, line=line_of(2, weighting="ping"))).updates.mean, 7.92
    )


def test_of_pings_with_one_document_id_the_first_landed_counts(tmp_path: Path, layout: None) -> None:
    """A retry is normally the same ping; if not, the choice must not depend on an unstable sort."""
    others = [Ping(i, i, None) for i in range(100, 160)]
    first = [Ping(i, 7, (float(i), 0.0)) for i in range(30)]
    later = [Ping(i, 7, (-99.0, 9.0)) for i in range(30)]
    found = aggregate(landed(tmp_path, [*others, *first, *later, *later], cuts=[95]))
    assert found.counts["duplicate"] == 60
    np.testing.assert_allclose(found.updates.mean, (14.5, 0.0), rtol=1e-12)


def test_an_interaction_without_a_choice_dilutes_neither_update_nor_loss(tmp_path: Path) -> None:
    none = [Ping(i, i, (0.0, 0.0), rank=-1, loss=0.0) for i in range(10, 20)]
    found = aggregate(landed(tmp_path, [Ping(1, 1, (2.0, 4.0), loss=6.0, rank=1), *none]))
    assert found.updates.mean == (2.0, 4.0)
    assert (found.arms["treatment"].loss, found.arms["treatment"].rank_selected) == (6.0, 1.0)
    assert (found.arms["treatment"].pings, found.arms["treatment"].examples) == (11, 1)


@pytest.mark.parametrize(
    "words",
    [[(1, 2), (2, 1), (3, 0)], [(5, 1), (5, 2), (5, 3)], [(7, 7), (0, 0), (9, 9)]],
    ids=["equal but swapped", "one word equal", "both words the same"],
)
def test_ids_that_share_a_sorting_key_are_still_told_apart(words: list[tuple[int, int]]) -> None:
    ids = np.array(words * 2, dtype=np.uint64)
    order, starts = client_groups(ids)
    groups = [sorted(g.tolist()) for g in np.split(order, starts[1:])]
    assert sorted(groups) == [[0, 3], [1, 4], [2, 5]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_groups_are_those_of_a_dictionary(words: list[tuple[int, int]]) -> None:
    order, starts = client_groups(np.array(words, dtype=np.uint64).reshape(-1, 2))
    found = sorted(sorted(g.tolist()) for g in np.split(order, starts[1:]) if len(g))
    expected: dict[tuple[int, int], list[int]] = {}
    for i, word in enumerate(words):
        expected.setdefault(word, []).append(i)
    assert found == sorted(expected.values())


def test_a_file_whose_rows_are_in_the_wrong_shard_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trusting the footer would let a client vote in two shards, and accept its duplicates."""
    monkeypatch.setattr(fedping.protocol.landing, "SINGLE_GROUP_ROWS", 1)
    monkeypatch.setattr(fedping.protocol.landing, "shard_of", lambda ids, _: np.arange(len(ids)) % SHARDS)
    path = write_landed(tmp_path, table_of([Ping(i, i) for i in range(64)]), 0)
    with pytest.raises(UnreadableFile, match=path.name):
        aggregate([path])


@pytest.mark.parametrize("m", [1, 22, 3000])
def test_batches_of_any_size_agree_with_numpy(tmp_path: Path, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(pings=6000 if m < 100 else 600, clients=900, m=m, duplicates=0, unselected=0, control=0)
    paths = land_traffic(tmp_path, traffic, seed=m, rows_per_file=5000)
    rules = dataclasses.replace(RULES, line=line_of(m, weighting="ping"))
    found = aggregate(paths, rules)
    all_updates = np.concatenate([_updates(path, m) for path in paths])
    assert found.updates.pings == len(all_updates)
    np.testing.assert_allclose(found.updates.mean, all_updates.mean(axis=0), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found.updates.m2 / np.float64(len(all_updates)), all_updates.var(axis=0), rtol=1e-12)
    monkeypatch.setattr(fedping.server_jobs.round.shard, "BATCH_BYTES", 4096)
    np.testing.assert_allclose(aggregate(paths, rules).updates.mean, found.updates.mean, rtol=1e-12, atol=1e-13)


def _updates(path: Path, m: int) -> np.ndarray:
    import pyarrow.parquet as pq

    column = pq.read_table(path, columns=["update"]).column(0)
    return np.array([np.frombuffer(value.as_py(), "<f4", m) for value in column], dtype=np.float64)


@pytest.fixture
def engine(spark: "SparkSession") -> SparkEngine:
    return SparkEngine(lambda: nullcontext(spark))


HERE = ((900, 2), (6000, 5))
"""Rows in a file and number of tasks in the cases of `make test`; the other cases are long."""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("rows_per_file", "tasks"),
    [
        pytest.param(rows, tasks, id=f"{name}-{tasks}", marks=[] if (rows, tasks) in HERE else pytest.mark.long)
        for rows, name in ((900, "small files"), (6000, "files in shards"))
        for tasks in (2, 5, 1, 16)
    ],
)
def test_spark_and_numpy_agree_to_the_last_bit(
    tmp_path: Path, engine: SparkEngine, tasks: int, rows_per_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_traffic(tmp_path, Traffic(pings=12_000, clients=700, duplicates=0.1), seed=tasks, rows_per_file=rows_per_file)
    paths = landed_files(tmp_path)
    limits = Limits(votes="client", round_tails=0.025)
    rules = dataclasses.replace(RULES, line=line_of(22), sees=True, salt=KEY[:16], limits=limits)
    monkeypatch.setattr("fedping.server_jobs.round.spark_engine.tasks_for", lambda work, _: tasks_for(work, tasks))
    found, by_numpy = aggregate(paths, rules, engine), aggregate(paths, rules)
    assert found == by_numpy
    assert found.updates.influence is not None
    assert found.arms["treatment"].winsorised is not None
    np.testing.assert_array_equal(found.registers, by_numpy.registers)
    assert found.counts["duplicate"] > 0


@pytest.mark.spark
@pytest.mark.parametrize(
    ("rows", "votes"),
    [
        pytest.param(2000, {"weighting": "client"}, id="one row group-votes0"),
        pytest.param(8000, {"weighting": "examples", "most_votes": 5}, id="sixteen shards-votes1"),
        pytest.param(8000, {"weighting": "client"}, id="sixteen shards-votes0", marks=pytest.mark.long),
        pytest.param(
            2000, {"weighting": "examples", "most_votes": 5}, id="one row group-votes1", marks=pytest.mark.long
        ),
    ],
)
def test_spark_and_numpy_agree_on_model_updates(
    tmp_path: Path, engine: SparkEngine, votes: dict[str, object], rows: int
) -> None:
    rng = np.random.default_rng(rows)
    examples = rng.integers(0, 5, rows)
    people = rng.integers(0, 256, (rows // 3, 16), np.uint8)
    pings = ModelPings(
        document_ids=rng.integers(0, 256, (rows, 16), np.uint8),
        client_ids=people[rng.integers(0, len(people), rows)],
        arm="treatment",
        version=0,
        updates=rng.normal(size=(rows, 8)) * (examples > 0)[:, None],
        losses=rng.exponential(size=rows) * (examples > 0),
        examples=examples,
    )
    paths = [write_landed(tmp_path, landed_model_updates(pings, 0), n) for n in range(2)]  # the second of duplicates
    rules = dataclasses.replace(RULES, line=line_of(8, **votes), pings="model-update")
    found = aggregate(paths, rules, engine)
    assert found == aggregate(paths, rules)
    assert (found.counts["duplicate"], found.counts["used"]) == (rows, int((examples > 0).sum()))
    assert found.arms["treatment"].examples == examples.sum()


@pytest.mark.spark
def test_spark_tells_of_a_damaged_file_in_its_one_sentence(tmp_path: Path, engine: SparkEngine) -> None:
    (path,) = land_traffic(tmp_path, Traffic(pings=6000, clients=700), seed=1)
    work = work_of([path], dataclasses.replace(RULES, line=line_of(22)))
    data = bytearray(path.read_bytes())
    data[100:100_000] = bytes(99_900)
    path.write_bytes(data)
    with pytest.raises(FedpingError, match=rf"{path.name} is damaged.*move it out of the way by `mv ") as raised:
        list(engine.partials(work))
    assert "Traceback" not in str(raised.value)
    assert "java" not in str(raised.value)


@pytest.mark.thorough
@laws
@given(
    sent=with_retries(),
    most=st.integers(1, 6),
    a_task=st.integers(1, 40),
    batch=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 40), max_size=3),
)
def test_what_is_left_out_depends_on_neither_batches_nor_tasks(
    layout: None, sent: list[Ping], most: int, a_task: int, batch: int, cuts: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        paths = landed(Path(folder), sent, [min(c, len(sent)) for c in cuts])
        patch.setattr(fedping.server_jobs.round.shard, "MOST_ROWS", most)
        whole = aggregate(paths)
        patch.setattr(fedping.server_jobs.round.shard, "MOST_ROWS_A_TASK", a_task)
        patch.setattr(fedping.server_jobs.round.ping_file, "BATCH_ROWS", batch)
        assert aggregate(paths) == whole
        assert aggregate(paths, engine=NumpyEngine(threads=3)) == whole
    assert sum(whole.counts.values()) == len(sent)


@given(
    rows=st.lists(st.integers(0, 6), max_size=200),
    most=st.integers(1, 40),
    cut=st.integers(0, 200),
    key=st.binary(min_size=32, max_size=32),
    bits=st.sampled_from([0, 1, 64]),
)
def test_a_part_of_the_rows_is_the_same_however_it_is_arrived_at(
    rows: list[int], most: int, cut: int, key: bytes, bits: int
) -> None:
    """Tested with lots of so few bits that most are equal."""
    clients = np.array([(i * 977, i * 31 + 5) for i in rows], np.uint64).reshape(-1, 2)
    drawn = ping_filter._lots
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ping_filter, "_lots", lambda ids, key: drawn(ids, key) & np.uint64(2**bits - 1))
        level, kept = thinned(clients, most, key)
        first, before = thinned(clients[:cut], most, key)
        then = np.concatenate([clients[:cut][before], clients[cut:]])
        last, after = thinned(then, most, key, first)
    assert last == level
    np.testing.assert_array_equal(then[after], clients[kept])
    assert kept.sum() <= most


def test_the_loudest_lose_first() -> None:
    clients = np.repeat(np.arange(1, 51, dtype=np.uint64), 2)
    loud = np.zeros(5000, np.uint64)
    ids = np.stack([np.concatenate([loud, clients]), np.concatenate([loud, clients])], axis=1)
    _, kept = thinned(ids, 700, KEY)
    assert kept[5000:].all()
    assert kept[:5000].sum() == 512
    assert kept[:512].all()


def crafted(count: int, salt: int, seed: int) -> np.ndarray:
    """Return ids of shape (count, 2) that all drew lot 0 while lots were a public function of id and version."""

    def mixed(values: np.ndarray) -> np.ndarray:
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))

    first = np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)
    return np.stack([first, mixed(first + np.uint64((salt * 0x9E3779B97F4A7C15) % 2**64))], axis=1)


def test_nobody_can_craft_ids_that_are_heard_instead_of_others() -> None:
    """With as many crafted ids as honest ones, honest ids keep half of the places, within five standard deviations."""
    honest = np.random.default_rng(5).integers(0, 2**64, (2000, 2), np.uint64)
    ids = np.concatenate([crafted(2000, 7, seed=6), honest])
    heard = 0
    for n in range(20):
        key = key_of_lots(f"{n}", [])
        level, kept = thinned(ids, 1000, key)
        assert level in (ping_filter.ONE + 2, ping_filter.ONE + 3)
        places = int(kept.sum())
        assert abs(int(kept[2000:].sum()) - places / 2) <= 5 * math.sqrt(places) / 2
        heard += int(kept[2000:].any())
    assert heard == 20


@pytest.mark.parametrize("most", [1, 7, 40])
def test_there_is_an_end_whatever_the_ids(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers crafted ids, equal ids, and ids with the same lot: then the smallest ids win, in any order of rows."""
    _, kept = thinned(crafted(500, 7, seed=1), most, KEY)
    assert kept.sum() <= most
    _, kept = thinned(np.ones((500, 2), np.uint64), most, KEY)
    assert 0 < kept.sum() <= most
    monkeypatch.setattr(ping_filter, "_lots", lambda ids, key: np.zeros(len(ids), np.uint64))
    ids = np.random.default_rng(3).integers(0, 2**64, (500, 2), np.uint64)
    level, kept = thinned(ids, most, KEY)
    assert level == ping_filter.LAST
    smallest = sorted(map(tuple, ids.tolist()))[:most]
    assert sorted(map(tuple, ids[kept].tolist())) == smallest
    _, kept = thinned(ids[::-1], most, KEY)
    assert sorted(map(tuple, ids[::-1][kept].tolist())) == smallest


def test_the_key_of_lots_depends_on_what_nobody_who_sends_pings_knows() -> None:
    one, other = InputFile("a.parquet", 3, 0, "1"), InputFile("a.parquet", 3, 0, "2")
    named = InputFile("b.parquet", 3, 0, "1")
    keys = [key_of_lots("p", [one]), key_of_lots("q", [one]), key_of_lots("p", [other]), key_of_lots("p", [named])]
    assert len({*keys, key_of_lots("p", [one, other])}) == 5
    assert {len(key) for key in keys} == {32}
