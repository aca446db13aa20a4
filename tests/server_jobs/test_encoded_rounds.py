"""Rounds over encoded updates: the same bits on every engine, sparse updates, and left-out pings."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedping.protocol.landing
from fedping.model_store.store import open_store
from fedping.protocol.draws import bits
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import SHARDS, partition, write_landed
from fedping.protocol.limits import UpdateLimits
from fedping.protocol.link_ends import Sparse
from fedping.protocol.links import Float32, Levels, Mask, Rotation, Signs, Steps, Upload, traits_of_links
from fedping.protocol.pipeline import ClipByNorm, GradientDescent, MeanOfSigns, Pipeline, Staleness
from fedping.protocol.spec import Block, Step
from fedping.protocol.study import Study
from fedping.protocol.update import DENSE
from fedping.protocol.upload import receiving, sending
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.accumulator import moments_of, moments_of_few
from fedping.server_jobs.round.aggregate import RoundAggregate, combined
from fedping.server_jobs.round.engine import Engine, NumpyEngine
from fedping.server_jobs.round.plan import rules_for, tasks_for
from fedping.server_jobs.round.shard import shard_partials
from fedping.server_jobs.round.spark_engine import PIECE_BYTES, SparkEngine
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import SparkSettings
from tests.server_jobs.test_round_kill import AFTER_THE_LINK, BEFORE_THE_LINK, KILLED, finish, start, undated
from tests.support.effort import in_full
from tests.support.encodings import ENCODED
from tests.support.landed import landed_table
from tests.support.rounds import FIRST_MS, WHEN, store_with, work_of
from tests.support.versions import small_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

M = 200
STEP = Step(start=1, min=1, max=1)
FEW: Upload = (Mask(keep=0.05),)
"""A mask that keeps so few weights that a round stores updates sparsely."""

WITHOUT_MATRICES = {name: upload for name, upload in ENCODED.items() if "low rank" not in traits_of_links(upload)}

UPLOADS: dict[str, Upload] = {
    **WITHOUT_MATRICES,
    "mask": FEW,
    "mask of many": (Mask(keep=0.4),),
    "rotation, then levels": (Rotation(seed=5), Levels(bits=4)),
    "mask, then steps": (Mask(keep=0.05), Steps(size=1.0)),
}
EVERY_UPLOAD = pytest.mark.parametrize("upload", UPLOADS.values(), ids=UPLOADS)


def study_with(upload: Upload, **pipeline: object) -> Study:
    made = small_study(m=M)
    settings = Pipeline(**{"min_clients": 1, "optimizer": GradientDescent(rate=0.1), **pipeline})  # type: ignore[arg-type]
    return msgspec.structs.replace(
        made, lines=(msgspec.structs.replace(made.lines[0], upload=upload, pipeline=settings),)
    )


def updates_of(k: int, seed: int = 0) -> NDArray[np.float32]:
    """Return updates of shape (k, M) with many zeros and a few large numbers."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((k, M)) ** 3 * (rng.random((k, M)) < 0.6)).astype(np.float32)


def payloads_of(study: Study, updates: NDArray[np.float32], seed: int = 0) -> tuple[str, pa.BinaryArray]:
    """Return the tag and the payloads of updates, as sent by clients of the study's line."""
    ends = sending(study.lines[0])
    keys = bits(np.array([seed], np.uint64), len(updates))[0]
    for transform in ends.transforms:
        updates = transform(updates, keys).astype(np.float32)
    return ends.encoding, dense_payloads(updates) if ends.encode is None else ends.encode(updates, keys)


def table_with(encoding: str, payloads: pa.BinaryArray, seed: int = 0, version: int = 0) -> pa.Table:
    """Return landed pings with these updates, each of another client."""
    table = landed_table(len(payloads), seed, m=1, model_version=version)
    tags = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(payloads), np.int32)), pa.array([encoding]))
    for name, column in (("update", payloads.cast(pa.binary())), ("update_encoding", tags)):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), column)
    return table


def land(landing: Path, table: pa.Table, iteration: int = 0, at: int = 0) -> Path:
    return write_landed(partition(landing, "study", "main", iteration), table, FIRST_MS + at)


def aggregate(paths: Sequence[Path], study: Study, engine: Engine | None = None, **more: object) -> RoundAggregate:
    rules = replace(rules_for(study, "main", 0, key=bytes(32)), **more)  # type: ignore[arg-type]
    return combined((engine or NumpyEngine()).partials(work_of(paths, rules)), rules)


def test_moments_of_few_weights_by_hand() -> None:
    sent = Sparse(
        np.array([[0, 3], [1, 3], [0, 4]]), np.array([[2, 6], [-2, 12], [6, 3]], np.float32), np.ones(3, np.bool_)
    )
    found = moments_of_few(sent, 5, np.array([1, 0.5, 0.5]))
    assert found.weight == 2
    assert found.mean.tolist() == [2.5, -0.5, 0, 6, 0.75]
    assert found.m2.tolist() == [9.5, 1.5, 0, 36, 3.375]


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(2, 12), st.integers(1, 12))
def test_moments_of_few_weights_are_those_of_all(seed: int, k: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    n = min(n, m)
    at = np.sort(rng.permuted(np.tile(np.arange(m), (k, 1)), axis=1)[:, :n], axis=1)
    few = Sparse(at, (rng.standard_normal((k, n)) * 10.0 ** rng.integers(-6, 6)).astype(np.float32), np.ones(k, bool))
    votes = rng.random(k) + 0.01
    found, expected = moments_of_few(few, m, votes), moments_of(few.dense(m), votes)
    assert found.weight == expected.weight
    np.testing.assert_array_equal(found.mean, expected.mean)
    scale = float(np.abs(few.values).max()) ** 2 * found.weight
    np.testing.assert_allclose(found.m2, expected.m2, rtol=1e-12, atol=1e-12 * scale)
    assert (found.m2 >= 0).all()
    np.testing.assert_array_equal(moments_of_few(few, m, votes, spread=False).mean, expected.mean)


@EVERY_UPLOAD
@pytest.mark.parametrize("group_rows", [4096, 1], ids=["one row group", "sixteen shards"])
def test_a_round_takes_what_the_encoding_decodes_to_whoever_computes_which_shard(
    upload: Upload, group_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean equals that of dense updates with the decoded values, to the last bit."""
    monkeypatch.setattr(fedping.protocol.landing, "SINGLE_GROUP_ROWS", group_rows)
    study = study_with(upload)
    tag, payloads = payloads_of(study, updates_of(150))
    path = land(tmp_path / "encoded", table_with(tag, payloads))
    decoded, ok = receiving(study.lines[0]).decode(payloads, M)
    assert ok.all()
    same = land(tmp_path / "dense", table_with(DENSE, dense_payloads(decoded)))

    found, expected = aggregate([path], study, sees=True), aggregate([same], study_with(()), sees=True)
    assert found.counts == expected.counts
    assert found.counts["used"] == 150
    assert found.updates.mean == expected.updates.mean
    assert np.abs(found.updates.mean).max() > 0
    np.testing.assert_allclose(found.updates.m2, expected.updates.m2, rtol=1e-12)
    seen, looked = found.updates.influence, expected.updates.influence
    assert seen is not None
    assert looked is not None
    assert (seen.half, seen.agreement) == (looked.half, looked.agreement)
    np.testing.assert_allclose(seen.norm_most, looked.norm_most, rtol=1e-12)

    rules = replace(rules_for(study, "main", 0, key=bytes(32)), sees=True)
    work = work_of([path], rules)
    for parts in (3, 16):
        partials = [one for some in tasks_for(work, parts) for one in shard_partials(work.paths, some, rules)]
        assert combined(partials, rules) == found


def test_a_mask_of_few_weights_is_not_written_out_and_one_of_many_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    dense = Sparse.dense

    def counting(few: Sparse, m: int) -> NDArray[np.float32]:
        written.append(len(few.ok))
        return dense(few, m)

    monkeypatch.setattr(Sparse, "dense", counting)
    for name, expected in (("mask", 0), ("mask, then steps", 0), ("mask of many", 40)):
        study = study_with(UPLOADS[name])
        path = land(tmp_path / name, table_with(*payloads_of(study, updates_of(40))))
        aggregate([path], study)
        assert sum(written) == expected, name
        written.clear()


@pytest.mark.parametrize("pipeline", [Pipeline(aggregate=MeanOfSigns()), Pipeline(clip=ClipByNorm(norm=2.0))])
def test_masks_go_through_other_pipelines_as_what_they_decode_to(pipeline: Pipeline, tmp_path: Path) -> None:
    study = study_with(FEW, aggregate=pipeline.aggregate, clip=pipeline.clip)
    tag, payloads = payloads_of(study, updates_of(60))
    path = land(tmp_path / "encoded", table_with(tag, payloads))
    decoded, _ = receiving(study.lines[0]).decode(payloads, M)
    same = land(tmp_path / "dense", table_with(DENSE, dense_payloads(decoded)))
    dense = study_with((), aggregate=pipeline.aggregate, clip=pipeline.clip)
    assert aggregate([path], study).updates.mean == aggregate([same], dense).updates.mean


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("piece_bytes", "names"),
    [
        (PIECE_BYTES, [*UPLOADS] if in_full() else ["mask, then steps"]),
        (2000, ["mask"]),
    ],
    ids=["at once", "in pieces"],
)
def test_spark_comes_to_the_same_bits(
    piece_bytes: int, names: list[str], spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tested with partials that arrive in pieces, like a large model's, in the order of the shards."""
    monkeypatch.setattr("fedping.server_jobs.round.spark_engine.tasks_for", lambda work, _: tasks_for(work, 3))
    monkeypatch.setattr("fedping.server_jobs.round.spark_engine.PIECE_BYTES", piece_bytes)
    engine = SparkEngine(lambda: nullcontext(spark))
    for name in names:
        study = study_with(UPLOADS[name])
        paths = [
            land(tmp_path / name, table_with(*payloads_of(study, updates_of(90, seed), seed), seed=seed), at=seed)
            for seed in range(2)
        ]
        found = aggregate(paths, study, engine, sees=True)
        assert found.counts["used"] == 180
        assert found == aggregate(paths, study, sees=True), name
    rules = rules_for(study, "main", 0, key=bytes(32))
    assert [partial.shard for partial in engine.partials(work_of(paths, rules))] == list(range(SHARDS))


@pytest.mark.spark
def test_spark_tells_of_a_damaged_file_in_its_one_sentence_where_partials_come_in_pieces(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session survives for the next round."""
    monkeypatch.setattr("fedping.server_jobs.round.spark_engine.PIECE_BYTES", 2000)
    opened: list[object] = []

    def open_session() -> AbstractContextManager["SparkSession"]:
        opened.append(None)
        return nullcontext(spark)

    engine = SparkEngine(open_session)
    study = study_with((Float32(),))
    path = land(tmp_path, table_with(*payloads_of(study, updates_of(90))))
    intact = path.read_bytes()
    path.write_bytes(intact[:1000] + bytes(30_000) + intact[31_000:])
    with pytest.raises(FedpingError, match=rf"{path.name} is damaged") as raised:
        aggregate([path], study, engine)
    assert "\n" not in str(raised.value)
    path.write_bytes(intact)
    assert aggregate([path], study, engine) == aggregate([path], study)
    assert len(opened) == 1


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.usefixtures("no_shared_session")
def test_a_round_of_many_weights_fits_into_the_smallest_heap_that_spark_takes(tmp_path: Path) -> None:
    """Sixteen partials of 600,000 weights have 230 MB, more than a JVM of 480 MB can hold and transfer at once."""
    m = 600_000
    made = study_with((Signs(),))
    spec = msgspec.structs.replace(made.lines[0].spec, weights=(), blocks=(Block(name="W", shape=(m,), step=STEP),))
    study = msgspec.structs.replace(made, lines=(msgspec.structs.replace(made.lines[0], spec=spec),))
    rng = np.random.default_rng(1)
    path = land(tmp_path, table_with(*payloads_of(study, rng.standard_normal((20, m)).astype(np.float32))))
    settings = SparkSettings(master="local[2]", conf={"spark.driver.memory": "480m"})
    with spark_session(settings) as session:
        found = aggregate([path], study, SparkEngine(lambda: nullcontext(session)), sees=True)
    assert found.counts["used"] == 20
    assert found == aggregate([path], study, sees=True)


@pytest.mark.parametrize("aggregate", [None, MeanOfSigns()], ids=["of the mean", "of each"])
def test_a_rotation_is_undone(aggregate: MeanOfSigns | None, tmp_path: Path) -> None:
    """A rotation is undone on the mean, or on each update if signs are counted; the version is the same as without."""
    settings = {} if aggregate is None else {"aggregate": aggregate}
    weights = []
    for name, upload in (("rotated", (Rotation(seed=5), Float32())), ("plain", ())):
        study = study_with(upload, **settings)
        store = store_with(tmp_path / name / "store", study)
        land(tmp_path / name, table_with(*payloads_of(study, updates_of(60))))
        run_round(
            store,
            tmp_path / name,
            "study",
            "main",
            NumpyEngine(),
            RoundOptions(clock=lambda: WHEN, code_version="test"),
        )
        weights.append(store.head("study", "main").weights)
        assert recompute(store, tmp_path / name, "study", "main", 1, NumpyEngine()).identical
    near = 1e-5 if aggregate is None else 0.1  # the sign of a zero that was rotated and back is random
    np.testing.assert_allclose(*weights, atol=near)


@EVERY_UPLOAD
def test_what_is_in_another_encoding_or_cannot_be_read_is_left_out_and_the_version_recomputes(
    upload: Upload, tmp_path: Path
) -> None:
    """The folder has pings from before and after an upgrade, and unreadable ones."""
    study = study_with(upload)
    store = store_with(tmp_path / "store", study)
    tag, payloads = payloads_of(study, updates_of(40))
    land(tmp_path, table_with(DENSE, dense_payloads(updates_of(15, 1)), seed=1), at=1)
    land(tmp_path, table_with("unheard-of", payloads[:9], seed=2), at=2)
    torn = pa.array([each.as_py()[:-1] for each in payloads[:7]], pa.binary())
    land(tmp_path, table_with(tag, pa.concat_arrays([torn, payloads.cast(pa.binary())]), seed=3), at=3)
    told = run_round(
        store, tmp_path, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )
    counts = store.head("study", "main").lineage.counts
    assert (counts["used"], counts["bad_update"]) == (40, 15 + 9 + 7)
    assert told.update_bytes == sum(len(each.as_py()) for each in payloads)
    again = recompute(store, tmp_path, "study", "main", 1, NumpyEngine())
    assert (again.identical, again.differences) == (True, ())


@pytest.mark.parametrize("upload", [FEW, (Steps(size=1.0),)], ids=["mask", "steps"])
def test_late_pings_of_an_encoding_count_once_and_recompute(upload: Upload, tmp_path: Path) -> None:
    study = study_with(upload, staleness=Staleness(most=2))
    store = store_with(tmp_path / "store", study)
    for version in range(3):
        sent = table_with(*payloads_of(study, updates_of(20, version), version), seed=version, version=version)
        land(tmp_path, sent, version, at=2 * version)
        if version:
            late = table_with(*payloads_of(study, updates_of(5, 50 + version)), seed=50 + version, version=version - 1)
            land(tmp_path, late, version - 1, at=2 * version + 1)
        run_round(
            store, tmp_path, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
        )
    assert store.head("study", "main").lineage.ages == (20, 5, 0)
    for version in (1, 2, 3):
        assert recompute(store, tmp_path, "study", "main", version, NumpyEngine()).identical


@pytest.mark.parametrize("upload", [FEW, (Float32(),)], ids=["mask", "float32"])
def test_limits_of_a_line_hold_for_what_updates_decode_to(upload: Upload, tmp_path: Path) -> None:
    study = study_with(upload)
    tag, payloads = payloads_of(study, updates_of(80))
    decoded, _ = receiving(study.lines[0]).decode(payloads, M)
    largest = np.sort(np.abs(decoded).max(axis=1))
    limits = UpdateLimits(weight=float(largest[29:31].mean()))
    study = msgspec.structs.replace(study, lines=(msgspec.structs.replace(study.lines[0], limits=limits),))
    found = aggregate([land(tmp_path, table_with(tag, payloads))], study)
    assert (found.counts["used"], found.counts["bad_update"]) == (30, 50)


def test_limits_of_a_line_hold_for_what_a_rotation_is_undone_to(tmp_path: Path) -> None:
    """Limits don't apply to rotated numbers: undoing a rotation can turn small numbers into one beyond the limit."""
    upload = (Rotation(seed=5), Float32())
    study = study_with(upload)
    limited = msgspec.structs.replace(study.lines[0], limits=UpdateLimits(weight=1.0))
    study = msgspec.structs.replace(study, lines=(limited,))
    honest = np.zeros((10, M), np.float32)
    honest[:, 5] = 0.9
    tag, rotated = payloads_of(study, honest)
    seen = np.frombuffer(rotated[0].as_py(), "<f4")
    hostile = dense_payloads(np.tile(np.sign(seen).astype(np.float32), (3, 1)))  # rotated back, 11 at weight 5
    found = aggregate([land(tmp_path, table_with(tag, pa.concat_arrays([rotated, hostile])))], study)
    assert (found.counts["used"], found.counts["bad_update"]) == (10, 3)


@pytest.mark.parametrize(
    "moment",
    [*(pytest.param(each, marks=pytest.mark.long) for each in (BEFORE_THE_LINK[2], AFTER_THE_LINK[0])), "link"],
)
def test_a_killed_round_over_encoded_updates_is_repeated_to_the_same_version(moment: str, tmp_path: Path) -> None:
    study = study_with(UPLOADS["mask, then steps"])
    land(tmp_path / "landing", table_with(*payloads_of(study, updates_of(60))))
    for name in ("store", "calm"):
        store_with(tmp_path / name, study)
    calm = store_with(tmp_path / "aside", study)
    run_round(
        calm,
        tmp_path / "landing",
        "study",
        "main",
        NumpyEngine(),
        RoundOptions(clock=lambda: WHEN, code_version="test"),
    )
    assert finish(start(moment, tmp_path))[0] == KILLED
    assert finish(start("never", tmp_path))[0] == 0
    assert finish(start("never", tmp_path, "calm"))[0] == 0
    killed, undisturbed = (open_store(tmp_path / name).version("study", "main", 1) for name in ("store", "calm"))
    assert undated(killed) == undated(undisturbed)
    assert killed.weights == calm.version("study", "main", 1).weights
