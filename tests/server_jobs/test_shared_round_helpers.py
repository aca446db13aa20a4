"""Requests to a helper over HTTP: bounded in bytes and time; every response becomes an answer or an error message."""

import socket
from pathlib import Path

import msgspec
import pytest

from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.sharing.exchange import Reason, Refusal, Refused, digest_of_signed
from fedping.server_jobs.round.helper_client import MOST_WHY, FileHelper, HelperUnavailable, HttpHelper
from tests.support.helper_server import Said, helper_server

REQUEST = bytes(range(256)) * 1000
MOST = 1000


def refusal(reason: Reason = "too_few", why: str = "too few") -> bytes:
    return msgspec.json.encode(Refusal(refused=reason, why=why))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedping.server_jobs.round.helper_client.POLL_SECONDS", 0.01)


def test_a_request_is_posted_as_it_is_and_the_answer_returned_as_it_came() -> None:
    with helper_server(None, Said(200, b"\0answer\xff")) as server:
        for url in (server.url, f"{server.url}/"):
            server.script = [Said(200, b"\0answer\xff")]
            assert HttpHelper(url).answer(REQUEST, MOST) == b"\0answer\xff"
    assert server.asked == [("POST", "/answers", REQUEST)] * 2


def test_a_helper_at_work_is_not_sent_the_request_once_more() -> None:
    busy = Said(202, b"{}", (("Retry-After", "0"),))
    with helper_server(None, busy, busy, busy, Said(200, b"answer")) as server:
        assert HttpHelper(server.url).answer(REQUEST, MOST) == b"answer"
    looked = ("GET", f"/answers/{digest_of_signed(REQUEST)}", b"")
    assert server.asked == [("POST", "/answers", REQUEST), looked, looked, looked]


def test_work_that_ends_in_a_refusal_is_asked_for_its_reason() -> None:
    with (
        helper_server(None, Said(202), Said(404, b"{}"), Said(422, refusal())) as server,
        pytest.raises(Refused, match="too few") as caught,
    ):
        HttpHelper(server.url).answer(REQUEST, MOST)
    assert caught.value.reason == "too_few"
    assert [method for method, _, _ in server.asked] == ["POST", "GET", "POST"]


def test_a_helper_that_is_at_work_for_long_is_left_to_it() -> None:
    with (
        helper_server(None, Said(202, b"", (("Retry-After", "3600"),))) as server,
        pytest.raises(HelperUnavailable, match=r"the helper at http://\S+ is still computing the answer"),
    ):
        HttpHelper(server.url).answer(REQUEST, MOST)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [301, 307, 401, 404, 500, 502, 503])
@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"refused":"nonsense","why":""}', b"\xff\xfe"])
def test_what_is_neither_answer_nor_refusal_is_waited_for(status: int, body: bytes) -> None:
    with (
        helper_server(None, Said(status, body, (("Location", "/elsewhere"),))) as server,
        pytest.raises(HelperUnavailable, match=f"answered with HTTP {status}"),
    ):
        HttpHelper(server.url).answer(REQUEST, MOST)
    assert len(server.asked) == 1


def test_a_refusals_words_are_bounded_and_cannot_move_a_terminal() -> None:
    with (
        helper_server(None, Said(409, refusal(why="\x1b[2Jno\n" + "x" * 9999))) as server,
        pytest.raises(Refused) as caught,
    ):
        HttpHelper(server.url).answer(REQUEST, MOST)
    told = str(caught.value)
    assert told.startswith(" [2Jno xxx")
    assert len(told) == MOST_WHY


def test_more_bytes_than_an_answer_can_have_are_no_answer() -> None:
    with helper_server(None, Said(200, bytes(MOST)), Said(200, bytes(MOST + 1))) as server:
        assert HttpHelper(server.url).answer(REQUEST, MOST) == bytes(MOST)
        with pytest.raises(FedpingError, match="with more than 1,000 bytes") as caught:
            HttpHelper(server.url).answer(REQUEST, MOST)
        assert not isinstance(caught.value, HelperUnavailable)


def test_a_refusal_without_end_is_cut_off() -> None:
    with helper_server(None, Said(409, bytes(10**6))) as server, pytest.raises(FedpingError, match="more than 65,536"):
        HttpHelper(server.url).answer(REQUEST, MOST)


def test_an_answer_that_drips_is_given_up() -> None:
    with (
        helper_server(None, Said(200, bytes(8), drip=0.05)) as server,
        pytest.raises(HelperUnavailable, match=r"did not answer within 0\.2 seconds"),
    ):
        HttpHelper(server.url, patience=0.2).answer(REQUEST, MOST)


def test_a_request_is_not_sent_on_once_its_time_is_over() -> None:
    with helper_server(None, Said(202)) as server:
        with pytest.raises(HelperUnavailable, match=r"did not answer|closed the connection"):
            HttpHelper(server.url, patience=-1.0).answer(REQUEST, MOST)
        assert REQUEST not in [body for _, _, body in server.asked], "at most the headers are sent"


def test_a_helper_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedping.server_jobs.round.helper_client.CONNECT_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        pytest.raises(HelperUnavailable, match=r"did not answer|can't reach .*, or it closed the connection"),
    ):
        HttpHelper(f"http://127.0.0.1:{deaf.getsockname()[1]}", patience=1.0).answer(bytes(10**7), MOST)


def test_a_helper_that_is_not_there_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    with pytest.raises(HelperUnavailable, match="can't reach"):
        HttpHelper(f"http://127.0.0.1:{port}").answer(REQUEST, MOST)


@pytest.mark.parametrize("url", ["", "helper", "ftp://helper", "http://", "http://[", "http://helper/?a=b", "/answers"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidSettings, match="is not a helper's address"):
        HttpHelper(url)


def test_a_file_is_an_answer_or_a_refusal_and_bounded(tmp_path: Path) -> None:
    file = tmp_path / "answer"
    with pytest.raises(FedpingError, match="No such file"):
        FileHelper(file).answer(REQUEST, MOST)
    file.write_bytes(b"\0answer")
    assert FileHelper(file).answer(REQUEST, MOST) == b"\0answer"
    file.write_bytes(bytes(MOST + 1))
    with pytest.raises(FedpingError, match="more than 1,000 bytes"):
        FileHelper(file).answer(REQUEST, MOST)
    file.write_bytes(refusal("too_old", "it is old"))
    with pytest.raises(Refused, match="it is old"):
        FileHelper(file).answer(REQUEST, MOST)
