"""Every distribution of the synthetic users (thesis 7.3), as settings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import fields, replace

from fedping.protocol.errors import InvalidSettings

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Kinds: TypeAlias = tuple[Share, Share, Share]
Days: TypeAlias = Annotated[float, Meta(gt=0, le=36_500)]
Skew: TypeAlias = Annotated[float, Meta(gt=0, le=100)]
MeanVisits: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
CandidatesMean: TypeAlias = Annotated[float, Meta(ge=0, le=1000)]
CandidatesVariance: TypeAlias = Annotated[float, Meta(ge=0, le=10_000)]
NoiseVariance: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Tastes: TypeAlias = Annotated[float, Meta(ge=0, le=5)]


class DriftsTo(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of :class:`PopulationSettings` that users drift to; those left out stay as they are.

    Raises:
        InvalidSettings: the kinds do not sum to 1, or nothing is given.
    """

    days: Days | None = None
    recency_skew: Skew | None = None
    kinds: Kinds | None = None
    mean_visits: MeanVisits | None = None
    candidates_mean: CandidatesMean | None = None
    candidates_variance: CandidatesVariance | None = None
    noise_variance: NoiseVariance | None = None
    true_weights: tuple[float, ...] | None = None
    tastes: Tastes | None = None
    nothing_selected: Share | None = None
    other_visits: Share | None = None
    redirect_sources: Share | None = None
    bookmarked: Share | None = None
    unvisited: Share | None = None

    def __post_init__(self) -> None:
        if not self.given:
            names = ", ".join(field.name for field in fields(self))
            raise InvalidSettings(f"'drift' has nothing that it leads to; name in 'to' at least one of {names}")
        if self.kinds is not None:
            _check_kinds(self.kinds)

    @property
    def given(self) -> dict[str, float | tuple[float, ...]]:
        """The settings that are given, by name."""
        each = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in each.items() if value is not None}


class Drift(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How users change over time: linearly from iteration ``at`` on, when they are as before, until ``over`` later."""

    at: Annotated[int, Meta(ge=0, le=10**9)]
    over: Annotated[int, Meta(ge=1, le=10**9)]
    to: DriftsTo

    def share(self, iteration: int) -> float:
        """Return how far users have come at an iteration, from 0 to 1."""
        return min(max((iteration - self.at) / self.over, 0.0), 1.0)


class PopulationSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How made users are drawn. The defaults are those of thesis 7.3; what it leaves open is marked so.

    Visits. The number of visits of a page is exponential with mean ``mean_visits``, rounded up, so that each page has
    at least one: the thesis' "λ=7" is read as a mean of 7, because a rate of 7 would leave nearly every page with a
    single visit. Ages are ``days`` times a uniform number to the power ``recency_skew``: 1 is uniform over the period,
    more is skewed to recent visits; the thesis says "slightly". Each visit is one of ``kinds`` (link, typed, bookmark),
    independently of everything else.

    Searches. A client makes between ``searches[0]`` and ``searches[1]`` searches per iteration, each number equally
    likely. The number of candidates is normal with ``candidates_mean`` and ``candidates_variance``, rounded, at least 2
    (a single one is no choice) and at most ``most_candidates``. The user takes the highest score under ``true_weights``
    (empty: the reference weights of the ranker) plus normal noise of ``noise_variance``, in squared points. In a share
    ``nothing_selected`` of searches nothing is selected; the thesis has no such searches.

    Differences. With ``tastes`` τ above 0 each user wants pages by weights of its own, for good: the true weights, each
    times exp(τ z) with z standard normal, drawn from the seed and the user alone. ``drift`` changes the settings from
    one iteration to the next.

    Not in the thesis, but used by full frecency (for the linear model, zeros give the thesis' users): a share
    ``other_visits`` of visits is embed, redirect, download, framed link or reload, all equally likely.
    ``redirect_sources`` of visits redirected onward, half of them permanently. ``bookmarked`` of pages have a bookmark,
    and ``unvisited`` of pages are bookmarks never visited.

    Raises:
        InvalidSettings: the kinds do not sum to 1, the numbers of searches are in the wrong order, or true weights
            drift to others that are not as many.
    """

    digest_name: ClassVar[str] = "PopulationSettings"

    days: Days = 180.0
    recency_skew: Skew = 1.3
    kinds: Kinds = (0.6, 0.2, 0.2)
    mean_visits: MeanVisits = 7.0
    searches: tuple[Annotated[int, Meta(ge=0, le=1000)], Annotated[int, Meta(ge=0, le=1000)]] = (1, 2)
    candidates_mean: CandidatesMean = 4.0
    candidates_variance: CandidatesVariance = 10.0
    most_candidates: Annotated[int, Meta(ge=2, le=1000)] = 20
    noise_variance: NoiseVariance = 30.0
    true_weights: tuple[float, ...] = ()
    nothing_selected: Share = 0.05
    other_visits: Share = 0.1
    redirect_sources: Share = 0.03
    bookmarked: Share = 0.2
    unvisited: Share = 0.05
    tastes: Tastes = 0.0
    drift: Drift | None = None

    def __post_init__(self) -> None:
        _check_kinds(self.kinds)
        if self.searches[0] > self.searches[1]:
            raise InvalidSettings(
                f"a client cannot make from {self.searches[0]} to {self.searches[1]} searches; swap the numbers"
            )
        drifted = self.drift.to.true_weights if self.drift else None
        if drifted is not None and len(drifted) != len(self.true_weights):
            raise InvalidSettings(
                f"the population has {len(self.true_weights)} true_weights and drifts to {len(drifted)}; give as many "
                "of both, in the wire's order"
            )

    def at(self, iteration: int) -> PopulationSettings:
        """Return the settings of an iteration, without drift."""
        if self.drift is None:
            return self
        share = self.drift.share(iteration)
        given = self.drift.to.given
        return replace(
            self, drift=None, **{name: _between(getattr(self, name), to, share) for name, to in given.items()}
        )


def _between(start: Any, end: Any, share: float) -> Any:
    """Return the point of that share of the way, exactly the start at 0 and the end at 1; of numbers or tuples."""
    if isinstance(start, tuple):
        return tuple(_between(a, b, share) for a, b in zip(start, end, strict=True))
    return (1 - share) * start + share * end


def _check_kinds(kinds: Kinds) -> None:
    if abs(sum(kinds) - 1) > 1e-9:
        raise InvalidSettings(f"the shares of the visits' kinds sum to {sum(kinds):g}; they have to sum to 1")
