"""A client's own model, fine-tuned from the shared one: closed forms, private state, and sent updates."""

from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.client_sim.learning import (
    Examples,
    Kept,
    MemoryStates,
    algorithm_for,
    cohort_updates,
    learner_for,
    model_spec,
    updates_of_fleet,
)
from fedping.client_sim.learning.algorithm import Personalizes
from fedping.client_sim.learning.batch import FloatArray, Floats, counts, shares
from fedping.client_sim.learning.mini_batches import divided
from fedping.client_sim.learning.updates import personal_losses
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.local_optimizers import LocalAdam, LocalRProp
from fedping.protocol.personalization import FineTune
from fedping.protocol.settings_file import converted
from fedping.protocol.training import LocalSteps, OneGradient, Training


@dataclass(frozen=True)
class Bowls:
    """The loss h/2 Σ (w_j - a)², the mean over examples a."""

    m: int = 3
    h: float = 2.0

    @property
    def weight_names(self) -> tuple[str, ...]:
        return tuple(f"w{j}" for j in range(self.m))

    @property
    def start(self) -> FloatArray:
        return np.ones(self.m)

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        apart = np.broadcast_to(weights, (len(batch), self.m))[:, None, :] - batch.y[..., None]
        found: FloatArray = (self.h / 2 * (apart**2).sum(axis=2) * shares(batch)).sum(axis=1)
        return found

    def gradients(self, weights: FloatArray, batch: Examples) -> FloatArray:
        apart = np.broadcast_to(weights, (len(batch), self.m))[:, None, :] - batch.y[..., None]
        found: FloatArray = (self.h * apart * shares(batch)[..., None]).sum(axis=1)
        return found

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        return np.broadcast_to(np.atleast_2d(weights).mean(axis=1)[:, None], batch.y.shape)


def examples(of_clients: list[list[float]]) -> Examples:
    width = max(map(len, of_clients))
    y, weight = np.zeros((len(of_clients), width)), np.zeros((len(of_clients), width))
    for client, values in enumerate(of_clients):
        y[client, : len(values)], weight[client, : len(values)] = values, 1.0
    return Examples(np.zeros((*y.shape, 0)), y, weight)


def keys(count: int) -> NDArray[np.uint64]:
    return child_keys(root_key(1), np.arange(count))


def trained(training: Training, batch: Examples, w: FloatArray, times: int = 1, version: int = 0) -> FloatArray:
    """Return the clients' own weights after a number of trainings."""
    model, algorithm = Bowls(len(w)), algorithm_for(training)
    assert isinstance(algorithm, Personalizes)
    states: Any = MemoryStates(algorithm.init_state(model))
    clients = np.arange(len(batch))
    for _ in range(times):
        done = cohort_updates(model, training, w, batch, keys(len(batch)), states.load(clients), version=version)
        states.save(clients, done.state)
    found: FloatArray = algorithm.personal_weights(model, w, batch, states.load(clients))
    return found


def test_ditto_comes_to_its_closed_form() -> None:
    """P* = (h a + λ w) / (h + λ), for h = 2, a = 3, w = 1 and λ = 1/2: 2.6."""
    training = OneGradient(personal=FineTune(rate=0.5, steps=400, proximal=0.5))
    np.testing.assert_allclose(trained(training, examples([[3.0], [3.0, 3.0]]), np.ones(2)), 2.6, atol=1e-9)


def test_what_is_kept_has_the_models_precision() -> None:
    personal = OneGradient(personal=FineTune(rate=0.1, frozen=("b1",)))
    for precision in ("float64", "float32"):
        settings = {"features": 2, "classes": 2, "hidden": 3, "precision": precision}
        kept = algorithm_for(personal).init_state(learner_for(model_spec("network", settings)))
        assert kept["own_weights"].dtype == precision


@pytest.mark.parametrize("frozen", [("W1", "b1"), ("W2",)])
def test_the_blocks_of_a_network_can_be_frozen(frozen: tuple[str, ...]) -> None:
    model = learner_for(model_spec("network", {"features": 2, "classes": 2, "hidden": 3}))
    rng = np.random.default_rng(1)
    batch = Examples(rng.normal(size=(4, 9, 2)), rng.integers(0, 2, (4, 9)), np.ones((4, 9)))
    training = OneGradient(personal=FineTune(rate=0.3, steps=50, frozen=frozen, optimizer=LocalRProp()))
    algorithm, w = algorithm_for(training), model.start + 0.1
    assert isinstance(algorithm, Personalizes)
    first = algorithm.init_state(model)
    state = {name: np.repeat(value[None], 4, axis=0) for name, value in first.items()}
    after = cohort_updates(model, training, w, batch, keys(4), state).state
    blocks = {"W1": range(6), "b1": range(6, 9), "W2": range(9, 15), "b2": range(15, 17)}
    moved = algorithm.personal_weights(model, w, batch, after) != w
    for name, places in blocks.items():
        assert moved[:, places].any() == (name not in frozen)
    assert (model.losses(algorithm.personal_weights(model, w, batch, after), batch) < model.losses(w, batch)).all()


def test_each_client_may_begin_with_weights_of_its_own() -> None:
    """Clients may hold different versions, or meet without a server."""
    training = OneGradient(personal=FineTune(rate=0.1))
    starts, batch = np.array([[0.0, 1.0], [5.0, -1.0]]), examples([[3.0], [1.0]])
    state: Any = MemoryStates(algorithm_for(training).init_state(Bowls(2))).load(np.arange(2))
    together = cohort_updates(Bowls(2), training, starts, batch, keys(2), state)
    for client in range(2):
        mine = {name: value[[client]] for name, value in state.items()}
        alone = cohort_updates(Bowls(2), training, starts[client], examples([[[3.0], [1.0]][client]]), keys(1), mine)
        assert (together.updates[client] == alone.updates[0]).all()
        assert (together.state["own_weights"][client] == alone.state["own_weights"][0]).all()


def test_what_an_upload_link_leaves_out_of_an_update_is_trained_all_the_same() -> None:
    """A structured training projects what is sent, and not the client's own model, which is never sent."""
    personal, batch = FineTune(rate=0.1, steps=3), examples([[3.0]])
    state: Any = MemoryStates(algorithm_for(OneGradient(personal=personal)).init_state(Bowls())).load(np.arange(1))

    def nothing(gradients: Floats) -> Floats:
        return np.zeros_like(gradients)

    within = LocalSteps(rate=0.1, steps=1, structured=True, personal=personal)
    done = cohort_updates(Bowls(), within, np.ones(3), batch, keys(1), state, projection=nothing)
    whole = cohort_updates(Bowls(), replace(within, structured=False), np.ones(3), batch, keys(1), state)
    assert not done.updates.any()
    assert (done.state["own_weights"] == whole.state["own_weights"]).all()


@pytest.mark.parametrize("version", [0, 5])
def test_losses_are_those_at_the_fetched_weights_and_cost_no_pass_of_their_own(version: int) -> None:
    passes: list[str] = []

    @dataclass(frozen=True)
    class Counting(Bowls):
        def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
            passes.append("losses")
            return super().losses(weights, batch)

        def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, FloatArray]:
            return Bowls.losses(self, weights, batch), Bowls.gradients(self, weights, batch)

    training = OneGradient(personal=FineTune(rate=0.1, from_version=3))
    state: Any = MemoryStates(algorithm_for(training).init_state(Bowls())).load(np.arange(2))
    batch = examples([[3.0], [1.0, 2.0]])
    found = cohort_updates(Counting(), training, np.ones(3), batch, keys(2), state, version=version).losses
    assert (found == Bowls().losses(np.ones(3), batch)).all()
    assert passes == []


@pytest.mark.parametrize(("proximal", "there"), [(0.0, 3.0), (1e9, 1.0)])
def test_ditto_without_pull_is_training_alone_and_with_much_the_shared_model(proximal: float, there: float) -> None:
    training = OneGradient(personal=FineTune(rate=0.1, steps=300, proximal=proximal))
    np.testing.assert_allclose(trained(training, examples([[3.0]]), np.ones(1)), there, atol=1e-6)


def test_training_goes_on_where_the_last_one_ended() -> None:
    several = trained(OneGradient(personal=FineTune(rate=0.1, steps=1)), examples([[3.0]]), np.zeros(2), times=6)
    at_once = trained(OneGradient(personal=FineTune(rate=0.1, steps=6)), examples([[3.0]]), np.zeros(2))
    np.testing.assert_allclose(several, at_once, rtol=1e-6)


def test_frozen_weights_are_those_of_the_version_to_the_bit() -> None:
    w = np.array([0.1, 1 / 3, 0.7])
    personal = FineTune(rate=0.1, steps=1000, frozen=("w1",), optimizer=LocalAdam())
    found = trained(OneGradient(personal=personal), examples([[3.0], [-2.0]]), w)
    assert (found[:, 1] == w[1]).all()
    assert (abs(found[:, [0, 2]] - w[[0, 2]]) > 0.5).all()


@pytest.mark.parametrize("personal", [FineTune(rate=0.1, steps=0), FineTune(rate=0.1, frozen=("w0", "w1"))])
def test_without_steps_or_free_weights_a_client_predicts_as_the_version(personal: FineTune) -> None:
    w = np.array([0.1, 1 / 3])
    assert (trained(OneGradient(personal=personal), examples([[3.0]]), w) == w).all()


def test_a_client_without_examples_keeps_what_it_had() -> None:
    w = np.array([0.1])
    found = trained(OneGradient(personal=FineTune(rate=0.1)), examples([[3.0], []]), w)
    assert (found != w).tolist() == [[True], [False]]


def test_before_its_version_nothing_is_the_clients_own() -> None:
    training = OneGradient(personal=FineTune(rate=0.1, from_version=4))
    w, batch = np.array([0.1]), examples([[3.0]])
    assert trained(training, batch, w, version=3) == w
    assert trained(training, batch, w, version=4) != w


def test_what_is_sent_does_not_tell_what_is_kept() -> None:
    """The sent bytes are the same for any state, for each algorithm that trains w."""
    batch, model = examples([[3.0, -1.0, 0.5]] * 1000), Bowls()
    same = np.full(1000, keys(1)[0])
    trainings: list[OneGradient | LocalSteps] = [OneGradient(batch=2), LocalSteps(rate=0.1, epochs=2, batch=2)]
    for shared in trainings:
        training = replace(shared, personal=FineTune(rate=0.3))
        first = algorithm_for(training).init_state(model)
        rng = np.random.default_rng(5)
        state = {name: rng.normal(size=(1000, *value.shape)).astype(value.dtype) for name, value in first.items()}
        sent = cohort_updates(model, training, np.ones(3), batch, same, state).updates
        alone = cohort_updates(model, shared, np.ones(3), batch, same).updates
        assert {row.tobytes() for row in sent} == {alone[0].tobytes()}


class Data:
    def __init__(self, of_clients: list[list[float]]) -> None:
        self._of = of_clients

    def __len__(self) -> int:
        return len(self._of)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([len(values) for values in self._of])

    def batch(self, clients: NDArray[np.intp]) -> Examples:
        return examples([self._of[client] for client in clients])


def test_clients_that_do_not_share_train_on_and_send_nothing() -> None:
    training = OneGradient(personal=FineTune(rate=0.1, from_version=2, shares=False))
    data, model, clients = Data([[3.0], [1.0, 2.0]]), Bowls(), np.arange(2)
    states = MemoryStates(algorithm_for(training).init_state(model))
    for version, sent in ((1, 2), (2, 0)):
        kept = Kept(states, clients)
        found = updates_of_fleet(model, training, np.ones(3), data, clients, keys(2), version=version, kept=kept)
        assert sum(len(block.sent().at) for block in found) == sent
    assert states.load(clients)["own_trained"].tolist() == [1, 1]


def test_a_name_that_is_no_weight_is_refused() -> None:
    training = OneGradient(personal=FineTune(rate=0.1, frozen=("typo",)))
    with pytest.raises(InvalidSettings, match=r"'frozen' names 'typo'.* it has w0, w1, w2"):
        algorithm_for(training).init_state(Bowls())


def test_a_loss_is_of_examples_held_out_and_of_a_single_example_that_of_the_shared_model() -> None:
    training, w = OneGradient(personal=FineTune(rate=0.1, steps=100)), np.ones(3)
    held, learned = divided(examples([[3.0] * 6, [3.0]]), keys(2), 0.2)
    assert (counts(held).tolist(), counts(learned).tolist()) == ([1, 0], [5, 1])
    state: Any = MemoryStates(algorithm_for(training).init_state(Bowls())).load(np.arange(2))
    done = cohort_updates(Bowls(), training, w, learned, keys(2), state)
    other = replace_fields(held, y=held.y + 1.0)
    found = personal_losses(Bowls(), training, w, learned, done.state, held_out=other)
    np.testing.assert_allclose(found, [3.0, 12.0], rtol=1e-5)


@pytest.mark.parametrize(
    ("by", "setting"), [("fine_tune", "frozen"), ("vector", "on"), ("partly_local", "local"), ("reconstruct", "local")]
)
def test_as_many_weights_and_blocks_are_named_as_a_model_has_blocks_and_no_more(by: str, setting: str) -> None:
    """A study may come from an attacker, and each name is looked up."""
    training = {"algorithm": "gradient", "personal": {"by": by, "rate": 1.0, setting: ["w"] * 10_000}}
    assert getattr(converted(training, OneGradient, "").personal, setting) == ("w",) * 10_000
    training["personal"][setting].append("w")  # type: ignore[index]
    with pytest.raises(InvalidSettings, match=rf"'{setting}'.* of length <= 10000"):
        converted(training, OneGradient, "")
