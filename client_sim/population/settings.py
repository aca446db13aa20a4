"""Settings of synthetic users: every distribution of the thesis' users (7.3), and the behaviour of a study's users.

Behaviour that comes from the thesis is marked; all other behaviour is our assumption.
"""

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
    """The settings of :class:`PopulationSettings` that users drift to; omitted ones stay unchanged.

    Raises:
        InvalidSettings: the kinds don't sum to 1, or no setting is given.
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
    """A linear change of users over time, which starts at iteration ``at`` and ends ``over`` iterations later."""

    at: Annotated[int, Meta(ge=0, le=10**9)]
    over: Annotated[int, Meta(ge=1, le=10**9)]
    to: DriftsTo

    def share(self, iteration: int) -> float:
        """Return the progress of the change at an iteration, from 0 to 1."""
        return min(max((iteration - self.at) / self.over, 0.0), 1.0)


class PopulationSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Distributions of synthetic users. Defaults are the values of thesis 7.3; values that it doesn't give are marked.

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

    Differences. With ``tastes`` τ above 0 each user permanently has its own true weights: the true weights, each times
    exp(τ z) with z standard normal, drawn from the seed and the user alone. ``drift`` changes the settings from one
    iteration to the next.

    Not in the thesis, but used by full frecency (for the linear model, zeros give the thesis' users): a share
    ``other_visits`` of visits is embed, redirect, download, framed link or reload, all equally likely. A share
    ``redirect_sources`` of visits redirected onward, half of them permanently. A share ``bookmarked`` of pages have a
    bookmark, and a share ``unvisited`` of pages are bookmarks that were never visited.

    Raises:
        InvalidSettings: the kinds don't sum to 1, the numbers of searches are in the wrong order, or the true weights
            drift to a different number of weights.
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
        """Return the settings that hold in an iteration, with the drift applied."""
        if self.drift is None:
            return self
        share = self.drift.share(iteration)
        given = self.drift.to.given
        return replace(
            self, drift=None, **{name: _between(getattr(self, name), to, share) for name, to in given.items()}
        )


def _between(start: Any, end: Any, share: float) -> Any:
    """Return the value at a share of the way between numbers or tuples: exactly the start at 0, and the end at 1."""
    if isinstance(start, tuple):
        return tuple(_between(a, b, share) for a, b in zip(start, end, strict=True))
    return (1 - share) * start + share * end


def _check_kinds(kinds: Kinds) -> None:
    if abs(sum(kinds) - 1) > 1e-9:
        raise InvalidSettings(f"the shares of the visits' kinds sum to {sum(kinds):g}; they have to sum to 1")


class UserSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of users' pages, preferences and searches.

    Words. All users share a vocabulary of ``vocabulary`` words, whose frequencies follow Zipf's law with exponent
    ``zipf``. A user has ``pages`` pages on ``hosts`` hosts; the first hosts have most pages (Zipf again). A page's
    words are its host, a word of its address and one of its title; a word matches if it begins with the typed text.

    Visits. A page is in use for ``days`` days (thesis 7.3: 180) and is then replaced by a new one; users' pages are at
    all moments of their lives. At any time the number of visits of a page since it was found is exponential, with mean
    ``mean_visits`` (7.3), rounded and at least one. They are spread evenly over that time, one at random in each gap,
    so that the ages of all visits are between 0 and ``days`` and skewed to the recent. With probability ``habit`` a
    visit is of the page's own kind, otherwise of one of ``kinds`` (link, typed, bookmark: 7.3), which is also the
    distribution of pages' own kinds. ``other_visits``, ``redirect_sources``, ``bookmarked`` and ``unvisited`` are as in
    :class:`fedping.client_sim.population.settings.PopulationSettings`.

    Wishes. The user thinks of ``considered`` of its pages; it wants one of them with a probability proportional
    to its score under ``true_weights`` (empty: the reference weights of the ranker) to the power ``sharpness``. From
    iteration ``drift_at`` on, ``drifted_weights`` replace them.

    Looking. A user types ``first_look`` characters on average (at least 1, the rest geometric) before its first look,
    and then looks after each character. ``rows`` suggestions are visible. It takes the wanted page at rank
    r with probability ``take`` × ``fade`` to the power r, and each further character multiplies the probability of
    *not* taking it by ``patience``. When the word is typed out, it takes the page if that is visible, and otherwise
    gives up. In ``nothing_selected`` of searches the user leaves without a choice, whatever the list. With the defaults
    for words and looking, users whose list is ranked by the weights of 2018 type and select approximately like the
    control arm of 2018 (figure 21: 4.26 characters, rank 0.35); nothing was fitted to a treatment.

    Raises:
        InvalidSettings: the kinds do not sum to 1, there are more hosts than pages, or a drift has no weights.
    """

    digest_name: ClassVar[str] = "UserSettings"

    vocabulary: Annotated[int, Meta(ge=26, le=60_000)] = 4096
    zipf: Annotated[float, Meta(ge=0, le=3)] = 0.6
    pages: Annotated[int, Meta(ge=2, le=5000)] = 60
    hosts: Annotated[int, Meta(ge=1, le=1000)] = 34
    days: Annotated[float, Meta(ge=1, le=36_500)] = 180.0
    mean_visits: Annotated[float, Meta(gt=0, le=1e6)] = 7.0
    kinds: tuple[Share, Share, Share] = (0.6, 0.2, 0.2)
    habit: Share = 0.7
    other_visits: Share = 0.1
    redirect_sources: Share = 0.03
    bookmarked: Share = 0.2
    unvisited: Share = 0.05
    considered: Annotated[int, Meta(ge=1, le=1000)] = 16
    true_weights: tuple[float, ...] = ()
    sharpness: Annotated[float, Meta(ge=0, le=100)] = 1.0
    drift_at: Annotated[int, Meta(ge=0)] | None = None
    drifted_weights: tuple[float, ...] = ()
    first_look: Annotated[float, Meta(ge=1, le=20)] = 4.0
    rows: Annotated[int, Meta(ge=1, le=100)] = 10
    take: Share = 0.6
    fade: Share = 0.3
    patience: Share = 0.9
    nothing_selected: Share = 0.05
    milliseconds: Annotated[float, Meta(gt=0, le=1e6)] = 250.0
    enter: Share = 0.8

    def __post_init__(self) -> None:
        if abs(sum(self.kinds) - 1) > 1e-9:
            raise InvalidSettings(f"the shares of the visits' kinds sum to {sum(self.kinds):g}; they have to sum to 1")
        if self.hosts > self.pages:
            raise InvalidSettings(f"{self.pages} pages cannot use {self.hosts} hosts; lower hosts or raise pages")
        if (self.drift_at is None) != (not self.drifted_weights):
            raise InvalidSettings("a drift needs both drift_at and drifted_weights; give both, or neither")


class ActivitySettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of users' activity: the times of their searches, and the age of their model.

    A user's activity is constant: a gamma number with mean 1 and the shape of the phase, so that most users search
    little and a few a lot. Over the day activity follows a sine, with ``swing`` times as many searches at its peak
    (``peak_hour``, UTC) as at its low; about four in figure 20 of the thesis. On a day a user is ``away`` with this
    probability, and searches more on the others. Users enrol evenly over the first ``rollout_days`` days.

    At the beginning of every iteration an active user fetches the newest model, but misses it with probability
    ``fetch_late`` and then continues with its previous one.
    """

    digest_name: ClassVar[str] = "ActivitySettings"

    swing: Annotated[float, Meta(ge=1, le=1e6)] = 4.0
    peak_hour: Annotated[float, Meta(ge=0, lt=24)] = 9.0
    away: Annotated[float, Meta(ge=0, le=0.99)] = 0.1
    rollout_days: Annotated[float, Meta(ge=0, le=3650)] = 0.0
    fetch_late: Annotated[float, Meta(ge=0, le=0.99)] = 0.03
