"""Products of matrices with random ones: the sent numbers, the decoded updates, and rejected payloads."""

from __future__ import annotations

import struct
from math import fsum
from typing import Literal, TypeAlias, get_args

import numpy as np
import pytest

from fedping.protocol.draws import bits, child_keys
from fedping.protocol.encodings.low_rank import factored, multiplied, projected, solved
from fedping.protocol.encodings.rotation import random_sign_matrices
from fedping.protocol.encodings.two_factors import exact_products
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.link_ends import Factors
from fedping.protocol.links import LowRank
from fedping.protocol.spec import Block, ModelSpec
from fedping.protocol.training import LocalSteps
from fedping.protocol.upload import receiving, sending
from tests.support.encodings import (
    STEP,
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

Fixed: TypeAlias = Literal["outputs", "inputs"]
SIDES = get_args(Fixed)


def blocks(*shapes: tuple[int, ...], single: int = 0) -> ModelSpec:
    """Return the spec of a model with some single weights and blocks of these shapes."""
    made = tuple(Block(name=f"b{number}", shape=shape, step=STEP) for number, shape in enumerate(shapes))
    return ModelSpec(name="network", model="any", weights=spec_of(single).weights if single else (), blocks=made)


NETWORK = blocks((6, 4), (4,), (4, 3), (3,), single=2)


def test_the_example_of_the_thesis() -> None:
    """The thesis's A on the outputs' side is the inputs' side in fedping's layout; W moves by -r A Aᵀ G."""
    signs, gradient = np.array([[[1, 0], [0, 1], [1, 1]]], np.int8), np.array([[[1.0, 2], [3, 4], [5, 6]]])
    moved = [[-0.3, -0.4], [-0.4, -0.5], [-0.7, -0.9]]
    b = factored(-0.1 * gradient, signs, outputs=False)
    np.testing.assert_allclose(multiplied(b, signs, outputs=False)[0], moved, rtol=1e-12)
    np.testing.assert_allclose(projected(-0.1 * gradient, signs, outputs=False)[0], moved, rtol=1e-12)
    np.testing.assert_allclose(solved(np.array([moved]), signs, outputs=False), b, rtol=1e-12)
    across = gradient.swapaxes(1, 2)
    b = factored(-0.1 * across, signs, outputs=True)
    np.testing.assert_allclose(multiplied(b, signs, outputs=True)[0], np.transpose(moved), rtol=1e-12)
    np.testing.assert_allclose(projected(-0.1 * across, signs, outputs=True)[0], np.transpose(moved), rtol=1e-12)
    np.testing.assert_allclose(solved(np.array([np.transpose(moved)]), signs, outputs=True), b, rtol=1e-12)


@pytest.mark.parametrize("rank", [1, 3, 8, 62])
@pytest.mark.parametrize("outputs", [True, False])
def test_products_come_to_the_same_bits_in_whatever_order_they_are_summed(rank: int, outputs: bool) -> None:
    rng = np.random.default_rng(rank)
    signs = random_sign_matrices(keys_of(5), 0, 70, rank)
    factors = (rng.standard_t(1, size=(5, 9, rank)) * 10.0 ** rng.integers(-20, 20, (5, 1, 1))).astype(np.float32)
    factors[0], other = 0, rng.permutation(rank)
    if not outputs:
        factors = factors.swapaxes(1, 2)
    found = multiplied(factors, signs, outputs=outputs)
    shuffled = factors[:, :, other] if outputs else factors[:, other]
    np.testing.assert_array_equal(multiplied(shuffled, signs[:, :, other], outputs=outputs), found)
    rows = factors if outputs else factors.swapaxes(1, 2)
    exact = np.array([[[fsum(b * a) for a in sign] for b in row] for row, sign in zip(rows, signs, strict=True)])
    exact = (exact if outputs else exact.swapaxes(1, 2)) / np.sqrt(rank)
    largest = np.abs(factors).max(axis=(1, 2), keepdims=True)
    assert (np.abs(found - exact) <= 2.0**-24 * np.abs(exact) + 2.0**-36 * largest).all()


def test_signs_are_bits_of_the_seeds_child() -> None:
    seeds = np.array([7, 8], np.uint64)
    found = random_sign_matrices(seeds, 3, 50, 2)
    words = bits(child_keys(seeds, 3), 2)
    for seed in range(2):
        for entry in (0, 1, 63, 64, 99):
            bit = int(words[seed, entry // 64]) >> (entry % 64) & 1
            assert found[seed].ravel()[entry] == 1 - 2 * bit


@pytest.mark.parametrize(("fixed", "rank", "numbers"), [("outputs", 2, 29), ("inputs", 2, 23), ("outputs", 3, 39)])
def test_matrices_travel_as_products_where_these_are_less(fixed: Fixed, rank: int, numbers: int) -> None:
    """At rank 2, 6 x 4 and 4 x 3 send 12 and 8 numbers with outputs fixed, else 8 and 6; 9 are outside matrices."""
    updates = np.random.default_rng(1).normal(size=(4, 45))
    decoded = sent_and_read((LowRank(rank=rank, fixed=fixed),), updates, spec=NETWORK)
    _, server = both_ends((LowRank(rank=rank, fixed=fixed),), NETWORK)
    assert server.lengths(45) == (10 + 4 * numbers,) * 2
    np.testing.assert_array_equal(decoded[:, :2], np.float32(updates[:, :2]))
    np.testing.assert_array_equal(decoded[:, 26:30], np.float32(updates[:, 26:30]))
    assert np.linalg.matrix_rank(decoded[0, 2:26].reshape(6, 4), tol=1e-4) <= rank
    assert (decoded[:, 30:42] == np.float32(updates[:, 30:42])).all() == (rank == 3)
    alone = sent_and_read((LowRank(rank=rank, fixed=fixed),), updates[:1], spec=NETWORK)
    np.testing.assert_array_equal(decoded[:1], alone)


@pytest.mark.parametrize("fixed", SIDES)
@pytest.mark.parametrize(
    ("update", "spec"),
    [
        (two_sparse(), blocks((4, 5), single=2)),
        (one_outlier(), blocks((5, 8))),
        (frecency_updates()[0], blocks((5, 4), (2,))),
    ],
    ids=["sparse", "outlier", "real"],
)
def test_products_are_unbiased(fixed: Fixed, update: np.ndarray, spec: ModelSpec) -> None:
    assert_unbiased(lambda updates: sent_and_read((LowRank(rank=2, fixed=fixed),), updates, spec=spec), update)


@pytest.mark.parametrize(("fixed", "length"), [("outputs", 64), ("inputs", 20)])
def test_the_error_of_a_product_is_that_of_the_formula(fixed: Fixed, length: int) -> None:
    update = np.random.default_rng(2).standard_t(3, size=20 * 64)
    spec = blocks((20, 64))
    errors = sent_and_read((LowRank(rank=4, fixed=fixed),), np.tile(update, (2_000, 1)), spec=spec) - update
    assert (errors**2).sum() / (2_000 * (update**2).sum()) == pytest.approx((length - 1) / 4, rel=0.03)


@pytest.mark.parametrize("fixed", SIDES)
def test_what_is_within_arrives_as_it_is(fixed: Fixed) -> None:
    """Any mix of projected gradients equals A B, of which B is computed and sent; also with equal columns."""
    training = LocalSteps(rate=0.1, epochs=1, structured=True)
    line = line_with((LowRank(rank=2, fixed=fixed),), spec=NETWORK, training=training)
    client, server = sending(line), receiving(line)
    assert client.structured is not None
    assert client.encode is not None
    keys = keys_of(30)
    within, rng = client.structured.within(keys), np.random.default_rng(3)
    assert not isinstance(within, Factors)
    moved = np.sum([rate * within(rng.normal(size=(30, 45))) for rate in (-0.1, 2.0, 0.3)], axis=0)
    decoded, ok = server.decode(client.encode(moved, keys), 45)
    assert ok.all()
    np.testing.assert_allclose(decoded, moved, rtol=1e-4, atol=1e-4)
    gradients = np.random.default_rng(3).normal(size=(30, 45))
    sketched = both_ends((LowRank(rank=2, fixed=fixed),), NETWORK)[0]
    assert sketched.encode is not None
    expected, _ = server.decode(sketched.encode(gradients, keys), 45)
    one_step, _ = server.decode(client.encode(within(gradients), keys), 45)
    np.testing.assert_allclose(one_step, expected, rtol=1e-4, atol=1e-4)


def payload(seed: int = 1, rank: int = 2, *, numbers: int = 29, value: float = 1.0) -> bytes:
    return struct.pack("<QH", seed, rank) + np.full(numbers, value, "<f4").tobytes()


@pytest.mark.parametrize(
    "bad",
    [
        None,
        b"",
        payload()[:-1],
        payload() + b"\0",
        payload(numbers=28),
        payload(2**53),
        payload(rank=0),
        payload(rank=3),
        payload(rank=65_535),
        payload(value=np.nan),
        payload(value=np.inf),
        payload(value=3e38),
        payload(value=1.1e30),
    ],
)
def test_payloads_that_are_no_products_are_refused(bad: bytes | None) -> None:
    server = both_ends((LowRank(rank=2),), NETWORK)[1]
    assert_refused_alike(server, bad, 45)
    assert server.trouble(payload(), 45) is None


@pytest.mark.parametrize(("fixed", "shape"), [("outputs", (1, 2_000_000)), ("inputs", (2_000_000, 1))])
def test_a_rank_whose_factor_is_much_larger_than_the_model_is_refused(fixed: Fixed, shape: tuple[int, int]) -> None:
    """Reading a payload of 4 kB would take gigabytes."""
    for rank in (3, 1000):
        with pytest.raises(InvalidSettings, match=r"draws .* random signs .* lower 'rank' to 2 or less"):
            receiving(line_with((LowRank(rank=rank, fixed=fixed),), spec=blocks(shape)))
    receiving(line_with((LowRank(rank=2, fixed=fixed),), spec=blocks(shape)))


@pytest.mark.parametrize(("spec", "rank"), [(spec_of(30), 1), (blocks((9, 4), (3, 3, 8)), 4)])
def test_a_model_of_whose_matrices_nothing_is_saved_is_refused(spec: ModelSpec, rank: int) -> None:
    with pytest.raises(InvalidSettings, match=f"of rank {rank} saves nothing with model spec"):
        receiving(line_with((LowRank(rank=rank),), spec=spec))


def test_both_factors_of_a_hand_worked_matrix_travel() -> None:
    """The closest product of rank 1 to diag(3, 2, 1) is 3 in the corner; a matrix of rank 1 arrives unchanged."""
    spec = blocks((3, 3), (2,))
    link = LowRank(rank=1, fixed="neither")
    updates = np.zeros((2, 11))
    updates[0, :9] = np.diag([3.0, 2.0, 1.0]).ravel()
    updates[1, :9] = np.outer([1.0, -2.0, 0.5], [4.0, 0.0, -1.0]).ravel()
    updates[:, 9:] = [0.25, -1.5]
    decoded = sent_and_read((link,), updates, spec=spec)
    corner = np.zeros((3, 3))
    corner[0, 0] = 3
    np.testing.assert_allclose(decoded[0, :9].reshape(3, 3), corner, atol=1e-6)
    np.testing.assert_allclose(decoded[1], updates[1], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(decoded[:, 9:], updates[:, 9:])
    assert both_ends((link,), spec)[1].lengths(11) == (2 + 4 * (3 + 3 + 2),) * 2


@pytest.mark.parametrize("rank", [1, 3, 16, 33])
def test_products_of_both_factors_are_the_same_bits_in_any_order(rank: int) -> None:
    rng = np.random.default_rng(rank)
    a = (rng.standard_t(1, (4, 7, rank)) * 10.0 ** rng.integers(-10, 10, (4, 1, 1))).astype(np.float32)
    b = rng.standard_normal((4, rank, 5)).astype(np.float32)
    a[0] = 0
    found, other = exact_products(a, b), rng.permutation(rank)
    np.testing.assert_array_equal(exact_products(a[:, :, other], b[:, other]), found)
    largest = np.abs(a).max(axis=(1, 2)) * np.abs(b).max(axis=(1, 2)) * rank
    assert (np.abs(found - a.astype(float) @ b) <= 2.0**-21 * largest[:, None, None]).all()


def test_gradients_by_both_factors_are_those_of_finite_differences() -> None:
    client, _ = LowRank(rank=2, fixed="neither").ends(NETWORK)
    assert client.structured is not None
    factors = client.structured.within(keys_of(2))
    assert isinstance(factors, Factors)
    rng = np.random.default_rng(4)
    numbers = factors.start + rng.normal(size=factors.start.shape)
    slope = rng.normal(size=(2, 45))
    found = factors.gradients(numbers, slope)
    for place in range(numbers.shape[1]):
        nudge = np.zeros_like(numbers)
        nudge[:, place] = 1e-6
        differences = factors.movement(numbers + nudge) - factors.movement(numbers - nudge)
        np.testing.assert_allclose(found[:, place], (slope * differences).sum(axis=1) / 2e-6, rtol=1e-5, atol=1e-8)
    assert not factors.movement(factors.start).any()


@pytest.mark.parametrize("bad", [None, b"", struct.pack("<H", 2), struct.pack("<H", 3) + bytes(4 * 43)])
def test_payloads_that_are_no_two_factors_are_refused(bad: bytes | None) -> None:
    server = both_ends((LowRank(rank=2, fixed="neither"),), NETWORK)[1]
    assert_refused_alike(server, bad, 45)
    size = server.lengths(45)[0] if server.lengths else 0
    good = struct.pack("<H", 2) + bytes(size - 2)
    assert server.trouble is not None
    assert server.trouble(good, 45) is None
    for value in (np.nan, 1e30):
        wrong = struct.pack("<H", 2) + np.full((size - 2) // 4, value, "<f4").tobytes()
        assert_refused_alike(server, wrong, 45)


def test_a_rank_of_both_factors_that_saves_nothing_is_refused() -> None:
    with pytest.raises(InvalidSettings, match='fixed = "neither" saves nothing'):
        receiving(line_with((LowRank(rank=3, fixed="neither"),), spec=blocks((6, 4))))
