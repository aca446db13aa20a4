"""A line's accumulator: clipping, bucketing, and then its aggregation, possibly from a user's package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import asks_for, extension_of
from fedping.protocol.pipeline import OwnAggregation, Pipeline, Recluster
from fedping.protocol.study import Line, centroids_of
from fedping.server_jobs.optimize.transformation import (
    Arrays,
    BrokenLink,
    Vector,
    as_vectors,
    blame,
    blamed,
    broken_if_failed,
    link_name,
)
from fedping.server_jobs.round.accumulator import (
    ACCUMULATORS,
    Accumulator,
    Asked,
    Finished,
    Kept,
    Moments,
    WithMoments,
    of_all,
    with_moments,
)
from fedping.server_jobs.round.clipping import clipped
from fedping.server_jobs.round.private_sums import private_sums, shared_sums
from fedping.server_jobs.round.recluster import reclustered
from fedping.server_jobs.round.robust import bucketed


@ACCUMULATORS.of(Recluster)
def recluster(settings: Recluster) -> Accumulator[WithMoments[tuple[Kept, ...]]]:
    """Return an accumulator that keeps the clients' centroids and clusters them at the end."""

    def finish(kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        return Finished(reclustered(settings, centroids_of(line.spec), weights, kept.updates, kept.votes))

    return of_all(finish)


@ACCUMULATORS.of(OwnAggregation)
def _own(settings: OwnAggregation) -> Accumulator[Any]:
    """Return the accumulator of an extension: its function's result, or an instance of its class.

    Without a function ``moments``, it gets the moments of the updates. Its ``finish`` may return only the direction.
    """
    extension = extension_of(settings)
    with broken_if_failed():
        own = extension.made(settings.settings)
    if missing := [name for name in ("init", "add", "merge", "finish") if not hasattr(own, name)]:
        raise BrokenLink(
            f"{extension} returned a {type(own).__name__} without {' and '.join(missing)}; return the result of "
            "fedping.of_all(finish), or an object with all of these"
        )

    def finish(total: Any, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        result = own.finish(total, line, weights, state, key)
        return result if isinstance(result, Finished) else Finished(result)

    if isinstance(own, Accumulator):
        return own._replace(finish=finish)
    room = getattr(own, "room", lambda _: None)
    asks: tuple[Asked, ...] = ("senders",) if asks_for(own.add, "senders") else ()
    if hasattr(own, "moments"):
        return Accumulator(own.init, own.add, own.merge, finish, own.moments, room, asks)
    return with_moments(own.init, own.add, own.merge, finish, room, asks)


def accumulator_for(line: Line, bound: float | None = None) -> Accumulator[Any]:
    """Return a line's accumulator. Its functions raise :class:`BrokenLink` with its name for any error.

    Args:
        line: the line, whose settings also determine whether updates are clipped.
        bound: the norm at which this round clips, if known from earlier rounds; required to add updates.

    Raises:
        FedpingError: no accumulator is registered for the line's settings.
    """
    settings = line.pipeline.aggregate
    name = f"the aggregation '{link_name(settings)}'"
    if type(settings) not in ACCUMULATORS:
        raise FedpingError(f"{name} of line '{line.name}' has no accumulator; register one, or set another aggregation")
    if line.privacy is not None:
        return private_sums(line) if line.privacy.shared is None else shared_sums(line)
    with blamed(name):
        accumulator = staged(line.pipeline, ACCUMULATORS[type(settings)](settings), bound)

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **columns: Any) -> Any:
            try:  # what `blamed` does, which takes longer than a small batch
                return function(*arguments, **columns)
            except (FedpingError, MemoryError):
                raise
            except (Exception, SystemExit) as error:
                raise blame(name, error) from error

        return run

    def finish(total: Any, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        with blamed(name):
            finished = accumulator.finish(total, line, weights, state, key)
            finished = Finished(np.asarray(finished.direction, dtype=np.float64), as_vectors(finished.state))
        if finished.direction.shape != weights.shape:
            raise BrokenLink(f"{name} returned a direction of shape {finished.direction.shape}, not {weights.shape}")
        odd = np.flatnonzero(~np.isfinite(finished.direction))
        if len(odd):
            where = line.spec.names[odd[0]]
            raise BrokenLink(f"{name} returned a direction that is {finished.direction[odd[0]]} at weight '{where}'")
        return finished

    def moments(total: Any) -> Moments:
        with blamed(name):
            sums = accumulator.moments(total)
            if {np.shape(sums.mean), np.shape(sums.m2)} != {(line.spec.m,)}:
                raise ValueError(f"its moments have shapes {np.shape(sums.mean)} and {np.shape(sums.m2)}")
            return Moments(float(sums.weight), np.asarray(sums.mean, np.float64), np.asarray(sums.m2, np.float64))

    return Accumulator(
        named(accumulator.init),
        named(accumulator.add),
        named(accumulator.merge),
        finish,
        moments,
        named(accumulator.room),
        accumulator.asks,
        named(accumulator.add_few) if accumulator.add_few else None,
    )


def refuse_senders(line: Line) -> None:
    """Raise if a line's aggregation needs the senders of updates, which are known only in the laboratory.

    Raises:
        InvalidSettings: the aggregation needs senders.
    """
    if line.privacy is None and "senders" in accumulator_for(line).asks:
        raise InvalidSettings(
            f"the aggregation '{link_name(line.pipeline.aggregate)}' needs the senders of updates, but pings lack "
            'the client\'s group and steps; run it in the laboratory with where = "memory"'
        )


def staged(pipeline: Pipeline, accumulator: Accumulator[Any], bound: float | None) -> Accumulator[Any]:
    """Return an accumulator preceded by a pipeline's clipping and bucketing."""
    if pipeline.bucketing is not None and "senders" in accumulator.asks:
        raise InvalidSettings(
            f"the aggregation '{link_name(pipeline.aggregate)}' needs the senders of updates, which buckets of "
            "several clients don't have; remove 'bucketing'"
        )
    if pipeline.bucketing is not None:
        accumulator = bucketed(accumulator, pipeline.bucketing)
    return clipped(accumulator, pipeline.clip, bound) if pipeline.clips else accumulator
