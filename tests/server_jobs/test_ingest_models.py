"""Model documents over HTTP: always as new as the store, cheap to request, and cacheable."""

import gzip
import itertools
import json
import shutil
import threading
import time
import uuid
from pathlib import Path

import msgspec
import pytest
from werkzeug.test import Client

from fedping.model_store import open_store
from fedping.model_store.decisions import continue_at
from fedping.protocol.landing import open_landing
from fedping.protocol.model import ModelDocument
from fedping.protocol.study import Study
from fedping.server_jobs.ingest.admission import LOOK_PAUSE
from fedping.server_jobs.ingest.application import Edge
from fedping.server_jobs.ingest.operations import Operations
from fedping.server_jobs.ingest.pages import WORTH_PACKING
from fedping.server_jobs.ingest.worker import services_for
from tests.support.ingest_app import PATH, STUDY, IngestApp, ingest_app, ingest_study, landed_ids
from tests.support.model_updates import model_study
from tests.support.pings import ping_json
from tests.support.versions import WHEN, after, small_study, version_0


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path)


def publish(ingest: IngestApp) -> int:
    store = open_store(ingest.settings.store)
    version = after(store.head(STUDY, "main"))
    store.publish(version)
    return version.iteration


def again(ingest: IngestApp) -> IngestApp:
    """Return an ingest over the same folders, as after a restart."""
    services = services_for(ingest.settings, "worker-1")
    app = Edge(services)
    return IngestApp(ingest.settings, services, app, Client(app), Client(Operations(services)))


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


@pytest.mark.parametrize("name", ["latest", "0"])
def test_a_long_document_is_packed_for_whoever_takes_it(tmp_path: Path, name: str) -> None:
    ingest = ingest_app(tmp_path, others=[model_study(200)])
    long = ingest.client.get(f"/models/models/main/{name}.json")
    assert len(long.data) > WORTH_PACKING
    packed = ingest.client.get(f"/models/models/main/{name}.json", headers={"Accept-Encoding": "br, gzip"})
    assert "Content-Encoding" not in long.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == long.data
    assert len(packed.data) < len(long.data)
    assert {answer.headers["Vary"] for answer in (long, packed)} == {"Accept-Encoding"}
    assert packed.headers["ETag"] != long.headers["ETag"]
    tag = {"If-None-Match": packed.headers["ETag"]}
    path = f"/models/models/main/{name}.json"
    assert ingest.client.get(path, headers=tag | {"Accept-Encoding": "gzip"}).status_code == 304
    assert ingest.client.get(path, headers={"Accept-Encoding": "gzip;q=0"}).data == long.data


def test_a_short_document_stays_as_it_is(ingest: IngestApp) -> None:
    answer = ingest.client.get("/models/study/main/latest.json", headers={"Accept-Encoding": "gzip"})
    assert len(answer.data) <= WORTH_PACKING
    assert "Content-Encoding" not in answer.headers
    assert "Vary" not in answer.headers


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


@pytest.mark.parametrize("name", ["07", "00", "\u0660", "+0", "0.0", "0%0A", "0%20", "²"])
def test_a_version_has_one_address(ingest: IngestApp, name: str) -> None:
    assert ingest.client.get("/models/study/main/0.json").status_code == 200
    answer = ingest.client.get(f"/models/study/main/{name}.json")
    assert answer.status_code == 404
    assert answer.json["error"]


def test_a_stray_file_is_not_served_and_the_heartbeat_tells_it(ingest: IngestApp) -> None:
    publish(ingest)
    versions = ingest.settings.store / "study/main/versions"
    (versions / "99.json").write_bytes((versions / "1.json").read_bytes())
    for app in (ingest, again(ingest)):
        assert app.client.get("/models/study/main/latest.json").json["iteration"] == 1
        assert app.client.get("/models/study/main/99.json").status_code == 404
        told = app.operator.get("/__heartbeat__")
        assert told.json["checks"]["store"] == "ok"
        assert "versions/99.json does not follow version 1 and is left out; move it away" in told.json["notes"][0]
        assert app.ping(ping_json(model_version=1)).status_code == 200
        assert app.ping(ping_json(model_version=99)).status_code == 400


def test_latest_and_the_heartbeat_agree_on_a_damaged_head(ingest: IngestApp) -> None:
    publish(ingest)
    path = ingest.settings.store / "study/main/versions/1.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    fresh = again(ingest)
    answer = fresh.client.get("/models/study/main/latest.json")
    assert (answer.status_code, answer.headers["Retry-After"], answer.headers["Cache-Control"]) == (
        503,
        "30",
        "no-store",
    )
    assert answer.headers["Access-Control-Expose-Headers"] == "Retry-After"
    assert "retry later" in answer.json["error"]
    told = fresh.operator.get("/__heartbeat__")
    assert told.status_code == 503
    assert "versions/1.json" in told.json["checks"]["store"]
    assert fresh.client.get("/models/study/main/0.json").status_code == 200
    assert fresh.ping(ping_json(model_version=1)).status_code == 200
    path.write_bytes(whole)
    assert fresh.client.get("/models/study/main/latest.json").status_code == 200
    assert fresh.operator.get("/__heartbeat__").json["checks"]["store"] == "ok"


def test_an_older_store_that_is_put_back_is_told_and_serves_on(ingest: IngestApp, tmp_path: Path) -> None:
    """Tested with a running ingest and a newly started one; after the fence everything is healthy again."""
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    for _ in range(3):
        publish(ingest)
    open_landing(ingest.settings.landing).record_published(str(ingest.settings.store), STUDY, "main", 3)
    assert ingest.client.get("/models/study/main/latest.json").json["iteration"] == 3
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "copy").rename(tmp_path / "store")
    for app in (ingest, again(ingest)):
        answer = app.client.get("/models/study/main/latest.json")
        assert (answer.status_code, answer.json["iteration"]) == (200, 0)
        told = app.operator.get("/__heartbeat__")
        assert told.status_code == 503
        assert "'fedping store continue study main --from 4'" in told.json["checks"]["store"]
    store = open_store(ingest.settings.store)
    continue_at(store, STUDY, "main", 10, created=WHEN, code_version="test")
    for app in (ingest, again(ingest)):
        assert app.client.get("/models/study/main/latest.json").json["iteration"] == 10
        assert app.client.get("/models/study/main/2.json").status_code == 404
        assert app.operator.get("/__heartbeat__").json["checks"]["store"] == "ok"
        assert [app.ping(ping_json(model_version=v)).status_code for v in (2, 3, 10)] == [200, 200, 200]
        app.land()
    assert len(landed_ids(ingest.settings.landing)) == 6


def test_the_public_study_enrols_and_ranks_and_keeps_the_pipeline_to_itself(ingest: IngestApp) -> None:
    answer = ingest.client.get("/models/study/study.json")
    assert b"pipeline" not in answer.data
    fetched = msgspec.json.decode(answer.data, type=Study)
    assert fetched.arms == ingest_study().arms
    assert fetched.lines[0].spec == ingest_study().lines[0].spec


def test_versions_that_nobody_can_have_fetched_get_no_folder(ingest: IngestApp) -> None:
    def status(version: int) -> int:
        return ingest.ping(ping_json(model_version=version)).status_code

    assert [status(v) for v in (-1, 0, 1, 2, 2**31 - 1)] == [200, 200, 400, 400, 400]
    publish(ingest)
    assert [status(v) for v in (1, 2, 3)] == [200, 400, 400]
    publish(ingest)  # right after a read that didn't find it
    assert [status(v) for v in (2, 3)] == [200, 400]


def test_a_flood_of_versions_that_are_not_there_is_no_flood_of_looks_at_the_store(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read of the store serves any number in a batch or at the same time; single requests take turns."""
    head = ingest.services.catalogue.rules("study").heads["main"]
    looks: list[float] = []
    real = head._look_from

    def look(known: int) -> int:
        looks.append(time.time())
        return real(known)

    monkeypatch.setattr(head, "_look_from", look)
    lines = [
        json.dumps({"documentId": str(uuid.uuid4()), **ping_json(model_version=version)})
        for version in [*range(1, 500), *[1] * 500]
    ]
    assert ingest.post(PATH, "\n".join(lines).encode()).status_code == 400
    assert 1 <= len(looks) <= 3
    del looks[:]
    body = json.dumps(ping_json(model_version=1)).encode()
    statuses: list[int] = []

    def send() -> None:
        statuses.extend(ingest.post(f"{PATH}/{uuid.uuid4()}", body).status_code for _ in range(10))

    threads = [threading.Thread(target=send) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [400] * 160
    apart = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert min(apart) >= 0.9 * LOOK_PAUSE
    assert ingest.client.get("/models/study/main/77.json").status_code == 404


def test_a_ping_of_a_version_that_cannot_be_looked_for_is_to_be_sent_again(ingest: IngestApp, tmp_path: Path) -> None:
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert ingest.ping(ping_json(model_version=1)).status_code == 503
    lines = [json.dumps({"documentId": str(uuid.uuid4()), **ping_json(model_version=v)}) for v in (0, 1)]
    assert ingest.post(PATH, "\n".join(lines).encode()).status_code == 503
    assert ingest.totals()["accepted"] == 0
    assert ingest.client.get("/models/study/main/1.json").status_code == 503
    assert ingest.ping(ping_json()).status_code == 200, "a version that is known needs no look"
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    publish(ingest)
    assert ingest.post(PATH, "\n".join(lines).encode()).json["accepted"] == 2


def test_a_study_created_while_ingest_runs_is_taken_at_once(ingest: IngestApp) -> None:
    path = PATH.replace("/study/", "/another/") + "/00000000-0000-4000-8000-000000000000"
    body = json.dumps(ping_json()).encode()
    assert ingest.post(path, body).status_code == 404
    study = small_study("another", m=22)
    open_store(ingest.settings.store).create_study(study, (version_0(study),))
    ingest.services.catalogue._refreshed -= 1
    assert ingest.post(path, body).status_code == 200
