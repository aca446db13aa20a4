"""A fleet's outbox retries pings as the same document with growing waits, within the limit, and counts all."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.client import OutgoingPing
from fedping.client_sim.fleet import Backoff, Delivery, Outcome, Transport
from fedping.client_sim.fleet.exchange import Connection, Outbox, Sleep
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.transport import ACCEPTED
from fedping.protocol.errors import InvalidSettings
from tests.support.faulty_server import ANSWER_LOST, CUT_SHORT, DROPPED, LANDED, Answer, faulty_server, refusal
from tests.support.fleets import REJECTED, RETRY, STUDY, PlannedTransport, fleet_study
from tests.support.virtual_time import in_virtual_time

PATIENT = Backoff(first=1, factor=2, longest=1000, attempts=8)


def pings(count: int, *, twice: bool = False) -> list[OutgoingPing]:
    return [OutgoingPing(UUID(int=i), f'{{"ping":{i}}}'.encode(), twice) for i in range(count)]


def outbox_to(
    transport: Transport, *, backoff: Backoff = PATIENT, at_once: int = 8, sleep: Sleep = asyncio.sleep, seed: int = 1
) -> Outbox:
    connection = Connection(transport=transport, study=STUDY, random=Random(seed), at_once=at_once, sleep=sleep)
    return Outbox(connection, backoff)


class Slept:
    """A sleep function that returns at once and records the requested waits."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


def check_balance(outbox: Outbox) -> None:
    counts = outbox.counts
    assert counts.accepted + counts.rejected.total() + outbox.undelivered == counts.generated


# The waits


@given(
    first=st.floats(0, 10),
    factor=st.floats(1, 1000),
    longest=st.floats(10, 1e6),
    failures=st.integers(1, 10_000),
    uniform=st.floats(0, 1, exclude_max=True),
    asked=st.none() | st.floats(0, 1e9),
)
def test_a_wait_is_bounded_and_never_shorter_than_the_server_asked(
    first: float, factor: float, longest: float, failures: int, uniform: float, asked: float | None
) -> None:
    wait = Backoff(first=first, factor=factor, longest=longest).wait(failures, uniform, asked)
    assert wait >= (asked or 0)
    assert first / 2 <= wait <= max(longest, (asked or 0) + first)


@given(
    first=st.floats(0.01, 10),
    factor=st.floats(2, 50),
    uniforms=st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=20),
)
def test_waits_grow(first: float, factor: float, uniforms: list[float]) -> None:
    backoff = Backoff(first=first, factor=factor, longest=float("inf"))
    waits = [backoff.wait(failures, uniform, None) for failures, uniform in enumerate(uniforms, 1)]
    assert all(after >= before for before, after in pairwise(waits))


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": -1},
        {"first": float("nan")},
        {"first": 9, "longest": 8},
        {"factor": 0.9},
        {"factor": 1e9},
        {"attempts": 0},
    ],
)
def test_a_back_off_that_cannot_be_meant_is_told(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSettings, match="0 <= first <= longest"):
        Backoff(**wrong)  # type: ignore[arg-type]


# Against a real server


def sent_to_faulty_server(
    answers: Sequence[Answer], count: int = 12, *, twice: bool = False, at_once: int = 8
) -> tuple[Outbox, Slept, dict[UUID, list[bytes]], Counter[UUID]]:
    """Answer each document's attempts with these answers in order, the last one repeatedly, and return the outcomes."""
    slept = Slept()
    with faulty_server(fleet_study()) as server:
        server.plan = lambda document, attempt: answers[min(attempt, len(answers) - 1)]

        async def go() -> Outbox:
            transport = HttpTransport(server.url)
            outbox = outbox_to(transport, sleep=slept, at_once=at_once)
            outbox.add(pings(count, twice=twice))
            await outbox.deliver()
            await transport.close()
            return outbox

        outbox = asyncio.run(go())
    bodies: dict[UUID, list[bytes]] = {}
    for attempt in server.attempts:
        bodies.setdefault(attempt.document_id, []).append(attempt.body)
    check_balance(outbox)
    return outbox, slept, bodies, server.landings


@pytest.mark.parametrize("fault", [refusal(503), refusal(429), refusal(500, "oh"), DROPPED], ids=str)
def test_a_retry_carries_the_same_document_and_the_same_bytes(fault: Answer) -> None:
    outbox, _, bodies, landings = sent_to_faulty_server([fault, fault, fault, LANDED])
    assert {ping.document_id: [ping.body] * 4 for ping in pings(12)} == bodies
    assert landings == Counter(list(bodies))
    assert outbox.counts.accepted == 12
    assert outbox.counts.retries.total() == 36


@pytest.mark.parametrize("fault", [ANSWER_LOST, CUT_SHORT], ids=str)
def test_a_lost_answer_is_asked_for_again_under_the_id_by_which_the_server_knows_it(fault: Answer) -> None:
    outbox, _, _, landings = sent_to_faulty_server([fault, LANDED])
    assert landings == Counter({ping.document_id: 2 for ping in pings(12)})
    assert (outbox.counts.accepted, outbox.undelivered) == (12, 0)


def test_back_off_doubles_and_differs_from_client_to_client() -> None:
    _, slept, _, _ = sent_to_faulty_server([refusal(503)] * 4 + [LANDED], count=1)
    assert all(2**k / 2 <= seconds <= 2**k for k, seconds in enumerate(slept.seconds))
    assert len(slept.seconds) == 4
    _, many, _, _ = sent_to_faulty_server([refusal(503), LANDED], count=12)
    assert len(set(many.seconds)) == 12


@pytest.mark.parametrize("status", [429, 503])
def test_nobody_comes_back_before_the_server_asked_nor_all_at_the_same_moment(status: int) -> None:
    outbox, slept, _, _ = sent_to_faulty_server([refusal(status, Retry_After="90"), LANDED])
    assert all(90 <= seconds <= 90 + PATIENT.first for seconds in slept.seconds)
    assert len(set(slept.seconds)) == outbox.counts.accepted == 12


def test_what_is_refused_for_good_is_counted_by_reason_and_never_sent_again() -> None:
    reasons = ["the update has 3 numbers and the model 22 weights; send 22", "unknown arm"]
    with faulty_server(fleet_study()) as server:
        server.plan = lambda document, attempt: refusal(400, reasons[document.int % 3 == 0])

        async def go() -> Outbox:
            transport = HttpTransport(server.url)
            outbox = outbox_to(transport, sleep=Slept())
            outbox.add(pings(12, twice=True))
            await outbox.deliver()
            await outbox.deliver()
            await transport.close()
            return outbox

        counts = asyncio.run(go()).counts
    assert counts.rejected == {f"400 {reasons[0]}": 8, f"400 {reasons[1]}": 4}
    assert len(server.attempts) == 12
    assert (counts.accepted, counts.retries.total(), counts.duplicates) == (0, 0, 0)


@pytest.mark.parametrize("at_once", [1, 2, 7, 16])
def test_no_more_requests_than_allowed_are_under_way_and_as_many_as_allowed(at_once: int) -> None:
    with faulty_server(fleet_study()) as server:
        server.meet = at_once
        server.plan = lambda document, attempt: LANDED if attempt else refusal(503)

        async def go() -> None:
            transport = HttpTransport(server.url)
            outbox = outbox_to(transport, at_once=at_once, sleep=Slept())
            outbox.add(pings(80, twice=True))
            await outbox.deliver()
            await transport.close()

        asyncio.run(go())
    assert len(server.attempts) == 240
    assert server.most_at_once == at_once


def test_a_ping_that_is_sent_twice_counts_once() -> None:
    outbox, _, bodies, landings = sent_to_faulty_server([LANDED], twice=True)
    assert (outbox.counts.accepted, outbox.counts.duplicates) == (12, 12)
    assert bodies == {ping.document_id: [ping.body] * 2 for ping in pings(12)}
    assert set(landings.values()) == {2}  # ingest lands it once, which other tests show with a real ingest


# In virtual time


def test_who_is_put_aside_is_sent_again_in_the_next_delivery_with_the_same_id() -> None:
    transport = PlannedTransport(plan=lambda document, attempt: RETRY if attempt < 11 else ACCEPTED)
    outbox = outbox_to(transport)
    outbox.add(pings(3))
    in_virtual_time(outbox.deliver())
    assert (outbox.undelivered, len(transport.sent)) == (3, 3 * PATIENT.attempts)
    assert outbox.counts.retries == {"HTTP 503": 3 * (PATIENT.attempts - 1)}
    in_virtual_time(outbox.deliver())
    assert (outbox.undelivered, outbox.counts.accepted) == (0, 3)
    assert Counter(sent.document_id for sent in transport.sent) == {ping.document_id: 12 for ping in pings(3)}


def test_who_was_asked_to_stay_away_for_long_is_not_sent_before() -> None:
    closed_until = 5000.0
    transport = PlannedTransport()

    def plan(document: UUID, attempt: int) -> Outcome:
        left = closed_until - asyncio.get_running_loop().time()
        return Outcome(Delivery.RETRY, "HTTP 503", left) if left > 0 else ACCEPTED

    transport.plan = plan

    async def go() -> Outbox:
        outbox = outbox_to(transport)
        outbox.add(pings(4))
        for _ in range(5):
            await outbox.deliver()
            assert outbox.undelivered == 4
            await asyncio.sleep(1000)
        await outbox.deliver()
        check_balance(outbox)
        return outbox

    outbox = in_virtual_time(go())
    assert (outbox.undelivered, outbox.counts.accepted) == (0, 4)
    assert [sent.at for sent in transport.sent] == [0.0] * 4 + [closed_until] * 4


def test_pings_begin_over_the_whole_time_given_and_wait_only_for_a_place() -> None:
    transport = PlannedTransport()
    outbox = outbox_to(transport, at_once=50)
    outbox.add(pings(400))
    in_virtual_time(outbox.deliver(within=100))
    moments = [sent.at for sent in transport.sent]
    assert all(70 < n < 130 for n in Counter(int(at // 25) for at in moments).values())
    assert 0 <= moments[0] < moments[-1] <= 100
    assert len(set(moments)) == 400


def test_a_slow_server_does_not_stretch_the_time_between_those_who_wait() -> None:
    """A ping without a free slot is sent as soon as one is free, not after another wait."""
    quick, slow = PlannedTransport(), PlannedTransport()
    slow.takes = 7
    for transport in (quick, slow):
        outbox = outbox_to(transport, at_once=1)
        outbox.add(pings(30))
        in_virtual_time(outbox.deliver(within=150))
    free = 0.0
    for planned, begun in zip((sent.at for sent in quick.sent), (sent.at for sent in slow.sent), strict=True):
        assert begun == pytest.approx(max(planned, free))
        free = begun + slow.takes


# All orders of answers

OUTCOMES = st.sampled_from([ACCEPTED, RETRY, REJECTED, Outcome(Delivery.RETRY, "HTTP 429", 40.0)])


@given(
    count=st.integers(0, 12),
    plan=st.lists(OUTCOMES, min_size=1, max_size=23),
    twice=st.booleans(),
    at_once=st.integers(1, 4),
    stop_after=st.none() | st.floats(0, 120),
    takes=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 3),
)
@settings(max_examples=250, deadline=None)
def test_accepted_rejected_and_undelivered_are_all_at_any_moment(
    count: int, plan: list[Outcome], twice: bool, at_once: int, stop_after: float | None, takes: float, seed: int
) -> None:
    told: dict[UUID, list[Delivery]] = {}

    def answer(document: UUID, attempt: int) -> Outcome:
        check_balance(outbox)
        outcome = plan[(document.int * 5 + attempt) % len(plan)]
        told.setdefault(document, []).append(outcome.delivery)
        return outcome

    async def sleep(seconds: float) -> None:
        check_balance(outbox)
        await asyncio.sleep(seconds)
        check_balance(outbox)

    transport = PlannedTransport(plan=answer)
    transport.takes = takes
    outbox = outbox_to(transport, backoff=Backoff(attempts=3, longest=50), at_once=at_once, sleep=sleep, seed=seed)

    async def go() -> None:
        for batch in (pings(count, twice=twice), [OutgoingPing(UUID(int=100 + i), b"") for i in range(count)]):
            outbox.add(batch)
            check_balance(outbox)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(outbox.deliver(within=20), stop_after)
            check_balance(outbox)

    in_virtual_time(go())
    final = [next((told for told in history if told is not Delivery.RETRY), None) for history in told.values()]
    assert outbox.counts.generated == 2 * count
    assert outbox.counts.accepted == final.count(Delivery.ACCEPTED)
    assert outbox.counts.rejected.total() == final.count(Delivery.REJECTED)
    assert transport.most_at_once <= at_once
    for document, history in told.items():
        again = history[history.index(Delivery.REJECTED) + 1 :] if Delivery.REJECTED in history else []
        assert again == []
        accepted = history.index(Delivery.ACCEPTED) if Delivery.ACCEPTED in history else len(history)
        assert len(history[accepted + 1 :]) <= (twice and document.int < 100)
