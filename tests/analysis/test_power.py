"""Formula and simulation agree about the power of a test, and report effects that can't be detected."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from fedping.analysis.statistics import ValueCounts, superiority
from fedping.analysis.statistics.power import (
    Distribution,
    effect_between,
    noether_size,
    power_of,
    rank_scores,
    sample_size,
    simulated_power,
    tilted,
)
from tests.support.value_counts import TYPED, drawn

PILOT = Distribution(np.arange(len(TYPED), dtype=float), TYPED)


@pytest.mark.parametrize(("change", "share"), [(0.95, 0.5), (1.04, 0.75), (0.8, 0.2)])
@pytest.mark.parametrize("power", [0.8, 0.9])
def test_the_sample_size_of_the_formula_has_its_power_in_simulated_studies(
    change: float, share: float, power: float
) -> None:
    effect = effect_between(tilted(PILOT, change * PILOT.mean), PILOT)
    n = sample_size(effect, power, share=share)
    n_a = round(share * n)
    assert power_of(effect, n_a, n - n_a) == pytest.approx(power, abs=0.005)
    found = simulated_power(effect, n_a, n - n_a, np.random.default_rng(1), studies=8000)
    assert abs(found.power - power) < 4 * found.standard_error + 0.01


def test_without_an_effect_the_power_is_the_level() -> None:
    none = effect_between(PILOT, PILOT)
    assert power_of(none, 500, 300) == pytest.approx(0.05, abs=1e-9)
    found = simulated_power(none, 500, 300, np.random.default_rng(2), studies=8000)
    assert found.power == pytest.approx(0.05, abs=4 * found.standard_error)
    with pytest.raises(ValueError, match="no number of users"):
        sample_size(none)


def test_noether_is_the_formula_without_ties_and_asks_for_more_where_there_are_many() -> None:
    fine = Distribution(np.arange(2000.0), np.full(2000, 1 / 2000))
    effect = effect_between(tilted(fine, 1.03 * fine.mean), fine)
    assert noether_size(effect.superiority) == pytest.approx(sample_size(effect), rel=0.01)
    ranks = Distribution(np.arange(4.0), np.array([0.8, 0.12, 0.05, 0.03]))
    tied = effect_between(tilted(ranks, 1.06 * ranks.mean), ranks)
    assert noether_size(tied.superiority) > 1.5 * sample_size(tied)


def test_noether_on_an_example_worked_by_hand() -> None:
    assert noether_size(0.6, power=0.8, alpha=0.05) == 262  # (1.9600 + 0.8416)² / (12 · 0.25 · 0.01) = 261.6


@given(st.floats(0.3, 8.5))
def test_a_tilt_has_the_mean_it_was_asked_for(mean: float) -> None:
    made = tilted(PILOT, mean)
    assert made.mean == pytest.approx(mean, abs=1e-6)
    assert made.probabilities.sum() == pytest.approx(1)
    larger = made.probabilities / PILOT.probabilities
    assert (np.diff(larger) >= 0).all() or (np.diff(larger) <= 0).all()


def test_no_tilt_leaves_the_range_of_the_values() -> None:
    with pytest.raises(ValueError, match="between 0 and 9"):
        tilted(PILOT, 9.5)


def test_the_effect_of_two_distributions_is_that_of_their_data() -> None:
    rng = np.random.default_rng(3)
    a, b = drawn(rng, 400), drawn(rng, 300, TYPED[::-1])
    effect = effect_between(Distribution.of(a), Distribution.of(b))
    assert effect.superiority == pytest.approx(superiority(a, b).value)


def test_many_studies_at_once_are_tested_as_scipy_tests_one() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.multinomial(60, TYPED, 30), rng.multinomial(45, TYPED[::-1], 30)
    scores = rank_scores(a, b)
    for i in range(30):
        x, y = (np.repeat(np.arange(len(TYPED)), counts[i]) for counts in (a, b))
        theirs = mannwhitneyu(x, y, method="asymptotic", alternative="greater" if scores[i] > 0 else "less")
        from scipy.stats import norm

        assert norm.sf(abs(scores[i])) == pytest.approx(theirs.pvalue, rel=1e-9)


def test_a_distribution_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sum to 0\.9"):
        Distribution(np.array([0.0, 1.0]), np.array([0.5, 0.4]))
    with pytest.raises(ValueError, match="ascending"):
        Distribution(np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    assert Distribution.of(ValueCounts.of([1, 1, 2, 3])).mean == 1.75
