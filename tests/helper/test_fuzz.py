"""Fuzzing of the helper: it never crashes, and answers only the leader's requests, once for each version."""

import hashlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec import msgpack

from fedping.helper.requests import Reply, reply
from fedping.protocol.sharing.exchange import AskedArm, Refused, Request, is_from
from fedping.protocol.sharing.keys import SIGNATURE_BYTES, identity_of, signature
from fedping.protocol.sharing.shares import WORDS, masks
from tests.support.effort import few_or_all
from tests.support.helping import HELPER, LEADER, NOW, WHEN, Counted, Helping, answer_in, clients_of, joined, numbers

INPUTS = few_or_all(1_000, 100_000)
CLIENTS, LEAST = 5, 3

JUNK: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 1.5, float("nan"), float("inf"), "", "treatment", "a b",
    "\x00", "x" * 100, b"", b"\x00", bytes(16), bytes(80), [], [[]], {}, {"a": 1}, [["treatment", b"", b"", b""]],
]  # fmt: skip


@pytest.fixture(scope="module")
def helping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helping]:
    made = joined(tmp_path_factory.mktemp("fuzzed") / "helper", min_batch=LEAST)
    with made.folder.records():  # kept open, because the last to close them flushes everything to disk
        yield made


class Row(NamedTuple):
    """The part of a client in a request."""

    document: bytes
    offer: bytes
    sealed: bytes


def rows_of(arm: AskedArm) -> list[Row]:
    return [
        Row(arm.documents[16 * i : 16 * i + 16], arm.offers[8 * i : 8 * i + 8], arm.sealed[80 * i : 80 * i + 80])
        for i in range(arm.clients)
    ]


def arm_of(name: str, rows: list[Row]) -> list[Any]:
    return [name, *(b"".join(column) for column in zip(*rows, strict=True))] if rows else [name, b"", b"", b""]


def document(version: int, arms: list[list[Any]]) -> dict[str, Any]:
    return {"study": "private", "line": "main", "version": version, "arms": arms, "made": WHEN, "format": 1}


def changed_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return bytes that were cut, grown, repeated or flipped."""
    made = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(made) + 1)
        match draw.randrange(5):
            case 0:
                del made[at:]
            case 1:
                made[at:at] = draw.randbytes(draw.randint(1, 20))
            case 2:
                made[at : at + 4] = draw.randbytes(4)
            case 3:
                made[at:at] = made[max(0, at - 50) : at]
            case _:
                if at < len(made):
                    made[at] ^= 1 << draw.randrange(8)
    return bytes(made)


def changed_members(draw: random.Random, request: dict[str, Any]) -> dict[str, Any]:
    """Return a request with some members replaced, removed or added."""
    made = {**request, "arms": [list(arm) for arm in request["arms"]]}
    for _ in range(draw.randint(1, 3)):
        match draw.randrange(5):
            case 0:
                made[draw.choice(list(request))] = draw.choice(JUNK)
            case 1:
                made.pop(draw.choice(list(request)), None)
            case 2:
                made[draw.choice(["verify_key", "weights", "", "offer"])] = draw.choice(JUNK)
            case _:
                arms = made.get("arms")
                if isinstance(arms, list) and arms and isinstance(arms[-1], list) and arms[-1]:
                    place = draw.randrange(len(arms[-1]))
                    old = arms[-1][place]
                    spoil = isinstance(old, bytes) and draw.random() < 0.7
                    arms[-1][place] = changed_bytes(draw, old) if spoil else draw.choice(JUNK)
    return made


def changed_clients(draw: random.Random, rows: list[Row], before: list[Row]) -> list[Row]:
    """Return a request's clients with some of them changed; ``before`` are the clients of another version."""
    made = list(rows)
    for _ in range(draw.randint(0, 3)):
        at = draw.randrange(len(made)) if made else 0
        match draw.randrange(7):
            case 0 if made:
                del made[at]
            case 1 if made:
                made.insert(at, draw.choice(made))
            case 2 if made:
                made[at] = made[at]._replace(sealed=changed_bytes(draw, made[at].sealed)[:80].ljust(80, b"\0"))
            case 3 if made:
                made[at] = made[at]._replace(sealed=draw.choice(rows + before).sealed)
            case 4:
                made.insert(at, draw.choice(before))
            case 5 if made:
                made[at] = made[at]._replace(offer=draw.randbytes(8))
            case _:
                draw.shuffle(made)
    return sorted(made) if draw.random() < 0.8 else made


@pytest.mark.thorough
@pytest.mark.timeout(3000)
def test_whatever_is_posted_is_refused_or_answered_as_it_should_be_and_once_a_version(helping: Helping) -> None:
    """Every answer is recomputed from the known seeds of the clients."""
    draw = random.Random(17)
    leader = identity_of(LEADER)
    before = rows_of(clients_of(helping, CLIENTS, version=10**9, first=10**9).rows)
    answered: dict[int, bytes] = {}
    reasons: dict[str, int] = {}
    counted: set[bytes] = set()
    for number in range(INPUTS):
        version, kind = draw.choice([number, max(0, number - 20)]), draw.randrange(10)
        honest = clients_of(helping, CLIENTS, version=version, first=CLIENTS * version).rows
        rows = rows_of(honest)
        if kind == 0:
            data = draw.randbytes(draw.randint(0, 300))
        elif kind == 1:
            data = draw.randbytes(SIGNATURE_BYTES) + msgpack.encode(draw.choice(JUNK))
        elif kind == 2:
            body = msgpack.encode(document(version, [arm_of("treatment", rows)]))
            data = changed_bytes(draw, signature(LEADER, "fedping request v1", body) + body)
        elif kind == 3:
            body = msgpack.encode(document(version, [arm_of("treatment", rows)]))
            data = signature(HELPER, "fedping request v1", body) + body
        else:
            request = document(version, [arm_of("treatment", changed_clients(draw, rows, before))])
            body = msgpack.encode(changed_members(draw, request) if kind < 6 else request)
            data = signature(LEADER, "fedping request v1", body) + body
        noise = Counted()
        reason, found = outcome(helping, data, noise)
        reasons[reason] = reasons.get(reason, 0) + 1
        if found is None:
            assert not noise.drawn
            continue
        assert is_from(data, Request, leader)
        request_ = msgpack.decode(data[SIGNATURE_BYTES:], type=Request)
        [arm], [said] = request_.arms, answer_in(found.data).arms
        assert found.version not in answered or answered[found.version] == found.data
        known = {hashlib.sha256(b"document %d" % n).digest()[:16]: n for n in _clients(found.version)}
        in_it = [row.document for place, row in enumerate(rows_of(arm)) if place not in said.refused]
        assert len(set(in_it)) == len(in_it) >= LEAST
        assert set(in_it) <= known.keys()
        total = WORDS.total(masks([hashlib.sha256(b"seed %d" % known[each]).digest() for each in in_it], 7))
        assert (numbers(said.total) == WORDS.plus(total, np.arange(1, 8, dtype=np.uint64))).all()
        if not found.again:
            assert noise.drawn == [(0.0, 7)]
            assert not counted & set(in_it)
            counted |= {row.document for row in rows_of(arm)}
        answered[found.version] = found.data
    with helping.folder.records() as records:
        assert records.answers(1) == len(answered) > INPUTS // 20
    expected = {"unreadable", "forged", "unknown", "too_few", "other_terms", "repeated", "answered"}
    assert expected <= reasons.keys(), reasons


def outcome(helping: Helping, data: bytes, noise: Counted) -> tuple[str, Reply | None]:
    """Return the reason why a request is rejected, or its reply."""
    try:
        return "", reply(helping.folder, data, NOW, noise=noise)
    except Refused as error:
        return error.reason, None


def _clients(version: int) -> range:
    return range(CLIENTS * version, CLIENTS * (version + 1))
