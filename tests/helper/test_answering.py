"""A helper's answer and the leader's shares add up to exactly the sum of the vectors."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fedping.helper.aggregate import CLOCKS_APART, OLDEST, Key, arms_answered, check_age
from fedping.protocol.sharing import exchange
from fedping.protocol.sharing.exchange import AskedArm, Refused, Request
from fedping.protocol.sharing.offer import Terms
from fedping.server_jobs.privacy.noise import SystemNoise
from tests.support.helping import WHEN, Counted, asked, combined, document, keys_of, terms


def request(*arms: AskedArm, version: int = 3) -> Request:
    return Request(study="study", line="main", version=version, arms=arms, made=WHEN)


def refused(terms_: Terms, keys: dict[bytes, Key], what: Request) -> str:
    noise = Counted()
    with pytest.raises(Refused) as raised:
        arms_answered(terms_, keys, what, noise)
    assert not noise.drawn
    assert str(raised.value)
    return raised.value.reason


@settings(max_examples=25)
@given(k=st.integers(2, 12), d=st.integers(1, 40), threads=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_both_sums_together_are_the_sum_of_the_vectors_and_the_noise(k: int, d: int, threads: int, seed: int) -> None:
    made, key = terms(d)
    vectors = np.random.default_rng(seed).integers(-(2**24), 2**24, (k, d))
    rows, shares = asked(made, vectors)
    noise = Counted()
    [arm] = arms_answered(made, keys_of(key), request(rows), noise, threads)
    assert (combined(shares, arm) == vectors.sum(axis=0) + np.arange(1, d + 1)).all()
    assert arm.refused == ()
    assert noise.drawn == [(made.sigma, d)]


def test_arms_keep_the_requests_order_and_have_noise_of_their_own() -> None:
    made, key = terms(3)
    one, two = (asked(made, np.full((2, 3), n), arm=arm, first=10 * n) for n, arm in ((1, "control"), (2, "treatment")))
    noise = Counted()
    found = arms_answered(made, keys_of(key), request(one[0], two[0]), noise)
    assert [arm.arm for arm in found] == ["control", "treatment"]
    assert noise.drawn == [(0.0, 3)] * 2


def test_shares_sealed_also_against_quantum_computers_are_opened() -> None:
    made, key = terms(4, seal="mlkem768-x25519")
    vectors = np.arange(12).reshape(3, 4)
    rows, shares = asked(made, vectors)
    [arm] = arms_answered(made, keys_of(key), request(rows), SystemNoise())
    assert (combined(shares, arm) == vectors.sum(axis=0)).all()


def test_more_masks_than_are_made_at_a_time() -> None:
    """With 70,000 numbers, a batch has one mask."""
    made, key = terms(70_000)
    vectors = np.random.default_rng(1).integers(-1000, 1000, (5, 70_000))
    rows, shares = asked(made, vectors)
    [arm] = arms_answered(made, keys_of(key), request(rows), SystemNoise(), threads=2)
    assert (combined(shares, arm) == vectors.sum(axis=0)).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"study": "other"},
        {"line": "other"},
        {"version": 4},
        {"arm": "control"},
        {"document": document(99)},
        {"d": 6},
        {"offer": bytes(8)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_share_that_belongs_to_something_else_is_left_out_and_its_place_told(wrong: dict[str, Any]) -> None:
    made, key = terms(5)
    good, shares = asked(made, np.ones((4, 5), np.int64))
    bad, _ = asked(made, np.ones((4, 5), np.int64), **wrong)
    mixed = replace(good, sealed=good.sealed[:80] + bad.sealed[80:160] + good.sealed[160:])
    [arm] = arms_answered(made, keys_of(key), request(mixed), SystemNoise())
    assert arm.refused == (1,)
    assert (combined(shares, arm) == 3).all()


def _spoilt(rows: AskedArm, place: int, spoil: Callable[[bytes], bytes]) -> AskedArm:
    start = 80 * place
    return replace(
        rows, sealed=rows.sealed[:start] + spoil(rows.sealed[start : start + 80]) + rows.sealed[start + 80 :]
    )


@pytest.mark.parametrize("spoil", [lambda _: bytes(80), lambda _: b"\xff" * 80, lambda row: row[:-1] + b"x"])
def test_garbage_is_left_out(spoil: Callable[[bytes], bytes]) -> None:
    made, key = terms()
    rows, _ = asked(made, np.ones((5, 5), np.int64))
    [arm] = arms_answered(made, keys_of(key), request(_spoilt(_spoilt(rows, 0, spoil), 4, spoil)), SystemNoise())
    assert arm.refused == (0, 4)


def test_shares_for_a_key_that_is_gone_or_for_other_promises_are_left_out() -> None:
    made, key = terms(min_batch=2)
    older, older_key = terms(min_batch=2)
    weaker, weaker_key = terms(min_batch=3)
    parts = [asked(each, np.ones((2, 5), np.int64), first=10 * n)[0] for n, each in enumerate((made, older, weaker))]
    rows = sorted(
        (part.documents[16 * i : 16 * i + 16], part.offers[:8], part.sealed[80 * i : 80 * i + 80], n)
        for n, part in enumerate(parts)
        for i in range(2)
    )
    together = AskedArm(
        arm="treatment",
        documents=b"".join(row[0] for row in rows),
        offers=b"".join(row[1] for row in rows),
        sealed=b"".join(row[2] for row in rows),
    )
    [arm] = arms_answered(made, keys_of(key, older_key, weaker_key), request(together), SystemNoise())
    assert arm.refused == tuple(place for place, row in enumerate(rows) if row[3] == 2)
    [arm] = arms_answered(made, keys_of(key), request(together), SystemNoise())
    assert arm.refused == tuple(place for place, row in enumerate(rows) if row[3] > 0)


def test_too_few_that_can_be_opened_are_refused_without_a_draw() -> None:
    made, key = terms(min_batch=4)
    rows, _ = asked(made, np.ones((4, 5), np.int64))
    other, _ = asked(made, np.ones((4, 5), np.int64), arm="control", first=10)
    assert refused(made, keys_of(key), request(other, _spoilt(rows, 2, lambda _: bytes(80)))) == "too_few"
    assert refused(made, {}, request(rows)) == "too_few"


def test_a_request_that_is_none_for_the_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made, key = terms(min_batch=3)
    rows, _ = asked(made, np.ones((4, 5), np.int64))
    keys = keys_of(key)
    again = replace(rows, arm="control")
    short, _ = asked(made, np.ones((2, 5), np.int64))
    swapped = replace(rows, documents=rows.documents[16:32] + rows.documents[:16] + rows.documents[32:])
    twice = replace(rows, documents=rows.documents[:16] * 2 + rows.documents[32:])
    found = {
        "unknown": [replace(request(rows), study="other"), replace(request(rows), line="other")],
        "unreadable": [
            request(),
            request(rows, rows),
            request(swapped),
            request(replace(rows, documents=rows.documents[:-1])),
            request(replace(rows, offers=rows.offers + b"x")),
        ],
        "other_terms": [
            request(replace(rows, arm="third")),
            request(replace(rows, sealed=rows.sealed[:-1])),
            request(replace(rows, public=b"x")),
            request(replace(rows, prepared=b"x")),
            replace(request(rows), verify_key=b"x"),
        ],
        "too_few": [request(short), request(rows, replace(rows, arm="control", documents=b"", offers=b"", sealed=b""))],
        "repeated": [request(twice), request(rows, again)],
    }
    for reason, requests in found.items():
        for each in requests:
            assert refused(made, keys, each) == reason
    assert refused(replace(made, proofs=True), keys, request(rows)) == "other_terms"
    monkeypatch.setattr("fedping.helper.aggregate.MOST_CLIENTS", 3)
    assert exchange.MOST_CLIENTS == 1_000_000
    assert refused(made, keys, request(rows)) == "too_many"


def test_a_request_may_be_as_old_as_a_weekend_is_long_and_not_from_tomorrow() -> None:
    made, _ = terms()
    rows, _ = asked(made, np.ones((2, 5), np.int64))
    now = datetime(2026, 1, 8, tzinfo=UTC)

    def reason(time: str) -> str | None:
        try:
            check_age(replace(request(rows), made=time), now)
        except Refused as error:
            return error.reason
        return None

    second = timedelta(seconds=1)
    assert reason((now - OLDEST).isoformat()) is None
    assert reason((now - OLDEST - second).isoformat()) == "too_old"
    assert reason((now + CLOCKS_APART).isoformat()) is None
    assert reason((now + CLOCKS_APART + second).isoformat()) == "from_the_future"
    for time in ("", "soon", "2026-01-08T00:00:00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"):
        assert reason(time) in ("unreadable", "too_old", "from_the_future")
    assert reason("2026-01-08T00:00:00") == "unreadable"
