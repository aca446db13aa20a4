"""Validity proofs: the draft's vectors, valid and invalid shares, the sums, and the information in a share."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedping.protocol.proofs import prio3, xof
from fedping.protocol.proofs.field import P, add, mul, total
from fedping.protocol.proofs.prio3 import (
    NONCE_BYTES,
    RAND_BYTES,
    Context,
    Prepared,
    Rows,
    Shares,
    Side,
    messages,
    prepare,
    shard,
    sizes,
    valid,
)
from fedping.protocol.proofs.sum_vec import SumVec, query
from fedping.protocol.proofs.xof import uniform

VECTORS = Path(__file__).parent / "vectors/draft-irtf-cfrg-vdaf-18.Prio3SumVecWithMultiproof_0.json"

KEY = bytes(range(100, 132))
CONTEXT = b"study|line|7"
SMALL = SumVec(5, 1, 2)


def random_rows(k: int, width: int, seed: int) -> Rows:
    return np.random.default_rng(seed).integers(0, 256, (k, width), dtype=np.uint8)


def sharded(circuit: SumVec, coordinates: np.ndarray, seed: int = 1, context: Context = CONTEXT) -> tuple[Rows, Shares]:
    """Return nonces and shares."""
    nonces = random_rows(len(coordinates), NONCE_BYTES, seed)
    return nonces, shard(circuit, coordinates, nonces, random_rows(len(coordinates), RAND_BYTES, seed + 1), context)


def both(
    circuit: SumVec, nonces: Rows, shares: Shares, key: bytes = KEY, context: Context = CONTEXT
) -> tuple[Prepared, Prepared]:
    return (
        prepare(circuit, Side.LEADER, key, nonces, shares.public, shares.leader, context),
        prepare(circuit, Side.HELPER, key, nonces, shares.public, shares.helper, context),
    )


def taken(circuit: SumVec, nonces: Rows, shares: Shares) -> list[bool]:
    leader, helper = both(circuit, nonces, shares)
    return list((valid(circuit, shares.public, leader.shown, helper.shown) & leader.ok & helper.ok).tolist())


def random_bits(k: int, coordinates: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (k, coordinates))


def of_hex(rows: Iterable[str]) -> Rows:
    return np.array([list(bytes.fromhex(row)) for row in rows], np.uint8)


def test_the_drafts_vectors() -> None:
    vectors = json.loads(VECTORS.read_text())
    reports, context = vectors["reports"], bytes.fromhex(vectors["ctx"])
    bits = vectors["max_measurement"].bit_length()
    circuit = SumVec(vectors["length"], bits, vectors["chunk_length"])
    numbers = np.array([report["measurement"] for report in reports])
    coordinates = (numbers[:, :, None] >> np.arange(bits) & 1).reshape(len(reports), -1)
    nonces, rand = (of_hex(report[name] for report in reports) for name in ("nonce", "rand"))

    shares = shard(circuit, coordinates, nonces, rand, context)
    for side, rows in ((Side.LEADER, shares.leader), (Side.HELPER, shares.helper)):
        assert (rows == of_hex(report["input_shares"][side] for report in reports)).all()
    assert (shares.public == of_hex(report["public_share"] for report in reports)).all()

    prepared = both(circuit, nonces, shares, bytes.fromhex(vectors["verify_key"]), context)
    for side, each in zip(Side, prepared, strict=True):
        assert each.ok.all()
        assert (each.shown == of_hex(report["verifier_shares"][0][side] for report in reports)).all()
        out_shares = each.out_shares.astype("<u8").view(np.uint8)
        assert (out_shares == of_hex(report["out_shares"][side] for report in reports)).all()
        assert total(each.out_shares, 0).astype("<u8").tobytes().hex() == vectors["agg_shares"][side]
    leader, helper = (each.shown for each in prepared)
    assert (messages(leader, helper, context) == of_hex(report["verifier_messages"][0] for report in reports)).all()
    assert valid(circuit, shares.public, leader, helper).all()
    sums = add(*(total(each.out_shares, 0) for each in prepared))
    assert sums.tolist() == vectors["agg_result"]


@settings(max_examples=30)
@given(
    length=st.integers(1, 20),
    bits=st.integers(1, 3),
    chunk=st.integers(1, 25),
    proofs=st.integers(1, 3),
    k=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_bits_are_taken_and_their_sums_are_right(
    length: int, bits: int, chunk: int, proofs: int, k: int, seed: int
) -> None:
    circuit = SumVec(length, bits, chunk, proofs)
    coordinates = random_bits(k, circuit.coordinates, seed)
    nonces, shares = sharded(circuit, coordinates, seed)
    leader, helper = both(circuit, nonces, shares)
    assert [shares.leader.shape[1], shares.public.shape[1], shares.helper.shape[1], helper.shown.shape[1]] == [
        *sizes(circuit)
    ]
    assert taken(circuit, nonces, shares) == [True] * k
    numbers = (coordinates.reshape(k, length, bits) << np.arange(bits)).sum(axis=2)
    assert add(leader.out_shares, helper.out_shares).tolist() == numbers.tolist()


def test_sums_of_many_weighted_clients() -> None:
    """Computed like the servers: each sums its own shares, and only the sums are combined."""
    circuit, k = SumVec.shortest(52), 1500
    coordinates, weights = random_bits(k, 52), np.random.default_rng(4).integers(1, 2520, k).astype(np.uint64)
    nonces, shares = sharded(circuit, coordinates)
    sides = [total(mul(each.out_shares, weights[:, None]), 0) for each in both(circuit, nonces, shares)]
    assert add(*sides).tolist() == (coordinates * weights[:, None].astype(np.int64)).sum(axis=0).tolist()


@pytest.mark.parametrize("wrong", [2, 2**32, 2**40, 2**63, P // 2, P - 1])
def test_a_client_with_another_number_anywhere_is_refused(wrong: int) -> None:
    """One in 2^179 wrong numbers would be accepted by chance, here and in the following tests."""
    circuit = SumVec.shortest(7)
    coordinates = np.broadcast_to(random_bits(1, 7), (8, 7)).astype(np.uint64)
    coordinates[np.arange(7), np.arange(7)] = wrong
    assert taken(circuit, *sharded(circuit, coordinates)) == [False] * 7 + [True]


def test_numbers_that_cancel_each_other_are_refused() -> None:
    """Without random factors their sum of x (x - 1) would be 0, in one chunk and in two."""
    a, b = 3, 1088376336641408412
    assert (a * (a - 1) + b * (b - 1)) % P == 0
    coordinates = np.array([[a, b, 0, 0, 0], [a, 1, b, 0, 1], [1, 1, 0, 0, 1]], np.uint64)
    assert taken(SMALL, *sharded(SMALL, coordinates)) == [False, False, True]


def test_a_share_that_is_changed_by_2_to_the_40_is_refused() -> None:
    nonces, shares = sharded(SMALL, random_bits(6, 5))
    elements = shares.leader[:, : 8 * 5].view("<u8")
    for row in range(5):
        elements[row, row] = (int(elements[row, row]) + 2**40) % P
    assert taken(SMALL, nonces, shares) == [False] * 5 + [True]


@pytest.mark.parametrize("name", ["leader", "public", "helper"])
def test_a_bit_that_flips_anywhere_in_what_is_sent_is_refused(name: str) -> None:
    """Flips bits in the vector, every element of every proof, the blind and the seed, and none in the last row."""
    circuit = replace(SMALL, proofs=2)
    width = getattr(sizes(circuit), name)
    nonces, shares = sharded(circuit, np.broadcast_to(random_bits(1, 5), (width + 1, 5)))
    getattr(shares, name)[np.arange(width), np.arange(width)] ^= 1
    assert taken(circuit, nonces, shares) == [False] * width + [True]


@pytest.mark.parametrize("side", Side)
def test_a_bit_that_flips_anywhere_in_what_is_shown_is_refused(side: Side) -> None:
    width = sizes(SMALL).prepared
    nonces, shares = sharded(SMALL, np.broadcast_to(random_bits(1, 5), (width + 1, 5)))
    shown = [each.shown for each in both(SMALL, nonces, shares)]
    shown[side][np.arange(width), np.arange(width)] ^= 1
    assert valid(SMALL, shares.public, *shown).tolist() == [False] * width + [True]


def test_shares_of_two_clients_do_not_go_together() -> None:
    nonces, shares = sharded(SMALL, np.zeros((2, 5), np.int64))
    for part in Shares._fields:
        swapped = shares._replace(**{part: getattr(shares, part)[::-1]})
        assert taken(SMALL, nonces, swapped) == [False, False]
    assert taken(SMALL, nonces[::-1], shares) == [False, False]


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("what", ["nonces", "key", "context"])
def test_a_server_that_is_told_something_else_refuses(side: Side, what: str) -> None:
    nonces, shares = sharded(SMALL, random_bits(3, 5))
    prepared = []
    for each, rows in ((Side.LEADER, shares.leader), (Side.HELPER, shares.helper)):
        other = what if each is side else ""
        prepared.append(
            prepare(
                SMALL,
                each,
                KEY[::-1] if other == "key" else KEY,
                nonces ^ np.uint8(1) if other == "nonces" else nonces,
                shares.public,
                rows,
                CONTEXT + b"0" if other == "context" else CONTEXT,
            )
        )
    assert valid(SMALL, shares.public, prepared[0].shown, prepared[1].shown).tolist() == [False] * 3


def test_a_helper_that_is_told_another_length_refuses() -> None:
    nonces, shares = sharded(SMALL, random_bits(3, 5))
    leader, _ = both(SMALL, nonces, shares)
    helper = prepare(SumVec(6, 1, 2), Side.HELPER, KEY, nonces, shares.public, shares.helper, CONTEXT)
    assert valid(SMALL, shares.public, leader.shown, helper.shown).tolist() == [False] * 3


def test_of_a_client_and_servers_with_another_context_or_nonce_nothing_is_taken() -> None:
    """Both servers agree with each other, but not with the client."""
    nonces, shares = sharded(SMALL, random_bits(3, 5))
    for other_nonces, context in ((nonces ^ np.uint8(1), CONTEXT), (nonces, b"study|line|8")):
        leader, helper = both(SMALL, other_nonces, shares, context=context)
        assert not valid(SMALL, shares.public, leader.shown, helper.shown).any()


def test_a_share_with_numbers_beyond_the_field_is_malformed_and_shows_nothing() -> None:
    nonces, shares = sharded(SMALL, np.zeros((4, 5), np.int64))
    elements = shares.leader[:, :-32].view("<u8")
    elements[0, 0], elements[1, 3], elements[2, -1] = P, 2**64 - 1, P + 1
    leader, helper = both(SMALL, nonces, shares)
    assert leader.ok.tolist() == [False] * 3 + [True]
    assert not leader.out_shares[:3].any()
    assert (leader.shown[:3] == 0xFF).all()
    assert valid(SMALL, shares.public, leader.shown, helper.shown).tolist() == [False] * 3 + [True]


@pytest.mark.parametrize("side", Side)
def test_what_is_shown_has_one_encoding(side: Side) -> None:
    """Zeros are a valid proof of zeros, and p equals 0; a server that sends p for 0 is rejected."""
    shown = np.zeros((2, 3, sizes(SMALL).prepared), np.uint8)
    shown[side, 0, 8:16] = np.frombuffer(P.to_bytes(8, "little"), np.uint8)
    shown[side, 1, :8] = 0xFF
    assert valid(SMALL, np.zeros((3, 64), np.uint8), *shown).tolist() == [False, False, True]


def test_two_servers_that_show_nothing_take_nothing() -> None:
    """If a malformed row were shown as zeros, a client with a public share of zeros would pass."""
    shown = np.full((1, sizes(SMALL).prepared), 0xFF, np.uint8)
    for byte in (0, 0xFF):
        assert not valid(SMALL, np.full((1, 64), byte, np.uint8), shown, shown).any()


def test_a_random_point_where_a_wire_has_its_input_is_not_shown() -> None:
    """At roots of unity the wires' polynomials reveal coordinates; t is 1, -1, a 4-th root, and another number."""
    k = 4
    roots = np.array([1, P - 1, pow(2, 48, P), 12345], np.uint64)
    query_rand = np.broadcast_to(roots, (3, k)).copy()
    query_rand[1:, :3] = 99  # one of three is enough
    zeros = [np.zeros(shape, np.uint64) for shape in ((5, k), (3, SMALL.proof, k), (3, SMALL.calls, k))]
    assert query(SMALL, zeros[0], zeros[1], query_rand, zeros[2])[1].tolist() == [False] * 3 + [True]


def test_a_client_whose_random_point_may_not_be_shown_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = xof.elements

    def with_ones(tag: bytes, context: Context, rows: Rows, count: int) -> np.ndarray:
        elements = drawn(tag, context, rows, count)
        if tag[-1] == 5:  # the query randomness
            elements[1, 2] = 1
        return elements

    nonces, shares = sharded(SMALL, random_bits(3, 5))
    monkeypatch.setattr(xof, "elements", with_ones)
    for each in both(SMALL, nonces, shares):
        assert each.ok.tolist() == [True, False, True]
        assert (each.shown[1] == 0xFF).all()


def test_the_result_does_not_depend_on_what_is_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinates = random_bits(7, 5)
    contexts = [CONTEXT + bytes([row]) for row in range(7)]
    nonces, together = sharded(SMALL, coordinates, context=contexts)
    prepared = both(SMALL, nonces, together, context=contexts)
    rand = random_rows(7, RAND_BYTES, 2)
    monkeypatch.setattr(prio3, "_BATCH", 3)
    for rows in (slice(0, 7), *(slice(row, row + 1) for row in range(7))):
        one = shard(SMALL, coordinates[rows], nonces[rows], rand[rows], contexts[rows])
        assert all((a == b[rows]).all() for a, b in zip(one, together, strict=True))
        again = both(SMALL, nonces[rows], one, context=contexts[rows])
        for a, b in zip(again, prepared, strict=True):
            assert (a.shown == b.shown[rows]).all()
            assert (a.out_shares == b.out_shares[rows]).all()
        assert valid(SMALL, one.public, again[0].shown, again[1].shown).all()


@pytest.mark.parametrize("bit", [0, 1])
def test_what_one_server_has_of_a_vector_is_uniform(bit: int) -> None:
    """Tests the bytes of the leader's share, of each server's message, and of the helper's shares: 4 tests, each
    failing by chance once in 10^6."""
    nonces, shares = sharded(SumVec.shortest(52), np.full((400, 52), bit), seed=20 + bit)
    leader, helper = both(SumVec.shortest(52), nonces, shares)
    seen = [
        shares.leader,
        np.ascontiguousarray(helper.out_shares, "<u8").view(np.uint8),
        leader.shown,
        helper.shown,
    ]
    for rows in seen:
        assert stats.chisquare(np.bincount(rows.ravel(), minlength=256)).pvalue > 2.5e-7


def test_the_shares_of_one_coordinate_have_no_part_of_the_field_that_they_avoid() -> None:
    """The first coordinate is always 1: tests 32 equal parts of the field, failing by chance once in 10^6."""
    nonces, shares = sharded(SMALL, np.ones((5000, 5), np.int64), seed=30)
    for each in both(SMALL, nonces, shares):
        parts = (each.out_shares[:, 0] >> np.uint64(59)).astype(int)
        assert stats.chisquare(np.bincount(parts, minlength=32)).pvalue > 5e-7


def test_numbers_beyond_the_field_are_left_out_when_elements_are_drawn() -> None:
    """Only one in 2^32 numbers is beyond the field; the test's streams contain more."""
    numbers = [[5, 6, 7], [P, 8, 2**64 - 1, P - 1, P, 9], [1, 2, P, 3]]
    streams: list[Callable[[int], bytes]] = [
        BytesIO(b"".join(number.to_bytes(8, "little") for number in each)).read for each in numbers
    ]
    assert uniform(iter(streams), 3).tolist() == [[5, 6, 7], [8, P - 1, 9], [1, 2, 3]]


def test_the_shortest_proof() -> None:
    shortest = SumVec.shortest(52)
    assert shortest == SumVec(52, 1, 8)
    assert sizes(shortest) == (1192, 64, 64, 464)
    for length in (1, 2, 22, 100):
        proofs = [SumVec(length, 1, chunk).proof for chunk in range(1, length + 1)]
        assert SumVec.shortest(length).proof == min(proofs)


def test_arrays_that_do_not_fit_are_the_callers_mistake() -> None:
    nonces, shares = sharded(SMALL, random_bits(2, 5))
    with pytest.raises(ValueError, match="shares have the shape"):
        prepare(SMALL, Side.LEADER, KEY, nonces, shares.public, shares.helper, CONTEXT)
    with pytest.raises(ValueError, match="a verify key has 32 bytes, not 3"):
        prepare(SMALL, Side.HELPER, b"key", nonces, shares.public, shares.helper, CONTEXT)
    with pytest.raises(ValueError, match="1 contexts are not one for each of 2 rows"):
        prepare(SMALL, Side.HELPER, KEY, nonces, shares.public, shares.helper, [CONTEXT])
    with pytest.raises(ValueError, match=r"coordinates have the shape \(2, 4\)"):
        shard(SMALL, random_bits(2, 4), nonces, random_rows(2, RAND_BYTES, 1), CONTEXT)
