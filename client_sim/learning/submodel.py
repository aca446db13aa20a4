"""Some of a model's arrays as a smaller model, with the other arrays fixed.

A model is divided in two: the shared part, and the part that stays with a client. Either part can be trained while the
other is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import FloatArray, Floats
from fedping.client_sim.learning.model import Model, losses_and_gradients, moves_itself, predictions_and_scores
from fedping.client_sim.learning.models.arrays import OfArrays
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import Block
from fedping.protocol.weights import MAX_WEIGHTS, start_values

_OF_WHOLE = frozenset({"dtype", "floats_per_example", "features", "classes", "has_modes"})
"""Optional methods of models that work unchanged for a part of the model."""


class ModelOfArrays(Model[Any], Protocol):
    """A model whose weights are consecutive arrays."""

    @property
    def arrays(self) -> tuple[Block, ...]:
        """The arrays in wire order."""
        ...

    @property
    def m(self) -> int:
        """The number of weights."""
        ...


@runtime_checkable
class Reduces(Protocol):
    """A model whose parts, with the rest fixed, are smaller models on other examples."""

    def reduced(self, names: frozenset[str], others: Floats, batch: Any) -> tuple[Model[Any], Any] | None:
        """Return the model of the arrays of these names and its examples; None if there is no smaller model.

        The gradients have to equal the whole model's. The losses may differ by terms that don't depend on these
        arrays.

        Args:
            names: the arrays that are the smaller model's weights.
            others: the values of the other arrays in wire order, shape (l,), or each client's, shape (k, l).
            batch: the examples of the whole model.
        """
        ...


@dataclass(frozen=True)
class Part(OfArrays):
    """A model of some of another model's arrays, with the other arrays fixed.

    Attributes:
        whole: the complete model, of M weights.
        names: the names of the arrays, of m weights.
        others: the values of the remaining arrays in wire order, shape (M - m,), or each client's, shape (k, M - m).
    """

    whole: ModelOfArrays
    names: frozenset[str]
    others: Any

    def __getattr__(self, name: str) -> Any:
        if name in _OF_WHOLE:
            return getattr(self.whole, name)
        raise AttributeError(name)

    @property
    def arrays(self) -> tuple[Block, ...]:
        """See :attr:`OfArrays.arrays`."""
        return tuple(array for array in self.whole.arrays if array.name in self.names)

    @property
    def other_names(self) -> frozenset[str]:
        """The names of the remaining arrays."""
        return frozenset(array.name for array in self.whole.arrays) - self.names

    @property
    def buffers(self) -> NDArray[np.bool_] | None:
        """Whether each weight is untrained, shape (m,); None if all are trained."""
        of_whole: NDArray[np.bool_] | None = getattr(self.whole, "buffers", None)
        return None if of_whole is None else of_whole[self.mine]

    @cached_property
    def mine(self) -> NDArray[np.bool_]:
        """Whether each weight of the whole model belongs to this part, shape (M,)."""
        return np.repeat(
            [array.name in self.names for array in self.whole.arrays],
            [int(np.prod(array.shape)) for array in self.whole.arrays],
        )

    def beside(self, others: Floats) -> Part:
        """Return the same part with other fixed values, shape (M - m,) or (k, M - m)."""
        return Part(self.whole, self.names, others)

    def joined(self, weights: Floats) -> Any:
        """Return the weights of the whole model, shape (M,) or (k, M), given this part's, shape (m,) or (k, m)."""
        rows = np.broadcast_shapes(weights.shape[:-1], self.others.shape[:-1])
        found = np.empty((*rows, len(self.mine)), weights.dtype)
        found[..., self._at] = weights
        found[..., ~self.mine] = self.others
        return found

    def losses(self, weights: FloatArray, batch: Any) -> FloatArray:
        """See :meth:`Model.losses`."""
        return self.whole.losses(self.joined(weights), batch)

    def gradients(self, weights: FloatArray, batch: Any) -> Floats:
        """See :meth:`Model.gradients`; the remaining arrays do not move."""
        return self.whole.gradients(self.joined(weights), batch)[:, self._at]

    def losses_and_gradients(self, weights: FloatArray, batch: Any) -> tuple[FloatArray, Floats]:
        """See :meth:`GivesBoth.losses_and_gradients`."""
        losses, gradients = losses_and_gradients(self.whole, self.joined(weights), batch)
        return losses, gradients[:, self._at]

    def predict(self, weights: FloatArray, batch: Any) -> FloatArray:
        """See :meth:`Model.predict`."""
        return self.whole.predict(self.joined(weights), batch)

    def predictions_and_scores(self, weights: FloatArray, batch: Any) -> tuple[FloatArray, FloatArray | None]:
        """See :class:`fedping.client_sim.learning.model.GivesScores`."""
        return predictions_and_scores(self.whole, self.joined(weights), batch)

    @cached_property
    def _at(self) -> slice | NDArray[np.bool_]:
        """The positions of this part's weights in the whole model; a slice, which is faster, if they are adjacent."""
        places = np.flatnonzero(self.mine)
        if len(places) and places[-1] - places[0] + 1 == len(places):
            return slice(int(places[0]), int(places[-1]) + 1)
        return self.mine


def shared_part(model: Model[Any], local: Sequence[str]) -> Part:
    """Return a model without its local blocks, which are fixed at their start values.

    Args:
        model: the whole model.
        local: the names of the local blocks, or of layers, such as ``head`` for ``head.bias``.

    Raises:
        InvalidSettings: the model has no blocks that can be local, or none of such a name; all blocks would be local,
            or they are too large; or the model moves its weights itself.
    """
    if not isinstance(model, OfArrays) or not hasattr(model, "gradients"):
        raise InvalidSettings(
            f"'local' names {local[0]!r}, but the model's blocks can't stay with the client. Choose a model whose "
            "blocks can, such as network or matrix-factorization"
        )
    if moves_itself(model):
        raise InvalidSettings(
            f"'local' names {local[0]!r}, which would stay with the client, but the model moves its weights by its "
            "own rule, like k-means. Remove 'personal'"
        )
    names = [array.name for array in model.arrays]
    there, stay = frozenset(names), frozenset[str]()
    for name in local:
        blocks = {name} & there or {each for each in names if each.startswith(f"{name}.")}
        if not blocks:
            raise InvalidSettings(
                f"'local' names {name!r}, and the model has no block of that name; it has {', '.join(names)}"
            )
        stay |= blocks
    if not there - stay:
        raise InvalidSettings(
            f"'local' names all blocks of the model, {', '.join(names)}, so nothing would be shared. Remove one"
        )
    if (size := sum(math.prod(array.shape) for array in model.arrays if array.name in stay)) > MAX_WEIGHTS:
        raise InvalidSettings(
            f"'local' names {size:,} weights, but a client may have at most {MAX_WEIGHTS:,} local weights. Choose a "
            "smaller model"
        )
    starts = [start_values(array) for array in model.arrays if array.name in stay]
    return Part(model, there - stay, np.concatenate(starts))


def reduced(whole: ModelOfArrays, names: frozenset[str], others: Floats, batch: Any) -> tuple[Model[Any], Any]:
    """Return the smallest model of some arrays, with the others fixed, that the whole model knows, and its examples."""
    found = whole.reduced(names, others, batch) if isinstance(whole, Reduces) else None
    return found or (Part(whole, names, others), batch)
