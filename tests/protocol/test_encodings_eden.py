"""EDEN: the decoded update, its error, its bias, and invalid payloads."""

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.protocol.draws import bits as random_bits
from fedping.protocol.encodings import eden
from fedping.protocol.encodings.blocks import field_table, looked_up, packed
from fedping.protocol.encodings.eden import Eden, nearest_levels
from fedping.protocol.encodings.rotation import block_keys, hadamard, random_signs
from tests.support.encodings import (
    assert_refused_alike,
    both_ends,
    frecency_updates,
    keys_of,
    one_outlier,
    spec_of,
    two_sparse,
)

BITS = (1, 2, 3, 4)
ERROR = {1: math.pi / 2 - 1, 2: 0.13312, 3: 0.035784, 4: 0.0095921}


def there_and_back(bits: Any, updates: np.ndarray, seed: int = 1) -> np.ndarray:
    client, server = Eden(bits=bits).ends(spec_of(updates.shape[1]))
    assert client.encode is not None
    assert server.decode is not None
    read, ok = server.decode(client.encode(updates, keys_of(len(updates), seed)), updates.shape[1])
    assert ok.all()
    return read


def bias(bits: int, update: np.ndarray) -> float:
    """Return the squared distance of the mean of 20,000 encodings from an update, relative to its squared norm."""
    mean = there_and_back(bits, np.tile(update, (20_000, 1))).mean(axis=0, dtype=float)
    return float(((mean - update) ** 2).sum() / (update**2).sum())


@given(st.sampled_from(BITS), st.integers(0, 4), st.integers(1, 40))
def test_fields_of_any_bits_are_found_again(bits: int, k: int, n: int) -> None:
    fields = (random_bits(keys_of(k), n) >> np.uint64(64 - bits)).astype(np.uint8)
    rows = packed(fields, bits)
    assert rows.shape == (k, math.ceil(n * bits / 8))
    np.testing.assert_array_equal(looked_up(rows, field_table(np.arange(2.0**bits)))[:, :n], fields)
    for row, values in zip(rows.tolist(), fields.tolist(), strict=True):
        assert int.from_bytes(row, "little") == sum(value << bits * place for place, value in enumerate(values))


@pytest.mark.parametrize("bits", BITS)
def test_the_error_is_that_of_the_formula(bits: int) -> None:
    """Tested with 5,000 weights, 904 of them in a block of 1,024 numbers."""
    update = np.random.default_rng(2).standard_cauchy((300, 5000)).clip(-20, 20)
    read = there_and_back(bits, update)
    for start in range(0, 5000, 1024):
        block = slice(start, start + 1024)
        found = ((read - update)[:, block] ** 2).sum(axis=1) / (update[:, block] ** 2).sum(axis=1)
        assert found.mean() == pytest.approx(min(5000 - start, 1024) / 1024 * ERROR[bits], rel=0.03)


def test_the_bias_of_two_weights_is_small_with_two_rotations_and_not_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bias(1, two_sparse()) == pytest.approx(0.0024, abs=0.0006)
    monkeypatch.setattr(eden, "_ROTATIONS", (0,))
    assert bias(1, two_sparse()) == pytest.approx(0.14, abs=0.01)
    assert not there_and_back(1, np.tile(two_sparse(), (100, 1)))[:, 7].any()


@pytest.mark.parametrize("bits", BITS)
def test_the_bias_of_other_updates_is_small(bits: int) -> None:
    """The mean of 20,000 encodings has an error itself, a single encoding's over 20,000."""
    assert max(bias(bits, update) for update in frecency_updates()[:3]) < 0.02
    assert bias(bits, one_outlier()) < 0.02
    assert bias(bits, np.random.default_rng(1).normal(size=64)) < 4 * ERROR[bits] / 20_000 + 2e-4


@pytest.mark.parametrize("bits", BITS)
def test_an_update_of_zeros_stays_one(bits: int) -> None:
    updates = np.zeros((3, 1030))
    updates[1, 1029] = 1.0
    read = there_and_back(bits, updates)
    assert not read[[0, 2]].any()
    assert not read[1, :1024].any()
    assert read[1].any()


@given(st.sampled_from(BITS), st.integers(-20, 20), st.integers(1, 70), st.integers(0, 3))
def test_an_update_scaled_by_a_power_of_two_is_read_so_scaled(bits: int, power: int, m: int, seed: int) -> None:
    updates, scale = np.random.default_rng(seed).normal(size=(4, m)).astype(np.float32), np.float32(2.0**power)
    np.testing.assert_array_equal(there_and_back(bits, updates * scale), there_and_back(bits, updates) * scale)


@pytest.mark.parametrize("bits", BITS)
def test_what_is_read_has_one_rounding_and_no_other(bits: int) -> None:
    """Both transforms of the worst-case payload are exact; compared with integer arithmetic in units of 1/128."""
    levels = np.round(eden._LEVELS[bits].astype(np.float64) * 128).astype(np.int64)
    assert np.abs(levels).max() * 1024 * 32 < 2**24
    fields = (random_bits(keys_of(4), 1024 + 32) >> np.uint64(64 - bits)).astype(np.uint8)
    fields[0] = len(levels) - 1
    scales = np.float32([0.3, 1e-3, 7.7, 1e30])[:, None, None] * np.ones((4, 2, 1), np.float32)
    found = eden.rotated_back_levels(scales, packed(fields, bits), keys_of(4), 1056, bits)
    for block, (where, size) in enumerate([(slice(0, 1024), 1024), (slice(1024, 1056), 32)]):
        whole = levels[fields[:, where]].astype(np.float64)
        for rotation in (1, 0):
            signs = random_signs(block_keys(keys_of(4), 2, rotation)[:, block], size)
            whole = hadamard(whole) * signs
        expected = (whole * (scales[:, block].astype(np.float64) / (128 * size))).astype(np.float32)
        np.testing.assert_array_equal(found[:, where], expected)


def test_pings_do_not_depend_on_each_other() -> None:
    updates = np.random.default_rng(1).normal(size=(300, 700))
    np.testing.assert_array_equal(there_and_back(3, updates)[:1], there_and_back(3, updates[:1]))


def test_the_factor_keeps_the_length_along_the_update() -> None:
    """<s z, x> = |x|², which makes it unbiased for a uniform rotation."""
    numbers = np.random.default_rng(3).normal(size=(5, 1056)).astype(np.float32)
    scales, fields = nearest_levels(numbers, 2)
    levels = looked_up(packed(fields, 2), eden._TABLES[2])
    for number, block in enumerate((slice(0, 1024), slice(1024, 1056))):
        along = (scales[:, number] * levels[:, block] * numbers[:, block]).sum(axis=1, dtype=float)
        np.testing.assert_allclose(along, (numbers[:, block].astype(float) ** 2).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize("factor", [np.nan, np.inf, -np.inf, -1.0, 1e38])
def test_factors_that_are_none_are_refused(factor: float) -> None:
    client, server = both_ends((Eden(bits=2),), spec_of(1030))
    assert client.encode is not None
    good: bytes = client.encode(np.ones((1, 1030)), keys_of(1))[0].as_py()
    for place in (8, 12):
        bad = good[:place] + struct.pack("<f", factor) + good[place + 4 :]
        assert_refused_alike(server, bad, 1030)
        values, ok = server.decode(pa.array([good, bad]), 1030)
        assert ok.tolist() == [True, False]
        assert values[0].any()
        assert not values[1].any()
        assert "whose factor is not finite" in str(server.trouble(bad, 1030))


@pytest.mark.parametrize("bits", BITS)
def test_what_is_no_payload_is_refused(bits: Any) -> None:
    client, server = both_ends((Eden(bits=bits),), spec_of(2))
    assert client.encode is not None
    good: bytes = client.encode(np.ones((1, 2)), keys_of(1))[0].as_py()
    for bad in (None, b"", good[:-1], good + b"\0", struct.pack("<Q", 2**53) + good[8:]):
        assert_refused_alike(server, bad, 2)
    if bits < 4:
        bad = good[:-1] + bytes([good[-1] | 128])
        assert_refused_alike(server, bad, 2)
        assert server.trouble(bad, 2) == "has bits set beyond its last weight"


@given(st.lists(st.none() | st.binary(max_size=16), max_size=9), st.integers(1, 5), st.sampled_from(BITS))
def test_ingest_judges_one_payload_as_the_round_does(payloads: list[Any], m: int, bits: Any) -> None:
    _, server = both_ends((Eden(bits=bits),), spec_of(m))
    values, ok = server.decode(pa.array(payloads, pa.binary()), m)
    assert np.isfinite(values).all()
    least, most = server.lengths(m)
    for payload, row, good in zip(payloads, values, ok.tolist(), strict=True):
        fits = payload is not None and least <= len(payload) <= most and server.trouble(payload, m) is None
        assert good == fits
        assert good or not row.any()
