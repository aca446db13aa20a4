"""The SVM loss for ranking and the selected rank: the scalar function, and the function over many searches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.client_sim.models import Searches, losses, searches_from, selected_ranks
from fedping.client_sim.models.reference import loss, selected_rank
from tests.client_sim.strategies import plain, searches_over

SCORES = st.lists(st.integers(-1, 30) | st.floats(-100, 3000), min_size=8, max_size=8)
MARGINS = st.sampled_from([0.0, 1.0, 10.0, 12.5]) | st.floats(0, 1000)


@given(SCORES, searches_over(8), MARGINS)
def test_losses_equal_the_reference(scores: list[float], searches: Searches, margin: float) -> None:
    expected = [loss([scores[page] for page in shown], chosen, margin) for shown, chosen in plain(searches)]
    assert losses(np.array(scores), searches, margin) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@given(SCORES, searches_over(8))
def test_ranks_equal_the_reference(scores: list[float], searches: Searches) -> None:
    expected = [selected_rank([scores[page] for page in shown], chosen) for shown, chosen in plain(searches)]
    assert selected_ranks(np.array(scores), searches).tolist() == expected


@pytest.mark.parametrize(
    ("scores", "chosen", "expected"),
    [
        ([100.0, 60.0, 20.0], 0, 0.0),
        ([100.0, 99.9], 0, 9.9),
        ([100.0, 60.0, 55.0, 20.0], 1, 50.0 + 5.0),
        ([100.0, 90.0], 0, 0.0),  # exactly on the margin: inactive
        ([50.0, 50.0, 50.0], 2, 20.0),
        ([7.0], 0, 0.0),
        ([7.0, 900.0], -1, 0.0),  # nothing selected
        ([], -1, 0.0),
    ],
)
def test_worked_losses_at_a_margin_of_ten(scores: list[float], chosen: int, expected: float) -> None:
    searches = searches_from([range(len(scores))], [chosen])
    assert loss(scores, chosen, 10) == pytest.approx(expected)
    assert losses(np.array(scores), searches, 10) == pytest.approx([expected])


@pytest.mark.parametrize(
    ("scores", "chosen", "rank"),
    [
        ([1.0, 3.0, 2.0], 0, 2),
        ([1.0, 3.0, 2.0], 1, 0),
        ([5.0, 5.0, 5.0], 2, 2),  # of equal scores the one displayed earlier ranks higher
        ([5.0, 5.0, 6.0], 0, 1),
        ([5.0], -1, -1),
    ],
)
def test_worked_ranks(scores: list[float], chosen: int, rank: int) -> None:
    assert selected_rank(scores, chosen) == rank
    assert selected_ranks(np.array(scores), searches_from([range(len(scores))], [chosen])).tolist() == [rank]


@given(SCORES, searches_over(8), st.floats(-1000, 1000))
def test_only_differences_of_scores_matter(scores: list[float], searches: Searches, shift: float) -> None:
    moved = losses(np.array(scores) + shift, searches, 10.0)
    assert moved == pytest.approx(losses(np.array(scores), searches, 10.0), abs=1e-6)


def test_many_blocks_of_searches_over_scattered_pages() -> None:
    rng = np.random.default_rng(7)
    scores = np.round(rng.normal(100, 60, 50_000))
    candidates = rng.integers(0, len(scores), (9001, 6))
    chosen = rng.integers(-1, 6, 9001)
    searches = Searches(candidates, chosen)
    expected = [loss(scores[shown].tolist(), at, 10) for shown, at in zip(candidates, chosen.tolist(), strict=True)]
    ranks = [selected_rank(scores[shown].tolist(), at) for shown, at in zip(candidates, chosen.tolist(), strict=True)]
    assert losses(scores, searches, 10).tolist() == expected
    assert selected_ranks(scores, searches).tolist() == ranks


def test_no_searches_and_searches_without_candidates() -> None:
    assert losses(np.zeros(3), searches_from([], []), 10).shape == (0,)
    assert losses(np.zeros(3), searches_from([[], []], [-1, -1]), 10).tolist() == [0, 0]
    assert selected_ranks(np.zeros(3), searches_from([[], [0]], [-1, 0])).tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("candidates", "chosen", "message"),
    [
        ([[0, 1]], [2], "outside the candidates"),
        ([[0, -1]], [1], "outside the candidates"),
        ([[0, 1]], [-2], "outside the candidates"),
        ([[-1, 1]], [0], "follows the padding"),
        ([[0, 1]], [0, 0], "are not"),
    ],
)
def test_searches_refuse_what_does_not_fit(candidates: list[list[int]], chosen: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Searches(np.array(candidates), np.array(chosen))
