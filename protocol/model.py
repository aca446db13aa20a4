"""The model document: the static file that a client fetches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from fedping.protocol.errors import FedpingError
from fedping.protocol.spec import Constraint, Finite, ModelSpec, Name, NonNegative, OrderedCutoffs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LARGEST_WEIGHT = 1e30
"""Maximum absolute value of a weight or an entry of an update (:data:`fedping.protocol.weights.Finite`)."""


class UnfitModel(FedpingError):
    """A new version breaks its spec, or no client could read it; nothing was published. Exit code 3.

    ``reason`` names the weight and the problem, but not the place.
    """

    exit_code = 3

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Staged(Struct, frozen=True, kw_only=True):
    """A version that a share of clients fetch instead, from ``staged-<iteration>.json`` in the same folder."""

    iteration: Annotated[int, Meta(ge=1, description="the staged version's number")]
    share: Annotated[float, Meta(gt=0, lt=1, description="of the clients of arms that apply the model")]


class ModelDocument(Struct, frozen=True, kw_only=True):
    """One published version of a model line.

    ``model`` and ``iteration`` are the two keys of 2018 and keep their meaning, so that a client of that time can read
    the document; unknown keys are ignored for the same reason.
    """

    model: Annotated[tuple[Finite, ...], Meta(description="the weights, in the order of `names`")]
    iteration: Annotated[int, Meta(ge=0, description="the version's number; 0 is the start model")]
    study: Name
    line: Name
    names: Annotated[
        tuple[str, ...],
        Meta(description="the weights' names, in the order of the wire; none if the spec has them in blocks"),
    ]
    spec_digest: Annotated[str, Meta(description="SHA-256 of the model spec")]
    created: Annotated[str, Meta(description="when it was published, ISO 8601 in UTC")]
    parent: Annotated[int | None, Meta(description="the version that it was computed from; null for version 0")]
    staged: Annotated[
        Staged | UnsetType, Meta(description="present in `latest.json` while a newer version is staged")
    ] = UNSET


def validate_document(data: bytes, weights: Sequence[float], spec: ModelSpec) -> str | None:
    """Return why a client of this spec would reject a model document; None if it would accept the document.

    Args:
        data: the document, as clients fetch it.
        weights: the numbers that the document should contain; it may be unable to represent them.
        spec: the model's spec.
    """
    if len(weights) != spec.m:
        return f"it has {len(weights):,} weights, and model spec '{spec.name}' has {spec.m:,}"
    try:
        msgspec.json.decode(data, type=ModelDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return out_of_range(weights, spec) or str(error)
    return None


def out_of_range(weights: Sequence[float] | NDArray[np.float64], spec: ModelSpec) -> str | None:
    """Return a phrase for a weight that is NaN or too large for a document; None if all weights fit."""
    import numpy as np

    values = np.asarray(weights, dtype=np.float64)
    beyond = np.flatnonzero(~(np.abs(values) <= LARGEST_WEIGHT))
    if not len(beyond):
        return None
    return f"weight '{spec.names[beyond[0]]}' would be {values[beyond[0]]:g}, and weights lie between -1e30 and 1e30"


def validate_spec(weights: Sequence[float], spec: ModelSpec) -> str | None:
    """Return a phrase for a weight of a document that breaks the spec; None if all weights comply."""
    import numpy as np

    values = np.array(weights)
    broken = np.flatnonzero(spec.integer & (values != np.floor(values)))
    if len(broken):
        return f"weight '{spec.names[broken[0]]}' would be {values[broken[0]]:g}, which is not a whole number"
    return next((told for constraint in spec.constraints for told in _breaks(constraint, weights, spec)), None)


def _breaks(constraint: Constraint, weights: Sequence[float], spec: ModelSpec) -> Iterator[str]:
    """Yield a phrase for each place where weights break a constraint."""
    match constraint:
        case NonNegative():
            places = spec.positions(constraint.weights) if constraint.weights else range(len(weights))
            at = min(places, key=weights.__getitem__)
            if weights[at] < 0:
                yield f"weight '{spec.names[at]}' would be {weights[at]:g}, below zero, which the spec rules out"
        case OrderedCutoffs():
            places = spec.positions(constraint.weights)
            if weights[places[0]] < constraint.first:
                yield f"weight '{spec.names[places[0]]}' would be {weights[places[0]]:g}, below {constraint.first:g}"
            for one, other in pairwise(places):
                if weights[other] < weights[one] + constraint.gap:
                    yield (
                        f"weight '{spec.names[other]}' would be {weights[other]:g}, less than {constraint.gap:g} above "
                        f"'{spec.names[one]}', {weights[one]:g}"
                    )
