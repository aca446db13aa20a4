"""A study of lists is analysed by the place of the choice and by its outcomes at the choice."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from fedping.analysis.study import count_study, metrics_of
from fedping.analysis.verdict import Asked, as_document, default_metrics, plan_of, reach_verdict
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landed_table import id_column, landed_table
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.metrics import Segment, StudyMetric
from fedping.protocol.study import Study
from tests.support.landed import random_ids
from tests.support.outcomes import SHOP, shop_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

AT = 1_790_000_000_000


def study_of() -> Study:
    on_phones = StudyMetric(name="on_phones", column="device", equals="phone", better="more")
    return replace(
        shop_study(), metrics=(on_phones,), segments=(Segment(name="by", column="device", values=("phone",)),)
    )


def land(landing: Path, study: Study, arm: str, clients: int, baskets: float, seed: int) -> None:
    """Land a list for each client; half of the clients omit their outcomes, and one file lacks the columns."""
    rng = np.random.default_rng(seed)
    for said in (True, False):
        k = clients // 2
        own = {
            "basket": pa.array(rng.random(k) < 2 * baskets),
            "seconds": pa.array(rng.integers(0, 100, k) * 0.5),
            "device": pa.array(np.where(rng.random(k) < 0.5, "phone", "desktop").tolist()).dictionary_encode(),
        }
        columns = {
            "document_id": id_column(random_ids(rng, k)),
            "client_id": id_column(random_ids(rng, k)),
            "received_at": pa.array(np.full(k, AT)),
            "model_version": pa.array(np.zeros(k, np.int32)),
            "study_variation": pa.array([arm] * k).dictionary_encode(),
            "loss": pa.array(rng.gamma(2.0, 1.0, k)),
            "place": pa.array(rng.integers(1, 9, k)),
            "candidates": pa.array(np.full(k, 8)),
            **(own if said else {}),
        }
        table = landed_table(study.document, columns, None)
        if not said:
            table = table.select([name for name in table.schema.names if name not in ("basket", "seconds", "opened")])
        write_landed(partition(landing, SHOP, "main", 0), table, AT + seed, token=f"{seed}{said}")


def test_arms_are_compared_by_outcomes_and_one_that_is_left_out_is_0(spark: "SparkSession", tmp_path: Path) -> None:
    study = study_of()
    land(tmp_path, study, "treatment", 2000, 0.3, 1)
    land(tmp_path, study, "control", 2000, 0.1, 2)
    devices = ["device=phone", "device=desktop", "device=2026-11-26"]
    assert [metric.name for metric in metrics_of(study)] == ["place", "loss", *default_metrics(study)[1:], *devices]
    assert default_metrics(study) == ("place", "on_phones", "basket", "opened", "seconds", "paid", "returned")
    plan = plan_of(study, Asked(metrics=default_metrics(study)))
    tally = count_study(spark, tmp_path, study, plan.metrics, parts=True)
    measured = tally.arms["treatment"].metrics
    assert tally.arms["treatment"].selections == 2000
    assert measured["basket"].pings.mean == pytest.approx(0.3, abs=0.04)
    assert measured["on_phones"].pings.mean == pytest.approx(0.25, abs=0.04)
    assert measured["opened"].pings.mean == 0.0
    verdict = as_document(reach_verdict(study, plan, tally))
    assert verdict["pings"] == "list-update"
    [basket] = [one for one in verdict["comparisons"] if one["metric"] == "basket"]
    assert basket["per_client"]["p"] < 1e-6


def test_metrics_and_segments_are_made_of_declared_columns() -> None:
    with pytest.raises(InvalidSettings, match="'paid', which list-update pings do not have"):
        replace(shop_study(), metrics=(StudyMetric(name="paid"),))
    with pytest.raises(InvalidSettings, match="computed from a text"):
        replace(shop_study(), metrics=(StudyMetric(name="device"),))
