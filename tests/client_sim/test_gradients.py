"""Updates by finite differences and analytically, compared with the scalar black box and with each other."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedping.client_sim.models import (
    FRECENCY_NAMES,
    MODELS,
    FrecencyWeights,
    Page,
    RankingModel,
    Searches,
    Visit,
    frecency_start,
    linear_15_truth,
    losses,
    model_for,
    page_table,
    searches_from,
)
from fedping.client_sim.models.linear import linear_analytic_updates, linear_finite_differences, linear_scores
from fedping.client_sim.models.pages import age_in_days, newest
from fedping.client_sim.models.reference import (
    bonus_of,
    bucket_weight,
    descent_by_finite_differences,
    frecency,
    linear_15,
    loss,
)
from tests.client_sim.strategies import DAY, FRECENCY_WEIGHTS, NOW, PAGES, plain, searches_over

FRECENCY, LINEAR = model_for("frecency-2018"), model_for("linear-15")
MARGINS = st.sampled_from([0.0, 1.0, 10.0, 100.0])
EPSILONS = st.sampled_from([1.0, 2.0, 0.5])


def cases(pages: st.SearchStrategy[Page] = PAGES) -> st.SearchStrategy[tuple[list[Page], Searches]]:
    """Return a strategy for 1 to 6 pages, and searches over them."""
    some = st.lists(pages, min_size=1, max_size=6)
    return some.flatmap(lambda listed: st.tuples(st.just(listed), searches_over(len(listed))))


def black_box(score, weights, pages, searches, margin, epsilon) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Return the updates, shape (S, m), computed for one search, weight and page at a time."""

    def update_of(shown: list[int], chosen: int) -> np.ndarray:
        def search_loss(w: np.ndarray) -> float:
            return loss([score(w, pages[page], NOW) for page in shown], chosen, margin)

        return descent_by_finite_differences(search_loss, weights, epsilon)

    return np.array([update_of(shown, chosen) for shown, chosen in plain(searches)])


@settings(max_examples=150, deadline=None)
@given(FRECENCY_WEIGHTS, cases(), MARGINS, EPSILONS)
def test_frecency_finite_differences_equal_the_scalar_black_box(
    weights: np.ndarray, case: tuple[list[Page], Searches], margin: float, epsilon: float
) -> None:
    pages, searches = case
    updates = FRECENCY.finite_differences(weights, page_table(pages, NOW), searches, margin, epsilon)
    # Scores, margins and steps are exact here, so results can be compared exactly.
    assert np.array_equal(updates, black_box(frecency, weights, pages, searches, margin, epsilon))


@settings(max_examples=150, deadline=None)
@given(hnp.arrays(np.float64, 15, elements=st.integers(-20, 300)), cases(), MARGINS, EPSILONS)
def test_linear_15_finite_differences_equal_the_scalar_black_box(
    weights: np.ndarray, case: tuple[list[Page], Searches], margin: float, epsilon: float
) -> None:
    pages, searches = case
    updates = LINEAR.finite_differences(weights, page_table(pages, NOW), searches, margin, epsilon)
    expected = black_box(linear_15, weights, pages, searches, margin, epsilon)
    assert updates == pytest.approx(expected, rel=1e-9, abs=1e-6)


def matrix_case(seed: int, m: int = 22) -> tuple[np.ndarray, np.ndarray, Searches]:
    """Return weights, features (counts times frequencies, like pages') and searches with random candidates."""
    rng = np.random.default_rng(seed)
    features = rng.poisson(0.5, (60, m)) * rng.exponential(7, (60, 1))
    candidates = np.where(np.arange(10) < rng.integers(0, 11, (30, 1)), rng.integers(0, 60, (30, 10)), -1)
    chosen = rng.integers(-1, np.maximum(1, np.count_nonzero(candidates >= 0, axis=1)))
    chosen[candidates[:, 0] < 0] = -1
    return rng.normal(50, 30, m), features, Searches(candidates, chosen)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("epsilon", [1.0, 0.25])
def test_finite_differences_on_any_matrix_equal_the_black_box(seed: int, epsilon: float) -> None:
    weights, features, searches = matrix_case(seed)
    updates = linear_finite_differences(weights, features.__getitem__, searches, 10.0, epsilon)
    for i in range(len(searches)):
        alone = Searches(searches.candidates[i : i + 1], searches.chosen[i : i + 1])
        expected = descent_by_finite_differences(
            lambda w, alone=alone: losses(linear_scores(w, features), alone, 10.0)[0],  # type: ignore[misc]
            weights,
            epsilon,
        )
        assert updates[i] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_linear_gradient_is_exact_where_no_hinge_is_crossed(seed: int) -> None:
    weights, features, searches = matrix_case(seed)
    tiny = 1e-7  # far below the distance of any candidate from its hinge
    differences = linear_finite_differences(weights, features.__getitem__, searches, 10.0, tiny)
    exact = linear_analytic_updates(weights, features.__getitem__, searches, 10.0)
    assert np.count_nonzero(exact) > 100
    assert differences == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_small_step_along_the_update_lessens_the_loss(seed: int) -> None:
    weights, features, searches = matrix_case(seed)
    update = linear_analytic_updates(weights, features.__getitem__, searches, 10.0).sum(axis=0)
    before, after = (
        losses(linear_scores(w, features), searches, 10.0).sum() for w in (weights, weights + 1e-6 * update)
    )
    # To first order the loss falls by the step times the squared norm: the sign and the size of the gradient.
    assert before - after == pytest.approx(1e-6 * update @ update, rel=0.05)


def smooth_score(weights: np.ndarray, page: Page, now: int) -> float:
    """Return frecency without rounding up and without the special case of -1."""
    w = FrecencyWeights(*weights.tolist())
    sample = newest(page.visits) if page.visit_count > 0 else []
    if not sample:
        bonus = w.unvisited_bookmark_bonus + (w.unvisited_typed_bonus if page.typed else 0)
        return w.first_bucket_weight * bonus / 100 if page.bookmarked and not page.is_query else 0
    points = sum(bucket_weight(w, age_in_days(v, now)) * bonus_of(w, v, page.bookmarked) / 100 for v in sample)
    return page.visit_count / len(sample) * points


def away_from_kinks(weights: np.ndarray, pages: list[Page], searches: Searches, margin: float, epsilon: float) -> bool:
    """Return whether no weight's step crosses a kink of the smooth loss."""
    steps = epsilon * np.concatenate([np.zeros((1, 22)), np.eye(22), -np.eye(22)])
    scores = np.array([[smooth_score(weights + step, page, NOW) for page in pages] for step in steps])
    for shown, chosen in plain(searches):
        over = scores[:, shown] + margin - scores[:, [shown[chosen]]] if chosen >= 0 else np.ones((1, 1))
        over = np.delete(over, chosen, axis=1) if chosen >= 0 else over
        if np.any(over.min(axis=0) * over.max(axis=0) <= 0):
            return False
    return True


@settings(max_examples=150, deadline=None)
@given(FRECENCY_WEIGHTS, cases(), MARGINS)
def test_frecency_gradient_is_that_of_the_smooth_loss(
    weights: np.ndarray, case: tuple[list[Page], Searches], margin: float
) -> None:
    pages, searches = case
    epsilon = 2.0**-20
    assume(away_from_kinks(weights, pages, searches, margin, epsilon))
    exact = FRECENCY.analytic_updates(weights, page_table(pages, NOW), searches, margin)
    # The smooth score is linear in each single weight, so that central differences have no error but rounding.
    differences = black_box(smooth_score, weights, pages, searches, margin, epsilon)
    assert np.all(exact[:, :4] == 0)
    scale = max(1.0, np.abs(exact).max())
    assert exact[:, 4:] == pytest.approx(differences[:, 4:], rel=1e-4, abs=1e-4 * scale)


VISITS_IN_THE_MIDDLE = st.builds(
    Visit, time=st.sampled_from([1, 8, 20, 60, 200]).map(lambda days: NOW - days * DAY), type=st.integers(1, 3)
)


@st.composite
def pages_without_ceilings(draw: st.DrawFn) -> Page:
    """Draw a page with visits far from every cutoff, so that whole steps change its points by whole numbers."""
    visits = tuple(draw(st.lists(VISITS_IN_THE_MIDDLE, min_size=1, max_size=10)))
    return Page(visits=visits, visit_count=len(visits), bookmarked=draw(st.booleans()))


@settings(max_examples=100, deadline=None)
@given(cases(pages_without_ceilings()), st.integers(1, 9), MARGINS)
def test_both_ways_agree_on_frecency_itself_where_it_is_smooth(
    case: tuple[list[Page], Searches], factor: int, margin: float
) -> None:
    pages, searches = case
    weights = frecency_start()
    weights[4:9] = [900, 700, 500, 300, 100]
    weights[11:14] = [100 * factor, 2000, 300]
    assume(away_from_kinks(weights, pages, searches, margin, 1.0))
    table = page_table(pages, NOW)
    by_differences = FRECENCY.finite_differences(weights, table, searches, margin)
    assert FRECENCY.analytic_updates(weights, table, searches, margin) == pytest.approx(by_differences, abs=1e-9)


def test_finite_differences_see_the_cutoffs_and_the_analytic_update_does_not() -> None:
    on_the_cutoff = Page(visits=(Visit(time=NOW - 4 * DAY, type=1),), visit_count=1)
    table = page_table([on_the_cutoff, Page(visits=(Visit(time=NOW, type=1),), visit_count=1)], NOW)
    searches = searches_from([[0, 1]], [0])
    start = frecency_start()
    cutoff = FRECENCY_NAMES.index("firstBucketCutoff")
    # At a cutoff of 3 days the page falls from 100 to 70 points, so the loss is 10 at 4 or 5 days and 40 at 3.
    assert FRECENCY.finite_differences(start, table, searches, 10)[0, cutoff] == (40 - 10) / 2
    assert FRECENCY.analytic_updates(start, table, searches, 10)[0, cutoff] == 0


@pytest.mark.parametrize("typed", [False, True])
def test_a_worked_gradient_of_an_unvisited_bookmark(typed: bool) -> None:
    bookmark, visited = Page(bookmarked=True, typed=typed), Page(visits=(Visit(time=NOW, type=2),), visit_count=1)
    table, searches = page_table([bookmark, visited], NOW), searches_from([[0, 1]], [0])
    update = FRECENCY.analytic_updates(frecency_start(), table, searches, 10)[0]
    # 100 × (140 + 200 if typed) / 100 points, chosen over 100 × 2000 / 100.
    expected = {
        "firstBucketWeight": (3.4 if typed else 1.4) - 20,
        "typedVisitBonus": -1.0,
        "unvisitedBookmarkBonus": 1.0,
    }
    named = {name: value for name, value in zip(FRECENCY_NAMES, update, strict=True) if value}
    assert named == pytest.approx(expected | ({"unvisitedTypedBonus": 1.0} if typed else {}))


def test_a_worked_update() -> None:
    typed, link = (Page(visits=(Visit(time=NOW, type=kind),), visit_count=1) for kind in (2, 1))
    searches = searches_from([[0, 1]], [1])
    update = FRECENCY.finite_differences(frecency_start(), page_table([typed, link], NOW), searches, 10)[0]
    named = {name: value for name, value in zip(FRECENCY_NAMES, update, strict=True) if value}
    # The link at 100 points was chosen over the typed one at 2,000: typed down, link up, and the bucket down by 20 - 1.
    assert named == {"firstBucketWeight": -19.0, "linkVisitBonus": 1.0, "typedVisitBonus": -1.0}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_hinge_at_exactly_zero_contributes_nothing_to_the_gradient(model: RankingModel) -> None:
    pages = [Page(visits=(Visit(time=NOW, type=1),), visit_count=count) for count in (2, 1)]
    weights = frecency_start() if model is FRECENCY else linear_15_truth()
    table, searches = page_table(pages, NOW), searches_from([[0, 1]], [0])
    best, other = model.scores(weights, table)
    assert not model.analytic_updates(weights, table, searches, best - other).any()
    assert model.analytic_updates(weights, table, searches, best - other + 0.001).any()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@settings(max_examples=50, deadline=None)
@given(case=cases())
def test_nothing_selected_changes_nothing(model: RankingModel, case: tuple[list[Page], Searches]) -> None:
    pages, searches = case
    table, weights = page_table(pages, NOW), np.full(model.m, 50.0)
    ignored = Searches(searches.candidates, np.full(len(searches), -1))
    assert not model.finite_differences(weights, table, ignored, 10.0).any()
    assert not model.analytic_updates(weights, table, ignored, 10.0).any()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@settings(max_examples=50, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_a_search_has_the_same_update_in_any_company(
    model: RankingModel, case: tuple[list[Page], Searches], seed: int
) -> None:
    pages, searches = case
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 200, model.m).astype(np.float64)
    table = page_table(pages, NOW)
    many = rng.integers(0, len(searches), 1000)  # several blocks, the same pages shared by all
    places = rng.permutation(20_000)[: len(pages)]  # and far apart, among other pages
    which = rng.integers(0, len(pages), 20_000)
    which[places] = np.arange(len(pages))
    moved = np.where(searches.candidates >= 0, places[searches.candidates], -1)[many]
    company = Searches(moved, searches.chosen[many])
    for method in (model.finite_differences, model.analytic_updates):
        alone = method(weights, table, searches, 10.0)
        together = method(weights, table.rows(which), company, 10.0)
        np.testing.assert_allclose(together, alone[many], rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("candidates", [[0, 1, 2], [1, 3], [0, 1_000_000]])
def test_a_search_that_names_a_page_beyond_the_table_is_refused(model: RankingModel, candidates: list[int]) -> None:
    table, searches = page_table([Page(), Page()], NOW), searches_from([candidates], [0])
    weights = np.full(model.m, 50.0)
    with pytest.raises(IndexError):
        losses(model.scores(weights, table), searches, 10.0)
    with pytest.raises(IndexError):
        model.finite_differences(weights, table, searches, 10.0)
    with pytest.raises(IndexError):
        model.analytic_updates(weights, table, searches, 10.0)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_memory_grows_neither_with_the_searches_nor_with_the_pages_between_theirs(model: RankingModel) -> None:
    page = page_table([Page(visits=(Visit(time=NOW, type=2),) * 10, visit_count=12)], NOW)
    pages = page.rows(np.zeros(100_000, np.intp))
    rng = np.random.default_rng(1)

    def peak(n: int, last_page: int, first_page: int = 0) -> int:
        searches = Searches(rng.integers(first_page, last_page, (n, 10)), np.zeros(n, np.int64))
        tracemalloc.start()
        updates = model.finite_differences(np.full(model.m, 50.0), pages, searches, 10.0)
        used = tracemalloc.get_traced_memory()[1] - updates.nbytes
        tracemalloc.stop()
        return used

    a_block = peak(1000, last_page=1000)
    assert peak(10_000, last_page=1000) < 1.5 * a_block
    assert peak(1000, last_page=100_000) < 3 * a_block  # pages far apart
    assert peak(1000, last_page=100_000, first_page=99_000) < 1.5 * a_block  # and far from the table's start
