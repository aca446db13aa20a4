"""Synthetic users follow the stated distributions, and each is independent of the others.

The statistical tests draw once, from fixed seeds, so their results never change. Each compares its p-value with
``ALPHA``: with another seed, a correct generator would fail one of them with that probability.
"""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedping.client_sim.models import (
    MODELS,
    NOTHING_CHOSEN,
    PageTable,
    Searches,
    VisitType,
    losses,
    model_for,
    selected_ranks,
)
from fedping.client_sim.population.settings import Drift, DriftsTo, PopulationSettings
from fedping.client_sim.population.synthetic import (
    Sample,
    SyntheticPopulation,
    Wishes,
    displayed,
    frecency_pages,
    newest_ages,
    number_of_visits,
    true_weights,
)
from fedping.protocol.draws import child_keys, normals, root_key, uniforms
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.settings_file import converted

ALPHA = 1e-4
THESIS = PopulationSettings(other_visits=0, redirect_sources=0, unvisited=0, nothing_selected=0)


def keys(count: int, seed: int = 1) -> np.ndarray:
    return child_keys(root_key(seed), np.arange(count))


DEFAULT = PopulationSettings()


def population(settings: PopulationSettings = DEFAULT, name: str = "frecency-2018") -> SyntheticPopulation:
    return SyntheticPopulation(model_for(name), settings, seed=5)


def in_both(sample: Sample, client: int) -> list[tuple[object, ...]]:
    """Return all of a sample's data of one client, as plain values."""
    said = []
    for row in np.flatnonzero(sample.client == client):
        pages = sample.searches.candidates[row]
        pages = pages[pages >= 0]
        table = sample.pages.rows(pages)
        said.append(
            (sample.searches.chosen[row], *(getattr(table, name).tolist() for name in PageTable.__annotations__))
        )
    return said


def test_uniforms_are_uniform_and_neither_keys_nor_positions_repeat() -> None:
    drawn = uniforms(keys(2000), 50)
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > ALPHA
    assert len(np.unique(drawn)) == drawn.size
    assert abs(np.corrcoef(drawn.T) - np.eye(50)).max() < stats.norm.isf(ALPHA / 2500) / np.sqrt(2000)


def test_normals_are_standard_normal() -> None:
    assert stats.kstest(normals(keys(20_000), 2).ravel(), "norm").pvalue > ALPHA


def test_children_of_neighbouring_keys_differ() -> None:
    made = child_keys(keys(300)[:, None], np.arange(300))
    assert len(np.unique(made)) == made.size


def test_visits_are_exponential_with_a_mean_of_seven_rounded_up() -> None:
    visits = number_of_visits(uniforms(keys(50_000), 1)[:, 0], THESIS)
    edges = np.arange(0, 30)
    expected = np.append(np.diff(stats.expon(scale=7).cdf(edges)), stats.expon(scale=7).sf(edges[-1]))
    observed = np.bincount(np.minimum(visits, 30), minlength=31)[1:]
    assert stats.chisquare(observed, expected * len(visits)).pvalue > ALPHA


def test_ages_follow_the_skewed_uniform_distribution_over_180_days() -> None:
    ages = newest_ages(keys(20_000), np.ones(20_000, np.int64), THESIS)[:, 0]
    assert stats.kstest((ages / 180) ** (1 / THESIS.recency_skew), "uniform").pvalue > ALPHA
    assert ages.mean() < 90, "skewed towards recent visits"


@pytest.mark.parametrize(("visits", "place"), [(10, 0), (10, 9), (300, 0), (300, 9), (7, 6)])
def test_the_newest_visits_are_the_order_statistics_of_all_visits(visits: int, place: int) -> None:
    uniform_ages = PopulationSettings(recency_skew=1, days=1)
    ages = newest_ages(keys(5000, seed=visits), np.full(5000, visits), uniform_ages)[:, place]
    assert stats.kstest(ages, stats.beta(place + 1, visits - place).cdf).pvalue > ALPHA


def test_visits_come_in_the_kinds_of_the_thesis() -> None:
    table = frecency_pages(keys(20_000), THESIS)
    observed = np.bincount(table.visit_type[_present(table)], minlength=4)[1:]
    assert stats.chisquare(observed, np.array([0.6, 0.2, 0.2]) * observed.sum()).pvalue > ALPHA


def test_other_visits_have_their_share_and_are_of_every_type() -> None:
    table = frecency_pages(keys(20_000), PopulationSettings(other_visits=0.3))
    types = table.visit_type[_present(table)]
    others = types > VisitType.BOOKMARK
    assert stats.binomtest(int(others.sum()), others.size, 0.3).pvalue > ALPHA
    assert set(types[others]) == set(range(VisitType.EMBED, VisitType.RELOAD + 1))


def test_pages_are_consistent() -> None:
    table = frecency_pages(keys(20_000), PopulationSettings())
    present = _present(table)
    assert (np.diff(table.age_days, axis=1)[present[:, 1:]] >= 0).all(), "newest first"
    assert (table.visit_count[table.sampled > 0] >= 1).all()
    assert (table.visit_count[table.sampled == 0] == 0).all()
    assert table.bookmarked[table.sampled == 0].all(), "a page without visits is suggested for its bookmark only"
    assert ((table.visit_type == VisitType.TYPED).any(axis=1) <= table.typed).all()
    is_target = np.isin(table.visit_type, [VisitType.PERM_REDIRECT, VisitType.TEMP_REDIRECT])
    assert ((table.origin_type >= 0) == is_target).all()


def test_candidates_are_normal_with_mean_4_and_variance_10_rounded_and_at_least_2() -> None:
    sample = population(THESIS).sample(np.arange(20_000), 0)
    counts = (sample.searches.candidates >= 0).sum(axis=1)
    normal = stats.norm(4, np.sqrt(10))
    edges = np.arange(2.5, 13)
    expected = np.diff(np.concatenate([[0], normal.cdf(edges), [1]]))
    observed = np.bincount(np.minimum(counts, 13), minlength=14)[2:]
    assert stats.chisquare(observed, expected * counts.size).pvalue > ALPHA


def test_each_number_of_searches_is_equally_likely() -> None:
    sample = population(PopulationSettings(searches=(0, 3))).sample(np.arange(20_000), 0)
    counts = np.bincount(np.bincount(sample.client, minlength=20_000))
    assert len(counts) == 4
    assert stats.chisquare(counts).pvalue > ALPHA


def test_the_choice_is_the_best_score_under_the_true_weights_plus_noise() -> None:
    """Of two pages with one visit each, d points apart, the lower is chosen with P(N(0, 2 variance) > d)."""
    settings = PopulationSettings(
        candidates_mean=2, candidates_variance=0, nothing_selected=0, noise_variance=400, searches=(1, 1)
    )
    sample = population(settings).sample(np.arange(20_000), 0)
    scores = model_for("frecency-2018").scores(true_weights(model_for("frecency-2018"), ()), sample.pages)
    pairs = scores[sample.searches.candidates]
    gap = np.abs(pairs[:, 0] - pairs[:, 1])
    close = gap <= 60
    took_lower = pairs[np.arange(len(pairs)), sample.searches.chosen] < pairs.max(axis=1)
    probability = stats.norm.sf(gap[close] / np.sqrt(2 * 400)) * (gap[close] > 0)
    z = (took_lower[close].sum() - probability.sum()) / np.sqrt((probability * (1 - probability)).sum())
    assert close.sum() > 500
    assert abs(z) < stats.norm.isf(ALPHA / 2)


def test_without_noise_the_true_weights_rank_every_choice_at_the_top() -> None:
    sample = population(PopulationSettings(noise_variance=0, nothing_selected=0)).sample(np.arange(2000), 3)
    model = model_for("frecency-2018")
    scores = model.scores(true_weights(model, ()), sample.pages)
    assert (displayed(sample.searches, scores).chosen == 0).all()
    assert (losses(scores, sample.searches, margin=0.0) == 0).all()


def test_nothing_is_selected_in_the_stated_share_of_searches() -> None:
    sample = population(PopulationSettings(nothing_selected=0.25)).sample(np.arange(10_000), 0)
    nothing = sample.searches.chosen == NOTHING_CHOSEN
    assert stats.binomtest(int(nothing.sum()), nothing.size, 0.25).pvalue > ALPHA


@settings(deadline=None)
@given(clients=st.lists(st.integers(0, 10**6), min_size=1, max_size=8, unique=True), iteration=st.integers(0, 10**4))
def test_a_client_is_the_same_alone_and_among_others_in_any_order(clients: list[int], iteration: int) -> None:
    made = population()
    together = made.sample(np.array(clients), iteration)
    reversed_ = made.sample(np.array(clients[::-1]), iteration)
    for position, client in enumerate(clients):
        alone = made.sample(np.array([client]), iteration)
        assert in_both(together, position) == in_both(alone, 0) == in_both(reversed_, len(clients) - 1 - position)


def test_seeds_clients_and_iterations_all_matter() -> None:
    model = model_for("frecency-2018")
    made = {
        (seed, client, iteration): str(
            in_both(SyntheticPopulation(model, THESIS, seed).sample(np.array([client]), iteration), 0)
        )
        for seed in (1, 2)
        for client in (1, 2)
        for iteration in (1, 2)
    }
    assert len(set(made.values())) == len(made)


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None)
@given(seed=st.integers(0, 1000))
def test_displaying_keeps_every_candidate_and_the_choice_and_puts_the_best_on_top(name: str, seed: int) -> None:
    model = model_for(name)
    sample = population(name=name).sample(np.arange(20), seed)
    weights = np.random.default_rng(seed).uniform(0, 100, model.m)
    scores = model.scores(weights, sample.pages)
    ranked = displayed(sample.searches, scores)
    assert (selected_ranks(scores, ranked) == ranked.chosen).all(), "the displayed position is the rank by score"
    for before, after in zip(_choices(sample.searches), _choices(ranked), strict=True):
        assert before == after


def test_true_weights_that_do_not_fit_are_told() -> None:
    with pytest.raises(InvalidSettings, match="3 true weights were given, but 'linear-15' has 15"):
        population(PopulationSettings(true_weights=(1, 2, 3)), "linear-15")


def test_shares_that_do_not_sum_to_one_are_told() -> None:
    with pytest.raises(InvalidSettings, match=r"sum to 0\.9"):
        PopulationSettings(kinds=(0.5, 0.2, 0.2))
    with pytest.raises(InvalidSettings, match="swap"):
        PopulationSettings(searches=(3, 1))


TASTES = PopulationSettings(tastes=0.5, noise_variance=0, nothing_selected=0)


def wishes(seed: int = 5, tastes: float = 0.5, name: str = "linear-15") -> Wishes:
    return Wishes.under(model_for(name), PopulationSettings(tastes=tastes), seed)


@given(clients=st.lists(st.integers(0, 2**31), min_size=1, max_size=8, unique=True), seed=st.integers(0, 100))
def test_what_a_user_wants_depends_on_the_seed_and_the_user_alone(clients: list[int], seed: int) -> None:
    together = wishes(seed).of(np.array(clients))
    for position, client in enumerate(clients):
        np.testing.assert_array_equal(together[position], wishes(seed).of(np.array([client]))[0])
    assert (wishes(seed, tastes=0).of(np.array(clients)) == wishes().truth).all()
    assert not (wishes(seed + 1).of(np.array(clients)) == together).any()


def test_tastes_are_the_true_weights_times_a_log_normal_factor() -> None:
    made = wishes(tastes=0.4)
    factors = np.log(made.of(np.arange(2000)) / made.truth) / 0.4
    assert stats.kstest(factors.ravel(), "norm").pvalue > ALPHA
    between = np.asarray(np.corrcoef(factors.T))[np.triu_indices(15, 1)]
    assert np.abs(between).max() < stats.norm.isf(ALPHA / 2 / len(between)) / np.sqrt(2000)


@pytest.mark.parametrize("name", MODELS)
def test_users_with_tastes_choose_by_their_own_weights_in_every_iteration(name: str) -> None:
    model, clients = model_for(name), np.arange(100, 140)
    for iteration in (0, 9):
        sample = population(TASTES, name).sample(clients, iteration)
        for position, own in enumerate(wishes(name=name).of(clients)):
            candidates = sample.searches.candidates[sample.client == position]
            chosen = sample.searches.chosen[sample.client == position]
            scores = model.scores(own, sample.pages)
            assert (displayed(Searches(candidates, chosen), scores).chosen == 0).all()
    shared = model.scores(true_weights(model, ()), sample.pages)
    assert (displayed(sample.searches, shared).chosen > 0).sum() > 3


@pytest.mark.parametrize("name", MODELS)
def test_tastes_change_what_is_chosen_and_nothing_else(name: str) -> None:
    without, hardly = PopulationSettings(), PopulationSettings(tastes=1e-300)
    plain, tasted, like_plain = (
        population(each, name).sample(np.arange(300), 2) for each in (without, PopulationSettings(tastes=1.0), hardly)
    )
    for other in (tasted, like_plain):
        for column in PageTable.__annotations__:
            np.testing.assert_array_equal(getattr(plain.pages, column), getattr(other.pages, column))
        np.testing.assert_array_equal(plain.searches.candidates, other.searches.candidates)
    np.testing.assert_array_equal(plain.searches.chosen, like_plain.searches.chosen)
    changed = plain.searches.chosen != tasted.searches.chosen
    assert 0.05 < changed.mean() < 0.7
    assert not (changed & (plain.searches.chosen == NOTHING_CHOSEN)).any()


DRIFT = Drift(at=19, over=6, to=DriftsTo(kinds=(0.78, 0.2, 0.02), recency_skew=0.5, noise_variance=0))


@given(at=st.integers(0, 30), over=st.integers(1, 10), iteration=st.integers(0, 60))
def test_drift_is_linear_from_the_settings_to_those_it_leads_to(at: int, over: int, iteration: int) -> None:
    start = PopulationSettings(kinds=(0.35, 0.2, 0.45), recency_skew=3.0)
    now = msgspec.structs.replace(start, drift=Drift(at=at, over=over, to=DRIFT.to)).at(iteration)
    share = np.clip((iteration - at) / over, 0, 1)
    assert now.recency_skew == pytest.approx(3.0 - 2.5 * share)
    assert now.noise_variance == pytest.approx(30.0 - 30.0 * share)
    assert now.kinds == pytest.approx((0.35 + 0.43 * share, 0.2, 0.45 - 0.43 * share))
    assert (now.drift, now.days, now.searches) == (None, start.days, start.searches)
    if iteration <= at:
        assert now == start
    if iteration >= at + over:
        assert (now.kinds, now.recency_skew, now.noise_variance) == (DRIFT.to.kinds, 0.5, 0)


def test_users_who_drift_search_as_before_it_and_as_after_it() -> None:
    drifting = population(PopulationSettings(drift=DRIFT))
    before, after = PopulationSettings(), PopulationSettings(**DRIFT.to.given)  # type: ignore[arg-type]
    for iteration, as_in in ((0, before), (19, before), (25, after), (10**6, after)):
        found, expected = (each.sample(np.arange(50), iteration) for each in (drifting, population(as_in)))
        assert [in_both(found, k) for k in range(50)] == [in_both(expected, k) for k in range(50)]
    wanting = PopulationSettings(
        true_weights=(1.0,) * 15, drift=Drift(at=0, over=2, to=DriftsTo(true_weights=(3.0,) * 15))
    )
    assert wanting.at(1).true_weights == (2.0,) * 15


@pytest.mark.parametrize(
    ("drift", "said"),
    [
        ({"to": {}}, "'drift' has nothing that it leads to"),
        ({"to": {"kinds": [0.5, 0.4, 0.2]}}, r"sum to 1\.1"),
        ({"to": {"true_weights": [1.0]}}, "has 0 true_weights and drifts to 1"),
        ({"to": {"tastes": -1.0}}, r"drift\.to\.tastes|>= 0"),
        ({"to": {"searches": [1, 2]}}, "searches"),
        ({"to": {"days": 90.0}, "over": 0}, "over|>= 1"),
    ],
)
def test_drift_that_cannot_be_meant_is_refused(drift: dict[str, object], said: str) -> None:
    with pytest.raises(FedpingError, match=said):
        converted({"drift": {"at": 1, "over": 1, **drift}}, PopulationSettings, "")


def _present(table: PageTable) -> np.ndarray:
    return np.arange(table.visit_type.shape[1]) < table.sampled[:, None]


def _choices(searches: Searches) -> list[tuple[int, list[int]]]:
    rows = zip(searches.candidates.tolist(), searches.chosen.tolist(), strict=True)
    return [(row[chosen] if chosen >= 0 else NOTHING_CHOSEN, sorted(row)) for row, chosen in rows]
