"""Fuzzing of the submit and batch endpoints: no 5xx for any input, and every ping answered with 200 lands."""

import gzip
import http.client
import json
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.effort import few_or_all
from tests.support.ingest_app import PATH, IngestApp, ingest_app, landed_ids, make_store
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.mutations import JSON, TEXTS, changed_pings, spoiled
from tests.support.pings import ping_json

pytestmark = pytest.mark.thorough
IN_PROCESS = settings(
    max_examples=few_or_all(300, 2500),
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
OVER_HTTP = settings(IN_PROCESS, max_examples=few_or_all(100, 400))

PINGS = changed_pings(ping_json(), 22, [{"study_variation": "control", "update": None}, {"model_version": -1}])


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Draw one document: a ping, a changed ping, any JSON, or any bytes."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=200))
    value = draw(JSON) if kind == 1 else draw(PINGS)
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    data = text.encode("utf-8", errors="surrogatepass")
    return spoiled(data, draw) if kind <= 4 else data


Encoder = Callable[[bytes], bytes]
ENCODINGS: list[tuple[str | None, Encoder]] = [
    (None, bytes),
    (None, bytes),
    ("gzip", lambda data: gzip.compress(data, 1)),
    ("zstd", lambda data: zstandard.compress(data, 1)),
    ("zstd", lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data)),
    ("gzip", zlib.compress),
    ("identity", bytes),
    ("br", bytes),
    ("gzip", bytes),
    ("zstd", bytes),
]


@st.composite
def bodies(draw: st.DrawFn, content: st.SearchStrategy[bytes]) -> tuple[bytes, dict[str, str]]:
    """Draw a body and its headers, mostly valid."""
    data = draw(content)
    name, encode = draw(st.sampled_from(ENCODINGS))
    body = encode(data)
    if name and draw(st.integers(0, 4)) == 0:
        body = spoiled(body, draw)
    headers = {"Content-Encoding": name} if name else {}
    types = ["application/json", "application/json", "text/plain", "application/json; charset=x", "text/html", "\x80"]
    headers["Content-Type"] = draw(st.sampled_from(types))
    return body, headers


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Draw the lines of a batch: pings, changed pings, or any bytes."""
    lines: list[bytes] = []
    for _ in range(draw(st.integers(0, 5))):
        document = str(uuid.UUID(bytes=draw(st.binary(min_size=16, max_size=16))))
        if draw(st.integers(0, 3)):
            lines.append(json.dumps({"documentId": document, **draw(PINGS)}).encode())
        else:
            lines.append(draw(documents()))
    return draw(st.sampled_from([b"\n", b"\n\n", b"\r\n"])).join(lines)


@pytest.fixture(scope="module")
def ingest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestApp]:
    """Give one ingest for all in-process inputs; at the end, check that every accepted ping is in Parquet."""
    made = ingest_app(tmp_path_factory.mktemp("fuzz"), roll_bytes=100_000)
    yield made
    made.land()
    sums = made.totals()
    assert sums["accepted"] > few_or_all(100, 1000), "hardly anything was accepted: the inputs do not reach the landing"
    assert sums["quarantined"] == 0
    assert sums["landed"] + sums["duplicates"] == sums["accepted"]


def check(status: int, answer: Any) -> None:
    assert 200 <= status < 500, (status, answer)
    if status >= 400:
        assert "error" in answer or not answer["accepted"]


COUNTS = {"single": 0, "batch": 0, "path": 0, "http": 0}


@IN_PROCESS
@given(request=bodies(documents()))
def test_any_document_is_answered_without_an_error_of_ours(ingest: IngestApp, request: Any) -> None:
    body, headers = request
    COUNTS["single"] += 1
    document = str(uuid.UUID(int=COUNTS["single"]))
    answer = ingest.post(f"{PATH}/{document}", body, headers=headers)
    check(answer.status_code, answer.json)
    if answer.status_code == 200 and COUNTS["single"] % few_or_all(10, 50) == 0:
        ingest.land()
        assert document in landed_ids(ingest.settings.landing)


@IN_PROCESS
@given(request=bodies(documents()), method=st.sampled_from(["POST", "PUT"]))
def test_any_document_put_twice_is_answered_alike(ingest: IngestApp, request: Any, method: str) -> None:
    body, headers = request
    COUNTS["single"] += 1
    path = f"{PATH}/{uuid.UUID(int=2**64 + COUNTS['single'])}"
    answers = [
        ingest.client.open(
            path, method=method, data=body, headers=headers, environ_overrides={"CONTENT_LENGTH": str(len(body))}
        )
        for _ in range(2)
    ]
    check(answers[0].status_code, answers[0].json)
    assert (answers[0].status_code, answers[0].data) == (answers[1].status_code, answers[1].data)


@IN_PROCESS
@given(data=st.data())
def test_any_batch_is_answered_line_by_line(ingest: IngestApp, data: st.DataObject) -> None:
    COUNTS["batch"] += 1
    body, headers = data.draw(bodies(batches()))
    before = ingest.totals()["accepted"]
    answer = ingest.post(PATH, body, headers=headers)
    check(answer.status_code, answer.json)
    accepted = answer.json.get("accepted", 0)
    assert ingest.totals()["accepted"] == before + accepted
    if "error" not in answer.json and headers.get("Content-Encoding", "identity") == "identity":
        lines = body.split(b"\n")
        refused = [r["line"] for r in answer.json["rejected"]]
        full = [k for k, line in enumerate(lines, 1) if line.strip()]
        assert set(refused) <= set(full)
        assert accepted + len(refused) == len(full)


@IN_PROCESS
@given(
    path=st.lists(
        TEXTS | st.sampled_from(["submit", "study", "frecency-update", "1", str(uuid.UUID(int=1))]), max_size=7
    ),
    method=st.sampled_from(["POST", "PUT", "GET", "HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE"]),
    headers=st.dictionaries(
        st.sampled_from(["X-A", "Origin", "Range", "If-None-Match", "Accept"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=1100),
    ),
)
def test_any_path_method_and_header_is_answered(
    ingest: IngestApp, path: list[str], method: str, headers: dict[str, str]
) -> None:
    COUNTS["path"] += 1
    body = json.dumps(ping_json()).encode()
    decoded = ("/" + "/".join(path)).encode("utf-8").decode("latin-1")  # as WSGI has it
    environ = {"PATH_INFO": decoded, "CONTENT_LENGTH": str(len(body))}
    answer = ingest.client.open("/", method=method, data=body, headers=headers, environ_overrides=environ)
    assert answer.status_code < 500


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestServer]:
    folder = tmp_path_factory.mktemp("fuzz-server")
    make_store(folder / "store")
    with running_ingest(folder / "store", folder / "landing", "--workers", "2") as running:
        yield running


@OVER_HTTP
@given(request=bodies(documents()), in_batch=st.booleans())
def test_any_body_over_http_is_answered_and_an_accepted_ping_is_landed(
    server: IngestServer, request: Any, in_batch: bool
) -> None:
    body, headers = request
    COUNTS["http"] += 1
    path = PATH if in_batch else f"{PATH}/{uuid.UUID(int=COUNTS['http'])}"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    connection.request("POST", path, body, {k: v for k, v in headers.items() if v.isascii()})
    answer = connection.getresponse()
    check(answer.status, json.loads(answer.read()))
    connection.close()
    if answer.status == 200 and not in_batch:
        ACCEPTED.append(str(uuid.UUID(int=COUNTS["http"])))


ACCEPTED: list[str] = []


def test_what_was_accepted_over_http_is_landed(server: IngestServer) -> None:
    assert ACCEPTED, "the test before has to have run"
    server.flush()
    assert set(ACCEPTED) <= set(landed_ids(server.landing))
    status = server.operator_asks("/__status__")
    assert status["accepted"] == status["landed"] + status["duplicates"]
    assert not {"internal", "not_stored", "disk_full"} & set(status["rejected"])


def test_enough_was_tried(ingest: IngestApp) -> None:
    assert sum(COUNTS.values()) >= few_or_all(1_200, 10_000)
