"""Models with private blocks: published and sent parts, closed forms, and rejected settings."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.client_sim.learning import (
    Examples,
    MemoryStates,
    Model,
    algorithm_for,
    cohort_updates,
    learner_for,
    model_spec,
)
from fedping.client_sim.learning.algorithm import Personalizes, State
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.personal.partly_local import divided
from fedping.client_sim.learning.submodel import Part
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.local_optimizers import LocalAdam
from fedping.protocol.personalization import PartlyLocal, Personalization, Reconstruct
from fedping.protocol.training import LocalSteps, OneGradient, Training

NETWORK = {"features": 3, "classes": 2, "hidden": 4, "seed": 2}
HEAD = ("W2", "b2")
METHODS: dict[str, Personalization] = {
    "FedPer": PartlyLocal(local=HEAD, rate=0.3),
    "FedRep": PartlyLocal(local=HEAD, rate=0.3, order="local_first", steps=4),
    "FedRecon": Reconstruct(local=HEAD, rate=0.3, steps=4),
}
TRAININGS: list[OneGradient | LocalSteps] = [
    OneGradient(),
    OneGradient(batch=2),
    LocalSteps(rate=0.2, epochs=2, batch=3),
    LocalSteps(rate=0.2, steps=3, proximal=0.5),
    LocalSteps(rate=0.2, steps=3, optimizer=LocalAdam(keep=True)),
]


def published(training: Training, name: str = "network", settings: dict[str, Any] = NETWORK) -> Any:
    """Return the model of a line with this training, after checking it against its spec."""
    spec = model_spec(name, settings, training=training)
    model = learner_for(spec, training)
    assert tuple(model.weight_names) == tuple(spec.names)
    assert (model.start == spec.start_array).all()
    return model


def examples(sizes: tuple[int, ...] = (5, 0, 1, 8)) -> Examples:
    rng, shape = np.random.default_rng(3), (len(sizes), max(sizes))
    there = np.arange(shape[1]) < np.array(sizes)[:, None]
    return Examples(rng.standard_normal((*shape, 3)), rng.integers(0, 2, shape), there.astype(float))


def keys(count: int) -> NDArray[np.uint64]:
    return child_keys(root_key(1), np.arange(count))


def first_states(training: Training, model: Model[Any], count: int) -> State:
    return MemoryStates(algorithm_for(training).init_state(model)).load(np.arange(count))


def own_weights(training: Training, model: Model[Any], w: FloatArray, batch: Examples, state: State) -> Any:
    algorithm = algorithm_for(training)
    assert isinstance(algorithm, Personalizes)
    found: Any = algorithm.personal_weights(model, w, batch, state)
    assert found.shape == (len(batch), len(algorithm.personal_model(model).weight_names))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_only_the_shared_blocks_are_in_the_spec_and_in_an_update(method: str) -> None:
    for shared in TRAININGS:
        training = replace(shared, personal=METHODS[method])
        spec = model_spec("network", NETWORK, training=training)
        assert [block.name for block in spec.blocks] == ["W1", "b1"]
        model, batch = published(training), examples()
        done = cohort_updates(model, training, spec.start_array, batch, keys(4), first_states(training, model, 4))
        assert done.updates.shape == (4, spec.m) == (4, 16)
        assert done.updates[[0, 2, 3]].any(axis=1).all()
        assert not done.updates[1].any()
        kept = [name for name in done.state if name.startswith("own_")]
        assert kept == ([] if method == "FedRecon" else ["own_weights", "own_trained"])


@pytest.mark.parametrize("method", METHODS)
def test_a_newcomer_predicts_with_the_shared_blocks_and_the_start_of_the_others(method: str) -> None:
    training = OneGradient(personal=METHODS[method])
    model, batch = published(training), examples((3, 2))
    whole = learner_for(model_spec("network", NETWORK))
    w = model.start + 0.25
    expected = whole.start.copy()
    expected[:16] = w
    np.testing.assert_array_equal(model.predict(w, batch), whole.predict(expected, batch))
    nobody = examples((0, 0))
    found = own_weights(training, model, w, nobody, first_states(training, model, 2))
    np.testing.assert_array_equal(found, np.tile(expected, (2, 1)))


@pytest.mark.parametrize("shared", TRAININGS[:4], ids=["gradient", "some", "epochs", "proximal"])
def test_fedper_at_one_rate_is_the_training_of_the_whole_model(shared: OneGradient | LocalSteps) -> None:
    """With the same rate for both parts, a client's movement equals the undivided model's, split in two."""
    rate = getattr(shared, "rate", 0.3)
    training = replace(shared, personal=PartlyLocal(local=HEAD, rate=rate))
    model, whole, batch = published(training), learner_for(model_spec("network", NETWORK)), examples()
    done = cohort_updates(model, training, model.start, batch, keys(4), first_states(training, model, 4))
    plain = cohort_updates(whole, shared, whole.start, batch, keys(4)).updates
    np.testing.assert_allclose(done.updates, plain[:, :16], atol=1e-15)
    pace = 1.0 if isinstance(shared, LocalSteps) else rate
    moved = whole.start[16:] + pace * plain[:, 16:]
    np.testing.assert_allclose(done.state["own_weights"][[0, 2, 3]], moved[[0, 2, 3]].astype(np.float32), rtol=1e-6)


def test_the_local_blocks_of_fedper_have_their_own_rate_with_an_optimizer_too() -> None:
    """The size of Adam's first step equals its rate, for any gradient."""
    training = LocalSteps(
        rate=0.2, steps=1, optimizer=LocalAdam(epsilon=1e-12), personal=PartlyLocal(local=HEAD, rate=0.05)
    )
    model, batch = published(training), examples((6,))
    done = cohort_updates(model, training, model.start, batch, keys(1), first_states(training, model, 1))
    head = done.state["own_weights"] - model.others
    np.testing.assert_allclose(abs(head), 0.05, rtol=1e-4)
    np.testing.assert_allclose(abs(done.updates[done.updates != 0]), 0.2, rtol=1e-4)


def test_fedrep_trains_the_head_first_and_then_the_rest_beside_it() -> None:
    training = OneGradient(personal=METHODS["FedRep"])
    model, whole, batch = published(training), learner_for(model_spec("network", NETWORK)), examples((6,))
    done = cohort_updates(model, training, model.start, batch, keys(1), first_states(training, model, 1))
    by_hand = whole.start.copy()
    for _ in range(4):
        by_hand[16:] -= 0.3 * whole.gradients(by_hand, batch)[0, 16:]
    np.testing.assert_allclose(done.state["own_weights"][0], by_hand[16:], rtol=1e-6)
    np.testing.assert_allclose(done.updates[0], -whole.gradients(by_hand, batch)[0, :16], atol=1e-14)


def test_what_stays_is_gone_on_with_and_predicts_beside_newer_shared_weights() -> None:
    training = OneGradient(personal=METHODS["FedPer"])
    model, batch = published(training), examples((6, 3))
    state = first_states(training, model, 2)
    for _ in range(2):
        state = cohort_updates(model, training, model.start, batch, keys(2), state).state
    assert state["own_trained"].tolist() == [2, 2]
    newer = model.start + 1.0
    found = own_weights(training, model, newer, batch, state)
    np.testing.assert_array_equal(found[:, :16], np.tile(newer, (2, 1)))
    np.testing.assert_array_equal(found[:, 16:], state["own_weights"])


def test_an_update_depends_on_the_local_part_only_as_something_it_is_computed_beside() -> None:
    """Clients with the same data and different heads send different updates of w, each a function of the head alone."""
    training = OneGradient(personal=METHODS["FedPer"])
    model, batch = published(training), examples((6, 6))
    same = Examples(batch.x[[0, 0]], batch.y[[0, 0]], batch.weight[[0, 0]])
    state = dict(first_states(training, model, 2))
    state["own_trained"] = np.array([1, 1])
    state["own_weights"] = np.stack([state["own_weights"][0], -3 * state["own_weights"][0]])
    sent = cohort_updates(model, training, model.start, same, np.repeat(keys(1), 2), state).updates
    assert (sent[0] != sent[1]).any()
    at_head = model.beside(state["own_weights"].astype(float))
    np.testing.assert_array_equal(sent, -at_head.gradients(model.start, same))


RATINGS = {"items": 6, "factors": 2, "l2": 0.2, "mean": 3.0, "scale": 1.0, "seed": 4}
USER = ("user", "user_bias")


def ratings(sizes: tuple[int, ...]) -> Examples:
    rng, shape = np.random.default_rng(5), (len(sizes), max(sizes))
    there = np.arange(shape[1]) < np.array(sizes)[:, None]
    return Examples(rng.integers(0, 6, (*shape, 1)).astype(float), rng.normal(3, 1, shape), there.astype(float))


def test_reconstruction_comes_to_the_ridge_regression_on_all_own_examples() -> None:
    training = OneGradient(personal=Reconstruct(local=USER, rate=0.1, steps=4000))
    model, batch = published(training, "matrix-factorization", RATINGS), ratings((9, 7))
    found = own_weights(training, model, model.start, batch, first_states(training, model, 2))
    factors = model.start[:12].reshape(6, 2)
    for client, n in enumerate((9, 7)):
        x = np.column_stack([factors[batch.x[client, :n, 0].astype(int)], np.ones(n)])
        hold = np.diag([0.1, 0.1, 0.0])  # the gradient of the mean of squares plus l2 / 2 |u|², halved
        exact = np.linalg.solve(x.T @ x / n + hold, x.T @ (batch.y[client, :n] - 3.0) / n)
        np.testing.assert_allclose(found[client, -3:], exact, atol=1e-9)


def test_reconstruction_trains_w_on_the_examples_that_the_local_blocks_were_not_fitted_on() -> None:
    training = OneGradient(personal=Reconstruct(local=USER, rate=0.1, steps=50, support=0.5))
    model, batch = published(training, "matrix-factorization", RATINGS), ratings((8, 1, 0))
    done = cohort_updates(model, training, model.start, batch, keys(3), first_states(training, model, 3))
    support, query = divided(batch, child_keys(keys(3), 1 << 33), 0.5)
    fit = own_weights(training, model, model.start, support, first_states(training, model, 3))
    np.testing.assert_allclose(done.updates, -model.whole.gradients(fit, query)[:, :18], atol=1e-12)
    assert set(np.flatnonzero(done.updates[0, 12:18])) == set(query.x[0, query.weight[0] > 0, 0].astype(int))
    np.testing.assert_array_equal(done.updates[1], -model.gradients(model.start, batch)[1])
    assert not done.updates[2].any()


def test_support_and_query_are_all_examples_once_and_drawn_by_the_key() -> None:
    sizes = (8, 3, 2, 1, 0)
    batch = examples(sizes)
    numbered = Examples(batch.x, np.tile(np.arange(8.0), (5, 1)), batch.weight)
    for share, fitted in ((0.5, [4, 2, 1, 0, 0]), (0.01, [1, 1, 1, 0, 0]), (0.99, [7, 2, 1, 0, 0])):
        parts = divided(numbered, keys(5), share)
        for client, size in enumerate(sizes):
            first, second = (part.y[client][part.weight[client] > 0].tolist() for part in parts)
            assert len(first) == fitted[client]
            assert sorted(first + second) == list(range(size))
    same, other = (divided(numbered, each, 0.5)[0].y[0].tolist() for each in (keys(5), keys(6)[1:]))
    assert same == divided(numbered, keys(5), 0.5)[0].y[0].tolist() != other


def test_the_small_model_of_a_user_fits_as_the_whole_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    training = OneGradient(personal=Reconstruct(local=USER, rate=0.1, steps=5))
    model, batch = published(training, "matrix-factorization", RATINGS), ratings((9, 7))
    quick = own_weights(training, model, model.start, batch, {})
    monkeypatch.setattr(type(model.whole), "reduced", lambda *_: None)
    np.testing.assert_allclose(own_weights(training, model, model.start, batch, {}), quick, atol=1e-14)


@pytest.mark.parametrize("method", [PartlyLocal, Reconstruct])
def test_local_blocks_that_are_too_large_are_refused_before_anybody_makes_room(method: Any) -> None:
    """The spec limits only the shared part, and a study may come from an attacker."""
    training = OneGradient(personal=method(local=HEAD, rate=0.1))
    small = model_spec("network", NETWORK, training=training)
    with pytest.raises(InvalidSettings, match=r"50,000,000,000 weights, .* 2,000,000"):
        learner_for(replace(small, settings={**NETWORK, "classes": 10**10}), training)


@pytest.mark.parametrize(
    ("name", "settings", "local", "said"),
    [
        ("network", NETWORK, ("W3",), "'local' names 'W3', and the model has no block .* it has W1, b1, W2, b2"),
        ("network", NETWORK, ("W\x1b[2J\n",), r"'local' names 'W\\x1b\[2J\\n', and"),
        ("frecency-2018", {}, ("W\x1b[2J\n",), r"'local' names 'W\\x1b\[2J\\n', but"),
        ("k-means", {"features": 2, "clusters": 3}, ("W\n",), r"'local' names 'W\\n', which"),
        ("network", NETWORK, ("W1[0,0]",), "the model has no block of that name"),
        ("network", NETWORK, ("b2", "W1", "b1", "W2"), "names all blocks of the model, .* nothing would be shared"),
        ("frecency-2018", {}, ("x",), "the model's blocks can't stay with the client"),
        ("k-means", {"features": 2, "clusters": 3}, ("centroids",), "moves its weights by its own rule"),
    ],
)
@pytest.mark.parametrize("method", [PartlyLocal, Reconstruct])
def test_blocks_that_cannot_stay_are_refused(
    name: str, settings: dict[str, Any], local: tuple[str, ...], said: str, method: Any
) -> None:
    training = OneGradient(personal=method(local=local, rate=0.1))
    with pytest.raises(InvalidSettings, match=said):
        model_spec(name, settings, training=training)
    spec = model_spec(name, settings)
    with pytest.raises(InvalidSettings, match=said):
        learner_for(spec, training)


def test_a_spec_with_the_local_blocks_in_it_is_refused() -> None:
    training = OneGradient(personal=METHODS["FedPer"])
    with pytest.raises(InvalidSettings, match=r"16 weights .* 26"):
        learner_for(model_spec("network", NETWORK), training)


def test_training_within_a_link_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="'structured' and a 'personal' model with 'local' blocks"):
        LocalSteps(rate=0.1, steps=1, structured=True, personal=METHODS["FedRecon"])


def test_a_part_knows_what_the_whole_model_knows() -> None:
    model = published(OneGradient(personal=METHODS["FedPer"]), settings={**NETWORK, "precision": "float32"})
    assert isinstance(model, Part)
    assert (model.dtype, model.classes, hasattr(model, "movements")) == (np.float32, 2, False)
    assert model.gradients(model.start, examples()).dtype == np.float32
