"""The estimand of a sample's mean: every claim of every sampler, in both directions (thesis 3.1).

A claim is tested over thousands of rounds of one fixed seed, coordinate by coordinate, with a z-test. The error rate
of the whole file is ALPHA: with another seed, a correct sampler would fail with that probability.
"""

from functools import cache
from typing import get_args

import numpy as np
import pytest
from scipy import stats

from fedping.client_sim.data.seeds import generator
from fedping.client_sim.sampling import (
    All,
    Bernoulli,
    BySize,
    Cluster,
    FullUpdate,
    Sampling,
    Stratified,
    Uniform,
    bias_of,
    sampler_for,
)
from fedping.protocol.pipeline import Weighting

ALPHA = 1e-4
ROUNDS = 6_000
TESTS = 1_000  # more than the z-tests in this file, for Bonferroni's bound
FAR = stats.norm.isf(ALPHA / TESTS / 2)
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)

SKEWED = np.array([1, 1, 1, 2, 2, 3, 3, 5, 8, 14, 30, 50])
EQUAL = np.full(12, 4)
GROUPS = np.array([*"aabbbccccccc"])  # 2, 3 and 7 clients
EQUAL_GROUPS = np.array([*"aaaabbbbcccc"])
# Clients whose updates depend on their size, so that a wrong weight is noticed.
UPDATES = np.column_stack([np.log(SKEWED), np.arange(12) % 3, generator(0, "updates").normal(size=12)])

KINDS: tuple[Sampling, ...] = (
    Uniform(clients=4),
    Uniform(clients=12),
    Bernoulli(share=0.3),
    Bernoulli(share=1.0),
    BySize(clients=4),
    Stratified(clients=4),
    Stratified(clients=5),
    Stratified(clients=12),
    Stratified(clients=4, by="examples"),
    Cluster(clusters=2),
    Cluster(clusters=3),
)


@cache
def times_drawn(kind: Sampling, sizes: tuple[int, ...], groups: tuple[str, ...]) -> np.ndarray:
    """Return the count of each client in each round, shape (rounds, clients), for rounds with any client."""
    sampler = sampler_for(kind, np.array(sizes), 2018, np.array(groups))
    drawn = np.array([np.bincount(sampler.draw(number), minlength=len(sizes)) for number in range(ROUNDS)])
    return drawn[drawn.any(axis=1)]


def votes_of(kind: Sampling, sizes: np.ndarray, groups: np.ndarray, weighting: Weighting) -> np.ndarray:
    """Return the mean update of each round as in a pipeline, shape (rounds, coordinates)."""
    drawn = times_drawn(kind, tuple(sizes), tuple(groups))
    weights = {"client": drawn > 0, "ping": drawn, "examples": drawn * sizes}[weighting].astype(float)
    votes: np.ndarray = (weights / weights.sum(axis=1, keepdims=True)) @ UPDATES
    return votes


def full(sizes: np.ndarray, of: FullUpdate) -> np.ndarray:
    """Return the full update of thesis eq. 2 (over examples), or of the clients."""
    result: np.ndarray = np.average(UPDATES, axis=0, weights=sizes if of == "examples" else None)
    return result


def z(kind: Sampling, sizes: np.ndarray, groups: np.ndarray, weighting: Weighting, of: FullUpdate) -> float:
    """Return the largest distance of the mean update's coordinates from a full update, in standard errors."""
    votes = votes_of(kind, sizes, groups, weighting)
    error = np.abs(votes.mean(axis=0) - full(sizes, of))
    spread = np.maximum(votes.std(axis=0, ddof=1) / np.sqrt(len(votes)), 1e-12)
    return float((error / spread).max())


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_sampler_says_of_which_full_update_its_mean_is_unbiased(kind: Sampling, weighting: Weighting) -> None:
    claims = sampler_for(kind, SKEWED, 0, GROUPS).estimates(weighting)
    for of in get_args(FullUpdate):
        off = z(kind, SKEWED, GROUPS, weighting, of)
        assert off < FAR if of in claims else off > 2 * FAR, (of, off)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_where_clients_are_of_equal_size_the_claims_hold_too(kind: Sampling, weighting: Weighting) -> None:
    for of in sampler_for(kind, EQUAL, 0, GROUPS).estimates(weighting):
        assert z(kind, EQUAL, GROUPS, weighting, of) < FAR


def test_equal_sizes_make_both_full_updates_one() -> None:
    for kind in (All(), Uniform(clients=4), Bernoulli(), BySize(clients=3), Stratified(clients=4)):
        for weighting in WEIGHTINGS:
            assert sampler_for(kind, EQUAL, 0, GROUPS).estimates(weighting) == {"client", "examples"}


def test_repeats_that_count_once_are_biased_in_strata_of_different_size() -> None:
    kind = Stratified(clients=12, by="examples")
    groups = np.array([*"abbbbbbbbbbb"])
    assert not sampler_for(kind, EQUAL, 0, groups).estimates("client")
    assert z(kind, EQUAL, groups, "client", "client") > 2 * FAR
    assert z(kind, EQUAL, groups, "ping", "client") < FAR


def test_clusters_of_equal_count_are_unbiased_over_clients_and_no_others() -> None:
    kind = Cluster(clusters=1)
    claims = sampler_for(kind, SKEWED, 0, EQUAL_GROUPS).estimates
    assert claims("client") == {"client"}
    assert not claims("examples")
    assert z(kind, SKEWED, EQUAL_GROUPS, "client", "client") < FAR
    assert z(kind, SKEWED, EQUAL_GROUPS, "examples", "examples") > 2 * FAR


def test_all_is_the_full_update() -> None:
    sampler = sampler_for(All(), SKEWED, 0)
    for weighting, of in (("client", "client"), ("ping", "client"), ("examples", "examples")):
        assert sampler.estimates(weighting) == {of}
        votes = votes_of(All(), SKEWED, GROUPS, weighting)
        assert votes[7] == pytest.approx(full(SKEWED, of), rel=1e-12)


def test_a_biased_pairing_is_told_with_what_would_not_be() -> None:
    assert bias_of(sampler_for(Uniform(clients=4), SKEWED, 0), "client") is None
    told = bias_of(sampler_for(Uniform(clients=4), SKEWED, 0), "examples")
    assert told is not None
    assert "'uniform' sample weighted by examples is a biased" in told
    assert "weight by client or ping instead" in told
    by_size = bias_of(sampler_for(BySize(clients=4), SKEWED, 0), "client")
    assert by_size is not None
    assert "weight by ping instead" in by_size
    clusters = bias_of(sampler_for(Cluster(), SKEWED, 0, GROUPS), "client")
    assert clusters is not None
    assert "choose another sampling" in clusters
