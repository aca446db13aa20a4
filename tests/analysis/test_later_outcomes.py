"""Later outcomes in a verdict, compared with pandas: ripe clients, counted outcomes, ratios, pre-period, caps."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from msgspec.structs import replace

from fedping.analysis.study import StudyTally, count_study
from fedping.analysis.verdict import Asked, Plan, as_document, plan_of, reach_verdict
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landed_table import id_column, landed_table
from fedping.protocol.landing import outcome_folder, partition, write_landed
from fedping.protocol.outcomes import NumberOutcome
from fedping.protocol.study import Study
from tests.support.landed import random_ids
from tests.support.outcomes import AFTER, AT_CHOICE, SHOP, shop_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HOUR = 3_600_000
START = 1_790_000_000_000 // HOUR * HOUR
WITHIN = 48 * HOUR
CLIENTS = 400
NOW = START + 130 * HOUR
"""The present: pings received later haven't landed yet."""


def drawn(seed: int, effect: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows of both arms: lists of versions 0 to 2, and later outcomes with amounts at various times."""
    rng = np.random.default_rng(seed)
    lists, paid = [], []
    for arm, times in (("treatment", effect), ("control", 1.0)):
        ids = random_ids(rng, CLIENTS)
        for client in range(CLIENTS):
            habit = rng.gamma(2, 0.5)
            for version, begin in ((0, -200), (1, 0), (2, 50)):
                for _ in range(rng.poisson(1.2)):
                    at = START + int((begin + rng.uniform(0, 90)) * HOUR)
                    bought = int(rng.poisson(habit * (times if version else 1)))
                    lists.append((arm, ids[client], version, at, min(bought, 20)))
                    for _ in range(bought):
                        late = at + int(rng.gamma(2, 12) * HOUR)
                        paid.append((arm, ids[client], version, late, round(float(rng.lognormal(2, 1)), 2)))
    columns = ["arm", "client", "version", "at"]
    frames = pd.DataFrame(lists, columns=[*columns, "opened"]), pd.DataFrame(paid, columns=[*columns, "paid"])
    return frames[0][frames[0]["at"] < NOW], frames[1][frames[1]["at"] < NOW]


def land(folder: Path, study: Study, lists: pd.DataFrame, paid: pd.DataFrame) -> None:
    rng = np.random.default_rng(9)

    def columns(rows: pd.DataFrame) -> dict[str, Any]:
        return {
            "document_id": id_column(random_ids(rng, len(rows))),
            "client_id": id_column(np.stack(rows.client.to_list())),
            "received_at": pa.array(rows["at"].to_numpy()),
            "model_version": pa.array(rows.version.to_numpy(np.int32)),
            "study_variation": pa.array(rows.arm.tolist()).dictionary_encode(),
        }

    for version, rows in lists.groupby("version"):
        own = {
            "loss": pa.array(np.ones(len(rows))),
            "place": pa.array(np.full(len(rows), 2)),
            "candidates": pa.array(np.full(len(rows), 8)),
            "opened": pa.array(rows.opened.to_numpy(np.int32)),
        }
        table = landed_table(study.document, {**columns(rows), **own}, None)
        write_landed(partition(folder, SHOP, "main", int(version)), table, START, token=str(version))
    assert study.later_outcomes is not None
    own = {"age": pa.array(np.ones(len(paid), np.int32)), "paid": pa.array(np.minimum(paid.paid, 500).to_numpy())}
    table = landed_table(study.later_outcomes, {**columns(paid), **own}, None)
    for token in ("once", "again"):  # every outcome twice
        write_landed(outcome_folder(folder, SHOP, "2026-09-21"), table, START, token=token)


def study_of() -> Study:
    unlinked = NumberOutcome(name="paid", low=0.0, high=500.0, round=0.01, within="48h", better="more")
    return shop_study(*AT_CHOICE, unlinked, AFTER[1])


def question(**asked: Any) -> Plan:
    return plan_of(study_of(), Asked(**{"metrics": ("paid", "opened"), **asked}))


def count(spark: "SparkSession", folder: Path, plan: Plan) -> StudyTally:
    return count_study(spark, folder, study_of(), plan.metrics, plan.window, means=plan.means)


def by_hand(lists: pd.DataFrame, paid: pd.DataFrame, first: int) -> pd.DataFrame:
    """Return arm, opened, lists, whether ripe, and paid for each client of the window from version ``first`` on."""
    named = [frame.assign(client=frame.client.map(bytes)) for frame in (lists, paid)]
    lists, paid = named[0][named[0].version >= first], named[1]
    clients = lists.groupby("client").agg(
        arm=("arm", "first"), first=("at", "min"), opened=("opened", "sum"), lists=("at", "size")
    )
    horizon = max(lists["at"].max(), paid["at"].max()) // HOUR * HOUR
    clients["ripe"] = clients["first"] + WITHIN <= horizon
    rows = paid[paid.version >= first].merge(clients[["first"]], left_on="client", right_index=True)
    rows = rows[(rows["at"] >= rows["first"] // HOUR * HOUR) & (rows["at"] < rows["first"] + WITHIN)]
    clients["paid"] = np.minimum(rows.paid, 500).groupby(rows.client).sum()
    return clients.fillna({"paid": 0.0})


def adjusted_by_hand(data: tuple[pd.DataFrame, pd.DataFrame], clients: pd.DataFrame, cap: float) -> float:
    """Return the difference of ripe clients' payments, by least squares on arm and payments before version 1."""
    lists, paid = (frame.assign(client=frame.client.map(bytes)) for frame in data)
    rows = paid[paid.version == 0].merge(clients[["first"]], left_on="client", right_index=True)
    rows = rows[rows["at"] < rows["first"] // HOUR * HOUR]
    x = np.minimum(np.minimum(rows.paid, 500).groupby(rows.client).sum(), cap)
    known = set(lists.client[lists.version == 0])
    ripe = clients[clients.ripe].assign(x=x)
    ripe.loc[ripe.index.map(known.__contains__).to_numpy(bool) & ripe.x.isna(), "x"] = 0.0
    columns = [np.ones(len(ripe)), ripe.arm == "treatment", ripe.x.fillna(ripe.x.mean())]
    design = np.stack([np.asarray(each, float) for each in columns])
    return float(np.linalg.lstsq(design.T, np.minimum(ripe.paid, cap), rcond=None)[0][1])


@pytest.fixture(scope="module")
def data() -> tuple[pd.DataFrame, pd.DataFrame]:
    return drawn(1, 1.5)


@pytest.fixture(scope="module")
def landing(data: tuple[pd.DataFrame, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("later")
    land(folder, study_of(), *data)
    return folder


def test_every_ripe_client_counts_once_with_what_came_in_time(
    spark: "SparkSession", landing: Path, data: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    lists, paid = data
    plan = question(ratios=("opened/choices", "paid/paid"), from_iteration=1)
    tally = count(spark, landing, plan)
    clients = by_hand(lists, paid, 1)
    for arm, counted in tally.arms.items():
        mine = clients[clients.arm == arm]
        ripe = mine[mine.ripe]
        values = counted.metrics["paid"].clients
        assert 100 < values.n == len(ripe) < len(mine)
        assert values.mean == pytest.approx(ripe.paid.mean(), rel=1e-5)
        assert (values.values[0], counted.metrics["paid"].pings.n) == (0.0, 0)
        assert tally.later["paid"].clients[arm] == (len(ripe), len(mine))
        totals = counted.ratios["opened/choices"]
        assert totals.sums[:2].tolist() == [mine.opened.sum(), mine.lists.sum()]
        assert totals.products[0, 1] == (mine.opened * mine.lists).sum()
        assert not totals.has_before
    counts = tally.later["paid"]
    parts = (counts.counted, counts.late, counts.before, counts.unlinked, counts.unripe)
    assert sum(parts) == len(paid)
    assert min(parts) > 0
    verdict = reach_verdict(study_of(), plan, tally)
    document = as_document(verdict)
    [paid_one] = [one for one in document["comparisons"] if one["metric"] == "paid"]
    treated, control = (clients[clients.ripe & (clients.arm == arm)].paid for arm in ("treatment", "control"))
    assert paid_one["means"]["lift"]["value"] == pytest.approx(treated.mean() / control.mean() - 1, rel=1e-4)
    assert paid_one["means"]["lift"]["low"] > 0
    assert paid_one["means"]["shown"] == "more"
    assert paid_one["means"]["fragility_by_the_largest"] > 0
    assert paid_one["per_ping"] is None
    [opened, same] = document["ratios"]
    assert opened["means"]["lift"]["low"] > 0
    assert (same["means"]["means"], same["means"]["no_interval"]) == ([1.0, 1.0], "few_others")
    assert any(
        "belong to clients without landed pings in the window, or with pings of several arms" in note
        for note in document["means"]["notes"]
    )


@pytest.mark.long
def test_the_time_before_narrows_the_interval_and_a_cap_is_one_for_both_arms(
    spark: "SparkSession", landing: Path, data: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    plan = question(adjust=True, cap=0.95, ratios=("opened/choices",))
    assert plan.window.first == 1
    tally = count(spark, landing, plan)
    clients = by_hand(*data, 1)
    verdict = reach_verdict(study_of(), plan, tally)
    paid, opened = (one.effect for one in verdict.comparisons)
    assert paid is not None
    assert opened is not None
    assert paid.cap is not None
    ripe = clients[clients.ripe].paid.sort_values().to_numpy()
    assert paid.cap.value == pytest.approx(ripe[int(np.ceil(0.95 * len(ripe))) - 1], rel=1e-5)
    assert sum(paid.cap.moved) == pytest.approx(0.05 * len(ripe), abs=2)
    ratio = verdict.ratios[0].effect
    for effect in (paid, opened, ratio):
        assert effect.adjustment is not None
        assert 0 < effect.adjustment.reduction < 0.9
    assert paid.means[0] - paid.means[1] == pytest.approx(adjusted_by_hand(data, clients, paid.cap.value), rel=1e-4)
    before = pd.DataFrame(data[0][data[0].version == 0]).assign(client=lambda rows: rows.client.map(bytes))
    known = set(before.client) & set(clients.index)
    assert sum(opened.adjustment.before) == len(known)
    assert sum(ratio.adjustment.before) == before.client.map(known.__contains__).sum()


@pytest.mark.long
def test_what_a_client_does_without_a_version_after_its_treatment_is_no_time_before(
    spark: "SparkSession", landing: Path, data: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path
) -> None:
    lists, paid = data
    again = lists[(lists.version == 2) & (lists.arm == "treatment")].assign(version=0, opened=20)
    land(tmp_path, study_of(), pd.concat([lists, again.assign(at=again["at"] + 1)]), paid)
    plan = question(metrics=("opened",), adjust=True)
    for arm, counted in count(spark, tmp_path, plan).arms.items():
        expected = count(spark, landing, plan).arms[arm].metrics["opened"].totals
        assert expected is not None
        assert counted.metrics["opened"].totals is not None
        assert counted.metrics["opened"].totals.sums == pytest.approx(expected.sums)


@pytest.mark.long
def test_an_outcome_that_nobody_is_ripe_for_is_said_not_to_be_compared(spark: "SparkSession", landing: Path) -> None:
    plan = question(metrics=("paid", "returned"), since=START)
    verdict = reach_verdict(study_of(), plan, count(spark, landing, plan))
    assert [one.name for one in verdict.unripe] == ["returned"]
    assert "returned" not in {one.metric.name for one in verdict.comparisons}
    assert "no client whose first ping is 336 hours ago" in " ".join(as_document(verdict)["means"]["notes"])
    alone = question(metrics=("returned",), since=START)
    with pytest.raises(FedpingError, match="no later outcome of study 'shop' can be compared yet"):
        reach_verdict(study_of(), alone, count(spark, landing, alone))


def test_a_cap_that_would_be_0_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    study = study_of()
    lists, paid = drawn(3, 1.0)
    lists["opened"] = (np.arange(len(lists)) % 20 == 0).astype(int)
    land(tmp_path, study, lists, paid)
    with pytest.raises(InvalidSettings, match=r"--cap 0.8 would cap 'opened' at 0, as only .* give a share above 0.8"):
        count(spark, tmp_path, question(metrics=("opened",), cap=0.8))
    assert count(spark, tmp_path, question(metrics=("opened",), cap=0.99)).caps["opened"] > 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"adjust": True, "from_iteration": 0}, "--adjust takes versions before 1"),
        ({"cap": 0.2}, "from 0.5 to below 1, not 0.2"),
        ({"ratios": ("paid",)}, "is not a ratio"),
        ({"ratios": ("paid/choices",)}, "a client's first 48 hours by a count over the whole window"),
        ({"ratios": ("paid/nothing",)}, "unknown metric 'nothing'"),
        ({"ratios": ("opened/choices",) * 2}, "named twice"),
        ({"ratios": ("opened/choices",), "interim": True}, "--ratios, --adjust and --cap"),
    ],
)
def test_questions_that_have_no_answer_are_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        question(**asked)


def test_an_outcome_with_a_direction_can_be_a_guardrail() -> None:
    assert question(guardrails=("paid",)).guardrails == {"paid"}
    with pytest.raises(InvalidSettings, match="'opened' cannot be a guardrail"):
        question(guardrails=("opened",))
    with pytest.raises(InvalidSettings, match="so no direction is better"):
        replace(AT_CHOICE[3], better="more")
