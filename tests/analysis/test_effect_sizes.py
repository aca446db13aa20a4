"""Effect sizes from counts equal their definitions on the raw data, and their intervals have the stated coverage."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import brunnermunzel, norm, t, ttest_ind

from fedping.analysis import statistics
from fedping.analysis.statistics import (
    ClientSums,
    ValueCounts,
    clustered_difference,
    hodges_lehmann,
    mean_difference,
    superiority,
)
from tests.support.value_counts import VALUES, counts_of, drawn


@given(VALUES, VALUES)
def test_superiority_is_the_share_of_pairs(x: list[int], y: list[int]) -> None:
    above = np.greater.outer(x, y).mean() + np.equal.outer(x, y).mean() / 2
    found = superiority(counts_of(x), counts_of(y))
    assert found.value == pytest.approx(above, abs=1e-12)
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1


@given(VALUES, VALUES)
def test_superiority_of_the_swapped_arms_is_the_complement(x: list[int], y: list[int]) -> None:
    one, other = superiority(counts_of(x), counts_of(y)), superiority(counts_of(y), counts_of(x))
    expected = (1 - other.value, 1 - other.high, 1 - other.low)
    assert (one.value, one.low, one.high) == pytest.approx(expected, abs=1e-9)


def test_the_interval_of_superiority_has_brunner_and_munzels_error_and_degrees_of_freedom() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.poisson(3, 80), rng.poisson(3.7, 120)
    theirs = brunnermunzel(x, y)
    found = superiority(counts_of(x), counts_of(y))
    error = (found.value - 0.5) / -theirs.statistic
    # On the logit scale half the width is t · error / (p (1 - p)), so the width gives t back, and t its freedom.
    half = (math.log(found.high / (1 - found.high)) - math.log(found.low / (1 - found.low))) / 2
    quantile = half * found.value * (1 - found.value) / abs(error)
    freedom = brunnermunzel_freedom(x, y)
    assert quantile == pytest.approx(t.ppf(0.975, freedom), rel=1e-9)


def brunnermunzel_freedom(x: np.ndarray, y: np.ndarray) -> float:
    """Return the degrees of freedom as Brunner and Munzel write them, from ranks."""
    from scipy.stats import rankdata

    ranks, parts = rankdata(np.concatenate([x, y])), []
    for own, there in ((x, ranks[: len(x)]), (y, ranks[len(x) :])):
        parts.append((np.var(there - rankdata(own), ddof=1) * len(own), len(own) - 1))
    return float(sum(p for p, _ in parts) ** 2 / sum(p**2 / n for p, n in parts))


def test_arms_wholly_apart_still_have_an_interval_with_a_width() -> None:
    found = superiority(counts_of([5, 6, 7, 8]), counts_of([1, 2, 3]))
    assert found.value == found.high == 1
    assert 0.4 < found.low < 0.95
    same = superiority(counts_of([2] * 50), counts_of([2] * 50))
    assert same.value == 0.5
    assert same.low == pytest.approx(1 - same.high, abs=1e-9)
    assert 0.3 < same.low < 0.5


@given(VALUES, VALUES)
def test_the_shift_is_the_median_of_all_differences_and_its_ends_are_differences(x: list[int], y: list[int]) -> None:
    differences = np.sort(np.subtract.outer(x, y).ravel())
    found = hodges_lehmann(counts_of(x), counts_of(y))
    pairs, n = len(differences), len(x) + len(y)
    outside = max(1, math.floor(pairs / 2 - norm.ppf(0.975) * math.sqrt(pairs * (n + 1) / 12)))
    assert found.value == pytest.approx(np.median(differences), abs=1e-9)
    ends = (differences[outside - 1], differences[pairs - outside])
    assert (found.low, found.high) == pytest.approx(ends, abs=1e-9)


def test_the_shift_finds_differences_between_fractions_and_between_very_many_observations() -> None:
    rng = np.random.default_rng(4)
    x, y = (rng.integers(1, 50, 300) / rng.integers(1, 12, 300) for _ in range(2))
    found = hodges_lehmann(ValueCounts.of(x), ValueCounts.of(y))
    assert found.value == pytest.approx(np.median(np.subtract.outer(x, y)), abs=1e-10)
    many = [ValueCounts(c.values, c.counts * 10**9) for c in (ValueCounts.of(x), ValueCounts.of(y))]
    assert hodges_lehmann(*many).value == pytest.approx(found.value, abs=1e-10)


@given(VALUES, VALUES)
def test_the_difference_of_means_is_welchs(x: list[int], y: list[int]) -> None:
    found = mean_difference(counts_of(x), counts_of(y), 0.9)
    if min(len(x), len(y)) < 2:
        assert (found.low, found.high) == (-math.inf, math.inf)
    elif len(set(x)) > 1 or len(set(y)) > 1:
        theirs = ttest_ind(x, y, equal_var=False).confidence_interval(0.9)
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def sums_of(values: list[np.ndarray]) -> ClientSums:
    n, s = np.array([len(v) for v in values], float), np.array([v.sum() for v in values], float)
    return ClientSums(len(values), int(n.sum()), s.sum(), (s * s).sum(), (s * n).sum(), (n * n).sum())


def test_the_clustered_difference_is_welchs_without_t_when_every_client_sent_one_ping() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.poisson(3, 200), rng.poisson(4, 150)
    a, b = (sums_of([np.array([v]) for v in data]) for data in (x, y))
    found = clustered_difference(a, b)
    error = math.sqrt(x.var(ddof=1) / len(x) + y.var(ddof=1) / len(y))
    assert found.value == pytest.approx(x.mean() - y.mean())
    assert (found.high - found.low) / 2 == pytest.approx(norm.ppf(0.975) * error, rel=1e-9)


def test_the_clustered_error_is_the_bootstraps_over_clients() -> None:
    rng = np.random.default_rng(6)
    habits, pings = rng.gamma(4, 1, 400), rng.geometric(0.1, 400)
    values = [rng.poisson(habit, n) for habit, n in zip(habits, pings, strict=True)]
    n, s = np.array([len(v) for v in values]), np.array([v.sum() for v in values])
    picked = rng.integers(0, 400, (4000, 400))
    bootstrapped = (s[picked].sum(axis=1) / n[picked].sum(axis=1)).std()
    assert math.sqrt(sums_of(values).squared_error) == pytest.approx(bootstrapped, rel=0.08)


@pytest.mark.parametrize("estimate", [superiority, hodges_lehmann, mean_difference])
def test_intervals_cover_a_real_effect_as_often_as_they_say(estimate: object) -> None:
    rng = np.random.default_rng(7)
    flat, steep = np.full(8, 1 / 8), np.arange(8, 0, -1) / 36
    big = [ValueCounts(np.arange(8.0), np.round(p * 36 * 8 * 1000).astype(int)) for p in (flat, steep)]
    truth = estimate(*big).value  # type: ignore[operator]
    missed = 0
    for _ in range(1000):
        found = estimate(drawn(rng, 120, flat), drawn(rng, 90, steep))  # type: ignore[operator]
        missed += found.excludes(truth)
    assert missed <= 75  # of 50 expected, 4e-4 to be exceeded by chance; the shift's interval is wider than it says


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=60), st.sampled_from([0.0, 0.005, 0.1, 0.25, 0.49]))
def test_winsorised_counts_move_a_share_at_either_end_to_the_nearest_value_inside(
    data: list[int], tails: float
) -> None:
    ordered = sorted(data)
    beyond = min(max(1, int(tails * len(ordered))), (len(ordered) - 1) // 2) if tails else 0
    inside = ordered[beyond : len(ordered) - beyond]
    expected = [inside[0]] * beyond + inside + [inside[-1]] * beyond
    found = ValueCounts.of(data).winsorised(tails)
    assert found.to_mapping() == ValueCounts.of(expected).to_mapping()


def test_one_claim_sets_no_mean_of_a_small_arm() -> None:
    assert ValueCounts.of([0, 1, 2, 3, 1_000_000]).winsorised(0.005).mean == (1 + 1 + 2 + 3 + 3) / 5


@pytest.mark.parametrize("centre", [1.7e12, -3.0e13])
def test_the_interval_by_ping_of_values_far_from_zero_does_not_cancel(centre: float) -> None:
    """Milliseconds since 1970 have a mean of ten million standard deviations, so sums are of values minus the mean."""
    import pyarrow as pa

    from fedping.analysis.study.metrics import Metric
    from fedping.analysis.study.tally import centres_of, gathered

    rng = np.random.default_rng(6)
    near = [rng.normal(0, 20, (50, 3)).round() for _ in range(2)]
    metric = Metric("at", "time", "earlier", "later", digits=16)

    def told(offset: float) -> statistics.Estimate:
        rows = [("p0", arm, value + offset, 1) for arm, pings in enumerate(near) for value in pings.ravel().tolist()]
        values = pa.table(dict(zip(("kind", "arm", "value", "count"), map(list, zip(*rows, strict=True)), strict=True)))
        centres = centres_of([metric], values)
        assert (centres[0] == 0) == (offset == 0)
        sums = []
        for arm, pings in enumerate(near):
            s, n = (pings + offset).sum(axis=1) - centres[0] * 3, 3.0
            sums.append(
                {"arm": arm, "clients": 50, "exposed": 50, "pings": 150, "n": 150, "nn": 50 * n * n, "s0": s.sum()}
            )
            sums[-1] |= {"ss0": (s * s).sum(), "sn0": (s * n).sum(), "duplicates": 0}
        tally = gathered(["a", "b"], [metric], values, pa.Table.from_pylist(sums), centres, first_values=False)
        return clustered_difference(*(tally.arms[arm].metrics["at"].sums for arm in "ab"))

    plain, far = told(0.0), told(centre)
    assert (far.value, far.low, far.high) == pytest.approx((plain.value, plain.low, plain.high), abs=0.02)
    assert plain.low < plain.value < plain.high
