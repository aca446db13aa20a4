"""What rounds cost their clients: ε of a schedule, the noise or the rounds that keep an ε, and a filter that stops.

A schedule is fixed before training: T rounds, in each of which every client takes part with probability q, by a secret
coin, and adds at most S (L2) to a sum that gets Gaussian noise of standard deviation zS. What is asked, how it is
clipped and whose data there are may depend on what came out before; q, z and T may not (arXiv 2602.06756). Stopping
early is free. Where a person chooses q and z anew after having seen results, only :class:`RenyiFilter` counts rightly.
The unit is a client; neighbours differ by one client with all its pings (add or remove).

The accountants are those of dp-accounting, which others check against. The noise on integers is a discrete Gaussian; it
is counted as a continuous one, whose Rényi divergences it has to 1e-11 from a standard deviation of 1 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from importlib.metadata import version
from typing import Any, Protocol

from fedping.server_jobs.privacy.gaussian import NoGuarantee, epsilon_of, mu_of

MOST_ROUNDS = 1_000_000
"""No schedule may have more."""

WHOLE_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Of Rényi divergences. dp-accounting computes whole orders exactly; its series for orders between them is up to 2.6
times too high (q = 0.5, z = 8) or does not converge. These orders alone cost up to 7.5 % of an ε below 20 (where
the best one is between 256 and 512), and more of a larger one (where it is between 1 and 2)."""

_TOO_WIDE = 200.0
"""From this ε on a bound that is found at once will do: it protects nobody, and its PLD would be huge."""


@dataclass(frozen=True)
class Schedule:
    """Rounds that are fixed beforehand."""

    sampling: float
    """q, the probability with which a client takes part in a round, by a coin that nobody else sees; 1 for all."""
    noise_multiplier: float
    """z, the standard deviation of the noise over the bound S on what one client adds."""
    rounds: int
    """T. Without sampling only those count in which one and the same client takes part."""

    def __post_init__(self) -> None:
        if not 0 <= self.sampling <= 1:
            raise NoGuarantee(f"the share of clients in a round is {self.sampling:g}, and has to lie between 0 and 1")
        if not 0 <= self.noise_multiplier < math.inf:
            raise NoGuarantee(f"the noise multiplier is {self.noise_multiplier:g}, and has to be finite and at least 0")
        if not 0 <= self.rounds <= MOST_ROUNDS:
            raise NoGuarantee(f"{self.rounds} rounds are asked for; the accountant counts up to {MOST_ROUNDS:,}")

    @classmethod
    def of_contributions(cls, noise_multiplier: float, contributions: int) -> Schedule:
        """Return the schedule of clients that take part in so many rounds at most, of any number, seen by everybody."""
        return cls(1.0, noise_multiplier, contributions)


class Accountant(Protocol):
    """A way of counting whose ε is never below the truth; it falls with z and δ and grows with q and T."""

    def name(self, sampling: float) -> str:
        """Return what lineage says of how ε was counted: the method, its settings, the library and its version."""

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return ε of all the schedule's rounds together, in nats; infinity if there is none."""


@dataclass(frozen=True)
class Pld:
    """By privacy loss distributions: tight up to the grid, for a schedule fixed beforehand. Exact for q = 1."""

    grid: float = 1e-4
    """The distance of privacy losses that are told apart, in nats. A wider grid is faster, and ε larger."""

    def name(self, sampling: float) -> str:
        """Return "exact Gaussian" where everybody takes part, for then no grid is needed."""
        if sampling == 1:
            return "exact Gaussian"
        return f"PLD, add or remove one, grid {self.grid:g}, dp-accounting {version('dp-accounting')}"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return ε; beyond 200, the smaller of the bounds by Rényi divergences and by leaving sampling out.

        It takes 0.1 to 3 s, less on a wider grid: before a round, compare its number with what :func:`rounds_allowed`
        returned once.
        """
        if (trivial := _trivial(schedule, delta)) is not None:
            return trivial
        unsampled = epsilon_of(math.sqrt(schedule.rounds) / schedule.noise_multiplier, delta)
        if schedule.sampling == 1:
            return unsampled
        bound = min(unsampled, Renyi().epsilon(schedule, delta))
        # Powers of a Fourier transform are off by about this (measured against the exact Gaussian, up to 10^6 rounds):
        # for a δ of 1e-11 the library's ε is too small by 7e-6 of itself without it.
        rounding = 1e-13 + 1e-16 * schedule.rounds
        if bound > _TOO_WIDE or delta < 2 * rounding:
            return bound
        together = _one_round(schedule.sampling, schedule.noise_multiplier, self.grid).self_compose(schedule.rounds)
        return min(unsampled, float(together.get_epsilon_for_delta(delta - rounding)))


@dataclass(frozen=True)
class Renyi:
    """By Rényi divergences (Mironov 2017): quick, up to twice as large as by :class:`Pld`, and useless for tiny q."""

    orders: tuple[float, ...] = WHOLE_ORDERS

    def name(self, sampling: float) -> str:
        """Return the order too if there is one alone."""
        orders = f"order {self.orders[0]:g}" if len(self.orders) == 1 else f"{len(self.orders)} orders"
        return f"Rényi, {orders}, dp-accounting {version('dp-accounting')}"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return the least ε of any order."""
        trivial = _trivial(schedule, delta)
        return self.least(schedule, delta)[0] if trivial is None else trivial

    def least(self, schedule: Schedule, delta: float) -> tuple[float, float]:
        """Return ε and the order that gives it, for a schedule with rounds and noise and δ between 0 and 1."""
        from dp_accounting.rdp import compute_epsilon

        epsilon, order = compute_epsilon(self.orders, self.divergences(schedule), delta)
        return float(epsilon), float(order)

    def divergences(self, schedule: Schedule) -> list[float]:
        """Return ρ, the divergence of all rounds together, at each order; nats."""
        one = _divergences(self.orders, schedule.sampling, schedule.noise_multiplier)
        return [schedule.rounds * rho if schedule.rounds else 0.0 for rho in one]


PLD = Pld()
_ROUGH = Pld(1e-3)


def epsilon(schedule: Schedule, delta: float, accountant: Accountant = PLD) -> float:
    """Return ε of all the schedule's rounds together, never below the truth; in nats, infinity if there is none."""
    return accountant.epsilon(schedule, delta)


def rounds_allowed(
    sampling: float, noise_multiplier: float, epsilon: float, delta: float, accountant: Accountant = PLD
) -> int:
    """Return the last round that (ε, δ) allows, 0 if not even the first; at most :data:`MOST_ROUNDS`.

    It takes seconds. Callers keep it, and compare a round's number with it.
    """

    def fits(each: Accountant, rounds: int) -> bool:
        return each.epsilon(Schedule(sampling, noise_multiplier, rounds), delta) <= epsilon

    last = 0
    for each in _rough_first(accountant):
        last = _last(partial(fits, each), last)
    return last


def _last(fits: Callable[[int], bool], known: int) -> int:
    """Return the largest number of rounds that fits, by doubling steps and halving; ``known`` fits."""
    low, step = known, 1
    while (high := min(low + step, MOST_ROUNDS + 1)) <= MOST_ROUNDS and fits(high):
        low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def noise_multiplier_for(
    epsilon: float, delta: float, sampling: float, rounds: int, accountant: Accountant = PLD
) -> float:
    """Return the least z whose schedule keeps (ε, δ): not less than needed, and at most 2e-6 of itself more.

    It takes seconds.

    Raises:
        NoGuarantee: if no noise keeps them: ε or δ is 0.
    """
    if not (epsilon > 0 and delta > 0):
        raise NoGuarantee(f"no Gaussian noise keeps an epsilon of {epsilon:g} with a delta of {delta:g}")
    if _trivial(Schedule(sampling, 1.0, rounds), delta) == 0:
        return 0.0
    enough = math.sqrt(rounds) / mu_of(epsilon, delta)
    if sampling == 1 and isinstance(accountant, Pld):
        return enough

    def excess(each: Accountant, log_z: float) -> float:
        spent = each.epsilon(Schedule(sampling, math.exp(log_z), rounds), delta)
        return math.log(min(max(spent / epsilon, 1e-3), 1e3))

    log_z, step = math.log(enough), 0.5
    for each in _rough_first(accountant):
        log_z, step = _least(cache(partial(excess, each)), log_z, step), 1e-3
    return math.exp(log_z)


def _least(excess: Callable[[float], float], start: float, step: float) -> float:
    """Return the least number without excess, which falls, or at most 2e-6 more."""
    from scipy.optimize import brentq

    high = start
    while excess(high) > 0:
        high, step = high + step, 2 * step
    low = high - step
    while excess(low) <= 0:
        low, high, step = low - 2 * step, low, 2 * step
    least = float(brentq(excess, low, high, xtol=5e-7))
    while excess(least) > 0:
        least += 5e-7
    return least


def _rough_first(accountant: Accountant) -> tuple[Accountant, ...]:
    """Return an accountant after one ten times as fast whose answers are close, and safe, if there is one."""
    return (_ROUGH, accountant) if isinstance(accountant, Pld) and accountant.grid < _ROUGH.grid else (accountant,)


@dataclass(frozen=True)
class RenyiFilter:
    """A budget for segments, each fixed when it starts, whose q, z and rounds may depend on all results before it.

    Sums of Rényi divergences at one order that was fixed at the start stay valid then (Feldman and Zrnic 2021). The
    least over orders, or a PLD, does not; so the order has to be chosen for what is planned (:func:`order_for`).
    """

    order: int
    """α, at least 2."""
    epsilon: float
    """The budget; nats."""
    delta: float
    spent: float = 0.0
    """ρ at the order, of all segments so far; nats."""

    def __post_init__(self) -> None:
        if self.order not in WHOLE_ORDERS:
            raise NoGuarantee(f"the order is {self.order}, and has to be one of {', '.join(map(str, WHOLE_ORDERS))}")
        if not 0 < self.delta < 1:
            raise NoGuarantee(f"delta is {self.delta:g}, and has to lie between 0 and 1")

    def after(self, segment: Schedule) -> RenyiFilter:
        """Return the filter after a segment has been spent, or part of it; whether it was allowed is not asked."""
        if segment.sampling == 0 or segment.rounds == 0:
            return self
        if segment.noise_multiplier == 0:
            return replace(self, spent=math.inf)
        return replace(self, spent=self.spent + Renyi((self.order,)).divergences(segment)[0])

    def allows(self, segment: Schedule) -> bool:
        """Return whether the budget holds with the segment included; to be asked before it runs."""
        return self.after(segment).spent_epsilon() <= self.epsilon

    def spent_epsilon(self) -> float:
        """Return ε so far (Canonne, Kamath and Steinke 2020, proposition 12); nats."""
        if self.spent == 0:
            return 0.0
        tail = (math.log(self.delta) + math.log(self.order)) / (self.order - 1)
        return max(0.0, self.spent + math.log1p(-1 / self.order) - tail)


def order_for(schedule: Schedule, delta: float) -> int:
    """Return the order at which a planned schedule, with rounds and noise, costs least; for a :class:`RenyiFilter`."""
    return int(Renyi().least(schedule, delta)[1])


def _trivial(schedule: Schedule, delta: float) -> float | None:
    """Return ε where nothing has to be counted, else None."""
    if not 0 <= delta <= 1:
        raise NoGuarantee(f"delta is {delta:g}, and has to lie between 0 and 1")
    if schedule.sampling == 0 or schedule.rounds == 0 or delta == 1:
        return 0.0
    return math.inf if schedule.noise_multiplier == 0 or delta == 0 else None


@lru_cache(maxsize=8)
def _one_round(sampling: float, noise_multiplier: float, grid: float) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(noise_multiplier, value_discretization_interval=grid, sampling_prob=sampling)


@lru_cache(maxsize=64)
def _divergences(orders: tuple[float, ...], sampling: float, noise_multiplier: float) -> tuple[float, ...]:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    one = RdpAccountant(orders).compose(PoissonSampledDpEvent(sampling, GaussianDpEvent(noise_multiplier)))
    return tuple(float(rho) for rho in one.rdp)
