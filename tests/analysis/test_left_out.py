"""Ids outside all arms can't forge a verdict, which reports the pings that were left out."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from fedping.analysis.study import count, count_study
from fedping.analysis.study.metrics import METRICS
from fedping.analysis.verdict import Asked, Verdict, as_document, default_metrics, plan_of, reach_verdict
from fedping.analysis.verdict.words import left_out_sentence
from fedping.protocol.arrow import landed_schema
from fedping.protocol.enrolment import hash_assignment
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.limits import Limits
from fedping.protocol.metrics import Segment
from fedping.protocol.study import Arm, Piece, Study
from tests.support.landed import ids_column, landed_table, random_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BELIEVED = Study(name="forged", arms=(Arm(name="treatment", share=0.45), Arm(name="control", share=0.45)))
STUDY = replace(BELIEVED, enrolment="hash")
HONEST, FORGED = 400, 40


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Land 400 clients without any effect, and 40 pings of `control` with many characters from ids outside all arms."""
    folder = tmp_path_factory.mktemp("forged") / "landing"
    rng, dealt = np.random.default_rng(1), hash_assignment(STUDY)
    assert dealt is not None
    ids = random_ids(rng, 2000)
    places = dealt.places(ids)
    enrolled, strangers = ids[places >= 0][:HONEST], ids[places < 0][:FORGED]
    names = [STUDY.arms[i].name for i in places[places >= 0][:HONEST]] + ["control"] * FORGED
    typed = np.concatenate([rng.integers(1, 12, HONEST), np.full(FORGED, 60)])
    columns = {
        "client_id": ids_column(np.concatenate([enrolled, strangers])),
        "study_variation": pa.array(names).dictionary_encode(),
        "num_chars_typed": pa.array(typed.astype(np.int32)),
    }
    table = landed_table(HONEST + FORGED, 2)
    for name, column in columns.items():
        field = landed_schema().field(name)
        table = table.set_column(table.schema.get_field_index(name), field, column.cast(field.type))
    write_landed(partition(folder, STUDY.name, None, -1), table, 1_700_000_000_000)
    return folder


def verdict_of(spark: "SparkSession", landing: Path, study: Study) -> Verdict:
    plan = plan_of(study, Asked(metrics=default_metrics(study)[:1]))
    return reach_verdict(study, plan, count_study(spark, landing, study, plan.metrics, parts=True))


@pytest.mark.long
def test_forty_pings_of_ids_that_cannot_be_enrolled_do_not_make_a_verdict(spark: "SparkSession", landing: Path) -> None:
    believed = verdict_of(spark, landing, BELIEVED)
    assert not believed.ratio.mismatch
    assert "users of treatment typed fewer characters than control" in believed.headline
    assert left_out_sentence(believed.tally) is None
    verdict = verdict_of(spark, landing, STUDY)
    assert verdict.headline.startswith("Inconclusive")
    assert (sum(arm.clients for arm in verdict.tally.arms.values()), verdict.tally.mixed) == (HONEST, 0)
    said = "40 of 440 landed pings were left out: 40 named an arm that their client's id does not belong to."
    assert as_document(verdict)["left_out"] == {"sentence": said, "pings": {"not_enrolled": 40}}


def test_a_file_that_fails_while_what_was_left_out_is_counted_is_named(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached data may be evicted from memory, and are then read again."""
    file = write_landed(partition(tmp_path, STUDY.name, None, -1), landed_table(500, 3), 1)
    left_out = count._left_out

    def read_again(every: "DataFrame", study: Study) -> dict[str, int]:
        spark.catalog.clearCache()
        file.write_bytes(file.read_bytes()[:2000])
        return left_out(every, study)

    monkeypatch.setattr(count, "_left_out", read_again)
    with pytest.raises(FedpingError, match=rf"{file.name} is not a whole Parquet file"):
        count_study(spark, tmp_path, STUDY, ())


def test_counting_leaves_the_settings_of_the_session_as_they_are(spark: "SparkSession", landing: Path) -> None:
    setting = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    unset = spark.conf.get(setting, None)
    count_study(spark, landing, STUDY, ())
    assert spark.conf.get(setting, None) == unset
    spark.conf.set(setting, "7")
    try:
        count_study(spark, landing, STUDY, ())
        assert spark.conf.get(setting) == "7"
    finally:
        spark.conf.unset(setting)


def test_a_stranger_who_borrows_an_id_does_not_take_its_owner_out(
    spark: "SparkSession", tmp_path: Path, landing: Path
) -> None:
    """A client that names two arms is in neither; with hash assignment, only the ping of the wrong arm is dropped."""
    dealt = hash_assignment(STUDY)
    assert dealt is not None
    owner = next(each for i in range(99) if dealt.arm_of(each := uuid.UUID(int=i << 76 | 1 << 62)) == "treatment")
    table = landed_table(
        100,
        5,
        arms=("treatment", "control"),
        client_bytes=lambda rng, n: np.frombuffer(owner.bytes * n, np.uint8).reshape(n, 16),
    )
    write_landed(partition(tmp_path, STUDY.name, None, -1), table, 1)
    tally = count_study(spark, tmp_path, STUDY, ())
    assert (tally.arms["treatment"].clients, tally.arms["control"].clients, tally.mixed) == (1, 0, 0)
    assert tally.arms["treatment"].pings + tally.left_out["not_enrolled"] == 100


def test_arms_whose_shares_have_changed_are_counted_where_they_lie(spark: "SparkSession", tmp_path: Path) -> None:
    ends = (("treatment", 0.2), ("control", 0.65), (None, 0.7), ("treatment", 0.95))
    study = replace(STUDY, pieces=tuple(Piece(arm=arm, end=end) for arm, end in ends))
    dealt = hash_assignment(study)
    assert dealt is not None
    ids = random_ids(np.random.default_rng(8), 500)
    places = dealt.places(ids)
    assert set(places.tolist()) == {-1, 0, 1}
    names = np.array([*(arm.name for arm in study.arms), "treatment"])[places]
    table = landed_table(500, 9, client_bytes=lambda rng, n: ids)
    at = table.schema.get_field_index("study_variation")
    table = table.set_column(at, table.schema.field(at), pa.array(names).dictionary_encode())
    write_landed(partition(tmp_path, study.name, None, -1), table, 1)
    tally = count_study(spark, tmp_path, study, ())
    counted = [tally.arms[arm.name].clients for arm in study.arms]
    assert counted == [int((places == place).sum()) for place in (0, 1)]
    assert tally.left_out["not_enrolled"] == (places < 0).sum()


def test_a_client_that_claims_the_most_makes_no_effect_in_a_part_either(spark: "SparkSession", landing: Path) -> None:
    """Effects over time and by segment are winsorised like the whole study."""
    claimed = 10_000_000
    liar = next(each for i in range(99) if (each := uuid.UUID(int=i << 76 | 1 << 62)) and _arm_of(each) == "control")
    one = landed_table(1, 7, client_bytes=lambda rng, n: np.frombuffer(liar.bytes * n, np.uint8).reshape(n, 16))
    for name, value in {"study_variation": "control", "num_chars_typed": claimed, "rank_selected": 0}.items():
        field = landed_schema().field(name)
        one = one.set_column(one.schema.get_field_index(name), field, pa.array([value]).cast(field.type))
    file = write_landed(partition(landing, STUDY.name, None, -1), one, 1_700_000_000_001)
    study = replace(STUDY, segments=(Segment(name="rank", column="rank_selected", cuts=(1,)),))
    try:
        greatest = {}
        for tails in (0.0, 0.005):
            asked = replace(study, limits=Limits(tails=tails))
            plan = plan_of(asked, Asked(metrics=default_metrics(asked)[:1]))
            found = count_study(spark, landing, asked, plan.metrics, parts=True).parts
            greatest[tails] = {
                segment: max(
                    moments.mean
                    for part in found
                    if part.segment == segment
                    for moments in part.arms["control"].values()
                )
                for segment in (None, "rank")
            }
    finally:
        file.unlink()
    assert all(mean > 1000 for mean in greatest[0.0].values()), "without tails a claim goes as far as it does"
    assert all(mean < 12 for mean in greatest[0.005].values())


def test_a_loss_that_is_clipped_counts_as_the_limit_and_is_left_in(spark: "SparkSession", landing: Path) -> None:
    [metric] = [each for each in METRICS if each.name == "loss"]
    plain = count_study(spark, landing, BELIEVED, (metric,))
    limits = Limits(loss=(0.0, 1e15), clip_loss=(1.0, 20.0))
    clipped = count_study(spark, landing, replace(BELIEVED, limits=limits), (metric,))
    assert clipped.left_out == plain.left_out
    for arm in ("treatment", "control"):
        sent, counted = plain.arms[arm].metrics["loss"].pings, clipped.arms[arm].metrics["loss"].pings
        assert sent.values[-1] > 60
        assert (counted.n, counted.values[0], counted.values[-1]) == (sent.n, 1.0, 20.0)
        assert counted.mean == pytest.approx(np.average(np.clip(sent.values, 1, 20), weights=sent.counts), rel=1e-4)


def _arm_of(client: uuid.UUID) -> str | None:
    dealt = hash_assignment(STUDY)
    return None if dealt is None else dealt.arm_of(client)
