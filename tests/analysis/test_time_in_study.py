"""Effects by clients' own time in the study, and verdicts without their first days, agree with the rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from fedping.analysis.report.page import render_page
from fedping.analysis.study import METRICS, Window, count_study
from fedping.analysis.study.tally import HOUR_MS, IN_STUDY
from fedping.analysis.verdict import Plan, Verdict, as_document, reach_verdict
from fedping.analysis.verdict.words import SURVIVORS
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import partition, write_landed
from tests.support.landed import landed_table
from tests.support.versions import small_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS, WEEKS, WEEK_MS = 400, 6, 7 * 24 * HOUR_MS
START = 1_700_000_000_000
EFFECTS = (0.0, -0.5, -1.0, -1.0, -2.0, -2.0)
"""Change of typed characters by the treatment, by week in the study."""

PAIR = (("treatment", "control"),)


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Land a ping in each of six weeks for every client; clients start within four weeks; each version lasts a week.

    Values have a standard deviation of 1, so a difference of two arms of 200 clients has a standard error of 0.1.
    """
    folder, rng = tmp_path_factory.mktemp("landing"), np.random.default_rng(11)
    ids = rng.integers(0, 256, (CLIENTS, 16), dtype=np.uint8)
    begun = START + rng.integers(0, 4 * WEEK_MS, CLIENTS)
    treated = np.arange(CLIENTS) % 2 == 1
    for week in range(WEEKS):
        late = begun + week * WEEK_MS + (rng.integers(0, 5 * 24 * HOUR_MS, CLIENTS) + HOUR_MS if week else 0)
        typed = np.rint(1000 * (10 + rng.normal(0, 1, CLIENTS) + treated * EFFECTS[week])).astype(np.int32)
        calendar = (late - START) // WEEK_MS
        for version in np.unique(calendar):
            of = np.flatnonzero(calendar == version)
            columns: dict[str, Any] = {
                "received_at": pa.array(late[of]).cast(pa.timestamp("ms", tz="UTC")),
                "study_variation": pa.array(np.where(treated[of], "treatment", "control")).dictionary_encode(),
                "num_chars_typed": pa.array(typed[of]),
                "rank_selected": pa.array(np.zeros(len(of), np.int32)),
            }
            table = landed_table(len(of), int(100 * week + version), client_bytes=lambda _, n, of=of: ids[of])
            for name, values in columns.items():
                at = table.schema.get_field_index(name)
                table = table.set_column(at, table.schema.field(at), values.cast(table.schema.field(at).type))
            write_landed(partition(folder, "study", "main", int(version)), table, 1 + week)
    return folder


FOUND: dict[Window, Verdict] = {}


def judged(spark: "SparkSession", landing: Path, window: Window) -> Verdict:
    if window not in FOUND:
        FOUND[window] = _judged(spark, landing, window)
    return FOUND[window]


def _judged(spark: "SparkSession", landing: Path, window: Window) -> Verdict:
    plan = Plan(metrics=METRICS[:1], pairs=PAIR, window=window)
    return reach_verdict(
        small_study(), plan, count_study(spark, landing, small_study(), plan.metrics, window, parts=True)
    )


@pytest.mark.long
@pytest.mark.spark
def test_an_effect_that_grows_is_found_late_and_not_in_the_first_week(spark: "SparkSession", landing: Path) -> None:
    verdict = judged(spark, landing, Window())
    [found] = verdict.in_study
    assert [effect.number for effect in found.effects] == [0, 1, 2, 4]
    assert [effect.n for effect in found.effects] == [(200, 200)] * 4
    for effect, true in zip(found.effects, (0, -500, -1000, -2000), strict=True):
        assert effect.difference.value == pytest.approx(true, abs=300), "three standard errors"
    assert not found.effects[0].difference.excludes(0)
    assert found.effects[-1].difference.excludes(0)
    assert found.log10_p is None, "the same clients are in several weeks"

    said = as_document(verdict)
    assert [one["group"] for one in said["in_study"]["effects"][0]["groups"]] == [
        "week 1", "week 2", "weeks 3 and 4", "from week 5 on",
    ]  # fmt: skip
    assert said["segments"] == [], "no declared segment"
    page = render_page(verdict, [])
    assert "weeks 3 and 4" in page
    assert SURVIVORS.replace("'", "&#39;") in page


@pytest.mark.spark
def test_a_window_does_not_make_clients_younger(spark: "SparkSession", landing: Path) -> None:
    """No client is new in the study's last weeks; a window that begins there must not treat clients as new."""
    [found] = [part.number for part in judged(spark, landing, Window(first=8)).tally.parts if part.segment == IN_STUDY]
    assert found == 4


@pytest.mark.long
@pytest.mark.spark
def test_pings_of_the_first_days_are_left_out_of_every_arm(spark: "SparkSession", landing: Path) -> None:
    all_of, late = (judged(spark, landing, window) for window in (Window(), Window(settle=28)))
    assert [arm.pings for arm in all_of.tally.arms.values()] == [WEEKS * 200] * 2
    assert [arm.pings for arm in late.tally.arms.values()] == [2 * 200] * 2
    assert late.comparisons[0].clients.difference.value == pytest.approx(-2000, abs=300)
    assert {part.number for part in late.tally.parts if part.segment == IN_STUDY} == {4}
    assert late.in_study == (), "a single part is the whole"
    with pytest.raises(FedpingError, match=r"no pings in the window \(from day 101 of each client in the study on\)"):
        judged(spark, landing, Window(settle=100))


def test_days_beyond_any_study_are_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"--settle .* 3,650, not -1"):
        Window(settle=-1)
