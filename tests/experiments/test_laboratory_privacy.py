"""Private training in the laboratory: rejected settings, spent budgets and reports, and noise as the only change."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.privacy.mechanisms import SeededNoise
from fedping.protocol.errors import InvalidSettings
from fedping.server_jobs.privacy.gaussian import epsilon_of
from tests.support.laboratory import small

CENTRAL = {"epsilon": 8.0, "delta": 0.01, "rounds": 4, "population": 8}
FLAT = {"by": "norm", "norm": 5.0}


def private(**changes: Any) -> Any:
    settings = {
        "server__weighting": "client",
        "rounds": 6,
        "privacy": {"central": CENTRAL, "contribution": FLAT},
        "evaluation__baselines": [],
    }
    return small(**settings | changes)


def curve(out: Path, split: str, metric: str) -> dict[int, float]:
    table = pq.read_table(out / "metrics.parquet", filters=[("split", "=", split), ("metric", "=", metric)])
    return dict(zip(table["round"].to_pylist(), table["value"].to_pylist(), strict=True))


def weights(out: Path) -> Any:
    [file] = out.glob("runs/*/*/last.npy")
    return np.load(file)


def test_a_run_derives_its_noise_tells_what_it_spends_and_stops_when_it_is_exhausted(tmp_path: Path) -> None:
    summary = run_experiment(private(), tmp_path / "out", 1)
    [variant] = json.loads((tmp_path / "out" / "experiment.json").read_text())["variants"].values()
    z = variant["privacy"]["central"]["noise_multiplier"]
    spent = curve(tmp_path / "out", "privacy", "epsilon")
    assert spent == {k: pytest.approx(epsilon_of(np.sqrt(k) / z, 0.01)) for k in range(5)}
    assert spent[4] == pytest.approx(8.0, rel=1e-4)
    assert spent[4] <= 8.0
    row = summary.variants["federated"]
    assert (row.rounds.mean, row.metrics["privacy"]["epsilon"].mean) == (4, spent[4])
    assert any("exhausted after 4 of 6 rounds" in note for note in summary.notes)


@pytest.mark.parametrize(("population", "told"), [(8, False), (9, False), (80, True), (4, True)])
def test_a_population_far_from_the_clients_there_are_is_told(tmp_path: Path, population: int, told: bool) -> None:
    summary = run_experiment(
        private(rounds=1, privacy={"central": CENTRAL | {"population": population}, "contribution": FLAT}),
        tmp_path / "out",
        1,
    )
    found = [note for note in summary.notes if f"population = {population}" in note]
    assert len(found) == told
    assert all("there are 8 clients" in note and "set population = 8" in note for note in found)


def test_a_run_can_be_repeated_and_another_seed_has_other_noise(tmp_path: Path) -> None:
    for out, seeds in (("a", [1]), ("b", [1]), ("c", [2])):
        run_experiment(private(seeds=seeds), tmp_path / out, 1)
    a, b, c = (weights(tmp_path / out) for out in "abc")
    assert (a == b).all()
    assert (a != c).all()


def test_without_the_noise_it_would_be_training_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeededNoise, "integers", lambda self, sigma, d: np.zeros(d, np.int64))
    wide = {"central": CENTRAL | {"dead_zone": 0.0}, "contribution": {"by": "norm", "norm": 100.0}}
    run_experiment(private(rounds=4, privacy=wide), tmp_path / "private", 1)
    run_experiment(small(rounds=4, server__weighting="client", evaluation__baselines=[]), tmp_path / "plain", 1)
    apart = np.abs(weights(tmp_path / "private") - weights(tmp_path / "plain"))
    assert 0 < apart.max() < 4 * 100 / 2**14  # one unit of the vector in each round


def test_a_client_contributes_as_often_as_it_may(tmp_path: Path) -> None:
    local = {"mechanism": "one-sign", "epsilon": 2.0}
    run_experiment(private(rounds=4, privacy={"local": local, "contributions": 2}), tmp_path / "out", 1)
    assert list(curve(tmp_path / "out", "train", "clients").values()) == [8, 8, 0, 0]
    spent = curve(tmp_path / "out", "privacy", "local_epsilon")
    assert spent[1] < spent[2] == spent[3] == spent[4]


MANY = {"partition__clients": 200, "rounds": 40}


def test_clients_draw_their_turns_by_lot_so_that_steps_are_of_the_size_that_they_are_divided_by(
    tmp_path: Path,
) -> None:
    central = CENTRAL | {"delta": 1e-4, "rounds": 40, "population": 200}
    run_experiment(private(**MANY, privacy={"central": central, "contributions": 10}), tmp_path / "out", 1)
    clients = np.array(list(curve(tmp_path / "out", "train", "clients").values()))
    turns = 200 / 4
    assert abs(clients[:10].mean() - turns) < 4 * np.sqrt(turns * 0.75 / 10)
    assert len(set(clients)) > 5
    assert clients.sum() <= 10 * 200
    assert clients[-1] < clients[:10].mean()  # by then many clients have reached their cap
    spent = curve(tmp_path / "out", "privacy", "epsilon")
    assert spent[9] < spent[10] == spent[40]


def test_contributions_that_the_coin_does_not_count_are_used_up_too(tmp_path: Path) -> None:
    central = CENTRAL | {"delta": 1e-4, "rounds": 40, "population": 200, "sampling": 0.5, "noise_multiplier": 5.0}
    coin = {"sampling": "bernoulli", "share": 0.5}
    run_experiment(
        private(**MANY, sampling=coin, privacy={"central": central, "contributions": 10}), tmp_path / "out", 1
    )
    clients = np.array(list(curve(tmp_path / "out", "train", "clients").values()))
    assert abs(clients[:10].mean() - 25) < 4 * np.sqrt(25 * 0.875 / 10)
    assert clients[-5:].mean() < 0.75 * clients[:10].mean()


def test_rounds_in_which_too_few_seemed_to_be_there_are_told_so(tmp_path: Path) -> None:
    """The noise on the count of 8 clients has a standard deviation of 40, so counts often seem too small."""
    loud = CENTRAL | {"epsilon": 1.0, "noise_multiplier": 10.0}
    summary = run_experiment(private(privacy={"central": loud, "contribution": FLAT}), tmp_path / "out", 1)
    [note] = [note for note in summary.notes if "published no version" in note]
    assert "with the noise, fewer than min_clients = 1 clients were counted in them" in note


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ({"mechanism": "one-sign", "epsilon": 2.0}, 8.0),
        ({"mechanism": "gaussian", "epsilon": 2.0, "delta": 0.01}, None),
    ],
)
def test_clients_can_protect_themselves(tmp_path: Path, local: dict[str, Any], expected: float | None) -> None:
    run_experiment(private(rounds=4, privacy={"local": local}), tmp_path / "out", 1)
    spent = curve(tmp_path / "out", "privacy", "local_epsilon")
    assert spent[0] == 0
    assert spent[4] == expected if expected else 2 * spent[1] < 2 * spent[4] < 8 * spent[1]
    assert spent[1] == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"where": "files"}, "in memory"),
        ({"sampling": {"sampling": "uniform", "clients": 3}}, "bernoulli"),
        ({"sampling": {"sampling": "stratified", "clients": 3}}, "bernoulli"),
        ({"upload": [{"link": "sign", "zero": "up"}]}, "Remove 'upload'"),
        ({"lateness": {"shares": [0.5, 0.5]}}, "Remove [lateness]"),
        ({"attack": {"attack": "sign_flip", "share": 0.2}}, "[attack]"),
        ({"privacy": {"central": CENTRAL | {"sampling": 0.1}}}, "Set both"),
    ],
)
def test_settings_that_could_guarantee_nothing_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        private(**changes)
    assert "[privacy" in str(refused.value)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"server__weighting": "examples"}, 'weighting = "client"'),
        ({"server__aggregate": {"by": "median"}}, "Remove 'aggregate'"),
        ({"privacy": {"central": CENTRAL | {"noise_multiplier": 0.1}}}, "remove 'noise_multiplier'"),
    ],
)
def test_what_a_line_refuses_is_refused_before_the_first_round(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        run_experiment(private(**changes), tmp_path / "out", 1)
    assert told in str(refused.value)
