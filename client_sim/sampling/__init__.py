"""Samplers of a round's clients (thesis 3.1 and 3.2): functions of seed and round, and optionally of the past.

To add a sampler, add its settings to the union ``Sampling``, a class that satisfies :class:`Sampler` in `samplers.py`,
and its factory here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.sampling.oort import OortSampler
from fedping.client_sim.sampling.past import NEVER, Participation, Past
from fedping.client_sim.sampling.samplers import (
    All,
    AllSampler,
    Bernoulli,
    BernoulliSampler,
    BySize,
    BySizeSampler,
    Cluster,
    ClusterSampler,
    FollowsPast,
    FullUpdate,
    Oort,
    OwnSampler,
    OwnSamplerByPast,
    OwnSampling,
    PowerOfChoice,
    PowerOfChoiceSampler,
    Sampler,
    Sampling,
    Stratified,
    StratifiedSampler,
    Uniform,
    UniformSampler,
    bias_of,
    follows_past,
)
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.makers import Makers

Sizes = NDArray[np.int64]
Groups = NDArray[Any]


_SAMPLERS: Makers[Callable[[Any, Sizes, int, Groups | None], Sampler]] = Makers()
"""Factories of samplers, by the type of their settings."""


def sampler_for(settings: Sampling, sizes: Sizes, seed: int, groups: Groups | None = None) -> Sampler:
    """Return the sampler of clients with ``sizes`` examples.

    Args:
        settings: one of the kinds of sampling.
        sizes: n_i, shape (clients,).
        seed: the seed of all rounds.
        groups: the stratum or cluster of each client, any names, shape (clients,); only :class:`Stratified` and
            :class:`Cluster` need them.

    Raises:
        InvalidSettings: there are fewer clients or groups than the sampler draws, no groups, or no examples.
    """
    if not len(sizes):
        raise InvalidSettings("there are no clients to sample. Check how the data are divided")
    return _SAMPLERS[type(settings)](settings, np.asarray(sizes), seed, groups)


@_SAMPLERS.of(All)
def _all(settings: All, sizes: Sizes, seed: int, groups: Groups | None) -> Sampler:
    return AllSampler(sizes)


@_SAMPLERS.of(Uniform)
def _uniform(settings: Uniform, sizes: Sizes, seed: int, groups: Groups | None) -> Sampler:
    _enough(settings.clients, len(sizes), "clients")
    return UniformSampler(sizes, settings.clients, seed)


@_SAMPLERS.of(Bernoulli)
def _bernoulli(settings: Bernoulli, sizes: Sizes, seed: int, groups: Groups | None) -> Sampler:
    return BernoulliSampler(sizes, settings.share, seed)


@_SAMPLERS.of(BySize)
def _by_size(settings: BySize, sizes: Sizes, seed: int, groups: Groups | None) -> Sampler:
    _some_examples(sizes)
    return BySizeSampler(sizes, settings.clients, seed)


@_SAMPLERS.of(Stratified)
def _stratified(settings: Stratified, sizes: Sizes, seed: int, groups: Groups | None) -> Sampler:
    strata = _grouped(groups, sizes, "stratified", "stratum")
    if settings.by == "clients":
        _enough(settings.clients, len(sizes), "clients")
    else:
        _some_examples(sizes)
    return StratifiedSampler(sizes, strata, settings.clients, settings.by, seed)


@_SAMPLERS.of(Cluster)
def _cluster(settings: Cluster, sizes: Sizes, seed: int, groups: Groups | None) -> Sampler:
    clusters = _grouped(groups, sizes, "cluster", "cluster")
    _enough(settings.clusters, len(np.unique(clusters)), "clusters")
    return ClusterSampler(sizes, clusters, settings.clusters, seed)


@_SAMPLERS.of(OwnSampling)
def _own(settings: OwnSampling, sizes: Sizes, seed: int, groups: Groups | None) -> Sampler:
    make = OwnSamplerByPast if follows_past(settings) else OwnSampler
    return make(settings, sizes, seed, groups)


@_SAMPLERS.of(PowerOfChoice)
def _power_of_choice(settings: PowerOfChoice, sizes: Sizes, seed: int, groups: Groups | None) -> Sampler:
    _enough_examples(settings.candidates, sizes, "power_of_choice", "candidates")
    return PowerOfChoiceSampler(sizes, settings, seed)


@_SAMPLERS.of(Oort)
def _oort(settings: Oort, sizes: Sizes, seed: int, groups: Groups | None) -> Sampler:
    _enough_examples(settings.clients, sizes, "oort", "clients")
    return OortSampler(sizes, settings, seed)


def _enough_examples(wanted: int, sizes: Sizes, name: str, what: str) -> None:
    if wanted > (there := np.count_nonzero(sizes)):
        raise InvalidSettings(
            f"the sampling '{name}' cannot draw {wanted} different {what} from {there} clients with examples; set "
            f"'{what}' to {there} at most"
        )


def _enough(wanted: int, present: int, what: str) -> None:
    if wanted > present:
        raise InvalidSettings(
            f"a sample of {wanted} different {what} cannot be drawn from {present}; set '{what}' to {present} at most"
        )


def _some_examples(sizes: Sizes) -> None:
    if not sizes.sum():
        raise InvalidSettings("clients cannot be drawn by their number of examples, as none has any; choose 'uniform'")


def _grouped(groups: Groups | None, sizes: Sizes, name: str, group: str) -> Groups:
    if groups is None or len(groups) != len(sizes):
        raise InvalidSettings(
            f"the sampling '{name}' needs to know the {group} of each of {len(sizes)} clients, but knows "
            f"{0 if groups is None else len(groups)}; divide the data by a natural key, or choose another sampling"
        )
    return groups


__all__ = [
    "NEVER",
    "All",
    "Bernoulli",
    "BySize",
    "Cluster",
    "FollowsPast",
    "FullUpdate",
    "Oort",
    "OortSampler",
    "Participation",
    "Past",
    "PowerOfChoice",
    "Sampler",
    "Sampling",
    "Stratified",
    "Uniform",
    "bias_of",
    "follows_past",
    "sampler_for",
]
