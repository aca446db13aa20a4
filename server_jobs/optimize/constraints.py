"""Constraints on weights: non-negative weights, and cutoffs in order (thesis 7.2)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedping.protocol.makers import Makers
from fedping.protocol.spec import ModelSpec, NonNegative, OrderedCutoffs
from fedping.server_jobs.optimize.transformation import Arrays, LinkMaker, Transformation, Vector, stateless

CONSTRAINTS: Makers[LinkMaker] = Makers()
"""Functions that create constraints' links, by the type of their settings (`fedping.protocol.spec.Constraint`).

Constraints apply in the order of their definition here, not in the order of the spec. Ordering raises weights or
shortens their steps, so it preserves non-negativity. A shift of all weights after ordering could lose a gap by
rounding.
"""


@CONSTRAINTS.of(NonNegative)
def non_negative(settings: NonNegative, spec: ModelSpec) -> Transformation[Arrays]:
    """Return the link that keeps weights from falling below zero, in the spec's mode."""
    if settings.weights:
        return stateless(_clamp_of(spec.positions(settings.weights)))
    return stateless(_clamp if settings.mode == "clamp" else _shift)


def _clamp_of(places: list[int]) -> Callable[[Vector, Vector], Vector]:
    """Return a function that clamps only the weights at some positions."""

    def clamp(step: Vector, weights: Vector) -> Vector:
        step = step.copy()
        step[places] = _clamp(step[places], weights[places])
        return step

    return clamp


def _clamp(step: Vector, weights: Vector) -> Vector:
    """Shorten steps that would lead below zero; leave all others unchanged."""
    return np.where(weights + step < 0, -weights, step)


def _shift(step: Vector, weights: Vector) -> Vector:
    """Raise all weights by the size of the lowest weight if it is negative, as in the study of 2018."""
    there = weights + step
    lowest = there.min()
    return step if lowest >= 0 else _step_to_at_least(there - lowest, weights)


@CONSTRAINTS.of(OrderedCutoffs)
def ordered_cutoffs(settings: OrderedCutoffs, spec: ModelSpec) -> Transformation[Arrays]:
    """Return the link that keeps cutoffs in order, in the spec's mode.

    ``push`` raises, from first to last, each cutoff that is too close to the previous cutoff; it never lowers a
    cutoff. The order holds both between the optimizer's doubles and between the published numbers, whose distance
    rounding could otherwise reduce below the gap. ``trim`` first shortens steps, then pushes cutoffs that are still
    too close.
    """
    where = spec.positions(settings.weights)
    integer = spec.integer[where].tolist()

    def raised(step: Vector, weights: Vector) -> Vector:
        if not np.isfinite(weights[where] + step[where]).all():
            return step  # can't be put in order; unpublishable weights are rejected later
        step = step.copy()
        if settings.mode == "trim":
            step[where] = _trimmed(step[where], weights[where], settings)
        bound = public_bound = settings.first
        for i, whole in zip(where, integer, strict=True):
            least = max(bound, math.ceil(public_bound) - 0.5 if whole else public_bound)
            if weights[i] + step[i] < least:
                step[i : i + 1] = _step_to_at_least(np.array([least]), weights[i : i + 1])
            value = float(weights[i] + step[i])
            bound = value + settings.gap
            public_bound = (math.floor(value + 0.5) if whole else value) + settings.gap
        return step

    return stateless(raised)


def _trimmed(step: Vector, weights: Vector, settings: OrderedCutoffs) -> Vector:
    """Return steps of ordered weights, shortened so that the weights stay in order; all vectors have shape (cutoffs,).

    From last to first, a step up ends at least ``gap`` below the next weight, counting its own step up.
    Then, from first to last, a step down ends at least ``gap`` above the previous weight.
    """
    step = step.copy()
    ceiling = math.inf
    for i in reversed(range(len(step))):
        step[i] = min(step[i], max(ceiling - weights[i], 0.0))
        ceiling = weights[i] + max(step[i], 0.0) - settings.gap
    floor = settings.first
    for i in range(len(step)):
        step[i] = max(step[i], min(floor - weights[i], 0.0))
        floor = weights[i] + step[i] + settings.gap
    return step


def _step_to_at_least(bound: Vector, weights: Vector) -> Vector:
    """Return the smallest steps, to one unit in the last place, with ``weights + step >= bound`` in doubles.

    The difference of two doubles is rounded, so adding it back may end just short of the bound. One unit in the last
    place of the step compensates, since it is at least twice the rounding error.
    """
    step = bound - weights
    return np.where(weights + step < bound, np.nextafter(step, np.inf), step)
