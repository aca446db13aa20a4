"""Warm start: version 0 of a new line gets weights, by name, from a version of another line.

Only weights are taken over, never the optimizer's state. The state is in the units of the old steps, and belongs to
links with the old settings, which may differ in the new line. RProp adapts its step sizes again within some rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from fedping.model_store.store import ModelStore, StoreError
from fedping.model_store.version import Ancestor, Version, WarmStart
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.model import out_of_range, validate_spec
from fedping.protocol.spec import ModelSpec, published_array
from fedping.protocol.study import Line, Study
from fedping.protocol.weights import Kind, WeightNames
from fedping.server_jobs.optimize.pipeline import links_for
from fedping.server_jobs.optimize.transformation import Vector, chain
from fedping.server_jobs.privacy.budget import spent_up_to


@dataclass(frozen=True, slots=True)
class Warm:
    """The start of a line that takes over weights.

    Attributes:
        begun: the start weights and their origin, weight by weight.
        before: the old version's weights.
        model: the model that clients of the old line evaluate.
        origin: the record for the lineage of version 0.
    """

    begun: Beginning
    before: tuple[float, ...]
    model: str
    origin: WarmStart

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of version 0."""
        return tuple(self.begun.weights.tolist())


def warm_from(
    store: ModelStore, line: Line, study: str, old: str, number: int | None, renamed: Mapping[str, str]
) -> Warm:
    """Return the start of a new line that takes over weights from a version of another line.

    Args:
        store: the store of the other line.
        line: the new line.
        study: the other line's study.
        old: the other line's name.
        number: the other line's version; None for the newest.
        renamed: old names of weights or blocks by new names; "" for a start from the spec.

    Raises:
        StoreError: the version doesn't exist or can't be read.
        InvalidSettings: the line can't start with the version's weights.
    """
    settings = _line_of(store, study, old)
    version = store.head(study, old) if number is None else store.version(study, old, number)
    begun = beginning(line, settings.spec, version.weights, renamed)
    first = version if version.parent is None else store.version(study, old, 0)
    further = first.lineage.warm_start
    before = () if further is None else (further.taken, *further.before)
    origin = WarmStart(taken=_ancestor(store, settings, version), renamed=dict(renamed), before=before)
    return Warm(begun, version.weights, settings.spec.model, origin)


def recompute_warm_start(store: ModelStore, line: Line, origin: WarmStart) -> tuple[float, ...]:
    """Return the weights that a line's version 0 took over, computed from their version in a store.

    Raises:
        StoreError: the store no longer has that version, or has another version with its number.
        InvalidSettings: the line can't start with the version's weights.
    """
    taken = origin.taken
    settings = _line_of(store, taken.study, taken.line)
    version = store.version(taken.study, taken.line, taken.iteration)
    if version.digest != taken.digest:
        raise StoreError(f"{taken.told} in {store.where} is not the version that the weights were taken from")
    return tuple(beginning(line, settings.spec, version.weights, origin.renamed).weights.tolist())


def start_version(store: ModelStore, study: Study) -> dict[str, WarmStart]:
    """Return the origin of version 0 by line. Lines without a warm start, and unreadable lines, are left out."""
    origins = {}
    for line in study.lines:
        with contextlib.suppress(FedpingError):
            if (origin := store.version(study.name, line.name, 0).lineage.warm_start) is not None:
                origins[line.name] = origin
    return origins


def _line_of(store: ModelStore, study: str, line: str) -> Line:
    lines = {each.name: each for each in store.study(study).lines}
    if line not in lines:
        raise StoreError(f"study '{study}' has no line '{line}'; it has {', '.join(lines) or 'none'}")
    return lines[line]


def _ancestor(store: ModelStore, line: Line, version: Version) -> Ancestor:
    """Return a version's entry for lineages, with the guarantee of the clients from which it was learned."""
    ancestor = Ancestor(study=version.study, line=version.line, iteration=version.iteration, digest=version.digest)
    if line.privacy is None:
        return ancestor
    spent = spent_up_to(store, line, version)
    return replace(ancestor, private=True, epsilon=spent.epsilon, delta=spent.delta, local_epsilon=spent.ping_epsilon)


MOST_NAMED = 20
"""Maximum number of names in a message."""


@dataclass(frozen=True, slots=True)
class Part:
    """A weight of the new line, or a block of them.

    Attributes:
        name: name of the weight or block.
        source: its name in the old line; None for a start from the spec.
        places: positions of its weights in the new line.
        taken: positions of these weights in the old line; None for a start from the spec.
        note: a remark, such as the reason for a start from the spec; usually empty.
        shape: the shape of a block; None for a single weight.
    """

    name: str
    source: str | None
    places: range
    taken: range | None
    note: str = ""
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Beginning:
    """The start of a line: its parts, its weights, shape (m,), and the positions of weights moved by constraints."""

    parts: tuple[Part, ...]
    weights: Vector
    moved: tuple[int, ...]

    @property
    def taken(self) -> int:
        """The number of weights taken over."""
        return sum(len(part.places) for part in self.parts if part.taken is not None)


def beginning(line: Line, old: ModelSpec, weights: Sequence[float], renamed: Mapping[str, str]) -> Beginning:
    """Return the start of a line that takes over weights.

    A weight is taken over by its name, a block by its name and shape. Constraints move weights that violate them, as
    in the first round.

    Args:
        line: the new line.
        old: the spec of the weights to take over.
        weights: the optimizer's doubles to take over, shape (m of old,).
        renamed: old names of weights or blocks by new names; "" for a start from the spec.

    Raises:
        InvalidSettings: a name is unknown, the two specs have no names in common, or the line can't have these weights.
    """
    spec = line.spec
    parts = tuple(_parts(spec, old, renamed))
    if all(part.taken is None for part in parts):
        why = next((f" ('{part.name}': {part.note})" for part in parts if part.note), "")
        raise InvalidSettings(
            f"model spec '{spec.name}' shares no weight or block with model spec '{old.name}'{why}, so no weights "
            f"could be taken over; the old one has {_listed([*_singles(old), *_blocks(old)])}: match them with "
            "--renamed NEW=OLD"
        )
    before, values = np.asarray(weights, dtype=np.float64), spec.start_array.copy()
    for part in parts:
        if part.taken is not None:
            values[part.places.start : part.places.stop] = before[part.taken.start : part.taken.stop]
    within = _within_constraints(line, values)
    if trouble := out_of_range(within, spec) or validate_spec(tuple(published_array(spec, within).tolist()), spec):
        raise InvalidSettings(f"line '{line.name}' cannot start from the weights to take over: {trouble}")
    return Beginning(parts, within, tuple(np.flatnonzero(within != values).tolist()))


def _within_constraints(line: Line, weights: Vector) -> Vector:
    """Return weights after the line's constraints were applied, without a step."""
    links = links_for(line.spec, line.pipeline)
    constraints = chain(dict(islice(links.items(), 1, None)))  # the first is the optimizer
    step, _ = constraints.update(np.zeros(len(weights)), constraints.init(line.spec), weights)
    return np.where(step == 0, weights, weights + step)


class _Named(NamedTuple):
    """A weight or a block of a spec: its positions, kind and shape (None for a weight)."""

    places: range
    kind: Kind
    shape: tuple[int, ...] | None


def _singles(spec: ModelSpec) -> dict[str, _Named]:
    return {weight.name: _Named(range(at, at + 1), weight.kind, None) for at, weight in enumerate(spec.weights)}


def _blocks(spec: ModelSpec) -> dict[str, _Named]:
    names = WeightNames(tuple(weight.name for weight in spec.weights), spec.blocks)
    return {b.name: _Named(names.block_places(at), b.kind, b.shape) for at, b in enumerate(spec.blocks)}


def _parts(new: ModelSpec, old: ModelSpec, renamed: Mapping[str, str]) -> Iterator[Part]:
    """Yield the parts of the new spec in its order."""
    for whose, spec, names in (("new", new, renamed), ("old", old, filter(None, renamed.values()))):
        has = {*_singles(spec), *_blocks(spec)}
        if (unknown := next((name for name in names if name not in has), None)) is not None:
            raise InvalidSettings(
                f"--renamed names '{unknown}', which model spec '{spec.name}' of the {whose} line does not have; it "
                f"has {_listed(sorted(has))}"
            )
    for named in (_singles, _blocks):
        old_parts = named(old)
        for name, part in named(new).items():
            yield _part(name, part, renamed.get(name), old_parts)


def _part(name: str, new: _Named, renamed: str | None, old: Mapping[str, _Named]) -> Part:
    """Return the part for a weight or block, given all weights and blocks of the old line."""
    source = name if renamed is None else renamed
    part, why = old.get(source), ""
    if renamed == "":
        why = "as asked"
    elif part is not None and part.shape != new.shape:
        why = f"its shape was {in_words(part.shape)}"
    if part is not None and not why:
        note = f"its kind was {part.kind}, and is {new.kind}" if part.kind != new.kind else ""
        return Part(name, source, new.places, part.places, note, new.shape)
    if renamed:
        what = "weight" if new.shape is None else "block"
        why = why or f"only one of them is a {what}"
        raise InvalidSettings(
            f"--renamed {name}={renamed} can't take over weights, because {why}; remove or correct it"
        )
    return Part(name, None, new.places, None, why, new.shape)


def in_words(shape: tuple[int, ...] | None) -> str:
    """Return the shape of a block in words."""
    return " x ".join(f"{size:,}" for size in shape or ())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
