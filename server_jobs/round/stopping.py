"""Rules for the end of an iteration and the end of training, by a line's settings.

`fedping round`, `fedping schedule` and the simulation of a study share these rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from fedping.model_store.decisions import repeated
from fedping.model_store.store import ModelStore
from fedping.model_store.version import Aggregate, Version, date_trouble
from fedping.protocol.errors import TemporaryFailure
from fedping.protocol.landing import Landing, open_landing
from fedping.protocol.location import Place
from fedping.protocol.notation import milliseconds_of, time_at
from fedping.protocol.smoothing import smoothed
from fedping.protocol.stopping_settings import EarlyStop, IterationByClients, IterationBySigns, IterationLength
from fedping.server_jobs.round.next_version import Provenance

MINUTE_MS = 60_000


def iteration_ended(length: IterationLength, minutes: float, aggregate: Aggregate) -> bool:
    """Return whether an iteration ends, by its age in minutes and the aggregate of its pings."""
    if minutes < length.least or minutes >= length.most:
        return minutes >= length.most
    if isinstance(length, IterationByClients):
        return aggregate.clients >= length.clients
    return isinstance(length, IterationBySigns) and stable_signs(aggregate, length) >= length.share


def stable_signs(aggregate: Aggregate, rule: IterationBySigns) -> float:
    """Return the share of weights whose mean update is ``rule.z`` standard errors from 0, or is 0 in every update.

    The standard error is that of a mean of independent votes whose number is the weight of the aggregate.
    """
    mean, m2 = np.array(aggregate.mean), np.array(aggregate.m2)
    if aggregate.weight <= 1:
        return 0.0
    error = np.sqrt(m2 / (aggregate.weight - 1) / aggregate.weight)
    return float(np.mean((np.abs(mean) >= rule.z * error) | ((mean == 0) & (m2 == 0))))


def clients_missing(length: IterationLength, aggregate: Aggregate) -> str:
    """Return the missing clients or signs, as part of a sentence; empty if an iteration only waits for time."""
    if isinstance(length, IterationByClients):
        return f"{aggregate.clients:,} of {length.clients:,} clients have sent a usable update"
    if isinstance(length, IterationBySigns):
        stable = math.floor(100 * stable_signs(aggregate, length))
        return f"the signs of {stable} % of the weights are stable, of {100 * length.share:g} % needed"
    return ""


def minutes_since(version: Version, now_ms: int) -> float:
    """Return the age of a version in minutes, at a time in Unix ms.

    Raises:
        TemporaryFailure: the version is dated in the future, so its age is unknown.
    """
    if (trouble := date_trouble(version.created, None, now_ms)) is not None:
        number, where = version.iteration, f"{version.study} {version.line}"
        ends = f"'fedping store continue {where} --from {number + 1}' publishes it again and discards its pings"
        if version.lineage.guard is not None and version.lineage.guard.stage is not None:
            ends = f"'fedping round {where} --release' or --discard decides about it now"
        raise TemporaryFailure(
            f"version {number} of line '{version.line}' of study '{version.study}' {trouble}, so its age is unknown. "
            f"No version was published. Set the clocks of all machines by NTP. If that date is far off, {ends}."
        )
    return (now_ms - milliseconds_of(version.created)) / MINUTE_MS


def time_after(version: Version, minutes: float) -> str:
    """Return the time at which a version reaches an age in minutes, ISO 8601 in UTC."""
    return time_at(milliseconds_of(version.created) + minutes * MINUTE_MS)


class Loss(NamedTuple):
    """The validation loss of a version."""

    version: int
    value: float


def best_version(losses: Sequence[Loss], rule: EarlyStop) -> int | None:
    """Return the first version with the lowest smoothed loss; None if no loss is known.

    Only the newest ``patience + 1`` versions are considered: training would already be over if an older version were
    the best.

    Args:
        losses: the losses to consider, ascending by version.
        rule: the settings of early stopping.
    """
    recent, means = _recent(losses, rule)
    return None if not means else recent[means.index(min(means))].version


def should_stop(losses: Sequence[Loss], rule: EarlyStop) -> bool:
    """Return whether the best version is ``patience`` versions old, or the newest is worse by more than ``rise``."""
    _, means = _recent(losses, rule)
    if not means:
        return False
    lowest = min(means)
    risen = rule.rise is not None and means[-1] - lowest > rule.rise * abs(lowest)
    return risen or len(means) - 1 - means.index(lowest) >= rule.patience


def _recent(losses: Sequence[Loss], rule: EarlyStop) -> tuple[Sequence[Loss], list[float]]:
    """Return the last ``patience + 1`` losses, which include the best version's, and their smoothed values."""
    tail = losses[-_losses_needed(rule) :]
    first = max(0, len(tail) - rule.patience - 1)
    return tail[first:], smoothed([loss.value for loss in tail], rule.smooth)[first:]


def _losses_needed(rule: EarlyStop) -> int:
    return rule.patience + rule.smooth


def validation_losses(store: ModelStore, study: str, line: str, head: int, rule: EarlyStop) -> list[Loss]:
    """Return the losses that decide whether training continues after version ``head``, ascending by version.

    The loss of a version is in the lineage of the next version. Losses count from version 0 on, or from the latest
    version published by a rollback or a continuation.
    """
    return list(islice(_losses_backwards(store, study, line, head, rule), _losses_needed(rule)))[::-1]


def _losses_backwards(store: ModelStore, study: str, line: str, head: int, rule: EarlyStop) -> Iterator[Loss]:
    for number in range(head, 0, -1):
        lineage = store.versions.outcome(study, line, number).lineage
        if lineage.origin != "round":
            return
        arm = lineage.arms.get(rule.arm)
        loss = arm.level("loss") if arm is not None else None
        if arm is not None and loss is not None and (arm.winsorised or arm).examples >= rule.examples:
            yield Loss(number - 1, loss.value)


def version_to_keep(store: ModelStore, study: str, line: str, head: int, rule: EarlyStop) -> int | None:
    """Return the best version if training is over at version ``head``; None if training continues."""
    losses = validation_losses(store, study, line, head, rule)
    return best_version(losses, rule) if should_stop(losses, rule) else None


def stop_if_over(
    store: ModelStore, landing: Place | Landing, head: Version, rule: EarlyStop, provenance: Provenance
) -> int | None:
    """Republish the best version if training is over at ``head``; return its number, None if training continues.

    Raises:
        StoreError: a version cannot be read.
        VersionConflict: another round has published a version after ``head``.
    """
    best = version_to_keep(store, head.study, head.line, head.iteration, rule)
    if best is not None:
        again = repeated(
            store.version(head.study, head.line, best),
            head,
            stopped=True,
            created=provenance.created,
            code_version=provenance.code_version,
            settings=provenance.settings,
        )
        store.publish(again)
        open_landing(landing).record_published(store.where, head.study, head.line, head.iteration + 1)
    return best
