"""A fleet, a simulated study and the laboratory compute the same updates from the same line, data, weights and keys."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.fleet import FleetSettings, join_study
from fedping.client_sim.fleet import interactions as searching
from fedping.client_sim.fleet import learning_round as learning
from fedping.client_sim.fleet.examples import ExampleSettings
from fedping.client_sim.learning import ALGORITHMS, NO_STATE, Model, State, learner_for, updates_of_fleet
from fedping.experiments.laboratory import participants
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.simulate import Simulation, experiment_from_toml
from fedping.experiments.simulate.people import People
from fedping.experiments.simulate.ticks import Models, TickMaker
from fedping.protocol.draws import Keys
from fedping.protocol.encodings.dense import dense_updates
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import ModelSpec, published_array
from fedping.protocol.study import Arm, Study
from fedping.protocol.training import LocalSteps, OneGradient, Training
from tests.client_sim.test_fleet_learning import SETTINGS, spec_of, study_of
from tests.support.effort import few_or_all
from tests.support.fleets import PlannedTransport, fleet_study
from tests.support.laboratory import small
from tests.support.small_experiment import experiment_file
from tests.support.virtual_time import in_virtual_time

EXAMPLES = few_or_all(12, 200)
BATCHES = st.none() | st.integers(1, 4)

gradients = st.builds(OneGradient, batch=BATCHES, sign=st.booleans())
local_steps = st.builds(
    lambda length, **others: LocalSteps(**length, **others),
    length=st.integers(1, 3).map(lambda n: {"steps": n}) | st.integers(1, 2).map(lambda n: {"epochs": n}),
    rate=st.sampled_from([0.01, 0.3]),
    batch=BATCHES,
    proximal=st.sampled_from([0.0, 0.5]),
    sign=st.booleans(),
)
trainings = gradients | local_steps


@dataclass
class Asked:
    """The recorded arguments of a call of `updates_of_fleet`."""

    weights: np.ndarray
    data: Any
    keys: Keys


class AsAsked(Problem):
    """A laboratory problem with the data and keys of a recorded call."""

    def train_in(self, round_: int, weights: Any) -> Any:
        return self.train

    def keys(self, round_: int) -> Keys:
        return self.given  # type: ignore[attr-defined, no-any-return]


def in_the_laboratory(spec: ModelSpec, training: Training, asked: Asked) -> np.ndarray:
    """Return the updates of the laboratory's clients, shape (k, m), float32."""
    setup = msgspec.structs.replace(next(iter(small().variants.values())), training=training)
    data, line = asked.data, setup.line(spec)
    problem = AsAsked(line, learner_for(spec), data, data, data, None, 0)  # type: ignore[arg-type]
    object.__setattr__(problem, "given", asked.keys)
    sent = np.full((len(asked.data), spec.m), np.nan, np.float32)
    with pytest.MonkeyPatch.context() as patch:  # the laboratory would make a key for each of a client's trainings
        patch.setattr(participants, "child_keys", lambda keys, repeats: keys)
        for block in Cohorts(setup, problem).sent(0, [asked.weights]):
            sent[block.clients] = block.updates
    return sent


def overheard(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[Asked]:
    """Return a list that records a module's calls."""
    found: list[Asked] = []

    def asking(
        model: Model[Any], training: Training, weights: Any, data: Any, clients: Any, keys: Keys, **more: Any
    ) -> Any:
        assert (clients == np.arange(len(data))).all()
        found.append(Asked(weights, data, keys))
        return updates_of_fleet(model, training, weights, data, clients, keys, **more)

    monkeypatch.setattr(module, "updates_of_fleet", asking)
    return found


def sorted_rows(updates: Any) -> np.ndarray:
    """Return rows in sorted order, because pings arrive in any order."""
    rows = np.asarray(updates, np.float32)
    return rows[np.lexsort(rows.T[::-1])]


def sent_by_fleet(study: Study, chosen: FleetSettings) -> list[list[float]]:
    transport = PlannedTransport(study)

    async def go() -> None:
        await (await join_study(transport, study.name, chosen)).run_iteration()

    in_virtual_time(go())
    payloads = [msgspec.json.decode(sent.body)["payload"] for sent in transport.sent]
    return [payload["update"] for payload in payloads if payload["update"] is not None]


def alone(study: Study, training: Training, line: int = 0) -> Study:
    """Return a study with one line of another study, which all clients train."""
    kept = msgspec.structs.replace(study.lines[line], training=training)
    arm = Arm(name="all", share=1.0, line=kept.name, applies=True, submits=True)
    return msgspec.structs.replace(study, lines=(kept,), arms=(arm,))


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(trainings, st.sampled_from(sorted(SETTINGS)), st.integers(0, 6), st.integers(0, 9), st.integers(0, 99))
def test_a_fleet_sends_what_the_laboratory_computes(
    training: Training, model: str, least: int, more: int, seed: int
) -> None:
    study = alone(study_of(spec_of(model)), training)
    chosen = FleetSettings(clients=9, seed=seed, examples=ExampleSettings(least=least, most=max(1, least + more)))
    with pytest.MonkeyPatch.context() as patch:
        asked = overheard(patch, learning)
        sent = sent_by_fleet(study, chosen)
    assert len(asked) == 1
    expected = in_the_laboratory(study.lines[0].spec, training, asked[0])
    assert len(sent) == 9
    assert np.array_equal(sorted_rows(sent), sorted_rows(expected))


@settings(max_examples=EXAMPLES, deadline=None)
@given(trainings, st.integers(0, 1), st.integers(0, 99))
def test_browsers_of_a_fleet_send_what_the_laboratory_computes(training: Training, line: int, seed: int) -> None:
    study = alone(fleet_study(), training, line)
    with pytest.MonkeyPatch.context() as patch:
        asked = overheard(patch, searching)
        sent = sent_by_fleet(study, FleetSettings(clients=9, seed=seed))
    expected = np.concatenate([in_the_laboratory(study.lines[0].spec, training, each) for each in asked])
    assert len(sent) == len(expected)
    assert np.array_equal(sorted_rows(sent), sorted_rows(expected))


@cache
def _people() -> tuple[Any, Study, People]:
    with TemporaryDirectory() as folder:
        experiment, study = experiment_from_toml(experiment_file(Path(folder), clients=150))
    return experiment, study, People(experiment, study)


def _of_ticks(training: Training) -> Iterator[np.ndarray]:
    """Yield the updates that a tick lands, one partition at a time."""
    experiment, study, people = _people()
    line = msgspec.structs.replace(study.lines[0], training=training)
    study = msgspec.structs.replace(study, lines=(line,))
    held = {0: published_array(line.spec, line.spec.start_array), 1: line.spec.start_array * 1.25}
    with ThreadPoolExecutor(1) as pool:
        maker = TickMaker(experiment, study, people, pool)
        models = {line.name: Models(np.array([0, 1]), held)}
        parts = maker.parts(1, 0, people.activity.means(40.0, 0.5), models)
    for part in parts:
        payloads = part.table["update"].combine_chunks().drop_null()
        updates, whole = dense_updates(payloads, line.spec.m)
        assert whole.all()
        yield updates


@settings(max_examples=EXAMPLES, deadline=None)
@given(trainings)
def test_a_simulated_study_lands_what_the_laboratory_computes(training: Training) -> None:
    spec = _people()[1].lines[0].spec
    with pytest.MonkeyPatch.context() as patch:
        asked = overheard(patch, searching)
        landed = np.concatenate(list(_of_ticks(training)))
    expected = np.concatenate([in_the_laboratory(spec, training, each) for each in asked])
    assert len(landed) == len(expected) > 5
    assert np.array_equal(sorted_rows(landed), sorted_rows(expected))


def test_browsers_follow_the_training_and_do_not_send_the_same_whatever_it_is() -> None:
    plain = OneGradient()
    several = [
        OneGradient(sign=True),
        LocalSteps(rate=0.3, steps=1),
        LocalSteps(rate=0.3, steps=3),
        LocalSteps(rate=0.3, steps=3, proximal=0.5),
        LocalSteps(rate=0.3, epochs=2, sign=True),
    ]
    fleets = [
        np.sort(np.ravel(sent_by_fleet(alone(fleet_study(), each), FleetSettings(clients=20, seed=1)))).tobytes()
        for each in (plain, *several)
    ]
    ticks = [np.concatenate(list(_of_ticks(each))).tobytes() for each in (plain, *several)]
    for kind in (fleets, ticks):
        assert len(set(kind)) >= len(kind) - 1, "only the signs of one step and of several may be alike"
        assert kind[0] not in kind[1:]


class _Keeps:
    """An algorithm of gradients, with a count of them in the client's state."""

    def __init__(self, training: OneGradient) -> None:
        self._gradient = PLAIN(training)

    def init_state(self, model: Model[Any]) -> State:
        return {"trainings": np.zeros(1)}

    def update(self, model: Model[Any], weights: Any, batch: Any, keys: Keys, state: State) -> tuple[Any, State]:
        updates, _ = self._gradient.update(model, weights, batch, keys, NO_STATE)
        return updates, {"trainings": state["trainings"] + 1}


PLAIN = ALGORITHMS[OneGradient]


def test_a_training_that_keeps_state_is_refused_where_users_keep_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, OneGradient, _Keeps)
    experiment, study = experiment_from_toml(experiment_file(tmp_path / "files"))
    with pytest.raises(InvalidSettings, match=r"'gradient' keeps state"):
        Simulation(experiment, study, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_training_that_nobody_knows_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ALGORITHMS, LocalSteps)
    study = alone(fleet_study(), LocalSteps(rate=0.1, steps=1))
    transport = PlannedTransport(study)
    sentence = "line 'main' cannot be simulated: clients do not know the training 'local'; they know gradient; post"
    with pytest.raises(InvalidSettings, match=sentence):
        asyncio.run(join_study(transport, study.name, FleetSettings(clients=5)))
    assert transport.sent == []
    assert transport.closed
