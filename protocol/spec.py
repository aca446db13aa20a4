"""The model spec: which weights a model has, how far each may move, and what must hold between them.

The spec is the contract of both sides. A client takes from it which model to evaluate and with which settings; the
server takes from it the start values, the step sizes and the constraints. Any number of weights is allowed.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from protocol.digest import digest_of
from protocol.errors import InvalidSettings

Name: TypeAlias = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64, description="letters, digits, '_', '.' and '-'")
]
Finite: TypeAlias = Annotated[float, Meta(ge=-1e30, le=1e30)]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=1e30)]


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """The step size of one weight (thesis eq. 4), in units of that weight: where it starts, its least, its largest."""

    start: Positive
    min: Positive
    max: Positive


class Weight(Struct, frozen=True, forbid_unknown_fields=True):
    """One weight: its name on the wire, its value in version 0, and how it may change.

    ``kind`` says what the number means and in which unit, for people and pages; no arithmetic depends on it.
    An ``integer`` weight is kept as a double in the optimizer's state and rounded half up when it is published.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    start: Finite
    step: Step
    kind: Literal["cutoff", "bucket_weight", "bonus", "coefficient"] = "coefficient"
    integer: bool = False


class NonNegative(Struct, frozen=True, forbid_unknown_fields=True, tag_field="constraint", tag="non_negative"):
    """No weight below zero (thesis 7.2, first constraint).

    ``clamp`` trims the step of the weight that would go below zero and touches no other. ``shift`` adds the size of the
    lowest weight to all of them, as the study of 2018 did; it is there for parity with that study only.
    """

    mode: Literal["clamp", "shift"] = "clamp"


class OrderedCutoffs(Struct, frozen=True, forbid_unknown_fields=True, tag_field="constraint", tag="ordered_cutoffs"):
    """Each of the named weights at least ``gap`` above the one before, the first at least ``first`` (thesis 7.2)."""

    weights: Annotated[tuple[str, ...], Meta(min_length=1)]
    gap: Positive = 1.0
    first: Finite = 1.0


Constraint: TypeAlias = NonNegative | OrderedCutoffs


class ModelSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model and its weights, in the order of the wire.

    Raises:
        InvalidSettings: two weights share a name, a step's bounds do not hold its start, a constraint names a weight
            that the spec does not have, or ordered cutoffs name one twice.
    """

    name: Name
    model: Annotated[str, Meta(description="the model that clients evaluate, such as frecency-2018")]
    settings: Annotated[
        dict[str, bool | int | float | str],
        Meta(description="what the model itself has to know, such as its number of features; the model says which"),
    ] = {}
    weights: Annotated[tuple[Weight, ...], Meta(min_length=1)]
    constraints: tuple[Constraint, ...] = ()
    margin: Annotated[
        float, Meta(ge=0, le=1e30, description="Δ of the SVM loss of ranking, in points of the score (7.2)")
    ] = 10.0
    epsilon: Annotated[float, Meta(gt=0, le=1e30, description="ε of the finite differences (7.2)")] = 1.0

    def __post_init__(self) -> None:
        names = self.names
        repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if repeated:
            raise InvalidSettings(f"model spec '{self.name}' has two weights named '{repeated[0]}'; rename one of them")
        for weight in self.weights:
            if not weight.step.min <= weight.step.start <= weight.step.max:
                raise InvalidSettings(
                    f"weight '{weight.name}' of model spec '{self.name}': step.start {weight.step.start:g} is not "
                    f"between step.min {weight.step.min:g} and step.max {weight.step.max:g}; widen the bounds"
                )
        for constraint in self.constraints:
            self._check_names_of(constraint, set(names))
        self._refuse_two_places_in_order()

    def _check_names_of(self, constraint: Constraint, names: set[str]) -> None:
        unknown = [n for n in getattr(constraint, "weights", ()) if n not in names]
        if unknown:
            raise InvalidSettings(
                f"a constraint of model spec '{self.name}' names the weight '{unknown[0]}', which the spec does not "
                f"have; it has {', '.join(sorted(names)[:30])}"
            )

    def _refuse_two_places_in_order(self) -> None:
        ordered = [name for c in self.constraints if isinstance(c, OrderedCutoffs) for name in c.weights]
        twice = [name for name in ordered if ordered.count(name) > 1]
        if twice:
            raise InvalidSettings(
                f"the weight '{twice[0]}' of model spec '{self.name}' has two places among the ordered cutoffs, which "
                "may be impossible to hold together; name it once"
            )

    @property
    def m(self) -> int:
        """The number of weights."""
        return len(self.weights)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights' names in the order of the wire."""
        return tuple(weight.name for weight in self.weights)

    @property
    def start(self) -> tuple[float, ...]:
        """The weights of version 0."""
        return tuple(weight.start for weight in self.weights)

    @property
    def digest(self) -> str:
        """SHA-256 of the spec: two specs with the same digest are the same model."""
        return digest_of(self)


def published(spec: ModelSpec, weights: tuple[float, ...]) -> tuple[float, ...]:
    """Return the weights as clients get them: integer weights rounded half up, the others as they are.

    Half up, floor(x + 0.5), because it is the one rounding that every language spells alike.
    """
    return tuple(
        float(math.floor(value + 0.5)) if weight.integer else value
        for weight, value in zip(spec.weights, weights, strict=True)
    )
