"""When an iteration has lasted long enough, and when training is over: what a round asks before it makes a version.

`fedping round`, `fedping schedule` and the simulation of a study all ask here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from fedping.model_store.decisions import repeated
from fedping.model_store.store import ModelStore
from fedping.model_store.version import Aggregate, Version
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Place
from fedping.protocol.smoothing import smoothed
from fedping.protocol.stopping_settings import EarlyStop, IterationByClients, IterationBySigns, IterationLength


class Loss(NamedTuple):
    """The validation loss of a version."""

    version: int
    value: float


# --- the length of an iteration ---


def iteration_ended(length: IterationLength, minutes: float, seen: Aggregate) -> bool:
    """Return whether an iteration ends that is so old, and whose pings have come to this."""
    if minutes < length.least or minutes >= length.most:
        return minutes >= length.most
    if isinstance(length, IterationByClients):
        return seen.clients >= length.clients
    return isinstance(length, IterationBySigns) and stable_signs(seen, length) >= length.share


def stable_signs(aggregate: Aggregate, rule: IterationBySigns) -> float:
    """Return the share of weights whose mean update is ``rule.z`` standard errors from 0, or is 0 in every update.

    The standard error is that of a mean of as many independent votes as the weight of the aggregate.
    """
    mean, m2 = np.array(aggregate.mean), np.array(aggregate.m2)
    if aggregate.weight <= 1:
        return 0.0
    error = np.sqrt(m2 / (aggregate.weight - 1) / aggregate.weight)
    return float(np.mean((np.abs(mean) >= rule.z * error) | ((mean == 0) & (m2 == 0))))


def clients_missing(length: IterationLength, seen: Aggregate) -> str:
    """Return in words what an iteration has of what it waits for; nothing if that is time alone."""
    if isinstance(length, IterationByClients):
        return f"{seen.clients:,} of {length.clients:,} clients have sent a usable update"
    if isinstance(length, IterationBySigns):
        stable = math.floor(100 * stable_signs(seen, length))
        return f"the signs of {stable} % of the weights are stable, and {100 * length.share:g} % have to be"
    return ""


# --- the end of training ---


def best_version(losses: Sequence[Loss], rule: EarlyStop) -> int | None:
    """Return the version with the lowest smoothed loss, the earliest of equals; None if no loss is known.

    Of more than ``patience`` versions the older ones are left out: had one of them been the best, training would have
    been over by now.

    Args:
        losses: those that count, by version, ascending.
        rule: early stopping.
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
    """Return the last ``patience + 1`` losses, one of which is the best one's, and their smoothed values."""
    tail = losses[-_asked(rule) :]
    first = max(0, len(tail) - rule.patience - 1)
    return tail[first:], smoothed([loss.value for loss in tail], rule.smooth)[first:]


def _asked(rule: EarlyStop) -> int:
    """Return how many losses decide."""
    return rule.patience + rule.smooth


def validation_losses(store: ModelStore, study: str, line: str, head: int, rule: EarlyStop) -> list[Loss]:
    """Return the losses that decide whether training goes on after version ``head``, ascending.

    A version's loss is told by the one that a round made of it. The count begins at version 0, and anew at a version
    that was published by a rollback, or that the line was continued from.
    """
    return list(islice(_backwards(store, study, line, head, rule), _asked(rule)))[::-1]


def _backwards(store: ModelStore, study: str, line: str, head: int, rule: EarlyStop) -> Iterator[Loss]:
    for number in range(head, 0, -1):
        lineage = store.versions.outcome(study, line, number).lineage
        if lineage.origin != "round":
            return
        arm = lineage.arms.get(rule.arm)
        loss = arm.level("loss") if arm is not None else None
        if arm is not None and loss is not None and (arm.winsorised or arm).examples >= rule.examples:
            yield Loss(number - 1, loss.value)


def version_to_keep(store: ModelStore, study: str, line: str, head: int, rule: EarlyStop) -> int | None:
    """Return the best version of a line whose training is over at version ``head``; None if it goes on."""
    losses = validation_losses(store, study, line, head, rule)
    return best_version(losses, rule) if should_stop(losses, rule) else None


def stop_if_over(
    store: ModelStore,
    landing: Place,
    head: Version,
    rule: EarlyStop,
    *,
    created: str,
    code_version: str,
    settings: int | None = None,
) -> int | None:
    """Publish the best version again, after ``head``, if training is over, and return its number; None if it goes on.

    ``settings`` is the entry of the study's history that the rule is of; that of the head if None.

    Raises:
        StoreError: a version cannot be read.
        VersionConflict: another round has published a version after ``head``.
    """
    best = version_to_keep(store, head.study, head.line, head.iteration, rule)
    if best is not None:
        target = store.version(head.study, head.line, best)
        again = repeated(target, head, stopped=True, created=created, code_version=code_version, settings=settings)
        store.publish(again)
        open_landing(landing).record_published(store.where, head.study, head.line, head.iteration + 1)
    return best
