"""Under the null, every printed test keeps its false alarm rate in thousands of simulated studies.

The bounds are the numbers of alarms that a test of exactly its level exceeds with a probability of 1e-4.
"""

import math

import numpy as np
import pytest

from fedping.analysis.statistics import (
    CORRECTIONS,
    ClientSums,
    ValueCounts,
    clustered_difference,
    confidence_sequence,
    hodges_lehmann,
    mann_whitney,
    mean_difference,
    sample_ratio,
    superiority,
)
from fedping.analysis.statistics.looks import boundary
from fedping.analysis.statistics.power import rank_scores
from tests.support.value_counts import TYPED, counts_of, drawn, most_alarms

STUDIES = 2000


@pytest.fixture(scope="module")
def pairs() -> list[tuple[ValueCounts, ValueCounts]]:
    """Give many pairs of arms with one distribution and unequal sizes."""
    rng = np.random.default_rng(2018)
    return [(drawn(rng, 300), drawn(rng, 100)) for _ in range(STUDIES)]


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_mann_whitney(pairs: list[tuple[ValueCounts, ValueCounts]], level: float) -> None:
    alarms = sum(mann_whitney(a, b).p <= level for a, b in pairs)
    assert most_alarms(STUDIES, level) >= alarms
    assert alarms >= STUDIES * level / 2  # and it is not blind


@pytest.mark.parametrize("interval", [superiority, mean_difference])
def test_intervals_that_exclude_no_effect(pairs: list[tuple[ValueCounts, ValueCounts]], interval: object) -> None:
    null = 0.5 if interval is superiority else 0.0
    alarms = sum(interval(a, b).excludes(null) for a, b in pairs)  # type: ignore[operator]
    assert STUDIES * 0.025 <= alarms <= most_alarms(STUDIES, 0.05)


def test_the_shifts_interval(pairs: list[tuple[ValueCounts, ValueCounts]]) -> None:
    alarms = sum(hodges_lehmann(a, b).excludes(0) for a, b in pairs)
    assert alarms <= most_alarms(STUDIES, 0.05)  # with ties it covers more often than it says


@pytest.mark.parametrize("correction", ["bonferroni", "holm"])
def test_any_false_alarm_among_six_tests_of_three_arms(correction: str) -> None:
    rng = np.random.default_rng(6)
    alarms = 0
    for _ in range(STUDIES):
        p = []
        for _metric in range(2):
            arms = [drawn(rng, n) for n in (300, 100, 100)]
            p += [mann_whitney(arms[i], arms[j]).log10_p for i, j in ((0, 1), (0, 2), (1, 2))]
        alarms += min(CORRECTIONS[correction](p)) <= math.log10(0.05)  # type: ignore[index]
    assert alarms <= most_alarms(STUDIES, 0.05)


def test_the_sample_ratio_check() -> None:
    rng = np.random.default_rng(7)
    shares = {"treatment": 0.6, "control": 0.2, "other": 0.2}
    clients = rng.multinomial(20_000, list(shares.values()), STUDIES)
    found = [sample_ratio(dict(zip(shares, map(int, row), strict=True)), shares) for row in clients]
    assert sum(one.p <= 0.05 for one in found) <= most_alarms(STUDIES, 0.05)
    assert sum(one.mismatch for one in found) <= most_alarms(STUDIES, 0.001)


@pytest.fixture(scope="module")
def habits() -> list[tuple[np.ndarray, np.ndarray]]:
    """Give ping counts and sums of 100 clients in each arm, with different habits and activity, and no effect."""
    rng = np.random.default_rng(8)
    made = []
    for _ in range(STUDIES):
        pings = rng.geometric(0.1, 200)
        made.append((pings, rng.poisson(rng.gamma(4, 1, 200) * pings)))
    return made


def test_the_mean_over_pings_when_pings_of_a_client_are_alike(habits: list[tuple[np.ndarray, np.ndarray]]) -> None:
    alarms = 0
    for n, s in habits:
        arms = [_sums(n[part], s[part]) for part in (slice(0, 100), slice(100, 200))]
        alarms += clustered_difference(*arms).excludes(0)
    assert alarms <= most_alarms(STUDIES, 0.065)  # a normal interval with 100 clients an arm; 5 % in the limit


def test_the_verdict_by_client_when_pings_of_a_client_are_alike(habits: list[tuple[np.ndarray, np.ndarray]]) -> None:
    tested = [mann_whitney(counts_of(s[:100] / n[:100]), counts_of(s[100:] / n[100:])) for n, s in habits]
    assert sum(one.p <= 0.05 for one in tested) <= most_alarms(STUDIES, 0.05)


def test_why_the_verdict_is_not_by_ping() -> None:
    """With the same kind of clients, but every ping counted as an independent client, most tests are wrong."""
    rng = np.random.default_rng(9)
    alarms = 0
    for _ in range(1000):
        who = np.repeat(np.arange(200), rng.geometric(0.1, 200))
        values = rng.poisson(rng.gamma(4, 1, 200)[who])
        alarms += mann_whitney(counts_of(values[who < 100]), counts_of(values[who >= 100])).p <= 0.05
    assert alarms > 300


def test_the_p_value_by_ping_where_pings_are_independent(pairs: list[tuple[ValueCounts, ValueCounts]]) -> None:
    counts = np.zeros((2, STUDIES, len(TYPED)))
    for i, arms in enumerate(pairs):
        for side, arm in enumerate(arms):
            counts[side, i, arm.values.astype(int)] = arm.counts
    scores = np.abs(rank_scores(counts[0], counts[1]))
    assert (scores >= 1.959964).sum() == sum(mann_whitney(a, b).p <= 0.05 for a, b in pairs)


LOOKS = np.unique(np.geomspace(200, 20_000, 100).astype(int))


@pytest.fixture(scope="module")
def streams() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the difference of means, standard error and clients so far at each of 100 looks; shape (looks, studies)."""
    rng = np.random.default_rng(10)
    parts, means, variances = [], [], []
    for _ in range(2):
        counts = np.zeros((STUDIES, len(TYPED)))
        here = []
        for n in np.diff(LOOKS // 2, prepend=0):
            counts = counts + rng.multinomial(n, TYPED, STUDIES)
            here.append(counts)
        values, stacked = np.arange(len(TYPED)), np.array(here)
        n = stacked.sum(axis=2)
        mean = stacked @ values / n
        means.append(mean)
        variances.append((stacked @ values**2 / n - mean**2) * n / (n - 1) / n)
        parts.append(n)
    return means[0] - means[1], np.sqrt(variances[0] + variances[1]), parts[0] + parts[1]


def test_an_interval_for_every_look_is_seldom_wrong_at_any_of_100_where_a_naive_one_is_in_a_third_of_studies(
    streams: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    difference, error, n = streams
    reach = np.array([boundary(int(row[0]), 0.05, 10_000) for row in n])[:, None]
    anytime = (np.abs(difference) > reach * error).any(axis=0).sum()
    naive = (np.abs(difference) > 1.959964 * error).any(axis=0).sum()
    assert len(LOOKS) == 100
    assert anytime <= most_alarms(STUDIES, 0.05)
    assert naive > 0.3 * STUDIES


def test_the_interval_for_every_look_is_the_boundary_times_the_standard_error() -> None:
    rng = np.random.default_rng(11)
    a, b = drawn(rng, 700), drawn(rng, 500)
    found = confidence_sequence(a, b, 0.95, planned=3000)
    error = math.sqrt(a.variance / a.n + b.variance / b.n)
    assert found.value == pytest.approx(a.mean - b.mean)
    assert found.high - found.value == pytest.approx(boundary(1200, 0.05, 3000) * error)
    assert found.value - found.low == pytest.approx(boundary(1200, 0.05, 3000) * error)


def test_the_boundary_is_narrowest_near_the_plan_and_costs_half_as_much_again() -> None:
    planned = 10_000
    widths = {n: boundary(n, 0.05, planned) / 1.959964 for n in (100, 1000, 10_000, 100_000, 1_000_000)}
    assert min(widths, key=widths.__getitem__) in (planned, 10 * planned)
    assert 1.4 < widths[planned] < 1.7


def _sums(n: np.ndarray, s: np.ndarray) -> ClientSums:
    n, s = n.astype(float), s.astype(float)
    return ClientSums(len(n), int(n.sum()), s.sum(), (s * s).sum(), (s * n).sum(), (n * n).sum())
