"""A fleet with a real ingest and staged versions: a good version reaches all clients, a bad one only a share."""

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.dataset as ds
import pytest

from fedping.client_sim.attacks.settings import InnerProduct
from fedping.client_sim.fleet import Fetched, Fleet, FleetSettings, Unavailable, join_study
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning import model_spec
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.enrolment import staged_for
from fedping.protocol.guard import Guard, Stage
from fedping.protocol.model import Staged
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import NumpyEngine, RoundOptions, RoundResult, recompute, run_round
from tests.support.fleets import STUDY as PLANNED
from tests.support.fleets import PlannedTransport, document, fleet_study
from tests.support.ingest_server import running_ingest
from tests.support.virtual_time import in_virtual_time

STUDY = "any"
WHEN = "2026-01-01T00:00:00.000+00:00"
SHARE = 0.3


def staging() -> Study:
    spec = model_spec("logistic-regression", {"features": 4})
    pipeline = Pipeline(optimizer=GradientDescent(rate=0.5), min_clients=1, weighting="client")
    guard = Guard(rounds=100, window=100, stage=Stage(share=SHARE, clients=10, most=1.2))
    return Study(
        name=STUDY,
        pings="model-update",
        arms=(
            Arm(name="treatment", share=0.8, line="main", applies=True, submits=True),
            Arm(name="control", share=0.2, line="main"),
        ),
        lines=(Line(name="main", spec=spec, pipeline=pipeline, guard=guard),),
        enrolment="hash",
    )


def stepped(store: ModelStore, folder: Path) -> RoundResult:
    landing = folder / "landing"
    return run_round(
        store, landing, STUDY, "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )


def held_by(fleet: Fleet) -> dict[str, set[int]]:
    """Return the versions of the treatment's clients, grouped by whether they get the next version first."""
    found: dict[str, set[int]] = {"treatment": set(), "control": set()}
    for client, version in enumerate(fleet.roster.version.tolist()):
        found[fleet.roster.arm_of(client).name].add(version)
    return found


def first_ones(fleet: Fleet, iteration: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    applies = np.array([fleet.roster.arm_of(client).applies for client in range(len(fleet.roster.ids))])
    drawn = [staged_for(STUDY, "main", iteration, SHARE, str(one)) for one in fleet.roster.ids]
    return applies & np.array(drawn)


@pytest.mark.long
def test_a_good_version_comes_to_all_and_a_spoilt_one_to_no_more_than_the_share(tmp_path: Path) -> None:
    study = staging()
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    attack = InnerProduct(share=0.3, epsilon=1e4, from_round=3, to_round=3)
    settings = FleetSettings(clients=160, seed=3, attack=attack)
    with (
        running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server,
        asyncio.Runner() as runner,
    ):
        fleet = runner.run(join_study(HttpTransport(server.url), STUDY, settings))

        def iterate() -> None:
            told = runner.run(fleet.run_iteration())
            server.flush()
            assert told.pings.rejected_by_reason == {}
            assert (told.pings.accepted, told.fetches.unavailable_by_reason) == (told.pings.generated, {})

        def fetched(name: str) -> Any:
            with urllib.request.urlopen(f"{server.url}/models/{STUDY}/main/{name}.json") as answer:
                return json.load(answer)

        iterate()
        assert stepped(store, tmp_path).status == "staged"
        assert fetched("latest")["staged"] == {"iteration": 1, "share": SHARE}
        assert fetched("staged-1")["iteration"] == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetched("1")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetched("staged-2")

        iterate()
        np.testing.assert_array_equal(fleet.roster.version == 1, first_ones(fleet, 1))
        assert held_by(fleet) == {"treatment": {0, 1}, "control": {0}}
        good = stepped(store, tmp_path)
        assert (good.status, good.iteration) == ("published", 0)
        assert "staged" not in fetched("latest")

        iterate()  # with the attack
        assert held_by(fleet) == {"treatment": {1}, "control": {1}}
        assert stepped(store, tmp_path).status == "staged"

        iterate()
        np.testing.assert_array_equal(fleet.roster.version == 2, first_ones(fleet, 2))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.operations_port}/metrics") as answer:
            told = open_metrics(answer.read().decode())
        assert told['fedping_study_staged_version{line="main",study="any"}'] == 2
        bad = stepped(store, tmp_path)
        assert (bad.status, bad.restored) == ("withdrawn", 1)

        iterate()
        assert held_by(fleet) == {"treatment": {3}, "control": {3}}
        runner.run(fleet.close())
    assert store.head(STUDY, "main").model == store.version(STUDY, "main", 1).model
    for number in (1, 3):
        assert recompute(store, tmp_path / "landing", STUDY, "main", number, NumpyEngine()).identical
    rows = ds.dataset(tmp_path / "landing", partitioning="hive").to_table().to_pandas()
    had_it = {bytes(one) for one in rows[rows.model_version == 2].client_id}
    assert had_it == {fleet.roster.ids[client].bytes for client in np.flatnonzero(first_ones(fleet, 2))}


def open_metrics(text: str) -> dict[str, float]:
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


class StagingTransport(PlannedTransport):
    """A transport with newest version 0 and staged version 1; its entity tag covers both."""

    there = True

    async def fetch_model(self, study: str, line: str, iteration: int | None, etag: str | None) -> Any:
        got = await super().fetch_model(study, line, iteration, etag and etag.removesuffix("s"))
        if not isinstance(got, Fetched) or self.version != 0:
            return got
        staged = msgspec.structs.replace(got.document, staged=Staged(iteration=1, share=0.5))
        return Fetched(staged, "0s")

    async def fetch_staged(self, study: str, line: str, iteration: int) -> Fetched | Unavailable:
        return Fetched(document(self.study, line, iteration), "x") if self.there else Unavailable("HTTP 404")


@pytest.mark.parametrize("together", [False, True])
def test_each_client_decides_for_itself_however_models_are_fetched(together: bool) -> None:
    def run(transport: StagingTransport) -> Fleet:
        async def go() -> Fleet:
            settings = FleetSettings(clients=60, fetch_together=together)
            fleet = await join_study(transport, PLANNED, settings)
            await fleet.run_iteration()
            await fleet.run_iteration()
            return fleet

        return in_virtual_time(go())

    fleet = run(StagingTransport(fleet_study()))
    seen = set()
    for client, version in enumerate(fleet.roster.version.tolist()):
        if fleet.roster.arm[client] < 0 or (arm := fleet.roster.arm_of(client)).line is None:
            continue
        first = arm.applies and staged_for(PLANNED, arm.line, 1, 0.5, str(fleet.roster.ids[client]))
        assert version == (1 if first else 0)
        seen.add((arm.name, version))
    assert {("treatment", 0), ("treatment", 1), ("control", 0)} <= seen
    assert ("control", 1) not in seen
    gone = StagingTransport(fleet_study())
    gone.there = False
    assert set(run(gone).roster.version.tolist()) == {-1, 0}, "what does not come is not waited for"
