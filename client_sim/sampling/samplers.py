"""Samplers (thesis 3.1 and 3.2) and their settings: uniform, by size, cluster, stratum or loss, or a user's own.

Oort's sampler is in `oort.py`.

The full update of a fleet is the mean of all its clients' updates: over ``examples``, where client i counts n_i/n times
(the gradient of thesis eq. 2), or over ``client``, where each counts once. A round has the updates of a sample and
takes their mean with the pipeline's weighting. Whether the expectation of this mean is one of the two full updates
depends on the sampler and the weighting together: clients drawn with probability n_i/n must count once each, or else
their size would count twice.

Weightings also differ for clients that are drawn repeatedly and so send several pings: with ``client`` such a client
counts once, with ``ping`` each time, and with ``examples`` each time by its number of examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning.batch import Clients, FloatArray
from fedping.client_sim.sampling.past import Participation, Past
from fedping.protocol.errors import UnfitTable
from fedping.protocol.extensions import OWN, ExtensionFailed, Own, asks_for, extension_of
from fedping.protocol.pipeline import Weighting
from fedping.protocol.rules import Traits, traits_where
from fedping.protocol.spec import Positive

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class All(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="all"):
    """Sampling of all clients."""

    traits: ClassVar[Traits] = frozenset({"all clients"})


class Uniform(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="uniform"):
    """Sampling of ``clients`` different clients, all equally likely."""

    traits: ClassVar[Traits] = frozenset({"equal parts"})

    clients: Count


class Bernoulli(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="bernoulli"):
    """Sampling of each client independently with probability ``share``; their number is random and may be zero."""

    digest_name: ClassVar[str] = "Bernoulli"
    traits: ClassVar[Traits] = frozenset({"by coin"})

    share: Annotated[float, Meta(gt=0, le=1)] = 0.1


class BySize(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="by_size"):
    """Sampling of ``clients`` clients, one by one with probability n_i/n: the simple sampling of thesis 3.1 and 3.2.

    A client may be drawn repeatedly; it then counts, and sends, that many times.
    """

    clients: Count


class Stratified(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="stratified"):
    """Sampling of ``clients`` clients in total, from each stratum by its size (thesis 3.2).

    Strata are groups of similar clients, and ``by`` defines their size. With ``clients`` each stratum is sampled as in
    :class:`Uniform`, with ``examples`` as in :class:`BySize`. A stratum's share that is not an integer is rounded up or
    down at random, without bias, because any fixed rounding would favour some strata permanently.
    """

    digest_name: ClassVar[str] = "Stratified"

    clients: Count
    by: Literal["clients", "examples"] = "clients"


class Cluster(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="cluster"):
    """Sampling of all clients of ``clusters`` different groups, which are equally likely (thesis 3.2)."""

    digest_name: ClassVar[str] = "Cluster"

    clusters: Count = 1


class PowerOfChoice(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="power_of_choice"
):
    """Sampling of ``clients`` clients with the largest losses among ``candidates`` (Cho, Wang and Joshi 2020).

    Candidates are different clients, drawn with probability n_i/n. ``losses`` is the loss to compare by: ``newest``, at
    the newest weights, which each candidate fetches (the paper's pow-d); or ``last``, the loss that each client sent
    when it last took part, infinite if it never has (rpow-d), which costs no traffic.
    """

    clients: Count
    candidates: Count
    losses: Literal["newest", "last"] = "newest"

    def __post_init__(self) -> None:
        if self.candidates < self.clients:
            raise UnfitTable(
                f"the sampling 'power_of_choice' has {self.candidates} candidates for {self.clients} clients; set "
                f"'candidates' to {self.clients} at least"
            )


class Oort(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="oort"):
    """Sampling of ``clients`` clients by utility, with a share of clients that have never taken part (Lai et al. 2021).

    A client's utility is its data utility when it last took part, sqrt(|B| Σ loss²) over its |B| examples, scaled to 0
    ... 1 over the clients, plus a bonus for time away. The utility of slow clients is lowered.

    Attributes:
        clients: number of different clients in a round.
        exploration: share of clients that have never taken part, in the first round.
        decay: factor on this share in each further round.
        least: the share's lower limit.
        seconds: preferred duration of an answer at first, and the pacer's step; durations don't count if absent.
        window: rounds between two decisions of the pacer.
        alpha: exponent of the penalty of an answer that takes longer than preferred.
        clip: quantile of the data utilities, at which larger ones are clipped.
        cut_off: minimum utility of a client to be drawn, as a share of the lowest utility among the best clients that
            would fill the round.
    """

    clients: Count
    exploration: Share = 0.9
    decay: Annotated[float, Meta(gt=0, le=1)] = 0.98
    least: Share = 0.2
    seconds: Positive | None = None
    window: Count = 20
    alpha: Annotated[float, Meta(ge=0, le=100)] = 2.0
    clip: Annotated[float, Meta(gt=0, le=1)] = 0.95
    cut_off: Share = 0.95

    def __post_init__(self) -> None:
        if self.least > self.exploration:
            raise UnfitTable(
                f"the sampling 'oort' begins with exploration = {self.exploration:g}, below least = {self.least:g}. "
                f"Set 'least' to {self.exploration:g} at most"
            )

    @property
    def traits(self) -> Traits:
        """Traits for checks of combinations (`fedping.protocol.rules`)."""
        return traits_where({"by duration": self.seconds is not None})


class OwnSampling(Own, frozen=True, tag_field="sampling", tag=OWN):
    """A sampling from your own package (:mod:`fedping.protocol.extensions`)."""

    kind = "sampling"
    traits: ClassVar[Traits] = frozenset({"equal parts"})


Sampling: TypeAlias = All | Uniform | Bernoulli | BySize | Stratified | Cluster | PowerOfChoice | Oort | OwnSampling


FullUpdate: TypeAlias = Literal["client", "examples"]

NEITHER: frozenset[FullUpdate] = frozenset()
BOTH: frozenset[FullUpdate] = frozenset({"client", "examples"})


class Sampler(Protocol):
    """Selects the clients of each round, as a pure function of the round."""

    @property
    def name(self) -> str:
        """The sampler's name in the settings."""
        ...

    def draw(self, round_number: int) -> Clients:
        """Return the clients of a round, ascending; a client that is drawn repeatedly occurs repeatedly."""
        ...

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return the full updates that the mean of a sample, with this weighting, estimates without bias.

        Clients' updates must be linear in their examples' updates (thesis 3.1), as gradients are.
        """
        ...


@runtime_checkable
class FollowsPast(Protocol):
    """A sampler whose draws depend on clients' earlier answers; its ``draw`` is for runs without any answer yet."""

    def draw_after(self, past: Past) -> Clients:
        """Return the clients of a round, ascending, given the past before it."""
        ...


def follows_past(settings: Sampling) -> bool:
    """Return whether a sampling depends on clients' answers in earlier rounds."""
    if not isinstance(settings, OwnSampling):
        return isinstance(settings, PowerOfChoice | Oort)
    make = extension_of(settings).make
    return asks_for(getattr(make, "draw", None) if isinstance(make, type) else make, "past")


def bias_of(sampler: Sampler, weighting: Weighting) -> str | None:
    """Return a sentence on avoiding the bias of a sampler with a weighting; None if it is unbiased."""
    if sampler.estimates(weighting):
        return None
    remedy: str | None = getattr(sampler, "remedy", None)
    if remedy is not None:
        return (
            f"the sampling '{sampler.name}' prefers clients with large losses, so the mean of a round is a biased "
            f"estimate of the full update; {remedy} for less of this bias"
        )
    better = [other for other in get_args(Weighting) if sampler.estimates(other)]
    advice = f"weight by {' or '.join(better)} instead" if better else "choose another sampling"
    return (
        f"the mean of a '{sampler.name}' sample weighted by {weighting} is a biased estimate of the full update, as "
        f"clients or groups differ in size; {advice}, or accept the bias, which falls as samples grow"
    )


def full_update(weighting: Weighting) -> FullUpdate:
    """Return the full update that equals the mean of one ping of each client, with this weighting."""
    return "examples" if weighting == "examples" else "client"


def same_size(sizes: NDArray[np.int64]) -> bool:
    """Return whether all clients have the same number of examples, so that both full updates are equal."""
    return bool((sizes == sizes[0]).all())


@dataclass(frozen=True)
class BySizeSampler:
    """See :class:`fedping.client_sim.sampling.BySize`."""

    sizes: NDArray[np.int64]
    clients: int
    seed: int
    name: str = "by_size"

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.sizes)

    def draw(self, round_number: int) -> Clients:
        """Return the drawn clients, including repeated ones."""
        return np.sort(drawn_by_size(self._ends, self.clients, generator(self.seed, "sample", round_number)))

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return the full updates that are estimated without bias: see :func:`by_size` (thesis 3.1)."""
        return by_size(self.sizes, weighting)


def by_size(sizes: NDArray[np.int64], weighting: Weighting) -> frozenset[FullUpdate]:
    """Return the full updates that a sample drawn with probability n_i/n, with replacement, estimates without bias.

    With ``client``, repeats are lost; with ``examples``, sizes count twice. Both are unbiased if all sizes are equal.
    """
    if same_size(sizes):
        return BOTH
    return frozenset({"examples"}) if weighting == "ping" else NEITHER


def drawn_by_size(ends: NDArray[np.int64], count: int, random: np.random.Generator) -> Clients:
    """Return the clients of randomly drawn examples, with exact probabilities; ``ends`` are cumulative sizes."""
    return np.searchsorted(ends, random.integers(0, ends[-1], count), side="right")


@dataclass(frozen=True)
class ClusterSampler:
    """See :class:`fedping.client_sim.sampling.Cluster`."""

    sizes: NDArray[np.int64]
    groups: NDArray[Any]
    clusters: int
    seed: int
    name: str = "cluster"

    @cached_property
    def _members(self) -> list[Clients]:
        return members_of(self.groups)

    def draw(self, round_number: int) -> Clients:
        """Return all clients of the drawn groups."""
        random = generator(self.seed, "sample", round_number)
        drawn = random.choice(len(self._members), self.clusters, replace=False)
        return np.sort(np.concatenate([self._members[group] for group in drawn]))

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return the full updates that are estimated without bias: none if groups differ in size."""
        counted = self.sizes if weighting == "examples" else np.ones_like(self.sizes)
        totals = np.array([counted[some].sum() for some in self._members])
        if self.clusters < len(totals) and not same_size(totals):
            return NEITHER
        return BOTH if same_size(self.sizes) else frozenset({full_update(weighting)})


@dataclass(frozen=True)
class AllSampler:
    """See :class:`fedping.client_sim.sampling.All`."""

    sizes: NDArray[np.int64]
    name: str = "all"

    def draw(self, round_number: int) -> Clients:
        """Return all clients."""
        return np.arange(len(self.sizes))

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return the full updates that are estimated without bias: the mean of all clients is the full update."""
        return BOTH if same_size(self.sizes) else frozenset({full_update(weighting)})


@dataclass(frozen=True)
class UniformSampler:
    """See :class:`fedping.client_sim.sampling.Uniform`."""

    sizes: NDArray[np.int64]
    clients: int
    seed: int
    name: str = "uniform"

    def draw(self, round_number: int) -> Clients:
        """Return the drawn clients, all different."""
        random = generator(self.seed, "sample", round_number)
        return np.sort(random.choice(len(self.sizes), self.clients, replace=False, shuffle=False))

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return the full updates that are estimated without bias: every client is equally likely to be drawn."""
        return evenly(self.sizes, weighting, everyone=self.clients == len(self.sizes))


@dataclass(frozen=True)
class BernoulliSampler:
    """See :class:`fedping.client_sim.sampling.Bernoulli`."""

    sizes: NDArray[np.int64]
    share: float
    seed: int
    name: str = "bernoulli"

    def draw(self, round_number: int) -> Clients:
        """Return the drawn clients, each drawn independently; without any, the round takes no step."""
        random = generator(self.seed, "sample", round_number)
        count = random.binomial(len(self.sizes), self.share)
        return np.sort(random.choice(len(self.sizes), count, replace=False, shuffle=False))

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return the full updates that are estimated without bias: sets of equal size are equally likely."""
        return evenly(self.sizes, weighting, everyone=self.share == 1)


def evenly(sizes: NDArray[np.int64], weighting: Weighting, everyone: bool) -> frozenset[FullUpdate]:
    """Return the full updates that a sample of different, equally likely clients estimates without bias.

    The mean weighted by examples is a ratio of two random sums, unless all sizes are equal or all clients take part.
    """
    if same_size(sizes):
        return BOTH
    if weighting == "examples":
        return frozenset({"examples"}) if everyone else NEITHER
    return frozenset({"client"})


@dataclass(frozen=True)
class StratifiedSampler:
    """See :class:`fedping.client_sim.sampling.Stratified`."""

    sizes: NDArray[np.int64]
    strata: NDArray[Any]
    clients: int
    by: Literal["clients", "examples"]
    seed: int
    name: str = "stratified"

    @cached_property
    def _members(self) -> list[Clients]:
        return members_of(self.strata)

    @cached_property
    def _stratum_sizes(self) -> list[int]:
        """The number of clients or examples in each stratum."""
        return [len(some) if self.by == "clients" else int(self.sizes[some].sum()) for some in self._members]

    def draw(self, round_number: int) -> Clients:
        """Return clients of all strata together, with repetitions if ``by`` is examples."""
        random = generator(self.seed, "sample", round_number)
        counts = allocation(self._stratum_sizes, self.clients, random)
        drawn = [self._drawn(some, count, random) for some, count in zip(self._members, counts, strict=True) if count]
        return np.sort(np.concatenate(drawn))

    def _drawn(self, members: Clients, count: int, random: np.random.Generator) -> Clients:
        if self.by == "clients":
            return random.choice(members, count, replace=False, shuffle=False)
        return members[drawn_by_size(np.cumsum(self.sizes[members]), count, random)]

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return the full updates that are estimated without bias: the same as without strata, on average.

        Weightings that count repeats once, such as ``client``, are the exception: small strata repeat clients more
        often.
        """
        if self.by == "clients":
            return evenly(self.sizes, weighting, everyone=self.clients == len(self.sizes))
        return NEITHER if weighting == "client" else by_size(self.sizes, weighting)


def allocation(sizes: list[int], total: int, random: np.random.Generator) -> list[int]:
    """Return each stratum's number of clients: its share of ``total``, rounded at random without bias.

    The shares are laid end to end and cut at whole numbers from a random start, in exact integer arithmetic. A stratum
    never contributes more clients than it has if ``total`` is at most the number of clients.
    """
    everything = sum(sizes)
    start = int(random.integers(0, everything))
    cuts = [(total * end + start) // everything for end in accumulate(sizes, initial=0)]
    return [after - before for before, after in pairwise(cuts)]


def members_of(groups: NDArray[Any]) -> list[Clients]:
    """Return the clients of each group, in the order of the groups' names."""
    names, group = np.unique(groups, return_inverse=True)
    order = np.argsort(group, kind="stable")
    return np.split(order, np.cumsum(np.bincount(group, minlength=len(names)))[:-1])


@dataclass(frozen=True)
class PowerOfChoiceSampler:
    """See :class:`fedping.client_sim.sampling.PowerOfChoice`. Ties are broken at random."""

    sizes: NDArray[np.int64]
    settings: PowerOfChoice
    seed: int
    name: str = "power_of_choice"
    remedy: ClassVar[str] = "set 'candidates' closer to 'clients'"

    @property
    def clients(self) -> int:
        """The number of clients of a round."""
        return self.settings.clients

    def draw(self, round_number: int) -> Clients:
        """Return a round's clients while no loss is known."""
        return self._largest(round_number, lambda candidates: np.full(len(candidates), np.inf))

    def draw_after(self, past: Past) -> Clients:
        """Return the candidates with the largest losses."""
        of = past.losses_of if self.settings.losses == "newest" else past.losses.__getitem__
        return self._largest(past.round, of)

    def _largest(self, round_number: int, losses_of: Callable[[Clients], FloatArray]) -> Clients:
        random = generator(self.seed, "sample", round_number)
        chances = self.sizes / self.sizes.sum()
        candidates = random.choice(len(self.sizes), self.settings.candidates, replace=False, p=chances)
        losses = np.nan_to_num(losses_of(candidates), nan=np.inf, posinf=np.inf)
        order = np.lexsort((random.random(len(candidates)), -losses))
        return np.sort(candidates[order[: self.settings.clients]])

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return the full updates that are estimated without bias: none unless every round has all clients."""
        return evenly(self.sizes, weighting, everyone=True) if self.clients == len(self.sizes) else NEITHER


@dataclass(frozen=True)
class OwnSampler:
    """A user's sampler: a function of (sizes, groups, random), or a class whose method ``draw`` has these arguments.

    ``sizes`` are the numbers of examples, shape (clients,), ``groups`` the natural keys or None, and ``random`` a
    generator seeded by the run's seed and the round. The function returns positions of clients, in any order, shape
    (k,). If it also has a parameter ``past``, it gets a :class:`fedping.client_sim.sampling.past.Past`.
    """

    settings: OwnSampling
    sizes: NDArray[np.int64]
    seed: int
    groups: NDArray[Any] | None

    @property
    def name(self) -> str:
        """See :attr:`fedping.client_sim.sampling.Sampler.name`."""
        return self.settings.name

    def draw(self, round_number: int) -> Clients:
        """Return the clients that the extension draws, ascending.

        Raises:
            ExtensionFailed: the extension raises an error, or returns anything but positions of clients.
        """
        return self._drawn(round_number)

    def _drawn(self, round_number: int, **asked: Any) -> Clients:
        extension = extension_of(self.settings)
        given = self.sizes.copy(), self.groups, generator(self.seed, "sample", round_number)
        if isinstance(extension.make, type):
            sampling = extension.made(self.settings.settings)
            with extension.guarded():
                drawn = sampling.draw(*given, **asked)
        else:
            drawn = extension.made(self.settings.settings, *given, **asked)
        clients = np.asarray(drawn)
        if not clients.size:
            return np.zeros(0, np.intp)
        if clients.ndim != 1 or clients.dtype.kind not in "iu":
            raise ExtensionFailed(
                f"{extension}, an extension, returned an array of shape {clients.shape} and type {clients.dtype}; "
                "return the positions of clients, whole numbers in one row"
            )
        if clients.min() < 0 or clients.max() >= len(self.sizes):
            raise ExtensionFailed(
                f"{extension}, an extension, drew the client {clients[(clients < 0) | (clients >= len(self.sizes))][0]}"
                f", and there are {len(self.sizes):,}, from 0 on"
            )
        return np.sort(clients).astype(np.intp)

    def estimates(self, weighting: Weighting) -> frozenset[FullUpdate]:
        """Return all full updates: nothing is known about the bias of an extension, so no bias is reported."""
        return BOTH


@dataclass(frozen=True)
class OwnSamplerByPast(OwnSampler):
    """A user's sampler with the parameter ``past``."""

    def draw(self, round_number: int) -> Clients:
        """Return the clients that the extension draws while no client has taken part and each loss is 0."""
        nothing = Participation(len(self.sizes))
        return self.draw_after(
            Past(
                round=round_number,
                seed=self.seed,
                sizes=self.sizes.copy(),
                groups=self.groups,
                losses=nothing.losses,
                times=nothing.times,
                last=nothing.last,
                losses_of=lambda some: np.zeros(len(some)),
            )
        )

    def draw_after(self, past: Past) -> Clients:
        """Return the clients that the extension draws, ascending."""
        return self._drawn(past.round, past=past)
