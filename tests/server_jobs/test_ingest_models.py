"""Model documents over HTTP: never behind the store, cheap to ask for, and cached by whoever may."""

from pathlib import Path

import msgspec
import pytest

from model_store import open_store
from protocol.model import ModelDocument
from protocol.study import Study
from tests.support.ingest_app import PATH, STUDY, IngestApp, ingest_app, ingest_study
from tests.support.pings import ping_json
from tests.support.versions import after, small_study, version_0


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path)


def publish(ingest: IngestApp) -> int:
    store = open_store(ingest.settings.store)
    version = after(store.head(STUDY, "main"))
    store.publish(version)
    return version.iteration


def test_latest_is_the_head_at_every_moment(ingest: IngestApp) -> None:
    for _ in range(12):
        number = publish(ingest)
        answer = ingest.client.get("/models/study/main/latest.json")
        document = msgspec.json.decode(answer.data, type=ModelDocument)
        assert document.iteration == number
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.content_type == "application/json"


def test_a_client_that_has_it_is_told_so_and_gets_the_next_one(ingest: IngestApp) -> None:
    first = ingest.client.get("/models/study/main/latest.json")
    again = {"If-None-Match": first.headers["ETag"]}
    answer = ingest.client.get("/models/study/main/latest.json", headers=again)
    assert (answer.status_code, answer.data) == (304, b"")
    publish(ingest)
    answer = ingest.client.get("/models/study/main/latest.json", headers=again)
    assert answer.status_code == 200
    assert answer.headers["ETag"] != first.headers["ETag"]


def test_a_numbered_version_may_be_kept_for_ever_and_the_next_one_is_found_once_published(ingest: IngestApp) -> None:
    answer = ingest.client.get("/models/study/main/0.json")
    assert answer.status_code == 200
    assert "immutable" in answer.headers["Cache-Control"]
    assert ingest.client.get("/models/study/main/1.json").status_code == 404
    publish(ingest)
    assert ingest.client.get("/models/study/main/1.json").status_code == 200
    assert ingest.client.get("/models/study/main/0.json").data == answer.data


@pytest.mark.parametrize(
    "path",
    [
        "/models/other/study.json",
        "/models/study/other/latest.json",
        "/models/study/main/99999999999999999999.json",
        "/models/study/main/-1.json",
        "/models/study/main/../study.json",
        "/models/..%2f..%2fetc/main/latest.json",
        "/models/study/main/versions/0.json",
    ],
)
def test_what_is_not_there_is_404(ingest: IngestApp, path: str) -> None:
    answer = ingest.client.get(path)
    assert answer.status_code == 404
    assert answer.json["error"]


def test_the_public_study_enrols_and_ranks_and_keeps_the_pipeline_to_itself(ingest: IngestApp) -> None:
    answer = ingest.client.get("/models/study/study.json")
    assert b"pipeline" not in answer.data
    fetched = msgspec.json.decode(answer.data, type=Study)
    assert fetched.arms == ingest_study().arms
    assert fetched.lines[0].spec == ingest_study().lines[0].spec


def test_versions_that_nobody_can_have_fetched_get_no_folder(ingest: IngestApp) -> None:
    def status(version: int) -> int:
        return ingest.ping(ping_json(model_version=version)).status_code

    assert [status(v) for v in (-1, 0, 1, 2, 2**31 - 1)] == [200, 200, 200, 400, 400]
    publish(ingest)
    assert [status(v) for v in (2, 3)] == [200, 400]


def test_a_study_created_while_ingest_runs_is_taken_at_once(ingest: IngestApp) -> None:
    path = PATH.replace("/study/", "/another/") + "/00000000-0000-4000-8000-000000000000"
    import json

    body = json.dumps(ping_json()).encode()
    assert ingest.post(path, body).status_code == 404
    study = small_study("another", m=22)
    open_store(ingest.settings.store).create_study(study, (version_0(study),))
    ingest.services.catalogue._refreshed -= 1
    assert ingest.post(path, body).status_code == 200
