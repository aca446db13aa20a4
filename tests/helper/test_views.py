"""Each server's data alone look like noise, and both together have the promised noise."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from fedping.helper.requests import reply
from fedping.protocol.sharing.shares import leader_shares, masks
from fedping.server_jobs.privacy.noise import has_its_size
from tests.support.helping import CENTRAL, NOW, answer_in, asked, combined, joined, request_of

ONE_IN_A_MILLION = 1e-6


def seeds(k: int) -> list[bytes]:
    return [hashlib.sha256(b"uniform %d" % number).digest() for number in range(k)]


def uniformity(bytes_: NDArray[np.uint8]) -> float:
    """Return the p-value of a chi-squared test that bytes are uniform, with 255 degrees of freedom."""
    counts = np.bincount(bytes_.reshape(-1), minlength=256)
    expected = bytes_.size / 256
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), 255))


@pytest.mark.parametrize("value", [0, 1, -64, 2**24 - 1])
def test_either_share_of_any_vector_is_uniform_in_each_byte(value: int) -> None:
    """χ² tests of each of a word's 8 bytes and of all: 72 tests that fail by chance once in 10^6; seeds are fixed."""
    vectors = np.full((4000, 25), value)
    leader = leader_shares(vectors, seeds(4000)).reshape(-1, 8)
    helper = masks(seeds(4000), 25).astype("<u8").view(np.uint8).reshape(-1, 8)
    for share in (leader, helper):
        for place in range(8):
            assert uniformity(share[:, place]) > ONE_IN_A_MILLION
        assert uniformity(share) > ONE_IN_A_MILLION


def test_the_test_of_uniformity_sees_what_is_not() -> None:
    vectors = np.full((4000, 25), 64)
    plain = vectors.astype("<u8").view(np.uint8)
    half = leader_shares(vectors, seeds(4000)) & 0xFE
    assert uniformity(plain) < ONE_IN_A_MILLION
    assert uniformity(half) < ONE_IN_A_MILLION


def test_the_noise_of_an_answer_has_the_size_that_was_promised(tmp_path: Path) -> None:
    """Uses the operating system's randomness; fails by chance with probability 2 in 10^6 for either arm."""
    helping = joined(tmp_path / "helper", m=2000, central=CENTRAL)
    ones = np.ones((3, helping.terms.numbers), np.int64)
    arms = [
        asked(helping.terms, ones, arm=arm, first=10 * n, to=helping.offer)
        for n, arm in enumerate(("treatment", "control"))
    ]
    found = answer_in(reply(helping.folder, request_of(helping, *(arm.rows for arm in arms)), NOW).data)
    noise = [combined(shares, arm) - 3 for (_, shares), arm in zip(arms, found.arms, strict=True)]
    for each in noise:
        assert has_its_size(each, helping.terms.sigma)
        assert not has_its_size(each, helping.terms.sigma * 1.2)
    assert not np.array_equal(*noise)
