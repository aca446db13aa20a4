"""The spec's constraints hold for a client's own weights, with every algorithm that trains them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fedping.client_sim.fleet.examples import ranks_pages
from fedping.client_sim.fleet.interactions import Conditions, Ranking, interact
from fedping.client_sim.learning import (
    Examples,
    Kept,
    MemoryStates,
    algorithm_for,
    cohort_updates,
    learner_for,
    model_spec,
)
from fedping.client_sim.learning.algorithm import Personalizes
from fedping.client_sim.learning.batch import Floats
from fedping.client_sim.learning.bounds import Bounded
from fedping.client_sim.learning.model import has_bounds
from fedping.client_sim.models import NO_CANDIDATE, model_for
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.population.synthetic import SyntheticPopulation
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import FedpingError
from fedping.protocol.local_optimizers import LocalRProp
from fedping.protocol.personalization import FineTune, Personalization, Vector
from fedping.protocol.spec import Constraint, ModelSpec, NonNegative, OrderedCutoffs, Step, Weight
from fedping.protocol.training import OneGradient

STEP = Step(start=1.0, min=1.0, max=1.0)
NAMES = ("a", "b", "c", "d", "e")
ORDERED = OrderedCutoffs(weights=("a", "b", "c", "d"), gap=2.0, first=1.0)
W = (1.0, 4.0, 6.0, 11.0, 0.5)
"""Allowed weights: a, b, c and d are at least 2 apart, and none is below zero."""


def spec(*constraints: Constraint, start: tuple[float, ...] = W) -> ModelSpec:
    weights = tuple(Weight(name=n, start=v, step=STEP) for n, v in zip(NAMES, start, strict=True))
    settings: dict[str, Any] = {"features": 5, "intercept": False}
    return ModelSpec(name="s", model="linear-regression", settings=settings, weights=weights, constraints=constraints)


def model(*constraints: Constraint, personal: Personalization | None = None) -> Any:
    return learner_for(spec(*constraints), OneGradient(personal=personal or FineTune(rate=1.0)))


WHOLE = st.integers(-20, 20).map(float)


@settings(max_examples=200, deadline=None)
@given(arrays(np.float64, (3, 5), elements=WHOLE), arrays(np.bool_, 5))
def test_free_weights_take_values_that_the_constraints_and_frozen_ones_allow(
    wanted: NDArray[np.float64], free: NDArray[np.bool_]
) -> None:
    wanted = np.where(free, wanted, W)
    found = model(ORDERED, NonNegative()).within(wanted, free)
    assert (found[:, ~free] == wanted[:, ~free]).all()
    assert (found >= 0).all()
    assert (found[:, 0] >= 1).all()
    assert (np.diff(found[:, :4], axis=1) >= 2).all()
    allowed = (wanted >= 0).all(axis=1) & (wanted[:, 0] >= 1) & (np.diff(wanted[:, :4], axis=1) >= 2).all(axis=1)
    assert (found[allowed] == wanted[allowed]).all()
    assert (model(ORDERED, NonNegative()).within(found, free) == found).all()
    assert (model(NonNegative()).within(wanted, free) == np.maximum(wanted, 0)).all()


@pytest.mark.parametrize("mode", ["clamp", "shift"])
def test_a_weight_below_zero_becomes_zero_and_moves_no_other(mode: Any) -> None:
    found = model(NonNegative(mode=mode)).within(np.array([[-3.0, 1.0, 2.0, -0.0, 5.0]]), np.ones(5, np.bool_))
    assert found.tolist() == [[0.0, 1.0, 2.0, 0.0, 5.0]]


def pulling_to(target: Floats) -> Examples:
    """Return examples of one client whose loss is minimal at these weights."""
    return Examples(np.eye(5)[None], np.asarray(target)[None], np.ones((1, 5)))


def trained(personal: Personalization, target: tuple[float, ...], times: int = 30, w: Any = W) -> Any:
    """Return the client's own weights after trainings, and its state."""
    of = model(ORDERED, NonNegative(), personal=personal)
    training = OneGradient(personal=personal)
    algorithm = algorithm_for(training)
    assert isinstance(algorithm, Personalizes)
    states: Any = MemoryStates(algorithm.init_state(of))
    one, w = np.arange(1), np.array(w)
    keys = child_keys(root_key(1), one)
    for _ in range(times):
        after = cohort_updates(of, training, w, pulling_to(np.array(target)), keys, states.load(one)).state
        states.save(one, after)
    return algorithm.personal_weights(of, w, pulling_to(np.array(target)), states.load(one))[0], states.load(one)


RPROP = LocalRProp(alpha=2.0, beta=0.5, step=Step(start=0.5, min=0.01, max=3.0))
METHODS: list[Personalization] = [
    FineTune(rate=0.3, steps=20),
    FineTune(rate=1.0, steps=20, optimizer=RPROP),
    Vector(rate=0.3, steps=20),
    Vector(rate=1.0, steps=20, optimizer=RPROP, basis="random", size=4),
]


@pytest.mark.parametrize("personal", METHODS)
def test_own_weights_stay_within(personal: Personalization) -> None:
    theta, _ = trained(personal, (8.0, 2.0, 3.0, 4.0, -9.0))
    assert theta[4] >= 0
    assert theta[0] >= 1
    assert (np.diff(theta[:4]) >= 2 - 1e-9).all()
    assert (theta != W).any()


def test_frozen_cutoffs_stay_to_the_bit_and_the_others_keep_clear_of_them() -> None:
    theta, _ = trained(FineTune(rate=0.3, steps=50, frozen=("coefficients[2]",)), (8.0, 9.0, 3.0, 4.0, 1.0))
    assert theta[2] == W[2]
    np.testing.assert_allclose(theta[[0, 1, 3]], [2.0, 4.0, 8.0])


def test_own_weights_stay_within_when_frozen_ones_move_below_them() -> None:
    personal = FineTune(rate=0.3, steps=50, frozen=("coefficients[2]",))
    _, state = trained(personal, (1.0, 4.0, 0.0, 8.0, 1.0))
    algorithm: Any = algorithm_for(OneGradient(personal=personal))
    moved = np.array([1.0, 4.0, 9.0, 12.0, 0.5])
    theta = algorithm.personal_weights(model(ORDERED, personal=personal), moved, None, state)[0]
    np.testing.assert_allclose(theta, [1.0, 4.0, 9.0, 11.0, 1.0], atol=1e-6)


def test_a_vector_waits_at_the_bound_and_comes_back_at_once() -> None:
    """The vector doesn't grow outside, for any number of pulls."""
    few, long = (trained(METHODS[2], (1.0, 4.0, 6.0, 11.0, -9.0), times)[1]["own_vector"] for times in (8, 40))
    assert few.tobytes() == long.tobytes()
    assert few[0, 4] == -W[4]


def test_only_who_personalizes_needs_to_know_the_constraints() -> None:
    bound = spec(ORDERED)
    assert not has_bounds(learner_for(bound, OneGradient()))
    assert not has_bounds(learner_for(spec(), OneGradient(personal=FineTune(rate=1.0))))
    assert isinstance(learner_for(bound, OneGradient(personal=FineTune(rate=1.0))), Bounded)


def test_a_model_that_ranks_pages_is_known_as_one_with_its_bounds() -> None:
    frecency = model_spec("frecency-2018", constraints=(NonNegative(),))
    assert ranks_pages(learner_for(frecency, OneGradient(personal=FineTune(rate=1.0))))


def test_a_browser_ranks_with_its_own_weights_within_the_bounds() -> None:
    """Changed shared weights may move a vector out of the bounds; its weights still stay within."""
    training = OneGradient(personal=Vector(rate=1.0))
    linear = model_spec("linear-15", constraints=(NonNegative(),))
    clients, w = np.arange(6), linear.start_array
    sample = SyntheticPopulation(model_for("linear-15"), PopulationSettings(), seed=1).sample(clients, 0)
    states = MemoryStates(algorithm_for(training).init_state(learner_for(linear, training)))
    first = states.load(clients)
    apart = np.where(np.arange(15) < 7, -2 * w, 1.0)
    kept = Kept(states, np.arange(len(sample.searches)) % 6)
    states.save(clients, {**first, "own_vector": np.repeat(apart[None], 6, axis=0).astype(np.float32)})
    ranking = Ranking(linear, w, w, training=training, personal=True)
    within = replace(ranking, weights=np.maximum(w + apart, 0), personal=False)
    among = np.unique(sample.searches.candidates[sample.searches.candidates != NO_CANDIDATE])
    found = ranking.scores_of(sample.pages, sample.searches, kept)[among]
    np.testing.assert_allclose(found, within.scores(sample.pages)[among], rtol=1e-6)


def test_the_scores_in_a_ping_are_not_those_by_a_clients_own_weights() -> None:
    """In a linear model, a few lists of such scores would reveal all of P."""
    training = OneGradient(personal=FineTune(rate=1.0))
    linear = model_spec("linear-15")
    sample = SyntheticPopulation(model_for("linear-15"), PopulationSettings(), seed=1).sample(np.arange(6), 0)
    who, w = np.arange(len(sample.searches)) % 6, linear.start_array
    keys = child_keys(root_key(1), np.arange(len(who)))
    ranking = Ranking(linear, w, w, training=training, personal=True)
    found = []
    for own in (w, -w[::-1], 7 * w):
        states = MemoryStates(algorithm_for(training).init_state(learner_for(linear, training)))
        first = states.load(np.arange(6))
        mine = {"own_weights": np.repeat(own[None], 6, axis=0), "own_trained": np.ones(6, np.int64)}
        states.save(np.arange(6), {**first, **mine})
        found.append(interact(ranking, sample.pages, sample.searches, keys, Conditions(Kept(states, who))))
    assert (found[0].rank != found[1].rank).any()
    for each in found:
        np.testing.assert_array_equal(np.sort(each.scores), np.sort(found[0].scores))


def test_own_weights_that_overflow_are_refused() -> None:
    with pytest.raises(FedpingError, match="not finite; lower the rate"):
        trained(FineTune(rate=1e30, steps=20), (8.0, 2.0, 3.0, 4.0, -9.0))
