"""Pings of private lines: accepted ones, rejected ones, and their landed columns."""

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.protocol.arrow import landed_schema
from fedping.protocol.encodings.private import vector_updates
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.ping import PRIVATE_UPDATE
from fedping.server_jobs.round.ping_file import joined, open_ping_file
from fedping.server_jobs.round.plan import rules_for
from tests.support.ingest_app import IngestApp, ingest_app
from tests.support.model_updates import model_ping_json
from tests.support.pings import ping_json
from tests.support.private import PATH, client_of, private_ping, private_study, vector

STUDY = private_study()


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, others=(STUDY,))


def post(ingest: IngestApp, ping: dict[str, Any], path: str = PATH) -> Any:
    return ingest.post(f"{path}/{uuid.uuid4()}", json.dumps(ping).encode(), content_type="application/json")


def test_vectors_of_every_arm_land_and_a_round_reads_them(ingest: IngestApp) -> None:
    sent = [private_ping(STUDY, number=k) for k in range(3)] + [private_ping(STUDY, arm="control")]
    for ping in sent[:2]:
        assert post(ingest, ping).json == {"accepted": 1, "rejected": []}
    lines = [json.dumps({"documentId": str(uuid.uuid4())} | ping) for ping in sent[2:]]
    assert ingest.post(PATH, "\n".join(lines).encode()).json == {"accepted": 2, "rejected": []}
    ingest.land()
    files = landed_files(partition(ingest.settings.landing, STUDY.name, "main", 0))
    table = pq.ParquetFile(files[0]).read()
    assert table.schema.equals(landed_schema(PRIVATE_UPDATE))
    assert table.num_rows == 4
    vectors, readable = vector_updates(table.column("update").combine_chunks(), 7)
    assert readable.all()
    np.testing.assert_array_equal(vectors[0], np.frombuffer(vector(STUDY, [1, -2, 0, 3]), "<i4"))

    rules = rules_for(STUDY, "main", 0, key=b"")
    with open_ping_file(files[0], PRIVATE_UPDATE).opened() as reader:
        rows = joined([rows for group in range(reader._of.groups) for rows in reader.rows(group, rules)])
    assert rows.counted.tolist() == [1, 1, 1, 1]
    assert rows.loss.tolist() == [0, 0, 0, 0]
    assert sorted(rows.arm.tolist()) == [0, 0, 0, 1]
    assert rows.codec.tolist() == [0, 0, 0, 0]


GOOD = vector(STUDY, [1, -2, 0, 3])

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a loss": ({"loss": 0.5}, "not_a_ping"),
    "examples": ({"examples": 1}, "not_a_ping"),
    "scores": ({"frecency_scores": [1.0]}, "not_a_ping"),
    "a rank": ({"rank_selected": 0}, "not_a_ping"),
    "no update": ({"update": None}, "not_a_ping"),
    "numbers": ({"update": [1.0, 2.0, 3.0, 4.0]}, "not_a_ping"),
    "another encoding": ({"update": {"encoding": "sign", "payload": "AAAA"}}, "update_encoding"),
    "a number too few": (private_ping(STUDY, GOOD[:-4])["payload"], "update_length"),
    "a number too many": (private_ping(STUDY, GOOD + bytes(4))["payload"], "update_length"),
    "half a number": (private_ping(STUDY, GOOD[:-2])["payload"], "update_length"),
    "no version": ({"model_version": -1}, "not_a_ping"),
    "a version that is not there": ({"model_version": 7}, "model_version"),
    "another arm": ({"study_variation": "control"}, "not_enrolled"),
    "no arm": ({"study_variation": "nobody"}, "unknown_arm"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_private_is_refused(ingest: IngestApp, what: str) -> None:
    more, why = REFUSED[what]
    answer = post(ingest, private_ping(STUDY, **more))
    assert answer.status_code == 400
    assert ingest.totals()[f"rejected.{why}"] == 1, answer.json
    ingest.land()
    assert not landed_files(partition(ingest.settings.landing, STUDY.name, "main", 0))


def test_a_ticket_would_tell_whose_ping_it_is(ingest: IngestApp) -> None:
    answer = post(ingest, private_ping(STUDY) | {"ticket": "abc"})
    assert answer.status_code == 400
    assert "send the ping without it" in answer.json["error"]


@pytest.mark.parametrize("is_private", [True, False])
def test_no_listener_shows_the_number_of_a_private_studys_pings(tmp_path: Path, is_private: bool) -> None:
    ingest = ingest_app(tmp_path, others=(STUDY,) if is_private else ())
    for number in range(3):
        body = private_ping(STUDY, number=number) if is_private else ping_json()
        assert (post(ingest, body) if is_private else ingest.ping(body)).status_code == 200
        assert (post(ingest, {}) if is_private else ingest.ping({})).status_code == 400
    ingest.services.flush()
    pages = {path: ingest.operator.get(path) for path in ("/metrics", "/__status__", "/__heartbeat__")}
    pages["/__flush__"] = ingest.operator.post("/__flush__?timeout=0")
    exact = dict.fromkeys(("accepted", "pending"), 0 if is_private else 3)
    for path in ("/__status__", "/__flush__"):
        told = pages[path].json
        assert {name: told[name] for name in exact} == exact
        assert told["rejected"] == ({} if is_private else {"not_a_ping": 3})
    lines = pages["/metrics"].text.splitlines()
    assert f'fedping_ingest_rejected_total{{reason="not_a_ping"}} {0.0 if is_private else 3.0}' in lines
    assert f"fedping_ingest_pings_accepted_total {0.0 if is_private else 3.0}" in lines
    assert ingest.totals()["accepted"] == 3, "which ingest itself knows"


@pytest.mark.parametrize("kind", ["frecency-update", "model-update"])
def test_pings_of_other_types_are_refused(ingest: IngestApp, kind: str) -> None:
    ping = ping_json() if kind == "frecency-update" else model_ping_json(4, update=[1.0, 2.0, 3.0, 4.0])
    ping["clientId"] = str(client_of(STUDY, "treatment"))
    answer = post(ingest, ping, f"/submit/{STUDY.name}/{kind}/1")
    assert answer.status_code == 404
    assert "accepts documents of type private-update" in answer.json["error"]
    assert post(ingest, ping).status_code == 400
