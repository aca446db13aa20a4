"""Privacy accounting: ε of a schedule, the noise or the number of rounds for a given ε, and a filter.

A schedule is fixed before training: T rounds, in each of which every client takes part with probability q, sampled
secretly, and adds at most S (L2) to a sum that gets Gaussian noise of standard deviation zS. Queries, clipping and data
may depend on earlier results; q, z and T may not (arXiv 2602.06756). Early stopping doesn't affect the guarantee. If q
and z are changed after results are seen, only :class:`RenyiFilter` is valid. The unit of privacy is a client;
neighbours differ by one client with all its pings (add or remove).

The accountants are those of dp-accounting, a common reference. The noise on integers is a discrete Gaussian, which is
accounted for as a continuous Gaussian. From a standard deviation of 1 on, their Rényi divergences differ by at most
1e-11.
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
"""Maximum rounds of a schedule."""

WHOLE_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Orders of Rényi divergences. dp-accounting computes whole orders exactly; for other orders, its series is up to 2.6
times too high (q = 0.5, z = 8) or doesn't converge. The restriction to these orders raises an ε below 20 by up to 7.5
% (if the best order is between 256 and 512), and a larger ε by more (if the best order is between 1 and 2)."""

_TOO_WIDE = 200.0
"""ε above which a quick bound is used: such an ε gives no protection, and its PLD would be huge."""


@dataclass(frozen=True)
class Schedule:
    """A schedule of rounds, fixed before training."""

    sampling: float
    """q, the probability that a client takes part in a round, sampled secretly; 1 for all clients."""
    noise_multiplier: float
    """z, the standard deviation of the noise divided by the bound S on a client's contribution."""
    rounds: int
    """T, the number of rounds. Without sampling, only rounds with the same client count."""

    def __post_init__(self) -> None:
        if not 0 <= self.sampling <= 1:
            raise NoGuarantee(f"the share of clients in a round is {self.sampling:g}; give a number between 0 and 1")
        if not 0 <= self.noise_multiplier < math.inf:
            raise NoGuarantee(f"the noise multiplier is {self.noise_multiplier:g}; give a finite number of at least 0")
        if not 0 <= self.rounds <= MOST_ROUNDS:
            raise NoGuarantee(f"{self.rounds} rounds are too many; the accountant's maximum is {MOST_ROUNDS:,}")

    @classmethod
    def of_contributions(cls, noise_multiplier: float, contributions: int) -> Schedule:
        """Return the schedule if clients publicly take part in at most ``contributions`` of any number of rounds."""
        return cls(1.0, noise_multiplier, contributions)


class Accountant(Protocol):
    """An upper bound of ε, which decreases with z and δ, and increases with q and T."""

    def name(self, sampling: float) -> str:
        """Return the accountant's name for the lineage: the method, its settings, the library and its version."""

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return ε of all rounds of the schedule together, in nats; infinity without a guarantee."""


@dataclass(frozen=True)
class Pld:
    """Accountant by privacy loss distributions: tight up to the grid, for a fixed schedule; exact for q = 1."""

    grid: float = 1e-4
    """Resolution of privacy losses in nats. A coarser grid is faster and gives a larger ε."""

    def name(self, sampling: float) -> str:
        """Return "exact Gaussian" without sampling, which needs no grid."""
        if sampling == 1:
            return "exact Gaussian"
        return f"PLD, add or remove one, grid {self.grid:g}, dp-accounting {version('dp-accounting')}"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return ε. Above 200, it is the smaller of two bounds: by Rényi divergences, and without sampling.

        It takes 0.1 to 3 s, less on a coarser grid. Before a round, compare the round's number with the stored result
        of :func:`rounds_allowed` instead.
        """
        if (trivial := _trivial(schedule, delta)) is not None:
            return trivial
        unsampled = epsilon_of(math.sqrt(schedule.rounds) / schedule.noise_multiplier, delta)
        if schedule.sampling == 1:
            return unsampled
        bound = min(unsampled, Renyi().epsilon(schedule, delta))
        # The error of powers of a Fourier transform (measured against the exact Gaussian, up to 10^6 rounds). Without
        # it, the library's ε for a δ of 1e-11 is too small by a factor of 7e-6.
        rounding = 1e-13 + 1e-16 * schedule.rounds
        if bound > _TOO_WIDE or delta < 2 * rounding:
            return bound
        together = _one_round(schedule.sampling, schedule.noise_multiplier, self.grid).self_compose(schedule.rounds)
        return min(unsampled, float(together.get_epsilon_for_delta(delta - rounding)))


@dataclass(frozen=True)
class Renyi:
    """Accountant by Rényi divergences (Mironov 2017): fast, up to twice the ε of :class:`Pld`, unusable for tiny q."""

    orders: tuple[float, ...] = WHOLE_ORDERS

    def name(self, sampling: float) -> str:
        """Return the name, with the order if there is only one."""
        orders = f"order {self.orders[0]:g}" if len(self.orders) == 1 else f"{len(self.orders)} orders"
        return f"Rényi, {orders}, dp-accounting {version('dp-accounting')}"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return the smallest ε over the orders."""
        trivial = _trivial(schedule, delta)
        return self.least(schedule, delta)[0] if trivial is None else trivial

    def least(self, schedule: Schedule, delta: float) -> tuple[float, float]:
        """Return ε and its order, for a schedule with rounds and noise, and δ between 0 and 1."""
        from dp_accounting.rdp import compute_epsilon

        epsilon, order = compute_epsilon(self.orders, self.divergences(schedule), delta)
        return float(epsilon), float(order)

    def divergences(self, schedule: Schedule) -> list[float]:
        """Return ρ, the divergence of all rounds together, at each order, in nats."""
        one = _divergences(self.orders, schedule.sampling, schedule.noise_multiplier)
        return [schedule.rounds * rho if schedule.rounds else 0.0 for rho in one]


PLD = Pld()
_ROUGH = Pld(1e-3)


def epsilon(schedule: Schedule, delta: float, accountant: Accountant = PLD) -> float:
    """Return an upper bound of ε of all rounds of the schedule, in nats; infinity without a guarantee."""
    return accountant.epsilon(schedule, delta)


def rounds_allowed(
    sampling: float, noise_multiplier: float, epsilon: float, delta: float, accountant: Accountant = PLD
) -> int:
    """Return the number of rounds allowed by (ε, δ), at most :data:`MOST_ROUNDS`.

    It takes seconds, so callers store the result and compare a round's number with it.
    """

    def fits(each: Accountant, rounds: int) -> bool:
        return each.epsilon(Schedule(sampling, noise_multiplier, rounds), delta) <= epsilon

    last = 0
    for each in _rough_first(accountant):
        last = _last(partial(fits, each), last)
    return last


def _last(fits: Callable[[int], bool], known: int) -> int:
    """Return the largest number of rounds that fits, by doubling and bisection from ``known``, which must fit."""
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
    """Return the smallest z whose schedule satisfies (ε, δ), at most a factor of 2e-6 above the exact value.

    It takes seconds.

    Raises:
        NoGuarantee: no noise satisfies them, because ε or δ is 0.
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
    """Return the smallest number with a non-positive value of the decreasing ``excess``, or at most 2e-6 more."""
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
    """Return an accountant, preceded by a ten times faster accountant with close upper bounds, if available."""
    return (_ROUGH, accountant) if isinstance(accountant, Pld) and accountant.grid < _ROUGH.grid else (accountant,)


@dataclass(frozen=True)
class RenyiFilter:
    """A budget for segments of rounds. A segment's q, z and rounds may depend on all results before it starts.

    Sums of Rényi divergences at one fixed order are then still valid. A minimum over orders, or a PLD, isn't, so the
    order must be chosen in advance for the planned schedule (:func:`order_for`).

    Source: Feldman and Zrnic 2021.
    """

    order: int
    """The order α of the Rényi divergences, at least 2."""
    epsilon: float
    """The budget, in nats."""
    delta: float
    spent: float = 0.0
    """The divergence ρ of all segments so far, at this order, in nats."""

    def __post_init__(self) -> None:
        if self.order not in WHOLE_ORDERS:
            raise NoGuarantee(f"the order is {self.order}; give one of {', '.join(map(str, WHOLE_ORDERS))}")
        if not 0 < self.delta < 1:
            raise NoGuarantee(f"delta is {self.delta:g}; give a number between 0 and 1")

    def after(self, segment: Schedule) -> RenyiFilter:
        """Return the filter after a segment, or part of it, was spent, even if it wasn't allowed."""
        if segment.sampling == 0 or segment.rounds == 0:
            return self
        if segment.noise_multiplier == 0:
            return replace(self, spent=math.inf)
        return replace(self, spent=self.spent + Renyi((self.order,)).divergences(segment)[0])

    def allows(self, segment: Schedule) -> bool:
        """Return whether the budget allows a segment that has not run yet."""
        return self.after(segment).spent_epsilon() <= self.epsilon

    def spent_epsilon(self) -> float:
        """Return ε so far, in nats (Canonne, Kamath and Steinke 2020, proposition 12)."""
        if self.spent == 0:
            return 0.0
        tail = (math.log(self.delta) + math.log(self.order)) / (self.order - 1)
        return max(0.0, self.spent + math.log1p(-1 / self.order) - tail)


def order_for(schedule: Schedule, delta: float) -> int:
    """Return the order with the smallest ε for a planned schedule, for a :class:`RenyiFilter`."""
    return int(Renyi().least(schedule, delta)[1])


def _trivial(schedule: Schedule, delta: float) -> float | None:
    """Return ε if it needs no accounting; otherwise None."""
    if not 0 <= delta <= 1:
        raise NoGuarantee(f"delta is {delta:g}; give a number between 0 and 1")
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
