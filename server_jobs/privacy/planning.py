"""What a guarantee costs before a study starts: noise, clients a round, rounds; from any of them to the others.

What noise does to learning was measured (docs/experiments.md): sign votes of 15 weights, stepped by RProp, keep at
least 95 % of the gain while the noise on a weight is at most 0.01 √15 of the votes, about 90 % at 0.015 √15, some 60 %
at 0.04 √15 and a fifth to a half at 0.11 √15. The 22 weights of the browser's ranking keep less, 74 % at 0.019 √15 and
12 % at 0.056 √15, so the bounds are below what the 15 would allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import METRICS
from fedping.server_jobs.privacy.accounting import Schedule, epsilon, noise_multiplier_for, rounds_allowed

HARMLESS, FELT, LOST = 0.008, 0.015, 0.05
"""Up to these ratios learning keeps 95 % of its gain, about 85 %, and a part; beyond the last it may keep nothing."""

_METRIC_SHARE = len(METRICS) / 16
"""By how much the metrics make the square of a vector's bound longer (`fedping.protocol.privacy.Frame`)."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A private line, planned.

    Attributes:
        population: clients that could take part.
        sampling: the share of them whose pings count in a round.
        rounds: all of them.
        contributions: to how many rounds one client contributes at most; None for all.
        epsilon, delta: the guarantee of all rounds together.
        noise_multiplier: z, the noise's standard deviation over a vector's bound.
        weights: how many weights get noise.
        shared: whether two servers add noise, each all of it.
    """

    population: int
    sampling: float
    rounds: int
    contributions: int | None
    epsilon: float
    delta: float
    noise_multiplier: float
    weights: int
    shared: bool = False

    @property
    def per_round(self) -> float:
        """How many clients count in a round."""
        per_round = self.population * self.sampling
        if self.contributions is None or self.contributions >= self.rounds:
            return per_round
        return per_round * self.contributions / self.rounds

    @property
    def ratio(self) -> float:
        """The noise on a weight over the number of votes, relative to that of 15 weights: z / n there."""
        return self._noise / self.per_round

    @property
    def _noise(self) -> float:
        """That of all servers, relative to that on 15 weights."""
        return self.noise_multiplier * _relative(self.weights) * (math.sqrt(2) if self.shared else 1.0)

    @property
    def outlook(self) -> str:
        """What the noise leaves of what would be learned without it."""
        if self.ratio <= HARMLESS:
            return "at least 95 % of the gain without noise"
        if self.ratio <= FELT:
            return "about 85 % of the gain without noise"
        return "a part of the gain without noise" if self.ratio <= LOST else "nothing: noise wins"

    @property
    def clients_needed(self) -> int:
        """How many clients have to count in a round, with this noise, to keep at least 95 % of the gain."""
        return math.ceil(self._noise / HARMLESS)


def _relative(weights: int) -> float:
    return math.sqrt(weights * (1 + _METRIC_SHARE) / 15)


def usual_delta(population: int) -> float:
    """Return the δ that a guarantee has where none is given: the population to the power of -1.1."""
    return float(population**-1.1)


def planned(
    *,
    population: int,
    weights: int,
    sampling: float = 1.0,
    rounds: int | None = None,
    contributions: int | None = None,
    epsilon_: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    shared: bool = False,
) -> Plan:
    """Return a plan from two of rounds, ε and noise, which give the third.

    It takes seconds where there is sampling.

    Raises:
        InvalidSettings: clients of a line of shares are to be sampled, one or all of the three are given, δ is too
            large for so many clients, or the ε and the noise do not allow a single round.
    """
    if shared and sampling < 1:
        raise InvalidSettings(
            "both servers of a line of shares see which clients count, so --sampling would protect nobody from them; "
            "leave it out"
        )
    delta = usual_delta(population) if delta is None else delta
    if delta >= 1 / population:
        raise InvalidSettings(
            f"delta = {delta:g} is no guarantee for {population:,} clients, for one of them could be given away "
            f"outright; give less than {1 / population:.2g}"
        )
    if [rounds, epsilon_, noise_multiplier].count(None) != 1:
        raise InvalidSettings("give two of --rounds, --epsilon and --noise; the third follows from them")
    if rounds is None:
        assert epsilon_ is not None
        assert noise_multiplier is not None
        rounds = _rounds(sampling, noise_multiplier, contributions, epsilon_, delta)
    counted = rounds if contributions is None else min(rounds, contributions)
    if noise_multiplier is None:
        assert epsilon_ is not None
        noise_multiplier = noise_multiplier_for(epsilon_, delta, sampling, counted)
    if epsilon_ is None:
        epsilon_ = epsilon(Schedule(sampling, noise_multiplier, counted), delta)
    return Plan(
        population=population,
        sampling=sampling,
        rounds=rounds,
        contributions=contributions,
        epsilon=epsilon_,
        delta=delta,
        noise_multiplier=noise_multiplier,
        weights=weights,
        shared=shared,
    )


def _rounds(sampling: float, noise_multiplier: float, contributions: int | None, most: float, delta: float) -> int:
    if contributions is not None and epsilon(Schedule(sampling, noise_multiplier, contributions), delta) <= most:
        raise InvalidSettings(
            f"with {contributions:,} contributions of a client the noise keeps the guarantee for any number of rounds; "
            "give --rounds, and leave out --epsilon or --noise"
        )
    allowed = rounds_allowed(sampling, noise_multiplier, most, delta)
    if allowed == 0:
        raise InvalidSettings(
            f"a single round with noise of {noise_multiplier:g} would spend more than epsilon = {most:g}; give more "
            "noise, or leave --noise out"
        )
    return allowed


def refuse_lost(plan: Plan) -> None:
    """Raise :class:`InvalidSettings` if noise would win, and say what would do."""
    if plan.ratio <= LOST:
        return
    raise InvalidSettings(
        f"noise would win: epsilon = {plan.epsilon:g} over {plan.rounds:,} rounds takes a noise multiplier of "
        f"{plan.noise_multiplier:.3g}, which {plan.per_round:,.0f} clients a round cannot outvote. About "
        f"{plan.clients_needed:,} clients a round could keep 95 % of the gain; more clients, fewer rounds, fewer "
        "contributions of a client or a larger epsilon all help"
    )
