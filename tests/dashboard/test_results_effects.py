"""The effects on the Results page: one statistic in each row, with words derived from it, and few rows at first."""

import json
from typing import Any

import pytest

from fedping.analysis.verdict import Verdict, as_document
from fedping.dashboard.results.effects import (
    FEW,
    Selection,
    disagreements,
    effects_of,
    headline,
    lifts_that_matter,
    tag_of,
)
from tests.support.many_arms import many_arms, verdict_against_control
from tests.support.verdicts import made_verdict

ARMS = 40


@pytest.fixture(scope="module")
def many() -> dict[str, Any]:
    """Return the document that compares forty arms with the control; v-20 types less and v-39 more."""
    return document_of(verdict_against_control(many_arms(ARMS)))


def document_of(verdict: Verdict) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(as_document(verdict), allow_nan=False))
    return document


def test_of_many_arms_those_with_an_effect_come_first_and_others_are_found_by_their_name(many: dict[str, Any]) -> None:
    typed, ranks = effects_of(many)
    assert (typed.total, len(typed.rows), typed.found) == (ARMS - 1, FEW, ARMS - 1)
    assert {row.pair[0] for row in typed.rows[:2]} == {"v-20", "v-39"}
    sizes = [abs(row.scales["lift"].value or 0) for row in typed.rows[2:]]
    assert sizes == sorted(sizes, reverse=True)
    [found, _] = effects_of(many, Selection("V-07"))
    assert [row.pair for row in found.rows] == [("v-07", "control")]
    [none, _] = effects_of(many, Selection("v-7"))
    assert (none.rows, none.found) == ((), 0)
    [rest] = effects_of(many, Selection(first=FEW, most=100), "num_chars_typed")
    every = {row.pair for row in (*typed.rows, *rest.rows)}
    assert len(every) == ARMS - 1, "each once"
    assert ranks.role == "guardrail"


def test_the_words_of_a_row_follow_from_its_own_statistic(many: dict[str, Any]) -> None:
    for effects in effects_of(many, Selection(most=100)):
        for row in effects.rows:
            for scale, shown in row.scales.items():
                none = 50 if scale == "ranks" else 0
                assert shown.value is not None
                assert shown.low is not None
                assert shown.high is not None
                assert shown.low <= shown.value <= shown.high
                assert shown.sure == (not shown.low <= none <= shown.high)
                assert shown.tag.startswith("○") != shown.sure
                assert (shown.tone == "better") == (shown.sure and shown.value < none), "less is better of both"
                assert shown.text.partition(" [")[0] in shown.sentence


def test_a_lift_without_an_interval_says_why_and_has_no_finding() -> None:
    verdict = made_verdict({"new": 3.0, "old": 4.0})
    document = document_of(verdict)
    means = document["comparisons"][0]["means"]
    means["no_interval"], means["lift"]["low"], means["lift"]["high"] = "control_near_0", None, None
    shown = effects_of(document)[0].rows[0].scales["lift"]
    assert (shown.low, shown.high, shown.sure, shown.tag) == (None, None, None, "○ no interval")
    assert "because the second arm's mean is too near 0; read the difference" in shown.sentence
    means["lift"]["value"] = None
    assert effects_of(document)[0].rows[0].scales["lift"].value is None


def test_an_interim_look_has_one_scale_and_a_document_of_older_versions_no_lift() -> None:
    document = document_of(made_verdict({"new": 3.0, "old": 4.0}))
    assert effects_of(document)[0].scales == ("lift", "difference", "ranks")
    for one in document["comparisons"]:
        del one["means"], one["decides"]
    old = effects_of(document)[0]
    assert old.scales == ("ranks",)
    assert old.rows[0].scales["ranks"].value == 100 * document["comparisons"][0]["per_client"]["superiority"]["value"]
    for one in document["comparisons"]:
        one["anytime_valid"] = {"value": 0.2, "low": None, "high": None, "confidence": 0.95}
    looked = effects_of({**document, "interim": True})[0]
    assert looked.scales == ("difference",)
    assert "any look" in looked.conditions["difference"]


def test_ranks_and_lifts_that_disagree_are_told_once() -> None:
    document = document_of(made_verdict({"new": 3.0, "old": 4.0, "older": 4.0}))
    assert list(disagreements(document)) == []
    for one in document["comparisons"]:
        one["finding"], one["means"]["shown"] = "less", "inconclusive"
    [said] = disagreements(document)
    assert "shows a difference, but the lift does not" in said
    assert "; and 3 more)" in said
    document["comparisons"][0]["means"]["shown"] = "more"
    assert any("opposite directions" in each for each in disagreements(document))


def test_a_verdict_of_many_findings_is_cut() -> None:
    found = [f"users of a{i} typed less than b" for i in range(5)]
    verdict = f"5 of 9 comparisons show a difference: {'; '.join(found)}."
    assert headline({"verdict": verdict}).endswith(f"{found[2]}; and 2 more.")
    assert headline({"verdict": "Inconclusive: nothing."}) == "Inconclusive: nothing."


@pytest.mark.parametrize(
    ("shown", "better", "role", "tag"),
    [
        ("less", "less", "goal", ("▲ better", "better")),
        ("more", "less", "goal", ("▼ worse", "worse")),
        ("more", "less", "guardrail", ("▼ broken", "worse")),
        ("less", "less", "guardrail", ("▲ held, better", "better")),
        ("inconclusive", "less", "guardrail", ("○ no harm shown", "")),
        ("inconclusive", None, "goal", ("○ inconclusive", "")),
        ("more", None, None, ("● more", "")),
    ],
)
def test_a_tag_says_what_is_shown(shown: str, better: str | None, role: str | None, tag: tuple[str, str]) -> None:
    assert tag_of(shown, better, role) == tag


def test_three_lifts_are_named_and_the_others_counted(many: dict[str, Any]) -> None:
    effects = effects_of(many)
    known = [row for one in effects if "lift" in one.scales for row in one.rows if row.scales["lift"].sure is not None]
    named, further = lifts_that_matter(effects)
    assert (len(named), further) == (3, len(known) - 3)
    assert named[0].sure
    assert lifts_that_matter([]) == ([], 0)
