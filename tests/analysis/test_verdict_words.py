"""The sentences of a verdict: a direction in words, guardrails, p-values of any size, warnings first."""

import math

import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console

from fedping.analysis.report.page import print_verdict
from fedping.analysis.report.rows import table_notes, verdict_table
from fedping.analysis.statistics import ClientSums, ValueCounts
from fedping.analysis.study import METRICS, ArmTally, MetricTally, StudyTally, metrics_of
from fedping.analysis.verdict import Plan, Verdict, all_pairs, as_document, reach_verdict
from fedping.analysis.verdict.words import p_text
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.metrics import StudyMetric
from fedping.protocol.study import Arm, Study
from tests.support.outcomes import shop_study
from tests.support.value_counts import TYPED
from tests.support.versions import small_study

STUDY = Study(name="s", arms=tuple(Arm(name=n, share=0.3) for n in ("new", "old", "older")))
FEWER, MORE = TYPED ** np.linspace(1, 2, 10), TYPED ** np.linspace(1, 0.6, 10)


def metric(probabilities: np.ndarray) -> MetricTally:
    """Return the tally of clients in exactly these proportions, with one ping each."""
    counts = ValueCounts.summed(np.arange(10), np.rint(3000 * probabilities / probabilities.sum()).astype(int))
    n, total, squares = counts.n, counts.mean * counts.n, float(counts.values**2 @ counts.counts)
    return MetricTally(counts, counts, ClientSums(n, n, total, squares, total, n), counts)


def tally(
    typed: dict[str, np.ndarray], rank: dict[str, np.ndarray], clients: dict[str, int] | None = None
) -> StudyTally:
    arms = {}
    for arm in STUDY.arms:
        metrics = {
            "num_chars_typed": metric(typed.get(arm.name, TYPED)),
            "rank_selected": metric(rank.get(arm.name, TYPED)),
        }
        sent = (clients or {}).get(arm.name, 3000)
        arms[arm.name] = ArmTally(3000, sent, 3000, 3000, metrics, {420_000: 3000}, {420_000: 3000})
    return StudyTally(arms, duplicates=7, mixed=0)


def verdict(counted: StudyTally, **plan: object) -> Verdict:
    return reach_verdict(STUDY, Plan(metrics=METRICS[:2], pairs=all_pairs(STUDY), **plan), counted)  # type: ignore[arg-type]


def test_several_comparisons_of_one_arm_are_told_together() -> None:
    found = verdict(tally({"new": FEWER}, {}))
    assert found.headline == (
        "2 of 6 comparisons show a difference: users of new typed fewer characters than old and older."
    )
    assert found.sentences[0].startswith("Users of new typed fewer characters than users of old: ")
    assert "inconclusive" in found.sentences[2]


def test_a_guardrail_that_became_worse_is_said_first() -> None:
    found = verdict(tally({"new": FEWER}, {"new": MORE}), guardrails=frozenset({"rank_selected"}))
    assert found.headline.startswith("Guardrail broken (selected rank). 4 of 6 comparisons show a difference")
    assert "selected further from the top than old and older" in found.headline
    assert found.sentences[3].endswith("Guardrail broken.")
    assert "no harm shown, though up to" in found.sentences[5]


def test_wrong_sizes_come_before_the_guardrail() -> None:
    found = verdict(tally({}, {"new": MORE}, {"new": 2000}), guardrails=frozenset({"rank_selected"}))
    assert found.headline.startswith("Do not rely on this: the arms have the wrong sizes. Guardrail broken")
    assert "new 2,000 (expected 2,667)" in found.ratio_sentence


def test_what_is_significant_without_correction_only_is_inconclusive() -> None:
    slightly = TYPED * np.exp(-0.032 * np.arange(10))
    found = verdict(tally({"new": slightly}, {}))
    p = [one.clients.test.p for one in found.comparisons]
    assert 0.05 / 6 < min(p) < 0.05
    assert found.headline.startswith("Inconclusive: none of the 6 comparisons shows a difference at the 5 % level")
    alone = Plan(metrics=METRICS[:1], pairs=(("new", "old"),))
    assert reach_verdict(STUDY, alone, found.tally).comparisons[0].finding == "less"


def test_an_interim_look_is_decided_by_its_own_interval() -> None:
    found = verdict(tally({"new": TYPED * np.exp(-0.05 * np.arange(10))}, {}), interim=True, planned=6000)
    one = found.comparisons[0]
    assert one.sequence is not None
    assert one.clients.test.p < 0.05 / 6
    assert one.finding == ("less" if one.sequence.high < 0 else "inconclusive")
    width = one.clients.difference.high - one.clients.difference.low
    assert one.sequence.high - one.sequence.low > 1.2 * width
    assert found.headline.startswith("Interim look, not the final verdict.")


@pytest.mark.parametrize(
    ("log10_p", "text"),
    [(0.0, "1"), (math.log10(0.0123), "0.0123"), (-104.674, "2.1e−105"), (-1372.7, "2.0e−1373"), (-9.00001, "1.0e−9")],
)
def test_p_values_of_any_size_have_a_text(log10_p: float, text: str) -> None:
    assert p_text(log10_p) == text


def test_the_terminal_ends_with_the_verdict_and_one_table() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    found = verdict(tally({"new": FEWER}, {}), interim=True)
    print_verdict(found, console)
    short = console.export_text()
    assert short.index("Interim look") < short.index("The verdict: one client, one value") < short.index("at any look")
    assert "duplicate" not in short
    print_verdict(found, console, verbose=True)
    text = console.export_text()
    assert (
        text.index("Arms ") < text.index("Users of new typed") < text.index("7 duplicate") < text.index(short.strip())
    )
    assert "7 duplicate documents were dropped" in " ".join(text.split())


def test_a_caution_follows_the_verdict_on_the_terminal_and_in_the_document() -> None:
    found = verdict(tally({"new": FEWER}, {}))
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_verdict(found, console, "Mind the training.")
    text = console.export_text()
    assert text.index("2 of 6 comparisons") < text.index("Mind the training.") < text.index("The verdict: one client")
    assert as_document(found, "Mind the training.")["caution"] == "Mind the training."
    assert as_document(found)["caution"] is None


def test_the_intervals_of_several_tests_hold_together_and_that_of_one_alone() -> None:
    alone = Plan(metrics=METRICS[:1], pairs=(("new", "old"),))
    several = " ".join(table_notes(verdict(tally({}, {}))))
    one = " ".join(table_notes(reach_verdict(STUDY, alone, tally({}, {}))))
    assert "Intervals are 99.17 % each, so that all 6 hold together with 95 %." in several
    assert "The intervals have a confidence of 95 %." in one


def test_the_document_says_everything_in_plain_numbers() -> None:
    import json

    found = verdict(tally({"new": FEWER}, {}))
    document = json.loads(json.dumps(as_document(found), allow_nan=False))
    one = document["comparisons"][0]
    assert (one["finding"], one["worse"], one["anytime_valid"]) == ("less", False, None)
    assert one["per_client"]["superiority"]["confidence"] == pytest.approx(1 - 0.05 / 6)
    assert one["per_client"]["p_holm"] <= one["per_client"]["p_bonferroni"]
    assert document["arms"]["new"]["enrolled"] is None
    assert document["arms"]["new"]["by_hour"] == {
        "from_ms": [420_000 * 3_600_000],
        "pings": [3000],
        "newly_exposed": [3000],
    }
    assert document["metrics"]["num_chars_typed"] == {"title": "characters typed", "better": "less"}
    assert (document["confidence"], document["planned_clients"]) == (pytest.approx(1 - 0.05 / 6), None)
    assert as_document(verdict(tally({}, {}), interim=True))["planned_clients"] == 100_000


def test_a_plan_with_nothing_to_compare_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="nothing to compare"):
        Plan(metrics=(), pairs=(("a", "b"),))
    assert ValueCounts.of([1]).n == 1


def test_differences_have_one_kind_of_minus() -> None:
    rows = verdict_table(verdict(tally({"new": FEWER}, {}))).rows
    differences = [row[5] for row in rows]
    assert [one for one in differences if one.startswith("\N{MINUS SIGN}")]
    assert not [one for one in differences if "-" in one]


def test_what_a_study_names_itself_is_quoted_so_that_a_sentence_can_go_on() -> None:
    done = {metric.name: metric.more for metric in metrics_of(shop_study())}
    assert done["basket"] == "had “basket” more often"
    assert done["opened"] == "had higher values of “opened”"
    assert done["paid"] == "had higher values of “paid within 48h”"
    assert done["returned"] == "had “returned within 14d” more often"
    top = StudyMetric(name="top", column="rank_selected", title="top suggestion chosen", better="more", at_most=0)
    [metric] = [one for one in metrics_of(replace(small_study(), metrics=(top,))) if one.name == "top"]
    assert metric.less == "had “top suggestion chosen” less often"
