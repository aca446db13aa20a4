"""Pages that change over time: the same page at two moments, and the laws of its visits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.models import MAX_SAMPLED, VisitType
from fedping.client_sim.population.behaviour import UserSettings
from fedping.client_sim.population.behaviour.users import VisitTables, below, made_vocabulary, pages_at
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import InvalidSettings

SETTINGS = UserSettings()
TABLES = VisitTables.of(SETTINGS)


def pages(count: int, day: float, settings_: UserSettings = SETTINGS):
    keys = child_keys(root_key(2), np.arange(count))
    return pages_at(keys, np.full(count, day), settings_, VisitTables.of(settings_))


@settings(max_examples=20, deadline=None)
@given(day=st.integers(0, 400), later=st.integers(1, 60))
def test_old_visits_grow_older_by_a_day_a_day_and_new_ones_come_before_them(day: int, later: int) -> None:
    before, after = pages(300, float(day)), pages(300, float(day + later))
    assert np.all(np.diff(after.age_days, axis=1)[:, 0][after.sampled > 1] >= 0)
    for row in range(300):
        old = before.age_days[row, : before.sampled[row]] + later
        now = after.age_days[row, : after.sampled[row]]
        kept = now[now >= later]
        assert kept.tolist() == old[: len(kept)].tolist()
        types_now = after.visit_type[row, : after.sampled[row]][now >= later]
        assert types_now.tolist() == before.visit_type[row, : len(kept)].tolist()
        new = int((now < later).sum())
        found_anew = after.sampled[row] == new
        assert found_anew or after.sampled[row] == min(MAX_SAMPLED, before.sampled[row] + new)


def test_recency_is_the_same_at_any_time_of_a_study() -> None:
    """The mean age of the newest visit does not drift: within five standard errors over half a year."""
    ages = [pages(40_000, day).age_days[:, 0].astype(float) for day in (0.5, 40.5, 180.5)]
    errors = [one.std() / np.sqrt(len(one)) for one in ages]
    for one, error in zip(ages[1:], errors[1:], strict=True):
        assert abs(one.mean() - ages[0].mean()) < 5 * np.hypot(error, errors[0])


def test_the_number_of_visits_is_exponential_at_any_time() -> None:
    """Shares with more than k visits, by mean 7 (thesis 7.3) and the (k + 1)th visit at a uniform moment of its gap.

    Each share is within five standard errors.
    """
    plain = UserSettings(other_visits=0.0, unvisited=0.0)
    for day in (0.0, 100.0):
        counts = pages(40_000, day, plain).visit_count
        for number in (1, 5, 15, 30):
            share = np.exp(-number / 7) * 7 * (1 - np.exp(-1 / 7))
            assert abs((counts > number).mean() - share) < 5 * np.sqrt(share * (1 - share) / 40_000)


def test_kinds_of_visits_have_their_shares_and_a_page_has_a_habit() -> None:
    table = pages(40_000, 3.0)
    types = table.visit_type[np.arange(MAX_SAMPLED) < table.sampled[:, None]]
    shares = np.bincount(types, minlength=10) / len(types)
    common = 1 - SETTINGS.other_visits
    assert shares[VisitType.LINK] == pytest.approx(0.6 * common, abs=0.02)
    assert shares[VisitType.TYPED] == pytest.approx(0.2 * common, abs=0.02)
    assert shares[0] == 0
    several = table.sampled == MAX_SAMPLED
    typed = (table.visit_type[several] == VisitType.TYPED).mean(axis=1)
    assert typed.std() > 2 * np.sqrt(0.18 * 0.82 / MAX_SAMPLED)  # more than visits drawn one by one would differ


def test_words_that_share_letters_are_told_by_one_comparison() -> None:
    vocabulary = made_vocabulary(500, 20, 0.6, 3)
    shifts = (5 * np.arange(11, -1, -1)).astype(np.uint64)
    letters = (vocabulary.packed[:, None] >> shifts) & np.uint64(31)
    assert len(np.unique(vocabulary.packed)) == 500
    assert np.all((letters > 0).sum(axis=1) == vocabulary.length)
    one, other = vocabulary.packed[:250], vocabulary.packed[250:]
    for shared in range(1, 13):
        same = np.all(letters[:250, :shared] == letters[250:, :shared], axis=1)
        np.testing.assert_array_equal((one ^ other) < below(shared), same)
    frequency = np.bincount(vocabulary.word_of, minlength=500)
    assert frequency[0] > 5 * frequency[-1] > 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"kinds": (0.5, 0.1, 0.1)}, "sum to"), ({"hosts": 100}, "hosts"), ({"drift_at": 3}, "drift")],
)
def test_settings_that_cannot_be_meant_are_refused(changes: dict, word: str) -> None:
    with pytest.raises(InvalidSettings, match=word):
        UserSettings(**changes)
