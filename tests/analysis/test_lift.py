"""The lift of means and ratios: Fieller's interval, the adjustment by the pre-period, and caps."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedping.analysis.report.rows import lift_cells
from fedping.analysis.statistics import (
    ClientTotals,
    ValueCounts,
    adjusted,
    cap_of,
    capped,
    confidence_sequence,
    level_of_mean,
    level_of_ratio,
    lift,
    mean_difference,
)
from fedping.analysis.statistics.lift import fieller
from fedping.analysis.study import Metric, metrics_of
from fedping.analysis.verdict import Comparison, Plan, compare
from fedping.analysis.verdict.comparison import Effect
from fedping.analysis.verdict.words import lift_sentence
from fedping.protocol.outcomes import NumberOutcome
from tests.support.outcomes import shop_study
from tests.support.verdicts import metric_tally


def mean_of(values: np.ndarray):  # type: ignore[no-untyped-def]
    return level_of_mean(ValueCounts.of(values))


def test_fiellers_interval_is_that_of_all_ratios_that_the_data_do_not_contradict() -> None:
    a, b, covariance, q = (5.2, 0.09), (4.0, 0.16), 0.03, 1.98
    low, high = fieller(a, b, covariance, q) or (math.nan, math.nan)
    ratios = np.linspace(0.5, 3, 200_001)
    inside = (a[0] - ratios * b[0]) ** 2 <= q**2 * (a[1] - 2 * ratios * covariance + ratios**2 * b[1])
    assert (low, high) == pytest.approx((ratios[inside].min(), ratios[inside].max()), abs=2e-5)


def test_a_lift_leaves_out_0_exactly_where_the_difference_does() -> None:
    rng = np.random.default_rng(1)
    shown = 0
    for _ in range(3000):
        n = int(rng.integers(30, 200))
        result = lift(mean_of(rng.poisson(rng.uniform(0.5, 3), n)), mean_of(rng.poisson(1.5, n)))
        if result.reason is None:
            assert result.difference.excludes(0) == result.relative.excludes(0)
            assert result.relative.low <= result.relative.value <= result.relative.high
            shown += result.difference.excludes(0)
    assert shown > 1000


def test_the_difference_is_welchs() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.gamma(1, 2, 90), rng.gamma(2, 1, 70)
    ours, welch = lift(mean_of(a), mean_of(b)).difference, mean_difference(ValueCounts.of(a), ValueCounts.of(b))
    assert (ours.low, ours.high) == pytest.approx((welch.low, welch.high))
    theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (np.arange(29.0), np.arange(100.0), "few_clients"),
        (np.repeat((0.0, 1.0), (991, 9)), np.repeat((0.0, 1.0), (900, 100)), "few_others"),
        (np.ones(500), np.ones(500), "few_others"),
        (np.arange(100.0), -np.arange(1.0, 101.0), "negative_control"),
        (np.arange(100.0), np.linspace(-10, 11, 100), "control_near_0"),
    ],
)
def test_where_there_is_no_interval_the_reason_is_given(first: np.ndarray, second: np.ndarray, reason: str) -> None:
    result = lift(mean_of(first), mean_of(second))
    assert result.reason == reason
    assert math.isinf(result.relative.high)
    assert math.isinf(result.difference.high) == reason.startswith("few")


def test_a_ratio_of_totals_has_the_variance_of_resampled_clients() -> None:
    rng = np.random.default_rng(3)
    d = rng.poisson(3, 4000) + 1
    y = rng.binomial(d, rng.beta(1, 3, 4000))
    level = level_of_ratio(ClientTotals.of(y, d))
    assert level.value == pytest.approx(y.sum() / d.sum())
    picked = rng.integers(0, 4000, (1500, 4000))
    resampled = y[picked].sum(axis=1) / d[picked].sum(axis=1)
    assert math.sqrt(level.variance) == pytest.approx(resampled.std(), rel=0.06)  # 3 standard errors of a deviation


def test_a_ratio_without_a_total_below_the_line_is_said_to_be_none() -> None:
    known, none = (level_of_ratio(ClientTotals.of(np.arange(100.0), times * np.ones(100))) for times in (1, 0))
    result = lift(known, none)
    assert result.reason == "no_total"
    effect = Effect((known.value, none.value), (100, 100), result)
    assert lift_sentence("paid per returned", ("new", "old"), effect) == (
        "Paid per returned, new against old: (no ratio, because an arm's total below the line is 0), 49.5 against -."
    )
    assert lift_cells("paid per returned", ("new", "old"), effect)[3:6] == ("*", "49.5", "-")


def ancova(a: np.ndarray, b: np.ndarray, x: np.ndarray, z: np.ndarray) -> float:
    """Return the difference adjusted by a slope within arms, by least squares."""
    columns = np.stack([np.ones(len(a) + len(b)), np.repeat((1.0, 0.0), (len(a), len(b))), np.concatenate([x, z])])
    return float(np.linalg.lstsq(columns.T, np.concatenate([a, b]), rcond=None)[0][1])


def test_an_adjustment_is_the_least_squares_of_arm_and_time_before() -> None:
    rng = np.random.default_rng(4)
    x, z = rng.gamma(2, 1, 400), rng.gamma(2, 1, 300)
    a, b = 1.3 * x + rng.normal(0, 1, 400), z + rng.normal(0, 1, 300)
    found = adjusted(ClientTotals.of(a, 1, x, 1), ClientTotals.of(b, 1, z, 1))
    assert found is not None
    first, second, covariance, told = found
    assert first.value - second.value == pytest.approx(ancova(a, b, x, z))
    assert told.before == (400, 300)
    assert 0.4 < told.reduction < 0.9
    assert first.part + second.part == pytest.approx(first.variance + second.variance - 2 * covariance)
    assert covariance > 0


def test_arms_that_differ_before_anything_was_done_are_told() -> None:
    rng = np.random.default_rng(11)
    y, x = rng.gamma(2, 1, (2, 300)), rng.gamma(2, 1, (2, 300))
    for shift, honest in ((0.0, True), (0.6, False)):
        found = adjusted(*(ClientTotals.of(y[i], 1, x[i] + shift * i, 1) for i in (0, 1)))
        assert found is not None
        test = stats.ttest_ind(x[0], x[1] + shift, equal_var=False)
        assert found[3].apart == pytest.approx(test.statistic)
        assert found[3].is_honest == honest == (test.pvalue > 0.001)


def test_a_client_without_a_time_before_counts_as_the_mean_of_those_with_one() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.gamma(2, 1, (2, 200)), rng.gamma(2, 1, (2, 200))
    has = rng.random((2, 200)) < 0.6
    filled = np.where(has, x, x[has].mean())
    partly = adjusted(*(ClientTotals.of(y[i], 1, np.where(has[i], x[i], 0), has[i]) for i in (0, 1)))
    whole = adjusted(*(ClientTotals.of(y[i], 1, filled[i], 1) for i in (0, 1)))
    assert partly is not None
    assert whole is not None
    for ours, theirs in zip(partly[:2], whole[:2], strict=True):
        # the whole metric centres at the mean over all clients, which equals the mean of those with a pre-period
        assert ours.value == pytest.approx(theirs.value)


def test_values_far_from_0_lose_nothing_by_their_centre() -> None:
    rng = np.random.default_rng(6)
    x, y = rng.normal(0, 1, (2, 100)), rng.normal(0, 1, (2, 100))
    plain = adjusted(*(ClientTotals.of(y[i], 1, x[i], 1) for i in (0, 1)))
    moved = adjusted(
        *(
            ClientTotals(each.clients, each.others, each.sums, each.products, 1e9)
            for each in (ClientTotals.of(y[i], 1, x[i], 1) for i in (0, 1))
        )
    )
    assert plain is not None
    assert moved is not None
    assert moved[0].value == pytest.approx(plain[0].value + 1e9)
    assert moved[0].variance == plain[0].variance


def test_nothing_known_of_before_adjusts_nothing() -> None:
    rng = np.random.default_rng(7)
    assert adjusted(ClientTotals.of(rng.random(50)), ClientTotals.of(rng.random(50))) is None
    same = ClientTotals.of(rng.random(50), 1, 3, 1)
    assert adjusted(same, same) is None


@pytest.mark.parametrize(("share", "cap"), [(0.5, 2.0), (0.51, 3.0), (0.75, 3.0), (0.76, 9.0), (0.99, 9.0)])
def test_a_cap_is_the_value_of_its_rank(share: float, cap: float) -> None:
    counts = ValueCounts.of([1.0, 2.0, 3.0, 9.0])
    assert cap_of(counts, share) == cap
    moved, how_many = capped(counts, cap)
    assert (moved.values.max(), moved.n, how_many) == (cap, 4, sum(value > cap for value in (1, 2, 3, 9)))


def test_ranks_of_decimal_shares_are_not_one_too_high() -> None:
    counts = ValueCounts.of(np.arange(1, 101))
    assert [cap_of(counts, k / 100) for k in range(1, 100)] == list(range(1, 100))


SECONDS = Metric("seconds", "seconds", "had less", "had more", better=None, digits=4, wide=(0.0, 600.0))


def looked_at(a: np.ndarray, b: np.ndarray, metric: Metric = SECONDS) -> Comparison:
    """Return an interim look at two arms with one value per client."""
    tallies = [replace(metric_tally(arm[:, None]), first=ValueCounts.of(arm)) for arm in (a, b)]
    plan = Plan(metrics=(metric,), pairs=(("treatment", "control"),), interim=True)
    return compare(plan, [(metric, plan.pairs[0], *tallies)])[0]


def test_wide_bounds_decide_before_there_are_many_clients_and_the_other_interval_after() -> None:
    rng = np.random.default_rng(9)
    early = looked_at(rng.integers(400, 600, 60) * 1.0, rng.integers(0, 200, 60) * 1.0)
    assert (early.finding, early.shortage) == ("more", None)
    assert early.sequence is not None
    assert math.isfinite(early.sequence.high)
    unbounded = looked_at(rng.integers(400, 600, 60) * 1.0, rng.integers(0, 200, 60) * 1.0, replace(SECONDS, wide=None))
    assert (unbounded.finding, unbounded.shortage is None) == ("inconclusive", False)
    late = looked_at(rng.exponential(20, 4000).round(1), rng.exponential(20, 4000).round(1))
    half = confidence_sequence(*(ValueCounts.of(rng.exponential(20, 4000).round(1)) for _ in range(2)), 0.975)
    assert late.sequence is not None
    assert late.sequence.high - late.sequence.low == pytest.approx(half.high - half.low, rel=0.1)


@pytest.mark.parametrize(("low", "high"), [(0.0, 599.99), (0.0, 99.999), (-1234.56, 0.0), (12.346, 2000.0)])
def test_a_value_at_a_bound_may_be_rounded_beyond_it(low: float, high: float) -> None:
    study = shop_study(NumberOutcome(name="paid", low=low, high=high, round=0.001))
    [metric] = [one for one in metrics_of(study) if one.name == "paid"]
    ends = [float(f"{end:.4g}") for end in (low, high)]
    look = looked_at(np.repeat(ends, (10, 30)), np.repeat(ends, (30, 10)), metric)
    assert look.finding == "more" if metric.bounds else look.sequence is not None


def test_a_lift_has_no_interval_at_an_interim_look() -> None:
    rng = np.random.default_rng(10)
    look = looked_at(rng.integers(0, 600, 300) * 1.0, rng.integers(0, 600, 300) * 1.0)
    assert look.effect is not None
    assert (look.effect.lift.reason, math.isinf(look.effect.lift.relative.high)) == ("interim", True)
    assert look.effect.lift.difference == look.sequence
