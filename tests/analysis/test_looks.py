"""Interim looks from the first client on: intervals of bounded values are exact, others wait, and both detect
effects.

The bounds are the numbers of false alarms that a sequence of exactly its level exceeds with a probability of 1e-4.
"""

import math

import numpy as np
import pytest

from fedping.analysis.statistics import FEWEST_CLIENTS, ClientSums, ValueCounts, bounded_sequence, confidence_sequence
from fedping.analysis.statistics.looks import boundary, evidence, log_wealth
from fedping.analysis.study import ArmTally, MetricTally, StudyTally
from fedping.analysis.study.metrics import metric_named
from fedping.analysis.verdict import Plan, as_document, reach_verdict
from fedping.protocol.limits import Limits
from fedping.protocol.metrics import StudyMetric
from fedping.protocol.study import Arm, Study
from tests.support.effort import few_or_all
from tests.support.value_counts import most_alarms

STUDIES, CLIENTS = 400, 120
MEANS = np.linspace(0, 1, 61)


def yes_no(n: int, yes: int) -> ValueCounts:
    return ValueCounts.summed([0, 1], [n - yes, yes])


def _reached(larger: np.ndarray, smaller: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the maximum evidence, over looks after every client, that the first arm is larger; shape (studies,).

    The minimum product over a grid of means overstates the evidence.
    """
    scaled, made = values / values[-1], {}

    def wealth(counts: np.ndarray, mirrored: bool) -> np.ndarray:
        key = (mirrored, *counts.tolist())
        if key not in made:
            arm = ValueCounts.summed(1 - scaled if mirrored else scaled, counts)
            made[key] = log_wealth(arm, 1 - MEANS if mirrored else MEANS)
        return made[key]

    most = np.full(len(larger), -math.inf)
    for i in range(len(larger)):
        for look in range(larger.shape[1]):
            total = wealth(larger[i, look], False) + wealth(smaller[i, look], True)
            most[i] = max(most[i], float(total.min()))
    return most


def _counts(rng: np.random.Generator, probabilities: np.ndarray, studies: int) -> np.ndarray:
    """Return the counts of the values after each client of an arm; shape (studies, clients, k)."""
    return rng.multinomial(1, probabilities, (studies, CLIENTS)).cumsum(axis=1)


@pytest.mark.parametrize("share", [0.5, 0.01, 0.99])
def test_looks_after_every_client_at_a_share_are_seldom_wrong(share: float) -> None:
    """400 A/A studies, looks after each of 120 clients an arm: at most 5 % false alarms for four metrics together."""
    rng, values = np.random.default_rng(26), np.array([0.0, 1.0])
    a, b = (_counts(rng, np.array([1 - share, share]), STUDIES) for _ in range(2))
    most = np.maximum(_reached(a, b, values), _reached(b, a, values))
    assert (most >= math.log(2 / 0.05)).sum() <= most_alarms(STUDIES, 0.05)
    four = most.reshape(-1, 4).max(axis=1)
    assert (four >= math.log(2 / (0.05 / 4))).sum() <= most_alarms(len(four), 0.05)


@pytest.mark.thorough
def test_looks_after_every_client_at_counts_are_seldom_wrong() -> None:
    studies = few_or_all(20, 40)
    rng, values = np.random.default_rng(27), np.arange(4.0)
    a, b = (_counts(rng, np.array([0.7, 0.2, 0.07, 0.03]), studies) for _ in range(2))
    most = np.maximum(_reached(a, b, values), _reached(b, a, values))
    assert (most >= math.log(2 / 0.05)).sum() <= most_alarms(studies, 0.05)


def test_equal_values_in_each_of_two_arms_of_two_prove_nothing() -> None:
    found = bounded_sequence(yes_no(2, 2), yes_no(2, 0), (0, 1))
    assert not found.excludes(0)
    assert found.low < -0.1
    assert not confidence_sequence(yes_no(2, 2), yes_no(2, 0)).excludes(0)
    assert confidence_sequence(yes_no(FEWEST_CLIENTS, 150), yes_no(FEWEST_CLIENTS, 50), planned=400).excludes(0)


@pytest.mark.parametrize(
    ("n", "ratio", "planned"), [(1000, 0.19, 100_000), (10_000, 1.05, 100_000), (10_000, 1.7, 10_000)]
)
def test_it_needs_about_as_many_clients_as_the_sequence_that_holds_in_the_limit(
    n: int, ratio: float, planned: int
) -> None:
    """Checks the ratio of clients needed for an interval of the same width, at shares near a half."""
    arm = yes_no(n // 2, n // 4)
    found = bounded_sequence(arm, arm, (0, 1))
    error = math.sqrt(2 * 0.25 / (n // 2))
    width = 2 * boundary(n, 0.05, planned) * error
    assert ((found.high - found.low) / width) ** 2 == pytest.approx(ratio, rel=0.05)


def test_it_finds_what_is_there_and_covers_it() -> None:
    rng = np.random.default_rng(28)
    found = [
        bounded_sequence(yes_no(2000, rng.binomial(2000, 0.6)), yes_no(1000, rng.binomial(1000, 0.5)), (0, 1))
        for _ in range(40)
    ]
    assert sum(one.low > 0 for one in found) >= 30
    assert all(one.low <= 0.1 <= one.high for one in found)
    assert all(one.low < one.value < one.high for one in found)


def test_it_moves_with_the_unit_and_refuses_what_is_out_of_bounds() -> None:
    rng = np.random.default_rng(29)
    a, b = (ValueCounts.of(rng.binomial(20, p, 900)) for p in (0.2, 0.15))
    plain = bounded_sequence(a, b, (0, 20))
    moved = bounded_sequence(
        ValueCounts(10 + 3 * a.values, a.counts), ValueCounts(10 + 3 * b.values, b.counts), (10, 70)
    )
    assert (moved.low, moved.high) == (pytest.approx(3 * plain.low, rel=1e-3), pytest.approx(3 * plain.high, rel=1e-3))
    mirrored = bounded_sequence(b, a, (0, 20))
    assert (mirrored.low, mirrored.high) == (pytest.approx(-plain.high, rel=1e-3), pytest.approx(-plain.low, rel=1e-3))
    with pytest.raises(ValueError, match="bounds"):
        bounded_sequence(a, b, (0, 2))


def test_evidence_against_a_difference_is_less_the_smaller_it_is() -> None:
    a, b = yes_no(100, 70), yes_no(100, 40)
    along = [evidence(a, b, each) for each in (-0.9, -0.2, 0.0, 0.1, 0.3, 0.6)]
    assert along == sorted(along, reverse=True)
    # a fair bet: over all outcomes of three clients, the expected wealth at the true mean is 1
    expected = sum(
        math.comb(3, yes) * 0.3**yes * 0.7 ** (3 - yes) * math.exp(log_wealth(yes_no(3, yes), np.array([0.3]))[0])
        for yes in range(4)
    )
    assert expected == pytest.approx(1)


STUDY = Study(
    name="s",
    arms=(Arm(name="new", share=0.5), Arm(name="old", share=0.5)),
    metrics=(StudyMetric(name="top", column="rank_selected", at_most=0),),
)


def test_shares_and_limited_counts_have_known_bounds_and_losses_and_wide_limits_have_none() -> None:
    limits = Limits(loss=(0.0, 10.0), rank=20)
    limited = Study(name="s", arms=STUDY.arms, limits=limits)
    wide = Study(name="s", arms=STUDY.arms, limits=Limits(rank=1000))
    assert metric_named("top", STUDY).bounds == (0, 1)
    assert metric_named("rank_selected", limited).bounds == (0, 20)
    for name, study in (("rank_selected", STUDY), ("rank_selected", wide), ("loss", limited)):
        assert metric_named(name, study).bounds is None


@pytest.mark.parametrize(("name", "decided"), [("top", True), ("num_chars_typed", False)])
def test_a_metric_without_bounds_has_no_interim_verdict_of_few_clients_and_the_reason_is_shown(
    name: str, decided: bool
) -> None:
    metric = metric_named(name, STUDY)
    plan = Plan(metrics=(metric,), pairs=(("new", "old"),), interim=True, planned=200)
    arms = {}
    for arm, counts in {"new": yes_no(100, 95), "old": yes_no(100, 5)}.items():
        sums = ClientSums(100, 100, *map(float, (counts.mean * 100, counts.mean * 100, counts.mean * 100, 100)))
        metrics = {name: MetricTally(counts, counts, sums, counts)}
        arms[arm] = ArmTally(100, 100, 100, 100, metrics, {420_000: 100}, {420_000: 100})
    verdict = reach_verdict(STUDY, plan, StudyTally(arms, duplicates=0, mixed=0))
    one = as_document(verdict)["comparisons"][0]
    assert (verdict.comparisons[0].finding != "inconclusive") == decided
    assert (one["too_few"] is None) == decided
    assert (one["anytime_valid"]["low"] is None) != decided
    assert (one["fragility"] is not None) == decided
    if not decided:
        assert f"below {FEWEST_CLIENTS} clients in each arm" in one["too_few"]
        assert one["too_few"] in verdict.sentences[0]


def test_a_look_decides_by_first_values_whose_tails_were_not_moved() -> None:
    """If values were winsorised, a tail slightly above the cut share would stay in one arm, but not in the other."""
    study = Study(name="s", arms=(Arm(name="new", share=0.5), Arm(name="old", share=0.5)), limits=Limits(tails=0.005))
    metric = metric_named("rank_selected", study)
    arms = {}
    for name, others in (("new", 75), ("old", 48)):
        counts = ValueCounts.summed([0, 10], [10_000 - others, others])
        sums = ClientSums(10_000, 10_000, 10.0 * others, 100.0 * others, 10.0 * others, 10_000)
        metrics = {metric.name: MetricTally(counts, counts, sums, counts)}
        arms[name] = ArmTally(10_000, 10_000, 10_000, 10_000, metrics, {420_000: 10_000}, {420_000: 10_000})
    trimmed = StudyTally(arms, duplicates=0, mixed=0).winsorised(0.005)
    plan = Plan(metrics=(metric,), pairs=(("new", "old"),), interim=True, planned=10_000)
    (found,) = reach_verdict(study, plan, trimmed).comparisons
    assert found.clients.means == (0.075, 0.0)
    assert found.sequence is not None
    assert found.sequence.value == pytest.approx(0.027)
    assert found.finding == "inconclusive"


@pytest.mark.parametrize(
    ("larger", "smaller", "others", "is_decided"),
    [
        (200, 200, 50, True),
        (199, 199, 50, False),
        (200, 200, 49, False),
        (1800, 200, 50, False),
        (16200, 1800, 50, True),
    ],
)
def test_a_metric_without_bounds_needs_clients_by_the_sizes_and_the_spread_of_its_arms(
    larger: int, smaller: int, others: int, is_decided: bool
) -> None:
    a, b = yes_no(larger, larger // 2), yes_no(smaller, others)
    for first, second in ((a, b), (b, a)):
        assert math.isfinite(confidence_sequence(first, second).low) == is_decided
