"""CO-OP in the laboratory: each client's model merged as it arrives, within two bounds of age."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.data.seeds import generator
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.rounds.co_op import CoOpRounds, merge_outcome, mixed
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings.setup import CoOp
from fedping.protocol.errors import InvalidSettings
from tests.support.laboratory import small

LOCAL = {"algorithm": "local", "epochs": 1, "rate": 0.5}


BOUNDED = {"lower": 1, "upper": 6, "speeds": [1.0, 0.2]}


def test_a_model_is_outdated_overactive_or_merged_by_its_age() -> None:
    bounds = CoOp(lower=2, upper=4)
    fates = [merge_outcome(bounds, behind) for behind in range(7)]
    assert fates == ["overactive"] * 2 + ["merged"] * 3 + ["outdated"] * 2


def test_the_step_is_weighted_by_age() -> None:
    old, own = np.array([1.0, -1.0]), np.array([5.0, 3.0])
    np.testing.assert_array_equal(mixed(old, own, 0), own)
    np.testing.assert_allclose(mixed(old, own, 3), (old + own) / 2)  # half the way: (3 + 1)^(-1/2)
    np.testing.assert_allclose(mixed(old, own, 8), old + (own - old) / 3)


def test_arrivals_are_merged_one_by_one_as_by_hand() -> None:
    """Each client's own model is trained separately, inside a loop of the paper's algorithm written out here."""
    [setup] = small(training=LOCAL, co_op=BOUNDED).variants.values()
    problem = prepare(setup, 1, None)
    found = CoOpRounds(setup, problem)
    weights, age = problem.spec.start_array.copy(), 1
    local, ages = np.tile(weights, (8, 1)), [0] * 8
    came = {"outdated": 0, "overactive": 0, "merged": 0}
    for number in range(6):
        merges = 0
        speeds = np.array([1.0, 0.2] * 4)
        for client in generator(1, "arrivals", number).choice(8, 8, p=speeds / speeds.sum()):
            gradient = problem.model.gradients(local[client], problem.train.batch(np.array([client])))[0]
            local[client] = local[client] - 0.5 * gradient
            behind = age - ages[client]
            if behind < 1:
                came["overactive"] += 1
                continue
            if behind > 6:
                came["outdated"] += 1
            else:
                came["merged"] += 1
                alpha = (behind + 1) ** -0.5
                weights = (1 - alpha) * weights + alpha * local[client]
                age += 1
                merges += 1
            local[client], ages[client] = weights, age
        report = found.run(())
        assert report.pings == merges
        np.testing.assert_allclose(found.weights, weights, atol=1e-12)
    assert min(came.values()) > 0, came


def test_of_few_clients_nobody_can_be_far_behind() -> None:
    [setup] = small(training=LOCAL, co_op={"lower": 8}).variants.values()
    with pytest.raises(InvalidSettings, match="would never merge"):
        CoOpRounds(setup, prepare(setup, 1, None))


def test_it_learns_with_slow_clients_and_the_same_seed_gives_the_same(tmp_path: Path) -> None:
    experiment = small(training=LOCAL, co_op={"upper": 30, "speeds": [1.0, 1.0, 1.0, 0.1]}, rounds=20)
    summary = run_experiment(experiment, tmp_path / "one", jobs=1)
    run_experiment(experiment, tmp_path / "again", jobs=1)
    last = [np.load(next((tmp_path / each).glob("runs/*/seed-1/last.npy"))) for each in ("one", "again")]
    np.testing.assert_array_equal(*last)
    [only] = summary.variants.values()
    accuracy = only.metrics["test"]["accuracy"].mean
    assert accuracy is not None
    assert accuracy > 0.93


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"co_op": {"lower": 3, "upper": 2}}, "would never merge"),
        ({"co_op": {}, "training": {"algorithm": "gradient"}}, "mixes the clients' models"),
        ({"co_op": {}, "where": "files"}, "Remove 'where'"),
        ({"co_op": {}, "lateness": {"shares": [0.5, 0.5]}}, "ages of its own"),
        ({"co_op": {}, "server": {"min_clients": 2}}, "without the steps of a \\[server\\]"),
        (
            {"variants": [{"name": "a", "co_op": {}, "server": {"min_clients": 2}}, {"name": "b"}]},
            "^variant 'a': .* without the steps of a \\[server\\]",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        small(**({"training": LOCAL} | changes))
