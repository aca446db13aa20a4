"""The personal vector: its effect, its turns, the sent updates, and its limits in a linear ranker."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.client_sim.data import example_data
from fedping.client_sim.learning import (
    Kept,
    MemoryStates,
    Model,
    algorithm_for,
    cohort_updates,
    learner_for,
    model_spec,
    updates_of_fleet,
)
from fedping.client_sim.learning.algorithm import State
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.choices import Choices
from fedping.client_sim.learning.personal.vector import WithVector, basis_of, random_basis
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.local_optimizers import LocalMomentum, LocalRProp
from fedping.protocol.personalization import Vector
from fedping.protocol.spec import Step
from fedping.protocol.training import LocalSteps, OneGradient

CLIENTS = 40
NETWORK = learner_for(model_spec("network", {"features": 4, "classes": 3, "hidden": 5}))
IDENTITY = Vector(rate=0.3, on=("b1",), steps=2)
RANDOM = Vector(rate=0.3, basis="random", size=6, seed=3)
KEPT_RPROP = LocalRProp(alpha=2.0, beta=0.6, step=Step(start=0.05, min=0.01, max=0.5), keep=True)
W = NETWORK.start + 0.1

_RANDOM_NUMBERS = np.random.default_rng(1)
DATA = example_data(
    _RANDOM_NUMBERS.standard_normal((7 * CLIENTS, 4)),
    _RANDOM_NUMBERS.integers(0, 3, 7 * CLIENTS),
    np.tile([3, 9, 7, 9], CLIENTS // 4),
)
EVERYBODY = np.arange(CLIENTS)


def keys(round_: int = 0) -> NDArray[np.uint64]:
    return child_keys(child_keys(root_key(1), EVERYBODY), round_)


def method(personal: Vector, version: int = 0) -> WithVector:
    found = algorithm_for(OneGradient(personal=personal), version)
    assert isinstance(found, WithVector)
    return found


def first_state(personal: Vector, model: Model[Any] = NETWORK) -> dict[str, NDArray[Any]]:
    """Return the state of clients before any training."""
    first = algorithm_for(OneGradient(personal=personal)).init_state(model)
    return {name: np.repeat(np.asarray(value)[None], CLIENTS, axis=0) for name, value in first.items()}


def with_vectors(personal: Vector, turn: int = 0, scale: float = 1.0) -> dict[str, NDArray[Any]]:
    """Return a state with random vectors, all at the same turn."""
    state = first_state(personal)
    drawn = scale * np.random.default_rng(2).standard_normal(state["own_vector"].shape)
    return {**state, "own_vector": drawn.astype(np.float32), "own_turn": np.full(CLIENTS, turn, np.uint8)}


def train(
    training: OneGradient | LocalSteps, state: Mapping[str, NDArray[Any]], version: int = 0, w: FloatArray = W
) -> tuple[NDArray[Any], State]:
    done = cohort_updates(NETWORK, training, w, DATA.batch(EVERYBODY), keys(version), state, version=version)
    return done.updates, done.state


@pytest.mark.parametrize("personal", [IDENTITY, RANDOM, replace(RANDOM, on=("W2", "b2"))])
def test_the_gradient_by_the_vector_is_that_by_finite_differences(personal: Vector) -> None:
    batch, state = DATA.batch(EVERYBODY), with_vectors(personal, turn=2, scale=0.3)
    one_step = replace(personal, steps=1, rate=1e-3)
    _, after = train(OneGradient(personal=one_step), state)
    gradient = (state["own_vector"] - after["own_vector"].astype(np.float64)) / 1e-3

    def losses(vectors: FloatArray) -> FloatArray:
        theta = method(personal).personal_weights(NETWORK, W, batch, {**state, "own_vector": vectors})
        return NETWORK.losses(theta, batch)

    at = state["own_vector"].astype(np.float64)
    for j in range(at.shape[1]):
        apart = np.zeros_like(at)
        apart[:, j] = 1e-5
        by_differences = (losses(at + apart) - losses(at - apart)) / 2e-5
        np.testing.assert_allclose(gradient[:, j], by_differences, atol=3e-4)  # vectors are float32


def test_on_a_hidden_layers_offsets_it_is_an_additional_input_vector() -> None:
    """x W1 + v U + b1, as in the thesis: an input v next to x, by a matrix U that isn't trained."""
    basis = replace(RANDOM, on=("b1",), size=3)
    state = with_vectors(basis)
    theta = method(basis).personal_weights(NETWORK, W, DATA.batch(EVERYBODY), state)
    u = basis_of(basis, NETWORK).matrix
    assert u is not None
    wide = learner_for(model_spec("network", {"features": 4 + 3, "classes": 3, "hidden": 5}))
    with_input = np.concatenate([W[:20], u.T.ravel(), W[20:]])
    for client in (0, 1):
        batch = DATA.batch(np.array([client]))
        v = np.broadcast_to(state["own_vector"][client], (1, batch.x.shape[1], 3))
        beside = type(batch)(np.concatenate([batch.x, v], axis=2), batch.y, batch.weight)
        np.testing.assert_allclose(
            NETWORK.predict(theta[[client]], batch), wide.predict(with_input, beside), rtol=1e-12
        )
        # Trained at v = 0, as in the thesis, the matrix would never move.
        at_zero = type(batch)(np.concatenate([batch.x, 0 * v], axis=2), batch.y, batch.weight)
        assert not wide.gradients(with_input, at_zero)[:, 20:35].any()


def test_about_half_begin_with_the_vector_and_all_take_turns_after() -> None:
    training, state = OneGradient(personal=IDENTITY), first_state(IDENTITY)
    sent = []
    for version in range(4):
        sends = method(IDENTITY).sends(keys(version), state)
        updates, after = train(training, state, version)
        assert (updates.any(axis=1) == sends).all()
        assert ((after["own_vector"] != state["own_vector"]).any(axis=1) == ~sends).all()
        sent.append(sends)
        state = after
    assert 10 <= sent[0].sum() <= 30  # 40 fair coins: outside in 1 of 2,000 seeds
    for version in (1, 2, 3):
        assert (sent[version] != sent[version - 1]).all()


def test_in_step_everybody_has_the_turn_of_the_version() -> None:
    personal = replace(IDENTITY, in_step=True, from_version=3)
    training, state = OneGradient(personal=personal), first_state(personal)
    assert set(state) == {"own_vector"}  # the version tells the turn
    moves = []
    for version in range(7):
        updates, after = train(training, state, version)
        moved = (after["own_vector"] != state["own_vector"]).any(axis=1)
        moves.append((bool(updates.any(axis=1).all()), bool(moved.all())))
        assert updates.any(axis=1).all() or not updates.any()
        state = after
    assert moves == [(True, False)] * 3 + [(False, True), (True, False)] * 2


@pytest.mark.parametrize("shared", [OneGradient(), LocalSteps(rate=0.2, epochs=1)])
def test_the_shared_weights_take_the_path_that_they_would_take_alone(shared: OneGradient | LocalSteps) -> None:
    """With all clients at the same turn, every second round equals a round without personalization."""
    alone, beside, state = W, W, first_state(replace(RANDOM, in_step=True))
    training = replace(shared, personal=replace(RANDOM, in_step=True))
    for round_ in range(3):
        alone = alone + train(shared, {}, 0, alone)[0].mean(axis=0)
        _, state = train(training, state, 2 * round_, beside)
        updates, state = train(training, state, 2 * round_ + 1, beside)
        beside = beside + updates.mean(axis=0)
        assert beside.tobytes() == alone.tobytes()
    assert state["own_vector"].all()


@pytest.mark.parametrize(
    "shared",
    [OneGradient(batch=2), LocalSteps(rate=0.1, epochs=2, batch=2, optimizer=LocalMomentum(keep=True))],
)
@pytest.mark.parametrize("personal", [IDENTITY, replace(RANDOM, optimizer=KEPT_RPROP)])
def test_what_is_sent_does_not_tell_the_vector(shared: OneGradient | LocalSteps, personal: Vector) -> None:
    """Sends the update of the same client 1,000 times, with 1,000 different private parts."""
    training = replace(shared, personal=personal)
    batch = DATA.batch(np.ones(1000, np.intp))
    first = algorithm_for(training).init_state(NETWORK)
    rng = np.random.default_rng(5)
    state = {name: np.repeat(np.asarray(value)[None], 1000, axis=0) for name, value in first.items()}
    for name in [name for name in state if name.startswith("own_")]:
        state[name] = rng.normal(scale=3, size=state[name].shape).astype(state[name].dtype)
    state["own_turn"] = np.ones(1000, np.uint8)
    same = np.full(1000, keys()[0])
    done = cohort_updates(NETWORK, training, W, batch, same, state)
    alone_state = {name: value for name, value in state.items() if not name.startswith("own_")}
    alone = cohort_updates(NETWORK, shared, W, batch, same, alone_state)
    assert {row.tobytes() for row in done.updates} == {alone.updates[0].tobytes()}
    assert done.losses.tobytes() == alone.losses.tobytes()


def test_a_client_without_examples_has_no_turn() -> None:
    data = example_data(np.ones((2, 4)), np.zeros(2, np.intp), np.array([0, 2]))
    state = {name: value[:2] for name, value in with_vectors(IDENTITY, turn=2).items()}
    training = OneGradient(personal=replace(IDENTITY, optimizer=KEPT_RPROP))
    state |= {"own_rate": np.full((2, 5), 0.05), "own_sign": np.ones((2, 5), np.int8)}
    after = cohort_updates(NETWORK, training, W, data.batch(np.arange(2)), keys()[:2], state).state
    for name, value in after.items():
        assert (value[0] == state[name][0]).all()
        assert (value[1] != state[name][1]).any()


@pytest.mark.parametrize("personal", [IDENTITY, RANDOM])
def test_who_has_no_vector_yet_predicts_as_the_version_to_the_bit(personal: Vector) -> None:
    w = np.where(np.arange(len(W)) % 3 == 0, -0.0, W)
    theta = method(personal).personal_weights(NETWORK, w, DATA.batch(EVERYBODY), first_state(personal))
    assert {row.tobytes() for row in theta} == {w.tobytes()}


def test_in_blocks_only_those_with_a_turn_of_the_shared_weights_send_and_all_states_are_kept() -> None:
    training = LocalSteps(rate=0.1, epochs=1, personal=replace(IDENTITY, optimizer=KEPT_RPROP))
    model, found = NETWORK, []
    for most_bytes, threads in ((1, 1), (20_000, 2), (10**9, 1)):
        states = MemoryStates(algorithm_for(training).init_state(model))
        updates = np.zeros((2, CLIENTS, len(W)))
        for version in range(2):
            blocks = updates_of_fleet(
                model, training, W, DATA, EVERYBODY, keys(version), most_bytes, threads, kept=Kept(states, EVERYBODY)
            )
            for block in blocks:
                updates[version, block.at] = block.updates
        assert (updates.any(axis=2).sum(axis=0) == 1).all()
        found.append((updates, states.load(EVERYBODY)))
    for updates, state in found[1:]:
        np.testing.assert_allclose(updates, found[0][0], atol=1e-12)
        for name, value in state.items():
            np.testing.assert_allclose(value, found[0][1][name], rtol=1e-6)


def test_a_vector_of_eight_takes_33_bytes_and_in_step_32() -> None:
    eight = Vector(rate=0.1, basis="random", size=8)
    for personal, most in ((eight, 33), (replace(eight, in_step=True), 32)):
        assert sum(np.asarray(value).nbytes for value in method(personal).init_state(NETWORK).values()) == most


def test_a_random_basis_is_normal_and_the_same_for_everybody() -> None:
    """Compares it with integer arithmetic alone, as in a client in another language."""
    u = random_basis(1000, 4, 7)
    assert abs(u.mean()) < 0.05  # 6 standard errors
    assert abs(u.std() - 0.5) < 0.025  # 4.5 standard errors
    key, below = int.from_bytes(hashlib.sha256(b"7\nU").digest()[:8], "little"), 2**64 - 1

    def entry(place: int) -> float:
        total = 0
        for draw in range(6):
            word = (key + (6 * place + draw + 1) * 0x9E3779B97F4A7C15) & below
            word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & below
            word = (word ^ (word >> 27)) * 0x94D049BB133111EB & below
            word ^= word >> 31
            total += (word >> 32) + (word & 0xFFFFFFFF)
        return 0.5 * (total / 2**32 - 6)

    assert u.ravel().tolist() == [entry(place) for place in range(u.size)]


@pytest.mark.parametrize(
    ("personal", "said"),
    [
        (Vector(rate=1.0, on=("typo",)), "'on' names 'typo'.* it has W1, b1, W2, b2"),
        (Vector(rate=1.0, on=("W\x1b[2J\n",)), r"'on' names 'W\\x1b\[2J\\n', and"),
        (Vector(rate=1.0, on=("b1",), size=3), r"size = 3 is added to the 5 weights that 'on' names, one number to"),
        (Vector(rate=1.0, basis="random", on=("b1",), size=6), "size = 6 has more numbers than the 5 weights"),
    ],
)
def test_a_vector_that_does_not_fit_is_refused(personal: Vector, said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        method(personal).init_state(NETWORK)


def test_a_random_basis_is_bounded() -> None:
    wide = learner_for(model_spec("linear-regression", {"features": 400_000}))
    with pytest.raises(InvalidSettings, match=r"40,000,100 numbers, .* 4,194,304"):
        method(Vector(rate=1.0, basis="random", size=100)).init_state(wide)


def test_lines_with_other_bases_do_not_draw_them_again_and_again() -> None:
    bases = [random_basis(5, 2, seed) for seed in (1, 2)]
    assert all(random_basis(5, 2, seed) is basis for seed, basis in zip((1, 2), bases, strict=True))


def test_a_model_that_moves_by_a_rule_of_its_own_is_refused() -> None:
    centroids = learner_for(model_spec("k-means", {"features": 2, "clusters": 3}))
    with pytest.raises(InvalidSettings, match="along a gradient, but the model"):
        method(Vector(rate=1.0)).init_state(centroids)


# --- why an additional input does nothing in a linear ranker ---

_DYADIC = st.integers(-64, 64).map(lambda whole: whole / 8)
"""Numbers whose sums and products are exact, so that equal scores stay equal."""


@settings(max_examples=50, deadline=None)
@given(
    x=st.lists(st.lists(_DYADIC, min_size=2, max_size=2), min_size=6, max_size=6),
    w=st.lists(_DYADIC, min_size=3, max_size=3),
    v=_DYADIC,
    chosen=st.tuples(st.integers(-1, 2), st.integers(-1, 2)),
)
def test_an_input_that_all_candidates_share_changes_no_rank_of_a_linear_ranker(
    x: list[list[float]], w: list[float], v: float, chosen: tuple[int, int]
) -> None:
    """The input v with the weight w[2] adds v w[2] to the scores of all of the user's candidates."""
    features = np.array(x).reshape(1, 2, 3, 2)
    ranker = learner_for(model_spec("svm-ranking", {"features": 3}, margin=1.0))

    def batch(value: float) -> Choices:
        beside = np.concatenate([features, np.full((1, 2, 3, 1), value)], axis=3)
        return Choices(beside, np.array([chosen]), np.ones((1, 2)), np.full((1, 2), 3))

    without, with_it = ranker.predict(np.array(w), batch(0.0)), ranker.predict(np.array(w), batch(v))
    assert (with_it == without + v * w[2]).all()
    assert (with_it.argsort(kind="stable") == without.argsort(kind="stable")).all()
    assert ranker.losses(np.array(w), batch(v)) == ranker.losses(np.array(w), batch(0.0))
    assert ranker.gradients(np.array(w), batch(v))[0, 2] == 0.0
