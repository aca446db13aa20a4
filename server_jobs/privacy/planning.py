"""Plans a private line before a study starts: relates noise, clients per round, and rounds.

The effect of noise on learning was measured (docs/experiments.md). Sign votes of 15 weights with RProp keep at least
95 % of the gain if the noise on a weight is at most 0.01 √15 of the votes, about 90 % at 0.015 √15, 60 % at 0.04 √15,
and a fifth to a half at 0.11 √15. The 22 weights of the browser's ranking keep less, 74 % at 0.019 √15 and 12 % at
0.056 √15, so the limits are lower than the 15 weights allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import METRICS
from fedping.server_jobs.privacy.accounting import Schedule, epsilon, noise_multiplier_for, rounds_allowed

HARMLESS, FELT, LOST = 0.008, 0.015, 0.05
"""Maximum ratios of noise to votes for which learning keeps 95 % of its gain, about 85 %, and some of it."""

_METRIC_SHARE = len(METRICS) / 16
"""Relative increase of a vector's squared bound by the metrics (`fedping.protocol.privacy.Frame`)."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan of a private line.

    Attributes:
        population: the number of clients that can take part.
        sampling: the share of clients that count in a round.
        rounds: the number of rounds.
        contributions: the maximum number of rounds of a client; None for all.
        epsilon, delta: the guarantee over all rounds.
        noise_multiplier: z, the noise's standard deviation divided by a vector's bound.
        weights: the number of weights with noise.
        shared: whether there are two servers, each of which adds the full noise.
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
        """Number of clients that count in a round."""
        per_round = self.population * self.sampling
        if self.contributions is None or self.contributions >= self.rounds:
            return per_round
        return per_round * self.contributions / self.rounds

    @property
    def ratio(self) -> float:
        """Noise on a weight divided by the number of votes, scaled to 15 weights; for 15 weights it is z / n."""
        return self._noise / self.per_round

    @property
    def _noise(self) -> float:
        """Total noise of all servers, scaled to 15 weights."""
        return self.noise_multiplier * _relative(self.weights) * (math.sqrt(2) if self.shared else 1.0)

    @property
    def outlook(self) -> str:
        """Share of the gain that remains with the noise, in words."""
        if self.ratio <= HARMLESS:
            return "at least 95 % of the gain without noise"
        if self.ratio <= FELT:
            return "about 85 % of the gain without noise"
        return "part of the gain without noise" if self.ratio <= LOST else "nothing: noise wins"

    @property
    def clients_needed(self) -> int:
        """Number of clients per round with which learning keeps at least 95 % of the gain."""
        return math.ceil(self._noise / HARMLESS)


def _relative(weights: int) -> float:
    return math.sqrt(weights * (1 + _METRIC_SHARE) / 15)


def usual_delta(population: int) -> float:
    """Return the default δ of a guarantee: the population to the power of -1.1."""
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
    """Return a plan, given two of rounds, ε and noise; the third is computed.

    It takes seconds with sampling.

    Raises:
        InvalidSettings: a two-server line has sampling, not exactly two of rounds, ε and noise are given, δ is too
            large for the number of clients, or ε and the noise don't allow a single round.
    """
    if shared and sampling < 1:
        raise InvalidSettings(
            "both servers of a two-server line see which clients count, so --sampling doesn't protect against them. "
            "Remove --sampling."
        )
    delta = usual_delta(population) if delta is None else delta
    if delta >= 1 / population:
        raise InvalidSettings(
            f"delta = {delta:g} is no guarantee for {population:,} clients, because it allows publishing the data of "
            f"one of them. Use less than {1 / population:.2g}."
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
            f"with {contributions:,} contributions of a client the noise keeps the guarantee for any number of rounds. "
            "Use --rounds, and remove --epsilon or --noise."
        )
    allowed = rounds_allowed(sampling, noise_multiplier, most, delta)
    if allowed == 0:
        raise InvalidSettings(
            f"a single round with noise of {noise_multiplier:g} would spend more than epsilon = {most:g}. Use more "
            "noise, or remove --noise."
        )
    return allowed


def refuse_lost(plan: Plan) -> None:
    """Raise :class:`InvalidSettings`, with the number of clients needed, if the noise would outweigh the votes."""
    if plan.ratio <= LOST:
        return
    raise InvalidSettings(
        f"too much noise to learn: epsilon = {plan.epsilon:g} over {plan.rounds:,} rounds needs a noise multiplier "
        f"of {plan.noise_multiplier:.3g}, too much for {plan.per_round:,.0f} clients a round. About "
        f"{plan.clients_needed:,} clients a round keep 95 % of the gain without noise. Plan more clients, "
        "fewer rounds, fewer contributions of a client or a larger epsilon"
    )
