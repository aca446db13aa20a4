"""Numbers of users by simulation and formula agree; the smallest effect has its power; more users never lower it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedping.analysis.statistics.power import (
    Distribution,
    SimulatedPower,
    effect_between,
    least_effect,
    power_of,
    sample_size,
    simulated_power,
    simulated_size,
    split,
    tilted,
    tilted_to_superiority,
)
from tests.support.value_counts import TYPED

PILOT = Distribution(np.arange(len(TYPED), dtype=float), TYPED)
RANKS = Distribution(np.arange(4.0), np.array([0.8, 0.12, 0.05, 0.03]))
DISTRIBUTIONS = st.lists(st.floats(0.01, 1), min_size=2, max_size=12).map(
    lambda weights: Distribution(np.arange(float(len(weights))), np.array(weights) / sum(weights))
)


@pytest.mark.parametrize(("pilot", "change", "share"), [(PILOT, 0.93, 0.5), (PILOT, 1.05, 0.75), (RANKS, 1.2, 0.5)])
@pytest.mark.parametrize("guess_off_by", [1, 7, 0.1])
def test_the_number_found_by_simulation_is_that_of_the_formula(
    pilot: Distribution, change: float, share: float, guess_off_by: float
) -> None:
    effect = effect_between(tilted(pilot, change * pilot.mean), pilot)
    exact = sample_size(effect, share=share)
    guess = max(4, round(exact * guess_off_by))
    found = simulated_size(effect, np.random.default_rng(5), guess=guess, share=share, studies=2000)
    half = (found.high - found.low) / 2
    assert half < 0.05 * exact
    assert abs(found.n - exact) < 2 * half + 0.005 * exact  # four standard errors, plus the normal curve's error


def test_the_interval_of_a_found_number_covers_the_formula_s_in_most_seeds() -> None:
    effect = effect_between(tilted(PILOT, 0.9 * PILOT.mean), PILOT)
    exact = sample_size(effect)
    found = [simulated_size(effect, np.random.default_rng(seed), guess=exact, studies=400) for seed in range(60)]
    covered = sum(one.low <= exact <= one.high for one in found)
    assert binomtest(covered, 60, 0.95).pvalue > 1e-4


def test_a_huge_effect_needs_no_fewer_than_a_test_can_use_and_none_is_told() -> None:
    rng = np.random.default_rng(6)
    apart = effect_between(Distribution(np.array([9.0]), np.ones(1)), Distribution(np.array([1.0]), np.ones(1)))
    assert 4 <= simulated_size(apart, rng, guess=400, studies=200).n < 20
    with pytest.raises(ValueError, match="no number of users"):
        simulated_size(effect_between(RANKS, RANKS), rng, guess=10, studies=100, power=0.9)


@given(DISTRIBUTIONS, st.floats(0.05, 0.95), st.integers(10, 3000), st.floats(0.1, 0.9), st.floats(0.001, 0.2))
def test_more_users_never_lower_the_power(
    pilot: Distribution, place: float, n: int, share: float, alpha: float
) -> None:
    effect = effect_between(tilted(pilot, pilot.values[0] + place * (pilot.values[-1] - pilot.values[0])), pilot)
    powers = [power_of(effect, share * size, (1 - share) * size, alpha) for size in (n, 1.1 * n, 2 * n, 20 * n)]
    assert (np.diff(powers) >= -1e-9).all() or max(
        powers
    ) < alpha  # below the level where the change narrows the values


@pytest.mark.parametrize("n", [60, 600, 6000])
def test_more_users_never_lower_the_simulated_power(n: int) -> None:
    effect, rng = effect_between(tilted(PILOT, 0.97 * PILOT.mean), PILOT), np.random.default_rng(n)
    fewer, more = (simulated_power(effect, size, size, rng, studies=3000) for size in (n, 2 * n))
    assert more.interval[1] >= fewer.interval[0]


@pytest.mark.parametrize("direction", ["less", "more"])
@pytest.mark.parametrize(("n_a", "n_b", "alpha"), [(3000, 1000, 0.05), (400, 400, 0.05 / 6)])
def test_the_least_effect_has_the_power_and_anything_less_has_not(
    direction: str, n_a: int, n_b: int, alpha: float
) -> None:
    effect = least_effect(PILOT, n_a, n_b, direction, power=0.9, alpha=alpha)  # type: ignore[arg-type]
    assert effect is not None
    assert (effect.a.mean < PILOT.mean) == (direction == "less") == (effect.superiority < 0.5)
    assert power_of(effect, n_a, n_b, alpha) == pytest.approx(0.9, abs=1e-6)
    nearer = effect_between(tilted(PILOT, 0.9 * effect.a.mean + 0.1 * PILOT.mean), PILOT)
    assert power_of(nearer, n_a, n_b, alpha) < 0.9
    found = simulated_power(effect, n_a, n_b, np.random.default_rng(7), alpha=alpha, studies=5000)
    assert found.power == pytest.approx(0.9, abs=4 * found.standard_error + 0.005)


def test_what_no_change_of_the_values_shows_is_none() -> None:
    assert least_effect(RANKS, 2, 2, "less") is None


@given(DISTRIBUTIONS, st.floats(0.02, 0.98))
def test_a_tilt_to_a_superiority_has_it(pilot: Distribution, place: float) -> None:
    low, high = pilot.probabilities[0] / 2, 1 - pilot.probabilities[-1] / 2
    wanted = low + place * (high - low)
    assert effect_between(tilted_to_superiority(pilot, wanted), pilot).superiority == pytest.approx(wanted, abs=1e-9)


def test_no_tilt_beats_the_ties() -> None:
    with pytest.raises(ValueError, match=r"between 0\.4 and 0\.985"):
        tilted_to_superiority(RANKS, 0.39)


def test_coarsened_values_keep_the_mean_the_frequent_values_and_the_power() -> None:
    rng = np.random.default_rng(8)
    weights = rng.exponential(size=20_000)
    weights[[0, 700, 5000]] = 3000.0
    fine = Distribution(np.sort(rng.gamma(2, size=20_000)), weights / weights.sum())
    coarse = fine.coarsened(512)
    assert len(coarse.values) <= 3 * 512
    assert coarse.mean == pytest.approx(fine.mean, rel=1e-12)
    for value in fine.values[[0, 700, 5000]]:
        assert np.abs(coarse.values - value).min() < 1e-12
    exact, kept = (sample_size(effect_between(tilted(one, 0.97 * one.mean), one)) for one in (fine, coarse))
    assert kept == pytest.approx(exact, rel=2e-3)
    assert fine.coarsened(20_000) is fine


def test_memory_is_bounded_by_drawing_in_portions_and_the_portions_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    effect = effect_between(tilted(PILOT, 0.9 * PILOT.mean), PILOT)
    whole = simulated_power(effect, 150, 150, np.random.default_rng(1), studies=3000)
    monkeypatch.setattr("fedping.analysis.statistics.power.CELLS_AT_A_TIME", 70)
    parts = simulated_power(effect, 150, 150, np.random.default_rng(2), studies=3000)
    assert parts.studies == whole.studies == 3000
    assert parts.power == pytest.approx(whole.power, abs=5 * whole.standard_error)


@given(st.integers(0, 400))
def test_the_interval_of_a_simulated_power_is_wilson_s(rejections: int) -> None:
    said = SimulatedPower(rejections / 400, 0, 400).interval
    theirs = binomtest(rejections, 400).proportion_ci(method="wilson")
    assert said == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@given(st.integers(2, 10_000), st.floats(0.001, 0.999))
def test_a_split_leaves_somebody_in_each_arm(n: int, share: float) -> None:
    first = split(n, share)
    assert 1 <= first <= n - 1
    assert abs(first - share * n) <= 1
