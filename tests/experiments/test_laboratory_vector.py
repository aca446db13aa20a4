"""Clients with a private vector in the laboratory: turns, the shared weights, and the state after a kill."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.experiments.laboratory import resuming
from tests.experiments.test_laboratory_personal import run
from tests.experiments.test_laboratory_resuming import Killed
from tests.experiments.test_laboratory_run import contents

RPROP = {
    "optimizer": "rprop",
    "alpha": 2.0,
    "beta": 0.6,
    "step": {"start": 0.05, "min": 0.01, "max": 0.5},
    "keep": True,
}
VECTOR: dict[str, Any] = {"by": "vector", "rate": 1.0, "optimizer": RPROP}


def training(**changes: Any) -> dict[str, Any]:
    return {"algorithm": "gradient", "personal": {**VECTOR, **changes}}


@pytest.mark.parametrize("where", ["memory", "files"])
def test_in_step_the_shared_weights_take_the_path_that_they_take_alone_in_every_second_round(
    tmp_path: Path, where: str
) -> None:
    plain: Any = {"algorithm": "gradient"}
    _, alone = run(tmp_path / "alone", rounds=3, training=plain, where=where)
    outcome, series = run(tmp_path / "vector", rounds=6, training=training(in_step=True), where=where)
    assert (outcome.rounds, outcome.versions) == (6, 3)
    assert series["test", "loss"] == np.repeat(alone["test", "loss"], 2)[:-1].tolist()
    assert series["train", "clients"] == [0.0, 8.0] * 3
    assert series["personal", "loss"][0] == series["central", "loss"][0]
    assert all(np.not_equal(series["personal", "loss"][1:], series["central", "loss"][1:]))


def test_by_turns_about_half_of_the_clients_send_in_every_round(tmp_path: Path) -> None:
    _, series = run(tmp_path, rounds=4, training=training(), partition__clients=40)
    sent = series["train", "clients"]
    assert sent[0] == sent[2] == 40 - sent[1] == 40 - sent[3]
    assert 10 <= sent[0] <= 30
    assert len(set(series["test", "loss"])) == 5


def test_a_killed_run_goes_on_with_the_same_turns_and_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    monkeypatch.setattr("fedping.client_sim.learning.updates.MOST_BYTES", 20_000)  # several blocks a round
    asked: dict[str, Any] = {
        "rounds": 12,
        "partition__clients": 40,
        "training": training(basis="random", size=5, batch=2),
        "sampling": {"sampling": "uniform", "clients": 15},
    }
    run(tmp_path / "whole", **asked)
    for threads, last in ((1, 3), (2, 8)):

        def on_round(done: int, rows: object, last: int = last) -> None:
            if done == last:
                raise Killed

        with pytest.raises(Killed):
            run(tmp_path / "killed", threads, on_round, **asked)
    run(tmp_path / "killed", 4, **asked)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
