"""Runs with blocks that stay with clients or are fitted again in each round, on every engine, and their baselines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.learning import MemoryStates, algorithm_for, bare
from fedping.client_sim.learning.algorithm import Personalizes
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.settings import Setup, experiment_from_toml
from fedping.experiments.laboratory.settings.merging import merged
from fedping.experiments.laboratory.settings.setup import BaselineName
from fedping.experiments.laboratory.units import Unit, units_of
from tests.support.laboratory import small

ROOT = Path(__file__).parents[2]
NETWORK: dict[str, Any] = {"name": "network", "hidden": 3, "l2": 0.01}
METHODS: dict[str, dict[str, Any]] = {
    "FedPer": {"by": "partly_local", "local": ["W2", "b2"], "rate": 0.3},
    "FedRep": {"by": "partly_local", "local": ["W2", "b2"], "rate": 0.3, "order": "local_first", "steps": 3},
    "FedRecon": {"by": "reconstruct", "local": ["W2", "b2"], "rate": 0.3, "steps": 3},
}
SHARED = 30 * 3 + 3


def setup_of(**changes: Any) -> Setup:
    [setup] = small(rounds=3, model=NETWORK, **changes).variants.values()
    return setup


def run(folder: Path, setup: Setup, baseline: BaselineName | None = None) -> tuple[Outcome, np.ndarray]:
    unit = Unit("only", baseline, setup, 1, None)
    outcome = run_unit(unit, folder)
    return outcome, np.load(unit.folder(folder).path / "last.npy")


@pytest.mark.parametrize("method", METHODS)
def test_rounds_over_http_and_over_files_know_only_the_shared_blocks_and_come_to_the_same(
    tmp_path: Path, method: str
) -> None:
    training = {"algorithm": "local", "epochs": 1, "batch": 16, "rate": 0.3, "personal": METHODS[method]}
    places = ("memory", "files", "http") if method == "FedPer" else ("memory", "files")
    found = {where: run(tmp_path / where, setup_of(training=training, where=where)) for where in places}
    outcome, weights = found.pop("memory")
    assert weights.shape == (SHARED,)
    for where, (other, elsewhere) in found.items():
        np.testing.assert_allclose(elsewhere, weights, rtol=1e-12, atol=1e-14)
        assert other.final["personal"] == pytest.approx(outcome.final["personal"]), where
    assert outcome.final["personal"]["loss"] < outcome.final["central"]["loss"]


def test_what_each_learns_alone_has_the_whole_model_whatever_the_variant(tmp_path: Path) -> None:
    """The baselines of a variant with local blocks are those of the same model without local blocks."""
    divided, whole = (
        setup_of(**changes) for changes in ({"training": {"algorithm": "gradient", "personal": METHODS["FedPer"]}}, {})
    )
    ways: tuple[BaselineName, ...] = ("local", "centralised", "start")
    for baseline in ways:
        outcome, weights = run(tmp_path / "divided", divided, baseline)
        expected, same = run(tmp_path / "whole", whole, baseline)
        assert weights.shape[-1] == SHARED + 8
        np.testing.assert_array_equal(weights, same)
        assert outcome.final == expected.final


@pytest.mark.parametrize("method", METHODS)
def test_newcomers_predict_with_what_a_reconstruction_fits_on_their_own_examples(tmp_path: Path, method: str) -> None:
    training = {"algorithm": "gradient", "personal": METHODS[method]}
    setup = setup_of(training=training, evaluation__newcomers=3)
    outcome, weights = run(tmp_path, setup)
    problem = prepare(setup, 1, None)
    model, algorithm = bare(problem.model), algorithm_for(setup.training, 3)
    assert isinstance(algorithm, Personalizes)
    new, first = problem.newcomers, MemoryStates(algorithm.init_state(model))
    own = algorithm.personal_weights(model, weights, problem.train.batch(new), first.load(new))
    losses = algorithm.personal_model(model).losses(own, problem.test.batch(new))
    shared = problem.model.losses(weights, problem.test.batch(new))
    assert outcome.final["newcomers"]["loss"] == pytest.approx(np.mean(losses))
    assert (np.mean(losses) == pytest.approx(np.mean(shared))) == (method != "FedRecon")


def test_nothing_is_said_of_newcomers_that_learn_alone(tmp_path: Path) -> None:
    of: tuple[tuple[BaselineName, bool], ...] = (("local", False), ("centralised", True), ("start", True))
    for baseline, there in of:
        outcome, _ = run(tmp_path / baseline, setup_of(evaluation__newcomers=3), baseline)
        assert ("newcomers" in outcome.final) == there


def test_start_and_spread_are_those_of_the_shared_weights() -> None:
    training = {"algorithm": "gradient", "personal": METHODS["FedPer"]}
    plain = prepare(setup_of(training=training), 1, None)
    moved = prepare(setup_of(training=training, model__spread=0.5), 1, None)
    assert plain.spec.m == moved.spec.m == SHARED
    assert 0.4 < abs(moved.spec.start_array - plain.spec.start_array).max() <= 0.5
    np.testing.assert_array_equal(moved.undivided.spec.start_array[:SHARED], moved.spec.start_array)
    np.testing.assert_array_equal(moved.undivided.spec.start_array[SHARED:], plain.undivided.spec.start_array[SHARED:])


def test_a_variant_may_choose_another_method_than_the_file() -> None:
    below = {"training": {"algorithm": "gradient", "personal": METHODS["FedRep"]}}
    assert merged(below, {"training": {"personal": METHODS["FedRecon"]}})["training"]["personal"] == METHODS["FedRecon"]


def test_a_reconstruction_divides_the_examples_anew_in_every_round() -> None:
    """At the same weights, clients send different updates in different rounds, and equal ones in the same round."""
    setup = setup_of(training={"algorithm": "gradient", "personal": METHODS["FedRecon"]})
    problem = prepare(setup, 1, None)
    cohorts = Cohorts(setup, problem, states=MemoryStates({}))
    first, again, other = (
        [np.asarray(sent.updates) for sent in cohorts.sent(round_, [problem.spec.start_array])] for round_ in (0, 0, 1)
    )
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert all((one != two).any(axis=1).all() for one, two in zip(first, other, strict=True))


def test_the_example_of_the_guide_makes_own_models_better_than_the_shared_one(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "researchers.md").read_text(encoding="utf-8").partition("### Partly local models\n")[2]
    (name, example) = re.findall(r"```toml\n# file: (\S+)\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / name).write_text(example, encoding="utf-8")
    [unit] = units_of(experiment_from_toml(tmp_path / name, ["rounds=4"]))
    final = run_unit(unit, tmp_path / "out").final
    assert (final["personal"]["rmse"] or 9) < (final["central"]["rmse"] or 0) - 0.02
