"""The loss and the rank of an arm as no single client can move them: means over clients, winsorised.

A client's value is the mean over its pings, or, of examples, their sum. The largest values count as the largest that is
not among them, the smallest likewise. A median would not do: where lists are ranked, more than half of the losses are
0, before learning and after. What there is to see is in the tail, and only its end is cut off.

A shard comes to counts and sums by bin: by sign, exponent and first bits of the float32 number, a sixteenth of a power
of two wide, of which there are 8,192. The numbers in a bin are multiples of one power of two, and have 24 bits, so that
their sum is exact for up to 2^29 clients: sums merge to the same bits in any order. Where to cut is known to a bin, and
nothing else is lost: what lies beyond counts as the mean of that bin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.model_store.version import Winsorised
from fedping.server_jobs.optimize.transformation import Vector
from fedping.server_jobs.round.robust import bins_of

BITS = 4
"""Bits of the mantissa that a bin goes by."""

BINS = 1 << (9 + BITS)

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Values:
    """Clients by the bin of their value: those bins that have any, how many clients, and the sum of their values.

    Each of shape (k,), by bins ascending.
    """

    bins: NDArray[np.int64]
    clients: Vector
    sums: Vector


def values_of(values: Vector) -> Values:
    """Return clients by the bin of their value, of shape (clients,), which is rounded to a float32 number."""
    short = np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
    where = bins_of(short, BITS)
    return _counted(where, np.ones(len(where)), short)


def merged_values(parts: Iterable[Values]) -> Values:
    """Return the clients of several, of which none has the same ones; exact, in any order."""
    each = list(parts)
    return _counted(*(np.concatenate([getattr(part, field.name) for part in each]) for field in fields(Values)))


def _counted(bins: NDArray[np.int64], clients: Vector, sums: NDArray[np.floating[Any]]) -> Values:
    """Return the clients of bins that may stand there several times, ascending."""
    together = np.asarray(np.bincount(bins, clients, BINS), np.float64)
    there = np.flatnonzero(together)
    return Values(there, together[there], np.asarray(np.bincount(bins, sums, BINS), np.float64)[there])


def beyond(clients: int, tails: float) -> float:
    """Return how many of some clients are cut off at either end: at least one of three or more, never the middle.

    Not rounded: arms of different size have the same share cut off, or one would have the lower mean for its size.
    """
    return float(min(max(1.0, tails * clients), (clients - 1) // 2))


def winsorised_mean(values: Values, tails: float) -> tuple[float, float]:
    """Return the winsorised mean of one client's value or more, and about its standard error.

    The error is that of a mean of the winsorised values, and what comes of their limits being off by as many clients as
    chance may put beyond them. That is looked up further inside, where nobody's claim is. The error of a single
    client's value is taken for as large as that.

    Args:
        values: of all shards together.
        tails: the share of clients that is cut off at either end.
    """
    means, reached = values.sums / values.clients, np.cumsum(values.clients)
    n = round(float(reached[-1]))
    cut = beyond(n, tails)
    inside = min(cut + math.sqrt(cut), (n - 1) // 2)

    def limits(cut: float) -> tuple[float, float]:
        """Return the next values inside, between two clients where the cut is."""
        whole, part = math.floor(cut), cut % 1
        low, lower, high, higher = means[
            np.searchsorted(reached, np.clip((whole + 1, whole + 2, n - whole, n - whole - 1), 1, n))
        ]
        return float(low + part * (lower - low)), float(high + part * (higher - high))

    low, high = limits(cut)
    shifted = np.clip(means, low, high)
    mean = float((shifted * values.clients).sum() / n)
    if n == 1:
        return mean, abs(mean)
    spread = math.sqrt(float((np.square(shifted - mean) * values.clients).sum()) / (n - 1))
    inner_low, inner_high = limits(inside)
    return mean, spread / math.sqrt(n) + cut / n * (inner_low - low + high - inner_high)


@dataclass(frozen=True, slots=True)
class ArmValues:
    """The clients of an arm with an example by loss, by number of examples, and by rank; None where none is ranked."""

    loss: Values
    examples: Values
    rank_selected: Values | None


def arm_values(of: NDArray[np.int64], pings: Vector, loss: Vector, examples: Vector, rank: Vector | None) -> ArmValues:
    """Return an arm's clients by what their pings with an example say.

    Args:
        of: which client each ping is of, numbers from 0, shape (k,).
        pings: how many pings each client has, shape (clients,).
        loss: of each ping, shape (k,).
        examples: how many each counts, shape (k,).
        rank: of each; None where none is ranked.
    """

    def summed(column: Vector) -> Vector:
        found = np.bincount(of, column, len(pings))  # in the order of the pings, and so the same bits everywhere
        return np.asarray(found, np.float64)

    return ArmValues(
        values_of(summed(loss) / pings),
        values_of(summed(examples)),
        None if rank is None else values_of(summed(rank) / pings),
    )


def merged_arms(parts: Iterable[ArmValues]) -> ArmValues:
    """Return the clients of an arm in several shards together; exact, in any order."""
    each = list(parts)
    ranks = [part.rank_selected for part in each if part.rank_selected is not None]
    return ArmValues(
        merged_values(part.loss for part in each),
        merged_values(part.examples for part in each),
        merged_values(ranks) if ranks else None,
    )


def winsorised(arm: ArmValues, tails: float) -> Winsorised | None:
    """Return what a lineage tells of an arm, from all of its shards; None without a client that had an example."""
    clients = round(float(arm.loss.clients.sum()))
    if not clients:
        return None
    loss, loss_error = winsorised_mean(arm.loss, tails)
    examples, _ = winsorised_mean(arm.examples, tails)
    rank, rank_error = (None, None) if arm.rank_selected is None else winsorised_mean(arm.rank_selected, tails)
    return Winsorised(
        clients=clients,
        examples=round(examples * clients),
        loss=loss,
        loss_error=loss_error,
        rank_selected=rank,
        rank_error=rank_error,
    )
