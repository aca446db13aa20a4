"""Declared metrics and segments, and effects over time, agree with the landed rows."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.stats import chi2

from fedping.analysis.report.page import render_page
from fedping.analysis.statistics import Estimate
from fedping.analysis.study import count_study, metrics_of
from fedping.analysis.study.count import PARTS_OF_TIME
from fedping.analysis.study.metrics import MEASURED
from fedping.analysis.study.tally import HOUR_MS, ClientMoments, Part
from fedping.analysis.verdict import Plan, Verdict, all_pairs, as_document, default_metrics, plan_of, reach_verdict
from fedping.analysis.verdict.plan import Asked
from fedping.analysis.verdict.words import parts_sentence
from fedping.model_store.store import open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.metrics import BUILT_IN, MOST_GROUPS, Segment, StudyMetric
from fedping.protocol.study import Study, public_study
from tests.support.landed import landed_table
from tests.support.verdicts import made_tally
from tests.support.versions import small_study, version_0

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = msgspec.structs.replace(
    small_study(),
    metrics=(
        StudyMetric(name="keys", column="num_key_down_events", title="keys pressed", better="less"),
        StudyMetric(name="top", column="rank_selected", at_most=0, title="top suggestion chosen", better="more"),
        StudyMetric(name="bookmark", column="selected_style", equals="bookmark"),
    ),
    segments=(
        Segment(name="offered", column="num_suggestions_displayed", cuts=(3, 6)),
        Segment(name="version", column="study_addon_version", values=("2.0.0",)),
    ),
)
CLIENTS, PINGS, HOURS = 300, 3000, 40


def landed_rows(landing: Path) -> pd.DataFrame:
    """Land pings of two arms over forty hours, most clients in several of them; return the rows."""
    rng = np.random.default_rng(3)
    who = rng.integers(0, CLIENTS, PINGS)
    ids = rng.integers(0, 256, (CLIENTS, 16), dtype=np.uint8)
    table = landed_table(PINGS, 1, client_bytes=lambda _, n: ids[who])
    late = np.sort(rng.integers(0, HOURS * HOUR_MS, PINGS)) + 1_700_000_000_000
    shown = rng.integers(0, 9, PINGS)
    columns: Mapping[str, Any] = {
        "received_at": pa.array(late).cast(pa.timestamp("ms", tz="UTC")),
        "study_variation": pa.array(np.where(who % 2, "treatment", "control")).dictionary_encode(),
        "num_suggestions_displayed": pa.array(shown.astype(np.int32)),
        "num_key_down_events": pa.array((rng.poisson(4, PINGS) + 3 * (shown > 5) * (who % 2)).astype(np.int32)),
        "rank_selected": pa.array(rng.integers(-1, 3, PINGS).astype(np.int32)),
        "selected_style": pa.array(rng.choice(["history", "bookmark"], PINGS)).dictionary_encode(),
        "study_addon_version": pa.array(rng.choice(["1.0.0", "2.0.0", "3.0.0"], CLIENTS)[who]).dictionary_encode(),
    }
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), values)
    write_landed(partition(landing, "study", "main", 0), table, 1)
    frame: pd.DataFrame = table.select(["client_id", *columns]).to_pandas()
    return frame.assign(arm=np.where(who % 2, "treatment", "control"), hour=late // HOUR_MS)


@pytest.mark.long
@pytest.mark.spark
def test_declared_metrics_parts_of_time_and_segments_are_those_of_the_rows(
    spark: "SparkSession", tmp_path: Path
) -> None:
    rows = landed_rows(tmp_path / "landing")
    tally = count_study(spark, tmp_path / "landing", DECLARED, metrics_of(DECLARED), parts=True)
    chosen = rows[rows["rank_selected"] >= 0].assign(
        keys=rows["num_key_down_events"],
        top=(rows["rank_selected"] <= 0).astype(float),
        bookmark=(rows["selected_style"] == "bookmark").astype(float),
    )
    names = ["keys", "top", "bookmark"]
    means = chosen.groupby(["arm", "client_id"])[names].mean()
    for arm, metrics in tally.arms.items():
        for name in names:
            assert metrics.metrics[name].clients.mean == pytest.approx(means.loc[arm][name].mean(), rel=1e-3)

    assert tally.hours == 3
    part = chosen["hour"] // 3 * 3
    check(tally.parts, None, chosen.assign(part=part).groupby(["part", "arm", "client_id"])[names].mean(), names)
    assert len({one.number for one in tally.parts if one.segment is None}) <= PARTS_OF_TIME + 1

    first = rows.sort_values("received_at").groupby("client_id").first()  # its first ping, with or without a choice
    offered = np.searchsorted([3, 6], first["num_suggestions_displayed"], side="right")
    groups = {"offered": offered, "version": np.where(first["study_addon_version"] == "2.0.0", 0, 1)}
    for segment, group in groups.items():
        of = chosen["client_id"].map(dict(zip(first.index, group, strict=True)))
        check(tally.parts, segment, chosen.assign(part=of).groupby(["part", "arm", "client_id"])[names].mean(), names)


def check(parts: tuple[Part, ...], segment: str | None, means: pd.DataFrame, names: list[str]) -> None:
    """Compare the parts of a segment with the clients' means, by part and arm."""
    expected = means.groupby(["part", "arm"])
    found = {(part.number, arm): of for part in parts if part.segment == segment for arm, of in part.arms.items()}
    assert set(found) == set(expected.groups)
    for key, rows in expected:
        for name in names:
            of = found[key][name]
            assert of.n == len(rows)
            assert of.mean == pytest.approx(rows[name].mean())
            assert of.variance == pytest.approx(rows[name].var(), nan_ok=True)


def with_parts(study: Study = DECLARED, interaction: float = 0.0) -> Verdict:
    """Return a verdict with two hours and two groups of 200 clients each, which have different effects."""
    tally = made_tally({"treatment": 3.0, "control": 4.0})

    def part(segment: str | None, number: int, effect: float) -> Part:
        def of(mean: float) -> dict[str, ClientMoments]:
            return {"num_chars_typed": ClientMoments(200, mean, 4.0)}

        return Part(segment, number, {"treatment": of(4.0 + effect), "control": of(4.0)})

    parts = (
        part(None, 425_000, -1.0),
        part(None, 425_024, -0.5),
        part("offered", 0, -1.0),
        part("offered", 2, -1.0 + interaction),
    )
    plan = Plan(metrics=metrics_of(study)[:1], pairs=all_pairs(study))
    return reach_verdict(study, plan, replace(tally, parts=parts, hours=24))


def test_effects_in_parts_have_welchs_interval_and_percent() -> None:
    over_time, offered = with_parts().parts
    assert [one.difference.value for one in over_time.effects] == pytest.approx([-1.0, -0.5])
    first = over_time.effects[0]
    assert first.difference == Estimate(-1.0, pytest.approx(-1.3932, abs=1e-3), pytest.approx(-0.6068, abs=1e-3), 0.95)
    assert first.percent == pytest.approx(-25)
    assert over_time.log10_p is None, "the same clients are in several hours"
    assert offered.log10_p == pytest.approx(0.0)


def test_whether_groups_differ_is_told_by_cochrans_q_and_not_by_whose_interval_leaves_out_zero() -> None:
    same, other = with_parts(interaction=0.5), with_parts(interaction=1.5)
    [alike], [unlike] = ([one for one in verdict.parts if one.segment] for verdict in (same, other))
    assert "not shown that the effect differs between groups" in parts_sentence(alike, same.plan)
    assert parts_sentence(unlike, other.plan).startswith(
        "characters typed, treatment against control, by offered: the effect differs between groups (p = "
    )
    squared_error = 2 * 4.0 / 200
    assert unlike.log10_p == pytest.approx(np.log10(chi2.sf(1.5**2 / (2 * squared_error), 1)), rel=0.02)


def test_documents_and_reports_tell_when_and_for_whom() -> None:
    verdict = with_parts(interaction=1.5)
    said = json.loads(json.dumps(as_document(verdict), allow_nan=False))
    assert said["over_time"]["hours"] == 24
    assert said["over_time"]["effects"][0]["from_ms"] == [425_000 * HOUR_MS, 425_024 * HOUR_MS]
    assert [group["group"] for group in said["segments"][0]["groups"]] == ["below 3", "6 or more"]
    page = render_page(verdict, [])
    folded = page.index("<details")
    for shown in ("The effect on characters typed over time", "For whom?", "the effect differs between groups"):
        assert page.index(shown) < folded
    assert page.index("Pings over time") > folded


def test_a_study_is_asked_about_what_it_declares_and_clients_never_see_it() -> None:
    assert default_metrics(DECLARED) == ("num_chars_typed", "rank_selected", "keys", "top", "bookmark")
    plan = plan_of(DECLARED, Asked(metrics=("keys", "bookmark"), guardrails=("keys",)))
    assert [metric.title for metric in plan.metrics] == ["keys pressed", "bookmark"]
    with pytest.raises(InvalidSettings, match="'bookmark' cannot be a guardrail"):
        plan_of(DECLARED, Asked(metrics=("bookmark",), guardrails=("bookmark",)))
    public = msgspec.json.encode(public_study(DECLARED))
    assert b"keys pressed" not in public
    assert b"offered" not in public
    assert msgspec.structs.replace(DECLARED, metrics=(), segments=()).digest == small_study().digest


def test_a_declaring_study_is_read_back_from_its_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    store.create_study(DECLARED, (version_0(DECLARED),))
    assert store.study("study") == DECLARED


def test_names_that_need_no_declaration_are_those_of_the_analysis() -> None:
    built_in = {metric.name for measured in MEASURED.values() for metric in measured.metrics}
    assert set(BUILT_IN) == built_in


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"metrics": [{"name": "x", "column": "tea"}]}, "made of 'tea', which frecency-update pings do not have"),
        ({"metrics": [{"name": "x", "column": "frecency_scores"}]}, "made of 'frecency_scores', which"),
        ({"metrics": [{"name": "loss", "column": "loss"}]}, "has the name of a built-in one"),
        ({"metrics": [{"name": "x", "column": "selected_style"}]}, "is computed from a text, which has no mean"),
        ({"metrics": [{"name": "x", "column": "loss", "equals": "a"}]}, "Give 'equals' without quotes"),
        ({"metrics": [{"name": "x", "column": "loss", "equals": 1, "at_most": 2}]}, "both 'at_most' and 'equals'"),
        ({"metrics": [{"name": "x", "column": "loss"}] * 2}, "two metrics named 'x'"),
        ({"segments": [{"name": "s", "column": "loss"}]}, "needs either 'cuts' or 'values'"),
        ({"segments": [{"name": "s", "column": "loss", "cuts": [2, 1]}]}, "cuts that ascend"),
        ({"segments": [{"name": "s", "column": "selected_style", "cuts": [1]}]}, "which is a text; give 'values' in"),
        ({"segments": [{"name": "s", "column": "loss", "values": ["a"]}]}, "which is a number; give 'cuts'"),
        ({"segments": [{"name": "s", "column": "loss", "cuts": list(range(MOST_GROUPS))}]}, "12 is the most"),
    ],
)
def test_what_cannot_be_analysed_is_refused_in_a_sentence(declared: dict[str, Any], said: str) -> None:
    settings = {**msgspec.to_builtins(small_study()), **declared}
    with pytest.raises((InvalidSettings, msgspec.ValidationError), match=said):
        msgspec.convert(settings, Study)
