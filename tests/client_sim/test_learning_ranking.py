"""Ranking as learning: the linear model on features, and the browser's models on pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import LinearSVC

from fedping.client_sim.learning import (
    ChoiceData,
    Choices,
    SearchData,
    cohort_updates,
    learner_for,
    model_spec,
    updates_of_fleet,
)
from fedping.client_sim.models import linear_15_features, losses, model_for
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.population.synthetic import SyntheticPopulation
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import FedpingError
from fedping.protocol.training import LocalSteps, OneGradient


def choices(seed: int, sizes: tuple[int, ...] = (4, 0, 2)) -> ChoiceData:
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    shown = rng.integers(1, 6, count)
    return ChoiceData(rng.standard_normal((count, 5, 3)), rng.integers(-1, shown), np.array(sizes), shown)


def loss_of_one(weights: np.ndarray, x: np.ndarray, y: int, margin: float) -> float:
    scores = [float(weights @ row) for row in x]
    return sum(max(0.0, s + margin - scores[y]) for j, s in enumerate(scores) if j != y) if y >= 0 else 0.0


@given(seed=st.integers(0, 10_000))
def test_the_linear_ranking_loss_is_the_formula_and_its_gradient_the_differences(seed: int) -> None:
    model, data = learner_for(model_spec("svm-ranking", {"features": 3, "l2": 0.2}, margin=0.7)), choices(seed)
    batch, weights = data.batch(np.arange(3)), np.random.default_rng(seed).standard_normal((3, 3))
    assert data.shown is not None
    for client, rows in enumerate(np.split(np.arange(6), [4, 4])):
        each = [loss_of_one(weights[client], data.x[r, : data.shown[r]], int(data.y[r]), 0.7) for r in rows]
        penalty = 0.1 * weights[client] @ weights[client] if len(rows) else 0.0
        expected = (np.mean(each) if each else 0.0) + penalty
        assert model.losses(weights, batch)[client] == pytest.approx(expected)
    moves = 1e-7 * np.eye(3)
    found = [(model.losses(weights + e, batch) - model.losses(weights - e, batch)) / 2e-7 for e in moves]
    np.testing.assert_allclose(model.gradients(weights, batch), np.stack(found, axis=1), atol=1e-6)
    np.testing.assert_allclose(model.gradients(weights[0], batch)[0], model.gradients(weights, batch)[0], atol=1e-14)


def test_predictions_are_scores_and_nothing_scores_where_no_candidate_is() -> None:
    model, data = learner_for(model_spec("svm-ranking", {"features": 3})), choices(1)
    batch = data.batch(np.arange(3))
    scores = model.predict(np.array([1.0, 2.0, 3.0]), batch)
    there = np.arange(5) < batch.shown[..., None]
    np.testing.assert_allclose(scores[there], (batch.x @ [1.0, 2.0, 3.0])[there])
    assert np.isneginf(scores[~there]).all()


def test_a_group_of_which_no_candidate_is_there_counts_for_nothing() -> None:
    model = learner_for(model_spec("svm-ranking", {"features": 3}))
    batch = Choices(np.ones((1, 1, 2, 3)), np.array([[-1]]), np.ones((1, 1)), np.array([[0]]))
    assert model.losses(np.ones(3), batch)[0] == 0
    assert not model.gradients(np.ones(3), batch).any()


def test_gradient_descent_reaches_the_optimum_of_the_pairwise_svm() -> None:
    rng = np.random.default_rng(2)
    x, truth = rng.standard_normal((60, 4, 3)), np.array([1.0, -2.0, 0.5])
    y = (x @ truth + rng.standard_normal((60, 4))).argmax(axis=1)
    data = ChoiceData(x, y, np.array([60]))
    model = learner_for(model_spec("svm-ranking", {"features": 3, "l2": 0.5}, margin=1.0))
    weights = np.zeros(3)
    for step in range(1, 4000):
        weights -= (2.0 / (step + 3)) * model.gradients(weights, data.batch(np.array([0])))[0]
    others = np.arange(4) != y[:, None]
    pairs = (x[np.arange(60), y][:, None] - x)[others]
    # LinearSVC minimises |w|² / 2 + C × the sum of hinges, in which a pair and its mirror image count twice.
    reference = LinearSVC(C=1 / (2 * 60 * 0.5), loss="hinge", fit_intercept=False, tol=1e-10, max_iter=1_000_000)
    reference.fit(np.concatenate([pairs, -pairs]), np.repeat([1, -1], len(pairs)))
    np.testing.assert_allclose(weights, reference.coef_[0], atol=2e-3)


def test_choices_that_do_not_fit_are_told() -> None:
    with pytest.raises(FedpingError, match="none of the candidates"):
        ChoiceData(np.zeros((2, 3, 1)), np.array([0, 3]), np.array([2]))
    with pytest.raises(FedpingError, match="shape"):
        ChoiceData(np.zeros((2, 3, 1)), np.array([0, 1]), np.array([3]))


def searches(name: str, clients: int = 6) -> SearchData:
    sample = SyntheticPopulation(model_for(name), PopulationSettings(), seed=1).sample(np.arange(clients), 0)
    return SearchData(sample.pages, sample.searches, sample.client, clients)


@pytest.mark.parametrize("name", ["frecency-2018", "linear-15"])
@pytest.mark.parametrize("gradient", ["finite_differences", "analytic"])
def test_a_browsers_model_learns_as_it_does_in_the_fleet(name: str, gradient: str) -> None:
    data, ranker = searches(name), model_for(name)
    model = learner_for(model_spec(name, {"gradient": gradient}, margin=50, epsilon=2))
    weights, keys = model.start * 1.3 + 1, np.zeros(6, np.uint64)
    method = ranker.analytic_updates if gradient == "analytic" else ranker.finite_differences
    further = () if gradient == "analytic" else (2.0,)
    each = method(weights, data.pages, data.searches, 50.0, *further)
    lost = losses(ranker.scores(weights, data.pages), data.searches, 50.0)
    sent, found, _ = cohort_updates(model, OneGradient(), weights, data.batch(np.arange(6)), keys)
    for client in range(6):
        own = data.client == client
        if own.any():
            np.testing.assert_allclose(sent[client], each[own].mean(axis=0), atol=1e-9)
            assert found[client] == pytest.approx(lost[own].mean())
    blocks = list(updates_of_fleet(model, OneGradient(), weights, data, np.arange(6), keys, 1))
    for at, updates, *_ in blocks:
        np.testing.assert_allclose(updates, sent[at], atol=1e-9)


@pytest.mark.parametrize("name", ["frecency-2018", "linear-15"])
def test_clients_with_weights_of_their_own_and_mini_batches(name: str) -> None:
    data, model = searches(name), learner_for(model_spec(name, {"gradient": "analytic"}, margin=50))
    batch, keys = data.batch(np.arange(6)), child_keys(root_key(2), np.arange(6))
    own = np.array(model.start) + np.arange(6)[:, None]
    for client in range(6):
        alone = data.batch(np.array([client]))
        np.testing.assert_allclose(model.gradients(own, batch)[client], model.gradients(own[client], alone)[0])
        np.testing.assert_allclose(model.losses(own, batch)[client], model.losses(own[client], alone)[0])
        width = alone.rows.shape[1]
        np.testing.assert_array_equal(model.predict(own, batch)[client, :width], model.predict(own[client], alone)[0])
    training = LocalSteps(rate=1e-3, epochs=2, batch=2)
    weights = np.array(model.start) + np.arange(len(model.start)) ** 2
    together, _, _ = cohort_updates(model, training, weights, batch, keys)
    for client in range(6):
        alone, _, _ = cohort_updates(model, training, weights, data.batch(np.array([client])), keys[[client]])
        np.testing.assert_allclose(together[client], alone[0], atol=1e-9)
    assert np.abs(together).max() > 0


def test_the_ranker_over_pages_is_the_linear_one_over_their_features() -> None:
    data = searches("linear-15")
    pages = learner_for(model_spec("linear-15", {"gradient": "analytic"}, margin=20))
    features = learner_for(model_spec("svm-ranking", {"features": 15}, margin=20))
    x = linear_15_features(data.pages)[np.maximum(data.searches.candidates, 0)]
    shown = (data.searches.candidates >= 0).sum(axis=1)
    as_choices = ChoiceData(x, data.searches.chosen, data.sizes, shown)
    weights, everybody = pages.start + 2, np.arange(6)
    left, right = data.batch(everybody), as_choices.batch(everybody)
    np.testing.assert_allclose(pages.losses(weights, left), features.losses(weights, right))
    np.testing.assert_allclose(pages.gradients(weights, left), features.gradients(weights, right), atol=1e-9)
    there = left.weight > 0
    np.testing.assert_allclose(pages.predict(weights, left)[there], features.predict(weights, right)[there])


@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5))
@settings(max_examples=15)
def test_a_ranking_client_sends_what_it_would_alone(seed: int, sizes: list[int]) -> None:
    model, data = learner_for(model_spec("svm-ranking", {"features": 3}, margin=1.0)), choices(seed, tuple(sizes))
    keys, everybody = child_keys(root_key(seed), np.arange(len(sizes))), np.arange(len(sizes))
    training = LocalSteps(rate=0.1, epochs=2, batch=2)
    together, _, _ = cohort_updates(model, training, np.ones(3), data.batch(everybody), keys)
    for client in everybody:
        alone, _, _ = cohort_updates(model, training, np.ones(3), data.batch(everybody[[client]]), keys[[client]])
        np.testing.assert_allclose(together[client], alone[0], atol=1e-12)


@given(seed=st.integers(0, 10_000), epsilon=st.sampled_from([0.5, 1.0, 3.0]), nobody=st.booleans())
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("gradient", ["finite_differences", "analytic"])
def test_clients_with_weights_of_their_own_at_once_have_the_very_bits_that_each_has_alone(
    gradient: str, seed: int, epsilon: float, nobody: bool
) -> None:
    users = PopulationSettings(searches=(0, 6), candidates_mean=6, nothing_selected=0.2)
    sample = SyntheticPopulation(model_for("linear-15"), users, seed).sample(np.arange(9), 0)
    data = SearchData(sample.pages, sample.searches, sample.client, 9)
    model = learner_for(model_spec("linear-15", {"gradient": gradient}, margin=10, epsilon=epsilon))
    batch = data.batch(np.empty(0, np.intp) if nobody else np.random.default_rng(seed).permutation(9))
    own = np.array(model.start) * np.exp(np.random.default_rng(seed).standard_normal((len(batch), 15)))
    for method in (model.gradients, model.losses, model.predict):
        together = method(own, batch)
        assert len(together) == len(batch)
        for client, weights in enumerate(own):
            np.testing.assert_array_equal(together[client], method(weights, batch.one(client))[0])
        shared = method(model.start, batch)
        np.testing.assert_array_equal(method(np.tile(model.start, (len(batch), 1)), batch), shared)


def test_weights_that_are_neither_everybodys_nor_each_searchs_are_refused() -> None:
    data, ranker = searches("linear-15"), model_for("linear-15")
    for shape in ((14,), (len(data.searches) + 1, 15), (len(data.searches), 14)):
        with pytest.raises(FedpingError, match="has 15 weights"):
            ranker.finite_differences(np.ones(shape), data.pages, data.searches, 10.0)
