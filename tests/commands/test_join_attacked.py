"""Attacks on an institution by a server that chooses the weights: the number of rows that `fedping join` reveals.

At ε = 3 a guess has noise with a standard deviation of at least 1 in each of 30 columns, so it is within 1e-3 of a
row in all columns with a probability below 1e-60: a single recovered row would be a defect.
"""

import dataclasses
import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from fedping.client_sim.joining.answering import Answer
from fedping.client_sim.joining.columns import read_columns
from fedping.client_sim.joining.examples import guarding_rows, read_examples, wanted_by
from fedping.client_sim.learning.registry import learner_for, model_spec
from fedping.experiments.privacy.rows.audit import EXACT, recovered
from fedping.experiments.privacy.rows.bins import Bins
from fedping.experiments.privacy.rows.clusters import Clusters
from fedping.experiments.privacy.rows.differencing import Differencing
from fedping.experiments.privacy.rows.evaluation import Evaluation
from fedping.experiments.privacy.rows.half_spaces import HalfSpaces
from fedping.experiments.privacy.rows.victim import Attack, Over, Target
from fedping.main import main
from fedping.protocol.spec import Step
from fedping.protocol.study import Study
from fedping.protocol.training import LocalSteps, OneGradient
from tests.commands.test_join_protected import Typed, serve
from tests.support.faulty_server import FaultyServer, faulty_server, refusal
from tests.support.institutions import LABEL, OPEN, tumours


@pytest.fixture
def join(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Typed:
    return Typed(capsys, tmp_path)


class OverHttp:
    """An institution attacked over HTTP: each version is served, and `fedping join` answers it."""

    def __init__(
        self, join: Typed, server: FaultyServer, target: Target, versions: int, options: Sequence[str] = ()
    ) -> None:
        self.join, self.server, self.target = join, server, target
        self.versions, self.options = versions, options
        self.data, self.numbers = join.data, count()

    def ask(self, weights: np.ndarray, version: int | None = None) -> Answer | None:
        asked = next(self.numbers)
        if asked >= self.versions:
            raise Over
        serve(self.server, asked if version is None else version, weights)
        before = len(self.server.attempts)
        own = ["--data", self.data, "--columns", self.join.columns, "--state", self.join.state, "--for", "2s"]
        options = self.options or ["--versions", str(self.versions), "--ledger", str(self._ledger)]
        main(["join", self.server.url, "tumours", *map(str, own), "--yes", "--rounds", "1", *options])
        if len(self.server.attempts) == before:
            return None
        payload = json.loads(self.server.attempts[-1].body)["payload"]
        return Answer(np.array(payload["update"]), payload["loss"])

    @property
    def _ledger(self) -> Path:
        return self.join.state.with_suffix(".ledger")

    def without(self, row: int) -> Any:
        """Return the institution with a row removed from its table from now on; its folder and ledger stay."""
        lines = self.join.data.read_text().splitlines(keepends=True)
        fewer = dataclasses.replace(self.target, rows=self.target.rows - 1)
        changed = OverHttp(self.join, self.server, fewer, self.versions, self.options)
        changed.data, changed.numbers = self.join.folder / f"without-{row}.csv", self.numbers
        changed.data.write_text("".join(lines[: row + 1] + lines[row + 2 :]))
        return changed


def worked_out(join: Typed, study: Study, attack: Attack, versions: int, *options: str) -> tuple[int, int]:
    """Return the number of rows that an attack recovers through its own server, and the number of posted pings."""
    line = study.lines[0]
    model = guarding_rows(learner_for(line.spec, line.training))
    rows = read_examples(join.data, LABEL, read_columns(join.columns), wanted_by(model, "the model")).x
    join.state = join.folder / f"state-{attack.name}-{bool(options)}"
    with faulty_server(study) as server:
        if isinstance(attack, HalfSpaces) and attack.one_version:
            server.plan = lambda name, attempt: refusal(400, "loss: too large")
        victim: Any = OverHttp(join, server, Target(model, line.training, *rows.shape), versions, options)
        assert attack.why_not(victim.target) is None
        guesses = np.array(list(attack.guesses(victim))).reshape(-1, rows.shape[1])
        return recovered(rows, guesses, EXACT * rows.std(axis=0)), len(server.attempts)


def of_model(name: str, settings: dict[str, Any], training: Any) -> Study:
    study = tumours(training=training)
    spec = model_spec(name, settings, name="tumours", step=Step(start=0.1, min=1e-6, max=50.0))
    return replace(study, lines=(replace(study.lines[0], spec=spec),))


LOGISTIC = tumours(training=OneGradient())
STEPS = tumours(training=LocalSteps(rate=0.1, steps=3))
NETWORK = of_model("network", {"features": 30, "classes": 2, "hidden": "60"}, OneGradient())
CLUSTERS = of_model("k-means", {"features": 30, "clusters": 20}, LocalSteps(rate=1.0, steps=1))


@pytest.mark.parametrize(
    ("study", "attack", "versions", "least"),
    [
        (LOGISTIC, HalfSpaces(), 24, 18),
        (STEPS, HalfSpaces(), 24, 18),
        (CLUSTERS, HalfSpaces(), 24, 15),
        (LOGISTIC, HalfSpaces(one_version=True), 24, 18),
        (NETWORK, Bins(), 2, 10),
        (LOGISTIC, Differencing(rows=3), 20, 3),
        pytest.param(LOGISTIC, Evaluation(), 130, 1, marks=pytest.mark.long),
    ],
    ids=["steep", "steep-steps", "steep-clusters", "refused", "bins", "differencing", "evaluation"],
)
def test_rows_fall_without_protection_and_none_with_it(
    join: Typed, study: Study, attack: Attack, versions: int, least: int
) -> None:
    assert worked_out(join, study, attack, versions, OPEN)[0] >= least
    rows, posted = worked_out(join, study, attack, versions)
    assert rows == 0
    assert 1 <= posted <= versions


def test_refused_pings_of_one_version_are_one_ping(join: Typed) -> None:
    """A server may serve any weights under one version's number, but the client only posts the same bytes again."""
    assert worked_out(join, LOGISTIC, HalfSpaces(one_version=True), 6)[1] == 1


def test_a_cluster_of_one_row_is_not_sent(join: Typed) -> None:
    many = of_model("k-means", {"features": 30, "clusters": 150}, LocalSteps(rate=1.0, steps=1))
    assert worked_out(join, many, Clusters(), 3, OPEN) == (0, 0)
    assert worked_out(join, many, Clusters(), 3)[0] == 0
