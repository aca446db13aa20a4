"""Levels: the bytes, the decoded update, its error and lack of bias, and invalid payloads."""

import base64
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedping.protocol.encodings.blocks import packed, padded, padded_size
from fedping.protocol.encodings.levels import Levels, levels_fields, levels_numbers, levels_rotated_back
from fedping.protocol.encodings.rotation import rotated_back
from fedping.protocol.links import Rotation
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

EXAMPLE = base64.b64decode("AACAvwAAAEDkQwI=")
BITS = tuple(range(1, 9))
EVERY = [Levels(bits=bits, rotate=rotate) for bits in BITS for rotate in (False, True)]

updates_ = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 5), st.integers(1, 70) | st.sampled_from([1024, 1030])),
    elements=st.sampled_from([0.0, -0.0, -(2.0**70), 2.0**-60]) | st.floats(-1, 1, width=16),
)


def there_and_back(link: Levels, updates: np.ndarray, seed: int = 1) -> np.ndarray:
    client, server = link.ends(spec_of(updates.shape[1]))
    assert client.encode is not None
    assert server.decode is not None
    read, ok = server.decode(client.encode(updates, keys_of(len(updates), seed)), updates.shape[1])
    assert ok.all()
    return read


def test_the_example_of_the_layout_is_read() -> None:
    _, server = both_ends((Levels(bits=2),), spec_of(9))
    assert server.encoding == "levels-2"
    assert server.decode(pa.array([EXAMPLE]), 9)[0].tolist() == [[-1, 0, 1, 2, 2, -1, -1, 0, 1]]


@pytest.mark.parametrize(
    ("fields", "bits", "rows"),
    [
        ([0, 1, 2, 3, 3, 0, 0, 1, 2], 2, [228, 67, 2]),
        ([15, 0, 7, 8, 1], 4, [15, 135, 1]),
        ([1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0], 1, [13, 3]),
        ([7, 255], 8, [7, 255]),
        ([31, 0, 1], 5, [31, 4]),
        ([63, 1], 6, [127, 0]),
        ([127, 1, 3], 7, [255, 192, 0]),
        ([7, 0, 5], 3, [71, 1]),
    ],
)
def test_fields_are_filled_from_the_low_bits(fields: list[int], bits: int, rows: list[int]) -> None:
    assert packed(np.array([fields], np.uint8), bits).tolist() == [rows]


def test_a_level_is_what_a_number_is_in_distances_plus_u_rounded_down() -> None:
    heads, fields = levels_fields(np.float32([[-1, 0.25, 2, 0.25]]), np.array([[0.99, 0.74, 0.99, 0.75]]), 2)
    assert heads.tolist() == [[[-1, 2]]]
    assert fields.tolist() == [[0, 1, 3, 2]]


def test_all_heads_come_before_all_levels() -> None:
    update = np.repeat(np.float32([1, 2]), [1024, 5])[None]
    update[0, 0] = -3
    client, _ = both_ends((Levels(bits=1),), spec_of(1029))
    assert client.encode is not None
    [payload] = client.encode(update, keys_of(1)).to_pylist()
    assert payload == struct.pack("<4f", -3, 1, 2, 2) + b"\xfe" + b"\xff" * 127 + b"\x00"


@given(updates_, st.sampled_from(BITS), st.integers(0, 3))
def test_what_is_read_is_within_one_level_and_exact_at_both_ends(updates: Any, bits: Any, seed: int) -> None:
    read = there_and_back(Levels(bits=bits), updates, seed)
    for start in range(0, updates.shape[1], 1024):
        block, back = updates[:, start : start + 1024].astype(float), read[:, start : start + 1024].astype(float)
        if not len(block):
            continue
        low, high = block.min(axis=1, keepdims=True), block.max(axis=1, keepdims=True)
        spacing = (high - low) / (2**bits - 1)
        assert (np.abs(back - block) <= spacing * (1 + 1e-6) + np.abs(block) * 1e-6).all()
        at_an_end = (block == low) | (block == high)
        np.testing.assert_array_equal(back[at_an_end], block[at_an_end])


@pytest.mark.parametrize("bits", BITS)
def test_the_greatest_is_exact_however_small_beside_the_least(bits: Any) -> None:
    update = np.float32([[-1e30, 1e-5, -1e-5], [-7.1, 0, -0.3]])
    heads, fields = levels_fields(update, np.zeros(update.shape), bits)
    np.testing.assert_array_equal(levels_numbers(heads, packed(fields, bits), 3, bits)[:, :2], update[:, :2])


@pytest.mark.parametrize("link", EVERY)
def test_an_update_of_zeros_stays_one(link: Levels) -> None:
    assert not sent_and_read((link,), np.zeros((3, 1030))).any()


@given(updates_, st.sampled_from(EVERY), st.integers(-20, 20))
def test_an_update_scaled_by_a_power_of_two_is_read_so_scaled(updates: Any, link: Levels, power: int) -> None:
    scale = np.float32(2.0**power)
    np.testing.assert_array_equal(there_and_back(link, updates * scale), there_and_back(link, updates) * scale)


@pytest.mark.parametrize("link", EVERY)
def test_pings_do_not_depend_on_each_other(link: Levels) -> None:
    updates = np.random.default_rng(1).standard_cauchy((300, 700))
    client, server = both_ends((link,), spec_of(700))
    assert client.encode is not None
    keys = keys_of(300)
    payloads = client.encode(updates, keys)
    assert client.encode(updates[7:9], keys[7:9]).to_pylist() == payloads.slice(7, 2).to_pylist()
    together, _ = server.decode(payloads, 700)
    np.testing.assert_array_equal(server.decode(payloads.slice(7, 2), 700)[0], together[7:9])


@pytest.mark.parametrize("link", [link for link in EVERY if link.bits in (1, 4)])
@pytest.mark.parametrize("made", [two_sparse, *(lambda at=at: frecency_updates()[at] for at in range(3))])
def test_the_mean_of_what_is_read_is_the_update(link: Levels, made: Callable[[], np.ndarray]) -> None:
    """At four standard errors, one in sixteen thousand weights would fail by chance; the seeds are fixed."""
    assert_unbiased(lambda updates: sent_and_read((link,), updates), made())


@pytest.mark.parametrize("link", [Levels(bits=8), Levels(bits=1, rotate=True), Levels(bits=2, rotate=True)])
def test_one_weight_a_million_times_the_others_changes_no_mean(link: Levels) -> None:
    """With fewer bits and without rotation, 20,000 encodings hardly ever raise a small weight to the next level."""
    assert_unbiased(lambda updates: sent_and_read((link,), updates), one_outlier())


def test_levels_of_updates_that_share_a_rotation_have_no_bias() -> None:
    upload, update = (Rotation(seed=3), Levels(bits=2)), two_sparse()
    client, server = both_ends(upload, spec_of(22))
    [transform] = client.transforms
    assert client.encode is not None
    updates = np.tile(update, (20_000, 1))
    read, ok = server.decode(client.encode(transform(updates, keys_of(20_000)), keys_of(20_000)), 22)
    assert ok.all()
    back = np.array([server.undo_sum(spec_of(22), each) for each in read.reshape(200, 100, 22).mean(axis=1)])
    assert (np.abs(back.mean(axis=0) - update) <= 4 * back.std(axis=0, ddof=1) / np.sqrt(200)).all()


@pytest.mark.parametrize("bits", BITS)
def test_the_error_is_that_of_the_formula(bits: Any) -> None:
    """The variance of a weight is d² f (1 - f), where f is its fraction of the distance."""
    update = np.random.default_rng(5).normal(size=10_000).astype(np.float32)
    expected = 0.0
    for block in np.split(update.astype(float), range(1024, 10_000, 1024)):
        spacing = (block.max() - block.min()) / (2**bits - 1)
        fraction = (block - block.min()) / spacing % 1
        expected += float((spacing**2 * fraction * (1 - fraction)).sum())
    read = sent_and_read((Levels(bits=bits),), np.tile(update, (40, 1)))
    assert ((read - update) ** 2).sum() / 40 == pytest.approx(expected, rel=0.03)
    if bits == 2:
        assert expected / (update.astype(float) ** 2).sum() == pytest.approx(0.78, rel=0.05)


def test_a_rotation_of_its_own_spreads_an_outlier_over_its_block() -> None:
    update = np.random.default_rng(4).normal(size=1024)
    update[17] = 100.0
    plain, rotated = (
        ((there_and_back(Levels(bits=2, rotate=rotate), np.tile(update, (50, 1))) - update) ** 2).sum()
        for rotate in (False, True)
    )
    assert rotated < plain / 4


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("m", [1, 22, 1030, 70_000])
def test_what_is_read_is_what_the_levels_mean_rotated_back(bits: Any, m: int) -> None:
    """Compared with the levels' numbers in double precision, rotated back; also for blocks far from zero."""
    updates = np.random.default_rng(m).normal(size=(3, m)).astype(np.float32)
    updates[1] += 1000
    size = padded_size(m)
    heads, fields = levels_fields(padded(updates), np.full((3, size), 0.5), bits)
    rows, seeds = packed(fields, bits), np.arange(3, dtype=np.uint64)
    expected = rotated_back(levels_numbers(heads, rows, size, bits).astype(np.float64), seeds)
    found = levels_rotated_back(heads, rows, seeds, size, bits)
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-6 * np.abs(heads).max())


def payload_of(link: Levels, m: int) -> bytes:
    client, _ = both_ends((link,), spec_of(m))
    assert client.encode is not None
    payload: bytes = client.encode(np.random.default_rng(2).normal(size=(1, m)), keys_of(1))[0].as_py()
    return payload


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize(
    ("low", "high"),
    [(np.nan, 1), (0, np.nan), (-np.inf, 1), (0, np.inf), (1, 0.5), (-1e38, 1), (0, 1e38), (-1.1e30, 0)],
)
def test_heads_that_are_none_are_refused(rotate: bool, low: float, high: float) -> None:
    link = Levels(bits=4, rotate=rotate)
    _, server = both_ends((link,), spec_of(1030))
    good, at = payload_of(link, 1030), 8 * rotate
    for place in (at, at + 8):
        bad = good[:place] + struct.pack("<2f", low, high) + good[place + 8 :]
        assert_refused_alike(server, bad, 1030)
        values, ok = server.decode(pa.array([good, bad, good]), 1030)
        assert ok.tolist() == [True, False, True]
        assert not values[1].any()
        np.testing.assert_array_equal(values[0], values[2])
        assert "least and greatest number" in str(server.trouble(bad, 1030))


@pytest.mark.parametrize("link", EVERY)
def test_what_has_another_length_or_too_many_bits_is_refused(link: Levels) -> None:
    _, server = both_ends((link,), spec_of(3))
    good = payload_of(link, 3)
    for bad in (None, b"", good[:-1], good + b"\0", good[:4]):
        assert_refused_alike(server, bad, 3)
    if link.bits != 8 and (3 + link.rotate) * link.bits % 8:
        bad = good[:-1] + bytes([good[-1] | 128])
        assert_refused_alike(server, bad, 3)
        assert server.trouble(bad, 3) == "has bits set beyond its last weight"


def test_a_seed_of_2_to_53_is_refused() -> None:
    link = Levels(bits=1, rotate=True)
    _, server = both_ends((link,), spec_of(9))
    bad = struct.pack("<Q", 2**53) + payload_of(link, 9)[8:]
    assert_refused_alike(server, bad, 9)
    assert server.trouble(bad, 9) == "has a seed of 2^53 or more"


@given(st.lists(st.none() | st.binary(max_size=22), max_size=9), st.integers(1, 5), st.sampled_from(EVERY))
def test_ingest_judges_one_payload_as_the_round_does(payloads: list[Any], m: int, link: Levels) -> None:
    _, server = both_ends((link,), spec_of(m))
    values, ok = server.decode(pa.array(payloads, pa.binary()), m)
    assert np.isfinite(values).all()
    least, most = server.lengths(m)
    for payload, row, good in zip(payloads, values, ok.tolist(), strict=True):
        fits = payload is not None and least <= len(payload) <= most and server.trouble(payload, m) is None
        assert good == fits
        assert good or not row.any()


def test_an_update_is_read_to_the_same_bits_beside_whichever_others() -> None:
    """Tests a zero's sign too: the maximum of the first is -0, which alone is decoded as 0."""
    heads = [[-1.0, -0.0], [-1e30, 1.0]]
    payloads = [np.array(head, "<f4").tobytes() + b"\x03" for head in heads]
    _, server = both_ends((Levels(bits=2),), spec_of(4))
    together, _ = server.decode(pa.array(payloads, pa.binary()), 4)
    alone = [server.decode(pa.array([payload], pa.binary()), 4)[0][0] for payload in payloads]
    np.testing.assert_array_equal(together.view(np.uint32), np.array(alone).view(np.uint32))
