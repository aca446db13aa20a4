"""Encoded updates at the edge and on disk: only encodings of the line's links are accepted, and land unchanged."""

import base64
import binascii
import gzip
import json
import re
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from fedping.model_store import open_store
from fedping.model_store.documents import unsealed
from fedping.protocol import extensions
from fedping.protocol.errors import FedpingError
from fedping.protocol.link_ends import ClientEnd, Ends, ServerEnd
from fedping.protocol.links import OwnLink, Sign
from fedping.protocol.study import Study
from fedping.server_jobs.ingest.admission import Catalogue
from fedping.server_jobs.ingest.partitions import from_base64
from fedping.server_jobs.ingest.supervisor import prepare
from fedping.server_jobs.optimize import first_versions
from tests.support.ingest_app import IngestApp, ingest_app
from tests.support.model_updates import model_ping_json, model_study
from tests.support.registry import registry_of_its_own
from tests.support.versions import WHEN

M = 11


def study(name: str, upload: Any) -> Study:
    made = model_study(M)
    lines = (msgspec.structs.replace(made.lines[0], upload=upload),)
    return msgspec.structs.replace(made, name=name, lines=lines)


BITS, TERNARY = study("bits", (Sign(zero="up"),)), study("ternary", (Sign(zero="abstain"),))


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, others=(BITS, TERNARY, study("models", ())))


def encoded(payload: bytes | str, encoding: str = "sign", **more: Any) -> dict[str, Any]:
    text = payload if isinstance(payload, str) else base64.b64encode(payload).decode()
    return {"encoding": encoding, "payload": text, **more}


def submit(ingest: IngestApp, name: str, **payload: Any) -> Any:
    body = json.dumps(model_ping_json(M, **payload)).encode()
    return ingest.post(f"/submit/{name}/model-update/1/{uuid.uuid4()}", body, content_type="application/json")


def landed(ingest: IngestApp, name: str) -> list[tuple[Any, Any]]:
    import pyarrow.parquet as pq

    files = ingest.settings.landing.glob(f"study={name}/line=*/iteration=*/*.parquet")
    rows = [row for file in sorted(files) for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(((row["update_encoding"], row["update"]) for row in rows), key=repr)


def test_signs_land_as_they_were_sent_beside_dense_updates_and_none(ingest: IngestApp) -> None:
    bits, ternary = b"\xaa\x05", b"\x11\x22\x20"
    assert submit(ingest, "bits", update=encoded(bits)).json == {"accepted": 1, "rejected": []}
    assert submit(ingest, "bits", study_variation="control", update=None).status_code == 200
    assert submit(ingest, "ternary", update=encoded(ternary)).status_code == 200
    assert submit(ingest, "models").status_code == 200
    lines = [
        json.dumps(model_ping_json(M, update=encoded(bytes([k, 1]))) | {"documentId": str(uuid.uuid4())}).encode()
        for k in range(3)
    ]
    headers = {"Content-Encoding": "gzip"}
    answer = ingest.post("/submit/bits/model-update/1", gzip.compress(b"\n".join(lines)), headers=headers)
    assert answer.json == {"accepted": 3, "rejected": []}
    ingest.land()
    every = [bits, *(bytes([k, 1]) for k in range(3))]
    assert landed(ingest, "bits") == sorted([(None, None), *(("sign", payload) for payload in every)], key=repr)
    assert landed(ingest, "ternary") == [("sign", ternary)]
    assert [(tag, len(payload)) for tag, payload in landed(ingest, "models")] == [("dense", 4 * M)]
    assert ingest.totals()["quarantined"] == 0


def test_the_operator_sees_the_bytes_of_updates_by_line_and_encoding(ingest: IngestApp) -> None:
    for _ in range(3):
        assert submit(ingest, "bits", update=encoded(b"\x01\x00")).status_code == 200
    assert submit(ingest, "models").status_code == 200
    assert submit(ingest, "models", study_variation="control", update=None).status_code == 200
    ingest.land()
    text = ingest.operator.get("/metrics").text
    bits = 'encoding="sign",line="main",study="bits"'
    dense = 'encoding="dense",line="main",study="models"'
    for name, labels, value in (
        ("updates_landed", bits, 3),
        ("update_bytes", bits, 6),
        ("updates_landed", dense, 1),
        ("update_bytes", dense, 4 * M),
    ):
        assert f"fedping_ingest_{name}_total{{{labels}}} {value}.0" in text


def test_the_operator_sees_the_bytes_that_were_posted_and_fetched(ingest: IngestApp) -> None:
    def counted(name: str) -> float:
        [value] = re.findall(rf"^fedping_ingest_{name}_bytes_total (\S+)$", ingest.operator.get("/metrics").text, re.M)
        return float(value)

    line = json.dumps(model_ping_json(M, update=encoded(b"\x01\x00")) | {"documentId": str(uuid.uuid4())}).encode()
    batch = gzip.compress(b"\n".join([line, b"{}"] * 20))
    ingest.post("/submit/bits/model-update/1", batch, headers={"Content-Encoding": "gzip"})
    assert counted("posted") == len(batch), "as they travelled, refused lines too"
    assert counted("fetched") == 0
    document = ingest.client.get("/models/bits/main/latest.json")
    assert (
        ingest.client.get(
            "/models/bits/main/latest.json", headers={"If-None-Match": document.headers["ETag"]}
        ).status_code
        == 304
    )
    assert counted("fetched") == len(document.data)


GOOD = b"\x00\x00"
REFUSED: dict[str, tuple[str, Any, str, str]] = {
    "numbers for signs": ("bits", [0.0] * M, "update_encoding", "an array of 11 numbers, which line 'main'"),
    "signs for numbers": ("models", encoded(GOOD), "update_encoding", "encoded as 'sign', which line"),
    "another encoding": ("bits", encoded(GOOD, "rotated"), "update_encoding", "encoded as 'rotated', which"),
    "dense by name": ("models", encoded(b"\0" * 4 * M, "dense"), "update_encoding", "send 11 numbers"),
    "a byte too few": ("bits", encoded(b"\x00"), "update_length", "has 1 bytes, but 'sign' needs 2"),
    "a byte too many": ("ternary", encoded(b"\x00" * 4), "update_length", "has 4 bytes, but 'sign' needs 3"),
    "nothing": ("bits", encoded(b""), "update_length", "has 0 bytes"),
    "bits beyond the last": ("bits", encoded(b"\x00\x08"), "update_payload", "bits set beyond its last weight"),
    "above and below zero": ("ternary", encoded(b"\x0c\0\0"), "update_payload", "both above and below zero"),
    "no base64": ("bits", encoded("AA-_"), "not_a_ping", "base64"),
    "base64 without padding": ("bits", encoded("AAA"), "not_a_ping", "base64"),
    "another field": ("bits", encoded(GOOD, more=1), "not_a_ping", "unknown field"),
    "no payload": ("bits", {"encoding": "sign"}, "not_a_ping", "payload"),
    "a list of bytes": ("bits", {"encoding": "sign", "payload": [0, 0]}, "not_a_ping", "payload"),
    "no update": ("bits", None, "update_missing", '{"encoding": "sign", "payload": "<base64>"}'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_line_does_not_take_is_refused_with_a_reason(ingest: IngestApp, case: str) -> None:
    name, update, reason, said = REFUSED[case]
    answer = submit(ingest, name, update=update)
    assert (answer.status_code, ingest.totals()[f"rejected.{reason}"]) == (400, 1), answer.json
    assert said in answer.json["error"]
    line = json.dumps(model_ping_json(M, update=update) | {"documentId": str(uuid.uuid4())}).encode()
    batch = ingest.post(f"/submit/{name}/model-update/1", line)
    assert (batch.status_code, ingest.totals()[f"rejected.{reason}"]) == (400, 2), batch.json


def test_payloads_are_read_from_the_journal_as_they_were_written_into_it() -> None:
    payloads = [None, b"", b"\0", bytes(range(256)), None, b"ab"]
    texts = pa.array([None if each is None else base64.b64encode(each).decode() for each in payloads])
    assert from_base64(texts).to_pylist() == payloads
    assert from_base64(texts[3:]).to_pylist() == payloads[3:]


@pytest.mark.parametrize("text", ["A", "AAA", "AA-_", "=AAA", "AA==AA==", "AAAA=", "A A=", "AAA\n", "====", "AA=A"])
def test_a_payload_in_the_journal_that_is_no_base64_is_none(text: str) -> None:
    with pytest.raises(binascii.Error):
        from_base64(pa.array(["AAAA", text]))


def test_a_key_of_an_encoded_update_twice_is_refused(ingest: IngestApp) -> None:
    text = json.dumps(model_ping_json(M, update=encoded(GOOD)))
    twice = text.replace('"encoding"', '"encoding": "sign", "encoding"', 1).encode()
    ingest.post(f"/submit/bits/model-update/1/{uuid.uuid4()}", twice)
    line = twice.replace(b"{", b'{"documentId": "%s", ' % str(uuid.uuid4()).encode(), 1)
    ingest.post("/submit/bits/model-update/1", line)
    assert ingest.totals()["rejected.duplicate_key"] == 2


def test_a_ping_without_examples_has_no_loss_whatever_its_signs(ingest: IngestApp) -> None:
    assert submit(ingest, "bits", update=encoded(GOOD), examples=0, loss=0).status_code == 200
    assert submit(ingest, "bits", update=encoded(GOOD), examples=0, loss=1).status_code == 400
    assert ingest.totals()["rejected.update_not_zero"] == 1


def test_a_ping_without_examples_sends_zeros_where_signs_have_a_zero(ingest: IngestApp) -> None:
    assert submit(ingest, "ternary", update=encoded(b"\0\0\0"), examples=0, loss=0).status_code == 200
    answer = submit(ingest, "ternary", update=encoded(b"\1\0\0"), examples=0, loss=0)
    assert (answer.status_code, ingest.totals()["rejected.update_not_zero"]) == (400, 1)
    assert "loss and update must be zero" in answer.json["error"]
    assert submit(ingest, "ternary", update=encoded(b"\1\0\0"), examples=1).status_code == 200


def test_a_study_whose_link_the_server_does_not_have_is_told_of_and_the_others_are_served(ingest: IngestApp) -> None:
    store = ingest.services.store
    other = study("a-foreign-one", (OwnLink(name="elsewhere", code=""),))
    store.create_study(other, first_versions(other, created=WHEN, code_version="test"))
    said = "study 'a-foreign-one' cannot accept pings: the upload link 'elsewhere' is an extension that is not loaded"
    catalogue = Catalogue(store)
    assert str(catalogue.trouble).startswith(said)
    assert catalogue.names() == ["bits", "models", "study", "ternary"]


def test_a_store_of_which_no_study_can_be_served_is_told_of_at_the_start(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    only = study("only", (OwnLink(name="elsewhere", code=""),))
    store.create_study(only, first_versions(only, created=WHEN, code_version="test"))
    with pytest.raises(FedpingError, match=r"study 'only' .*the upload link 'elsewhere'"):
        Catalogue(store)
    assert Catalogue(store, patient=True).names() == []


def odd_lengths() -> Ends:
    return ClientEnd(encode=lambda *_: 1 / 0), ServerEnd(decode=lambda *_: 1 / 0, lengths=lambda m: 1 // 0)


def test_a_study_whose_link_fails_is_told_of_and_the_others_are_served(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry_of_its_own(monkeypatch)
    extensions.register("upload_link", "failing", odd_lengths)
    store = ingest.services.store
    other = study("a-failing-one", (OwnLink(name="failing", code=""),))
    store.create_study(other, first_versions(other, created=WHEN, code_version="test"))
    patient = Catalogue(store, patient=True)
    assert patient.trouble is not None
    assert "the upload link 'failing', an extension, raised ZeroDivisionError" in patient.trouble
    assert patient.names() == ["bits", "models", "study", "ternary"]


def test_a_payload_on_which_an_own_link_breaks_is_refused_and_its_batch_is_taken(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def brittle() -> Ends:
        server = ServerEnd(
            decode=lambda payloads, m: (np.ones((len(payloads), m), np.float32), np.ones(len(payloads), bool)),
            lengths=lambda m: (1, m),
            trouble=lambda payload, m: "" if 1 // payload[0] else None,
        )
        return ClientEnd(encode=lambda *_: 1 / 0), server

    registry_of_its_own(monkeypatch)
    made = extensions.register("upload_link", "brittle", brittle)
    own = study("own", (OwnLink(name="brittle", code=made.code),))
    ingest.services.store.create_study(own, first_versions(own, created=WHEN, code_version="test"))
    ingest.services.catalogue.refresh()
    answer = submit(ingest, "own", update=encoded(b"\0", "brittle"))
    assert answer.status_code == 400
    assert "the upload link 'brittle' of line 'main' of study 'own' cannot read the payload" in answer.text
    lines = [
        json.dumps({**model_ping_json(M, update=encoded(payload, "brittle")), "documentId": str(uuid.uuid4())})
        for payload in (b"\1", b"\0", b"\2")
    ]
    answer = ingest.post("/submit/own/model-update/1", "\n".join(lines).encode(), content_type="application/json")
    assert answer.status_code == 200
    assert (answer.get_json()["accepted"], [each["line"] for each in answer.get_json()["rejected"]]) == (2, [2])


def test_a_study_of_a_later_version_is_told_of_and_the_others_are_served(ingest: IngestApp) -> None:
    store = ingest.services.store
    for name in ("a-newer-one", "another"):
        made = study(name, ())
        store.create_study(made, first_versions(made, created=WHEN, code_version="test"))
    file = ingest.settings.store / "a-newer-one" / "study.json"
    file.write_bytes(unsealed(file.read_bytes()).replace(b'"format":1', b'"format":9', 1))
    catalogue = ingest.services.catalogue
    catalogue.refresh()
    assert catalogue.names() == ["another", "bits", "models", "study", "ternary"]
    assert catalogue.trouble is not None
    assert "a-newer-one/study.json has format 9, and fedping" in catalogue.trouble


def test_ingest_starts_without_a_study_that_it_cannot_read_and_its_clients_are_to_come_again(
    ingest: IngestApp, capfd: pytest.CaptureFixture[str]
) -> None:
    made = study("torn", ())
    ingest.services.store.create_study(made, first_versions(made, created=WHEN, code_version="test"))
    file = ingest.settings.store / "torn" / "study.json"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    prepare(replace(ingest.settings, port=0))
    assert "starts without a study: " in (said := capfd.readouterr().err)
    assert "torn" in said
    ingest.services.catalogue.refresh()
    assert submit(ingest, "bits", update=encoded(GOOD)).status_code == 200
    answer = submit(ingest, "torn", update=[0.0] * M)
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    assert "torn" in ingest.operator.get("/__heartbeat__").get_json()["checks"]["store"]
    assert "fedping_ingest_studies_unserved 1.0" in ingest.operator.get("/metrics").text
    file.write_bytes(whole)
    ingest.services.catalogue.refresh()
    assert submit(ingest, "torn", update=[0.0] * M).status_code == 200
