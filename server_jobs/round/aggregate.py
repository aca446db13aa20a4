"""The aggregate of a round's pings: small partials of the shards, and their merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.model_store.version import Aggregate, ArmSummary, ClientSketch, OutcomeLevel
from fedping.protocol.outcomes import outcome_range
from fedping.server_jobs.optimize.transformation import Vector
from fedping.server_jobs.round.accumulator import Moments, merged, moments_of, no_moments
from fedping.server_jobs.round.aggregations import accumulator_for, refuse_senders
from fedping.server_jobs.round.clipping import limit
from fedping.server_jobs.round.influence import InfluenceSums, influence_of, merged_pulls
from fedping.server_jobs.round.new_clients import Registers
from fedping.server_jobs.round.ping_file import Rows
from fedping.server_jobs.round.ping_filter import (
    DONE,
    RARE,
    REASONS,
    UNTOLD,
    USED,
    Clients,
    examples_of,
    most_examples,
    pings_a_client,
)
from fedping.server_jobs.round.plan import Rules
from fedping.server_jobs.round.winsorising import ArmValues, arm_values, merged_arms, winsorised


@dataclass(frozen=True, slots=True)
class ArmPartial:
    """The pings of one arm in a shard.

    Attributes:
        pings: number of pings.
        examples: total number of their examples.
        loss, rank_selected: moments, of length 1, over pings with an example, weighted by examples or clients according
            to the study's limits; without a rank if pings have none.
        values: the arm's clients by value; None if the study doesn't winsorise.
        clients: the number of clients with an example, counted only for a side of a stage; otherwise 0.
        clipped: the number of pings whose loss was clipped.
        outcome: moments over clients of each client's mean of the guarded outcome; None without a guarded outcome.
    """

    pings: int
    examples: int
    loss: Moments
    rank_selected: Moments
    values: ArmValues | None = None
    clients: int = 0
    clipped: int = 0
    outcome: Moments | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPartial:
    """The aggregate of one shard.

    Attributes:
        shard: number of the shard.
        counts: numbers of pings by outcome.
        ages: numbers of used pings by age, from 0 on; empty if the line doesn't merge late pings.
        clients: number of clients with a used ping.
        arms: partials of the arms, in the order of the rules.
        total: partial of the line's accumulator.
        pulls: the influence of the updates; None if not computed.
        registers: HyperLogLog registers of the clients with a used ping; None if not computed.
        update_bytes: encoded size of the used updates.
        capped: number of :func:`fedping.server_jobs.round.ping_filter.capped_clients`.
    """

    shard: int
    counts: tuple[int, ...]
    ages: tuple[int, ...]
    clients: int
    arms: tuple[ArmPartial, ...]
    total: Any
    pulls: InfluenceSums | None = None
    registers: Registers | None = None
    update_bytes: int = 0
    capped: int = 0


FIXED_BYTES = 2**17
"""Bytes of the parts of a partial that don't depend on weights: counts of norms by bin, losses and clients."""

WEIGHT_BYTES = 24
"""Bytes of a partial for each weight: its mean, its squared deviations, and its signs if influence is computed."""

_AT_ONCE = 64
"""Number of partials, without the parts that grow with the weights, that are merged at a time."""


def partial_bytes(m: int) -> int:
    """Return the approximate bytes of a partial with m weights, if no updates are kept."""
    return FIXED_BYTES + WEIGHT_BYTES * m


def counted(outcomes: NDArray[np.int8]) -> tuple[int, ...]:
    """Return the number of pings with each of the :data:`REASONS`, in their order."""
    return tuple(np.bincount(outcomes[outcomes != DONE], minlength=len(REASONS)).tolist())


def aged(rows: Rows, outcomes: NDArray[np.int8], rules: Rules) -> tuple[int, ...]:
    """Return the number of used pings of each age."""
    if rules.line.pipeline.staleness is None:
        return ()
    return tuple(np.bincount(rows.age[outcomes == USED], minlength=rules.line.pipeline.staleness.most + 1).tolist())


def arm_partials(rows: Rows, clients: Clients, outcomes: NDArray[np.int8], rules: Rules) -> tuple[ArmPartial, ...]:
    """Return the partials of all arms in the order of the rules, including arms that don't submit updates.

    They contain only pings of the round's version, no late pings of older versions.
    """
    valid = (rows.age == 0) & ~np.isin(outcomes, UNTOLD)
    return tuple(_arm_partial(rows, clients, valid & (rows.arm == arm), rules) for arm in range(len(rules.arms)))


def _arm_partial(rows: Rows, clients: Clients, mine: NDArray[np.bool_], rules: Rules) -> ArmPartial:
    examples = examples_of(rows.counted, rules).astype(np.float64)
    chosen = mine & (examples > 0)
    weights = examples[chosen]
    total, limits, values = int(weights.sum()), rules.limits, None
    selected = rows.counted[chosen] - rules.document.top if rules.document.ranked else None
    losses = rows.loss[chosen]
    loss = losses if limits is None else limits.clipped(losses)
    if limits is not None and (limits.votes == "client" or limits.round_tails):
        pings, counts = pings_a_client(clients, np.flatnonzero(chosen))
        if limits.round_tails:
            present = counts > 0  # the shard's clients in this arm
            of = (np.cumsum(present) - 1)[clients.of[chosen]]
            ranks = None if selected is None else selected.astype(np.float64)
            values = arm_values(of, counts[present].astype(np.float64), loss, weights, ranks)
        if limits.votes == "client":
            weights = 1.0 / pings
    rank = no_moments(1) if selected is None else _moments_of_column(selected, weights)
    evaluating = len(np.unique(clients.of[chosen])) if rules.side is not None else 0
    clipped = int((loss != losses).sum())
    outcome = None if rules.guarded is None else _outcome_of_clients(rows, clients, chosen)
    means = _moments_of_column(loss, weights), rank
    return ArmPartial(int(mine.sum()), total, *means, values, evaluating, clipped, outcome)


def _outcome_of_clients(rows: Rows, clients: Clients, chosen: NDArray[np.bool_]) -> Moments:
    of = clients.of[chosen]
    if not len(of) or not rows.outcome.shape[1]:
        return no_moments(1)
    pings = np.bincount(of, minlength=len(clients.row))
    sums = np.bincount(of, rows.outcome[chosen, 0], len(clients.row))
    there = pings > 0
    return _moments_of_column(sums[there] / pings[there], np.ones(int(there.sum())))


def _moments_of_column(values: NDArray[np.generic], weights: Vector) -> Moments:
    return moments_of(values.astype(np.float64)[:, None], weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAggregate:
    """The aggregate of all pings of a round.

    Attributes:
        counts: numbers of pings by outcome.
        ages: numbers of used pings by age, as in `fedping.model_store.version.Lineage`.
        arms: the figures of each arm.
        updates: the figures of the updates, for the lineage.
        total: merged partial of the line's accumulator.
        registers: HyperLogLog registers of the clients with a used ping; None if not computed.
        known: sketch of these clients and those of earlier rounds; None if not computed.
        update_bytes: encoded size of the used updates.
    """

    counts: dict[str, int]
    ages: tuple[int, ...] = ()
    arms: dict[str, ArmSummary]
    updates: Aggregate
    total: Any = field(default=None, compare=False)
    registers: Registers | None = field(default=None, compare=False)
    known: ClientSketch | None = None
    update_bytes: int = 0


NOTHING_TOLD = Aggregate(pings=0, clients=0, weight=0.0, mean=(), m2=())


def in_order(partials: Iterable[ShardPartial], shards: int) -> Iterator[ShardPartial]:
    """Yield partials, which arrive in any order, in the order of their shards."""
    waiting: dict[int, ShardPartial] = {}
    following = 0
    for partial in partials:
        assert partial.shard not in waiting, "an engine repeated a shard"
        assert partial.shard >= following, "an engine repeated a shard"
        waiting[partial.shard] = partial
        while following in waiting:
            yield waiting.pop(following)
            following += 1
    assert following == shards, "an engine lost a shard"


def combined(partials: Iterable[ShardPartial], rules: Rules) -> RoundAggregate:
    """Return the aggregate of partials, one per shard, in any order.

    Partials are merged in the order of the shards as they arrive. Early partials wait in memory. The parts of merged
    partials that don't grow with the weights are collected, and merged several at a time.
    """
    refuse_senders(rules.line)
    accumulator = accumulator_for(rules.line, rules.bound)
    total = accumulator.init(rules.line)
    pulls: InfluenceSums | None = None

    def others() -> Iterator[ShardPartial]:
        nonlocal total, pulls
        for partial in in_order(partials, rules.shards):
            total = accumulator.merge(total, partial.total)
            if partial.pulls is not None:
                pulls = partial.pulls if pulls is None else merged_pulls(pulls, partial.pulls)
            yield replace(partial, total=None, pulls=None)

    whole = joined(others())
    if rules.line.privacy is not None:  # exact figures aren't reported; the stage that adds noise gets the sums
        return RoundAggregate(counts={}, arms={}, updates=NOTHING_TOLD, total=total)
    moments = accumulator.moments(total)
    return RoundAggregate(
        counts=_by_reason(whole.counts),
        ages=whole.ages,
        update_bytes=whole.update_bytes,
        arms=arms_of(whole, rules),
        updates=Aggregate(
            pings=whole.counts[USED],
            clients=whole.clients,
            weight=moments.weight,
            mean=tuple(moments.mean.tolist()),
            m2=tuple(moments.m2.tolist()),
            influence=influence_of(pulls, limit(rules.line.pipeline.clip, rules.bound)) if pulls is not None else None,
            capped=(whole.capped or None) if most_examples(rules) is not None else None,
        ),
        total=total,
        registers=whole.registers,
    )


def joined(ordered: Iterable[ShardPartial]) -> ShardPartial:
    """Merge the parts of partials that don't grow with the weights, in the order of their shards.

    The result is exact, except for the means of arms, whose last bits depend on the order.
    """
    waiting: list[ShardPartial] = []
    for partial in ordered:
        waiting.append(partial)
        if len(waiting) == _AT_ONCE:
            waiting = [_joined(waiting)]
    return _joined(waiting)


def _joined(parts: Sequence[ShardPartial]) -> ShardPartial:
    registers = [partial.registers for partial in parts if partial.registers is not None]
    return ShardPartial(
        shard=parts[0].shard,
        counts=_summed(partial.counts for partial in parts),
        ages=_summed(partial.ages for partial in parts),
        clients=sum(partial.clients for partial in parts),
        arms=tuple(_of_arm(each) for each in zip(*(partial.arms for partial in parts), strict=True)),
        total=None,
        registers=reduce(np.maximum, registers) if registers else None,
        update_bytes=sum(partial.update_bytes for partial in parts),
        capped=sum(partial.capped for partial in parts),
    )


def _of_arm(parts: Sequence[ArmPartial]) -> ArmPartial:
    values = [partial.values for partial in parts if partial.values is not None]
    outcomes = [partial.outcome for partial in parts if partial.outcome is not None]
    return ArmPartial(
        pings=sum(partial.pings for partial in parts),
        examples=sum(partial.examples for partial in parts),
        loss=reduce(merged, (partial.loss for partial in parts)),
        rank_selected=reduce(merged, (partial.rank_selected for partial in parts)),
        values=merged_arms(values) if values else None,
        clients=sum(partial.clients for partial in parts),
        clipped=sum(partial.clipped for partial in parts),
        outcome=reduce(merged, outcomes) if outcomes else None,
    )


def arms_of(whole: ShardPartial, rules: Rules) -> dict[str, ArmSummary]:
    """Return the figures of the rules' arms by name, from the merge of all shards (:func:`joined`)."""
    return {arm: _summary(each, rules) for arm, each in zip(rules.arms, whole.arms, strict=True)}


def _by_reason(counts: tuple[int, ...]) -> dict[str, int]:
    """Return counts by outcome. Rare outcomes are left out if their count is 0."""
    return {reason: n for reason, n in zip(REASONS, counts, strict=True) if n or reason not in RARE}


def _summed(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*rows, strict=True))


def _summary(arm: ArmPartial, rules: Rules) -> ArmSummary:
    tails = rules.limits.round_tails if rules.limits is not None else None
    return ArmSummary(
        pings=arm.pings,
        examples=arm.examples,
        loss=float(arm.loss.mean[0]) if arm.loss.weight else None,
        rank_selected=float(arm.rank_selected.mean[0]) if arm.rank_selected.weight else None,
        winsorised=winsorised(arm.values, tails) if tails and arm.values is not None else None,
        clipped=arm.clipped,
        outcomes=_outcomes(arm, rules),
    )


def _outcomes(arm: ArmPartial, rules: Rules) -> dict[str, OutcomeLevel] | None:
    """Return an arm's mean of the guarded outcome over clients; None if no outcome is guarded, or with too few clients.

    If all clients have the same value, the spread is unknown; the error is computed as if one client had another value.
    """
    clients = 0 if arm.outcome is None else round(arm.outcome.weight)
    if rules.guarded is None or arm.outcome is None or clients < LEAST_CLIENTS:
        return None
    variance = float(arm.outcome.m2[0]) / (clients - 1)
    low, high = outcome_range(rules.guarded)
    error = math.sqrt(variance / clients) if variance > 0 else (high - low) / clients
    return {rules.guarded.name: OutcomeLevel(clients=clients, mean=float(arm.outcome.mean[0]), error=error)}


LEAST_CLIENTS = 30
"""Minimum number of an arm's clients to report its outcome and use it in a guardrail."""
