"""Runs of several models: edge servers below a cloud (Liu 2020), IFCA (Ghosh 2020), and bipartition (Sattler 2019)."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.rounds.several import IfcaRounds, bipartition, edges_of
from fedping.experiments.laboratory.settings.several import Hierarchy, Ifca
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import InvalidSettings
from tests.experiments.test_laboratory_run import contents
from tests.support.laboratory import small

GRADIENT: dict[str, Any] = {
    "rounds": 6,
    "server__weighting": "client",
    "server__optimizer__rate": 0.5,
    "training": {"algorithm": "gradient"},
    "evaluation": {"every": 3, "baselines": []},
}
TURNED: dict[str, Any] = {
    "rounds": 15,
    "data": {"name": "turned-digits", "standardise": True, "test": 0.2},
    "data__validation": 0.0,
    "partition": {"partition": "key", "pieces": 3},
    "server__weighting": "client",
    "training": {"algorithm": "local", "steps": 5, "rate": 0.1},
    "evaluation": {"every": 15, "baselines": [], "local": True, "decided_by": "personal"},
}
SCAFFOLD = {"training": {"algorithm": "scaffold", "steps": 2, "rate": 0.1}, "server__optimizer__rate": 1.0}
POWER_OF_CHOICE = {"sampling": "power_of_choice", "clients": 2, "candidates": 6}
IFCA = {"by": "ifca", "clusters": 3, "spread": 0.3}
SPLIT = {"by": "bipartition", "mean_below": 0.6, "norm_above": 0.5, "after": 5}


def unit(**changes: Any) -> Unit:
    [setup] = small(**{**GRADIENT, **changes}).variants.values()
    return Unit("only", None, setup, 1, None)


def run(folder: Path, **changes: Any) -> tuple[Outcome, np.ndarray, Problem]:
    of = unit(**changes)
    outcome = run_unit(of, folder)
    return outcome, np.load(of.folder(folder).path / "models.npy"), prepare(of.setup, 1, None)


def gradients(problem: Problem, weights: np.ndarray) -> np.ndarray:
    clients = np.arange(len(problem.train))
    return np.asarray(problem.model.gradients(weights, problem.train.batch(clients)))


def test_edges_average_their_clients_and_the_cloud_the_edges(tmp_path: Path) -> None:
    """Compared with a second implementation: 8 clients in 3 unequal edges, which the cloud weights by their clients."""
    settings = {"edges": 3, "edge_rounds": 2}
    for rounds in (5, 6):
        _, models, problem = run(tmp_path / str(rounds), hierarchy=settings, rounds=rounds)
        of = edges_of(Hierarchy(**settings), problem)  # type: ignore[arg-type]
        sizes = np.bincount(of)
        assert sorted(sizes.tolist()) == [2, 3, 3]
        edges = np.tile(problem.spec.start_array, (3, 1))
        for round_ in range(1, rounds + 1):
            for edge in range(3):
                edges[edge] -= 0.5 * gradients(problem, edges[edge])[of == edge].mean(axis=0)
            if round_ % 2 == 0:
                edges[:] = sizes @ edges / 8
        np.testing.assert_allclose(models, edges, rtol=1e-5, atol=1e-6)
        assert (models[0] == models[1]).all() == (rounds == 6)


def test_one_edge_is_a_server(tmp_path: Path) -> None:
    of = unit()
    run_unit(of, tmp_path / "server")
    _, models, _ = run(tmp_path / "edge", hierarchy={"edges": 1, "edge_rounds": 3})
    np.testing.assert_array_equal(models[0], np.load(of.folder(tmp_path / "server").path / "last.npy"))


def test_edges_by_label_have_clients_of_the_same_class_and_by_key_those_of_the_same_key() -> None:
    problem = prepare(unit(**TURNED).setup, 1, None)
    keys = edges_of(Hierarchy(edge_rounds=1, by="key"), problem)
    assert keys.tolist() == np.repeat(np.arange(4), 3).tolist()
    labels = prepare(unit(partition={"partition": "labels", "labels": 1, "clients": 8}).setup, 1, None)
    of = edges_of(Hierarchy(edge_rounds=1, edges=2, by="label"), labels)
    for edge in range(2):
        batch = labels.train.batch(np.flatnonzero(of == edge))
        assert len(np.unique(batch.y[batch.weight > 0])) == 1


def test_ifca_comes_to_the_models_of_a_second_implementation(tmp_path: Path) -> None:
    _, models, problem = run(tmp_path, clusters=IFCA)
    [setup] = small(**{**GRADIENT, "clusters": IFCA}).variants.values()
    clients = np.arange(len(problem.train))
    own = np.array([channel.weights for channel in IfcaRounds(setup, problem, Ifca(clusters=3, spread=0.3))._channels])
    assert len(np.unique(own, axis=0)) == 3
    for _ in range(6):
        batch = problem.train.batch(clients)
        chosen = np.argmin([problem.model.losses(each, batch) for each in own], axis=0)
        steps = [gradients(problem, each) for each in own]
        for number in np.unique(chosen):
            own[number] -= 0.5 * steps[number][chosen == number].mean(axis=0)
    np.testing.assert_allclose(models, own, rtol=1e-5, atol=1e-6)


def test_the_two_parts_are_those_with_the_least_greatest_cosine() -> None:
    """Compared with a search of all divisions of 7 vectors into two parts, for 20 draws."""
    random = np.random.default_rng(1)
    for _ in range(20):
        vectors = random.normal(size=(7, 3))
        directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = directions @ directions.T
        second, greatest = bipartition(cosines)
        assert not second[0]
        assert second.any()
        parts = [set(each) for size in range(1, 7) for each in combinations(range(7), size)]
        least = min(max(cosines[i, j] for i in part for j in set(range(7)) - part) for part in parts)
        assert greatest == pytest.approx(least) == pytest.approx(cosines[~second][:, second].max())


@pytest.mark.parametrize("clusters", [{"by": "ifca", "clusters": 4}, SPLIT], ids=lambda each: each["by"])
def test_clients_of_a_kind_find_each_other_and_predict_better(clusters: dict[str, Any], tmp_path: Path) -> None:
    """With digits in four rotations, each bipartition model serves one rotation, and each rotation has one IFCA model.

    IFCA may leave two rotations with one model, and bipartition may split a rotation. Both gain .1 of accuracy.
    """
    variant = unit(**TURNED, clusters=clusters)
    outcome = run_unit(variant, tmp_path)
    table = pq.read_table(variant.folder(tmp_path).path / "clients.parquet").to_pandas()
    of, has = ("key", "model") if clusters["by"] == "ifca" else ("model", "key")
    assert (table.groupby(of)[has].nunique() == 1).all()
    assert table.model.nunique() >= 3
    assert outcome.final["gain"]["accuracy"] is not None
    assert outcome.final["gain"]["accuracy"] > 0.1
    assert outcome.final["models"]["count"] == len(np.load(variant.folder(tmp_path).path / "models.npy"))


@pytest.mark.parametrize(
    "changes",
    [
        {"hierarchy": {"edges": 3, "edge_rounds": 4}},
        {"clusters": IFCA, "sampling": {"sampling": "uniform", "clients": 4}},
        {"clusters": {"by": "bipartition", "mean_below": 9.0, "norm_above": 1e-9, "most": 3}},
        {
            "hierarchy": {"edges": 2, "edge_rounds": 2},
            "sampling": {"sampling": "power_of_choice", "clients": 2, "candidates": 6},
        },
    ],
)
def test_a_killed_run_goes_on_with_all_models(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    momentum = {"server__optimizer": {"optimizer": "momentum", "rate": 0.5, "beta": 0.5}}
    base = {key: value for key, value in GRADIENT.items() if key != "server__optimizer__rate"}
    [setup] = small(**{**base, **momentum, **changes}).variants.values()
    of = Unit("only", None, setup, 1, None)
    run_unit(of, tmp_path / "whole")

    def on_round(done: int, rows: object) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_unit(of, tmp_path / "killed", on_round)
    run_unit(of, tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hierarchy": {"edge_rounds": 2}}, "needs 'edges'"),
        ({"hierarchy": {"edge_rounds": 2, "edges": 2}, "clusters": IFCA}, "both divide the clients"),
        ({"clusters": IFCA, "engine": "jax"}, "compiles the rounds of one model"),
        ({"clusters": IFCA, "where": "files"}, "the servers of its models are in memory"),
        ({"clusters": SPLIT, "sampling": {"sampling": "uniform", "clients": 2}}, "Remove .sampling., so that all take"),
        ({"clusters": IFCA, "lateness": {"shares": [0.5, 0.5]}, "server__min_clients": 1}, "clients train the newest"),
        ({"clusters": IFCA, **SCAFFOLD}, "relies on one model"),
    ],
)
def test_what_does_not_go_with_several_models_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        unit(**changes)


@pytest.mark.parametrize(
    ("hierarchy", "sentence"),
    [
        ({"edge_rounds": 1, "by": "key"}, "the data have no natural keys"),
        ({"edge_rounds": 1, "edges": 9}, "has 9 edges for 8 clients"),
    ],
)
def test_edges_that_cannot_be_are_refused(hierarchy: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        run(tmp_path, hierarchy=hierarchy)
