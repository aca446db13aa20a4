"""A custom aggregation, optimizer and constraint, written as CONTRIBUTING says.

Tests register them by :func:`register_own`. A Spark worker, which runs no test, registers them on import.
"""

import hashlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

import fedping.server_jobs.round.accumulator
from fedping.protocol.pipeline import Mean
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line
from fedping.server_jobs.optimize import Arrays, Transformation, Vector
from fedping.server_jobs.optimize.constraints import CONSTRAINTS
from fedping.server_jobs.optimize.optimizers import OPTIMIZERS
from fedping.server_jobs.optimize.transformation import stateless
from fedping.server_jobs.round.accumulator import ACCUMULATORS, Accumulator, Finished, Kept, of_all, with_moments


class TrimmedMean(Struct, frozen=True, tag_field="by", tag="trimmed_mean"):
    """For each weight, the mean without a ``share`` of the smallest and of the largest updates (Yin et al. 2018)."""

    share: float = 0.2


def trimmed_mean(settings: TrimmedMean) -> Accumulator[Any]:
    def finish(kept: Kept, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        cut = int(settings.share * len(kept.updates))
        ordered = np.sort(kept.updates.astype(np.float64), axis=0)
        return Finished(ordered[cut : len(ordered) - cut].mean(axis=0))

    return of_all(finish)


class NoisyMedian(Struct, frozen=True, tag_field="by", tag="noisy_median"):
    """The median of the batches' means plus half of the last direction and noise: uses a state and the key."""

    noise: float = 0.0


def noisy_median(settings: NoisyMedian) -> Accumulator[Any]:
    def add(means: tuple[Vector, ...], updates: Any, votes: Vector) -> tuple[Vector, ...]:
        return (*means, (updates * votes[:, None]).sum(axis=0) / votes.sum())

    def finish(means: tuple[Vector, ...], line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        drawn = np.random.default_rng(int.from_bytes(hashlib.sha256(key).digest())).normal(size=len(weights))
        found = np.median(means, axis=0) + 0.5 * state.get("last", np.zeros(len(weights))) + settings.noise * drawn
        return Finished(found, {"last": found})

    return with_moments(lambda _: (), add, lambda a, b: a + b, finish)


class SignStep(Struct, frozen=True, tag_field="optimizer", tag="sign_step"):
    """A step of ``rate`` by the sign of the sum of all updates so far."""

    rate: float = 0.125


def sign_step(settings: SignStep, spec: ModelSpec) -> Transformation[Arrays]:
    def update(step: Vector, state: Arrays, weights: Vector) -> tuple[Vector, Arrays]:
        total = state["total"] + step
        return settings.rate * np.sign(total), {"total": total}

    return Transformation(lambda spec: {"total": np.zeros(spec.m)}, update)


class AtMost(Struct, frozen=True, tag_field="constraint", tag="at_most"):
    """Limits all weights to ``most``."""

    most: float = 0.5


def at_most(settings: AtMost, spec: ModelSpec) -> Transformation[Arrays]:
    return stateless(lambda step, weights: np.minimum(weights + step, settings.most) - weights)


def failing(how: str) -> Callable[[Any], Accumulator[Any]]:
    """Return a function that makes an accumulator of means which fails in one of its functions."""
    mean = fedping.server_jobs.round.accumulator.mean(Mean())

    def raising(*_: Any) -> Any:
        raise ZeroDivisionError("no such luck")

    def finishing(direction: Any) -> Callable[..., Finished]:
        return lambda total, line, *_: Finished(direction(total.mean))

    match how:
        case "wrong shape":
            return lambda _: mean._replace(finish=finishing(lambda mean: mean[:1]))
        case "no number":
            return lambda _: mean._replace(finish=finishing(lambda mean: mean * np.nan))
        case "nothing":
            return lambda _: mean._replace(finish=lambda *_: None)
        case "make":
            return raising
        case function:
            return lambda _: mean._replace(**{function: raising})


class Broken(Struct, frozen=True, tag_field="by", tag="broken"):
    """An aggregation that fails in the process that runs it."""


def register_own(setitem: Callable[[Any, type, Any], None]) -> None:
    """Register everything here in its table, by a function that sets an entry."""
    setitem(ACCUMULATORS, TrimmedMean, trimmed_mean)
    setitem(ACCUMULATORS, NoisyMedian, noisy_median)
    setitem(ACCUMULATORS, Broken, failing("add"))
    setitem(OPTIMIZERS, SignStep, sign_step)
    setitem(CONSTRAINTS, AtMost, at_most)


if "pytest" not in sys.modules:
    register_own(lambda table, kind, maker: table.__setitem__(kind, maker))
