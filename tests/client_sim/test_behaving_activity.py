"""Times of searches: clients' activity, the daily cycle, absence, and stale models."""

import numpy as np
import pytest

from fedping.client_sim.population.behaviour import Activity, ActivitySettings

TICK = 1 / 48


def activity(users: int = 20_000, **changes: float) -> Activity:
    return Activity(users, ActivitySettings(**changes), 3, TICK, 0.0)


def test_activity_swings_by_its_factor_around_its_mean() -> None:
    swings = np.array([activity(10).swing(tick) for tick in range(48)])
    assert swings.max() / swings.min() == pytest.approx(4, rel=0.02)
    assert swings.mean() == pytest.approx(1)
    assert swings.argmax() in (17, 18)  # around the peak hour, nine


def test_the_busiest_hours_have_the_searches_that_the_swing_says() -> None:
    """Poisson counts are within five of their standard deviations."""
    one = activity(away=0.0)
    means = one.means(2.0, 0.5)
    for tick in (17, 41):
        expected = float(means.sum(dtype=float)) * TICK * one.swing(tick)
        assert abs(len(one.searching(tick, means)) - expected) < 5 * np.sqrt(expected)


def test_most_search_little_and_a_few_a_lot() -> None:
    means = np.sort(activity().means(1.0, 0.18).astype(float))
    assert means.mean() * 0.9 == pytest.approx(1.0, rel=0.1)
    assert means[-len(means) // 10 :].sum() > 0.6 * means.sum()
    assert np.median(means) < 0.1


def test_a_user_keeps_its_place_in_both_phases() -> None:
    one = activity()
    np.testing.assert_array_equal(np.argsort(one.means(1.0, 0.2)), np.argsort(one.means(0.5, 0.2)))


def test_nobody_searches_on_a_day_away() -> None:
    one = activity(away=0.5)
    means = np.full(20_000, 20.0, np.float32)
    seen = [set(np.unique(one.searching(tick, means).users)) for tick in range(96)]
    first, second = set.union(*seen[:48]), set.union(*seen[48:])
    assert len(first) == pytest.approx(10_000, abs=400)
    assert len(first & second) == pytest.approx(5_000, abs=300)  # days are independent


def test_users_enrol_evenly() -> None:
    one = activity(rollout_days=2.0, away=0.0)
    means = np.full(20_000, 48.0, np.float32)
    there = [len(np.unique(one.searching(tick, means).users)) for tick in (24, 48, 72, 95)]
    shares = np.array(there) / 20_000
    expected = np.array([0.25, 0.5, 0.75, 0.99]) * (1 - np.exp([-one.swing(t) for t in (24, 48, 72, 95)]))
    np.testing.assert_allclose(shares, expected, atol=0.02)


def test_held_versions_are_those_of_the_latest_fetch() -> None:
    one = activity(fetch_late=0.2, away=0.0)
    users, newest = np.arange(20_000), np.arange(30)
    held = np.stack([one.held_versions(users, tick, newest) for tick in range(30)])
    assert np.all(np.diff(held, axis=0) >= 0)  # no client goes back
    assert np.all((held[1:] == held[:-1]) | (held[1:] == np.arange(1, 30)[:, None]))
    behind = held[29] < 29
    assert behind.mean() == pytest.approx(0.2, abs=0.015)
    assert (held[29] < 28).mean() == pytest.approx(0.04, abs=0.008)
    assert (held[0] == -1).mean() == pytest.approx(0.2, abs=0.015)


def test_who_was_away_comes_back_with_an_old_model() -> None:
    one = activity(fetch_late=0.5, away=0.5)
    newest = np.repeat(np.arange(3), 48)
    held = one.held_versions(np.arange(20_000), 96, newest)
    assert (held == 0).any()
    assert (held == -1).any()
    assert (held == 2).mean() > 0.2


def test_a_tick_does_not_depend_on_those_before_it() -> None:
    one, other = activity(), activity()
    means = one.means(3.0, 0.3)
    for tick in range(5):
        one.searching(tick, means)
    a, b = one.searching(5, means), other.searching(5, means)
    np.testing.assert_array_equal(a.users, b.users)
    np.testing.assert_array_equal(one.search_keys(a, 5), other.search_keys(b, 5))
    assert len(np.unique(one.search_keys(a, 5))) == len(a)
    assert np.all(np.diff(a.users) >= 0)
