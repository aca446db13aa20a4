"""Builds a line's chain of links, the optimizer and the constraints, from settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from fedping.model_store.version import LinkState, Version, WarmStart, first_version
from fedping.protocol.digest import digest_of
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line, Study
from fedping.server_jobs.optimize.constraints import CONSTRAINTS
from fedping.server_jobs.optimize.optimizers import OPTIMIZERS
from fedping.server_jobs.optimize.transformation import (
    Arrays,
    States,
    Transformation,
    Vector,
    blamed,
    chain,
    guarded,
    link_name,
    state_to_document,
)


def links_for(spec: ModelSpec, pipeline: Pipeline) -> dict[str, Transformation[Arrays]]:
    """Return the links of a line in order, the optimizer first.

    A link's name is the tag of its settings, such as ``rprop``; a second link of the same kind is
    ``ordered_cutoffs_2``.
    """
    rank = list(CONSTRAINTS).index
    constraints = sorted(spec.constraints, key=lambda constraint: rank(type(constraint)))
    links: dict[str, Transformation[Arrays]] = {}
    kinds = [("constraint", CONSTRAINTS, each) for each in constraints]
    for kind, makers, settings in (("optimizer", OPTIMIZERS, pipeline.optimizer), *kinds):
        name = first = link_name(settings)
        number = 1
        while name in links:
            number += 1
            name = f"{first}_{number}"
        told = f"the {kind} '{name}'"
        with blamed(told):
            links[name] = guarded(makers[type(settings)](settings, spec), told)
    return links


def pipeline_for(spec: ModelSpec, pipeline: Pipeline) -> Transformation[States]:
    """Return a line's chain, from a round's mean update to the step that the server adds."""
    return chain(links_for(spec, pipeline))


def first_state(line: Line) -> States:
    """Return the state of version 0, for :func:`step_arrays`."""
    return pipeline_for(line.spec, line.pipeline).init(line.spec)


def initial_state(spec: ModelSpec, pipeline: Pipeline) -> dict[str, LinkState]:
    """Return the state of version 0, as stored in a version."""
    return state_to_document(pipeline_for(spec, pipeline).init(spec))


def first_versions(
    study: Study,
    *,
    created: str,
    code_version: str,
    warm: Mapping[str, tuple[tuple[float, ...], WarmStart]] = MappingProxyType({}),
) -> tuple[Version, ...]:
    """Return version 0 of each of a study's lines: the start weights, and the chain's first state.

    ``warm`` has, by line, other start weights and their origin (`fedping.server_jobs.warm_start`).
    """
    made = []
    for line in study.lines:
        weights, origin = warm.get(line.name, (None, None))
        made.append(
            first_version(
                study=study.name,
                line=line.name,
                spec=line.spec,
                state=initial_state(line.spec, line.pipeline),
                created=created,
                code_version=code_version,
                config=digest_of(line),
                weights=weights,
                warm_start=origin,
            )
        )
    return tuple(made)


def step_arrays(line: Line, weights: Vector, state: States, direction: Vector) -> tuple[Vector, States]:
    """Return the weights and the state after a step in a round's direction.

    Args:
        line: determines the links.
        weights: the optimizer's doubles, shape (m,).
        state: the chain's state, from :func:`first_state` or an earlier step.
        direction: the aggregate of the updates, such as their mean: a direction of descent, shape (m,).

    Huge updates can result in weights that aren't finite, so the caller must check them before publication
    (:func:`fedping.protocol.model.validate_document`).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        step, after = pipeline_for(line.spec, line.pipeline).update(direction, state, weights)
        return weights + step, after
