"""The model spec: the weights of a model, their step sizes, and the constraints between them.

Both sides rely on the spec. A client reads from it the model to evaluate and its settings; the server reads the start
values, the step sizes and the constraints. Any number of weights is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import force_setattr

from fedping.protocol.digest import digest_of
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.features import FEATURES, Feature, Layout, Loss, check_features, layout, weights_of
from fedping.protocol.weights import (
    MAX_WEIGHTS,
    Block,
    Finite,
    Kind,
    Name,
    Normal,
    Numbers,
    Positive,
    SingleNumbers,
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
    "Numbers",
    "OrderedCutoffs",
    "Positive",
    "SingleNumbers",
    "Start",
    "Step",
    "Steps",
    "Uniform",
    "Weight",
    "Zeros",
    "published",
    "published_array",
    "published_spec",
]


class NonNegative(Struct, frozen=True, forbid_unknown_fields=True, tag_field="constraint", tag="non_negative"):
    """No weight is below zero (thesis 7.2, first constraint).

    Attributes:
        mode: ``clamp``, as in the thesis, shortens the step of a weight that would go below zero and leaves the others
            unchanged. ``shift``, as on the server of 2018, adds the size of the lowest weight to all weights, so that
            one weight's step moves all others; it exists only for parity with that study.
        weights: names of the weights, blocks or features of the spec that the constraint applies to; all if empty.
    """

    digest_name: ClassVar[str] = "NonNegative"

    mode: Literal["clamp", "shift"] = "clamp"
    weights: tuple[str, ...] = ()


class OrderedCutoffs(Struct, frozen=True, forbid_unknown_fields=True, tag_field="constraint", tag="ordered_cutoffs"):
    """Each named weight is at least ``gap`` above the previous weight, the first at least ``first`` (thesis 7.2).

    ``trim`` requires start weights in order. If rounding to published whole numbers would violate a fractional gap,
    ``trim`` pushes too.

    Attributes:
        weights: names of the weights, in ascending order.
        gap: minimum distance between neighbours.
        first: minimum of the first weight.
        mode: ``push``, as on the server of 2018: a weight that rises pushes later weights up, further than their own
            steps. ``trim``, as in the thesis: steps are shortened, first upward steps until no later weight has to give
            way, then downward steps. No weight moves further than its step, or in the opposite direction.
    """

    digest_name: ClassVar[str] = "OrderedCutoffs"

    weights: Annotated[tuple[str, ...], Meta(min_length=1)]
    gap: Positive = 1.0
    first: Finite = 1.0
    mode: Literal["push", "trim"] = "push"


Constraint: TypeAlias = NonNegative | OrderedCutoffs


class Steps(NamedTuple):
    """The step sizes of all weights: start, minimum and maximum, each an array of shape (m,)."""

    start: NDArray[np.float64]
    least: NDArray[np.float64]
    largest: NDArray[np.float64]


class ModelSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A model and its weights, in the order in which they are sent: the single ``weights``, then those of ``blocks``.

    Derived values are computed once, on first use. The returned arrays must not be changed.

    With ``model = "features"``, the weights and blocks follow from ``features`` and may be omitted. If they are given,
    they must have the same names and shapes, and set each weight's start value and step sizes. The fields from
    ``features`` on are only for a model of features.

    Raises:
        InvalidSettings: there are no weights or more than :data:`fedping.protocol.weights.MAX_WEIGHTS`, two share a
            name, a start step is outside its bounds, a constraint names an unknown weight, ordered cutoffs name a
            weight twice, or a setting is not finite.
    """

    digest_name: ClassVar[str] = "ModelSpec"

    name: Name
    model: Annotated[str, Meta(description="the model that clients evaluate, such as frecency-2018")]
    settings: Annotated[
        dict[str, bool | int | float | str],
        Meta(description="the model's own settings, such as its number of features; they differ by model"),
    ] = {}
    weights: Annotated[tuple[Weight, ...], Meta(max_length=MAX_WEIGHTS)] = ()
    blocks: Annotated[tuple[Block, ...], Meta(max_length=10_000)] = ()
    constraints: tuple[Constraint, ...] = ()
    margin: Annotated[
        float, Meta(ge=0, le=1e30, description="Δ of the SVM loss of ranking, in points of the score (7.2)")
    ] = 10.0
    epsilon: Annotated[float, Meta(gt=0, le=1e30, description="ε of the finite differences (7.2)")] = 1.0
    features: Annotated[
        tuple[Feature, ...], Meta(max_length=10_000, description="what an item's score is computed from")
    ] = ()
    loss: Annotated[Loss, Meta(description="the loss of a list and its chosen item that clients minimise")] = "softmax"
    places: Annotated[
        int, Meta(ge=0, le=1000, description="number of places of a list with learned offsets; the first has 0")
    ] = 0
    hidden: Annotated[
        int, Meta(ge=0, le=10_000, description="width of one hidden layer, in addition to the weights")
    ] = 0
    explore: Annotated[float, Meta(ge=0, le=1, description="share of lists with two swapped neighbours")] = 0.0
    gradient: Annotated[
        Literal["analytic", "finite_differences"], Meta(description="how clients compute an update of features")
    ] = "analytic"

    def __post_init__(self) -> None:
        self._fill_in_weights_of_features()
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
            if isinstance(block.start, SingleNumbers):
                block.start.values(block.name, math.prod(block.shape))
                if self.model == FEATURES:
                    raise InvalidSettings(
                        f"block '{block.name}' of model spec '{self.name}' starts at values = \"float32\", which "
                        'browsers don\'t read; use "numbers"'
                    )
        for constraint in self.constraints:
            self._check_names_of(constraint)
        self._refuse_two_places_in_order()

    def _fill_in_weights_of_features(self) -> None:
        """Set the weights and blocks that follow from features; raise an error if given weights or blocks differ."""
        whose = f"model spec '{self.name}'"
        if self.model != FEATURES:
            given = [name for name, default in _OF_FEATURES.items() if getattr(self, name) != default]
            if given:
                raise InvalidSettings(
                    f"{whose} has '{given[0]}', which the model '{self.model}' does not use. Set model = "
                    f"\"{FEATURES}\", or remove '{given[0]}'"
                )
            return
        if not self.features:
            raise InvalidSettings(
                f'{whose} has model = "{FEATURES}" and no features. List them, such as [[lines.spec.features]] kind = '
                '"number", name = "price"'
            )
        if self.settings:
            raise InvalidSettings(f"{whose}: the model '{FEATURES}' has no settings. Remove 'settings'")
        if self.hidden and self.gradient == "finite_differences":
            raise InvalidSettings(
                f"{whose}: a hidden layer learns by analytic gradients alone. Remove 'hidden' or 'gradient'"
            )
        check_features(self.features, whose)
        weights, blocks = weights_of(self.features, self.places, self.hidden, whose)
        if not self.weights and not self.blocks:
            force_setattr(self, "weights", weights)
            force_setattr(self, "blocks", blocks)
            return
        problem = _unfit(self.weights, weights) or _unfit_blocks(self.blocks, blocks)
        if problem is not None:
            raise InvalidSettings(
                f"{whose}: its weights do not fit its features: {problem}. Remove 'weights' and 'blocks', which follow "
                "from the features"
            )

    @cached_property
    def layout(self) -> Layout:
        """The positions of the features' weights."""
        return layout(self.features, self.places, self.hidden)

    def positions(self, names: Sequence[str]) -> list[int]:
        """Return the positions of weights by name; the name of a block or feature stands for all of its weights.

        Raises:
            ValueError: a name is unknown.
        """
        spans = {span.feature.name: range(span.at, span.at + span.width) for span in self.layout.spans}
        found: list[int] = []
        for name in names:
            if name in self.names:
                found.append(self.names.index(name))
            elif name in spans:
                found += spans[name]
            else:
                block = next((number for number, block in enumerate(self.blocks) if block.name == name), None)
                if block is None:
                    raise ValueError(f"no weight is named '{name}'")
                found += WeightNames(tuple(self.names[: len(self.weights)]), self.blocks).block_places(block)
        return found

    def _refuse_repeated(self, what: str, names: list[str]) -> None:
        if len(set(names)) < len(names):
            repeated = min(name for name in names if names.count(name) > 1)
            raise InvalidSettings(f"model spec '{self.name}' has two {what} named '{repeated}'; rename one of them")

    def _check_names_of(self, constraint: Constraint) -> None:
        known = {span.feature.name for span in self.layout.spans} | {block.name for block in self.blocks}
        unknown = [name for name in getattr(constraint, "weights", ()) if name not in self.names and name not in known]
        if isinstance(constraint, NonNegative) and constraint.mode == "shift" and constraint.weights:
            raise InvalidSettings(
                f"a constraint of model spec '{self.name}' has 'weights', and mode = \"shift\" moves all. Remove "
                "one of them"
            )
        if unknown:
            raise InvalidSettings(
                f"a constraint of model spec '{self.name}' names the weight '{unknown[0]}', which the spec does not "
                f"have; it has {', '.join(sorted(self.names[:30]))}"
            )

    def _refuse_two_places_in_order(self) -> None:
        ordered = [at for c in self.constraints if isinstance(c, OrderedCutoffs) for at in self.positions(c.weights)]
        twice = [at for at in ordered if ordered.count(at) > 1]
        if twice:
            raise InvalidSettings(
                f"the weight '{self.names[twice[0]]}' of model spec '{self.name}' has two places among the ordered "
                "cutoffs, which may be impossible to hold together; name it once"
            )

    @cached_property
    def m(self) -> int:
        """The number of weights."""
        return len(self.weights) + sum(math.prod(block.shape) for block in self.blocks)

    @cached_property
    def names(self) -> Sequence[str]:
        """The weights' names, in the order in which weights are sent."""
        single = tuple(weight.name for weight in self.weights)
        return WeightNames(single, self.blocks) if self.blocks else single

    @property
    def document_names(self) -> tuple[str, ...]:
        """The names that model documents contain; none for a spec with blocks, which describes them more briefly."""
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
        """Return a number for each weight, shape (m,), given a number for each single weight and one for each block."""
        import numpy as np

        sizes = [math.prod(block.shape) for block in self.blocks]
        return _joined(single, [np.full(size, value) for size, value in zip(sizes, of_blocks, strict=True)])

    @property
    def digest(self) -> str:
        """SHA-256 of the spec; two specs with the same digest define the same model."""
        return digest_of(self)


_OF_FEATURES = {
    "features": (),
    "loss": "softmax",
    "places": 0,
    "hidden": 0,
    "explore": 0.0,
    "gradient": "analytic",
}
"""Settings of a spec that only a model of features uses, with their defaults."""


def published_spec(spec: ModelSpec) -> dict[str, Any]:
    """Return a spec in its published form, without newer fields at their default, since old clients don't know them."""
    found: dict[str, Any] = to_builtins(spec)
    for constraint in found["constraints"]:
        if constraint["constraint"] == "non_negative" and not constraint["weights"]:
            del constraint["weights"]
    if spec.model == FEATURES:
        return found
    return {name: value for name, value in found.items() if name not in _OF_FEATURES}


def _unfit(given: Sequence[Weight], expected: Sequence[Weight]) -> str | None:
    """Return a phrase for the difference between given weights and the features' weights; None if they agree."""
    for position, (one, other) in enumerate(zip(given, expected, strict=False)):
        if one.name != other.name:
            return f"weight {position} is '{one.name}', and should be '{other.name}'"
    if len(given) != len(expected):
        return f"there are {len(given):,}, and should be {len(expected):,}"
    return None


def _unfit_blocks(given: Sequence[Block], expected: Sequence[Block]) -> str | None:
    """Return a phrase for the difference between given and features' blocks; a training may add blocks after these."""
    for one, other in zip(given, expected, strict=False):
        if (one.name, one.shape) != (other.name, other.shape):
            return f"a block is '{one.name}' of {list(one.shape)}, and should be '{other.name}' of {list(other.shape)}"
    return None if len(given) >= len(expected) else f"the block '{expected[len(given)].name}' is missing"


def published(spec: ModelSpec, weights: tuple[float, ...]) -> tuple[float, ...]:
    """Return the weights as published for clients: integer weights are rounded half up, the others unchanged.

    Rounding half up, floor(x + 0.5), is the same in all languages.
    """
    import numpy as np

    return tuple(published_array(spec, np.array(weights)).tolist()) if spec.integer.any() else weights


def published_array(spec: ModelSpec, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an array of weights, shape (m,), as published for clients; see :func:`published`."""
    import numpy as np

    return np.where(spec.integer, np.floor(weights + 0.5), weights)


def _joined(single: Sequence[float], blocks: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the concatenation of numbers and arrays as a read-only array."""
    import numpy as np

    joined = np.concatenate([np.array(single, dtype=np.float64), *blocks])
    joined.flags.writeable = False
    return joined
