"""Rehearsals in the laboratory: users of a product's items are clients, and their preferences evaluate versions."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedping.client_sim.features import vectors
from fedping.client_sim.fleet.examples import ExampleSettings, examples_for
from fedping.client_sim.rehearsal.users import VisitData
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.settings import Setup, experiment_of
from fedping.experiments.laboratory.settings.experiment import ONLY_VARIANT
from fedping.experiments.laboratory.units import Unit
from fedping.experiments.laboratory.visitors import Visitors
from fedping.protocol.errors import FedpingError

FEATURES = [
    {"kind": "number", "name": "score", "start": 1},
    {"kind": "number", "name": "price"},
    {"kind": "flag", "name": "ad"},
    {"kind": "category", "name": "device", "on": "query", "values": ["phone", "desktop"]},
    {"kind": "cross", "name": "device.price", "of": ["device", "price"]},
]
TRUTH = {"score": 0.6, "price": -1.0, "ad": -0.4, "device.price": -0.5}
ITEMS = "id,score,price,ad\n" + "".join(
    f"{n},{(7 * n % 20) / 5 - 2},{(11 * n % 20) / 5 - 2},{'true' if n % 5 == 0 else 'false'}\n" for n in range(20)
)


def folder_with_tables(folder: Path) -> Path:
    (folder / "items.csv").write_text(ITEMS)
    (folder / "queries.csv").write_text("device\nphone\ndesktop\n")
    return folder


def setup_in(folder: Path, **changes: Any) -> Setup:
    data: dict[str, Any] = {
        "users": 100,
        "judges": 40,
        "examples": [2, 6],
        "lists": {"items": "items.csv", "queries": "queries.csv", "truth": TRUTH, **changes.pop("lists", {})},
        **changes.pop("data", {}),
    }
    tables: dict[str, Any] = {
        "rounds": 3,
        "model": {"name": "features", "features": FEATURES, **changes.pop("model", {})},
        "data": {name: value for name, value in data.items() if value is not None},
        "server": {"optimizer": {"optimizer": "rprop"}},
        "evaluation": {"baselines": []},
        **changes,
    }
    tables = {name: value for name, value in tables.items() if value is not None}
    return experiment_of(tables, name="rehearsal", folder=folder).variants[ONLY_VARIANT]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return folder_with_tables(tmp_path)


def problem_in(folder: Path, seed: int = 1, **changes: Any) -> Problem:
    return prepare(setup_in(folder, **changes), seed, None)


def run(folder: Path, out: str, seed: int = 1, baseline: Any = None, **changes: Any) -> tuple[Outcome, np.ndarray]:
    unit = Unit("rehearsal", baseline, setup_in(folder, **changes), seed, None)
    outcome = run_unit(unit, folder / out)
    return outcome, np.load(unit.folder(folder / out).path / "last.npy")


def metric(outcome: Outcome, name: str, split: str = "test") -> float:
    value = outcome.final[split][name]
    assert value is not None
    return value


def same_lists(a: VisitData, b: VisitData, clients: np.ndarray) -> None:
    for one, other in zip(vars(a.batch(clients)).values(), vars(b.batch(clients)).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_offsets_recover_the_truth_from_lists_that_production_orders_and_a_naive_loss_does_not(tables: Path) -> None:
    """Users look by place; the order is always by the start weights. Seeds 1 to 3 give .66 to .70, and .98 to 1."""
    numbers = {"a": (1.0, 0.3), "b": (0.5, -0.5), "c": (0.0, 1.0), "d": (0.0, 0.5), "e": (0.0, -0.7), "f": (0.0, 0.2)}
    features = [{"kind": "number", "name": name, "start": start} for name, (start, _) in numbers.items()]
    data = {"users": 150, "applies": False, "lists": {"truth": {name: true for name, (_, true) in numbers.items()}}}
    changes: dict[str, Any] = {
        "rounds": 45,
        "data": data,
        "evaluation": {"baselines": [], "every": 45},
        "server": {"optimizer": {"optimizer": "adam", "rate": 0.3}},
    }
    naive, _ = run(tables, "naive", model={"features": features}, **changes)
    offsets, weights = run(tables, "offsets", model={"features": features, "places": 10}, **changes)
    assert 0.6 < metric(naive, "recovered_gain") < 0.8
    assert metric(offsets, "recovered_gain") > 0.96
    assert metric(offsets, "recovered_ndcg") > metric(naive, "recovered_ndcg")
    assert metric(offsets, "top_choice") > metric(naive, "top_choice")
    assert offsets.shown[0] == "recovered_gain"
    assert (weights[6:] < -0.5).all()  # lower places are chosen less often
    start, _ = run(tables, "start", baseline="start", model={"features": features}, **changes)
    assert metric(start, "recovered_gain") == metric(start, "recovered_gain", "validation") == 0


@pytest.mark.parametrize("stops", [False, True])
def test_clients_without_lists_to_judge_by_learn_alone_as_well(tables: Path, stops: bool) -> None:
    evaluation = {"baselines": ["local"], "baseline_iterations": 2}
    stopping = {"early_stopping": {"patience": 2}} if stops else {}
    data = {"users": 9, "judges": 3}
    outcome, weights = run(tables, "local", baseline="local", data=data, evaluation=evaluation, **stopping)
    assert weights.shape[0] == 9
    assert metric(outcome, "top_choice") > 0


def test_rounds_are_the_same_in_memory_and_through_files(tables: Path) -> None:
    assert (run(tables, "memory")[1] == run(tables, "files", where="files")[1]).all()


def test_users_see_the_lists_that_a_fleet_of_the_seed_sees(tables: Path) -> None:
    setup = setup_in(tables, lists={"look": "cascade", "pinned": "ad", "tastes": 0.3})
    problem = prepare(setup, 7, None)
    weights = np.linspace(-1, 1, problem.spec.m)
    settings = ExampleSettings(least=2, most=6, rehearsal=setup.data.lists)
    fleet = examples_for(problem.spec, problem.model, settings, 7)
    clients = np.array([3, 17, 99])
    for round_ in (0, 5):
        mine = problem.train_in(round_, weights)
        theirs = fleet.of(np.arange(100), round_, weights)
        assert isinstance(mine, VisitData)
        assert isinstance(theirs, VisitData)
        same_lists(mine, theirs, clients)
        assert mine.batch(clients).pinned.any()


def test_lists_are_in_the_order_of_the_weights_that_clients_hold(tables: Path) -> None:
    problem = problem_in(tables)
    weights = np.linspace(-1, 1, problem.spec.m)
    for applies in (True, False):
        problem = problem_in(tables, data={"applies": applies})
        batch = problem.train_in(1, weights).batch(np.arange(100))
        by = weights if applies else problem.spec.start_array
        scores = vectors.scores(problem.spec, by, batch.lists)
        real = batch.lists.shown > 0
        assert (np.diff(scores[:, real], axis=0) <= 0).all()


def test_each_client_may_order_its_lists_by_weights_of_its_own(tables: Path) -> None:
    problem = problem_in(tables)
    own = np.random.default_rng(1).normal(size=(100, problem.spec.m))
    together = problem.train_in(2, own)
    assert isinstance(together, VisitData)
    for client in (0, 42):
        alone = problem.train_in(2, own[client])
        assert isinstance(alone, VisitData)
        same_lists(together, alone, np.array([client]))


def test_nodes_that_gossip_rehearse(tables: Path) -> None:
    local = {"algorithm": "local", "steps": 1, "rate": 0.5}
    outcome, weights = run(
        tables, "gossip", data={"users": 8, "judges": 8}, gossip={"graph": "ring"}, training=local, server=None
    )
    assert np.isfinite(weights).all()
    assert outcome.rounds == 3


def test_versions_are_judged_by_users_who_look_at_everything(tables: Path) -> None:
    problem = problem_in(tables, lists={"look": "cascade", "pinned": "ad", "leave": 0.5}, model={"explore": 0.5})
    judged = problem.test.batch(np.arange(40))
    real = judged.weight > 0
    assert (judged.y[real] >= 0).all()
    assert not judged.pinned.any()
    # The best of ten by a true utility with Gumbel noise is on top with the frequency of its softmax.
    assert isinstance(problem.train, Visitors)
    utility = problem.train.source.users.utilities(judged.lists, 0)
    place = np.arange(len(real.ravel()))[real.ravel()]
    chance = np.exp(utility[place] - np.logaddexp.reduce(utility[place], axis=1)[:, None])
    expected = chance.max(axis=1).mean()
    found = (utility[place].argmax(axis=1) == judged.y[real]).mean()
    assert found == pytest.approx(expected, abs=0.13)  # 160 lists: less than one error in a thousand seeds
    assert (problem.train.batch(np.arange(100)).y < 0).mean() > 0.3


def test_the_metrics_are_the_judges(tables: Path) -> None:
    outcome, weights = run(tables, "once")
    problem = problem_in(tables)
    assert problem.wishes is not None
    for split in ("validation", "test"):
        found = problem.wishes.judges[split].recovered(0, weights)
        for name in ("gain", "cosine", "mrr", "ndcg", "clicks"):
            assert metric(outcome, f"recovered_{name}", split) == getattr(found, name)
    assert metric(outcome, "recovered_gain") != metric(outcome, "recovered_gain", "validation")


def test_the_loss_of_judged_lists_has_no_offsets_of_places(tables: Path) -> None:
    places = {"model": {"places": 4}, "rounds": 0}
    outcome, weights = run(tables, "places", **places)
    plain, _ = run(tables, "plain", rounds=0)
    assert metric(outcome, "loss") == pytest.approx(metric(plain, "loss"), rel=1e-12)
    problem = problem_in(tables, **places)
    assert problem.wishes is not None
    moved = weights + 3.0
    own = problem.spec.layout
    assert not problem.wishes.ranking(moved)[own.places : own.places + own.offsets].any()


def test_where_wishes_drift_versions_are_judged_by_those_of_the_time(tables: Path) -> None:
    problem = problem_in(tables, lists={"drift": {"price": 0.5}})
    later = problem.after(4)
    assert problem.after(0) is problem
    assert later.wishes is not None
    assert problem.wishes is not None
    users = problem.wishes.judges["test"].users
    assert later.wishes.measured("test", users.wanted(4))["recovered_gain"] == 1.0
    assert problem.wishes.measured("test", users.wanted(4))["recovered_gain"] < 1.0
    assert (later.test.batch(np.arange(40)).y != problem.test.batch(np.arange(40)).y).any()


def test_a_run_stops_by_the_gain_that_it_recovers(tables: Path) -> None:
    stopping = {"metric": "recovered_gain", "patience": 2}
    outcome, _ = run(tables, "stopped", rounds=60, early_stopping=stopping, data={"applies": False})
    assert outcome.rounds < 60


def test_models_of_their_own_are_measured_on_lists_that_clients_see_next(tables: Path) -> None:
    training = {"algorithm": "gradient", "personal": {"by": "fine_tune", "steps": 1, "rate": 0.1}}
    evaluation = {"baselines": [], "decided_by": "personal"}
    outcome, _ = run(tables, "own", training=training, evaluation=evaluation, lists={"tastes": 1.0})
    assert outcome.shown[0] == "top_choice"
    assert {"personal", "central", "test"} <= outcome.final.keys()


def test_items_with_random_values_need_no_table(tables: Path) -> None:
    outcome, _ = run(tables, "random", data={"lists": None})
    assert metric(outcome, "recovered_gain") != 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": {"users": None, "name": "iris"}}, "lists, examples and applies are of synthetic users"),
        ({"data": {"population": {"tastes": 0.5}}}, "users search among pages"),
        ({"data": {"lists": None, "population": {"tastes": 0.5}}}, r"Describe its users in \[data.lists\]"),
        ({"data": {"examples": [5, 2]}}, "the minimum number of a user's lists"),
        ({"data": {"test": 0.5}}, "not a setting of synthetic users"),
        ({"lists": {"truth": {"colour": 1}}}, "'truth' names 'colour'"),
        ({"lists": {"items": "none.csv"}}, "none.csv"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(tables: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpingError, match=sentence):
        problem_in(tables, **changes)


def test_a_model_of_pages_has_no_lists_of_items(tables: Path) -> None:
    setup = setup_in(tables)
    other = msgspec.structs.replace(setup, model={"name": "linear-15"})
    with pytest.raises(FedpingError, match="doesn't rank items by their features"):
        prepare(other, 1, None)
