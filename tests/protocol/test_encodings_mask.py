"""Masks: the kept weights, the decoded updates, and rejected payloads."""

from __future__ import annotations

import base64
import struct
from typing import Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.protocol.encodings.mask import block_edges, places
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import Dense, Float32, Levels, Mask, Signs, Steps, Upload
from tests.support.encodings import (
    assert_refused_alike,
    assert_unbiased,
    both_ends,
    frecency_updates,
    keys_of,
    one_outlier,
    sent_and_read,
    spec_of,
    two_sparse,
)
from tests.support.links import line_with

FIVE_OF_22 = (Mask(keep=5 / 22),)
EXAMPLE = base64.b64decode("AQAAAAAAAAAAAABAAADAQAAAQEEAAGBBAACYQQ==")
Draw: TypeAlias = Literal["blocks", "independent"]
DRAWS = get_args(Draw)


def test_a_seed_keeps_one_weight_of_each_block() -> None:
    one, other = np.array([1], np.uint64), np.array([12345], np.uint64)
    assert places(one, 5, 22).tolist() == [[2, 6, 12, 14, 19]]
    assert np.diff(block_edges(5, 22)).tolist() == [4, 4, 5, 4, 5]
    assert places(other, 10, 1000).tolist() == [[13, 120, 211, 317, 450, 533, 612, 743, 847, 986]]


def test_the_example_of_the_layout_is_read() -> None:
    """For an update of 0 to 21 and seed 1, the kept weights are multiplied by the lengths of their blocks."""
    _, server = both_ends(FIVE_OF_22, spec_of(22))
    [values], ok = server.decode(pa.array([EXAMPLE], pa.binary()), 22)
    assert ok.all()
    assert {place: value for place, value in enumerate(values.tolist()) if value} == {
        2: 8,
        6: 24,
        12: 60,
        14: 56,
        19: 95,
    }
    composite = EXAMPLE[:8] + struct.pack("<I", 5) + EXAMPLE[8:]
    _, server = both_ends((*FIVE_OF_22, Float32()), spec_of(22))
    assert server.encoding == "mask-float32"
    assert server.decode(pa.array([composite], pa.binary()), 22)[0].tolist() == [values.tolist()]


@given(
    m=st.integers(1, 60),
    keep=st.floats(0.001, 1),
    k=st.integers(0, 5),
    seed=st.integers(0, 9),
    upload=st.sampled_from([(), (Float32(),)]),
)
def test_what_arrives_is_what_was_kept_times_the_length_of_its_block(
    m: int, keep: float, k: int, seed: int, upload: Upload
) -> None:
    updates = np.random.default_rng(seed).normal(size=(k, m))
    kept = max(1, int(keep * m + 0.5))
    decoded = sent_and_read((Mask(keep=keep), *upload), updates, seed)
    assert ((decoded != 0).sum(axis=1) == kept).all()
    lengths = np.repeat(np.diff(block_edges(kept, m)), np.diff(block_edges(kept, m)))
    expected = np.float32(updates) * np.float32(lengths)
    np.testing.assert_array_equal(decoded, np.where(decoded != 0, expected, 0))
    one_by_one = [sent_and_read((Mask(keep=keep), *upload), row[None], seed)[0] for row in updates[:1]]
    np.testing.assert_array_equal(decoded[:1], one_by_one or decoded[:1])
    np.testing.assert_array_equal(sent_and_read((Mask(keep=keep), *upload), 4 * updates, seed), 4 * decoded)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_mask_that_keeps_everything_changes_nothing(draw: Draw) -> None:
    updates = np.random.default_rng(1).normal(size=(3, 9))
    np.testing.assert_array_equal(sent_and_read((Mask(keep=1, draw=draw),), updates), np.float32(updates))


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize(
    "update", [two_sparse(), one_outlier(), frecency_updates()[0]], ids=["sparse", "outlier", "real"]
)
def test_masks_are_unbiased_and_their_variance_is_the_formulas(draw: Draw, update: np.ndarray) -> None:
    link = Mask(keep=0.25 if len(update) == 40 else 4 / 22, draw=draw)
    assert_unbiased(lambda updates: sent_and_read((link,), updates), update)


@pytest.mark.parametrize("update", [two_sparse(), frecency_updates()[0]], ids=["sparse", "real"])
def test_levels_after_a_mask_are_unbiased_and_refused_as_alone(update: np.ndarray) -> None:
    upload = (Mask(keep=0.25), Levels(bits=2))
    assert_unbiased(lambda updates: sent_and_read(upload, updates), update)
    client, server = both_ends(upload, spec_of(22))
    assert client.encode is not None
    good = client.encode(update[None], keys_of(1))[0].as_py()
    assert server.encoding == "mask-levels-2"
    for bad in (good[:-1], good + b"\0", good[:12] + struct.pack("<f", np.nan) + good[16:], good[:12]):
        assert_refused_alike(server, bad, 22)


@pytest.mark.parametrize(("draw", "keep"), [("blocks", 0.1), ("independent", 0.1), ("blocks", 0.25)])
def test_the_error_of_a_mask_is_that_of_the_formula(draw: Draw, keep: float) -> None:
    update = np.random.default_rng(2).standard_t(3, size=1000)
    errors = sent_and_read((Mask(keep=keep, draw=draw),), np.tile(update, (2_000, 1))) - update
    assert (errors**2).sum() / (2_000 * (update**2).sum()) == pytest.approx(1 / keep - 1, rel=0.03)


def test_two_pings_have_two_masks_and_the_same_ping_has_the_same() -> None:
    updates = np.ones((2, 1000))
    first, second = sent_and_read((Mask(keep=0.1),), updates)
    assert (first != second).any()
    np.testing.assert_array_equal(sent_and_read((Mask(keep=0.1),), updates)[0], first)


def test_what_is_sparse_has_the_moments_of_what_is_dense() -> None:
    """Uses the example of the sparse moments: m = 5, two weights kept of blocks of 2 and 3."""
    seeds = {tuple(places(np.array([seed], np.uint64), 2, 5)[0].tolist()): seed for seed in range(60)}
    sent = {(0, 3): (1, 2), (1, 3): (-1, 4), (0, 4): (3, 1)}
    payloads = [struct.pack("<Q2f", seeds[at], *values) for at, values in sent.items()]
    _, server = both_ends((Mask(keep=0.4),), spec_of(5))
    assert server.decoder.sparse is not None
    found = server.decoder.sparse(pa.array(payloads, pa.binary()), 5)
    assert found.ok.all()
    assert found.at.tolist() == [list(at) for at in sent]
    votes, at = np.array([1, 0.5, 0.5]), found.at.ravel()
    each = np.repeat(votes, 2)
    mean = np.bincount(at, each * found.values.ravel(), minlength=5) / votes.sum()
    assert mean.tolist() == [2.5, -0.5, 0, 6, 0.75]
    spread = np.bincount(at, each * (found.values.ravel() - mean[at]) ** 2, minlength=5)
    squares = spread + (votes.sum() - np.bincount(at, each, minlength=5)) * mean**2
    assert squares.tolist() == [9.5, 1.5, 0, 36, 3.375]
    dense, _ = server.decode(pa.array(payloads, pa.binary()), 5)
    np.testing.assert_allclose(votes @ dense / 2, mean, rtol=1e-12)
    np.testing.assert_allclose(votes @ (dense - mean) ** 2, squares, rtol=1e-12)


def payload(seed: int = 1, *values: float, head: bytes = b"") -> bytes:
    return struct.pack("<Q", seed) + head + np.array(values or range(5), "<f4").tobytes()


@pytest.mark.parametrize(
    "bad",
    [
        None,
        b"",
        payload()[:-1],
        payload() + b"\0",
        payload(1, 1, 2, 3, 4),
        payload(1, 1, 2, 3, 4, 5, 6),
        payload(2**53),
        payload(2**64 - 1),
        payload(1, 1, 2, 3, 4, np.nan),
        payload(1, np.inf, 2, 3, 4, 5),
        payload(1, -np.inf, np.inf, 3, 4, 5),
        payload(1, 3e38, 2, 3, 4, 5),
        payload(1, 5e29, 2, 3, 4, 5),
    ],
)
def test_payloads_that_are_no_masks_are_refused(bad: bytes | None) -> None:
    assert_refused_alike(both_ends(FIVE_OF_22, spec_of(22))[1], bad, 22)


@pytest.mark.parametrize("k", [0, 4, 6, 2**32 - 1])
def test_a_mask_that_says_another_number_of_weights_is_refused(k: int) -> None:
    server = both_ends((*FIVE_OF_22, Float32()), spec_of(22))[1]
    assert_refused_alike(server, payload(head=struct.pack("<I", k)), 22)
    assert_refused_alike(server, payload(2**53, head=struct.pack("<I", 5)), 22)
    assert_refused_alike(server, payload(1, 1, 2, np.nan, 4, 5, head=struct.pack("<I", 5)), 22)
    assert server.decode(pa.array([payload(head=struct.pack("<I", 5))], pa.binary()), 22)[1].all()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (payload(2**53, np.nan, 2, 3, 4, 5, head=struct.pack("<I", 4)), "has a seed of 2^53 or more"),
        (payload(1, np.nan, 2, 3, 4, 5, head=struct.pack("<I", 4)), "says that it has 4 weights, not 5"),
        (payload(1, np.nan, 2, 3, 4, 5, head=struct.pack("<I", 5)), "has a number that is not finite, or beyond 1e+30"),
        (
            payload(1, 5e29, 2, 3, 4, 5, head=struct.pack("<I", 5)),
            "has a number that is not finite, or is too large when it is multiplied by the length of its block",
        ),
    ],
)
def test_the_first_thing_that_is_wrong_with_a_mask_is_told(bad: bytes, said: str) -> None:
    assert both_ends((*FIVE_OF_22, Float32()), spec_of(22))[1].trouble(bad, 22) == said


def test_independent_masks_refuse_other_shares_and_numbers_than_their_seed_keeps() -> None:
    client, server = both_ends((Mask(keep=0.25, draw="independent"),), spec_of(40))
    assert client.encode is not None
    [good] = client.encode(np.ones((1, 40)), keys_of(1)).to_pylist()
    assert server.decode(pa.array([good], pa.binary()), 40)[1].all()
    bad = [
        None,
        b"",
        good[:16],
        good[:-4],
        good[:-1],
        good + bytes(4),
        struct.pack("<Qd", 2**53, 0.25) + good[16:],
        good[:8] + struct.pack("<d", 0.5) + good[16:],
        good[:8] + struct.pack("<d", np.nan) + good[16:],
        good[:16] + np.full(len(good[16:]) // 4, np.nan, "<f4").tobytes(),
    ]
    for one in bad:
        assert_refused_alike(server, one, 40)


@pytest.mark.parametrize(
    ("upload", "said"),
    [
        ((Mask(keep=0.1), Signs()), "has 'signs' after 'mask', which keeps a few numbers; one link may follow"),
        ((Mask(keep=0.1), Levels(bits=2, rotate=True)), "has 'levels' after 'mask', which keeps a few numbers"),
        ((Mask(keep=0.1), Float32(), Dense()), "has 'float32' after 'mask', which keeps a few numbers"),
        ((Mask(keep=0.1, draw="independent"), Steps(size=1.0)), "a different number of weights each time"),
    ],
)
def test_only_some_links_follow_a_mask(upload: Upload, said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        line_with(upload)
