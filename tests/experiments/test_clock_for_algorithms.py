"""The simulated time that reaches a client algorithm of an extension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedping
from fedping.experiments.laboratory.clock import clock_of
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.participants import Participants
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.units import Unit
from tests.experiments.test_laboratory_clock import BUFFERED, EVEN
from tests.support.laboratory import small
from tests.support.registry import registry_of_its_own


def unit(**changes: Any) -> Unit:
    [setup] = small(**changes, training={"algorithm": "timed"}).variants.values()
    return Unit("only", None, setup, 1, None)


@pytest.mark.parametrize(
    "changes",
    [
        {name: value for name, value in BUFFERED.items() if name != "training"},
        {"clock": EVEN | {"drop_out": 0.2}, "rounds": 4, "where": "files"},
    ],
    ids=["asynchronous", "synchronous, over files"],
)
def test_an_algorithm_of_ones_own_gets_the_time_of_each_clients_invitation_if_it_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    registry_of_its_own(monkeypatch)
    seen: dict[int, float] = {}

    @fedping.client_algorithm("timed")
    def timed(model: Any, weights: Any, batch: Any, keys: Any, now: Any) -> Any:
        seen.update(zip(keys.tolist(), now.tolist(), strict=True))
        return -0.1 * model.gradients(weights, batch)

    of = unit(**changes)
    run_unit(of, tmp_path)
    problem = prepare(of.setup, 1, None)
    clock, participants = clock_of(of.setup, problem), Participants(of.setup, problem)
    assert clock is not None
    expected: dict[int, float] = {}
    for number in range(of.setup.rounds or 0):
        learners = participants.learners
        answers = clock.buffer(number) if clock.asynchronous else clock.round(number, clock.free(learners))
        clock.published()
        for each in range(len(answers.clients)):
            one = slice(each, each + 1)
            [key] = participants.keys(int(answers.rounds[each]), answers.clients[one], answers.attempts[one]).tolist()
            expected[key] = float(answers.began[each])
    assert len({*expected.values()}) > 3, "rounds begin at different times"
    assert seen == expected


def test_without_a_clock_it_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry_of_its_own(monkeypatch)
    seen: list[Any] = []

    @fedping.client_algorithm("timed")
    class Timed:
        def update(self, model: Any, weights: Any, batch: Any, keys: Any, state: Any, version: int, now: Any) -> Any:
            seen.append((version, now))
            return -0.1 * model.gradients(weights, batch), {}

    run_unit(unit(rounds=2), tmp_path)
    assert {*seen} == {(0, None), (1, None)}
