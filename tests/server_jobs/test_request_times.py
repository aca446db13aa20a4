"""Response times in /metrics: by page and status class, over all workers, and never of single clients."""

import asyncio
import http.client
import json
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedping.server_jobs.ingest import application as edge
from fedping.server_jobs.ingest import latencies as times
from fedping.server_jobs.ingest.application import Edge, Front
from fedping.server_jobs.ingest.latencies import BATCH, BOUNDS, OTHER, PING, ROUTES, TELEMETRY, latencies
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.ingest.worker import services_for
from tests.support.ingest_app import PATH, make_store
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.pings import ping_json

BODY = json.dumps(ping_json()).encode()
LATEST = "/models/<study>/<line>/latest.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestServer]:
    folder = tmp_path_factory.mktemp("times")
    make_store(folder / "store")
    with running_ingest(folder / "store", folder / "landing", "--workers", "2") as running:
        yield running


def asked(server: IngestServer, method: str, path: str, body: bytes = b"") -> int:
    """Send a request on a new connection, so that both workers get some."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def metrics(server: IngestServer) -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", server.operations_port, timeout=240)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def samples(text: str, part: str) -> dict[tuple[str, str], list[float]]:
    """Return the values of a part of the histogram by route and class of status, in the order of the page."""
    found: dict[tuple[str, str], list[float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name == f"fedping_ingest_request_seconds_{part}":
                found.setdefault((one.labels["route"], one.labels["status"]), []).append(one.value)
    return found


def grown(before: Mapping[Any, list[float]], after: Mapping[Any, list[float]]) -> dict[Any, float]:
    return {key: value for key, (now,) in after.items() if (value := now - before.get(key, [0.0])[0])}


def test_answers_are_counted_by_page_and_status_over_all_workers(server: IngestServer) -> None:
    before = samples(metrics(server), "count")
    for _ in range(40):
        assert asked(server, "POST", f"{PATH}/{uuid.uuid4()}", BODY) == 200
    document = str(uuid.uuid4())
    assert asked(server, "POST", f"{PATH}/{document}", b"{}") == 400
    assert asked(server, "POST", PATH, b"") == 200
    assert asked(server, "OPTIONS", f"{PATH}/{document}") == 204
    assert asked(server, "POST", f"/submit/telemetry/{document}/x/y/1/release/2?v=4", BODY) == 404
    assert asked(server, "GET", "/models/study/main/latest.json") == 200
    assert asked(server, "GET", "/nothing-that-a-client-names") == 404
    assert asked(server, "GET", "/models/nothing-that-a-client-names/study.json") == 404
    text = metrics(server)
    assert grown(before, samples(text, "count")) == {
        (PING, "2xx"): 40,
        (PING, "4xx"): 1,
        (BATCH, "2xx"): 1,
        (TELEMETRY, "4xx"): 1,
        (LATEST, "2xx"): 1,
        ("/models/<study>/study.json", "4xx"): 1,
        (OTHER, "2xx"): 1,  # a browser's question before it submits
        (OTHER, "4xx"): 1,
    }
    assert "nothing-that-a-client-names" not in text
    assert document not in text


def test_it_is_a_histogram(server: IngestServer) -> None:
    assert asked(server, "POST", f"{PATH}/{uuid.uuid4()}", BODY) == 200
    text = metrics(server)
    counts = samples(text, "count")
    for key, buckets in samples(text, "bucket").items():
        assert len(buckets) == len(BOUNDS) + 1
        assert buckets == sorted(buckets)
        assert [buckets[-1]] == counts[key]
    assert samples(text, "sum")[PING, "2xx"][0] > 0


def test_what_a_worker_has_counted_outlives_it(server: IngestServer) -> None:
    assert asked(server, "POST", f"{PATH}/{uuid.uuid4()}", BODY) == 200
    before = samples(metrics(server), "count")[PING, "2xx"]
    dead = server.workers()
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 240
    while set(server.workers()) & set(dead) or len(server.workers()) < 2 or not server.is_well():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert samples(metrics(server), "count")[PING, "2xx"] == before


def test_every_page_has_its_name(tmp_path: Path) -> None:
    application = Edge(services(tmp_path, demo_page=True))
    pages = {rule.rule for rule in application.url_map.iter_rules()}
    assert pages == set(ROUTES) - {PING, BATCH, TELEMETRY, OTHER}


def services(tmp_path: Path, demo_page: bool = False) -> Any:
    make_store(tmp_path / "store")
    landing = tmp_path / "landing"
    settings = IngestSettings(store=tmp_path / "store", landing=landing, journal=landing / "j", demo_page=demo_page)
    return services_for(settings, "test")


class SlowClient:
    """A request whose body takes a minute by its own clock, which otherwise advances 3 ms at each reading."""

    now = 0

    def tick(self) -> int:
        self.now += 3_000_000
        return self.now

    async def __call__(self) -> bytes:
        self.now += 60_000_000_000
        return BODY

    def response_bytes(self, status: int, _headers: object, _body: bytes) -> None:
        assert status == 200


def test_a_body_that_comes_slowly_is_nobodys_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, made = SlowClient(), services(tmp_path)
    monkeypatch.setattr(times, "perf_counter_ns", client.tick)
    monkeypatch.setattr(edge, "perf_counter_ns", client.tick)
    scope: Any = SimpleNamespace(
        proto="http",
        method="POST",
        path=f"{PATH}/{uuid.uuid4()}",
        query_string="",
        http_version="1.1",
        headers={"content-length": str(len(BODY))},
        server="127.0.0.1:1",
        client="127.0.0.1:2",
        scheme="http",
    )
    asyncio.run(Front(Edge(made))(scope, client))  # type: ignore[arg-type]
    (counted,) = latencies(made.settings.counters).values()
    assert counted.seconds == pytest.approx(0.003)
    assert counted.counts[BOUNDS.index(0.0025)] == 0
    assert counted.counts[BOUNDS.index(0.005)] == 1


def told(answered: dict[tuple[str, str], times.Answered], private: bool) -> dict[tuple[str, str], list[float]]:
    (family,) = times.latency_families(answered, private)
    return {
        (route, status): [s.value for s in family.samples if (s.labels["route"], s.labels["status"]) == (route, status)]
        for route, status in {(s.labels["route"], s.labels["status"]) for s in family.samples}
    }


def test_beside_a_private_study_no_answer_shows() -> None:
    def of(count: int, seconds: float) -> times.Answered:
        return times.Answered((count // 2,) * len(BOUNDS) + (count,), seconds)

    refused = of(7, 0.1)
    for count, seconds in ((2000, 10.0), (2001, 10.01), (2999, 19.9)):
        found = told({(PING, "2xx"): of(count, seconds), (PING, "4xx"): refused}, private=True)
        assert found[PING, "2xx"] == [1000.0] * len(BOUNDS) + [2000.0, 2000.0, 10.0]
        assert found[PING, "4xx"] == told({(PING, "4xx"): refused}, private=False)[PING, "4xx"]
    assert told({(PING, "2xx"): of(999, 5.0)}, private=True) == {}
