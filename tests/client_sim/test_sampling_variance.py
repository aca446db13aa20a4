"""The variance of samples' means around the full update: the claims of thesis 3.2, and the textbooks' formulas.

Variances are of 4,000 rounds of one fixed seed. The standard error of such a variance is about 2.3 %, so with another
seed a correct sampler would exceed the bound of 15 % with a probability below 1e-9.
"""

import numpy as np
import pytest

from fedping.client_sim.sampling import BySize, Cluster, Sampling, Stratified, Uniform, sampler_for

ROUNDS = 4_000
CLOSE = 0.15
REGIONS = np.repeat(np.arange(5), 8)  # 40 clients
SIZES = np.full(40, 3)


def variance(kind: Sampling, updates: np.ndarray, groups: np.ndarray, sizes: np.ndarray = SIZES) -> float:
    """Return the mean squared distance of a sample's mean from the full update over examples."""
    sampler = sampler_for(kind, sizes, 3, groups)
    means = np.array([updates[sampler.draw(number)].mean() for number in range(ROUNDS)])
    return float(((means - np.average(updates, weights=sizes)) ** 2).mean())


def by_region(between: float, within: float) -> np.ndarray:
    """Return updates with these standard deviations between regions, and between clients of a region."""
    random = np.random.default_rng(11)
    return random.normal(size=5)[REGIONS] * between + random.normal(size=40) * within


DIFFERENT = by_region(between=3.0, within=0.5)
# Each region has the same eight updates: it is like the whole.
ALIKE = np.tile(np.linspace(-3, 3, 8), 5)


def test_simple_sampling_has_its_textbook_variance() -> None:
    """With replacement, the variance is σ²/K, with σ² over examples."""
    sizes = 1 + np.arange(40) % 7
    mean = np.average(DIFFERENT, weights=sizes)
    expected = np.average((DIFFERENT - mean) ** 2, weights=sizes) / 10
    assert variance(BySize(clients=10), DIFFERENT, REGIONS, sizes) == pytest.approx(expected, rel=CLOSE)


def test_uniform_sampling_has_its_textbook_variance() -> None:
    """Without replacement, the variance is (1 - K/N) S²/K, which falls as the sample approaches all clients."""
    expected = (1 - 30 / 40) * DIFFERENT.var(ddof=1) / 30
    assert variance(Uniform(clients=30), DIFFERENT, REGIONS) == pytest.approx(expected, rel=CLOSE)


def test_stratified_sampling_has_its_textbook_variance() -> None:
    """For whole parts, the variance is Σ W_h² (1 - K_h/N_h) S_h²/K_h."""
    within = np.array([DIFFERENT[region == REGIONS].var(ddof=1) for region in range(5)])
    expected = (0.2**2 * (1 - 2 / 8) * within / 2).sum()
    assert variance(Stratified(clients=10), DIFFERENT, REGIONS) == pytest.approx(expected, rel=CLOSE)


def test_strata_reduce_the_variance_where_they_differ() -> None:
    simple = variance(BySize(clients=10), DIFFERENT, REGIONS)
    for by in ("clients", "examples"):
        assert variance(Stratified(clients=10, by=by), DIFFERENT, REGIONS) < simple / 20  # type: ignore[arg-type]


def test_strata_that_are_all_alike_gain_nothing() -> None:
    stratified = variance(Stratified(clients=10, by="examples"), ALIKE, REGIONS)
    assert stratified == pytest.approx(variance(BySize(clients=10), ALIKE, REGIONS), rel=CLOSE)


def test_strata_of_other_sizes_than_the_sample_divides_reduce_it_too() -> None:
    strata = np.repeat(np.arange(3), [5, 12, 23])
    updates = np.array([-4.0, 0.0, 5.0])[strata] + DIFFERENT / 10
    assert variance(Stratified(clients=10), updates, strata) < variance(Uniform(clients=10), updates, strata) / 2


def test_clusters_of_the_alike_have_more_variance_than_as_many_clients_drawn_simply() -> None:
    """The 16 clients of two homogeneous regions have the information of two."""
    clustered = variance(Cluster(clusters=2), DIFFERENT, REGIONS)
    means = np.array([DIFFERENT[region == REGIONS].mean() for region in range(5)])
    assert clustered == pytest.approx((1 - 2 / 5) * means.var(ddof=1) / 2, rel=CLOSE)
    assert clustered > 3 * variance(BySize(clients=16), DIFFERENT, REGIONS)


def test_clusters_that_are_each_like_the_whole_have_no_variance() -> None:
    assert variance(Cluster(clusters=2), ALIKE, REGIONS) < 1e-25
    assert variance(BySize(clients=16), ALIKE, REGIONS) > 0.1
