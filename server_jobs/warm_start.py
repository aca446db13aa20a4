"""Taking weights over from a version of another line, in the same store or another one, for a new line's version 0."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from fedping.model_store.store import ModelStore, StoreError
from fedping.model_store.version import Ancestor, Version, WarmStart
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.study import Line, Study
from fedping.server_jobs.optimize.warm_start import Beginning, beginning
from fedping.server_jobs.privacy.ledger import spent_up_to


@dataclass(frozen=True, slots=True)
class Warm:
    """What a line begins with, the version that it is taken from, and what the lineage of its version 0 says of that.

    ``model`` is the model that clients of the old line evaluate, and ``before`` the old version's weights.
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
    """Return what a new line begins with if it takes weights over from a version of another.

    Args:
        store: where the other line is.
        line: the new one.
        study: the other's study.
        old: the other's name.
        number: of its version; None for the newest.
        renamed: by the new name of a weight or block its old one; "" has it start anew.

    Raises:
        StoreError: there is no such version, or it cannot be read.
        InvalidSettings: the line cannot begin with its weights.
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
    """Return the weights that a line's version 0 took over, from the version in a store that they are of.

    Raises:
        StoreError: the store does not have that version any more, or another one in its place.
        InvalidSettings: the line could not begin with its weights.
    """
    taken = origin.taken
    settings = _line_of(store, taken.study, taken.line)
    version = store.version(taken.study, taken.line, taken.iteration)
    if version.digest != taken.digest:
        raise StoreError(f"{taken.told} in {store.where} is another one than the one that weights were taken from")
    return tuple(beginning(line, settings.spec, version.weights, origin.renamed).weights.tolist())


def start_version(store: ModelStore, study: Study) -> dict[str, WarmStart]:
    """Return by line from where version 0 took weights over; nothing of lines that took none, or cannot be read."""
    found = {}
    for line in study.lines:
        with contextlib.suppress(FedpingError):
            if (origin := store.version(study.name, line.name, 0).lineage.warm_start) is not None:
                found[line.name] = origin
    return found


def _line_of(store: ModelStore, study: str, line: str) -> Line:
    try:
        return store.study(study).line(line)
    except InvalidSettings as error:
        raise StoreError(str(error)) from error


def _ancestor(store: ModelStore, line: Line, version: Version) -> Ancestor:
    """Return a version as a lineage names it, with what was promised to the clients that it was learned from."""
    told = Ancestor(study=version.study, line=version.line, iteration=version.iteration, digest=version.digest)
    if line.privacy is None:
        return told
    spent = spent_up_to(store, line, version)
    return replace(told, private=True, epsilon=spent.epsilon, delta=spent.delta, local_epsilon=spent.ping_epsilon)
