"""Gossip averaging in the laboratory: nodes average their models with their neighbours', without a server."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.client_sim.learning import updates
from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.report import write_report
from fedping.experiments.laboratory.resuming import CHECKPOINT
from fedping.experiments.laboratory.rounds.gossip import GossipRounds, adjacency, mixing_votes, spectral_gap
from fedping.experiments.laboratory.run import code_identity, run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.laboratory.settings.setup import Gossip
from fedping.experiments.laboratory.units import Unit
from fedping.experiments.papers.scripts.pictures import PICTURES
from fedping.protocol.errors import InvalidSettings
from tests.experiments.test_laboratory_run import ROOT, contents
from tests.support import forked
from tests.support.laboratory import small

LOCAL = {"algorithm": "local", "epochs": 2, "batch": 16, "rate": 0.5}
RANDOM = {"graph": "random_regular", "degree": 4}


def names(n: int) -> list[str]:
    return [str(at) for at in range(n)]


def unit(gossip: dict[str, Any], **changes: Any) -> Unit:
    given = {"training": LOCAL, "gossip": gossip, "rounds": 12, "evaluation__every": 4}
    [setup] = small(**{**given, **changes}).variants.values()
    return Unit("only", None, setup, 1, None)


def last(unit: Unit, out: Path) -> Any:
    return np.load(unit.folder(out).path / "last.npy")


def metrics(unit: Unit, out: Path, split: str) -> dict[str, list[float]]:
    rows = pq.read_table(unit.folder(out).path / "metrics.parquet").to_pylist()
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["split"] == split:
            found.setdefault(row["metric"], []).append(row["value"])
    return found


@pytest.mark.parametrize(
    "settings",
    [Gossip(graph="complete"), Gossip(graph="ring"), Gossip(graph="random_regular", degree=3)],
)
def test_mixing_weights_are_doubly_stochastic_whoever_is_away(settings: Gossip) -> None:
    whole = adjacency(settings, names(12), 5)
    assert not whole.diagonal().any()
    np.testing.assert_array_equal(whole, whole.T)
    random = np.random.default_rng(3)
    for there in [np.ones(12, np.bool_), *(random.random((20, 12)) < 0.6)]:
        adjacent = whole & there & there[:, None]
        votes = mixing_votes(adjacent)
        weights = votes / votes.sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(weights, weights.T)
        np.testing.assert_allclose(weights.sum(axis=0), 1.0, atol=1e-15)
        assert (weights >= 0).all()
        np.testing.assert_array_equal(weights[~there], np.eye(12)[~there])
        degrees = adjacent.sum(axis=1)
        one, other = np.nonzero(adjacent)
        np.testing.assert_allclose(weights[one, other], 1 / (1 + np.maximum(degrees[one], degrees[other])))


def test_a_star_has_the_weights_of_metropolis_and_hastings() -> None:
    star = np.zeros((4, 4), np.bool_)
    star[0, 1:] = star[1:, 0] = True
    votes = mixing_votes(star)
    expected = np.array([[1, 1, 1, 1], [1, 3, 0, 0], [1, 0, 3, 0], [1, 0, 0, 3]]) / 4
    np.testing.assert_allclose(votes / votes.sum(axis=1, keepdims=True), expected)
    assert spectral_gap(votes) == pytest.approx(0.25)


@pytest.mark.parametrize("n", [4, 7, 30])
def test_the_gaps_of_graphs_with_a_formula(n: int) -> None:
    ring = spectral_gap(mixing_votes(adjacency(Gossip(graph="ring"), names(n), 1)))
    cosines = (1 + 2 * np.cos(2 * np.pi * np.arange(1, n) / n)) / 3
    assert ring == pytest.approx(1 - np.abs(cosines).max())
    assert spectral_gap(mixing_votes(adjacency(Gossip(graph="complete"), names(n), 1))) == pytest.approx(1.0)


@pytest.mark.parametrize(("n", "degree"), [(10, 3), (9, 6), (20, 19), (50, 40), (2, 1)])
def test_random_regular_graphs_are_regular_connected_and_of_their_seed(n: int, degree: int) -> None:
    settings = Gossip(graph="random_regular", degree=degree)
    found = adjacency(settings, names(n), 7)
    assert (found.sum(axis=1) == degree).all()
    assert spectral_gap(mixing_votes(found)) > 0
    np.testing.assert_array_equal(found, adjacency(settings, names(n), 7))
    if degree < n - 1:
        assert any((found != adjacency(settings, names(n), seed)).any() for seed in range(5))


@pytest.mark.parametrize("changes", [{}, {"partition": {"partition": "power_law", "clients": 40}}])
@pytest.mark.parametrize("exchanges", [1, 3])
def test_the_complete_graph_is_the_mean_of_a_server_to_the_bit(
    tmp_path: Path, changes: dict[str, Any], exchanges: int
) -> None:
    gossip = unit({"graph": "complete", "exchanges": exchanges}, **changes)
    server = {"weighting": "client", "optimizer": {"optimizer": "gradient_descent", "rate": 1.0}}
    [setup] = small(training=LOCAL, server=server, rounds=12, evaluation__every=4, **changes).variants.values()
    central = Unit("central", None, setup, 1, None)
    for each in (gossip, central):
        run_unit(each, tmp_path)
    assert last(gossip, tmp_path).tobytes() == last(central, tmp_path).tobytes()
    for split in ("validation", "test"):
        assert metrics(gossip, tmp_path, split) == metrics(central, tmp_path, split)
    assert metrics(gossip, tmp_path, "train")["loss"] == metrics(central, tmp_path, "train")["loss"]
    assert metrics(gossip, tmp_path, "graph")["consensus_distance"] == [0.0] * 4
    assert metrics(gossip, tmp_path, "nodes") == metrics(gossip, tmp_path, "test")


@pytest.mark.parametrize("failures", [0.0, 0.4])
def test_rounds_are_as_by_hand(failures: float) -> None:
    """Takes each node's gradient step separately, and multiplies by the written-out mixing matrix."""
    gossip = {**RANDOM, "failures": failures, "exchanges": 2}
    unit_ = unit(gossip, training={"algorithm": "local", "steps": 1, "rate": 0.5})
    problem = prepare(unit_.setup, 1, None)
    cohorts, rounds = Cohorts(unit_.setup, problem), GossipRounds(unit_.setup, problem)
    assert unit_.setup.gossip is not None
    graph = adjacency(unit_.setup.gossip, names(8), 1)
    models = np.tile(problem.spec.start_array, (8, 1))
    away = 0
    for number in range(10):
        sent = list(cohorts.sent(number, [rounds.models]))
        there = np.isin(np.arange(8), np.concatenate([block.clients for block in sent]))
        away += int((~there).sum())
        for node in np.flatnonzero(there):
            gradient = problem.model.gradients(models[node], problem.train.batch(np.array([node])))[0]
            models[node] -= 0.5 * gradient
        degrees = (graph & there).sum(axis=1)
        mixing = np.eye(8)
        for one, other in zip(*np.nonzero(graph & there & there[:, None]), strict=True):
            weight = 1 / (1 + max(degrees[one], degrees[other]))
            mixing[one, other] = weight
            mixing[one, one] -= weight
        before = models.mean(axis=0)
        models = mixing @ mixing @ models
        rounds.run(sent)
        np.testing.assert_allclose(rounds.snapshot()["models"], models, atol=1e-6)  # updates are float32
        np.testing.assert_allclose(rounds.weights, before, atol=1e-6)
    assert (away > 0) == (failures > 0)
    distance = np.sqrt(((models - models.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert rounds.measured()["graph"]["consensus_distance"] == pytest.approx(distance, rel=1e-4)


def test_more_exchanges_and_better_graphs_bring_the_nodes_closer_and_send_more(tmp_path: Path) -> None:
    ways = [{"graph": "ring"}, {"graph": "ring", "exchanges": 4}, RANDOM, {"graph": "complete"}]
    units = [unit(way, partition={"partition": "shards", "clients": 12}) for way in ways]
    spread, sent = [], []
    for number, each in enumerate(units):
        outcome = run_unit(each, tmp_path / str(number))
        told = metrics(each, tmp_path / str(number), "graph")
        spread.append(told["consensus_distance"][-1])
        weights = 31
        neighbours = [2, 8, 4, 11][number]
        assert told["kilobytes_a_node"][-1] == pytest.approx(neighbours * 8 * weights / 1e3)
        sent.append(outcome.update_bytes)
        assert outcome.update_bytes == 12 * 12 * neighbours * 8 * weights
    ring, often, random, complete = spread
    assert ring > often > complete == 0.0
    assert ring > random > complete
    assert sent[0] < sent[2] < sent[1] < sent[3]


EXPERIMENT = """
rounds = 12
[model]
name = "logistic-regression"
l2 = 1e-2
[data]
name = "breast-cancer"
standardise = true
[partition]
partition = "shards"
clients = 8
[training]
algorithm = "local"
epochs = 1
batch = 16
rate = 0.5
[evaluation]
every = 4
baselines = []
"""


def test_an_own_graph_is_a_file_beside_the_experiment(tmp_path: Path) -> None:
    edges = [f"{at}, {(at + 1) % 8}" for at in range(8)]
    (tmp_path / "edges.csv").write_text("\n".join(["node,neighbour", *edges, "1,0", ""]))
    variants = """
        [[variants]]
        name = "own"
        gossip.file = "edges.csv"
        [[variants]]
        name = "ring"
        gossip.graph = "ring"
        [[variants]]
        name = "server"
        server.weighting = "client"
    """
    (tmp_path / "graphs.toml").write_text(EXPERIMENT + variants)
    experiment = experiment_from_toml(tmp_path / "graphs.toml")
    summary = run_experiment(experiment, tmp_path / "out", jobs=1)
    assert set(summary.variants["own"].metrics) == {"test", "nodes", "nodes_worst", "graph"}
    assert set(summary.variants["server"].metrics) == {"test"}
    own, ring = (tmp_path / "out/runs" / name / "seed-1/last.npy" for name in ("own", "ring"))
    assert own.read_bytes() == ring.read_bytes()
    report = write_report(tmp_path / "out", tmp_path / "report.html").read_text()
    assert "spectral gap" in report
    assert "which nobody has" in report
    before = code_identity(experiment)
    (tmp_path / "edges.csv").write_text("\n".join(["node,neighbour", *edges, "0,4", ""]))
    changed = {name for name, digest in code_identity(experiment).items() if before[name] != digest}
    assert changed == {f"file {tmp_path / 'edges.csv'}"}


def test_nodes_of_natural_keys_are_called_by_them(tmp_path: Path) -> None:
    lines = [f"{user},{at % 7},{at % 2}" for user in ("ann", "bob", "eve") for at in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["user,x,y", *lines]))
    (tmp_path / "edges.csv").write_text("node,neighbour\nann,bob\nbob,eve\n")
    changes = {
        "data": {"file": str(tmp_path / "rows.csv"), "target": "y", "client": "user", "kind": "class"},
        "partition": {"partition": "key"},
        "model": {"name": "logistic-regression"},
    }
    [setup] = small(**changes, training=LOCAL, gossip={"file": str(tmp_path / "edges.csv")}).variants.values()
    rounds = GossipRounds(setup, prepare(setup, 1, None))
    assert rounds.measured()["graph"]["spectral_gap"] == pytest.approx(1 / 3)  # a path of three


def test_the_experiment_of_the_docs_runs_and_its_picture_is_drawn(tmp_path: Path) -> None:
    changes = ("rounds=4", "seeds=1", "data.most=10", "evaluation.target=2.2")
    experiment = experiment_from_toml(ROOT / "experiments/gossip.toml", changes)
    summary = run_experiment(experiment, tmp_path / "gossip", jobs=1)
    metrics = {name: row.metrics for name, row in summary.variants.items()}
    assert metrics["a server"]["test"] == metrics["complete"]["test"] == metrics["complete"]["nodes"]
    gaps = {name: found["graph"]["spectral_gap"].mean for name, found in metrics.items() if name != "a server"}
    order = ["complete", "random, 8 each", "random, 4 each", "random, 3 each", "ring", "two groups"]
    assert sorted(order, key=lambda name: -(gaps[name] or 0.0)) == order
    over, by_gap = PICTURES["gossip"](tmp_path).axes
    assert {line.get_label() for line in over.lines} >= gaps.keys()
    assert {text.get_text() for text in by_gap.texts} == set(order)


FAILING: dict[str, Any] = {**RANDOM, "failures": 0.3, "exchanges": 2}


class Killed(BaseException):
    pass


def test_it_goes_on_at_its_round_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    keeping = {**LOCAL, "rate": 0.05, "optimizer": {"optimizer": "adam", "keep": True}}
    each = unit(FAILING, training=keeping)
    run_unit(each, tmp_path / "whole")

    def killed_after(rounds: int) -> None:
        def on_round(done: int, rows: object) -> None:
            if done == rounds:
                raise Killed

        with pytest.raises(Killed):
            run_unit(each, tmp_path / "killed", on_round)

    killed_after(3)
    killed_after(9)
    told: list[int] = []
    run_unit(each, tmp_path / "killed", lambda done, _: told.append(done))
    assert told == [9, 10, 11, 12]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_any_number_of_threads_comes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates.updates_of_fleet, "__defaults__", (2**12, 1))  # several blocks to work on
    left = []
    for threads in (1, 2, 4):
        run_unit(unit(FAILING), tmp_path / str(threads), threads=threads)
        left.append(contents(tmp_path / str(threads)))
    assert left[0] == left[1] == left[2]


@pytest.mark.long
def test_a_process_that_is_killed_at_any_moment_comes_to_the_same_bits(tmp_path: Path) -> None:
    file = tmp_path / "graphs.toml"
    graph = '[gossip]\ngraph = "random_regular"\ndegree = 3\nfailures = 0.2\n'
    file.write_text(EXPERIMENT.replace("rounds = 12", "rounds = 100").replace("every = 4", "every = 100") + graph)
    experiment = experiment_from_toml(file)
    run_experiment(experiment, tmp_path / "whole", jobs=1)
    checkpoint = tmp_path / "killed/runs/federated/seed-1" / CHECKPOINT
    command = [sys.executable, "-m", "fedping", "simulate", str(file), "--jobs", "1", "--out", str(tmp_path / "killed")]
    with forked.Popen(command, cwd=ROOT) as process:
        while not checkpoint.is_file():
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    assert checkpoint.is_file()
    run_experiment(experiment, tmp_path / "killed", jobs=1)
    assert contents(tmp_path / "killed/runs") == contents(tmp_path / "whole/runs")


RING = {"graph": "ring"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gossip": {}}, "needs either 'graph'"),
        ({"gossip": {"graph": "ring", "file": "a.csv"}}, "give one of them"),
        ({"gossip": {"graph": "random_regular"}}, "add 'degree'"),
        ({"gossip": {"graph": "ring", "degree": 2}}, "leave out 'degree'"),
        ({"gossip": {"graph": "star"}}, r"'graph' in \[gossip\]"),
        ({"gossip": {"graph": "ring", "failures": 1.0}}, r"'failures' in \[gossip\]"),
        ({"gossip": {"graph": "ring", "exchanges": 0}}, r"'exchanges' in \[gossip\]"),
        ({"gossip": RING, "evaluation__newcomers": 2}, "every client is a node"),
        ({"gossip": RING, "evaluation__decided_by": "personal"}, "every node has its own model"),
        ({"gossip": RING, "co_op": {}}, r"Remove \[co_op\]"),
        ({"gossip": RING, "attack": {"attack": "sign_flip"}}, "on a server's rounds"),
        ({"gossip": RING, "where": "files"}, "Remove 'where'"),
        ({"gossip": RING, "lateness": {"shares": [0.5, 0.5]}}, r"Remove \[lateness\]"),
        ({"gossip": RING, "upload": [{"link": "signs"}]}, "Remove 'upload'"),
        ({"gossip": RING, "sampling": {"sampling": "uniform", "clients": 3}}, "'failures'"),
        ({"gossip": RING, "training": {"algorithm": "gradient"}}, "trains its own model by local steps"),
        ({"gossip": RING, "evaluation__trained": True}, "measures its nodes' models anyway"),
        ({"gossip": RING, "server": {"min_clients": 2}}, r"without a \[server\]"),
        (
            {"gossip": RING, "privacy": {"central": {"epsilon": 1, "delta": 1e-6, "rounds": 4, "population": 9}}},
            r"Remove \[gossip\]",
        ),
        (
            {"variants": [{"name": "a", "gossip": RING, "server": {"min_clients": 2}}, {"name": "b"}]},
            r"^variant 'a': .* without a \[server\]",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        small(**({"training": LOCAL} | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"partition__clients": 1}, "a single node"),
        ({"gossip": {"graph": "random_regular", "degree": 8}}, "each of 8 nodes has at most 7 neighbours; lower it"),
        ({"gossip": {"graph": "random_regular", "degree": 3}, "partition__clients": 9}, "an odd number of both"),
        ({"gossip": {"graph": "random_regular", "degree": 1}}, "none of 100 random graphs"),
        ({"model__integer": True}, "whole numbers and constraints"),
        ({"gossip": {"file": "nowhere.csv"}}, "nowhere.csv of .* cannot be read: No such file"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    [setup] = small(**({"training": LOCAL, "gossip": RING} | changes)).variants.values()
    with pytest.raises(InvalidSettings, match=said):
        GossipRounds(setup, prepare(setup, 1, None))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1\n1,2\n", "does not begin with the line node,neighbour"),
        ("node,neighbour\n0,1\n1,2\n2,8\n", "line 4 of .* names the node '8', .* the 8 nodes are 0, 1, ..."),
        ("node,neighbour\n0,1,0.5\n", "line 2 of .* has 3 columns"),
        ("node,neighbour\n3,3\n", "makes node 3 its own neighbour"),
        ("node,neighbour\n0,1\n1,2\n3,4\n", "is in 5 parts, and no edges lead from node 3 to node 0"),
        ("\x00\xff", "does not begin with"),
    ],
)
def test_a_file_of_edges_that_makes_no_graph_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "edges.csv"
    file.write_text(text)
    [setup] = small(training=LOCAL, gossip={"file": str(file)}).variants.values()
    with pytest.raises(InvalidSettings, match=said):
        GossipRounds(setup, prepare(setup, 1, None))


def test_more_nodes_than_are_simulated_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="at most 1,000 are simulated"):
        adjacency(Gossip(graph="ring"), names(1_001), 1)
