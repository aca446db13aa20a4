"""What a helper answers adds up with the leader's shares to the sum of the vectors, and to nothing else."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.helper.answering import CLOCKS_APART, OLDEST, Key, arms_answered, check_age
from fedping.protocol.sharing import exchange
from fedping.protocol.sharing.exchange import AskedArm, Refused, Request
from fedping.protocol.sharing.offer import Offer, Seal, Terms, signed_offer
from fedping.protocol.sharing.ring import WORDS
from fedping.protocol.sharing.sealing import new_private_key, public_key, sealer
from fedping.protocol.sharing.shares import info_of, leader_shares, words_of
from fedping.protocol.sharing.signing import identity_of, signing_key
from fedping.server_jobs.privacy.noise import SystemNoise

HELPER, LEADER = signing_key(b"helper", "test"), signing_key(b"leader", "test")


@dataclass
class Counted:
    """Noise that counts how often it is drawn, and is 1, 2, 3, …"""

    drawn: list[tuple[float, int]] = field(default_factory=list)

    def integers(self, sigma: float, d: int) -> NDArray[np.int64]:
        self.drawn.append((sigma, d))
        return np.arange(1, d + 1)


def terms(d: int = 5, *, seal: Seal = "x25519", min_batch: int = 2, private: bytes | None = None) -> tuple[Terms, Key]:
    private = private or new_private_key(seal)
    made = Terms(
        helper=identity_of(HELPER),
        leader=identity_of(LEADER),
        study="study",
        line="main",
        arms=("treatment", "control"),
        numbers=d,
        sigma=0.0,
        min_batch=min_batch,
        proofs=False,
        seal=seal,
        key=public_key(seal, private).hex(),
        made="2026-01-01T00:00:00.000+00:00",
    )
    return made, Key(made, private)


def offer_of(made: Terms) -> Offer:
    return signed_offer(made, HELPER)


def keys_of(*keys: Key) -> dict[bytes, Key]:
    return {offer_of(key.terms).id: key for key in keys}


def document(number: int) -> UUID:
    return UUID(bytes=hashlib.sha256(b"document %d" % number).digest()[:16])


def asked(
    made: Terms, vectors: NDArray[np.int64], *, arm: str = "treatment", version: int = 3, first: int = 0, **info: Any
) -> tuple[AskedArm, NDArray[np.uint8]]:
    """Return an arm of a request, and the leader's shares in the same order; ``info`` is what clients bind wrongly."""
    k, d = vectors.shape
    offer = offer_of(made).id
    seal = sealer(made.seal, bytes.fromhex(made.key))
    seeds = [hashlib.sha256(b"seed %d" % (first + number)).digest() for number in range(k)]
    ids = [document(first + number) for number in range(k)]
    sealed = []
    for seed, id_ in zip(seeds, ids, strict=True):
        bound = {"study": made.study, "line": made.line, "version": version, "arm": arm, "document": id_, "d": d}
        sealed.append(seal(seed, info_of(**(bound | {"offer": offer} | info))))
    order = sorted(range(k), key=lambda number: ids[number].bytes)
    rows = AskedArm(
        arm=arm,
        documents=b"".join(ids[number].bytes for number in order),
        offers=offer * k,
        sealed=b"".join(sealed[number] for number in order),
    )
    return rows, leader_shares(vectors, seeds)[order]


def request(*arms: AskedArm, version: int = 3) -> Request:
    return Request(study="study", line="main", version=version, arms=arms, made="2026-01-01T00:00:00.000+00:00")


def numbers(total: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(total, "<u8").astype(np.uint64)


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
    both = WORDS.centred(WORDS.plus(WORDS.total(words_of(shares)), numbers(arm.total)))
    assert (both == vectors.sum(axis=0) + np.arange(1, d + 1)).all()
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
    assert (WORDS.plus(WORDS.total(words_of(shares)), numbers(arm.total)) == vectors.sum(axis=0)).all()


def test_more_masks_than_are_made_at_a_time() -> None:
    """Of 70,000 numbers a batch holds one mask."""
    made, key = terms(70_000)
    vectors = np.random.default_rng(1).integers(-1000, 1000, (5, 70_000))
    rows, shares = asked(made, vectors)
    [arm] = arms_answered(made, keys_of(key), request(rows), SystemNoise(), threads=2)
    both = WORDS.centred(WORDS.plus(WORDS.total(words_of(shares)), numbers(arm.total)))
    assert (both == vectors.sum(axis=0)).all()


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
    others = WORDS.total(words_of(shares[[0, 2, 3]]))
    assert (WORDS.plus(others, numbers(arm.total)) == 3).all()


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
    monkeypatch.setattr("fedping.helper.answering.MOST_CLIENTS", 3)
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
