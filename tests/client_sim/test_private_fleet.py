"""Clients of private fleets send one vector for each version, up to the cap, each under a new id, and nothing else."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from fedping.client_sim.fleet import Fleet, FleetSettings, join_study
from fedping.client_sim.fleet.examples import ExampleSettings
from fedping.client_sim.fleet.interactions import product_spec
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning import model_spec
from fedping.client_sim.learning.states import StateFile, StatesOf, in_memory
from fedping.model_store.store import open_store
from fedping.protocol.arrow import landed_schema
from fedping.protocol.enrolment import enrol
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.ping import PRIVATE_UPDATE
from fedping.protocol.privacy import OneSign, Privacy
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.optimize import first_versions
from tests.support.fleets import WHEN, PlannedTransport
from tests.support.ingest_server import running_ingest
from tests.support.private import CENTRAL
from tests.support.virtual_time import in_virtual_time

CLIENTS = 60


def study_of(spec: ModelSpec, **privacy: Any) -> Study:
    line = Line(name="main", spec=spec, privacy=Privacy(**{"central": CENTRAL, "loss": (0.0, 50.0)} | privacy))
    arms = (
        Arm(name="treatment", share=0.6, line="main", applies=True, submits=True),
        Arm(name="control", share=0.4, line="main"),
    )
    return Study(name="secretive", pings="private-update", enrolment="hash", arms=arms, lines=(line,))


SPECS = {"searches": product_spec(), "examples": model_spec("linear-regression", {"features": 4})}


def run(study: Study, versions: list[int], states_of: StatesOf = in_memory) -> list[list[dict[str, Any]]]:
    """Return the pings of iterations with these newest versions."""
    transport = PlannedTransport(study)
    settings = FleetSettings(clients=CLIENTS, seed=3, examples=ExampleSettings())
    fleet = Fleet(transport, transport.study, settings, states_of=states_of)
    found: list[list[dict[str, Any]]] = []

    async def all_of_it() -> None:
        for version in versions:
            transport.version, before = version, set(transport.landed)
            await fleet.run_iteration()
            found.append([json.loads(body) for key, body in transport.landed.items() if key not in before])

    in_virtual_time(all_of_it())
    return found


@pytest.mark.parametrize("kind", SPECS)
def test_each_client_sends_one_vector_a_version_and_nothing_else(kind: str) -> None:
    study = study_of(SPECS[kind])
    first, again, second = run(study, [0, 0, 1])
    assert first
    assert second
    assert len(first) <= CLIENTS
    for ping in first + second:
        assert set(ping) == {"clientId", "type", "payload"}
        assert set(ping["payload"]) == {"model_version", "study_variation", "update"}
        msgspec.convert(ping, PRIVATE_UPDATE.ping)
        arm = enrol(study, ping["clientId"])
        assert arm is not None
        assert arm.name == ping["payload"]["study_variation"]
        vector = np.frombuffer(base64.b64decode(ping["payload"]["update"]["payload"]), "<i4")
        assert len(vector) == study.lines[0].spec.m + 3
        assert vector[-3] > 0
    assert {ping["payload"]["study_variation"] for ping in first} == {"treatment", "control"}
    ids = [[ping["clientId"] for ping in pings] for pings in (first, again, second)]
    assert len(set(ids[0])) == len(ids[0])
    assert not set(ids[0]) & set(ids[2])
    assert not set(ids[0]) & set(ids[1])  # in the second iteration, clients without a choice in the first


def test_a_cap_holds_for_good(tmp_path: Path) -> None:
    study = study_of(SPECS["examples"], contributions=2, central=replace(CENTRAL, rounds=2))
    with StateFile(tmp_path / "states") as states:
        assert [len(pings) > 0 for pings in run(study, [0, 1], states.of)] == [True, True]
    with StateFile(tmp_path / "states") as states:
        assert run(study, [1, 2, 3], states.of) == [[], [], []]


def test_what_clients_may_contribute_is_spread_over_the_rounds() -> None:
    study = study_of(SPECS["examples"], contributions=1, central=replace(CENTRAL, rounds=4))
    sent = [len(pings) for pings in run(study, [0, 1, 2, 3])]
    assert all(3 <= each <= 30 for each in sent)  # a quarter of 60 clients, less those who had their turn before
    assert sum(sent) <= CLIENTS


def test_clients_add_their_own_noise() -> None:
    [pings] = run(study_of(SPECS["examples"], central=None, local=OneSign(epsilon=1.0)), [0])
    vectors = [np.frombuffer(base64.b64decode(ping["payload"]["update"]["payload"]), "<i4") for ping in pings]
    assert {int(np.count_nonzero(vector[:-3])) for vector in vectors} == {1}
    assert all(not vector[-2:].any() for vector in vectors)


def test_ingest_takes_all_that_a_fleet_sends(tmp_path: Path) -> None:
    study = study_of(SPECS["searches"], local=OneSign(epsilon=3.0))
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    with (
        running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server,
        asyncio.Runner() as runner,
    ):
        fleet = runner.run(join_study(HttpTransport(server.url), study.name, FleetSettings(clients=CLIENTS, seed=3)))
        summary = runner.run(fleet.run_iteration())
        runner.run(fleet.close())
        server.flush()
    assert summary.pings.rejected_by_reason == {}
    assert summary.pings.accepted == summary.pings.generated > 0
    rows = [
        pq.ParquetFile(path).read() for path in landed_files(partition(tmp_path / "landing", study.name, "main", 0))
    ]
    assert sum(map(len, rows)) == summary.pings.accepted
    assert all(table.schema.equals(landed_schema(PRIVATE_UPDATE)) for table in rows)
