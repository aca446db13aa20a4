"""Declarations of outcomes: allowed declarations and changes, and clients' clipping of values."""

import math
import re
import uuid
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedping.main import main
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.outcomes import (
    CategoryOutcome,
    CountOutcome,
    FlagOutcome,
    NumberOutcome,
    age_hours,
    linked_id,
    unlinked_id,
)
from fedping.protocol.ping import DOCUMENT_TYPES, outcomes_of_study
from fedping.protocol.study import PublicStudy, Study, public_json, public_study, study_from_toml
from fedping.protocol.study_changes import check_change
from fedping.server_jobs.fleet_plan import MEASURED, OUTCOME, Fleet, Prices, planned
from fedping.server_jobs.ingest.answers import REASONS
from fedping.server_jobs.privacy.card import card_of
from tests.support.outcomes import AFTER, AT_CHOICE, shop_study
from tests.support.private import private_study
from tests.support.versions import small_study

STUDY = """
name = "shop"
pings = "{pings}"
{outcomes}
[[arms]]
name = "treatment"
share = 0.5
line = "main"
applies = true
submits = true
[[arms]]
name = "control"
share = 0.5
line = "main"
[[lines]]
name = "main"
[lines.spec]
name = "small"
model = "linear-15"
[[lines.spec.weights]]
name = "w0"
start = 1.0
step = {{ start = 1.0, min = 0.1, max = 3.0 }}
"""


def written(folder: Path, *outcomes: str, pings: str = "list-update") -> Study:
    file = folder / "study.toml"
    file.write_text(STUDY.format(pings=pings, outcomes="outcomes = [" + ", ".join(outcomes) + "]"))
    return study_from_toml(file, new=True)


def test_a_study_file_declares_every_kind(tmp_path: Path) -> None:
    study = written(
        tmp_path,
        '{ name = "basket", kind = "flag" }',
        '{ name = "opened", kind = "count", most = 20 }',
        '{ name = "seconds", kind = "number", low = 0, high = 600, round = 0.5 }',
        '{ name = "device", kind = "category", values = ["phone", "desktop", "2026-11-26"] }',
        '{ name = "paid", kind = "number", low = 0, high = 500, round = 0.01, within = "48h", linked = true }',
        '{ name = "returned", kind = "flag", within = "14d" }',
    )
    assert study.outcomes == AT_CHOICE + AFTER
    assert [outcome.hours for outcome in study.outcomes] == [None, None, None, None, 48, 14 * 24]


WRONG = {
    '{ name = "basket" }': "needs the setting 'kind'",
    '{ name = "a", kind = "flags" }': "choose one of",
    '{ name = "a", kind = "text" }': "choose one of flag, count, number, category",
    '{ name = "a", kind = "count" }': "needs the setting 'most'",
    '{ name = "a", kind = "count", most = 0 }': "'most' in [outcomes]",
    '{ name = "a", kind = "number", low = 0, high = 5 }': "needs the setting 'round'",
    '{ name = "a", kind = "number", high = 5, round = 1 }': "needs the setting 'low'",
    '{ name = "a", kind = "number", low = 5, high = 5, round = 1 }': "Set 'low' below 'high'",
    '{ name = "a", kind = "number", low = 0, high = 5, round = 2 }': "whole steps apart",
    '{ name = "a", kind = "number", low = 0, high = 5, round = 7 }': "whole steps apart",
    '{ name = "a", kind = "number", low = 0, high = 5, round = 1e-12 }': "larger 'round'",
    '{ name = "a", kind = "number", low = 0, high = 5, round = 0 }': "'round' in [outcomes]",
    '{ name = "a", kind = "category", values = ["x"] }': "List 2 to 64",
    '{ name = "a", kind = "category", values = ["x", "x"] }': "'x' twice",
    '{ name = "a", kind = "category", values = ["", "x"] }': "'values' in [outcomes]",
    '{ name = "a", kind = "flag", most = 4 }': "has no setting 'most'",
    '{ name = "Basket", kind = "flag" }': "lower-case",
    '{ name = "a b", kind = "flag" }': "lower-case",
    '{ name = "place", kind = "flag" }': "another column",
    '{ name = "a", kind = "flag", within = "2 days" }': '"48h" or "14d"',
    '{ name = "a", kind = "flag", within = "0h" }': '"48h" or "14d"',
    '{ name = "a", kind = "flag", within = "366d" }': "at most a year",
    '{ name = "a", kind = "flag", linked = true }': "Remove 'linked'",
    '{ name = "a", kind = "flag" }, { name = "a", kind = "flag", within = "1h" }': "twice",
}


@pytest.mark.parametrize("outcome", WRONG)
def test_a_wrong_declaration_has_a_sentence(outcome: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as error:
        written(tmp_path, outcome)
    assert WRONG[outcome] in str(error.value)


def test_there_is_a_bound_on_their_number() -> None:
    with pytest.raises(InvalidSettings, match="at most 32"):
        shop_study(*(FlagOutcome(name=f"a{n}") for n in range(33)))


@pytest.mark.parametrize("pings", ["frecency-update", "model-update"])
def test_outcomes_at_the_choice_are_of_lists_and_later_ones_of_any_pings(pings: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="outcome 'a' of study 'shop'"):
        written(tmp_path, '{ name = "a", kind = "flag" }', pings=pings)
    study = written(tmp_path, '{ name = "a", kind = "flag", within = "1h" }', pings=pings)
    assert study.document is DOCUMENT_TYPES[pings]
    assert study.later_outcomes is not None


def test_a_study_without_outcomes_is_as_before() -> None:
    study = small_study()
    assert study.document is DOCUMENT_TYPES["frecency-update"]
    assert study.later_outcomes is None
    assert b"outcomes" not in public_json(public_study(study))
    assert replace(study, outcomes=()).digest == study.digest
    assert outcomes_of_study("study", AT_CHOICE) is None


def test_clients_get_the_declarations() -> None:
    study = shop_study()
    told = msgspec.json.decode(public_json(public_study(study)), type=PublicStudy)
    assert told.outcomes == study.outcomes
    assert told.document is study.document
    assert told.later_outcomes is study.later_outcomes
    assert msgspec.json.decode(public_json(public_study(study)), type=Study).outcomes == study.outcomes


def test_outcomes_may_be_added_while_a_study_runs() -> None:
    study = shop_study()
    more = (*study.outcomes, FlagOutcome(name="wished"))
    [change] = check_change(study, replace(study, outcomes=more))
    assert (change.place, change.before) == ("outcomes.wished", None)
    bare = replace(study, outcomes=())
    assert [change.place for change in check_change(bare, study)] == ["outcomes"]


CHANGED = {
    "most": (1, CountOutcome(name="opened", most=30), "outcomes.opened.most: 20 -> 30"),
    "kind": (0, CountOutcome(name="basket", most=1), '"count"'),
    "round": (2, NumberOutcome(name="seconds", low=0.0, high=600.0, round=1.0), "outcomes.seconds.round: 0.5 -> 1.0"),
    "values": (3, CategoryOutcome(name="device", values=("phone", "tv")), "outcomes.device.values"),
    "within": (5, FlagOutcome(name="returned", within="7d"), 'outcomes.returned.within: "14d" -> "7d"'),
    "linked": (5, FlagOutcome(name="returned", within="14d", linked=True), "outcomes.returned.linked: false -> true"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_changed_outcome_is_another(what: str) -> None:
    study = shop_study()
    place, outcome, said = CHANGED[what]
    outcomes = (*study.outcomes[:place], outcome, *study.outcomes[place + 1 :])
    with pytest.raises(InvalidSettings) as error:
        check_change(study, replace(study, outcomes=outcomes))
    assert said in str(error.value)
    assert f"declare another outcome, such as '{outcome.name}_2'" in str(error.value)


def test_a_declared_outcome_stays() -> None:
    study = shop_study()
    with pytest.raises(InvalidSettings, match="can't drop the outcome 'basket'"):
        check_change(study, replace(study, outcomes=study.outcomes[1:]))


def test_what_a_client_sends_is_within_the_bounds() -> None:
    seconds, opened = AT_CHOICE[2], AT_CHOICE[1]
    assert isinstance(seconds, NumberOutcome)
    assert isinstance(opened, CountOutcome)
    assert [seconds.clipped(value) for value in (-3.0, 0.24, 0.25, 12.6, 1e9)] == [0.0, 0.0, 0.5, 12.5, 600.0]
    assert [opened.clipped(value) for value in (-3, 0.5, 1.4, 99)] == [0, 1, 1, 20]
    device = AT_CHOICE[3]
    assert isinstance(device, CategoryOutcome)
    assert (device.clipped("phone"), device.clipped("tv")) == ("phone", None)


@given(
    low=st.integers(-1000, 1000),
    steps=st.integers(1, 100_000),
    cents=st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0]),
    value=st.floats(-2e6, 2e6),
)
def test_whatever_is_clipped_is_taken(low: int, steps: int, cents: float, value: float) -> None:
    """A client's rounding passes ingest, changes a value by at most half a step, and is idempotent."""
    outcome = NumberOutcome(name="a", low=float(low), high=low + steps * cents, round=cents)
    sent = outcome.clipped(value)
    assert outcome.low <= sent <= outcome.high
    assert outcome.is_fine(sent)
    assert outcome.clipped(sent) == sent
    within = min(max(value, outcome.low), outcome.high)
    assert abs(sent - within) <= cents / 2 * (1 + 1e-6) + 1e-9


def test_the_document_of_a_repetition_is_the_same_and_hides_its_choice_unless_linked() -> None:
    choice, secret = uuid.UUID(int=5), uuid.UUID(int=9)
    assert linked_id(choice, "paid") == linked_id(choice, "paid") != linked_id(choice, "returned")
    assert unlinked_id(secret, choice, "paid") == unlinked_id(secret, choice, "paid")
    assert unlinked_id(secret, choice, "paid") not in (unlinked_id(choice, choice, "paid"), linked_id(choice, "paid"))


def test_an_age_is_in_whole_hours_and_no_clock_makes_it_negative() -> None:
    hour = 3_600_000
    assert [age_hours(0, ms) for ms in (0, hour - 1, hour, 48 * hour - 1)] == [0, 0, 1, 47]
    assert age_hours(5 * hour, hour) == 0
    assert math.isfinite(age_hours(0, 2**53))


def test_the_guides_study_is_one_and_is_shown_with_its_outcomes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "outcomes.md").read_text()
    file = tmp_path / "shop.toml"
    file.write_text(guide.partition("```toml\n")[2].partition("```")[0])
    assert main(["study", "check", str(file), "--own-model", "shop-ranker"]) == 0
    told = capsys.readouterr().out
    assert "clients report with a choice: basket, opened (0 to 20), seconds (0 to 600 in steps of 0.5)" in told
    assert "clients report later: paid (0 to 500 in steps of 0.01) within 48h" in told
    for ping in re.findall(r"```json\n(.*?)```", guide, re.DOTALL):
        study = study_from_toml(file)
        document = study.later_outcomes if '"outcome"' in ping else study.document
        assert document is not None
        msgspec.json.decode(ping, type=document.ping)


def test_every_reason_is_explained() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "outcomes.md").read_text()
    operators = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
    for reason in (reason for reason in REASONS if reason.startswith("outcome_")):
        assert f"`{reason}`" in guide
        assert f"`{reason}`" in operators


def test_the_privacy_card_names_what_is_reported() -> None:
    [card] = card_of(shop_study()).lines
    assert "With a choice it reports basket, opened (0 to 20)" in card.leaves
    assert "Up to 48h after a choice it reports paid (0 to 500 in steps of 0.01)" in card.leaves
    assert "in a separate ping under the same id that names the choice" in card.leaves
    assert "outcome" not in card_of(small_study()).text


def test_a_private_study_has_no_outcomes() -> None:
    study = private_study()
    with pytest.raises(InvalidSettings, match="outside the bounded vector and its guarantee"):
        replace(study, outcomes=(FlagOutcome(name="bought", within="1h"),))


def test_a_fleets_plan_has_room_for_outcomes() -> None:
    fleet = Fleet(clients=1e6, pings_a_day=5.0, outcomes_a_day=2.0)
    both = (replace(fleet, outcomes_a_day=0.0), fleet)
    without, with_them = (planned(each, MEASURED["firefox-2018"], Prices()) for each in both)
    assert with_them.ingest.mean_pings_s == pytest.approx(1.4 * without.ingest.mean_pings_s)
    assert with_them.ingest.busy_cores > without.ingest.busy_cores
    assert with_them.ingest.journal_gb_a_machine > without.ingest.journal_gb_a_machine
    more = 1e6 * 2 * OUTCOME.landed_bytes * 30 / 1e9
    assert with_them.stored.landed_gb == pytest.approx(without.stored.landed_gb + more)
    assert with_them.rounds == without.rounds
