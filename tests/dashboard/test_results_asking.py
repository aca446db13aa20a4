"""A question is encoded in an address and decoded unchanged, and becomes options of `fedping analyze`."""

from urllib.parse import parse_qs

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.analysis.study import METRICS
from fedping.analysis.verdict import Asked, plan_of
from fedping.dashboard.results.question import (
    asked_by,
    chosen_pairs,
    fields_of,
    first_question,
    given_fields,
    key_of,
    options_of,
    query_of,
    subject_of,
)
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.study import Arm, Study
from tests.support.versions import small_study

STUDY = Study(name="three", arms=tuple(Arm(name=name, share=0.3) for name in ("new", "old", "older")))
PAIRS = ("new:old", "new:older", "old:older")
NAMES = [metric.name for metric in METRICS]

whole = st.none() | st.integers(0, 10**6)
seconds = st.none() | st.integers(0, 4 * 10**9).map(lambda second: 1000 * second)
questions = st.builds(
    Asked,
    metrics=st.lists(st.sampled_from(NAMES), unique=True).map(tuple),
    guardrails=st.lists(st.sampled_from(NAMES), unique=True).map(tuple),
    pairs=st.none() | st.lists(st.sampled_from(PAIRS), max_size=2, unique=True).map(tuple),
    alpha=st.floats(1e-6, 0.5),
    correction=st.sampled_from(["bonferroni", "holm"]),
    from_iteration=whole,
    to_iteration=whole,
    since=seconds,
    until=seconds,
    interim=st.booleans(),
    planned_clients=st.none() | st.integers(2, 10**7),
    enrolled=st.none() | st.integers(1, 10**7),
    settle=st.none() | st.integers(0, 3650),
)


def read(query: str) -> Asked:
    return asked_by(given_fields(parse_qs(query, keep_blank_values=True)), STUDY)


@given(questions)
def test_the_address_of_a_question_asks_it(asked: Asked) -> None:
    assert read(query_of(asked)) == asked
    assert key_of(read(query_of(asked))) == key_of(asked)


@given(questions, questions)
def test_other_questions_have_other_addresses_and_keys(one: Asked, other: Asked) -> None:
    same = one == other
    assert (query_of(one) == query_of(other)) == same
    assert (key_of(one) == key_of(other)) == same


@given(questions)
def test_the_command_is_given_the_same_question(asked: Asked) -> None:
    """Run the command's own parser on the options, up to the call of the analysis."""
    from fedping.commands.analyze import analyze, milliseconds

    values = analyze.make_context("analyze", ["three", *options_of(asked)]).params
    for name in (
        "alpha",
        "correction",
        "from_iteration",
        "to_iteration",
        "interim",
        "planned_clients",
        "enrolled",
        "settle",
    ):
        assert values[name] == getattr(asked, name)
    assert milliseconds(values["since"]) == asked.since
    assert milliseconds(values["until"]) == asked.until
    assert [word for word in values["metrics"].split(",") if word] == list(asked.metrics)
    assert [word for word in values["guardrails"].split(",") if word] == list(asked.guardrails)


def test_ticked_boxes_are_joined_and_all_pairs_are_no_choice() -> None:
    fields = given_fields({"metrics": ["", "loss", "rank_selected"], "pairs": ["", *PAIRS], "count": ["7"]})
    asked = asked_by(fields, STUDY)
    assert asked == Asked(metrics=("loss", "rank_selected"))
    assert fields_of(asked) == {"metrics": "loss,rank_selected"}


def test_every_arm_is_compared_with_the_control_unless_all_pairs_are_asked_for() -> None:
    against_older = ("new:older", "old:older")
    ticked = {"metrics": ["loss"], "pairs": ["", "new:old"]}
    assert chosen_pairs({**ticked, "compared": ["against"], "against": ["older"]}, STUDY)["pairs"] == ",".join(
        against_older
    )
    assert chosen_pairs({**ticked, "compared": ["against"]}, STUDY)["pairs"] == "old:new,older:new", "the first"
    assert "pairs" not in chosen_pairs({**ticked, "compared": ["all"]}, STUDY)
    assert chosen_pairs({**ticked, "compared": ["chosen"]}, STUDY)["pairs"] == ",new:old"
    with pytest.raises(InvalidSettings, match="no arm 'placebo'"):
        chosen_pairs({"compared": ["against"], "against": ["placebo"]}, STUDY)


@given(questions)
def test_an_address_may_be_short_and_asks_the_same(asked: Asked) -> None:
    assert read(query_of(asked, STUDY)) == asked


def test_every_arm_against_one_is_short_in_an_address_and_whole_for_the_command() -> None:
    asked = Asked(pairs=("new:older", "old:older"))
    assert fields_of(asked, STUDY)["pairs"] == "*:older"
    assert query_of(asked, STUDY).endswith("pairs=*:older")
    assert "--pairs=new:older,old:older" in options_of(asked)
    assert read("pairs=*:old,new:older").pairs == ("new:old", "older:old", "new:older")
    assert fields_of(Asked(pairs=("old:older", "new:older")), STUDY)["pairs"] == "old:older,new:older"
    with pytest.raises(InvalidSettings, match="no arm 'placebo'"):
        read("pairs=*:placebo")


def test_the_control_is_the_arm_of_that_name_or_the_first_that_applies_no_model() -> None:
    def study(**applies: bool) -> Study:
        arms = tuple(
            Arm(name=name, share=0.3, line="main", applies=each, submits=True) for name, each in applies.items()
        )
        return msgspec.structs.replace(STUDY, lines=small_study().lines, arms=arms)

    assert first_question(study(a=True, b=False, control=True)).pairs == ("a:control", "b:control")
    assert first_question(study(a=True, b=False, c=False)).pairs == ("a:b", "c:b")
    assert first_question(study(a=True, b=True)).pairs is None, "that is every pair"
    assert first_question(study(a=False, b=True)).pairs == ("b:a",)


def test_nothing_ticked_is_nothing_asked() -> None:
    asked = asked_by(given_fields({"metrics": [""], "pairs": [""]}), STUDY)
    with pytest.raises(InvalidSettings, match="nothing to compare"):
        plan_of(STUDY, asked)


@pytest.mark.parametrize(
    ("field", "given", "sentence"),
    [
        ("alpha", "five", "'five' is not a level alpha; give a number such as 0.05"),
        ("from-iteration", "-3", "'from iteration' must be a whole number of at least 0, not '-3'"),
        ("planned-clients", "1", "'planned clients' must be a whole number of at least 2"),
        ("since", "yesterday", "'since' must be a time such as"),
        ("correction", "none", "unknown correction 'none'; choose one of bonferroni, holm"),
    ],
)
def test_a_field_that_cannot_be_read_is_told(field: str, given: str, sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        asked_by({field: given}, STUDY)


@pytest.mark.parametrize("given", ["2018-06-20 13:05", "2018-06-20T13:05", "2018-06-20 13:05:00"])
def test_times_are_by_24_hours_as_people_and_addresses_write_them(given: str) -> None:
    asked = asked_by({"since": given}, STUDY)
    assert fields_of(asked)["since"] == "2018-06-20T13:05:00"
    with pytest.raises(InvalidSettings, match="24 hours"):
        asked_by({"since": "2018-06-20 01:05 PM"}, STUDY)


def test_looks_at_one_subject_differ_in_strictness_alone() -> None:
    subject = subject_of(Asked(), STUDY)
    assert subject_of(Asked(alpha=0.01, guardrails=("rank_selected",), correction="holm"), STUDY) == subject
    assert subject_of(Asked(pairs=("old:new", "older:new", "old:older")), STUDY) == subject
    assert subject_of(Asked(pairs=("old:new",)), STUDY) != subject
    assert subject_of(Asked(until=5), STUDY) != subject
    assert subject_of(Asked(settle=7), STUDY) != subject
