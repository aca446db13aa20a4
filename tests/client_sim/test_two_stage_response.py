"""Randomised response in two stages: its exact epsilon by enumeration, its draws, and its unbiased estimate."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedping.client_sim.privacy.two_stage import TwoStageResponse
from fedping.protocol.draws import root_key, uniforms


@pytest.mark.parametrize("answers", [2, 3, 4])
@pytest.mark.parametrize("instantaneous", [None, 0.3, 2.0])
@pytest.mark.parametrize("reports", [1, 2, 3])
def test_epsilon_is_the_largest_log_ratio_of_all_outcomes(
    answers: int, instantaneous: float | None, reports: int
) -> None:
    """Enumerates kept answers, sequences of reports and pairs of true answers."""
    response = TwoStageResponse(answers, 1.2, instantaneous)
    first = TwoStageResponse(answers, 1.2).channel()
    second = np.eye(answers) if instantaneous is None else TwoStageResponse(answers, instantaneous).channel()
    chances = np.array(
        [
            [
                sum(first[true, kept] * math.prod(second[kept, each] for each in outcome) for kept in range(answers))
                for outcome in product(range(answers), repeat=reports)
            ]
            for true in range(answers)
        ]
    )
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    possible = chances[:, chances.any(axis=0)]
    exact = np.log(possible[:, None] / possible).max()
    assert response.epsilon_of(reports) == pytest.approx(exact, rel=1e-9)
    assert response.epsilon_of(reports) <= 1.2 + 1e-12
    if reports == 1:
        np.testing.assert_allclose(chances, response.channel())
        assert response.epsilon_of_report == pytest.approx(exact, rel=1e-9)


def test_two_fair_coins_are_the_response_of_warner() -> None:
    """A first coin may choose the truth, else a second answers: ln 3 (Rodríguez-Barroso et al. 2020, 2.4)."""
    response = TwoStageResponse(2, math.log(3))
    assert response.truth == pytest.approx(0.5)
    np.testing.assert_allclose(response.channel(), [[0.75, 0.25], [0.25, 0.75]])


def test_many_reports_reveal_what_the_first_stage_reveals() -> None:
    response = TwoStageResponse(10, 2.0, 1.0)
    reveals = [response.epsilon_of(count) for count in (1, 2, 5, 20, 1000)]
    assert reveals == sorted(reveals)
    assert reveals[0] < 0.9
    assert reveals[-1] == pytest.approx(2.0)


def test_reports_have_the_probabilities_of_the_channel_and_a_mean_without_bias() -> None:
    """A chi-squared test for each answer; a correct program fails with probability 4 * 1e-6 in all."""
    response, size = TwoStageResponse(4, 1.5, 1.0), 40_000
    values = np.array([-1.0, 0.5, 2.0, 7.0])
    uniform = uniforms(np.array([root_key(3)]), 2 * size)[0]
    for true in range(4):
        reports = response.drawn(np.full(size, true), uniform[:size], uniform[size:])
        expected = size * response.channel()[true]
        assert stats.chisquare(np.bincount(reports, minlength=4), expected).pvalue > 1e-6
        estimate = response.unbiased(reports, values)
        assert abs(estimate.mean() - values[true]) < 5 * estimate.std() / math.sqrt(size)
        assert response.channel()[true] @ response.unbiased(np.arange(4), values) == pytest.approx(values[true])


def test_the_first_stage_is_kept_where_its_numbers_are() -> None:
    response, rng = TwoStageResponse(5, 1.0), np.random.default_rng(1)
    answers, first = rng.integers(0, 5, 100), rng.random(100)
    one, other = (response.drawn(answers, first, rng.random(100)) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (one != answers).any()
