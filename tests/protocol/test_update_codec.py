"""The dense codec: a lossless round trip of float32, and a mask that excludes everything but updates of m numbers."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedping.protocol.encodings.dense import dense_payloads, dense_updates

shapes = st.tuples(st.integers(0, 20), st.integers(1, 30))
finite = st.floats(-(2.0**100), 2.0**100, width=32)


@given(hnp.arrays(np.float32, shapes, elements=finite))
def test_float32_updates_come_back_as_they_were(updates: np.ndarray) -> None:
    decoded, good = dense_updates(dense_payloads(updates), updates.shape[1])
    assert good.all()
    np.testing.assert_array_equal(decoded, updates)


@given(hnp.arrays(np.float32, shapes, elements=finite), st.data())
def test_a_slice_of_a_column_decodes_like_the_rows_it_holds(updates: np.ndarray, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(updates)))
    decoded, _ = dense_updates(dense_payloads(updates).slice(start), updates.shape[1])
    np.testing.assert_array_equal(decoded, updates[start:])


def test_what_is_not_an_update_of_m_finite_numbers_is_masked_and_zero() -> None:
    good = np.array([1.0, 2.0], dtype="<f4").tobytes()
    not_finite = np.array([np.nan, 2.0], dtype="<f4").tobytes()
    both_infinities = np.array([np.inf, -np.inf], dtype="<f4").tobytes()
    column = pa.array([good, None, good[:-1], not_finite, both_infinities, b"", good], type=pa.binary())
    decoded, mask = dense_updates(column, 2)
    assert mask.tolist() == [True, False, False, False, False, False, True]
    assert decoded.tolist() == [[1, 2], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [1, 2]]
