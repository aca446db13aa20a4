"""Experiments whose clients learn from targets reported by randomised response."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedping.client_sim.data import example_data
from fedping.client_sim.data.table import Target
from fedping.experiments.laboratory.response import Responses, responses
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings.response import Response
from fedping.protocol.errors import InvalidSettings
from tests.support.laboratory import small

RATINGS = [1.0, 2.0, 3.0, 4.0]


def rated(**settings: Any) -> Responses:
    rng = np.random.default_rng(5)
    sizes = [300, 0, 500, 700]
    data = example_data(rng.random((1500, 2)), rng.choice(RATINGS, 1500), sizes)
    return responses(Response(values=tuple(RATINGS), **settings), data, 7)


def test_without_a_second_stage_all_rounds_learn_from_the_same_reports() -> None:
    own = rated(permanent=2.0)
    first, second = own.in_round(0), own.in_round(1)
    np.testing.assert_array_equal(first.y, second.y)
    assert (first.y != own.data.y).any()
    assert len(np.unique(first.y)) == 4
    np.testing.assert_array_equal(first.x, own.data.x)


def test_with_a_second_stage_rounds_differ_around_the_kept_answers() -> None:
    own, kept = rated(permanent=2.0, instantaneous=1.0), rated(permanent=2.0)
    first, second = own.in_round(0), own.in_round(1)
    assert (first.y != second.y).any()
    mean = np.mean([own.in_round(number).y for number in range(400)], axis=0)
    np.testing.assert_allclose(mean, kept.in_round(0).y, atol=5 * first.y.std() / 20)


def test_clients_choose_a_level_of_their_own_and_another_seed_draws_others() -> None:
    own = rated(permanent=(0.5, 8.0))
    assert [stages.permanent for stages in own.stages] == [0.5, 8.0]
    assert set(own.levels.tolist()) <= {0, 1}
    many = example_data(np.zeros((4000, 1)), np.ones(4000), np.ones(4000, int))
    levels = responses(Response(values=(1.0, 2.0), permanent=(0.5, 8.0)), many, 7).levels
    assert abs(levels.mean() - 0.5) < 5 * 0.5 / np.sqrt(4000)  # five standard errors
    client = int(np.flatnonzero(own.levels == 1)[0]) if (own.levels == 1).any() else None
    if client is not None:
        rows = slice(own.data.offsets[client], own.data.offsets[client + 1])
        assert np.mean(np.abs(own.in_round(0).y[rows] - own.data.y[rows]) < 0.05) > 0.9
    other = responses(Response(values=tuple(RATINGS), permanent=2.0), own.data, 8)
    assert (other.in_round(0).y != rated(permanent=2.0).in_round(0).y).any()


def test_classes_stay_classes() -> None:
    data = example_data(np.zeros((90, 1)), np.arange(90) % 3, [40, 50], target=Target("y", ("a", "b", "c")))
    reported = responses(Response(permanent=1.0), data, 1).in_round(0)
    assert reported.y.dtype == data.y.dtype
    assert set(reported.y.tolist()) == {0, 1, 2}
    with pytest.raises(InvalidSettings, match=r"3 classes\. Remove 'values'"):
        responses(Response(permanent=1.0, values=(0.0, 1.0)), data, 1)


def test_what_cannot_be_drawn_is_refused() -> None:
    data = example_data(np.zeros((4, 1)), np.array([1.0, 2.0, 2.5, 1.0]), [4])
    with pytest.raises(InvalidSettings, match="Give the values that it may have"):
        responses(Response(permanent=1.0), data, 1)
    with pytest.raises(InvalidSettings, match=r"the target 2\.5, which is not among them"):
        responses(Response(permanent=1.0, values=(1.0, 2.0)), data, 1)
    with pytest.raises(InvalidSettings, match="learn from choices"):
        responses(Response(permanent=1.0), object(), 1)
    with pytest.raises(InvalidSettings, match="the list is empty"):
        Response(permanent=())
    with pytest.raises(InvalidSettings, match="two or more different"):
        Response(permanent=1.0, values=(1.0, 1.0))


def last_model(folder: Path, **changes: Any) -> np.ndarray:
    run_experiment(small(rounds=3, evaluation__local=False, **changes), folder, jobs=1)
    [found] = folder.glob("**/federated/seed-1/last.npy")
    return np.asarray(np.load(found))


def test_a_run_learns_from_reports_in_memory_and_over_files_alike(tmp_path: Path) -> None:
    asked = {"permanent": 1.0, "instantaneous": 1.0}
    true = last_model(tmp_path / "true")
    memory, files = (
        last_model(tmp_path / where, where=where, randomised_response=asked) for where in ("memory", "files")
    )
    np.testing.assert_array_equal(memory, files)
    assert np.abs(memory - true).max() > 1e-3
    nearly = last_model(tmp_path / "nearly", randomised_response={"permanent": 50.0})
    np.testing.assert_array_equal(nearly, true)


def test_the_jax_engine_refuses_it(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    with pytest.raises(InvalidSettings, match=r"\[randomised_response\]"):
        last_model(tmp_path, engine="jax", randomised_response={"permanent": 1.0})


@pytest.mark.parametrize("changes", [{"data__class_weights": True}, {"data__select": {"features": 3}}], ids=str)
def test_a_preparation_by_true_targets_is_refused(changes: dict[str, Any]) -> None:
    [name] = (key.removeprefix("data__") for key in changes)
    with pytest.raises(InvalidSettings, match=rf"\[data\] '{name}' would be computed from the true ones"):
        small(randomised_response={"permanent": 1.0}, **changes)
    small(**changes)


def test_clients_of_ifca_choose_their_model_by_their_reports(tmp_path: Path) -> None:
    """Inverted reports of two classes lead clients to the other of two models."""
    from fedping.experiments.laboratory.preparing import prepare
    from fedping.experiments.laboratory.rounds.several import IfcaRounds

    experiment = small(clusters={"by": "ifca", "clusters": 2, "spread": 0.1}, randomised_response={"permanent": 1e-6})
    [setup] = experiment.variants.values()
    problem = prepare(setup, 1, None)
    rounds, clients = IfcaRounds(setup, problem, setup.clusters), np.arange(len(problem.train))
    weights = np.random.default_rng(0).normal(size=problem.spec.m)
    for sign, channel in zip((1, -1), rounds._channels, strict=True):
        channel.continue_from(sign * weights)
    true = rounds.chosen(clients)
    opposite = replace(problem.train, y=1 - problem.train.y)
    rounds._problem = replace(problem, responses=cast(Any, SimpleNamespace(in_round=lambda round_: opposite)))
    assert (rounds.chosen(clients) != true).any()
    rounds._problem = replace(problem, train=opposite, responses=problem.responses)
    np.testing.assert_array_equal(rounds.chosen(clients), true)  # it asks for reports, and never for true targets
