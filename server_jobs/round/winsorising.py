"""Winsorised means of an arm's loss and rank over clients, which a single client can't move far.

A client's value is the mean over its pings; for examples, it is the sum. Values in the tails are moved to the nearest
value inside. A median would be useless: on ranked lists, more than half of the losses are 0, before and after
learning. The information is in the tail, of which only the end is moved.

A shard has counts and sums for 8,192 bins, by sign, exponent and first bits of the float32 number, 16 for each power
of two. The numbers in a bin are multiples of one power of two with 24 bits, so their sum is exact for up to 2^29
clients, and sums merge to the same bits in any order. The limits of the tails are accurate to a bin: values beyond a
limit count as the mean of its bin.
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
"""Bits of the mantissa that select a bin."""

BINS = 1 << (9 + BITS)

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Values:
    """Clients by bin of their value: the non-empty bins, ascending, with the number and sum of values in each.

    All have shape (k,).
    """

    bins: NDArray[np.int64]
    clients: Vector
    sums: Vector


def values_of(values: Vector) -> Values:
    """Return clients by bin of their value, given the values, shape (clients,), which are rounded to float32."""
    short = np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
    where = bins_of(short, BITS)
    return _counted(where, np.ones(len(where)), short)


def merged_values(parts: Iterable[Values]) -> Values:
    """Return the clients of all parts, which must have no clients in common. The result is exact in any order."""
    each = list(parts)
    return _counted(*(np.concatenate([getattr(part, field.name) for part in each]) for field in fields(Values)))


def _counted(bins: NDArray[np.int64], clients: Vector, sums: NDArray[np.floating[Any]]) -> Values:
    """Return the clients by bin; the arguments may contain a bin several times."""
    counts = np.asarray(np.bincount(bins, clients, BINS), np.float64)
    filled = np.flatnonzero(counts)
    return Values(filled, counts[filled], np.asarray(np.bincount(bins, sums, BINS), np.float64)[filled])


def beyond(clients: int, tails: float) -> float:
    """Return the number of clients in either tail: at least 1 of three or more, and always less than half.

    It isn't rounded, so that arms of different sizes have the same share in the tails, and comparable means.
    """
    return float(min(max(1.0, tails * clients), (clients - 1) // 2))


def winsorised_mean(values: Values, tails: float) -> tuple[float, float]:
    """Return the winsorised mean of at least one client's value, and its approximate standard error.

    The error is that of a mean of the winsorised values, plus the error of the limits, because the number of clients
    beyond them is random. The latter is computed further inside, where outliers have no influence. For a single
    client, the error is set to its value.

    Args:
        values: the values of all shards.
        tails: the share of clients in either tail.
    """
    means, reached = values.sums / values.clients, np.cumsum(values.clients)
    n = round(float(reached[-1]))
    cut = beyond(n, tails)
    inside = min(cut + math.sqrt(cut), (n - 1) // 2)

    def limits(cut: float) -> tuple[float, float]:
        """Return the nearest values inside both tails, interpolated between two clients."""
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
    """An arm's clients with an example, by loss, by number of examples, and by rank (None without ranks)."""

    loss: Values
    examples: Values
    rank_selected: Values | None


def arm_values(of: NDArray[np.int64], pings: Vector, loss: Vector, examples: Vector, rank: Vector | None) -> ArmValues:
    """Return the values of an arm's clients from their pings with an example.

    Args:
        of: the client of each ping, as numbers from 0, shape (k,).
        pings: the number of pings of each client, shape (clients,).
        loss: the loss of each ping, shape (k,).
        examples: the number of examples of each ping, shape (k,).
        rank: the rank of each ping, shape (k,); None without ranks.
    """

    def summed(column: Vector) -> Vector:
        sums = np.bincount(of, column, len(pings))  # in the order of the pings, for the same bits everywhere
        return np.asarray(sums, np.float64)

    return ArmValues(
        values_of(summed(loss) / pings),
        values_of(summed(examples)),
        None if rank is None else values_of(summed(rank) / pings),
    )


def merged_arms(parts: Iterable[ArmValues]) -> ArmValues:
    """Return the clients of an arm from several shards. The result is exact in any order."""
    each = list(parts)
    ranks = [part.rank_selected for part in each if part.rank_selected is not None]
    return ArmValues(
        merged_values(part.loss for part in each),
        merged_values(part.examples for part in each),
        merged_values(ranks) if ranks else None,
    )


def winsorised(arm: ArmValues, tails: float) -> Winsorised | None:
    """Return an arm's winsorised results for the lineage, from all shards; None without clients with an example."""
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
