"""Pings of two-server lines: accepted ones, rejected ones, and the offer published to clients."""

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.client_sim.privacy import Sharer
from fedping.protocol.arrow import landed_schema
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.ping import PRIVATE_UPDATE
from fedping.protocol.privacy import Privacy, Signs, frame_of, vectors_of
from fedping.protocol.study import public_json
from tests.conformance.vectors import FOLDER
from tests.support.ingest_app import IngestApp, ingest_app
from tests.support.private import CENTRAL, PATH, private_ping, private_study
from tests.support.sharing import Helper, offering, shared

STUDY = private_study(privacy=shared(Privacy(central=CENTRAL)))
PLAIN = private_study(name="plain")
HELPER = Helper()
OFFER = HELPER.offer(STUDY)
VECTOR = np.array([64, -64, 0, 64, 3, 1, 0])


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, others=(STUDY, PLAIN))


def payload(document: uuid.UUID) -> bytes:
    return Sharer(STUDY, STUDY.lines[0], OFFER).payload(VECTOR, document, 0, "treatment")


def ping(sent: bytes, encoding: str = "shared") -> dict[str, Any]:
    update = {"encoding": encoding, "payload": base64.b64encode(sent).decode()}
    return private_ping(STUDY, b"", update=update)


def post(ingest: IngestApp, told: dict[str, Any], document: uuid.UUID | None = None) -> Any:
    return ingest.post(f"{PATH}/{document or uuid.uuid4()}", json.dumps(told).encode(), content_type="application/json")


def test_a_share_lands_as_it_is_and_once(ingest: IngestApp) -> None:
    document = uuid.uuid4()
    told = ping(payload(document))
    jsonschema.validate(told, json.loads((FOLDER.parent / "schema" / "private-ping.json").read_text()))
    for _ in range(2):
        assert post(ingest, told, document).json == {"accepted": 1, "rejected": []}
    ingest.land()
    [file] = landed_files(partition(ingest.settings.landing, STUDY.name, "main", 0))
    table = pq.ParquetFile(file).read()
    assert table.schema.equals(landed_schema(PRIVATE_UPDATE))
    rows = table.to_pylist()
    assert {row["update"] for row in rows} == {base64.b64decode(told["payload"]["update"]["payload"])}
    vector = HELPER.read(STUDY, told, document)
    assert vector is not None
    assert vector.tolist() == VECTOR.tolist()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda sent: sent[:-1], "update_length"),
        (lambda sent: sent + b"\0", "update_length"),
        (lambda sent: sent[:-80], "update_length"),
        (lambda sent: b"", "update_length"),
        (lambda sent: sent + bytes(1088), "update_length"),
    ],
    ids=["a byte too few", "a byte too many", "nothing sealed", "nothing", "sealed otherwise"],
)
def test_another_length_is_refused(ingest: IngestApp, change: Any, why: str) -> None:
    document = uuid.uuid4()
    assert post(ingest, ping(change(payload(document))), document).status_code == 400
    assert ingest.totals()[f"rejected.{why}"] == 1


@pytest.mark.parametrize("encoding", ["private", "float32", "sign"])
def test_a_vector_that_anybody_could_read_is_refused(ingest: IngestApp, encoding: str) -> None:
    answer = post(ingest, ping(VECTOR.astype("<i4").tobytes(), encoding))
    assert answer.status_code == 400
    assert ingest.totals()["rejected.update_encoding"] == 1, answer.json


def study_json(ingest: IngestApp, name: str = STUDY.name) -> Any:
    return ingest.client.get(f"/models/{name}/study.json")


def test_clients_are_told_of_an_offer_and_of_the_next(ingest: IngestApp) -> None:
    catalogue = ingest.services.catalogue
    before = study_json(ingest)
    assert "offer" not in before.json["lines"][0]
    tags = [before.headers["ETag"]]
    for number in (1, 2):
        offer = HELPER.offer(STUDY, made=f"2026-01-0{number}T00:00:00Z")
        ingest.services.store.studies.publish_offer(STUDY.name, "main", offer)
        catalogue.refresh()
        told = study_json(ingest)
        assert told.json["lines"][0]["offer"] == {"terms": offer.terms, "signature": offer.signature}
        assert told.data == public_json(offering(STUDY, offer))
        tags.append(told.headers["ETag"])
    assert len(set(tags)) == 3


def test_an_offer_that_cannot_be_read_is_told_of_and_the_last_one_served(ingest: IngestApp) -> None:
    catalogue = ingest.services.catalogue
    ingest.services.store.studies.publish_offer(STUDY.name, "main", OFFER)
    catalogue.refresh()
    kept = Path(ingest.services.store.where) / STUDY.name / "main" / "offer.json"
    kept.write_bytes(kept.read_bytes()[:-20])
    catalogue.refresh()
    assert catalogue.trouble is not None
    assert "offer.json cannot be read" in catalogue.trouble
    assert study_json(ingest).json["lines"][0]["offer"]["terms"] == OFFER.terms
    ingest.services.store.studies.publish_offer(STUDY.name, "main", OFFER)
    catalogue.refresh()
    assert catalogue.trouble is None


def test_clients_of_other_private_lines_read_what_they_always_read(ingest: IngestApp) -> None:
    """Clients older than two-server lines reject privacy settings with an unknown key."""
    line = study_json(ingest, PLAIN.name).json["lines"][0]
    assert sorted(line["privacy"]) == sorted(
        ["central", "local", "contribution", "loss", "left_out", "contributions", "delay_minutes"]
    )
    assert "offer" not in line
    assert "shared" in study_json(ingest).json["lines"][0]["privacy"]


@pytest.mark.parametrize("proofs", [False, True])
def test_the_longest_shares_of_a_small_model_are_taken(tmp_path: Path, proofs: bool) -> None:
    """The post-quantum seal is longer than all other data of a small model's ping."""
    settings: dict[str, Any] = {"seal": "mlkem768-x25519", "proofs": proofs}
    study = private_study(privacy=shared(Privacy(central=CENTRAL, contribution=Signs()), **settings))
    document, sharer = uuid.uuid4(), Sharer(study, study.lines[0], HELPER.offer(study))
    frame = frame_of(study.lines[0].privacy, study.lines[0].spec)  # type: ignore[arg-type]
    vector = vectors_of(frame, np.array([[1.0, -1.0, 0.0, 1.0]]), np.zeros(1), np.ones(1), (0.0, 1.0))[0]
    sent = base64.b64encode(sharer.payload(vector, document, 0, "treatment")).decode()
    told = private_ping(study, b"", update={"encoding": "shared", "payload": sent})
    assert post(ingest_app(tmp_path, others=(study,)), told, document).json == {"accepted": 1, "rejected": []}
