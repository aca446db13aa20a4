"""Draws of clients: laws of every sampler, and rejected settings."""

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedping.client_sim.sampling import (
    All,
    Bernoulli,
    BySize,
    Cluster,
    Sampling,
    Stratified,
    Uniform,
    sampler_for,
)
from fedping.client_sim.sampling.samplers import allocation
from fedping.protocol.errors import InvalidSettings

COUNTS = st.integers(1, 6)
ANY_KIND = st.one_of(
    st.just(All()),
    st.builds(Uniform, clients=COUNTS),
    st.builds(Bernoulli, share=st.floats(0.01, 1)),
    st.builds(BySize, clients=COUNTS),
    st.builds(Stratified, clients=COUNTS, by=st.sampled_from(["clients", "examples"])),
    st.builds(Cluster, clusters=st.just(1)),
)
FLEETS = st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc")), min_size=6, max_size=12)


def repeats(kind: Sampling) -> bool:
    return isinstance(kind, BySize) or (isinstance(kind, Stratified) and kind.by == "examples")


@given(ANY_KIND, FLEETS, st.integers(0, 2**32), st.integers(0, 2**31))
def test_a_draw_is_of_clients_of_the_fleet_and_the_same_whenever_it_is_asked_for(
    kind: Sampling, fleet: list[tuple[int, str]], seed: int, number: int
) -> None:
    sizes, groups = np.array([size for size, _ in fleet]), np.array([group for _, group in fleet])
    sampler = sampler_for(kind, sizes, seed, groups)
    drawn = sampler.draw(number)
    sampler.draw(number + 1)
    assert drawn.tolist() == sampler.draw(number).tolist() == sorted(drawn)
    assert set(drawn) <= set(range(len(fleet)))
    if not repeats(kind):
        assert len(set(drawn)) == len(drawn)
    if isinstance(kind, Uniform | BySize | Stratified):
        assert len(drawn) == kind.clients
    if isinstance(kind, Cluster):
        group = groups[drawn[0]]
        assert drawn.tolist() == np.flatnonzero(groups == group).tolist()


@pytest.mark.parametrize(
    "kind", [Uniform(clients=10), Bernoulli(share=0.2), BySize(clients=10), Stratified(clients=10)]
)
def test_rounds_and_seeds_draw_otherwise(kind: Sampling) -> None:
    def drawn(seed: int, number: int) -> tuple[int, ...]:
        return tuple(sampler_for(kind, np.full(50, 2), seed, np.arange(50) % 4).draw(number))

    assert len({drawn(seed, number) for seed in range(4) for number in range(5)}) == 20


def test_who_has_no_examples_is_never_drawn_by_size() -> None:
    sizes = np.array([0, 3, 0, 1, 0])
    for kind in (BySize(clients=50), Stratified(clients=50, by="examples")):
        drawn = sampler_for(kind, sizes, 0, np.array([*"aabbc"])).draw(0)
        assert set(drawn) == {1, 3}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 60), st.integers(0, 2**32))
def test_an_allocation_is_each_stratums_part_rounded_up_or_down(sizes: list[int], total: int, seed: int) -> None:
    given_ = allocation(sizes, total, np.random.default_rng(seed))
    assert sum(given_) == total
    for size, count in zip(sizes, given_, strict=True):
        assert abs(count - total * size / sum(sizes)) < 1
        if total <= sum(sizes):
            assert count <= size


def test_an_allocation_is_right_on_average_over_all_its_starts() -> None:
    """Enumerates every possible start once."""

    class Starts:
        def __init__(self, start: int) -> None:
            self.start = start

        def integers(self, low: int, high: int) -> int:
            assert low == 0
            assert high == 17
            return self.start

    sums = np.sum([allocation([2, 5, 10], 6, Starts(start)) for start in range(17)], axis=0)  # type: ignore[arg-type]
    assert (sums / 17).tolist() == pytest.approx([6 * 2 / 17, 6 * 5 / 17, 6 * 10 / 17])


def test_nobody_may_come_to_a_bernoulli_round() -> None:
    sampler = sampler_for(Bernoulli(share=0.01), np.ones(5, dtype=np.int64), 0)
    counts = Counter(len(sampler.draw(number)) for number in range(200))
    assert counts[0] > 150


def test_the_size_of_a_bernoulli_sample_is_binomial() -> None:
    """Tests mean and variance of 4,000 rounds by z-tests; error rate 1e-4 for both together."""
    sampler = sampler_for(Bernoulli(share=0.3), np.ones(200, dtype=np.int64), 5)
    counts = np.array([len(sampler.draw(number)) for number in range(4_000)])
    mean, variance = 200 * 0.3, 200 * 0.3 * 0.7
    far = stats.norm.isf(1e-4 / 4)
    assert abs(counts.mean() - mean) < far * np.sqrt(variance / 4_000)
    assert abs(counts.var() - variance) < far * variance * np.sqrt(2 / 4_000)


@pytest.mark.parametrize(
    ("kind", "groups", "said"),
    [
        (Uniform(clients=9), None, "sample of 9 different clients cannot be drawn from 3"),
        (Stratified(clients=9), [0, 1, 1], "sample of 9 different clients cannot be drawn from 3"),
        (Cluster(clusters=3), [0, 1, 1], "sample of 3 different clusters cannot be drawn from 2"),
        (Cluster(), None, "needs to know the cluster of each of 3 clients, but knows 0"),
        (Stratified(clients=1), [0, 1], "needs to know the stratum of each of 3 clients, but knows 2"),
    ],
)
def test_a_sample_that_cannot_be_drawn_is_refused(kind: Sampling, groups: list[int] | None, said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        sampler_for(kind, np.array([1, 2, 3]), 0, None if groups is None else np.array(groups))


def test_nobody_and_nothing_to_draw_from_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="none has any"):
        sampler_for(BySize(clients=1), np.zeros(3, dtype=np.int64), 0)
    with pytest.raises(InvalidSettings, match="no clients"):
        sampler_for(All(), np.zeros(0, dtype=np.int64), 0)


def test_settings_are_read_by_their_tag() -> None:
    assert msgspec.convert({"sampling": "bernoulli"}, Sampling) == Bernoulli(share=0.1)
    with pytest.raises(msgspec.ValidationError, match="clients"):
        msgspec.convert({"sampling": "uniform"}, Sampling)
