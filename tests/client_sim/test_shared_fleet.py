"""Fleets of two-server studies: the vectors that both servers read together equal those of a single server."""

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.client_sim.attacks import Attack
from fedping.client_sim.attacks.settings import LabelFlip, Scale
from fedping.client_sim.fleet import Fleet, FleetSettings, IterationSummary, join_study
from fedping.client_sim.fleet.examples import ExampleSettings
from fedping.client_sim.fleet.interactions import product_spec
from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.fleet.roster import Behaviour
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning import model_spec
from fedping.client_sim.learning.states import in_memory
from fedping.client_sim.transport import Delivery, Outcome, TransportError
from fedping.model_store.store import open_store
from fedping.protocol.arrow import landed_schema
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.features import Hashed, Number
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.ping import PRIVATE_UPDATE
from fedping.protocol.privacy import SIGN, ClippedFlat, OneSign, Privacy, frame_of
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, Line, PublicStudy, Study, public_study
from fedping.server_jobs.optimize import first_versions
from tests.support.fleets import WHEN, PlannedTransport
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.private import CENTRAL
from tests.support.sharing import LEADER, Helper, offering, shared
from tests.support.virtual_time import in_virtual_time

CLIENTS = 60
SPECS = {
    "searches": product_spec(),
    "examples": model_spec("linear-regression", {"features": 4}),
    "lists": ModelSpec(
        name="shop", model="features", features=(Number(name="a"), Hashed(name="b", buckets=5)), places=3
    ),
}


def study_of(spec: ModelSpec, *, shares: bool = True, **privacy: Any) -> Study:
    settings = Privacy(**{"central": CENTRAL, "loss": (0.0, 50.0)} | privacy)
    line = Line(name="main", spec=spec, privacy=shared(settings) if shares else settings)
    arms = (
        Arm(name="treatment", share=0.6, line="main", applies=True, submits=True),
        Arm(name="control", share=0.4, line="main"),
    )
    return Study(name="secretive", pings="private-update", enrolment="hash", arms=arms, lines=(line,))


class Offering(PlannedTransport):
    """A transport that publishes another study before each iteration; a value other than a study can't be fetched."""

    def __init__(self, published: list[PublicStudy | None], *planned: Any) -> None:
        super().__init__(None, *planned)
        assert published[0] is not None
        self.study = published[0]
        self._published = iter(published)

    async def fetch_study(self, study: str) -> PublicStudy:
        found = next(self._published)
        if found is None:
            raise TransportError("the server is away")
        return found


def run(
    transport: PlannedTransport, iterations: int = 1, attack: Attack | None = None, **behaviour: float
) -> tuple[list[IterationSummary], list[dict[UUID, dict[str, Any]]]]:
    """Return the summaries of iterations, and the pings of each by document, of version 0, 1 and so on."""
    chosen = FleetSettings(
        clients=CLIENTS, seed=3, examples=ExampleSettings(), attack=attack, behaviour=Behaviour(**behaviour)
    )
    fleet = Fleet(transport, transport.study, chosen)
    summaries, found = [], []

    async def all_of_it() -> None:
        for version in range(iterations):
            transport.version, before = version, set(transport.landed)
            summaries.append(await fleet.run_iteration())
            found.append({key: json.loads(body) for key, body in transport.landed.items() if key not in before})

    in_virtual_time(all_of_it())
    return summaries, found


def by_client(pings: dict[UUID, dict[str, Any]]) -> dict[str, list[int]]:
    """Return the vectors of plain pings, by client."""
    payloads = {ping["clientId"]: base64.b64decode(ping["payload"]["update"]["payload"]) for ping in pings.values()}
    return {client: np.frombuffer(payload, "<i4").tolist() for client, payload in payloads.items()}


def read_by(helper: Helper, study: Study, pings: dict[UUID, dict[str, Any]]) -> dict[str, list[int]]:
    """Return the vectors of shared pings, all opened by the helper, by client."""
    found: dict[str, NDArray[np.int64] | None] = {
        ping["clientId"]: helper.read(study, ping, document) for document, ping in pings.items()
    }
    return {client: vector.tolist() for client, vector in found.items() if vector is not None}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("local", [None, OneSign(epsilon=2.0)], ids=["exact", "with noise of their own"])
def test_clients_share_the_vectors_that_they_would_send(kind: str, local: OneSign | None) -> None:
    study, helper = study_of(SPECS[kind], local=local), Helper()
    offer = helper.offer(study)
    _, plain = run(PlannedTransport(study_of(SPECS[kind], shares=False, local=local)), 2)
    _, sent = run(Offering([offering(study, offer)] * 2), 2)
    for pings, expected in zip(sent, plain, strict=True):
        assert len(expected) > 5
        assert read_by(helper, study, pings) == by_client(expected)
    names = {ping["payload"]["study_variation"] for ping in sent[0].values()}
    assert names == {"treatment", "control"}


def test_while_there_is_no_offer_nothing_is_sent_and_nothing_counts_as_sent() -> None:
    study, helper = study_of(SPECS["examples"], contributions=2, central=replace(CENTRAL, rounds=2)), Helper()
    none, some = offering(study, None), offering(study, helper.offer(study))
    summaries, sent = run(Offering([none, none, some, None, some]), 5)
    assert [len(pings) > 0 for pings in sent] == [False, False, True, True, False]
    assert [bool(summary.waits) for summary in summaries] == [True, True, False, False, False]
    assert "has no offer of its helper yet" in summaries[0].waits["main"]


def test_a_new_offer_is_taken_and_the_old_one_still_opens() -> None:
    study, helper = study_of(SPECS["examples"]), Helper()
    first, second = helper.offer(study), helper.offer(study, made="2026-02-01T00:00:00Z")
    _, sent = run(Offering([offering(study, first), offering(study, second)]), 2)
    used = [{base64.b64decode(ping["payload"]["update"]["payload"])[:8] for ping in each.values()} for each in sent]
    assert used == [{first.id}, {second.id}]
    assert [len(read_by(helper, study, pings)) for pings in sent] == [len(pings) for pings in sent]


def test_an_offer_that_does_not_fit_is_refused_at_the_start_and_waited_out_later() -> None:
    study, helper = study_of(SPECS["examples"]), Helper()
    good, forged = helper.offer(study), Helper(secret=b"another").offer(study)
    with pytest.raises(InvalidSettings, match="is not signed by the helper"):
        run(Offering([offering(study, forged)]))
    summaries, sent = run(Offering([offering(study, each) for each in (good, forged, good)]), 3)
    assert [len(pings) > 0 for pings in sent] == [True, False, True]
    assert "is not signed by the helper" in summaries[1].waits["main"]


def test_clients_do_not_follow_a_study_that_names_another_helper_than_the_one_that_they_joined() -> None:
    study, helper = study_of(SPECS["examples"]), Helper()
    line = study.lines[0]
    assert line.privacy is not None
    assert line.privacy.shared is not None
    theirs = replace(line.privacy, shared=replace(line.privacy.shared, helper=LEADER))
    changed = replace(study, lines=(replace(line, privacy=theirs),))
    offer = Helper(secret=b"a leader").offer(changed)
    published = [offering(study, helper.offer(study)), offering(changed, offer)]
    summaries, sent = run(Offering(published), 2)
    assert [len(pings) > 0 for pings in sent] == [True, False]
    assert "is not signed by the helper" in summaries[1].waits["main"]


def test_a_ping_that_is_sent_again_has_the_same_bytes() -> None:
    study = study_of(SPECS["examples"])
    published = offering(study, Helper().offer(study))

    def at_the_third(document: UUID, attempt: int) -> Outcome:
        return Outcome(Delivery.ACCEPTED if attempt >= 2 else Delivery.RETRY, "busy")

    transport = Offering([published], at_the_third)
    run(transport, duplicate=1.0)
    bodies: dict[UUID, list[bytes]] = {}
    for sent in transport.sent:
        bodies.setdefault(sent.document_id, []).append(sent.body)
    assert len(bodies) > 5
    assert {len(each) for each in bodies.values()} == {4}
    assert {len(set(each)) for each in bodies.values()} == {1}


def test_a_hostile_client_shares_what_it_likes_and_no_server_sees_it() -> None:
    clipped = ClippedFlat(norm=1.0)
    study, helper = study_of(SPECS["examples"], contribution=clipped), Helper()
    privacy = study.lines[0].privacy
    assert privacy is not None
    bound = frame_of(privacy, study.lines[0].spec).bound
    published = offering(study, helper.offer(study))
    summaries, sent = run(Offering([published]), attack=Scale(clients=3, scale=1000.0))
    sizes = [float(np.linalg.norm(each[:-3])) for each in read_by(helper, study, sent[0]).values()]
    assert summaries[0].hostile == 3
    assert sorted(size > bound for size in sizes)[-4:] == [False, True, True, True]
    plain_study = study_of(SPECS["examples"], shares=False, contribution=clipped)
    _, plain = run(PlannedTransport(plain_study), attack=Scale(clients=3, scale=1000.0))
    assert max(float(np.linalg.norm(each[:-3])) for each in by_client(plain[0]).values()) <= bound


def test_a_hostile_client_that_has_to_prove_its_votes_keeps_to_them() -> None:
    line = study_of(SPECS["examples"]).lines[0]
    assert line.privacy is not None
    assert line.privacy.shared is not None
    for proofs, most in ((True, SIGN), (False, 1000 * SIGN)):
        privacy = replace(line.privacy, shared=replace(line.privacy.shared, proofs=proofs))
        study = public_study(replace(study_of(SPECS["examples"]), lines=(replace(line, upload=(), privacy=privacy),)))
        none, hostile = np.zeros(2), np.array([True, False])
        updates = np.full((2, line.spec.m), 1000.0)
        made = PrivatePings(study, 3, in_memory).vectors(
            "main", updates, none, none, np.arange(2, dtype=np.uint64), hostile
        )
        assert made[:, : line.spec.m].max(axis=1).tolist() == [most, SIGN]


def test_who_only_learns_from_wrong_examples_keeps_to_the_bound() -> None:
    study, helper = study_of(SPECS["examples"], contribution=ClippedFlat(norm=1.0)), Helper()
    privacy = study.lines[0].privacy
    assert privacy is not None
    bound = frame_of(privacy, study.lines[0].spec).bound
    _, sent = run(Offering([offering(study, helper.offer(study))]), attack=LabelFlip(clients=3))
    assert max(float(np.linalg.norm(each[:-3])) for each in read_by(helper, study, sent[0]).values()) <= bound


def test_shares_of_a_fleet_reach_files_through_ingest(tmp_path: Path) -> None:
    """A published offer and its successor reach clients while ingest runs."""
    study, helper = study_of(SPECS["searches"]), Helper()
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    with (
        running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server,
        asyncio.Runner() as runner,
    ):
        fleet = runner.run(join_study(HttpTransport(server.url), study.name, FleetSettings(clients=CLIENTS, seed=3)))
        assert runner.run(fleet.run_iteration()).pings.generated == 0
        accepted = []
        for made in ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"):
            offer = helper.offer(study, made=made)
            store.studies.publish_offer(study.name, "main", offer)
            _wait_for(server, study, offer)
            summary = runner.run(fleet.run_iteration())
            assert summary.pings.rejected_by_reason == {}
            accepted.append(summary.pings.accepted)
        runner.run(fleet.close())
        server.flush()
    assert min(accepted) > 0  # in the second iteration of those whose searches in the first had no choice
    files = landed_files(partition(tmp_path / "landing", study.name, "main", 0))
    tables = [pq.ParquetFile(path).read() for path in files]
    assert all(table.schema.equals(landed_schema(PRIVATE_UPDATE)) for table in tables)
    rows = [row for table in tables for row in table.to_pylist()]
    assert len(rows) == sum(accepted)
    plain = searched(study_of(SPECS["searches"], shares=False), first=1, iterations=2)
    found = {str(UUID(bytes=row["client_id"])): _read(helper, study, row) for row in rows}
    assert found == by_client(plain)
    assert {row["update_encoding"] for row in rows} == {"shared"}


def searched(study: Study, first: int, iterations: int) -> dict[UUID, dict[str, Any]]:
    """Return the pings of a plain fleet with version 0, from an iteration on."""
    transport = PlannedTransport(study)
    fleet = Fleet(transport, transport.study, FleetSettings(clients=CLIENTS, seed=3))
    fleet.next_iteration = first

    async def all_of_it() -> None:
        for _ in range(iterations):
            await fleet.run_iteration()

    in_virtual_time(all_of_it())
    return {document: json.loads(body) for document, body in transport.landed.items()}


def _wait_for(server: IngestServer, study: Study, offer: Offer) -> None:
    deadline = time.monotonic() + 240
    told = {"terms": offer.terms, "signature": offer.signature}
    while server.ask(f"/models/{study.name}/study.json")["lines"][0].get("offer") != told:
        assert time.monotonic() < deadline, "the offer does not reach clients"
        time.sleep(0.05)


def _read(helper: Helper, study: Study, row: dict[str, Any]) -> list[int] | None:
    update = {"encoding": row["update_encoding"], "payload": base64.b64encode(row["update"]).decode()}
    told = {name: row[name] for name in ("model_version", "study_variation")} | {"update": update}
    vector = helper.read(study, {"payload": told}, UUID(bytes=row["document_id"]))
    return None if vector is None else vector.tolist()
