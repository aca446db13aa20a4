"""The thesis's linear model: the formula of 7.1, its features, and linear models on any matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedping.client_sim.models import (
    LINEAR_15_NAMES,
    Page,
    Visit,
    VisitType,
    linear_15_features,
    linear_15_truth,
    model_for,
    page_table,
)
from fedping.client_sim.models.linear import linear_scores
from fedping.client_sim.models.reference import linear, linear_15
from tests.client_sim.strategies import DAY, NOW, PAGES

MODEL = model_for("linear-15")
TRUTH = linear_15_truth()
NUMBERS = st.floats(-1e6, 1e6)


def page_of(*visits: tuple[int, int], count: int) -> Page:
    """Return a page whose visits are given by type and age in days."""
    return Page(visits=tuple(Visit(time=NOW - days * DAY, type=kind) for kind, days in visits), visit_count=count)


@settings(max_examples=300)
@given(hnp.arrays(np.float64, 15, elements=NUMBERS), st.lists(PAGES, max_size=6))
def test_the_fast_form_equals_the_reference(weights: np.ndarray, pages: list[Page]) -> None:
    expected = [linear_15(weights, page, NOW) for page in pages]
    scale = max([page.visit_count for page in pages], default=0) * np.abs(weights).sum()
    assert MODEL.scores(weights, page_table(pages, NOW)) == pytest.approx(expected, rel=1e-12, abs=1e-14 * scale)


@given(st.lists(PAGES, max_size=6))
def test_with_the_true_weights_it_is_the_formula_of_the_thesis(pages: list[Page]) -> None:
    def visit_value(visit: Visit) -> float:
        age = (NOW - visit.time) // DAY
        recency = 100 if age <= 4 else 70 if age <= 14 else 50 if age <= 31 else 30 if age <= 90 else 10
        return recency * {1: 1.2, 2: 2.0, 3: 1.4}.get(visit.type, 0.0)

    for page, score in zip(pages, MODEL.scores(TRUTH, page_table(pages, NOW)), strict=True):
        newest = sorted(page.visits, key=lambda v: v.time, reverse=True)[:10]
        expected = page.visit_count / len(newest) * sum(map(visit_value, newest)) if newest else 0
        assert score == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("page", "score"),
    [
        (page_of((1, 0), count=1), 120),
        (page_of((2, 4), count=7), 7 * 200),
        (page_of((3, 5), count=2), 2 * 98),
        (page_of((1, 31), (3, 91), count=4), 4 / 2 * (60 + 14)),
        (page_of((2, 90), (7, 0), count=1), 1 / 2 * 60),  # a download counts as sampled, and adds nothing
        (page_of((5, 0), count=1), 0),
        (page_of(count=3), 0),
        (page_of((1, 0), count=0), 0),
    ],
)
def test_worked_examples(page: Page, score: float) -> None:
    assert MODEL.scores(TRUTH, page_table([page], NOW)) == pytest.approx([score])


def test_visits_of_one_kind_give_the_one_hot_vector_times_the_frequency() -> None:
    pages = [page_of(*[(kind, days)] * 3, count=9) for kind in (1, 2, 3) for days in (0, 10, 20, 60, 100)]
    assert np.array_equal(linear_15_features(page_table(pages, NOW)), 9 * np.eye(15))


def test_names_go_by_kind_then_by_recency() -> None:
    recencies = ["FirstBucket", "SecondBucket", "ThirdBucket", "FourthBucket", "DefaultBucket"]
    assert list(LINEAR_15_NAMES) == [kind + recency for kind in ("link", "typed", "bookmark") for recency in recencies]
    assert TRUTH[LINEAR_15_NAMES.index("typedThirdBucket")] == 100
    assert VisitType.TYPED == 2


MATRICES = hnp.array_shapes(min_dims=2, max_dims=2, max_side=30).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.float64, shape, elements=NUMBERS), hnp.arrays(np.float64, shape[1], elements=NUMBERS)
    )
)


@given(MATRICES)
def test_a_linear_model_on_any_matrix_equals_the_reference(case: tuple[np.ndarray, np.ndarray]) -> None:
    features, weights = case
    expected = [linear(weights.tolist(), row) for row in features.tolist()]
    scale = (np.abs(features) @ np.abs(weights)).max()
    assert linear_scores(weights, features) == pytest.approx(expected, abs=1e-13 * scale)


@pytest.mark.parametrize("n", [2, 3, 7, 1001])
def test_equal_pages_get_equal_scores_wherever_they_lie(n: int) -> None:
    rng = np.random.default_rng(n)
    row, weights = rng.normal(size=22), rng.normal(size=22)
    assert len(set(linear_scores(weights, np.tile(row, (n, 1))).tolist())) == 1
