"""Pings in the exact format of 2018: their path, their envelope, the payloads of both studies."""

import gzip
import http.client
import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from werkzeug.test import TestResponse

from fedping.model_store import StoreError, open_store
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import IngestApp, ingest_app
from tests.support.ingest_server import running_ingest
from tests.support.telemetry import ARM, FIRST, HEADERS, SECOND, M, envelope, packed, path, telemetry_study
from tests.support.versions import WHEN

OF_ALL = ("num_suggestions_displayed", "rank_selected")
OF_HISTORY = ("bookmark_and_history_num_suggestions_displayed", "bookmark_and_history_rank_selected")


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, others=[telemetry_study(unwanted_updates="leave_out")])


def some_id() -> str:
    return str(uuid.uuid4())


def send(ingest: IngestApp, ping: Any, document: str, query: str = "?v=4") -> TestResponse:
    headers = dict(HEADERS)
    return ingest.post(path(document, query=query), packed(ping), headers=headers)


def sent(ingest: IngestApp, payload: dict[str, Any], **fields: Any) -> TestResponse:
    document = some_id()
    return send(ingest, envelope(payload, document, some_id(), **fields), document)


def rows(landing: Path, study: str) -> list[dict[str, Any]]:
    files = [str(file) for file in landing.glob(f"study={study}/**/*.parquet")]
    return ds.dataset(files, partitioning=None).to_table().to_pylist() if files else []


def create(store: Path, study: Study) -> None:
    made = open_store(store, create=True)
    made.create_study(study, first_versions(study, created=WHEN, code_version="test"))


def test_pings_of_both_studies_go_through_real_ingest_to_parquet_and_into_a_round(tmp_path: Path) -> None:
    store, landing = tmp_path / "store", tmp_path / "landing"
    study = telemetry_study(unwanted_updates="leave_out")
    create(store, study)
    forms = [FIRST, SECOND, {**FIRST, "study_variation": "control"}, {**SECOND, "study_variation": "control"}]
    with running_ingest(store, landing) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
        for payload in forms:
            document = some_id()
            connection.request("POST", path(document), packed(envelope(payload, document, some_id())), HEADERS)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"accepted":1,"rejected":[]}')
        connection.close()
        server.flush()
    found = {(row["study_variation"], row["num_chars_typed"]): row for row in rows(landing, study.name)}
    first, second = found[ARM, FIRST["num_chars_typed"]], found[ARM, SECOND["search_string_length"]]
    assert [first[name] for name in (*OF_ALL, *OF_HISTORY)] == [None, None, 3, 1]
    assert {first[name] for name in SECOND if name not in (*FIRST, *OF_HISTORY, "search_string_length")} == {None}
    renamed = {**SECOND, "num_chars_typed": SECOND["search_string_length"]}
    said = {name: renamed[name] for name in renamed.keys() - {"update", "search_string_length"}}
    assert {name: second[name] for name in said} == said
    assert [found["control", n]["update"] for n in (3, 5)] == [None, None]
    assert np.frombuffer(first["update"], "<f4").tolist() == FIRST["update"]

    opened = open_store(store)
    run_round(opened, landing, study.name, "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test"))
    lineage = opened.version(study.name, "main", 1).lineage
    assert lineage.aggregate is not None
    assert {reason: n for reason, n in lineage.counts.items() if n} == {"used": 2, "other_arm": 2}
    assert lineage.arms[ARM].rank_selected == (FIRST["rank_selected"] + SECOND["rank_selected"]) / 2
    assert lineage.arms["control"].loss == (FIRST["loss"] + SECOND["loss"]) / 2
    mean = (np.array(FIRST["update"]) + np.array(SECOND["update"])) / 2
    assert np.allclose(lineage.aggregate.mean, mean, rtol=0, atol=1e-12)


def test_an_interaction_without_a_choice_is_no_example_in_either_form(ingest: IngestApp) -> None:
    for payload in (FIRST, SECOND):
        nothing = {**payload, "rank_selected": -1, "loss": 0, "update": [0] * M}
        if "bookmark_and_history_rank_selected" in nothing:
            nothing["bookmark_and_history_rank_selected"] = -1
        assert sent(ingest, nothing).status_code == 200
        refused = sent(ingest, {**nothing, "loss": 3})
        assert (refused.status_code, "nothing was selected" in refused.text) == (400, True)


def test_a_retry_lands_once_and_a_plain_ping_of_the_same_study_beside_it(ingest: IngestApp) -> None:
    document = some_id()
    ping = envelope(FIRST, document, some_id())
    assert [send(ingest, ping, document).status_code for _ in range(3)] == [200] * 3
    plain = {"clientId": some_id(), "type": "frecency-update", "payload": SECOND}
    assert ingest.post(f"/submit/firefox/frecency-update/1/{some_id()}", json.dumps(plain).encode()).status_code == 200
    ingest.land()
    assert sorted(row["num_chars_typed"] for row in rows(ingest.settings.landing, "firefox")) == [3, 5]


def test_what_the_envelope_says_of_the_browser_is_nowhere_on_disk(ingest: IngestApp) -> None:
    assert sent(ingest, FIRST).status_code == 200
    kept = b"".join(file.read_bytes() for file in ingest.settings.journal.rglob("*") if file.is_file())
    assert b"num_chars_typed" in kept
    assert not [word for word in (b"61.0", b"release", b"20180621125625", b"2018-06-25") if word in kept]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": 5}, "not_a_ping"),
        ({"processes": {}}, "not_a_ping"),
        ({"application": {"name": {"nested": "x"}}}, "not_a_ping"),
        ({"application": {str(i): "x" for i in range(17)}}, "not_a_ping"),
        ({"application": {"name": "x" * 65}}, "not_a_ping"),
        ({"application": None}, "not_a_ping"),
        ({"creationDate": "x" * 65}, "not_a_ping"),
        ({"type": "model-update"}, "not_a_ping"),
        ({"id": "7d1a9a50-24e5-4cde-8be5-3e6a7a3e7e4c"}, "document_id"),
    ],
)
def test_an_envelope_of_another_form_is_refused_by_name(ingest: IngestApp, fields: dict[str, Any], reason: str) -> None:
    assert sent(ingest, FIRST, **fields).status_code == 400
    assert ingest.totals()[f"rejected.{reason}"] == 1
    assert ingest.totals()["accepted"] == 0


def raw_ping(ingest: IngestApp, environment: bytes) -> TestResponse:
    document = some_id()
    whole = json.dumps({**envelope(FIRST, document, some_id()), "environment": "HERE"}).encode()
    body = gzip.compress(whole.replace(b'"HERE"', environment))
    return ingest.post(path(document), body, headers=dict(HEADERS))


@pytest.mark.parametrize(
    "environment",
    [
        b"{}",
        json.dumps({"addons": {f"{k}@example": {"name": "secret: \\x", "since": k} for k in range(500)}}).encode(),
        b'{"twice": 1, "twice": 2}',
        b'{"path": "C:\\\\secret", "escaped": "\\u003a"}',
        b"null",
    ],
)
def test_an_environment_is_dropped_unread(ingest: IngestApp, environment: bytes) -> None:
    assert raw_ping(ingest, environment).status_code == 200
    kept = b"".join(file.read_bytes() for file in ingest.settings.journal.rglob("*") if file.is_file())
    assert b"num_chars_typed" in kept
    assert b"secret" not in kept
    assert b"environment" not in kept


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (b"{", "not_json"),
        (b"[" * 50_000 + b"]" * 50_000, "nesting"),
        (b"[" + b"1," * 50_000 + b"1]", "beyond_study"),
        (b'"' + b"x" * 500_000 + b'"', "beyond_study"),
        (b'{}, "environment": {"a": 1}', "duplicate_key"),
        (b'{}, "type": "frecency-update"', "duplicate_key"),
        (rb'{"a": 1}, "\u0074ype": "frecency-update"', "duplicate_key"),
    ],
)
def test_what_is_not_read_is_bounded_and_hides_nothing(ingest: IngestApp, environment: bytes, reason: str) -> None:
    assert raw_ping(ingest, environment).status_code == 400
    assert ingest.totals()[f"rejected.{reason}"] == 1
    assert ingest.totals()["accepted"] == 0


@pytest.mark.parametrize("field", ["id", "creationDate", "version", "application", "clientId", "payload", "type"])
def test_every_field_of_the_envelope_is_there(ingest: IngestApp, field: str) -> None:
    document = some_id()
    ping = envelope(FIRST, document, some_id())
    del ping[field]
    assert send(ingest, ping, document).status_code == 400


def test_a_key_that_is_there_twice_is_seen_behind_escaped_colons(ingest: IngestApp) -> None:
    document = some_id()
    text = json.dumps(envelope(FIRST, document, some_id()))
    escaped = text.replace("09:41:07", "09\\u003a41\\u003a07")
    assert ingest.post(path(document), escaped.encode()).status_code == 200
    for original in (text, escaped):
        twice = original.replace('"loss": 75', '"loss": 7, "loss": 75, "loss": 75')
        assert ingest.post(path(some_id()), twice.encode()).status_code == 400
    inside = text.replace('"name": "Firefox"', '"name": "other", "name": "Firefox"')
    assert ingest.post(path(document), inside.encode()).status_code == 400
    assert ingest.totals()["rejected.duplicate_key"] == 3


def test_hostile_bodies_are_refused_on_this_path_as_on_the_other(ingest: IngestApp) -> None:
    document = some_id()
    text = json.dumps(envelope(FIRST, document, some_id()))
    many = text.replace('"update": [', '"update": [' + "0," * 1_000_000)
    deep = text.replace('"payload": {', '"payload": {"x": ' + "[" * 50_000 + "]" * 50_000 + ",")
    assert ingest.post(path(document), many.encode()).status_code == 400
    assert ingest.post(path(document), deep.encode()).status_code == 400
    assert ingest.post(path(document), packed({"x": "y" * 8_000_000}), headers=HEADERS).status_code == 413
    assert ingest.post(path(document), b"\xff" + text.encode()).status_code == 400
    totals = ingest.totals()
    assert totals["rejected.beyond_study"] >= 1
    assert totals["rejected.decompressed_too_large"] == 1
    assert totals["accepted"] == 0


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (path("not-an-id"), "document_id"),
        (path("7d1a9a50-24e5-4cde-8be5-3e6a7a3e7e4c", "main"), "unknown_study"),
        (path("7d1a9a50-24e5-4cde-8be5-3e6a7a3e7e4c", "model-update"), "unknown_study"),
        (path("7d1a9a50-24e5-4cde-8be5-3e6a7a3e7e4c", query=""), "unknown_version"),
        (path("7d1a9a50-24e5-4cde-8be5-3e6a7a3e7e4c", query="?v=3"), "unknown_version"),
        ("/submit/telemetry/7d1a9a50-24e5-4cde-8be5-3e6a7a3e7e4c/frecency-update/Firefox/61.0?v=4", "path"),
        ("/submit/firefox/a/b/c/d/e/f?v=4", "path"),
    ],
)
def test_another_path_is_told_apart(ingest: IngestApp, where: str, reason: str) -> None:
    answer = ingest.post(where, packed(envelope(FIRST, some_id(), some_id())), headers=HEADERS)
    assert answer.status_code in (400, 404)
    assert ingest.totals()[f"rejected.{reason}"] == 1


def test_refusals_are_noted_under_the_study_that_takes_them(ingest: IngestApp) -> None:
    assert sent(ingest, {**FIRST, "study_variation": "none"}).status_code == 400
    ingest.services.rejections.flush()
    noted = "".join(file.read_text() for file in ingest.settings.rejected.rglob("*") if file.is_file())
    assert '"study":"firefox"' in noted.replace(" ", "")


def test_without_the_setting_there_is_no_such_path_and_updates_of_controls_are_refused(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path, others=[telemetry_study(telemetry=False)])
    assert sent(ingest, FIRST).status_code == 404
    control = {"clientId": some_id(), "type": "frecency-update", "payload": {**FIRST, "study_variation": "control"}}
    answer = ingest.post(f"/submit/firefox/frecency-update/1/{some_id()}", json.dumps(control).encode())
    assert (answer.status_code, "does not submit updates" in answer.text) == (400, True)


def test_a_study_that_is_created_later_is_found(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    assert sent(ingest, FIRST).status_code == 404
    create(ingest.settings.store, telemetry_study())
    ingest.services.catalogue._refreshed -= 1
    assert sent(ingest, FIRST).status_code == 200


def test_a_store_has_one_study_that_takes_telemetry_of_a_type(tmp_path: Path) -> None:
    create(tmp_path / "store", telemetry_study("one"))
    create(tmp_path / "store", telemetry_study("one"))
    create(tmp_path / "store", telemetry_study("two", telemetry=False))
    with pytest.raises(StoreError, match="has a study 'one' that takes frecency-update pings as telemetry"):
        create(tmp_path / "store", telemetry_study("three"))
    assert open_store(tmp_path / "store").studies.names() == ["one", "two"]


def test_a_file_with_absent_fields_says_so_in_its_format(ingest: IngestApp) -> None:
    assert sent(ingest, FIRST).status_code == 200
    ingest.land()
    (file,) = landed_files(partition(ingest.settings.landing, "firefox", "main", 0))
    assert pq.read_metadata(file).metadata[b"fedping.format"] == b"2"
