"""The length of an iteration, the end of training, and the version that is then kept: the pure functions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.model_store.version import Aggregate
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.smoothing import smoothed
from fedping.protocol.stopping_settings import EarlyStop, IterationByClients, IterationBySigns, IterationByTime
from fedping.server_jobs.round.stopping import (
    Loss,
    best_version,
    clients_missing,
    iteration_ended,
    should_stop,
    stable_signs,
)


def aggregate(mean: list[float], m2: list[float], clients: int = 100) -> Aggregate:
    return Aggregate(pings=clients, clients=clients, weight=float(clients), mean=tuple(mean), m2=tuple(m2))


def losses(*values: float) -> list[Loss]:
    return [Loss(version, value) for version, value in enumerate(values)]


ONE = aggregate([1.0], [1.0], clients=1)


# --- lengths ---


def test_by_time_nothing_but_the_time_counts() -> None:
    rule = IterationByTime(minutes=90)
    many = aggregate([1.0], [0.0], clients=10_000)
    assert [iteration_ended(rule, minutes, many) for minutes in (0, 89.9, 90, 200)] == [False, False, True, True]
    assert clients_missing(rule, many) == ""


def test_by_clients_it_ends_with_enough_of_them_or_at_its_most() -> None:
    rule = IterationByClients(clients=100, least=30, most=120)
    few, enough = aggregate([1.0], [1.0], 99), aggregate([1.0], [1.0], 100)
    assert [iteration_ended(rule, minutes, few) for minutes in (0, 30, 119, 120)] == [False, False, False, True]
    assert [iteration_ended(rule, minutes, enough) for minutes in (0, 29, 30, 120)] == [False, False, True, True]
    assert clients_missing(rule, few) == "99 of 100 clients have sent a usable update"


def test_an_iteration_cannot_last_longer_than_it_may() -> None:
    with pytest.raises(InvalidSettings, match="at least 60 and at most 30 minutes"):
        IterationBySigns(least=60, most=30)


@given(st.integers(0, 2**32 - 1))
def test_more_of_the_same_updates_make_no_sign_less_stable(seed: int) -> None:
    updates = np.random.default_rng(seed).normal(0.3, 1, (40, 6))
    rule = IterationBySigns()
    shares = []
    for times in (1, 3, 9):
        many = np.tile(updates, (times, 1))
        shares.append(
            stable_signs(aggregate(list(many.mean(axis=0)), list(many.var(axis=0) * len(many)), len(many)), rule)
        )
    assert shares == sorted(shares)


def test_signs_are_stable_at_their_standard_errors_and_where_nothing_ever_moves() -> None:
    rule = IterationBySigns(z=2.0)
    m2 = 99.0  # a standard deviation of 1, so a standard error of 0.1
    seen = aggregate([0.21, -0.21, 0.19, 0.0], [m2, m2, m2, 0.0])
    assert stable_signs(seen, rule) == 0.75
    assert stable_signs(aggregate([1.0], [0.0], clients=1), rule) == 0.0
    assert not iteration_ended(rule, 10, seen)
    assert iteration_ended(IterationBySigns(share=0.75), 10, seen)
    assert clients_missing(rule, seen) == "the signs of 75 % of the weights are stable, of 80 % needed"


# --- early stopping ---


def test_smoothing_and_patience() -> None:
    values = losses(9.0, 7.0, 8.0, 5.0, 6.0, 6.5, 7.0)
    plain = EarlyStop(arm="treatment", patience=3, smooth=1)
    assert best_version(values, plain) == 3
    assert [should_stop(values[:n], plain) for n in range(8)] == [False] * 7 + [True]
    assert not should_stop([], plain)
    assert best_version([], plain) is None
    assert best_version(losses(2.0, 1.0, 1.0), plain) == 1, "the earliest of equals"
    smooth = EarlyStop(arm="treatment", patience=3, smooth=2)
    assert best_version(values, smooth) == 4, "the mean of 5 and 6 is the lowest"


def test_versions_whose_loss_does_not_count_make_the_best_no_older() -> None:
    rule = EarlyStop(arm="treatment", patience=2, smooth=1)
    gaps = [Loss(0, 3.0), Loss(1, 1.0), Loss(9, 2.0)]
    assert not should_stop(gaps, rule)
    assert should_stop([*gaps, Loss(17, 2.0)], rule)
    assert best_version([*gaps, Loss(17, 2.0)], rule) == 1


def test_a_rise_ends_it_at_once() -> None:
    rule = EarlyStop(arm="treatment", patience=100, smooth=1, rise=0.1)
    assert not should_stop(losses(2.0, 1.0, 1.09), rule)
    assert should_stop(losses(2.0, 1.0, 1.11), rule)
    assert best_version(losses(2.0, 1.0, 1.11), rule) == 1
    below = losses(-1.0, -2.0, -1.75)
    assert should_stop(below, rule), "a share of how far the best is from 0"


def by_all_of_them(values: list[Loss], rule: EarlyStop) -> tuple[bool, int]:
    """Apply the rule as documented, over all versions since the count began."""
    means = smoothed([one.value for one in values], rule.smooth)
    best = min(range(len(means)), key=lambda at: (means[at], at))
    risen = rule.rise is not None and means[-1] - means[best] > rule.rise * abs(means[best])
    return len(means) - 1 - best >= rule.patience or risen, values[best].version


@given(
    st.lists(st.integers(-20, 20), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(1, 5),
    st.none() | st.sampled_from([0.0, 0.25, 1.0]),
)
def test_the_last_losses_say_what_all_of_them_do_up_to_the_end_of_training(
    whole: list[int], patience: int, smooth: int, rise: float | None
) -> None:
    rule = EarlyStop(arm="a", patience=patience, smooth=smooth, rise=rise)
    values = losses(*map(float, whole))
    for n in range(1, len(values) + 1):
        stop, best = by_all_of_them(values[:n], rule)
        assert should_stop(values[:n], rule) == stop
        assert best_version(values[:n], rule) == best
        tail = values[max(0, n - patience - smooth) : n]
        assert (should_stop(tail, rule), best_version(tail, rule)) == (stop, best), "older ones need not be read"
        if stop:
            return


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=30, unique=True), st.integers(1, 5))
def test_a_loss_that_only_falls_never_ends_it_and_one_that_only_rises_ends_it_with_patience(
    values: list[float], patience: int
) -> None:
    rule = EarlyStop(arm="a", patience=patience, smooth=1, rise=0.0)
    falling = losses(*sorted(values, reverse=True))
    assert not any(should_stop(falling[:n], rule) for n in range(len(falling) + 1))
    rising, slow = losses(*sorted(values)), EarlyStop(arm="a", patience=patience, smooth=1)
    ends = [n for n in range(len(rising) + 1) if should_stop(rising[:n], slow)]
    assert min(ends, default=math.inf) == (patience + 1 if len(values) > patience else math.inf)
    assert should_stop(rising[:2], rule)
