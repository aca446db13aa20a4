"""The model spec: which weights a model has, how far each may move, and what must hold between them.

The spec is the contract of both sides. A client takes from it which model to evaluate and with which settings; the
server takes from it the start values, the step sizes and the constraints. Any number of weights is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.digest import digest_of
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.weights import (
    MAX_WEIGHTS,
    Block,
    Finite,
    Kind,
    Name,
    Normal,
    Positive,
    Start,
    Step,
    Uniform,
    Weight,
    WeightNames,
    Zeros,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Block",
    "Constraint",
    "Finite",
    "Kind",
    "ModelSpec",
    "Name",
    "NonNegative",
    "Normal",
    "OrderedCutoffs",
    "Positive",
    "Start",
    "Step",
    "Steps",
    "Uniform",
    "Weight",
    "Zeros",
    "published",
    "published_array",
]


class NonNegative(Struct, frozen=True, forbid_unknown_fields=True, tag_field="constraint", tag="non_negative"):
    """No weight below zero (thesis 7.2, first constraint).

    ``clamp`` is what the thesis describes: it trims the step of the weight that would go below zero and touches no
    other. ``shift`` is what the server of 2018 did instead: it adds the size of the lowest weight to all, so that
    one weight's step moves every other; it is there for parity with that study only.
    """

    digest_name: ClassVar[str] = "NonNegative"

    mode: Literal["clamp", "shift"] = "clamp"


class OrderedCutoffs(Struct, frozen=True, forbid_unknown_fields=True, tag_field="constraint", tag="ordered_cutoffs"):
    """Each of the named weights at least ``gap`` above the one before, the first at least ``first`` (thesis 7.2).

    ``push`` is what the server of 2018 did: a weight that rises pushes those after it up before it, further than their
    own steps. ``trim`` is what the thesis describes: steps are shortened, upward ones so far that no later weight has
    to give way, then the downward ones; no weight goes further than its step, or the other way. It presupposes that the
    start weights are in order. Where rounding to published whole numbers closes a gap that is no whole number, ``trim``
    pushes too.
    """

    digest_name: ClassVar[str] = "OrderedCutoffs"

    weights: Annotated[tuple[str, ...], Meta(min_length=1)]
    gap: Positive = 1.0
    first: Finite = 1.0
    mode: Literal["push", "trim"] = "push"


Constraint: TypeAlias = NonNegative | OrderedCutoffs


class Steps(NamedTuple):
    """The step sizes of all weights: where each starts, its least, its largest; each array of shape (m,)."""

    start: NDArray[np.float64]
    least: NDArray[np.float64]
    largest: NDArray[np.float64]


class ModelSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A model and its weights, in the order of the wire: first ``weights``, one by one, then those of the ``blocks``.

    What follows from them is computed when it is asked for, and once. Arrays that are returned are not to be changed.

    Raises:
        InvalidSettings: there is no weight or more than :data:`fedping.protocol.weights.MAX_WEIGHTS`, two share a name,
            a step's bounds do not hold its start, a constraint names a weight that the spec does not have, ordered
            cutoffs name one twice, or a setting is not finite.
    """

    digest_name: ClassVar[str] = "ModelSpec"

    name: Name
    model: Annotated[str, Meta(description="the model that clients evaluate, such as frecency-2018")]
    settings: Annotated[
        dict[str, bool | int | float | str],
        Meta(description="what the model itself has to know, such as its number of features; the model says which"),
    ] = {}
    weights: Annotated[tuple[Weight, ...], Meta(max_length=MAX_WEIGHTS)] = ()
    blocks: Annotated[tuple[Block, ...], Meta(max_length=10_000)] = ()
    constraints: tuple[Constraint, ...] = ()
    margin: Annotated[
        float, Meta(ge=0, le=1e30, description="Δ of the SVM loss of ranking, in points of the score (7.2)")
    ] = 10.0
    epsilon: Annotated[float, Meta(gt=0, le=1e30, description="ε of the finite differences (7.2)")] = 1.0

    def __post_init__(self) -> None:
        self._refuse_repeated("weights", [weight.name for weight in self.weights])
        self._refuse_repeated("blocks", [block.name for block in self.blocks])
        if not 1 <= self.m <= MAX_WEIGHTS:
            raise InvalidSettings(
                f"model spec '{self.name}' has {self.m:,} weights; give it 1 to {MAX_WEIGHTS:,}, in weights or blocks"
            )
        odd = next((n for n, v in self.settings.items() if isinstance(v, float) and not math.isfinite(v)), None)
        if odd is not None:
            raise InvalidSettings(
                f"the setting '{odd}' of model spec '{self.name}' is {self.settings[odd]}, which cannot be published; "
                "give a finite number"
            )
        clash = next((weight.name for weight in self.weights if weight.name in WeightNames((), self.blocks)), None)
        if clash:
            raise InvalidSettings(f"model spec '{self.name}' names the weight '{clash}' of a block twice; rename one")
        for weight in self.weights:
            weight.step.check(f"weight '{weight.name}' of model spec '{self.name}'")
        for block in self.blocks:
            block.step.check(f"block '{block.name}' of model spec '{self.name}'")
        for constraint in self.constraints:
            self._check_names_of(constraint)
        self._refuse_two_places_in_order()

    def _refuse_repeated(self, what: str, names: list[str]) -> None:
        if len(set(names)) < len(names):
            repeated = min(name for name in names if names.count(name) > 1)
            raise InvalidSettings(f"model spec '{self.name}' has two {what} named '{repeated}'; rename one of them")

    def _check_names_of(self, constraint: Constraint) -> None:
        unknown = [name for name in getattr(constraint, "weights", ()) if name not in self.names]
        if unknown:
            raise InvalidSettings(
                f"a constraint of model spec '{self.name}' names the weight '{unknown[0]}', which the spec does not "
                f"have; it has {', '.join(sorted(self.names[:30]))}"
            )

    def _refuse_two_places_in_order(self) -> None:
        ordered = [name for c in self.constraints if isinstance(c, OrderedCutoffs) for name in c.weights]
        twice = [name for name in ordered if ordered.count(name) > 1]
        if twice:
            raise InvalidSettings(
                f"the weight '{twice[0]}' of model spec '{self.name}' has two places among the ordered cutoffs, which "
                "may be impossible to hold together; name it once"
            )

    @cached_property
    def m(self) -> int:
        """The number of weights."""
        return len(self.weights) + sum(math.prod(block.shape) for block in self.blocks)

    @cached_property
    def names(self) -> Sequence[str]:
        """The weights' names in the order of the wire."""
        single = tuple(weight.name for weight in self.weights)
        return WeightNames(single, self.blocks) if self.blocks else single

    @property
    def document_names(self) -> tuple[str, ...]:
        """The names as documents repeat them: none where there are blocks, for the spec says them in short."""
        return () if self.blocks else tuple(self.names)

    @cached_property
    def start(self) -> tuple[float, ...]:
        """The weights of version 0."""
        return tuple(self.start_array.tolist())

    @cached_property
    def start_array(self) -> NDArray[np.float64]:
        """The weights of version 0, shape (m,)."""
        from fedping.protocol.weights import start_values

        return _joined([weight.start for weight in self.weights], [start_values(block) for block in self.blocks])

    @cached_property
    def steps(self) -> Steps:
        """The step sizes."""
        return Steps(
            self._of_each([w.step.start for w in self.weights], [b.step.start for b in self.blocks]),
            self._of_each([w.step.min for w in self.weights], [b.step.min for b in self.blocks]),
            self._of_each([w.step.max for w in self.weights], [b.step.max for b in self.blocks]),
        )

    @cached_property
    def integer(self) -> NDArray[np.bool_]:
        """Which weights are whole numbers when they are published, shape (m,)."""
        whole = self._of_each([w.integer for w in self.weights], [b.integer for b in self.blocks]).astype(bool)
        whole.flags.writeable = False
        return whole

    def _of_each(self, single: Sequence[float], of_blocks: Sequence[float]) -> NDArray[np.float64]:
        """Return a number of each weight, given those of the single ones and one of each block, shape (m,)."""
        import numpy as np

        sizes = [math.prod(block.shape) for block in self.blocks]
        return _joined(single, [np.full(size, value) for size, value in zip(sizes, of_blocks, strict=True)])

    @property
    def digest(self) -> str:
        """SHA-256 of the spec: two specs with the same digest are the same model."""
        return digest_of(self)


def published(spec: ModelSpec, weights: tuple[float, ...]) -> tuple[float, ...]:
    """Return the weights as clients get them: integer weights rounded half up, the others as they are.

    Half up, floor(x + 0.5), because it is the one rounding that every language spells alike.
    """
    import numpy as np

    return tuple(published_array(spec, np.array(weights)).tolist()) if spec.integer.any() else weights


def published_array(spec: ModelSpec, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what :func:`published` does, for an array of shape (m,)."""
    import numpy as np

    return np.where(spec.integer, np.floor(weights + 0.5), weights)


def _joined(single: Sequence[float], blocks: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return numbers and arrays of numbers as one array that nobody can change."""
    import numpy as np

    joined = np.concatenate([np.array(single, dtype=np.float64), *blocks])
    joined.flags.writeable = False
    return joined
