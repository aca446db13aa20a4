"""The mixture of the shared model with a client's own: its gradients, its sent update, and its private state."""

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.learning import Examples, algorithm_for, cohort_updates, learner_for, model_spec
from fedping.client_sim.learning.algorithm import Personalizes, State
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.model import predictions_and_scores
from fedping.client_sim.learning.models.mixture import Mixture, mixture_of
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.personalization import Expert
from fedping.protocol.training import LocalSteps, OneGradient

KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "regression": ("linear-regression", {"features": 3, "l2": 0.2}, 0),
    "two classes": ("logistic-regression", {"features": 3, "l2": 0.2}, 2),
    "five classes": ("logistic-regression", {"features": 3, "classes": 5, "l2": 0.2}, 5),
    "a network": ("network", {"features": 3, "classes": 5, "hidden": 4, "l2": 0.2}, 5),
}
"""Models with their number of classes; 0 means that the model predicts numbers."""


def learner(kind: str) -> Any:
    name, settings, _ = KINDS[kind]
    return learner_for(model_spec(name, settings))


def examples(classes: int, clients: int = 3, each: int = 6) -> Examples:
    """Return examples of clients; the last has none, and the first has fewer than the others."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, classes, (clients, each)) if classes else rng.normal(size=(clients, each))
    weight = np.ones((clients, each))
    weight[0, -1], weight[-1] = 0.0, 0.0
    return Examples(rng.normal(size=(clients, each, 3)), y, weight)


def keys(count: int) -> Any:
    return child_keys(root_key(1), np.arange(count))


def state_of(model: Any, training: OneGradient, clients: int, **changed: Any) -> State:
    first = algorithm_for(training).init_state(model)
    state = {name: np.repeat(value[None], clients, axis=0) for name, value in first.items()}
    return state | {f"own_{name}": value for name, value in changed.items()}


def own_weights(model: Any, seed: int = 3, clients: int = 3) -> tuple[FloatArray, FloatArray]:
    """Return w, shape (m,), and P, shape (clients, m)."""
    rng, m = np.random.default_rng(seed), len(model.weight_names)
    return rng.normal(size=m), rng.normal(size=(clients, m))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [0.3, 40.0, -40.0])
def test_the_gradients_are_those_of_the_loss(kind: str, offset: float) -> None:
    mixture, batch = Mixture(learner(kind)), examples(KINDS[kind][2])
    rng = np.random.default_rng(2)
    weights = 0.5 * rng.normal(size=(3, len(mixture.weight_names)))
    weights[:, -1] = offset
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        found = mixture.gradients(weights, batch)
    for place in range(weights.shape[1]):
        up, down = weights.copy(), weights.copy()
        up[:, place] += 1e-5
        down[:, place] -= 1e-5
        differences = (mixture.losses(up, batch) - mixture.losses(down, batch)) / 2e-5
        np.testing.assert_allclose(found[:, place], differences, atol=1e-6)
    assert not found[-1].any()


@pytest.mark.parametrize("name", ["logistic-regression", "network"])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_its_log_odds_are_those_of_the_mixed_probability_where_that_rounds_to_one(name: str, scale: float) -> None:
    """Compared with the definition, computed to 500 decimal digits."""
    settings = {"features": 3} if name == "logistic-regression" else {"features": 3, "classes": 2, "hidden": 4}
    mixture, batch = Mixture(learner_for(model_spec(name, settings))), examples(2)
    weights = scale * np.random.default_rng(4).normal(size=(3, len(mixture.weight_names)))
    weights[:, -4:] /= scale
    predictions, odds = predictions_and_scores(mixture, weights, batch)
    np.testing.assert_array_equal(predictions, mixture.predict(weights, batch))
    parts = mixture.parts(weights)
    of_experts = [predictions_and_scores(mixture.model, each, batch)[1] for each in (parts.shared, parts.private)]
    gate = np.einsum("kd,knd->kn", parts.gate[:, :-1], batch.x) + parts.gate[:, -1:]
    assert odds is not None
    with localcontext(prec=500):
        sigmoid = np.vectorize(lambda score: 1 / (1 + (-Decimal(score)).exp()), otypes=[object])
        log_odds = np.vectorize(lambda share: float((share / (1 - share)).ln()))
        share = sigmoid(gate)
        expected = log_odds(share * sigmoid(of_experts[0]) + (1 - share) * sigmoid(of_experts[1]))
    np.testing.assert_allclose(odds, expected, rtol=1e-12, atol=1e-14)


def test_its_log_odds_are_those_of_either_expert_where_both_agree() -> None:
    """Equal to the bit, so that examples with equal scores stay tied for any gate."""
    mixture, batch = Mixture(learner("two classes")), examples(2)
    same, gate = np.array([3.0, -2.0, 0.5, 0.1]), np.array([0.3, -0.7, 0.2, 0.9])
    odds = predictions_and_scores(mixture, np.concatenate([same, same, gate]), batch)[1]
    np.testing.assert_array_equal(odds, predictions_and_scores(mixture.model, same, batch)[1])


@pytest.mark.parametrize("kind", ["regression", "five classes"])
def test_it_has_no_log_odds_where_its_experts_have_none(kind: str) -> None:
    mixture = Mixture(learner(kind))
    weights = np.zeros(len(mixture.weight_names))
    assert predictions_and_scores(mixture, weights, examples(KINDS[kind][2]))[1] is None


def test_one_example_by_hand() -> None:
    """x (1, -2), w (.5, .25, .1), P (-.3, .4, .2), gate (.2, -.1, .3), t 1.5; by the formulas of the paper."""
    mixture = Mixture(learner_for(model_spec("linear-regression", {"features": 2})))
    batch = Examples(np.array([[[1.0, -2.0]]]), np.array([[1.5]]), np.ones((1, 1)))
    weights = np.array([[0.5, 0.25, 0.1, -0.3, 0.4, 0.2, 0.2, -0.1, 0.3]])
    assert mixture.mixed(mixture.parts(weights), batch).share[0, 0] == pytest.approx(0.668187772, abs=5e-10)
    assert mixture.predict(weights, batch)[0, 0] == pytest.approx(-0.231812228, abs=5e-10)
    assert mixture.losses(weights, batch)[0] == pytest.approx(2.999173592, abs=5e-10)
    of_one = mixture.gradients(weights, batch)[0] / np.tile([1.0, -2.0, 1.0], 3)
    each = np.repeat([-2.314351508, -1.149272947, -0.767930130], 3)  # cut off, or rounded, after nine digits
    np.testing.assert_allclose(of_one, each, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joint", [True, False])
def test_who_trusts_the_shared_model_alone_trains_as_without_an_expert(kind: str, joint: bool) -> None:
    model, batch = learner(kind), examples(KINDS[kind][2])
    training = OneGradient(personal=Expert(private_rate=0.1, gate_rate=0.1, gate_start=40.0, joint=joint))
    w, private = own_weights(model)
    state = state_of(model, training, 3, weights=private, trained=np.ones(3, np.int64))
    plain = cohort_updates(model, OneGradient(), w, batch, keys(3))
    done = cohort_updates(model, training, w, batch, keys(3), state)
    np.testing.assert_allclose(done.updates, plain.updates, rtol=0, atol=1e-12)
    algorithm = algorithm_for(training)
    assert isinstance(algorithm, Personalizes)
    mixture, own = algorithm.personal_model(model), algorithm.personal_weights(model, w, batch, state)
    np.testing.assert_allclose(mixture.predict(own, batch), model.predict(w, batch), rtol=0, atol=1e-12)
    np.testing.assert_allclose(mixture.losses(own, batch), model.losses(w, batch), rtol=0, atol=1e-12)


def test_who_trusts_the_own_model_alone_sends_zeros() -> None:
    model = learner_for(model_spec("linear-regression", {"features": 3}))
    training = OneGradient(personal=Expert(private_rate=0.1, gate_rate=0.1))
    w, private = own_weights(model)
    gate = np.tile([0.0, 0.0, 0.0, -1e4], (3, 1))
    state = state_of(model, training, 3, weights=private, gate=gate, trained=np.ones(3, np.int64))
    done = cohort_updates(model, training, w, examples(0), keys(3), state)
    assert not done.updates.any()
    assert (done.state["own_weights"][:2] != private[:2]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_all_gradients_come_before_all_moves(kind: str) -> None:
    model, batch = learner(kind), examples(KINDS[kind][2])
    training = OneGradient(personal=Expert(private_rate=0.1, gate_rate=0.2, l2=0.0))
    w, private = own_weights(model)
    gate = np.random.default_rng(4).normal(size=(3, 4))
    state = state_of(model, training, 3, weights=private, gate=gate, trained=np.ones(3, np.int64))
    mixture = mixture_of(model)
    expected = mixture.parts(mixture.gradients(np.concatenate([np.tile(w, (3, 1)), private, gate], axis=1), batch))
    done = cohort_updates(model, training, w, batch, keys(3), state)
    np.testing.assert_allclose(-done.updates, expected.shared, rtol=0, atol=1e-12)
    np.testing.assert_allclose(private - done.state["own_weights"], 0.1 * expected.private, rtol=0, atol=1e-12)
    np.testing.assert_allclose(gate - done.state["own_gate"], 0.2 * expected.gate, rtol=0, atol=1e-12)
    assert list(done.state["own_trained"]) == [2, 2, 1]


def test_the_penalty_is_on_what_stays_and_spares_intercepts() -> None:
    model, batch = learner("regression"), examples(0)
    w, private = own_weights(model)
    gate = np.ones((3, 4))
    after = {}
    for l2 in (0.0, 0.5):
        training = OneGradient(personal=Expert(private_rate=0.1, gate_rate=0.1, l2=l2))
        state = state_of(model, training, 3, weights=private, gate=gate, trained=np.ones(3, np.int64))
        after[l2] = cohort_updates(model, training, w, batch, keys(3), state)
    np.testing.assert_array_equal(after[0.0].updates, after[0.5].updates)
    pulled = after[0.0].state["own_weights"] - after[0.5].state["own_weights"]
    np.testing.assert_allclose(pulled[:2], 0.05 * private[:2] * [1, 1, 1, 0], atol=1e-12)
    shrunk = after[0.0].state["own_gate"] - after[0.5].state["own_gate"]
    np.testing.assert_allclose(shrunk[:2], 0.05 * gate[:2] * [1, 1, 1, 0], atol=1e-12)
    assert not pulled[2].any()
    assert not shrunk[2].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joint", [True, False])
def test_examples_are_clipped_after_the_gate(kind: str, joint: bool) -> None:
    """Compared with each example as a separate client; an example with almost no weight on w isn't clipped."""
    name, settings, classes = KINDS[kind]
    model = learner_for(model_spec(name, settings | {"l2": 0.0}))
    batch = examples(classes)
    w, private = own_weights(model)
    gate = np.random.default_rng(4).normal(size=(3, 4))
    own = Expert(private_rate=0.1, gate_rate=0.1, joint=joint)
    updates: list[list[FloatArray]] = [[], []]
    for client in range(2):
        for i in range(int(batch.weight[client].sum())):
            one = Examples(*(of[client : client + 1, i : i + 1] for of in (batch.x, batch.y, batch.weight)))
            training = OneGradient(personal=own)
            mine = {"weights": private[client : client + 1], "gate": gate[client : client + 1]}
            state = state_of(model, training, 1, **mine, trained=np.ones(1, np.int64))
            updates[client].append(np.asarray(cohort_updates(model, training, w, one, keys(1), state).updates[0]))
    clip = float(np.median([np.linalg.norm(update) for each in updates for update in each]))
    expected = np.zeros((3, len(w)))
    for client, each in enumerate(updates):
        expected[client] = np.mean([update * min(1.0, clip / np.linalg.norm(update)) for update in each], axis=0)
    clipped = OneGradient(personal=Expert(private_rate=0.1, gate_rate=0.1, joint=joint, clip=clip))
    state = state_of(model, clipped, 3, weights=private, gate=gate, trained=np.ones(3, np.int64))
    np.testing.assert_allclose(cohort_updates(model, clipped, w, batch, keys(3), state).updates, expected, atol=1e-12)


def test_noise_is_on_the_sum_of_what_is_sent_alone() -> None:
    model, many = learner_for(model_spec("linear-regression", {"features": 3})), 4000
    rng = np.random.default_rng(5)
    batch = Examples(rng.normal(size=(many, 2, 3)), rng.normal(size=(many, 2)), np.ones((many, 2)))
    done = {}
    for noise in (0.0, 3.0):
        training = OneGradient(personal=Expert(private_rate=0.1, gate_rate=0.1, clip=0.5, noise=noise))
        done[noise] = cohort_updates(model, training, model.start, batch, keys(many), state_of(model, training, many))
    added = 2 * (done[3.0].updates - done[0.0].updates)
    # 16,000 draws: the standard error of their standard deviation is 0.6 %, of their mean 0.012.
    assert added.std() == pytest.approx(1.5, rel=0.03)
    assert abs(added.mean()) < 0.06
    for name, value in done[0.0].state.items():
        np.testing.assert_array_equal(value, done[3.0].state[name])


def test_who_has_not_trained_predicts_with_the_shared_model_to_the_bit() -> None:
    for kind, (_, _, classes) in KINDS.items():
        model, batch = learner(kind), examples(classes)
        training = OneGradient(personal=Expert(private_rate=0.1, gate_rate=0.1, gate_start=1.7))
        algorithm, (w, _) = algorithm_for(training), own_weights(model)
        assert isinstance(algorithm, Personalizes)
        own = algorithm.personal_weights(model, w, batch, state_of(model, training, 3))
        predicted = algorithm.personal_model(model).predict(own, batch)
        np.testing.assert_array_equal(predicted, model.predict(w, batch))


def test_before_its_version_the_shared_weights_are_trained_alone() -> None:
    model, batch = learner("regression"), examples(0)
    training = OneGradient(personal=Expert(private_rate=0.1, gate_rate=0.1, from_version=2))
    state, (w, _) = state_of(model, training, 3), own_weights(model)
    done = cohort_updates(model, training, w, batch, keys(3), state, version=1)
    np.testing.assert_array_equal(done.updates, cohort_updates(model, OneGradient(), w, batch, keys(3)).updates)
    assert not done.state["own_trained"].any()


def test_what_has_no_predictions_to_mix_is_refused() -> None:
    personal = Expert(private_rate=0.1, gate_rate=0.1)
    for name, settings in (("k-means", {"features": 2, "clusters": 2}), ("linear-15", {})):
        with pytest.raises(InvalidSettings, match="an expert is mixed with the shared model"):
            algorithm_for(OneGradient(personal=personal)).init_state(learner_for(model_spec(name, settings)))
    with pytest.raises(InvalidSettings, match="so they cannot take local steps"):
        algorithm_for(LocalSteps(rate=0.1, steps=2, personal=personal))
