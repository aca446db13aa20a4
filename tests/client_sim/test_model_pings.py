"""Model updates of a cohort as JSON and as landed columns: equal for ingest and for the round."""

import asyncio
import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedping.client_sim.fleet import BatchOutcome, Delivery, Outcome, join_study
from fedping.client_sim.fleet import pings as writer
from fedping.client_sim.fleet.members import FleetSettings
from fedping.client_sim.fleet.pings import ENCODED_LINES, batches, encoded_lines, encoded_pings
from fedping.client_sim.http import HttpTransport
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import write_landed
from fedping.protocol.ping import MODEL_UPDATE
from fedping.protocol.update import Payloads
from fedping.protocol.weights import MAX_WEIGHTS
from fedping.server_jobs.ingest.segments import CLOSED, segments
from fedping.server_jobs.ingest.settings import LOOKED_INTO
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.plan import rules_for
from tests.support.ingest_app import IngestApp, ingest_app, make_store
from tests.support.ingest_server import IngestServer, free_port
from tests.support.model_updates import PATH, STUDY, model_study
from tests.support.rounds import work_of


def cohort(k: int, m: int = 3, seed: int = 0, arm: str = "treatment") -> ModelPings:
    """Return the pings of k clients with random updates, every fifth without an example."""
    rng = np.random.default_rng(seed)
    examples = rng.integers(1, 60, k) * (np.arange(k) % 5 != 4)
    return ModelPings(
        document_ids=rng.integers(0, 256, (k, 16), np.uint8),
        client_ids=rng.integers(0, 256, (k, 16), np.uint8),
        arm=arm,
        version=0,
        updates=(rng.normal(size=(k, m)) * (examples > 0)[:, None]) if arm == "treatment" else None,
        losses=rng.exponential(size=k) * (examples > 0),
        examples=examples,
    )


def landed_by_ingest(ingest: IngestApp) -> pa.Table:
    """Land everything and return the rows of the study, sorted by document and without the time."""
    ingest.land()
    files = sorted(ingest.settings.landing.glob(f"study={STUDY}/line=*/iteration=*/*.parquet"))
    return plain(pa.concat_tables([pq.ParquetFile(file).read() for file in files]))


def plain(table: pa.Table) -> pa.Table:
    """Return a table sorted by document, without columns that only ingest knows, and with dictionaries expanded."""
    table = table.drop_columns(["received_at"]).replace_schema_metadata(None)
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
    return table.sort_by("document_id").combine_chunks()


numbers = st.one_of(
    st.floats(-(2.0**99), 2.0**99, width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-38, 0.1, 1 / 3, 16777217.0, 1e30, 123456.79]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.lists(numbers, min_size=3, max_size=3), st.floats(-1e30, 1e30)), min_size=1, max_size=6),
    batched=st.booleans(),
)
def test_what_ingest_lands_is_what_the_short_way_lands(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], batched: bool
) -> None:
    ingest = ingest_app(tmp_path_factory.mktemp("same"), others=[model_study()])
    k = len(rows)
    rng = np.random.default_rng(k)
    pings = ModelPings(
        document_ids=rng.integers(0, 256, (k, 16), np.uint8),
        client_ids=rng.integers(0, 256, (k, 16), np.uint8),
        arm="treatment",
        version=0,
        updates=np.array([update for update, _ in rows]),
        losses=np.array([loss for _, loss in rows]),
        examples=np.arange(1, k + 1),
    )
    if batched:
        answer = ingest.post(PATH, b"\n".join(encoded_lines(pings)))
        assert answer.json == {"accepted": k, "rejected": []}
    else:
        for document, body in encoded_pings(pings):
            assert ingest.post(f"{PATH}/{document}", body).status_code == 200
    short = landed_model_updates(pings, 1_700_000_000_000)
    assert short.schema.names == [*MODEL_UPDATE_COLUMNS]
    assert landed_by_ingest(ingest).equals(plain(short))


MODEL_UPDATE_COLUMNS = (
    "document_id",
    "client_id",
    "received_at",
    "model_version",
    "study_variation",
    "update_encoding",
    "update",
    "loss",
    "examples",
    "confusion",
)


@pytest.mark.parametrize("arm", ["treatment", "control"])
def test_a_cohort_is_the_same_either_way_and_comes_to_the_same_mean(tmp_path: Path, arm: str) -> None:
    study = model_study()
    ingest = ingest_app(tmp_path / "ingest", others=[study])
    pings = cohort(150, arm=arm)
    for batch in batches(pings, 4000):
        assert ingest.post(PATH, batch).json["rejected"] == []
    short = landed_model_updates(pings, 1_700_000_000_000)
    assert landed_by_ingest(ingest).equals(plain(short))
    rules = rules_for(study, "main", 0, key=b"")
    one = write_landed(tmp_path / "short", short, 1)
    files = sorted((ingest.settings.landing / f"study={STUDY}").glob("line=main/iteration=0/*.parquet"))
    found = [combined(NumpyEngine().partials(work_of(paths, rules)), rules) for paths in (files, [one])]
    assert found[0] == found[1]
    assert found[0].arms[arm].examples == pings.examples.sum()


def test_batches_hold_what_they_may_and_every_ping_once() -> None:
    pings = cohort(40)
    lines = list(encoded_lines(pings))
    made = list(batches(pings, 1000))
    assert b"\n".join(made).split(b"\n") == lines
    assert max(map(len, made)) <= 1000
    assert len(list(batches(pings, 1))) == 40
    assert [uuid.UUID(json.loads(line)["documentId"]).bytes for line in lines] == [
        i.tobytes() for i in pings.document_ids
    ]


def test_a_batch_of_encoded_updates_has_no_more_lines_than_ingest_looks_into() -> None:
    pings = cohort(ENCODED_LINES + 1)
    payloads = Payloads("signs", pa.array([b"\x79"] * len(pings), pa.binary()))
    made = list(batches(replace(pings, updates=payloads), 10**6))
    assert [len(batch.split(b"\n")) for batch in made] == [ENCODED_LINES, 1]
    assert ENCODED_LINES * MAX_WEIGHTS <= LOOKED_INTO


def test_numbers_become_text_in_bounded_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    pings = cohort(40)
    whole = list(encoded_lines(pings))
    monkeypatch.setattr(writer, "NUMBERS_AT_A_TIME", 7)
    assert list(encoded_lines(pings)) == whole


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e31])
@pytest.mark.parametrize("where", ["updates", "losses"])
def test_what_diverged_is_told_and_not_sent(bad: float, where: str) -> None:
    parts = dict(vars(cohort(4)))
    parts[where] = parts[where].astype(np.float64)
    parts[where][1] = bad
    with pytest.raises(FedpingError, match="the training diverges"):
        ModelPings(**parts)


def test_a_client_without_an_example_has_nothing_to_say() -> None:
    parts = dict(vars(cohort(4)))
    with pytest.raises(ValueError, match="without an example"):
        ModelPings(**{**parts, "examples": np.zeros(4, np.int64)})


def test_over_http_nothing_that_was_answered_is_lost_when_everything_is_killed(tmp_path: Path) -> None:
    """All processes of ingest are killed between batches, and clients without an answer send again."""
    make_store(tmp_path / "store", others=[model_study()])
    pings = cohort(120)
    bodies = list(batches(pings, 3000))
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--workers", "2", "--compact-every", "0.2")
    server.start()

    async def send(transport: HttpTransport, left: list[bytes]) -> list[bytes]:
        answers = [(body, await transport.submit_batch(STUDY, body)) for body in left]
        await transport.close()
        assert all(not answer.rejected for _, answer in answers)
        return [body for body, answer in answers if answer.outcome.delivery is not Delivery.ACCEPTED]

    transport = HttpTransport(server.url, document=MODEL_UPDATE)
    third = len(bodies) // 3
    assert asyncio.run(send(transport, bodies[:third])) == []
    server.kill()
    assert len(asyncio.run(send(transport, bodies[third : 2 * third]))) == third
    server.start()
    # Pings answered before the kill are also sent again, as by a client whose answer was lost; each lands once.
    assert asyncio.run(send(transport, bodies)) == []
    assert server.flush()["flushed"]
    assert server.stop() == 0
    files = sorted((tmp_path / "landing").glob(f"study={STUDY}/line=*/iteration=*/*.parquet"))
    landed = plain(pa.concat_tables([pq.ParquetFile(file).read() for file in files]))
    assert landed.equals(plain(landed_model_updates(pings, 0)))
    assert not segments(tmp_path / "landing" / ".journal", CLOSED)


def test_a_batch_tells_which_lines_were_refused_and_whether_to_try_again(tmp_path: Path) -> None:
    make_store(tmp_path / "store", others=[model_study()])
    good, other = encoded_lines(cohort(2))
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--workers", "1")
    server.start()

    async def answers() -> list[BatchOutcome]:
        transport = HttpTransport(server.url, document=MODEL_UPDATE)
        bodies = [b"\n".join([good, b"{}", other]), b"{}"]
        found = [await transport.submit_batch(STUDY, body) for body in bodies]
        found.append(await transport.submit_batch("nowhere", good))
        await transport.close()
        return found

    mixed, bad, lost = asyncio.run(answers())
    with pytest.raises(InvalidSettings, match="cannot be simulated: the model 'linear-15' has 15 weights"):
        asyncio.run(join_study(HttpTransport(server.url), STUDY, FleetSettings(clients=1)))
    server.stop()
    assert (mixed.outcome.delivery, mixed.accepted, [line for line, _ in mixed.rejected]) == (Delivery.ACCEPTED, 2, [2])
    assert (bad.outcome.delivery, bad.accepted, len(bad.rejected)) == (Delivery.REJECTED, 0, 1)
    assert (lost.outcome.delivery, lost.accepted, lost.rejected) == (Delivery.REJECTED, 0, ())


def test_a_batch_that_nobody_answers_is_to_be_sent_again() -> None:
    async def ask() -> BatchOutcome:
        nobody = HttpTransport(f"http://127.0.0.1:{free_port()}", document=MODEL_UPDATE)
        try:
            return await nobody.submit_batch(STUDY, b"{}")
        finally:
            await nobody.close()

    silent = asyncio.run(ask())
    assert silent.outcome == Outcome(Delivery.RETRY, silent.outcome.reason)
