"""Discrete Gaussian noise: its distribution from both sources, on the grid of whole numbers, and never seeded."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2

from fedping.protocol import discrete_gaussian as discrete
from fedping.protocol.discrete_gaussian import discrete_gaussian
from fedping.server_jobs.privacy import noise
from fedping.server_jobs.privacy.gaussian import NoGuarantee
from fedping.server_jobs.privacy.noise import SystemNoise, has_its_size


def probabilities(sigma: float) -> dict[int, float]:
    reach = math.ceil(12 * sigma)
    weights = {y: math.exp(-y * y / (2 * sigma * sigma)) for y in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    return {y: weight / total for y, weight in weights.items()}


def chi_square(drawn: np.ndarray, sigma: float, cells: int = 31) -> float:
    """Return the p-value of draws against the discrete Gaussian, in cells of about equal probability."""
    edges, reached, wanted = [], 0.0, []
    for y, p in probabilities(sigma).items():
        reached += p
        if reached >= 1 / cells and len(edges) < cells - 1:
            edges.append(y)
            wanted.append(reached)
            reached = 0.0
    wanted.append(reached)
    expected = np.array(wanted) * len(drawn)
    counted = np.bincount(np.searchsorted(edges, drawn), minlength=len(expected))
    kept = expected > 5
    return float(chi2.sf(np.sum((counted - expected)[kept] ** 2 / expected[kept]), kept.sum() - 1))


def test_the_stated_probabilities() -> None:
    assert probabilities(1.0)[0] == pytest.approx(0.3989423, abs=5e-8)
    assert probabilities(1.0)[1] == pytest.approx(0.2419707, abs=5e-8)


@pytest.mark.parametrize("sigma", [1.0, 1.5, 7.3, 1000.25])
def test_the_distribution_of_many_at_once(sigma: float) -> None:
    drawn = discrete_gaussian(np.random.default_rng(14).bytes, sigma, 200_000)
    assert drawn.dtype == np.int64
    assert drawn.shape == (200_000,)
    assert chi_square(drawn, sigma) > 1e-3
    assert chi_square(discrete_gaussian(np.random.default_rng(15).bytes, sigma * 1.02, 200_000), sigma) < 1e-3


def test_a_scale_of_a_trillion() -> None:
    drawn = discrete_gaussian(np.random.default_rng(14).bytes, 2.0**40, 100_000)
    assert has_its_size(drawn, 2.0**40)
    assert len(np.unique(drawn % 1024)) == 1024  # not the multiples of some power of two that doubles would give


@pytest.mark.parametrize("sigma", [1.5, 7.3])
def test_the_distribution_by_opendp(sigma: float) -> None:
    """OpenDP accepts no seed, so the test fails by chance in 1 of a million runs."""
    drawn = SystemNoise().integers(sigma, noise.BY_OPENDP)
    assert drawn.dtype == np.int64
    assert chi_square(drawn, sigma) > 1e-6
    assert has_its_size(drawn, sigma)
    assert not has_its_size(drawn, sigma / math.sqrt(2))
    assert not has_its_size(drawn, sigma * sigma * 1.5)


def test_beyond_opendps_size_the_system_is_asked_for_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    rng = np.random.default_rng(3)

    def urandom(n: int) -> bytes:
        asked.append(n)
        return rng.bytes(n)

    monkeypatch.setattr(noise.os, "urandom", urandom)
    drawn = SystemNoise().integers(4.5, noise.BY_OPENDP + 1)
    assert sum(asked) > 8 * len(drawn)
    assert has_its_size(drawn, 4.5)


def test_two_draws_differ() -> None:
    for d in (22, noise.BY_OPENDP + 1):
        assert np.any(SystemNoise().integers(1000.0, d) != SystemNoise().integers(1000.0, d))


def test_no_noise_where_none_is_declared() -> None:
    assert SystemNoise().integers(0.0, 5).tolist() == [0] * 5
    assert SystemNoise().integers(3.0, 0).shape == (0,)
    assert has_its_size(np.zeros(3, np.int64), 0)
    assert not has_its_size(np.array([0, 1]), 0)


@pytest.mark.parametrize("sigma", [0.5, -1, math.nan, math.inf, 2.0**41])
def test_no_such_noise(sigma: float) -> None:
    with pytest.raises(NoGuarantee, match="must be 0, or from 1 to 2\\^40"):
        SystemNoise().integers(sigma, 3)


def coins_of(words: list[int], more: int, x: Fraction) -> list[bool]:
    """Return the coins if the source yields these words, followed by all zeros or all ones for further bits."""

    def bits(n: int) -> bytes:
        return bytes([more] * n) if n == 24 else np.array(words, "<u8").tobytes()

    return discrete._coins(bits, np.full(len(words), float(x)), lambda _: x).tolist()


@pytest.mark.parametrize("x", [Fraction(1), Fraction(1, 3), Fraction(17, 7), Fraction(0)])
def test_a_coin_that_is_too_close_to_tell_is_decided_exactly(x: Fraction) -> None:
    """The word at the true probability needs further bits; one above or below doesn't."""
    with mpmath.workdps(60):
        at = int(mpmath.floor(mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * 2**64))
    if x == 0:  # a certain coin
        assert coins_of([2**64 - 1, 0], 255, x) == [True, True]
        return
    assert coins_of([0, at - 1, at, at + 1], 0, x) == [True, True, True, False]
    assert coins_of([0, at - 1, at, at + 1], 255, x) == [True, True, False, False]


def test_the_support_is_a_grid_that_does_not_depend_on_the_data() -> None:
    """Any release for one data set is possible for its neighbour, because both can give every whole number."""
    mine, neighbours = (set((data + SystemNoise().integers(2.0, 10_000)).tolist()) for data in (10, 11))
    likely = set(range(5, 17))  # each expected 400 times or more
    assert likely <= mine
    assert likely <= neighbours
