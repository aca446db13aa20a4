"""FedNova, and an aggregation's other inputs: the senders, their groups, staleness and numbers of steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedping
from fedping.algorithms import FedNova, gradient_weights
from fedping.client_sim.learning import updates_of_fleet
from fedping.client_sim.learning.algorithms import algorithm_for, steps_taken
from fedping.client_sim.learning.batch import Examples
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.local_optimizers import LocalMomentum
from fedping.protocol.training import LocalSteps
from fedping.server_jobs.round.accumulator import Senders
from tests.support.laboratory import small
from tests.support.registry import registry_of_its_own

LINEAR: dict[str, Any] = {
    "model": {"name": "linear-regression"},
    "data": {"name": "diabetes"},
    "partition": {"partition": "power_law", "clients": 6},
    "training": {"algorithm": "local", "epochs": 2, "batch": 8, "rate": 0.01},
    "evaluation": {"every": 20, "baselines": []},
    "server__weighting": "examples",
}


def unit(**changes: Any) -> Unit:
    [setup] = small(**{**LINEAR, **changes}).variants.values()
    return Unit("only", None, setup, 1, None)


def run(folder: Path, **changes: Any) -> tuple[np.ndarray, Problem]:
    of = unit(**changes)
    run_unit(of, folder)
    return np.load(of.folder(folder).path / "last.npy"), prepare(of.setup, 1, None)


def senders(steps: list[float]) -> Senders:
    none = np.zeros(len(steps), np.int64)
    return Senders(none, none, none, none, np.array(steps))


def test_a_case_by_hand() -> None:
    """With Δ/τ = (1, 0) and (0, 2) and votes 1 and 3, the mean is (1/4, 3/2), and τ_eff = (2 + 3·3) / 4 = 11/4."""
    line: Any = SimpleNamespace(training=LocalSteps(rate=0.1, epochs=1), spec=SimpleNamespace(m=2))
    nova = FedNova()
    one = nova.add(nova.init(line), np.array([[2.0, 0.0]]), np.array([1.0]), senders([2]))
    other = nova.add(nova.init(line), np.array([[0.0, 6.0]]), np.array([3.0]), senders([3]))
    direction = nova.finish(nova.merge(one, other), line, None, {}, b"")
    np.testing.assert_allclose(direction, [11 / 16, 33 / 8])


class Slope:
    """A model with gradient 1 everywhere, whose update is minus the rate times the sum of the gradients' weights."""

    weight_names = ("w",)
    start = np.zeros(1)

    def losses(self, weights: Any, batch: Any) -> Any:
        return np.zeros(len(batch))

    def gradients(self, weights: Any, batch: Any) -> Any:
        return np.ones((len(batch), 1))


@pytest.mark.parametrize(
    "training",
    [
        LocalSteps(rate=0.1, steps=7),
        LocalSteps(rate=0.1, steps=7, proximal=0.5),
        LocalSteps(rate=0.1, steps=7, optimizer=LocalMomentum(beta=0.8)),
        LocalSteps(rate=0.1, steps=7, optimizer=LocalMomentum(beta=0.8, nesterov=True)),
    ],
)
def test_the_weights_of_gradients_are_those_of_local_training(training: LocalSteps) -> None:
    """With gradient 1 and without the proximal term's part, Δ = -η |a|."""
    batch = Examples(np.zeros((1, 3, 1)), np.zeros((1, 3)), np.ones((1, 3)))
    moved, _ = algorithm_for(training).update(Slope(), np.zeros(1), batch, np.zeros(1, np.uint64), {})
    np.testing.assert_allclose(-moved[0, 0] / 0.1, gradient_weights(training, np.array([7.0]))[0])


def test_a_run_is_that_of_a_second_implementation(tmp_path: Path) -> None:
    found, problem = run(tmp_path, server__aggregate={"by": "fednova"}, rounds=3)
    training, train = unit().setup.training, problem.train
    weights, clients = np.zeros(11), np.arange(6)
    for round_ in range(3):
        updates = np.zeros((6, 11))
        keys = fedping.child_keys(problem.keys(round_), 0)
        for block in updates_of_fleet(problem.model, training, weights.astype(np.float32), train, clients, keys):
            updates[block.at] = block.updates
        steps = 2 * np.ceil(train.sizes / 8)
        votes = train.sizes / train.sizes.sum()
        weights = weights + (votes @ steps) * (votes @ (updates / steps[:, None]))
    np.testing.assert_allclose(found, weights, rtol=1e-3, atol=1e-3)


def test_with_equal_steps_it_is_the_mean(tmp_path: Path) -> None:
    training = {"algorithm": "local", "steps": 3, "batch": 8, "rate": 0.01}
    mean = run(tmp_path / "mean", training=training)[0]
    nova = run(tmp_path / "nova", training=training, server__aggregate={"by": "fednova"})[0]
    np.testing.assert_allclose(nova, mean, rtol=1e-5)


def test_it_ends_at_the_common_minimum_where_the_mean_does_not(tmp_path: Path) -> None:
    """All clients count the same, and large ones take far more steps: FedAvg ends at a minimum that favours them."""
    changes = {"rounds": 60, "training__rate": 0.01, "server__weighting": "client", "evaluation__every": 60}
    apart = {}
    for name in ("mean", "fednova"):
        weights, problem = run(tmp_path / name, server__aggregate={"by": name}, **changes)
        apart[name] = np.linalg.norm(weights - optimum(problem))
    assert apart["fednova"] < apart["mean"] / 2


def optimum(problem: Problem) -> np.ndarray:
    """Return the minimum of the mean of the clients' mean squared errors, by the normal equations."""
    left, right = np.zeros((11, 11)), np.zeros(11)
    for client in range(6):
        batch: Any = problem.train.batch(np.array([client]))
        there = batch.weight[0] > 0
        x = np.c_[batch.x[0][there], np.ones(there.sum())]
        left += x.T @ x / there.sum()
        right += x.T @ batch.y[0][there] / there.sum()
    return np.linalg.solve(left, right)


def test_both_engines_come_to_the_same(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    found = [run(tmp_path / e, engine=e, server__aggregate={"by": "fednova"})[0] for e in ("numpy", "jax")]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_where_steps_or_senders_are_unknown_it_is_refused_with_the_reason(tmp_path: Path) -> None:
    nova = {"server__aggregate": {"by": "fednova"}}
    for changes, said in (
        ({"where": "files"}, "pings lack the client's group and steps"),
        ({"server__bucketing": 2}, "buckets of several clients don't have"),
        ({"training__optimizer": {"optimizer": "adam"}}, "divides gradients by their size"),
        ({"training__sign": True}, "no more than signs"),
    ):
        with pytest.raises(InvalidSettings, match=said):
            run(tmp_path / "refused", **nova, **changes)


def test_an_aggregation_of_ones_own_gets_the_senders_if_it_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry_of_its_own(monkeypatch)
    seen: list[Senders] = []

    @fedping.aggregation("seeing")
    def seeing() -> Any:
        def finish(kept: Any, line: Any, weights: Any, state: Any, key: bytes, senders: Senders) -> Any:
            assert len(senders) == len(kept.updates)
            seen.append(senders)
            return kept.votes @ kept.updates / kept.votes.sum()

        return fedping.of_all(finish)

    @fedping.client_algorithm("counting")
    class Counting:
        def update(self, model: Any, weights: Any, batch: Any, keys: Any, state: Any) -> Any:
            return -model.gradients(weights, batch), {}

        def steps_taken(self, sizes: Any) -> Any:
            return np.full(len(sizes), 5.0)

    lateness = {"lateness": {"shares": [0.5, 0.5]}, "server__staleness": {"most": 1}, "rounds": 4}
    run(tmp_path / "late", server__aggregate={"by": "seeing"}, **lateness)
    _, problem = run(tmp_path / "mean", server__aggregate={"by": "mean"})
    first, last = seen[0], seen[-1]
    assert sorted(first.clients) == list(range(6))
    assert first.ages.tolist() == [0] * 6
    assert {*np.concatenate([each.ages for each in seen]).tolist()} == {0, 1}
    np.testing.assert_array_equal(last.examples, problem.train.sizes[last.clients])
    np.testing.assert_array_equal(last.steps, 2 * np.ceil(last.examples / 8))
    assert {*first.groups.tolist()} == {-1}
    run(tmp_path / "own", server__aggregate={"by": "seeing"}, training={"algorithm": "counting"}, rounds=1)
    assert {*seen[-1].steps.tolist()} == {5.0}
    unknown = unit(training={"algorithm": "apfl", "rate": 0.1, "steps": 1}).setup.training
    assert np.isnan(steps_taken(unknown, first.examples)).all()


def test_a_study_with_it_is_refused_when_it_is_created(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text("""
name = "nova"
pings = "model-update"
[[arms]]
name = "all"
share = 1.0
line = "main"
applies = true
submits = true
[[lines]]
name = "main"
[lines.spec]
name = "m"
model = "logistic-regression"
settings = { features = 2 }
[lines.training]
algorithm = "local"
rate = 0.1
steps = 2
[lines.pipeline]
optimizer = { optimizer = "gradient_descent", rate = 1.0 }
aggregate = { by = "fednova" }
""")
    with pytest.raises(InvalidSettings, match="pings lack the client's group and steps"):
        fedping.create_study(file, tmp_path / "store")
    assert not (tmp_path / "store").exists()
