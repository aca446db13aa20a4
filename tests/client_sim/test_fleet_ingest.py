"""A fleet against the real ingest: every ping is valid and lands exactly once, for any behaviour of the clients."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedping.client_sim.fleet import Behaviour, FleetSettings, IterationSummary, TransportError, join_study, made_users
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.population.settings import PopulationSettings
from fedping.model_store.store import open_store
from fedping.protocol.encodings.dense import dense_updates
from fedping.protocol.landing import NO_LINE
from fedping.server_jobs.optimize import first_versions
from tests.support.fleets import STUDY, WHEN, fleet_study
from tests.support.ingest_app import landed_ids
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.versions import after

ITERATIONS = 5
BEHAVIOUR = Behaviour(fetch_late=0.2, duplicate=0.2, go_silent=0.2, silent_for=2, return_stale=0.5)
SETTINGS = FleetSettings(clients=250, seed=8, behaviour=BEHAVIOUR)
USERS = PopulationSettings(nothing_selected=0.2)


@dataclass(frozen=True)
class Ran:
    """A finished fleet of five iterations, with a new version before each except the first; its ingest still runs."""

    server: IngestServer
    summaries: list[IterationSummary]
    landed: pa.Table

    def rows(self, arm: str) -> list[dict[str, object]]:
        return [row for row in self.landed.to_pylist() if row["study_variation"] == arm]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("fleet")
    study, store = fleet_study(), open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    with running_ingest(folder / "store", folder / "landing") as server:

        async def go() -> list[IterationSummary]:
            fleet = await join_study(HttpTransport(server.url), STUDY, SETTINGS, made_users(8, USERS))
            summaries = []
            for iteration in range(ITERATIONS):
                if iteration:
                    for line in ("main", "other"):
                        store.publish(after(store.head(STUDY, line), change=3.0))
                summaries.append(await fleet.run_iteration())
            await fleet.close()
            return summaries

        summaries = asyncio.run(go())
        server.flush()
        yield Ran(server, summaries, landed(server.landing))


def landed(folder: Path) -> pa.Table:
    columns = ["document_id", "client_id", "model_version", "study_variation", "update", "update_encoding"]
    columns += ["loss", "rank_selected"]
    files = sorted(folder.glob("study=*/line=*/iteration=*/*.parquet"))
    tables = [pq.ParquetFile(file).read(columns=columns) for file in files]
    names = pa.string()
    for name in ("study_variation", "update_encoding"):
        at = columns.index(name)
        tables = [table.set_column(at, name, table.column(name).cast(names)) for table in tables]
    return pa.concat_tables(tables)


def test_every_ping_is_accepted(ran: Ran) -> None:
    for summary in ran.summaries:
        assert summary.pings.rejected_by_reason == {}
        assert summary.pings.retried_by_reason == {}
        assert (summary.pings.accepted, summary.pings.undelivered) == (summary.pings.generated, 0)


def test_every_ping_lands_once_although_some_are_sent_twice(ran: Ran) -> None:
    ids = landed_ids(ran.server.landing)
    assert len(ids) == len(set(ids)) == sum(summary.pings.generated for summary in ran.summaries) > 1000
    assert sum(summary.pings.duplicates for summary in ran.summaries) > 100


def test_clients_hold_the_versions_that_were_published_and_old_ones_too(ran: Ran) -> None:
    assert [summary.versions for summary in ran.summaries] == [{"main": n, "other": n} for n in range(ITERATIONS)]
    for arm in ("treatment", "control", "linear"):
        assert {row["model_version"] for row in ran.rows(arm)} == {-1, *range(ITERATIONS)}
    assert all(sum(s.fetches.late for s in ran.summaries) > s.fetches.late > 0 for s in ran.summaries)


def test_an_arm_without_a_line_reports_no_version_and_lands_apart(ran: Ran) -> None:
    assert {row["model_version"] for row in ran.rows("plain")} == {-1}
    apart = ran.server.landing.glob(f"study={STUDY}/line=*/iteration=*")
    assert {tuple(part.partition("=")[2] for part in path.parts[-2:]) for path in apart} == {
        *((line, str(n)) for line in ("main", "other") for n in range(-1, ITERATIONS)),
        (NO_LINE, "-1"),
    }


@pytest.mark.parametrize(("arm", "m"), [("treatment", 22), ("linear", 15), ("control", None), ("plain", None)])
def test_what_landed_is_what_the_arm_should_send(ran: Ran, arm: str, m: int | None) -> None:
    rows = ran.rows(arm)
    assert all((row["update"] is None) == (m is None) for row in rows)
    nothing = [row for row in rows if row["rank_selected"] == -1]
    assert 0.1 < len(nothing) / len(rows) < 0.3
    assert all(row["loss"] == 0 for row in nothing)
    if m is not None:
        updates, valid = dense_updates(pa.array([row["update"] for row in rows], pa.binary()), m)
        assert valid.all()
        assert not updates[[row["rank_selected"] == -1 for row in rows]].any()
        assert updates.any()


def test_no_client_is_in_two_arms(ran: Ran) -> None:
    arms: dict[object, set[object]] = {}
    for row in ran.landed.to_pylist():
        arms.setdefault(row["client_id"], set()).add(row["study_variation"])
    assert {len(names) for names in arms.values()} == {1}
    assert all(UUID(bytes=client).version == 4 for client in arms if isinstance(client, bytes))


def test_a_fleet_that_starts_again_sends_documents_that_have_landed_and_adds_none(ran: Ran) -> None:
    before = landed_ids(ran.server.landing)

    async def again() -> IterationSummary:
        fleet = await join_study(HttpTransport(ran.server.url), STUDY, SETTINGS, made_users(8, USERS))
        summary = await fleet.run_iteration()
        await fleet.close()
        return summary

    summary = asyncio.run(again())
    ran.server.flush()
    assert summary.pings.accepted == ran.summaries[0].pings.accepted
    assert landed_ids(ran.server.landing) == before


def test_a_study_that_ingest_does_not_have_is_told_with_its_own_words(ran: Ran) -> None:
    with pytest.raises(TransportError, match=r"does not serve the study 'nothing': 404 "):
        asyncio.run(join_study(HttpTransport(ran.server.url), "nothing", SETTINGS))
