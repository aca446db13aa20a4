"""Random rotations: the transform, its signs, its inverse, and one inverse for a sum of updates."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedping.protocol.encodings.blocks import padded
from fedping.protocol.encodings.rotation import (
    blocks_of,
    exact_hadamard,
    hadamard,
    random_signs,
    rotated,
    rotated_back,
)
from fedping.protocol.limits import UpdateLimits
from fedping.protocol.links import Rotation
from fedping.protocol.pipeline import MeanOfSigns, Pipeline
from fedping.protocol.stopping_settings import IterationBySigns
from fedping.protocol.upload import receiving, sending
from tests.support.encodings import spec_of
from tests.support.links import line_with

sizes = st.integers(1, 40) | st.sampled_from([1000, 1023, 1024, 1025, 3000])


def normal(k: int, m: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(k, m))


def seeds(k: int, seed: int = 0) -> np.ndarray:
    return np.arange(seed, seed + k, dtype=np.uint64)


def test_the_transform_is_in_its_natural_order() -> None:
    assert hadamard(np.arange(1.0, 9.0)[None]).tolist() == [[36, -4, -8, 0, -16, 0, 0, 0]]


@pytest.mark.parametrize("size", [2**power for power in range(11)])
def test_the_transform_is_the_product_with_the_matrix(size: int) -> None:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    numbers = np.random.default_rng(1).integers(-9, 9, (3, size)).astype(np.float32)
    np.testing.assert_array_equal(hadamard(numbers), numbers @ matrix)


@pytest.mark.parametrize("size", [2**power for power in range(11)])
@pytest.mark.parametrize("most", [1, 255, 2**14])
def test_products_are_exact_up_to_sums_of_2_to_24(size: int, most: int) -> None:
    """Tests equal and alternating numbers, whose sums are the largest, and enough blocks for several products."""
    drawn = np.random.default_rng(size).integers(-most, most + 1, (300, size))
    drawn[0], drawn[1] = most, most * (-1) ** (np.arange(size) & 1)
    found = exact_hadamard(drawn.astype(np.float32).reshape(3, 100, size)).reshape(300, size)
    np.testing.assert_array_equal(found, whole_hadamard(drawn))
    assert not np.signbit(found[found == 0]).any()
    np.testing.assert_array_equal(exact_hadamard(drawn[7:8].astype(np.float32)), found[7:8])


def whole_hadamard(numbers: np.ndarray) -> np.ndarray:
    """Return the transforms of integers along the last axis, in integer arithmetic."""
    size = numbers.shape[-1]
    if size == 1:
        return numbers
    low, high = (whole_hadamard(half) for half in np.split(numbers, 2, axis=-1))
    return np.concatenate([low + high, low - high], axis=-1)


DECODED = """
import hashlib
import numpy as np
from fedping.protocol.links import Eden, Levels
from tests.support.encodings import sent_and_read
updates = np.random.default_rng(1).integers(-9, 9, (9, 9000)) * np.ones(1, np.float32)
for link in (Levels(bits=8, rotate=True), Eden(bits=4)):
    print(hashlib.sha256(sent_and_read((link,), updates).tobytes()).hexdigest())
"""


def test_another_processor_and_other_threads_come_to_the_same_bits() -> None:
    """OpenBLAS is told which processor's products to use; for floats, they differ in the last bits."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DECODED], env=os.environ | extra, check=True, capture_output=True, text=True
        ).stdout
        for extra in ({"OPENBLAS_NUM_THREADS": "3"}, {"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Nehalem"})
    }
    assert len(digests) == 1


def test_signs_are_the_bits_of_a_key_low_bit_first() -> None:
    assert random_signs(np.array([7], np.uint64), 8).tolist() == [[-1, -1, -1, 1, -1, 1, -1, -1]]
    wide = random_signs(seeds(2), 1024)
    assert abs(wide.mean()) < 0.1
    np.testing.assert_array_equal(random_signs(seeds(2), 70), wide[:, :70])


def test_a_rest_is_blocks_of_powers_of_two_or_filled_up_to_one() -> None:
    assert [(where.start, where.stop, block) for where, block in blocks_of(2070)] == [
        (0, 2048, 1024),
        (2048, 2064, 16),
        (2064, 2068, 4),
        (2068, 2070, 2),
    ]
    assert [padded(np.ones((1, m))).shape[1] for m in (1, 22, 1000, 1024, 1025, 2070)] == [
        1,
        32,
        1024,
        1024,
        1025,
        2080,
    ]


@given(sizes, st.integers(0, 4), st.integers(0, 9))
def test_rotations_keep_the_norm_and_are_undone(m: int, k: int, seed: int) -> None:
    updates = normal(k, m, seed)
    there = rotated(updates, seeds(k, seed))
    np.testing.assert_allclose((there**2).sum(axis=1), (updates**2).sum(axis=1))
    np.testing.assert_allclose(rotated_back(there, seeds(k, seed)), updates, atol=1e-12)
    assert rotated(updates.astype(np.float32), seeds(k, seed)).dtype == np.float32


@given(sizes, st.integers(0, 9))
def test_pings_and_blocks_have_rotations_of_their_own(m: int, seed: int) -> None:
    """Holds for any number of updates at a time; inputs scaled by a power of two give exactly scaled results."""
    updates = normal(5, m, seed)
    together = rotated(updates, seeds(5))
    one_by_one = [rotated(row[None], seeds(1, number))[0] for number, row in enumerate(updates)]
    np.testing.assert_array_equal(together, one_by_one)
    np.testing.assert_array_equal(rotated(updates * 2.0**-20, seeds(5)), together * 2.0**-20)


def test_two_blocks_do_not_share_their_signs() -> None:
    same = np.tile(normal(1, 1024, 1), (1, 2))
    first, second = np.split(rotated(same, seeds(1))[0], 2)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
    again = rotated(same, seeds(1), 1)[0, :1024]
    assert abs(np.corrcoef(first, again)[0, 1]) < 0.2


def test_the_link_is_undone_once_of_the_mean_and_else_of_each_update() -> None:
    updates, spec = normal(6, 1030, 2), spec_of(1030)
    line = line_with((Rotation(seed=5),), spec=spec)
    [transform] = sending(line).transforms
    travelling = transform(updates, seeds(6))
    np.testing.assert_array_equal(travelling[3:4], transform(updates[3:4], seeds(1)))  # the same for every client
    received = receiving(line)
    assert received.undone == ()
    np.testing.assert_allclose(received.undo_sum(spec, travelling.mean(axis=0)), updates.mean(axis=0), atol=1e-12)
    [undo] = receiving(line_with((Rotation(seed=5),), Pipeline(aggregate=MeanOfSigns()), spec)).undone
    np.testing.assert_allclose(undo(travelling.astype(np.float32)), updates, atol=1e-5)
    bounded = replace(line, limits=UpdateLimits(weight=1.0))  # which bounds a weight, not what it is rotated to
    assert len(receiving(bounded).undone) == 1
    assert len(receiving(replace(line, length=IterationBySigns(least=1, most=2))).undone) == 1
    [other] = sending(line_with((Rotation(seed=6),), spec=spec)).transforms
    assert not np.allclose(other(updates, seeds(6)), travelling)
