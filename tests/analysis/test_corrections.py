"""Corrected p-values are the textbook's, in logarithms; the sample-ratio check finds what it should and no more."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from analysis.statistics import bonferroni, holm, sample_ratio

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
