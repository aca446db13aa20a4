"""U, ties and p from value counts equal SciPy's, and obey the laws of a rank test."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from fedping.analysis.statistics import ValueCounts, mann_whitney
from tests.support.value_counts import VALUES, counts_of


@given(VALUES, VALUES)
def test_it_is_scipys(x: list[int], y: list[int]) -> None:
    ours = mann_whitney(counts_of(x), counts_of(y))
    theirs = mannwhitneyu(x, y, method="asymptotic") if len(set(x + y)) > 1 else None
    assert ours.p == pytest.approx(theirs.pvalue if theirs else 1, abs=1e-12, rel=1e-12)
    assert theirs is None or ours.u == theirs.statistic


@pytest.mark.parametrize("seed", range(40))
def test_it_is_scipys_on_random_tied_data_of_any_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_a, n_b = rng.integers(2, 3000, 2)
    x, y = rng.geometric(0.3, n_a), rng.geometric(rng.choice([0.3, 0.32, 0.5]), n_b)
    ours, theirs = mann_whitney(counts_of(x), counts_of(y)), mannwhitneyu(x, y, method="asymptotic")
    assert ours.u == theirs.statistic
    assert abs(ours.p - theirs.pvalue) <= 1e-12
    assert ours.log10_p == pytest.approx(math.log10(theirs.pvalue), rel=1e-12, abs=1e-12)


def test_extreme_p_values_are_scipys_and_go_on_below_what_a_double_holds() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.poisson(3.7, 9_000), rng.poisson(4.6, 9_000)
    ours, theirs = mann_whitney(counts_of(x), counts_of(y)), mannwhitneyu(x, y, method="asymptotic")
    assert 0 < theirs.pvalue < 1e-100
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-10)
    far = mann_whitney(*(ValueCounts(c.values, c.counts * 10) for c in (counts_of(x), counts_of(y))))
    assert far.p == 0
    assert -20_000 < far.log10_p < 9 * ours.log10_p


def test_it_is_scipys_at_the_size_of_2018() -> None:
    rng = np.random.default_rng(2018)
    x, y = rng.geometric(0.7350, 2_204_000), rng.geometric(0.7366, 1_470_000)
    ours, theirs = mann_whitney(counts_of(x), counts_of(y)), mannwhitneyu(x, y, method="asymptotic")
    assert ours.u == theirs.statistic
    assert 1e-12 < theirs.pvalue < 0.05
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-12)


@pytest.mark.parametrize("factor", [1, 10**6, 10**9])
def test_u_and_ties_are_exact_for_any_number_of_observations(factor: int) -> None:
    a = ValueCounts(np.array([0.0, 1, 2, 5]), np.array([3, 4, 1, 1]) * factor)
    b = ValueCounts(np.array([1.0, 2, 3]), np.array([5, 5, 2]) * factor)
    found = mann_whitney(a, b)
    pairs = [(2 * (x > y) + (x == y), p * q) for x, p in a.to_mapping().items() for y, q in b.to_mapping().items()]
    both = {v: a.to_mapping().get(v, 0) + b.to_mapping().get(v, 0) for v in (0, 1, 2, 3, 5)}
    ties, n = sum(t**3 - t for t in both.values()), found.n_a + found.n_b
    assert found.twice_u == sum(twice * count for twice, count in pairs)
    assert found.ties == ties
    variance = Fraction(found.n_a * found.n_b, 12) * (n + 1 - Fraction(ties, n * (n - 1)))
    mean = Fraction(found.n_a * found.n_b, 2)
    assert found.z == pytest.approx(
        (float(abs(Fraction(found.twice_u, 2) - mean)) - 0.5) / math.sqrt(variance), rel=1e-12
    )


@given(VALUES, VALUES)
def test_swapping_the_arms_mirrors_u_and_keeps_p(x: list[int], y: list[int]) -> None:
    one, other = mann_whitney(counts_of(x), counts_of(y)), mann_whitney(counts_of(y), counts_of(x))
    assert one.twice_u + other.twice_u == 2 * len(x) * len(y)
    assert one.p == other.p


@given(VALUES, VALUES, st.sampled_from([np.exp, np.cbrt, lambda v: 3 * v - 7, np.arctan]))
def test_only_the_order_counts(x: list[int], y: list[int], increasing: np.ufunc) -> None:
    mapped = [counts_of(increasing(np.asarray(data, dtype=float))) for data in (x, y)]
    assert mann_whitney(*mapped) == mann_whitney(counts_of(x), counts_of(y))


@given(VALUES, VALUES, st.integers(0, 60))
def test_counts_may_be_split_and_merged_anywhere(x: list[int], y: list[int], cut: int) -> None:
    parts = [counts_of(part) for part in (x[:cut], x[cut:])]
    whole, merged = counts_of(x), parts[0].merged(parts[1])
    assert merged.to_mapping() == whole.to_mapping()
    assert mann_whitney(merged, counts_of(y)) == mann_whitney(whole, counts_of(y))


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), min_size=1))
def test_summed_counts_are_those_of_the_data_written_out(pairs: list[tuple[int, int]]) -> None:
    values, counts = zip(*pairs, strict=True)
    written_out = np.repeat(values, counts)
    assert ValueCounts.summed(values, counts).to_mapping() == ValueCounts.of(written_out).to_mapping()


@given(VALUES)
def test_mean_variance_and_quantile_are_numpys(x: list[int]) -> None:
    counts = counts_of(x)
    assert counts.n == len(x)
    assert counts.mean == pytest.approx(np.mean(x), abs=1e-12)
    assert counts.quantile(0.5) == np.quantile(x, 0.5, method="inverted_cdf")
    assert len(x) < 2 or counts.variance == pytest.approx(np.var(x, ddof=1), abs=1e-9)


def test_an_empty_arm_and_values_that_are_no_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="no observation"):
        mann_whitney(counts_of([]), counts_of([1]))
    for values, counts in (([1.0, 1.0], [1, 1]), ([2.0, 1.0], [1, 1]), ([math.nan], [1]), ([1.0], [0])):
        with pytest.raises(ValueError, match="ascending"):
            ValueCounts(np.array(values), np.array(counts))
