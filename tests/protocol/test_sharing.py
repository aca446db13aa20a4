"""The agreements of clients, leader and helper: arithmetic of shares, votes as bits, offers, and signatures."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import SharedVector
from fedping.protocol.privacy import METRICS
from fedping.protocol.sharing.exchange import (
    Answer,
    AnsweredArm,
    AskedArm,
    Request,
    digest_of_signed,
    is_from,
    read_signed,
    signed,
)
from fedping.protocol.sharing.keys import (
    OVERHEAD,
    Seal,
    identity_of,
    new_private_key,
    opener,
    public_key,
    sealer,
    signing_key,
)
from fedping.protocol.sharing.offer import Offer, Terms, signed_offer, terms_of
from fedping.protocol.sharing.shares import (
    PRIME,
    WORDS,
    Ring,
    Votes,
    bits_of,
    layout,
    leader_shares,
    loss_weights,
    masks,
    numbers_from,
    words_of,
)
from fedping.protocol.sharing.terms import agreed, terms_for
from fedping.protocol.study import Line, Study
from fedping.protocol.update import longest_payload
from tests.support.links import line_with

HELPER, LEADER, OTHER = (signing_key(bytes([n]) * 32, "test") for n in range(3))
NOW = "2026-11-23T09:00:00.000+00:00"

whole = some.integers(-(2**61), 2**61)
rings = pytest.mark.parametrize("ring", [WORDS, PRIME])


def pairs() -> some.SearchStrategy[NDArray[np.int64]]:
    return arrays.arrays(np.int64, some.tuples(some.just(2), some.integers(1, 8)), elements=whole)


@rings
@given(pair=pairs())
def test_elements_add_up_and_come_back_as_the_whole_numbers_that_they_were(ring: Ring, pair: NDArray[np.int64]) -> None:
    a, b = pair
    assert (ring.centred(ring.of(a)) == a).all()
    assert (ring.centred(ring.plus(ring.of(a), ring.of(b))) == a + b).all()
    assert (ring.centred(ring.minus(ring.of(a), ring.of(b))) == a - b).all()
    assert (ring.total(ring.of(pair)) == ring.plus(ring.of(a), ring.of(b))).all()


@rings
def test_a_sum_is_that_of_pythons_whole_numbers_wherever_it_wraps(ring: Ring) -> None:
    rows = np.random.default_rng(1).integers(0, ring.modulus, (1000, 5), np.uint64)
    rows[:3] = ring.modulus - 1
    wanted = [sum(column) % ring.modulus for column in rows.T.tolist()]
    assert ring.total(rows).tolist() == wanted
    halves = ring.plus(ring.total(rows[:400]), ring.total(rows[400:]))
    assert halves.tolist() == wanted


def test_shares_add_up_to_the_vectors() -> None:
    vectors = np.random.default_rng(2).integers(-(2**24), 2**24, (50, 25))
    seeds = [os.urandom(32) for _ in vectors]
    shares = words_of(leader_shares(vectors, seeds))
    assert (WORDS.centred(WORDS.plus(shares, masks(seeds, 25))) == vectors).all()
    total = WORDS.plus(WORDS.total(shares), WORDS.total(masks(seeds, 25)))
    assert (WORDS.centred(total) == vectors.sum(axis=0)).all()


@pytest.mark.parametrize("metric", range(1, 200))
def test_bits_of_a_loss_come_to_every_loss_that_there_is_and_to_none_beyond(metric: int) -> None:
    weights = loss_weights(metric)
    assert sum(weights) == metric
    assert 2 ** len(weights) >= metric + 1
    m = 1
    losses = np.arange(metric + 1)
    vectors = np.zeros((len(losses), m + 3), np.int64)
    vectors[:, m], vectors[:, m + 1] = metric, losses
    bits = bits_of(Votes(m + 3, metric), vectors)
    assert (bits[:, 2:-1] @ np.array(weights) == losses).all()


@given(seed=some.integers(0, 2**32), clients=some.integers(1, 40), m=some.integers(1, 9), metric=some.integers(1, 150))
def test_votes_as_bits_come_to_the_same_sums_as_the_vectors_also_from_shares(
    seed: int, clients: int, m: int, metric: int
) -> None:
    rng = np.random.default_rng(seed)
    as_bits = Votes(m + 3, metric)
    votes, losses = 64 * rng.integers(-1, 2, (clients, m)), rng.integers(0, metric + 1, clients)
    tops = metric * rng.integers(0, 2, clients)
    vectors = np.column_stack([votes, np.full(clients, metric), losses, tops])
    bits = bits_of(as_bits, vectors)
    assert bits.shape == (clients, as_bits.bits)
    mask = rng.integers(0, PRIME.modulus, bits.shape, np.uint64)
    leader = PRIME.total(PRIME.minus(bits.astype(np.uint64), mask))
    ours, theirs = numbers_from(as_bits, leader, clients), numbers_from(as_bits, PRIME.total(mask), 0)
    assert (PRIME.centred(PRIME.plus(ours, theirs)) == vectors.sum(axis=0)).all()


@pytest.mark.parametrize("seal", ["x25519", "mlkem768-x25519"])
def test_what_is_sealed_opens_with_its_key_and_its_words_alone(seal: str) -> None:
    private, another = new_private_key(seal), new_private_key(seal)  # type: ignore[arg-type]
    seals = sealer(seal, public_key(seal, private))  # type: ignore[arg-type]
    sealed = seals(b"s" * 32, b"this ping")
    assert len(sealed) == 32 + OVERHEAD[seal]  # type: ignore[index]
    assert len(sealed) == layout(25, seal).sealed  # type: ignore[arg-type]
    opens = opener(seal, private)  # type: ignore[arg-type]
    assert opens(sealed, b"this ping") == b"s" * 32
    assert opens(sealed, b"another ping") is None
    assert opener(seal, another)(sealed, b"this ping") is None  # type: ignore[arg-type]
    for odd in (b"", sealed[:-1], sealed + b"\0", bytes(len(sealed)), b"\xff" * len(sealed)):
        assert opens(odd, b"this ping") is None
    with pytest.raises(InvalidSettings, match="none of"):
        sealer(seal, public_key(seal, private)[1:])  # type: ignore[arg-type]


def a_study(change: Callable[[dict[str, Any]], None] = lambda each: None) -> Study:
    line = {
        "name": "shares",
        "spec": {
            "name": "two",
            "model": "linear",
            "weights": [{"name": name, "start": 0, "step": {"start": 1, "min": 1, "max": 2}} for name in ("a", "b")],
        },
        "privacy": {
            "shared": {"helper": identity_of(HELPER), "min_batch": 10},
            "central": {"epsilon": 1, "delta": 1e-6, "rounds": 9, "population": 1000, "noise_multiplier": 2.0},
        },
    }
    change(line)
    return msgspec.convert(
        {
            "name": "study",
            "pings": "private-update",
            "arms": [{"name": "all", "share": 1, "line": "shares", "applies": True, "submits": True}],
            "lines": [line],
        },
        Study,
    )


def an_offer(made_for: Study, key_of: object = HELPER, **changes: object) -> Offer:
    public = public_key("x25519", b"k" * 32)
    terms = terms_for(made_for, made_for.lines[0], identity_of(LEADER), public, NOW)
    return signed_offer(msgspec.structs.replace(terms, **changes), key_of)  # type: ignore[arg-type]


def test_an_offer_is_agreed_that_the_helper_has_signed_for_the_line_as_it_is() -> None:
    study = a_study()
    terms = agreed(an_offer(study), study, study.lines[0])
    frame_norm = (2 * 64**2 + 3 * round(64 * 2**0.5 / 4) ** 2) ** 0.5
    assert (terms.numbers, terms.min_batch, terms.arms) == (5, 10, ("all",))
    assert terms.sigma == pytest.approx(2 * frame_norm)
    assert agreed(an_offer(study, sigma=terms.sigma + 1), study, study.lines[0]).sigma > terms.sigma
    assert agreed(an_offer(study, min_batch=11), study, study.lines[0]).min_batch == 11


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"study": "another"}, "'study'"),
        ({"line": "another"}, "'line'"),
        ({"arms": ("some",)}, "'arms'"),
        ({"numbers": 6}, "'numbers'"),
        ({"sigma": 3.0}, "noise"),
        ({"promise": None}, "guarantee is none, and the study has epsilon 1 and delta 1e-06 for 9 rounds, with"),
        ({"min_batch": 9}, "'min_batch'"),
        ({"proofs": True}, "'proofs'"),
        ({"metric": 7}, "'metric'"),
        ({"seal": "mlkem768-x25519"}, "'seal'"),
        ({"helper": "0" * 64}, "another helper"),
    ],
)
def test_an_offer_that_protects_less_or_something_else_is_refused(changes: dict[str, Any], said: str) -> None:
    study = a_study()
    with pytest.raises(InvalidSettings, match=said):
        agreed(an_offer(study, **changes), study, study.lines[0])


def test_clients_are_shown_the_guarantee_that_the_helper_has_looked_at() -> None:
    """The helper computes a guarantee's noise, so a leader may not show clients another guarantee."""
    looked_at = an_offer(a_study())
    for change in (
        lambda line: line["privacy"]["central"].update(epsilon=0.1),
        lambda line: line["privacy"]["central"].update(delta=1e-9),
        lambda line: line["privacy"]["central"].update(rounds=90),
        lambda line: line["privacy"]["central"].update(noise_multiplier=1.0),
        lambda line: line["privacy"].update(contributions=1),
    ):
        shown = a_study(change)
        with pytest.raises(InvalidSettings, match="its guarantee is epsilon 1 and delta 1e-06 for 9 rounds"):
            agreed(looked_at, shown, shown.lines[0])


def test_clients_are_told_what_the_helper_was_told_of_what_its_noise_is_for() -> None:
    """The noise for one contribution of a short vector must not be used for frequent or longer contributions."""

    def told(noise_multiplier: float, **privacy: Any) -> Study:
        def change(line: dict[str, Any]) -> None:
            line["privacy"]["central"]["noise_multiplier"] = noise_multiplier
            line["privacy"] |= privacy

        return a_study(change)

    offer = an_offer(told(3.0, contributions=1, left_out=["a"]))
    for study in (
        told(3.0, contributions=9, left_out=["a"]),
        told(3.0, left_out=["a"]),
        told(2.0, contributions=1),  # times the longer vector, it is as much
    ):
        with pytest.raises(InvalidSettings, match="the helper's offer does not fit line 'shares'"):
            agreed(offer, study, study.lines[0])


def test_an_offer_of_somebody_else_and_one_that_was_changed_are_refused() -> None:
    study = a_study()
    line: Line = study.lines[0]
    with pytest.raises(InvalidSettings, match="not signed by the helper"):
        agreed(an_offer(study, OTHER), study, line)
    offer = an_offer(study)
    changed = Offer(terms=offer.terms.replace('"min_batch":10', '"min_batch":19'), signature=offer.signature)
    assert changed.terms != offer.terms
    with pytest.raises(InvalidSettings, match="not signed by the helper"):
        terms_of(changed, identity_of(HELPER))
    assert changed.id != offer.id
    assert msgspec.json.decode(offer.terms, type=Terms).helper == identity_of(HELPER)


def test_what_is_signed_is_read_by_its_kind_and_from_its_sender_alone() -> None:
    arm = AskedArm(arm="all", documents=bytes(32), offers=bytes(16), sealed=bytes(160))
    asked = Request(study="s", line="l", version=3, arms=(arm,), made=NOW)
    data = signed(asked, LEADER)
    assert read_signed(data, Request) == asked
    assert arm.clients == 2
    assert is_from(data, Request, identity_of(LEADER))
    assert not is_from(data, Request, identity_of(HELPER))
    assert not is_from(data, Answer, identity_of(LEADER)), "a signature of a request is none of an answer"
    for odd in (b"", data[:-1], data[:64], data + b"\0", b"\xff" * 100, bytes(64)):
        with pytest.raises(ValueError, match="no fedping request"):
            read_signed(odd, Request)
    answer = Answer(
        study="s",
        line="l",
        version=3,
        request=digest_of_signed(data),
        made=NOW,
        arms=(AnsweredArm(arm="all", total=b""),),
    )
    assert read_signed(signed(answer, HELPER), Answer) == answer
    tampered = data[:-1] + bytes([data[-1] ^ 1])
    assert not is_from(tampered, Request, identity_of(LEADER))
    assert digest_of_signed(tampered) != digest_of_signed(data)


def _prove_what_is_no_vote(line: Any) -> None:
    line["privacy"]["shared"]["proofs"] = True
    line["privacy"]["contribution"] = {"by": "norm", "norm": 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line["privacy"]["central"].update(sampling=0.5), "sampling"),
        (_prove_what_is_no_vote, "votes alone"),
        (lambda line: line["privacy"]["shared"].update(helper="F" * 64), "helper"),
        (lambda line: line["privacy"]["shared"].update(min_batch=1), "min_batch"),
        (lambda line: line.update(pipeline={"aggregate": {"by": "median"}}), "aggregate"),
        (lambda line: line.update(pipeline={"staleness": {}}), "staleness"),
        (lambda line: line.update(upload=[{"link": "private"}]), "upload"),
    ],
)  # fmt: skip
def test_settings_that_shares_forbid_are_refused(change: Callable[[dict[str, Any]], None], said: str) -> None:
    with pytest.raises((msgspec.ValidationError, InvalidSettings), match=said):
        a_study(change)


@pytest.mark.parametrize("seal", get_args(Seal))
@pytest.mark.parametrize(
    ("m", "metric"),
    [
        *((m, metric) for m in (1, 4, 15, 22, 25, 100, 1000, 30_000) for metric in (0, 1, 70, 2**24)),
        *((1_000_000, metric) for metric in (0, 2**24)),
        *(pytest.param(1_000_000, metric, marks=pytest.mark.long) for metric in (1, 70)),
    ],
)
def test_shares_of_any_line_are_as_long_as_ingest_and_rounds_take_them(m: int, metric: int, seal: Seal) -> None:
    size = layout(m + len(METRICS), seal, metric).size
    link = SharedVector(seal=seal, proofs=bool(metric), metric=metric)
    lengths = link.ends(line_with(()).spec)[1].lengths
    assert lengths is not None
    assert lengths(m) == (size, size)
    assert size <= longest_payload(m)  # or a line of such a size would refuse every ping
