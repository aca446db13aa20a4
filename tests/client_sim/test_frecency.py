"""Frecency of 2018: worked examples for the readable implementation, and equality of the fast one."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.models import (
    FRECENCY_NAMES,
    FrecencyWeights,
    Onward,
    Page,
    PageTable,
    Visit,
    VisitType,
    decayed,
    frecency_start,
    model_for,
    page_table,
)
from fedping.client_sim.models.reference import frecency
from fedping.protocol.errors import FedpingError
from tests.client_sim.strategies import DAY, FRECENCY_WEIGHTS, NOW, PAGES

MODEL = model_for("frecency-2018")
START = frecency_start()
PERM, TEMP = VisitType.PERM_REDIRECT, VisitType.TEMP_REDIRECT


def both(page: Page, weights: np.ndarray = START) -> float:
    """Return the score of one page, after checking that both implementations agree."""
    score = frecency(weights, page, NOW)
    assert MODEL.scores(weights, page_table([page], NOW)).tolist() == [score]
    return score


def visit(kind: int = VisitType.LINK, days: float = 0, origin: int | None = None, onward: Onward = Onward.NO) -> Visit:
    return Visit(time=NOW - int(days * DAY), type=kind, origin_type=origin, onward=onward)


def one(*args: object, bookmarked: bool = False, **more: object) -> Page:
    """Return a page with one visit."""
    return Page(visits=(visit(*args, **more),), visit_count=1, bookmarked=bookmarked)  # type: ignore[arg-type]


def with_weights(**changed: float) -> np.ndarray:
    return np.array(FrecencyWeights()._replace(**changed), dtype=np.float64)


@settings(max_examples=400)
@given(FRECENCY_WEIGHTS, st.lists(PAGES, max_size=6))
def test_the_fast_form_equals_the_reference_bit_for_bit(weights: np.ndarray, pages: list[Page]) -> None:
    expected = np.array([frecency(weights, page, NOW) for page in pages], dtype=np.float64)
    assert MODEL.scores(weights, page_table(pages, NOW)).tobytes() == expected.tobytes()


def test_both_forms_agree_on_every_kind_of_visit() -> None:
    distinct = START.copy()
    distinct[9:] = 100 * 3 ** np.arange(13)
    combinations = itertools.product(range(11), [None, *range(11)], Onward, [False, True])
    pages = [one(kind, 0, origin, onward, bookmarked=marked) for kind, origin, onward, marked in combinations]
    expected = [frecency(distinct, page, NOW) for page in pages]
    assert MODEL.scores(distinct, page_table(pages, NOW)).tolist() == expected
    assert len(set(expected)) == 22  # 11 bonuses, each with and without the bookmark's


@pytest.mark.parametrize(
    ("page", "score"),
    [
        (Page(), 0),
        (Page(typed=True), 0),
        (Page(bookmarked=True), 140),
        (Page(bookmarked=True, typed=True), 340),
        (Page(bookmarked=True, typed=True, is_query=True), 0),
        (Page(bookmarked=True, visits=(visit(),)), 140),  # visit_count 0: nothing is sampled
        (Page(bookmarked=True, visit_count=3), 140),  # a counter without visits: nothing either
        (Page(visits=(visit(VisitType.TYPED),), visit_count=1, is_query=True), 2000),
    ],
)
def test_pages_without_a_sample(page: Page, score: int) -> None:
    assert both(page) == score


@pytest.mark.parametrize(
    ("kind", "alone", "bookmarked"),
    [
        (VisitType.LINK, 100, 175),
        (VisitType.TYPED, 2000, 2075),
        (VisitType.BOOKMARK, 75, 150),
        (VisitType.EMBED, -1, 75),
        (PERM, -1, 75),
        (TEMP, -1, 75),
        (VisitType.DOWNLOAD, -1, 75),
        (VisitType.FRAMED_LINK, -1, 75),
        (VisitType.RELOAD, -1, 75),
        (0, -1, 75),
        (42, -1, 75),
        (-7, -1, 75),
    ],
)
def test_one_visit_of_each_type(kind: int, alone: int, bookmarked: int) -> None:
    assert both(one(kind)) == alone
    assert both(one(kind, bookmarked=True)) == bookmarked


@pytest.mark.parametrize(
    ("kind", "origin", "onward", "score"),
    [
        (PERM, VisitType.TYPED, Onward.NO, 2000),
        (TEMP, VisitType.LINK, Onward.NO, 100),
        (TEMP, PERM, Onward.NO, 50),  # one hop only: the origin is a redirect's target itself
        (PERM, 0, Onward.NO, 60),  # a known origin of unknown type
        (VisitType.LINK, VisitType.TYPED, Onward.NO, 100),  # not a redirect's target: its origin is ignored
        (VisitType.LINK, None, Onward.PERMANENTLY, 25),
        (VisitType.LINK, None, Onward.TEMPORARILY, 25),
        (VisitType.TYPED, None, Onward.PERMANENTLY, 25),
        (VisitType.TYPED, None, Onward.TEMPORARILY, 2000),
        (TEMP, VisitType.TYPED, Onward.TEMPORARILY, 2000),  # it counts as typed
        (TEMP, VisitType.LINK, Onward.TEMPORARILY, 25),
        (VisitType.EMBED, None, Onward.PERMANENTLY, 25),  # replaces the type's bonus, even a lower one
    ],
)
def test_redirects(kind: int, origin: int | None, onward: Onward, score: int) -> None:
    weights = with_weights(perm_redirect_visit_bonus=50, temp_redirect_visit_bonus=40, default_visit_bonus=60)
    assert both(one(kind, 0, origin, onward), weights) == score
    assert both(one(kind, 0, origin, onward, bookmarked=True), weights) == score + 75


@pytest.mark.parametrize(
    ("days", "score"),
    [(0, 100), (4, 100), (5, 70), (14, 70), (15, 50), (31, 50), (32, 30), (90, 30), (91, 10), (900, 10)],
)
def test_cutoffs_are_inclusive_and_ages_are_floored(days: int, score: int) -> None:
    last_moment = Visit(time=NOW - (days + 1) * DAY + 1, type=VisitType.LINK)
    assert both(one(days=days)) == score
    assert both(Page(visits=(last_moment,), visit_count=1)) == score


def test_a_visit_in_the_future_is_in_the_first_bucket() -> None:
    assert both(one(days=-3)) == 100


def test_cutoffs_are_tried_in_order_even_if_they_are_not_ascending() -> None:
    weights = with_weights(first_bucket_cutoff=10, second_bucket_cutoff=5, third_bucket_cutoff=20)
    assert [both(one(days=days), weights) for days in (5, 10, 11, 20, 21)] == [100, 100, 50, 50, 30]


def test_cutoffs_need_not_be_whole() -> None:
    weights = with_weights(first_bucket_cutoff=4.5, second_bucket_cutoff=13.999)
    assert [both(one(days=days), weights) for days in (4, 5, 13, 14)] == [100, 70, 70, 50]


def test_two_ceilings() -> None:
    # 30 × 25 % = 7.5, so 8; then 5 × 8 / 2 = 20, where 5 × 7.5 / 2 would give 19.
    page = Page(visits=(visit(days=60, onward=Onward.PERMANENTLY), visit(VisitType.RELOAD)), visit_count=5)
    assert both(page) == 20
    # 7.5 + 0 + 100, so 108; of three sampled visits.
    three = (*page.visits, visit())
    assert [both(Page(visits=three, visit_count=count)) for count in (1, 2, 4, 7)] == [36, 72, 144, 252]
    assert both(Page(visits=three[1:], visit_count=3)) == 150
    assert both(Page(visits=(visit(days=60, onward=Onward.PERMANENTLY),) * 3, visit_count=1)) == 8  # ceil(23 / 3)


def test_visits_without_bonus_count_as_sampled() -> None:
    assert both(Page(visits=(visit(), visit(VisitType.RELOAD)), visit_count=1)) == 50


def test_only_the_ten_newest_visits_count() -> None:
    visits = tuple(visit(VisitType.TYPED if day < 2 else VisitType.LINK, days=day) for day in range(11, -1, -1))
    # Newest first: typed at days 0 and 1 (2000 each), links at days 2 to 4 (100) and 5 to 9 (70).
    assert both(Page(visits=visits, visit_count=12)) == 12 * (2 * 2000 + 3 * 100 + 5 * 70) / 10


def test_points_are_summed_in_float32_from_the_newest_on() -> None:
    # In float32, 2^24 + 1 = 2^24: small points after a large one are lost, before it they are not.
    weights = with_weights(typed_visit_bonus=2.0**24, link_visit_bonus=1)
    large, small = VisitType.TYPED, VisitType.LINK
    newest_large = Page(visits=(visit(large, 0), visit(small, 1), visit(small, 2)), visit_count=3)
    oldest_large = Page(visits=(visit(small, 0), visit(small, 1), visit(large, 2)), visit_count=3)
    assert both(newest_large, weights) == 2**24
    assert both(oldest_large, weights) == 2**24 + 2


def test_scores_are_scaled_and_rounded_up_in_float32() -> None:
    """The score equals that of Firefox's C++; in double precision it would be one less."""
    # 2699 × 6225 is odd and above 2^24, so the product is rounded up by 1, and a third of it is no longer whole.
    three = Page(visits=(visit(VisitType.TYPED),) * 3, visit_count=2699, bookmarked=True)
    assert 2699 * 6225 / 3 == 5_600_425
    assert both(three) == 5_600_426
    # The product is 2^24 + 1, which has no float32; the double would be one more.
    assert both(Page(visits=(visit(),), visit_count=2**24 + 1), with_weights(link_visit_bonus=1)) == 2**24


def test_unvisited_bookmarks_are_scored_in_float32() -> None:
    """In single precision 0.6 is slightly more than 6 / 10, so 25 times 0.6 exceeds 15."""
    page = Page(visits=(), visit_count=0, bookmarked=True)
    assert both(page, with_weights(first_bucket_weight=25, unvisited_bookmark_bonus=60)) == 16


def test_negative_weights_of_finite_differences() -> None:
    assert both(one(VisitType.EMBED), with_weights(embed_visit_bonus=-1)) == -1
    assert both(one(VisitType.EMBED), with_weights(embed_visit_bonus=-300)) == -300
    # -0.3 points: not zero, so not the case of -1; the ceiling is zero.
    assert both(one(VisitType.EMBED, days=60), with_weights(embed_visit_bonus=-1)) == 0
    # Points that cancel out are exactly zero.
    cancelled = Page(visits=(visit(), visit(VisitType.EMBED)), visit_count=2)
    assert both(cancelled, with_weights(embed_visit_bonus=-100)) == -1


def test_names_and_start_in_the_order_of_the_wire() -> None:
    expected = {
        "firstBucketCutoff": 4, "secondBucketCutoff": 14, "thirdBucketCutoff": 31, "fourthBucketCutoff": 90,
        "firstBucketWeight": 100, "secondBucketWeight": 70, "thirdBucketWeight": 50, "fourthBucketWeight": 30,
        "defaultBucketWeight": 10, "embedVisitBonus": 0, "framedLinkVisitBonus": 0, "linkVisitBonus": 100,
        "typedVisitBonus": 2000, "bookmarkVisitBonus": 75, "downloadVisitBonus": 0, "permRedirectVisitBonus": 0,
        "tempRedirectVisitBonus": 0, "redirectSourceVisitBonus": 25, "defaultVisitBonus": 0,
        "unvisitedBookmarkBonus": 140, "unvisitedTypedBonus": 200, "reloadVisitBonus": 0,
    }  # fmt: skip
    assert dict(zip(FRECENCY_NAMES, START.tolist(), strict=True)) == expected
    assert list(FRECENCY_NAMES) == list(expected)


def many_pages(n: int, seed: int) -> PageTable:
    rng = np.random.default_rng(seed)
    return PageTable(
        age_days=rng.integers(0, 120, (n, 10)).astype(np.int32),
        visit_type=rng.integers(0, 10, (n, 10)).astype(np.uint8),
        origin_type=rng.integers(-1, 10, (n, 10)).astype(np.int8),
        onward=rng.integers(0, 3, (n, 10)).astype(np.uint8),
        sampled=rng.integers(0, 11, n).astype(np.int8),
        visit_count=rng.integers(0, 30, n),
        typed=rng.random(n) < 0.5,
        bookmarked=rng.random(n) < 0.5,
        is_query=rng.random(n) < 0.1,
    )


@pytest.mark.parametrize("name", ["frecency-2018", "linear-15"])
def test_a_score_depends_on_its_page_alone(name: str) -> None:
    model, pages = model_for(name), many_pages(9001, seed=1)
    weights = np.random.default_rng(2).uniform(0, 200, model.m)
    scores = model.scores(weights, pages)
    order = np.random.default_rng(3).permutation(len(pages))
    assert np.array_equal(model.scores(weights, pages.rows(order)), scores[order])


@pytest.mark.parametrize("name", ["frecency-2018", "linear-15"])
def test_what_lies_beyond_the_sample_is_never_looked_at(name: str) -> None:
    model, pages = model_for(name), many_pages(500, seed=4)
    unused = np.arange(10) >= pages.sampled[:, None]
    emptied = dataclasses.replace(
        pages,
        age_days=np.where(unused, np.int32(0), pages.age_days),
        visit_type=np.where(unused, np.uint8(1), pages.visit_type),
        origin_type=np.where(unused, np.int8(-1), pages.origin_type),
        onward=np.where(unused, np.uint8(0), pages.onward),
    )
    weights = np.random.default_rng(5).uniform(0, 200, model.m)
    assert np.array_equal(model.scores(weights, emptied), model.scores(weights, pages))


def test_a_clock_that_is_off_by_ages_is_survived() -> None:
    ancient = Page(visits=(Visit(time=-(2**62), type=VisitType.LINK),), visit_count=1)
    future = Page(visits=(Visit(time=2**62 + NOW, type=VisitType.LINK),), visit_count=1)
    assert [both(ancient), both(future)] == [10, 100]


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("visit_type", np.full((3, 10), 10, np.uint8), "visit_type must lie in 0 to 9"),
        ("origin_type", np.full((3, 10), -2, np.int8), "origin_type must lie in -1 to 9"),
        ("onward", np.full((3, 10), 3, np.uint8), "onward must lie in 0 to 2"),
        ("sampled", np.full(3, 11, np.int8), "sampled must lie in 0 to 10"),
        ("visit_count", np.full(3, -1), "visit_count must lie in 0"),
        ("typed", np.zeros(4, np.bool_), "typed has shape"),
        ("age_days", np.zeros((3, 11), np.int32), "1 to 10 visits"),
    ],
)
def test_a_table_refuses_what_does_not_fit(field: str, values: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(many_pages(3, seed=0), **{field: values})


@pytest.mark.parametrize("count", [0, 15, 23])
def test_a_wrong_number_of_weights_is_said(count: int) -> None:
    with pytest.raises(FedpingError, match=f"'frecency-2018' has 22 weights, but {count} were given"):
        MODEL.scores(np.zeros(count), page_table([Page()], NOW))


def test_an_unknown_model_is_said() -> None:
    with pytest.raises(FedpingError, match=r"unknown ranking model 'frecency-2019'.*frecency-2018 or linear-15"):
        model_for("frecency-2019")


@given(st.lists(st.integers(-1, 10**7), max_size=20))
def test_decay_by_whole_number_arithmetic(scores: list[int]) -> None:
    # Round half up of s × 39/40; where s is positive that is away from zero.
    expected = [(39 * score + 20) // 40 if score > 0 else score for score in scores]
    assert decayed(np.array(scores, dtype=np.float64)).tolist() == expected


def test_decay_ends_at_twenty() -> None:
    scores = np.array([-1.0, 0.0, 1.0, 19.0, 20.0, 21.0, 60.0, 100.0, 2000.0])
    assert decayed(scores).tolist() == [-1, 0, 1, 19, 20, 20, 59, 98, 1950]
    for _ in range(365):
        scores = decayed(scores)
    assert scores.tolist() == [-1, 0, 1, 19, 20, 20, 20, 20, 20]
