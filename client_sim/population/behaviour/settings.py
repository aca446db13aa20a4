"""How users live and behave, as settings. What comes from the thesis is marked so; all the rest is our assumption."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from fedping.client_sim.population.settings import Share
from fedping.protocol.errors import InvalidSettings


class UserSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What users have, what they want, and how they look for it.

    Words. All share a vocabulary of ``vocabulary`` words, whose frequencies follow Zipf's law with exponent ``zipf``.
    A user has ``pages`` pages on ``hosts`` hosts, of which the first have most pages (Zipf again). A page's words are
    its host, a word of its address and one of its title; a word matches if it begins with what was typed.

    Visits. A page is in use for ``days`` days (thesis 7.3: 180) and is then found anew; users' pages are at all moments
    of their lives. At any time the number of visits of a page since it was found is exponential, with mean
    ``mean_visits`` (7.3), rounded and at least one. They are spread evenly over that time, one at random in each gap,
    so that the ages of all visits are between 0 and ``days`` and skewed to the recent. With probability ``habit`` a
    visit is of the page's own kind, else of one of ``kinds`` (link, typed, bookmark: 7.3), from which the page's own
    kind was drawn too. ``other_visits``, ``redirect_sources``, ``bookmarked`` and ``unvisited`` are as in
    :class:`fedping.client_sim.population.settings.PopulationSettings`.

    Wishes. The user thinks of ``considered`` of its pages; it wants one of them with a probability proportional
    to its score under ``true_weights`` (empty: the reference weights of the ranker) to the power ``sharpness``. From
    iteration ``drift_at`` on, ``drifted_weights`` replace them.

    Looking. A user types ``first_look`` characters on average (at least 1, the rest geometric) before its first look,
    and then looks after each character. ``rows`` suggestions are visible. It takes the wanted page at rank
    r with probability ``take`` × ``fade`` to the power r, and each further character multiplies the probability of
    *not* taking it by ``patience``. When the word is typed out, it takes the page if that is visible, and otherwise
    gives up. In ``nothing_selected`` of searches the user leaves without a choice, whatever is shown. With the defaults
    for words and looking, users whose list is ranked by the weights of 2018 type and select about as the control arm of
    2018 did (figure 21: 4.26 characters, rank 0.35); nothing was fitted to a treatment.

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
            raise InvalidSettings(f"{self.pages} pages cannot be on {self.hosts} hosts; lower hosts or raise pages")
        if (self.drift_at is None) != (not self.drifted_weights):
            raise InvalidSettings("a drift needs both drift_at and drifted_weights; give both, or neither")


class ActivitySettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When users search, and how up to date their model is.

    A user's activity is constant: a gamma number with mean 1 and the shape of the phase, so that most users search
    little and a few a lot. Over the day activity swings as a sine, with ``swing`` times as many searches at its peak
    (``peak_hour``, UTC) as at its low; about four in figure 20 of the thesis. On a day a user is ``away`` with this
    probability, and searches more on the others. Users enrol evenly over the first ``rollout_days`` days.

    At the beginning of every iteration a user who is present fetches the newest model, but misses it with probability
    ``fetch_late`` and then continues with the one it has.
    """

    digest_name: ClassVar[str] = "ActivitySettings"

    swing: Annotated[float, Meta(ge=1, le=1e6)] = 4.0
    peak_hour: Annotated[float, Meta(ge=0, lt=24)] = 9.0
    away: Annotated[float, Meta(ge=0, le=0.99)] = 0.1
    rollout_days: Annotated[float, Meta(ge=0, le=3650)] = 0.0
    fetch_late: Annotated[float, Meta(ge=0, le=0.99)] = 0.03
