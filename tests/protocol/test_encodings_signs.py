"""The signs of updates, five or eight in a byte: encoding, decoding, and invalid payloads."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedping.protocol.encodings.signs import signs_payloads, signs_trouble, signs_updates
from fedping.protocol.links import Sign, Signs
from fedping.protocol.upload import receiving, sending
from tests.support.links import line_with

UPDATE = np.array([[0.5, -1, 0, 0, 3, 0, 0, -2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, -1]])
BYTES = bytes([200, 112, 121, 202, 118])

updates_ = hnp.arrays(
    np.float64,
    st.tuples(st.integers(0, 9), st.integers(1, 40)),
    elements=st.sampled_from([0.0, -0.0, 5e-324, -1e30]) | st.floats(-1, 1),
)


def sent(link: Any, updates: np.ndarray) -> pa.BinaryArray:
    encode = sending(line_with((link,))).encode
    assert encode is not None
    return encode(updates, np.arange(len(updates), dtype=np.uint64))


def test_five_signs_are_a_byte() -> None:
    assert signs_payloads(UPDATE).to_pylist() == [BYTES]
    assert signs_payloads(np.zeros((1, 22))).to_pylist() == [bytes([121] * 5)]
    assert signs_updates(pa.array([BYTES]), 22)[0].tolist() == np.sign(UPDATE).tolist()


@given(updates_)
def test_signs_arrive(updates: np.ndarray) -> None:
    m = updates.shape[1]
    payloads, received = sent(Signs(), updates), receiving(line_with((Signs(),)))
    values, ok = received.decode(payloads, m)
    assert (received.encoding, values.dtype) == ("signs", np.float32)
    assert ok.all()
    np.testing.assert_array_equal(values, np.sign(updates))
    assert all(received.lengths(m) == (len(one), len(one)) for one in payloads.to_pylist())
    assert not any(received.trouble(one, m) for one in payloads.to_pylist())


@given(updates_)
def test_with_zero_up_the_bits_are_those_of_sign(updates: np.ndarray) -> None:
    payloads, received = sent(Signs(zero="up"), updates), receiving(line_with((Signs(zero="up"),)))
    assert received.encoding == "signs-up"
    assert payloads.to_pylist() == sent(Sign(zero="up"), updates).to_pylist()
    np.testing.assert_array_equal(received.decode(payloads, updates.shape[1])[0], np.where(updates >= 0, 1, -1))


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (bytes([243, 112, 121, 202, 118]), "has a byte above 242, which is not five signs"),
        (bytes([200, 112, 121, 202, 255]), "has a byte above 242, which is not five signs"),
        (bytes([200, 112, 121, 202, 119 + 80]), "has signs beyond its last weight"),
        (bytes([200, 112, 121, 202, 118 + 9]), "has signs beyond its last weight"),
    ],
)
def test_what_is_no_signs_is_refused_and_cannot_be_read(payload: bytes, said: str) -> None:
    assert signs_trouble(payload, 22) == said
    values, ok = signs_updates(pa.array([BYTES, payload, None, BYTES[:-1], BYTES + b"y"]), 22)
    assert ok.tolist() == [True, False, False, False, False]
    assert values[0].tolist() == np.sign(UPDATE[0]).tolist()
    assert not values[1:].any()


@given(st.lists(st.none() | st.binary(max_size=4), max_size=12), st.integers(1, 14), st.sampled_from(["up", "abstain"]))
def test_ingest_judges_one_payload_as_the_round_does(payloads: list[Any], m: int, zero: Any) -> None:
    received = receiving(line_with((Signs(zero=zero),)))
    values, ok = received.decode(pa.array(payloads, pa.binary()), m)
    assert set(np.unique(values).tolist()) <= {-1.0, 0.0, 1.0}
    least, most = received.lengths(m)
    for payload, row, good in zip(payloads, values, ok.tolist(), strict=True):
        fits = payload is not None and least <= len(payload) <= most and received.trouble(payload, m) is None
        assert good == fits
        assert sent(Signs(zero=zero), row[None])[0].as_py() == payload if good else not row.any()
