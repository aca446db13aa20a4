"""Multiples of a step: rounding, streams, and rejected payloads."""

from __future__ import annotations

import base64
import struct
import tracemalloc
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.protocol.encodings.steps import multiples, step_of, steps_payloads, steps_updates
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import Mask, Steps, Upload
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

EXAMPLE = base64.b64decode("ZebMPwAB/wE=")


def test_the_example_of_the_layout() -> None:
    update, rounding = np.array([[0, 0.5, -1, 3]]), np.array([[0.5, 0.9, 0.2, 0.1]])
    steps = step_of(update, Steps(size=1.0))
    assert steps_payloads(steps, multiples(update, steps, rounding)).to_pylist() == [EXAMPLE]
    values, ok = steps_updates(pa.array([EXAMPLE], pa.binary()), 4)
    assert ok.all()
    np.testing.assert_allclose(values, [[0, 1.6007811, -1.6007811, 1.6007811]], rtol=1e-7)


@given(
    m=st.integers(1, 40),
    k=st.integers(0, 4),
    seed=st.integers(0, 99),
    settings=st.sampled_from([Steps(size=0.1), Steps(size=1.0), Steps(size=4.0), Steps(step=0.01), Steps(step=3.0)]),
)
def test_what_arrives_is_within_a_step_and_zero_stays_zero(m: int, k: int, seed: int, settings: Steps) -> None:
    rng = np.random.default_rng(seed)
    updates = rng.standard_t(2, size=(k, m)) * rng.integers(0, 2, size=(k, m))
    steps = step_of(updates, settings)
    assert (np.abs(updates) <= 127 * steps.astype(np.float64)[:, None]).all()
    decoded = sent_and_read((settings,), updates, seed)
    assert (np.abs(decoded - updates) <= 1.000001 * steps[:, None]).all()
    assert not decoded[updates == 0].any()
    if settings.size is not None:
        np.testing.assert_array_equal(sent_and_read((settings,), 4 * updates, seed), 4 * decoded)
    for row in updates[:1]:
        np.testing.assert_array_equal(sent_and_read((settings,), row[None], seed)[0], decoded[0])


def test_a_step_is_never_rounded_down_nor_beyond_what_a_ping_may_carry() -> None:
    for largest in (1e-30, 1e-44, 1 / 3, 0.1, 1e29):
        update = np.array([[largest, -largest, 0.0]])
        assert float(step_of(update, Steps(size=1e-9))[0]) * 127 >= largest * (1 - 1e-15)
        assert np.abs(sent_and_read((Steps(size=1e-9),), update)).max() <= 1.01 * largest + 1e-44
    assert sent_and_read((Steps(size=1e30),), np.full((1, 3), 1e29)).max() <= 1e30


def test_the_largest_of_float32_numbers_is_no_more_than_127_steps() -> None:
    updates = np.random.default_rng(1).random((1000, 3)).astype(np.float32)
    steps = step_of(updates, Steps(size=1e-9))
    assert (steps.astype(np.float64) * 127 >= updates.max(axis=1)).all()


def variance_of(update: np.ndarray, settings: Steps) -> np.ndarray:
    """Return step² f (1 - f) of each weight, by the formula."""
    step = float(step_of(update[None], settings)[0])
    between = update / step - np.floor(update / step)
    return np.asarray(step**2 * between * (1 - between))


UPDATES = [two_sparse(), one_outlier(), frecency_updates()[0]]


@pytest.mark.parametrize("settings", [Steps(size=2.0), Steps(step=7.3)], ids=["size", "step"])
@pytest.mark.parametrize("update", UPDATES, ids=["sparse", "outlier", "real"])
def test_steps_are_unbiased(settings: Steps, update: np.ndarray) -> None:
    assert_unbiased(lambda updates: sent_and_read((settings,), updates), update, variance_of(update, settings))


@pytest.mark.parametrize("update", [two_sparse(), frecency_updates()[0]], ids=["sparse", "real"])
def test_steps_after_a_mask_are_unbiased(update: np.ndarray) -> None:
    assert_unbiased(lambda updates: sent_and_read((Mask(keep=0.25), Steps(size=1.0)), updates), update)


@pytest.mark.parametrize("size", [0.5, 1.0, 2.0])
def test_the_error_of_steps_is_that_of_the_formula(size: float) -> None:
    update = np.random.default_rng(2).standard_t(3, size=1000)
    errors = sent_and_read((Steps(size=size),), np.tile(update, (2_000, 1))) - update
    assert (errors**2).sum() / 2_000 == pytest.approx(variance_of(update, Steps(size=size)).sum(), rel=0.03)


def test_many_zeros_are_deflated_and_few_weights_are_not() -> None:
    client, server = both_ends((Steps(size=2.0),), spec_of(5_000))
    assert client.encode is not None
    updates = np.random.default_rng(1).normal(size=(3, 5_000)) * (np.arange(5_000) % 10 == 0)
    sizes = [len(payload) for payload in client.encode(updates, keys_of(3)).to_pylist()]
    assert max(sizes) < 5_000 / 4
    assert [
        len(payload) for payload in steps_payloads(np.ones(1, np.float32), np.zeros((1, 9), np.int8)).to_pylist()
    ] == [13]
    mixed = pa.concat_arrays(
        [
            client.encode(updates, keys_of(3)),
            pa.array([struct.pack("<f", 0.5) + b"\1" * 5_000, b"no", None], pa.binary()),
        ]
    )
    values, ok = server.decode(mixed, 5_000)
    assert ok.tolist() == [True, True, True, True, False, False]
    assert (values[3] == 0.5).all()
    np.testing.assert_array_equal(values[:3], server.decode(mixed[:3], 5_000)[0])
    np.testing.assert_array_equal(values[1:3], server.decode(mixed[1:3], 5_000)[0])


def packed(step: float, *body: bytes) -> bytes:
    return struct.pack("<f", step) + b"".join(body)


ZEROS = zlib.compress(bytes(1000))


@pytest.mark.parametrize(
    "bad",
    [
        None,
        b"",
        packed(1.0),
        packed(1.0, bytes(999)),
        packed(1.0, bytes(1001)),
        packed(1.0, b"\x80" + bytes(999)),
        packed(1.0, zlib.compress(b"\x80" + bytes(999))),
        packed(np.nan, ZEROS),
        packed(np.inf, ZEROS),
        packed(np.inf, bytes(1000)),
        packed(-1.0, ZEROS),
        packed(-0.0, ZEROS),
        packed(0.0, zlib.compress(b"\1" + bytes(999))),
        packed(0.0, b"\1" + bytes(999)),
        packed(1e30, b"\2" + bytes(999)),
        packed(3e38, zlib.compress(b"\x7f" + bytes(999))),
        packed(1.0, ZEROS, b"\0"),
        packed(1.0, ZEROS, ZEROS),
        packed(1.0, ZEROS[:-1]),
        packed(1.0, ZEROS[:-1], b"\xff"),
        packed(1.0, zlib.compress(bytes(999))),
        packed(1.0, zlib.compress(bytes(1001))),
        packed(1.0, zlib.compress(b"")),
        packed(1.0, zlib.compress(bytes(1000), wbits=-15)),
        packed(1.0, zlib.compress(bytes(1000), wbits=31)),
        packed(1.0, b"\x78\x9c", bytes(500)),
    ],
)
def test_payloads_that_are_no_steps_are_refused(bad: bytes | None) -> None:
    assert_refused_alike(both_ends((Steps(size=1.0),), spec_of(1000))[1], bad, 1000)


def test_a_step_of_zero_is_an_update_of_zeros() -> None:
    zeros = np.zeros((2, 1000))
    assert not sent_and_read((Steps(size=1.0),), zeros).any()
    _, server = both_ends((Steps(size=1.0),), spec_of(1000))
    assert server.decode(pa.array([packed(0.0, ZEROS)], pa.binary()), 1000)[1].all()
    assert server.trouble(packed(0.0, ZEROS), 1000) is None


def test_a_kilobyte_that_inflates_to_a_gigabyte_does_not() -> None:
    making = zlib.compressobj(9)
    bomb = b"".join(making.compress(bytes(2**20)) for _ in range(64)) + making.flush()
    m = 100_000
    bomb = packed(1.0, bomb[: m - 1])
    _, server = both_ends((Steps(size=1.0),), spec_of(1000))
    tracemalloc.start()
    try:
        assert_refused_alike(server, bomb, m)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * 2**20  # the 64 MiB after it are not inflated


@pytest.mark.parametrize("upload", [(Mask(keep=0.1), Steps(size=1.0))])
def test_steps_after_a_mask_are_refused_as_alone(upload: Upload) -> None:
    client, server = both_ends(upload, spec_of(1000))
    assert client.encode is not None
    assert server.encoding == "mask-steps"
    good = client.encode(np.ones((1, 1000)), keys_of(1))[0].as_py()
    head = good[:12]
    assert server.decode(pa.array([head + packed(1.0, bytes(100))], pa.binary()), 1000)[1].all()
    bad = [
        head + packed(1.0, bytes(99)),
        head + packed(np.nan, bytes(100)),
        head + packed(1.0, b"\x80" * 100),
        head[:11],
    ]
    bad += [head, head + packed(1e30, b"\1" * 100), head + packed(1.0, zlib.compress(bytes(100)), b"\0")]
    for one in bad:
        assert_refused_alike(server, one, 1000)


def test_a_size_or_a_step_is_given() -> None:
    with pytest.raises(InvalidSettings, match="needs either 'size'"):
        Steps()
    with pytest.raises(InvalidSettings, match="Set one"):
        Steps(size=1.0, step=1.0)
