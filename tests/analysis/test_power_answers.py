"""A planner's three questions agree with each other, and with the enrolled, exposed and corrected numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.analysis.power import (
    Design,
    MeanChange,
    Superiority,
    answer,
    landed_pilot,
    no_pilot,
    pilot_from_text,
)
from fedping.analysis.statistics import ClientSums, ValueCounts
from fedping.analysis.statistics.power import effect_between, power_of, sample_size
from fedping.analysis.study import METRICS
from fedping.analysis.study.tally import ArmTally, MetricTally, StudyTally
from fedping.protocol.errors import FedpingError, InvalidSettings

RANKS = pilot_from_text("0:80,1:12,2:5,3:3", "rank_selected", "client")
THESIS = Design(shares=(60, 20, 20), tests=6, exposed=0.42, studies=1000)


def test_the_three_questions_are_one() -> None:
    change = MeanChange(6, percent=True)
    size = answer(RANKS, THESIS, change, None)
    assert size.sizes is not None
    power = answer(RANKS, THESIS, change, size.enrolled)
    assert power.rows[0].formula == pytest.approx(0.8, abs=0.001)
    least = answer(RANKS, THESIS, None, size.enrolled).least[1].effect
    assert least is not None
    assert least.percent == pytest.approx(6, abs=0.01)
    assert (size.question, power.question) == ("size", "power")


def test_who_is_enrolled_is_more_than_who_is_compared() -> None:
    report = answer(RANKS, THESIS, MeanChange(6, percent=True), None)
    assert report.sizes is not None
    assert report.changed + report.unchanged == report.sizes.formula
    assert report.changed == pytest.approx(3 * report.unchanged, rel=1e-4)
    assert report.enrolled == pytest.approx(report.sizes.formula / (0.42 * 0.8), rel=1e-4)
    everyone = answer(RANKS, Design(shares=(60, 20, 20), tests=6, studies=1000), MeanChange(6, percent=True), None)
    assert everyone.sizes is not None
    assert everyone.sizes.formula == report.sizes.formula


def test_bonferroni_divides_the_level_and_asks_for_more() -> None:
    one, six = (answer(RANKS, Design(tests=tests, studies=500), Superiority(0.52), None) for tests in (1, 6))
    assert six.level == pytest.approx(0.05 / 6)
    assert six.sizes is not None
    assert one.sizes is not None
    effect = effect_between(Superiority(0.52).of(RANKS.distribution), RANKS.distribution)
    assert six.sizes.formula == sample_size(effect, 0.8, 0.05 / 6) > 1.3 * one.sizes.formula
    assert "Bonferroni: 6 tests" in " ".join(six.notes)


def test_formula_and_simulation_stand_side_by_side_and_agree() -> None:
    report = answer(RANKS, Design(studies=4000, seed=9), MeanChange(0.05), None)
    assert report.sizes is not None
    assert report.sizes.low < report.sizes.high
    assert report.sizes.simulated == pytest.approx(report.sizes.formula, rel=0.04)
    assert len(report.rows) == 7
    for row in report.rows:
        half = (row.simulated.high - row.simulated.low) / 2
        assert row.formula == pytest.approx(row.simulated.value, abs=2.2 * half + 0.005)
    formulas = [row.formula for row in report.rows]
    assert formulas == sorted(formulas)


def test_without_a_change_the_simulated_test_rejects_at_its_level() -> None:
    report = answer(RANKS, Design(studies=8000, tests=2), None, 5000)
    assert report.false_alarms.value == pytest.approx(0.025, abs=4 * (0.025 * 0.975 / 8000) ** 0.5)


def test_without_a_distribution_the_answer_is_that_without_ties() -> None:
    report = answer(no_pilot("rank", "client"), Design(studies=1000), Superiority(0.52), None)
    assert report.sizes is not None
    assert report.sizes.formula == pytest.approx(report.sizes.noether, rel=0.002)
    assert report.mean is None
    assert report.effect is not None
    assert report.effect.percent is None
    assert "cautious" in " ".join(report.notes)


def test_a_table_of_one_s_own_and_the_same_seed_the_same_numbers() -> None:
    first, second = (answer(RANKS, Design(studies=500, seed=3), MeanChange(0.05), None, (1000, 9000)) for _ in range(2))
    assert first == second
    assert first.sizes is not None
    assert {row.enrolled for row in first.rows} == {1000, 9000, first.sizes.formula}


@given(st.integers(4, 10**7), st.lists(st.floats(0.1, 100), min_size=2, max_size=4), st.floats(0.01, 1))
def test_so_many_enrolled_leave_so_many_to_compare(compared: int, shares: list[float], exposed: float) -> None:
    design = Design(shares=tuple(shares), exposed=exposed)
    enrolled = design.enrolled(compared)
    assert design.compared_of(enrolled) >= compared
    if enrolled - 1 >= 4 / design.compared + 1:
        assert design.compared_of(enrolled - 1) <= compared


def tally(values: list[float], pings_each: int) -> StudyTally:
    """Return the tally of an arm whose clients always send the same value, so that pings are perfectly correlated."""
    counts = ValueCounts.of(values)
    n, each = len(values), pings_each
    data = np.array(values)
    sums = ClientSums(n, n * each, each * data.sum(), each**2 * (data**2).sum(), each**2 * data.sum(), n * each**2)
    metric = MetricTally(ValueCounts(counts.values, counts.counts * each), counts, sums)
    arm = ArmTally(n * each, n, n * each, n, {"num_chars_typed": metric}, {}, {})
    return StudyTally({"control": arm}, duplicates=0, mixed=0)


def test_pings_of_one_client_are_alike_and_that_is_told() -> None:
    values = np.random.default_rng(1).poisson(4, 500).astype(float).tolist()
    pilot = landed_pilot(tally(values, 7), "s", "control", METRICS[0], "ping")
    assert pilot.observed == 3500
    assert pilot.alike == pytest.approx(7, rel=0.01)
    report = answer(pilot, Design(studies=500), MeanChange(-5, percent=True), None)
    assert "of n / 7.0" in report.notes[-1]
    by_client = landed_pilot(tally(values, 7), "s", "control", METRICS[0], "client")
    assert by_client.observed == 500
    assert by_client.distribution.mean == pytest.approx(np.mean(values))


def test_a_pilot_in_which_nothing_varies_is_refused() -> None:
    with pytest.raises(FedpingError, match="all equal"):
        landed_pilot(tally([3.0] * 20, 2), "s", "control", METRICS[0], "client")


def test_power_in_the_report_is_the_formula_s() -> None:
    report = answer(RANKS, Design(shares=(3, 1), studies=500), MeanChange(0.04), 4000)
    effect = effect_between(MeanChange(0.04).of(RANKS.distribution), RANKS.distribution)
    assert report.rows[0].formula == power_of(effect, 3000, 1000)
    with pytest.raises(InvalidSettings, match="needs an effect"):
        answer(RANKS, Design(), None, 1000, (10,))


@pytest.mark.parametrize(
    "given",
    [
        "--change -0.05 --alpha 1e-320",
        "--change -0.05 --alpha 1e-17",
        "--change -0.05 --tests 100000000000000000000000000000000000000000000",
        "--change -0.05 --users 100000000000000000000",
        "--users 100000000000000000000",
        "--change -0.05 --table 1e20",
        "--change -0.05 --shares 1e-300/1",
        "--change -0.05 --exposed 1e-300",
        "--change -1e-12",
        "--superiority 0.5000000001",
        "--counts 0:1e308,1:1e308 --change -0.05",
        "--counts=-1e308:5,1e308:5 --change 1e307",
    ],
)
def test_numbers_beyond_any_study_are_refused_in_a_sentence(given: str) -> None:
    from click.testing import CliRunner

    from fedping.commands.power import effect
    from fedping.protocol.errors import FedpingError

    counts = [] if "--counts" in given else ["--counts", "0:80,1:20"]
    ended = CliRunner().invoke(effect, [*given.split(), *counts, "--simulations", "100"])
    assert isinstance(ended.exception, FedpingError), ended.output
    assert "--" in str(ended.exception) or "the value" in str(ended.exception)


def test_the_least_level_is_planned_as_its_quantile_says_and_a_verdict_has_none_below_it() -> None:
    from scipy.stats import norm

    from fedping.analysis.statistics.looks import LEAST_LEVEL
    from fedping.analysis.statistics.power import noether_size
    from fedping.analysis.study import METRICS
    from fedping.analysis.verdict import Plan

    quantiles = norm.isf(LEAST_LEVEL / 2) + norm.ppf(0.8)
    assert noether_size(0.6, 0.8, LEAST_LEVEL) == math.ceil(quantiles**2 / (3 * 0.1**2))
    assert Plan(metrics=METRICS[:1], pairs=(("a", "b"),), alpha=LEAST_LEVEL).confidence < 1
    with pytest.raises(InvalidSettings, match="--alpha"):
        Plan(metrics=METRICS[:2], pairs=(("a", "b"),), alpha=LEAST_LEVEL)
