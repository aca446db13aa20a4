"""Each network's rate is limited, no address is stored, and clients that share an address get through eventually."""

import heapq
import json
import random
import uuid
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedping.main import main
from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.application import environ_of
from fedping.server_jobs.ingest.prefixes import FORGET_EVERY, PrefixLimits, prefix_of, sender
from tests.support.ingest_app import PATH, ingest_app, make_store
from tests.support.ingest_server import running_ingest
from tests.support.pings import ping_json


class Clock:
    """A clock that a test advances."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Clock, rate: float = 10, burst: float = 20, **more: Any) -> PrefixLimits:
    return PrefixLimits(rate, burst, clock=clock, draws=random.Random(1), **more)


def taken(made: PrefixLimits, address: str, times: int = 1) -> int:
    """Return the number of admitted requests."""
    found = 0
    for _ in range(times):
        try:
            made.take({"REMOTE_ADDR": address})
        except Rejection:
            continue
        found += 1
    return found


def test_a_network_sends_at_its_rate_after_its_burst() -> None:
    clock = Clock()
    made = limits(clock)
    assert taken(made, "192.0.2.1", 50) == 20
    assert taken(made, "192.0.2.200", 50) == 0
    assert taken(made, "192.0.3.1", 50) == 20
    clock.now += 1
    assert taken(made, "192.0.2.7", 50) == 10
    clock.now += 1e4
    assert taken(made, "192.0.2.7", 50) == 20


def test_a_slow_rate_over_many_workers_still_lets_one_in_at_a_time() -> None:
    clock = Clock()
    made = limits(clock, rate=0.025, burst=0.75)
    assert taken(made, "192.0.2.1", 5) == 1
    clock.now += 40
    assert taken(made, "192.0.2.1", 5) == 1


def batch(made: PrefixLimits, address: str, lines: int) -> str:
    """Return the reason why a batch is rejected; "" if it is admitted."""
    try:
        made.take({"REMOTE_ADDR": address})
        made.take_more({"REMOTE_ADDR": address}, lines)
    except Rejection as rejection:
        return rejection.reason
    return ""


def test_a_batch_takes_a_token_a_line() -> None:
    clock = Clock()
    made = limits(clock)
    assert batch(made, "192.0.2.1", 15) == ""
    assert taken(made, "192.0.2.1", 50) == 5


def test_a_batch_takes_the_tokens_of_one_second_to_come_and_no_more() -> None:
    clock = Clock()
    made = limits(clock)
    assert taken(made, "192.0.2.1", 19) == 19
    assert batch(made, "192.0.2.1", 11) == ""
    assert taken(made, "192.0.2.1") == 0
    clock.now += 1.11
    assert taken(made, "192.0.2.1") == 1
    assert batch(made, "192.0.2.1", 12) == "too_many_pings"


def test_a_batch_beyond_what_a_network_may_ever_send_at_once_is_refused_and_costs_one_ping() -> None:
    clock = Clock()
    made = limits(clock)
    for _ in range(3):
        assert batch(made, "192.0.2.1", 100_000) == "too_many_lines"
    assert taken(made, "192.0.2.1", 50) == 17


def test_batches_of_a_neighbour_shut_nobody_out() -> None:
    """The same address tries 20 batches a second, each of the largest size that passes before others."""
    clock, draws, flood = Clock(), random.Random(2), -1
    made, longest = limits(clock, rate=5, burst=50), 0
    waiting = [(clock.now, flood), *((clock.now, client) for client in range(200))]
    while len(waiting) > 1:
        clock.now, client = heapq.heappop(waiting)
        if client == flood:
            batch(made, "198.51.100.7", 6)
            heapq.heappush(waiting, (clock.now + draws.expovariate(20), flood))
            continue
        try:
            made.take({"REMOTE_ADDR": "198.51.100.7"})
        except Rejection as rejection:
            longest = max(longest, rejection.retry_after or 0)
            heapq.heappush(waiting, (clock.now + (rejection.retry_after or 0), client))
        assert clock.now - 1000 < 3000
    assert longest <= 13


def test_refused_requests_do_not_empty_the_bucket() -> None:
    clock = Clock()
    made = limits(clock)
    taken(made, "192.0.2.1", 5000)
    clock.now += 2
    assert taken(made, "192.0.2.1", 5000) == 20


def test_a_flood_of_addresses_holds_up_hardly_anybody_else() -> None:
    clock = Clock()
    made = limits(clock, burst=2)
    for i in range(3000):
        taken(made, f"10.{i // 256}.{i % 256}.1", 4)
    assert sum(taken(made, f"203.{i // 256}.{i % 256}.1") for i in range(1000)) > 970


def test_whoever_has_a_whole_network_of_ipv6_holds_up_hardly_anybody_else() -> None:
    """All 65,536 /48s of a /32 send at their limit."""
    clock = Clock()
    made = limits(clock, rate=0.01, burst=1)
    let_in = 0
    for high in range(256):
        let_in += sum(taken(made, f"2001:db8:{high:x}{low:02x}::1") for low in range(256))
        clock.now += 0.1
    assert 64 <= let_in <= 64 + 0.64 * 25.6
    assert sum(taken(made, f"203.{i // 256}.{i % 256}.1") for i in range(1000)) > 990
    assert sum(taken(made, f"2a00:{i:x}:1::1") for i in range(1000)) > 990


def test_everything_is_forgotten_after_an_hour() -> None:
    clock = Clock()
    made = limits(clock, rate=0.001)
    assert taken(made, "192.0.2.1", 50) == 20
    clock.now += FORGET_EVERY
    assert taken(made, "192.0.2.1", 50) == 20


@pytest.mark.parametrize(
    ("address", "prefix"),
    [
        ("192.0.2.77", bytes([192, 0, 2])),
        ("::ffff:192.0.2.1", bytes([192, 0, 2])),
        ("2001:db8:1:2::3", bytes.fromhex("20010db80001")),
        ("fe80::1%eth0", bytes.fromhex("fe8000000000")),
        ("nonsense", b""),
        ("", b""),
    ],
)
def test_prefixes(address: str, prefix: bytes) -> None:
    assert prefix_of(address) == prefix


@pytest.mark.parametrize(
    ("socket", "header", "found"),
    [
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "1.1.1.1, unknown", "10.0.0.1"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.9:50123", "203.0.113.9"),
        ("10.0.0.1", "[2001:db8::5]:443, 10.0.0.2:80", "2001:db8::5"),
        ("10.0.0.1", "[2001:db8::5]", "2001:db8::5"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("[::1]", "2001:db8::5", "2001:db8::5"),
    ],
)
def test_only_the_operators_own_proxies_are_believed(socket: str, header: str | None, found: str) -> None:
    trusted = (ip_network("10.0.0.0/8"), ip_network("::1"))
    environ = {"REMOTE_ADDR": socket} | ({} if header is None else {"HTTP_X_FORWARDED_FOR": header})
    assert sender(environ, trusted) == found


def test_a_header_that_only_looks_like_the_proxys_is_not_believed() -> None:
    said = {"x-forwarded-for": "203.0.113.9", "x_forwarded_for": "198.51.100.1", "X_FORWARDED_FOR": "198.51.100.2"}
    scope = SimpleNamespace(
        server="127.0.0.1:8080",
        client="10.0.0.1:4711",
        method="POST",
        path="/submit/",
        query_string="",
        http_version="1.1",
        scheme="http",
        headers=said,
    )
    assert sender(environ_of(cast(Any, scope)), (ip_network("10.0.0.0/8"),)) == "203.0.113.9"


def test_ingest_answers_429_with_retry_after_and_keeps_no_address(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    services = replace(ingest.services, prefixes=limits(Clock(), rate=0.01, burst=3))
    ingest.app.submit._services = services
    answers = [
        ingest.client.post(
            f"{PATH}/{uuid.uuid4()}",
            data=json.dumps(ping_json()).encode(),
            environ_overrides={"REMOTE_ADDR": "203.0.113.77"},
        )
        for _ in range(5)
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert all(int(answer.headers["Retry-After"]) >= 100 for answer in answers[3:])
    assert all(answer.headers["Access-Control-Expose-Headers"] == "Retry-After" for answer in answers[3:])
    assert "Retry-After" not in answers[0].headers
    assert ingest.totals()["rejected.too_many_pings"] == 2
    services.rejections.flush()
    ingest.land()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"203.0.113" in data or bytes([203, 0, 113, 77]) in data for data in written)


def test_a_batch_of_empty_lines_is_refused_and_its_neighbours_go_on(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    services = replace(ingest.services, prefixes=limits(Clock(), rate=10, burst=20))
    ingest.app.submit._services = services

    def answer(path: str, body: bytes, address: str) -> tuple[int, bytes]:
        got = ingest.client.post(path, data=body, environ_overrides={"REMOTE_ADDR": address})
        return got.status_code, got.data

    status, said = answer(PATH, b"\n" * 99_999, "203.0.113.1")
    assert status == 413
    assert b"more lines than the maximum of 20 for one network" in said
    two = b"\n".join(json.dumps({"documentId": str(uuid.uuid4()), **ping_json()}).encode() for _ in range(2))
    assert answer(PATH, two, "203.0.113.2")[0] == 200
    assert answer(f"{PATH}/{uuid.uuid4()}", json.dumps(ping_json()).encode(), "203.0.113.3")[0] == 200
    status, said = answer(PATH, b"\n".join([two] * 10), "203.0.113.1")
    assert status == 200  # 16 are available, and 10 may be borrowed from the next second
    status, said = answer(PATH, two, "203.0.113.1")
    assert status == 429
    assert b"sends too many pings" in said


def test_a_proxy_that_would_be_the_only_network_is_told_at_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store")
    for options, told in (((), True), (("--trusted-proxy", "127.0.0.1"), False)):
        with running_ingest(tmp_path / "store", tmp_path / "landing", "--prefix-rate", "5", *options):
            pass
        assert ("--trusted-proxy 127.0.0.1" in capfd.readouterr().out) is told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trusted-proxy", "10.0.0.0/8"], "needs --prefix-rate"),
        (["--prefix-rate", "5", "--trusted-proxy", "nonsense"], "give an address, or a network"),
        (["--prefix-rate", "5", "--trusted-proxy", "10.0.0.1/8"], "give an address, or a network"),
        (["--prefix-rate", "5", "--trusted-proxy", "::/0"], "can't include all addresses"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ingest", "--store", str(tmp_path), "--landing", str(tmp_path / "landing"), *options]) == 2
    assert said in capsys.readouterr().err
