"""The two transports: every answer and network fault becomes a value, and both carry the same bytes."""

import asyncio
import gzip
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedping.client_sim.fleet import (
    BatchOutcome,
    Delivery,
    Fetched,
    InProcessTransport,
    NotModified,
    Outcome,
    Transport,
    TransportError,
    Unavailable,
    join_study,
)
from fedping.client_sim.fleet.members import FleetSettings
from fedping.client_sim.http import HttpSettings, HttpTransport
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.study import Declared, public_study
from tests.support.faulty_server import ANSWER_LOST, CUT_SHORT, DROPPED, Answer, FaultyServer, faulty_server, refusal
from tests.support.fleets import STUDY, document, fleet_study
from tests.support.ingest_server import free_port

DOCUMENT = UUID("00000000-0000-4000-8000-000000000001")
_T = TypeVar("_T")


@pytest.fixture(scope="module")
def serving() -> Iterator[FaultyServer]:
    with faulty_server(fleet_study()) as running:
        yield running


@pytest.fixture
def server(serving: FaultyServer) -> FaultyServer:
    serving.attempts.clear()
    serving.fetches.clear()
    serving.model = None
    serving.publish(0)
    return serving


def over_http(url: str, ask: Callable[[Transport], Awaitable[_T]], **options: float) -> _T:
    async def go() -> _T:
        transport = HttpTransport(url, HttpSettings(**options))  # type: ignore[arg-type]
        try:
            return await ask(transport)
        finally:
            await transport.close()
            await transport.close()

    return asyncio.run(go())


def submitted(server: FaultyServer, answer: Answer, **options: float) -> Outcome:
    server.plan = lambda document_id, attempt: answer
    return over_http(server.url, lambda transport: transport.submit(STUDY, DOCUMENT, b'{"a":1}'), **options)


def fetched(server: FaultyServer, etag: str | None = None) -> Fetched | NotModified | Unavailable:
    return over_http(server.url, lambda transport: transport.fetch_model(STUDY, "main", None, etag))


def test_a_ping_is_posted_as_it_is_to_the_path_that_names_its_document(server: FaultyServer) -> None:
    assert submitted(server, Answer()) == Outcome(Delivery.ACCEPTED)
    (attempt,) = server.attempts
    assert attempt.path == f"/submit/{STUDY}/frecency-update/1/{DOCUMENT}"
    assert attempt.body == b'{"a":1}'
    assert attempt.headers["Content-Type"] == "application/json"
    assert "ookie" not in " ".join(attempt.headers)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_success_is_taken_for_one(server: FaultyServer, status: int) -> None:
    body = b"" if status == 204 else b"{}"
    assert submitted(server, Answer(status, body)).delivery is Delivery.ACCEPTED


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507])
def test_what_may_pass_is_tried_again(server: FaultyServer, status: int) -> None:
    assert submitted(server, refusal(status, "later")) == Outcome(Delivery.RETRY, f"HTTP {status}")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_from_ingest_and_is_neither_followed_nor_taken_for_its_answer(
    server: FaultyServer, status: int
) -> None:
    answer = refusal(status, "sign in first", Location="/elsewhere")
    assert submitted(server, answer) == Outcome(Delivery.RETRY, f"HTTP {status}")
    assert len(server.attempts) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 411, 413, 414, 415, 422, 431])
def test_what_will_not_pass_is_rejected_with_the_servers_own_sentence(server: FaultyServer, status: int) -> None:
    answer = refusal(status, "the update has 3 numbers", Location="/elsewhere")
    assert submitted(server, answer) == Outcome(Delivery.REJECTED, f"{status} the update has 3 numbers")
    assert len(server.attempts) == 1


@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b"\xff\xfe", b"[]", b'{"error":3}', b"null", b"[" * 9999])
def test_a_refusal_without_a_sentence_is_told_by_its_status(server: FaultyServer, body: bytes) -> None:
    assert submitted(server, Answer(400, body, lands=False)).reason == "HTTP 400"


def test_a_long_sentence_is_cut_so_that_reasons_stay_countable(server: FaultyServer) -> None:
    assert len(submitted(server, refusal(400, "x" * 5000)).reason) <= 210


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("0", 0), ("soon", None), ("-3", None), ("1.5", None), ("", None), ("Thu, 01 Jan 1970 00:00:00 GMT", 0)],
)
def test_the_time_that_a_server_names_is_read(
    server: FaultyServer, status: int, header: str, seconds: float | None
) -> None:
    assert submitted(server, refusal(status, Retry_After=header)).retry_after == seconds


def test_the_time_may_be_a_date(server: FaultyServer) -> None:
    then = datetime.now(UTC) + timedelta(hours=2)
    seconds = submitted(server, refusal(503, Retry_After=format_datetime(then, usegmt=True))).retry_after
    assert seconds is not None
    assert 3600 < seconds <= 7200


@given(header=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40) | st.from_regex(r"\d{1,400}"))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_such_header_is_beyond_a_client(server: FaultyServer, header: str) -> None:
    outcome = submitted(server, refusal(503, Retry_After=header.strip()))
    assert outcome.delivery is Delivery.RETRY
    assert outcome.retry_after is None or outcome.retry_after >= 0


@pytest.mark.parametrize("answer", [DROPPED, ANSWER_LOST, CUT_SHORT])
def test_a_connection_that_breaks_is_a_reason_to_try_again(server: FaultyServer, answer: Answer) -> None:
    outcome = submitted(server, answer)
    assert outcome.delivery is Delivery.RETRY
    assert outcome.reason.startswith("the connection broke")
    assert len(server.attempts) == 1  # only the fleet's own backoff retries


def test_a_server_that_does_not_answer_is_given_up(server: FaultyServer) -> None:
    server.go_on.clear()
    try:
        assert submitted(server, Answer(), request_timeout=0.2) == Outcome(Delivery.RETRY, "no answer in time")
    finally:
        server.go_on.set()


def test_an_address_where_nobody_listens() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    outcome = over_http(url, lambda transport: transport.submit(STUDY, DOCUMENT, b"{}"))
    assert outcome.delivery is Delivery.RETRY
    assert outcome.reason.startswith("no connection")
    answer = over_http(url, lambda transport: transport.fetch_model(STUDY, "main", None, None))
    assert isinstance(answer, Unavailable)
    with pytest.raises(TransportError, match=rf"cannot reach {url}: no connection .*start 'fedping ingest'"):
        over_http(url, lambda transport: transport.fetch_study(STUDY))


@pytest.mark.parametrize(
    "address",
    [
        "", "127.0.0.1:8080", "ftp://a.example", "http://", "http://[::1", "http://127.0.0.1:99999", "http://a:b",
        "http://..", f"http://{'a' * 70}.example", "http://a b.example", "http://a.example/?q=1", "http://a.example/#x",
    ],
)  # fmt: skip
def test_what_is_no_address_is_told_at_once(address: str) -> None:
    with pytest.raises(InvalidSettings, match="is not an ingest address; write one such as http://127"):
        HttpTransport(address)


def test_the_study_is_fetched(server: FaultyServer) -> None:
    study = over_http(f"{server.url}/", lambda transport: transport.fetch_study(STUDY))
    assert study == public_study(fleet_study())


@pytest.mark.parametrize("name", ["nothing", "../x", "a b", "a?b", "%", "#"])
def test_a_study_that_is_not_there_is_told_with_the_servers_words(server: FaultyServer, name: str) -> None:
    with pytest.raises(
        TransportError, match=rf"does not serve the study '{name.replace('?', '.')}': 404 nothing is at"
    ):
        over_http(server.url, lambda transport: transport.fetch_study(name))


@pytest.mark.parametrize("body", [b"<html>", b'{"name":"fleet"}', b"\xff", b"[1]", b'{"x":' + b"[" * 9999])
def test_a_page_that_is_no_study_is_told(server: FaultyServer, body: bytes) -> None:
    server.files["/models/odd/study.json"] = body
    with pytest.raises(TransportError, match=r"odd/study.json is not a study"):
        over_http(server.url, lambda transport: transport.fetch_study("odd"))


def test_a_study_that_has_ended_is_not_joined(server: FaultyServer) -> None:
    over = public_study(server.study, Declared(state="ended", since="2026-01-01T00:00:00.000+00:00"))
    server.files["/models/over/study.json"] = msgspec.json.encode(over)
    with pytest.raises(TransportError, match=r"^the study 'over' has ended"):
        over_http(server.url, lambda transport: transport.fetch_study("over"))


def test_a_model_is_fetched_once_and_then_asked_for_by_its_tag(server: FaultyServer) -> None:
    first = fetched(server)
    assert isinstance(first, Fetched)
    assert first.document == document(server.study, "main", 0)
    assert fetched(server, first.etag) == NotModified()
    server.publish(1)
    second = fetched(server, first.etag)
    assert isinstance(second, Fetched)
    assert second.document.iteration == 1
    assert [asked for _, asked in server.fetches] == [None, first.etag, first.etag]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refusal(404, "line 'main' has no version"), "404 line 'main' has no version"),
        (refusal(503), "HTTP 503"),
        (Answer(200, b"{"), "not a model document"),
        (Answer(200, b'{"model":[1e999],"iteration":0}'), "not a model document"),
        (Answer(200, b'{"model":"x"}'), "not a model document"),
        (Answer(200, b"\xff"), "not a model document"),
        (Answer(200, b'{"x":' + b"[" * 9999), "not a model document"),
        (DROPPED, "the connection broke"),
        (CUT_SHORT, "the connection broke"),
    ],
)
def test_a_model_that_does_not_come_is_an_answer_too(server: FaultyServer, answer: Answer, reason: str) -> None:
    server.model = answer
    got = fetched(server)
    assert isinstance(got, Unavailable)
    assert got.reason.startswith(reason)


def test_without_a_network_the_same_questions_have_the_same_answers() -> None:
    study = fleet_study()
    taken: dict[UUID, bytes] = {}

    def sink(document_id: UUID, body: bytes) -> str | None:
        taken[document_id] = body
        return None if body == b"good" else "400 bad"

    transport = InProcessTransport(study, lambda line, n: document(study, line, 3) if n in (None, 3) else None, sink)

    async def ask() -> None:
        assert await transport.fetch_study(STUDY) == public_study(study)
        with pytest.raises(TransportError, match="unknown study 'x' in this process; it has 'fleet'"):
            await transport.fetch_study("x")
        first = await transport.fetch_model(STUDY, "main", None, None)
        assert isinstance(first, Fetched)
        assert await transport.fetch_model(STUDY, "main", None, first.etag) == NotModified()
        assert await transport.fetch_model(STUDY, "main", 2, None) == Unavailable("line 'main' has no version 2")
        assert await transport.submit(STUDY, DOCUMENT, b"good") == Outcome(Delivery.ACCEPTED)
        assert await transport.submit(STUDY, DOCUMENT, b"bad") == Outcome(Delivery.REJECTED, "400 bad")
        await transport.close()

    asyncio.run(ask())
    assert list(taken) == [DOCUMENT]


def test_both_transports_carry_the_same_pings(server: FaultyServer) -> None:
    study = server.study
    without_network: dict[UUID, bytes] = {}

    def sink(document_id: UUID, body: bytes) -> str | None:
        without_network[document_id] = body
        return None

    newest = 0
    in_process = InProcessTransport(study, lambda line, n: document(study, line, newest), sink)

    async def run(transport: Transport) -> None:
        nonlocal newest
        fleet = await join_study(transport, STUDY, FleetSettings(clients=60, seed=4))
        for newest in (0, 1):
            server.publish(newest)
            await fleet.run_iteration()
        await fleet.close()

    server.plan = lambda document_id, attempt: Answer()
    asyncio.run(run(in_process))
    asyncio.run(run(HttpTransport(server.url)))
    assert len(without_network) > 100
    assert server.bodies() == without_network


def test_a_fleet_that_cannot_join_leaves_no_connection_open(server: FaultyServer) -> None:
    study = fleet_study()
    odd = msgspec.structs.replace(study.lines[0].spec, model="no-such")
    strange = msgspec.structs.replace(study, lines=(msgspec.structs.replace(study.lines[0], spec=odd), study.lines[1]))
    server.files["/models/strange/study.json"] = msgspec.json.encode(public_study(strange))
    transport = HttpTransport(server.url)
    with pytest.raises(InvalidSettings, match="do not have the model 'no-such' of line 'main'"):
        asyncio.run(join_study(transport, "strange", FleetSettings(clients=1)))
    assert transport._session is None


@pytest.mark.parametrize(("compress", "packed"), [("none", ()), ("batches", ("batch",)), ("all", ("ping", "batch"))])
def test_bodies_are_packed_as_the_settings_say_and_counted_as_they_travel(
    server: FaultyServer, compress: str, packed: tuple[str, ...]
) -> None:
    body = b'{"a":[' + b"1," * 2000 + b"1]}"
    server.plan = lambda document_id, attempt: Answer()

    async def both(transport: HttpTransport) -> tuple[Outcome, BatchOutcome]:
        return await transport.submit(STUDY, DOCUMENT, body), await transport.submit_batch(STUDY, body)

    one, batch = over_http(server.url, both, compress=compress)  # type: ignore[arg-type]
    (attempt,) = server.attempts
    was_packed = attempt.headers.get("Content-Encoding") == "gzip"
    assert was_packed == ("ping" in packed)
    assert (gzip.decompress(attempt.body) if was_packed else attempt.body) == body
    assert one.posted_bytes == len(attempt.body) == int(attempt.headers["Content-Length"])
    assert (batch.outcome.posted_bytes < len(body)) == ("batch" in packed)


def test_a_small_body_is_never_packed(server: FaultyServer) -> None:
    assert submitted(server, Answer(), compress="all").posted_bytes == len(b'{"a":1}')  # type: ignore[arg-type]


def test_a_model_tells_the_bytes_in_which_it_came(server: FaultyServer) -> None:
    found = fetched(server)
    assert isinstance(found, Fetched)
    with urllib.request.urlopen(f"{server.url}/models/{STUDY}/main/latest.json") as answer:
        assert found.fetched_bytes == len(answer.read())
