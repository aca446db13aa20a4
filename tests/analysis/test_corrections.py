"""Corrected p-values are the textbook's, in logarithms; the sample-ratio check finds mismatches and nothing else."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr
from scipy.stats import chisquare

from fedping.analysis.statistics import bonferroni, holm, sample_ratio
from fedping.analysis.statistics.means import log_survival

LOGS = st.lists(st.floats(-500, 0), min_size=1, max_size=12)


@given(LOGS)
def test_bonferroni_multiplies_by_the_number_of_tests(logs: list[float]) -> None:
    assert bonferroni(logs) == pytest.approx([min(0.0, one + math.log10(len(logs))) for one in logs])


@given(LOGS)
def test_holm_lies_between_the_p_value_and_bonferroni_and_keeps_the_order(logs: list[float]) -> None:
    stepped, plain = holm(logs), bonferroni(logs)
    assert all(one <= h + 1e-12 and h <= b + 1e-12 for one, h, b in zip(logs, stepped, plain, strict=True))
    order = np.argsort(logs, kind="stable")
    assert (np.diff(np.array(stepped)[order]) >= 0).all()


def test_holm_on_an_example_worked_by_hand() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert [10**one for one in holm([math.log10(one) for one in p])] == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.01, 1)), min_size=2, max_size=6))
def test_the_sample_ratio_is_pearsons_chi_squared(arms: list[tuple[int, float]]) -> None:
    clients = {f"arm{i}": n for i, (n, _) in enumerate(arms)}
    shares = {f"arm{i}": share for i, (_, share) in enumerate(arms)}
    found = sample_ratio(clients, shares)
    theirs = chisquare(list(clients.values()), list(found.expected.values()))
    assert found.chi_squared == pytest.approx(theirs.statistic, rel=1e-9, abs=1e-9)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9, abs=1e-300)


def test_two_percent_of_lost_clients_are_an_alarm_in_a_large_study_and_none_in_a_small_one() -> None:
    shares = {"treatment": 0.6, "control": 0.2, "other": 0.2}
    large = {"treatment": 588_000, "control": 200_000, "other": 200_000}
    assert sample_ratio(large, shares).mismatch
    assert sample_ratio(large, shares).log10_p < -16
    assert not sample_ratio({name: n // 1000 for name, n in large.items()}, shares).mismatch


@pytest.mark.parametrize("statistic", [3.0, 500.0, 640.0, 1_300.0, 1e5, 1e9])
def test_the_tail_of_chi_squared_has_a_logarithm_however_far_out(statistic: float) -> None:
    # With 2 degrees of freedom it is exp(-x / 2), with 1 twice the normal tail beyond the root.
    assert log_survival(statistic, 2) == pytest.approx(-statistic / 2, rel=1e-12)
    assert log_survival(statistic, 1) == pytest.approx(math.log(2) + log_ndtr(-math.sqrt(statistic)), rel=1e-12)
    four = -statistic / 2 + math.log1p(statistic / 2)
    assert log_survival(statistic, 4) == pytest.approx(four, rel=1e-12)


@given(st.integers(1, 12))
def test_the_logarithm_of_the_tail_falls_without_a_step_where_the_formula_changes(freedom: int) -> None:
    around = 2 * (300 + freedom)
    steps = np.diff([log_survival(around + x, freedom) for x in (-0.02, -0.01, 0.0, 0.01, 0.02)])
    assert (steps < 0).all()
    assert steps == pytest.approx(steps[0], rel=1e-4)


def test_an_arm_that_is_not_there_at_all_is_an_alarm_with_a_p_value() -> None:
    ratio = sample_ratio(
        {"treatment": 0, "control": 200_000, "other": 200_000}, {"treatment": 0.6, "control": 0.2, "other": 0.2}
    )
    assert ratio.mismatch
    assert -1e6 < ratio.log10_p < -1e4
