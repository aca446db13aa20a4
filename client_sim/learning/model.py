"""The interface of models, which all learning code uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Batch, FloatArray, Floats
from fedping.protocol.draws import Keys
from fedping.protocol.link_ends import Factors, Projection

B_contra = TypeVar("B_contra", bound=Batch, contravariant=True)


DOUBLE = np.dtype(np.float64)

Projections: TypeAlias = Callable[[NDArray[np.intp]], Projection | Factors]
"""Function from clients' positions in a fleet to the structure of their updates: a projection, or factors."""


class Model(Protocol[B_contra]):
    """A model that many clients can train at once.

    ``weights`` are either shared by all clients, shape (m,), or each client's own, shape (k, m). The loss of a client
    is the mean over its examples (those whose :attr:`Batch.weight` is not 0) of loss times weight, plus the model's own
    penalty; a client without examples has loss 0 and gradient 0. So the loss of the whole fleet is the mean of the
    clients' losses, weighted by their numbers of examples (thesis eq. 2). This also holds for weighted examples: the
    mean divides by the number of examples, not by the sum of their weights. Methods return new arrays, which the caller
    may change.

    These methods are sufficient. A model may also implement :class:`GivesBoth`, :class:`GivesScores`,
    :class:`MovesItself`, :class:`KnowsStarts`, :class:`HasPrecision`, :class:`HasBounds` or :class:`Mixes`.
    """

    @property
    def weight_names(self) -> Sequence[str]:
        """The names of the m weights in wire order."""
        ...

    @property
    def start(self) -> FloatArray:
        """The initial weights, shape (m,)."""
        ...

    def losses(self, weights: FloatArray, batch: B_contra) -> FloatArray:
        """Return each client's loss, shape (k,)."""
        ...

    def gradients(self, weights: FloatArray, batch: B_contra) -> Floats:
        """Return the gradient of each client's loss at its weights, shape (k, m): a direction of **ascent**."""
        ...

    def predict(self, weights: FloatArray, batch: B_contra) -> FloatArray:
        """Return the prediction of each example: a number (k, n), or one for each of c classes (k, n, c)."""
        ...


@runtime_checkable
class GivesBoth(Protocol):
    """A model that computes losses and gradients together at less cost than separately."""

    def losses_and_gradients(self, weights: FloatArray, batch: Any) -> tuple[FloatArray, Floats]:
        """Return the results of :meth:`Model.losses` and :meth:`Model.gradients`."""
        ...


@runtime_checkable
class GivesScores(Protocol):
    """A classifier that knows the scores behind its probabilities; scores differ even if probabilities round to 1."""

    def predictions_and_scores(self, weights: FloatArray, batch: Any) -> tuple[FloatArray, FloatArray | None]:
        """Return the results of :meth:`Model.predict`, and for two classes the log-odds of class 1, shape (k, n).

        The scores are None for more than two classes, and if only the probabilities are known.
        """
        ...


@runtime_checkable
class MovesItself(Protocol):
    """A model whose local step does not follow the gradient, such as k-means (Lloyd's step)."""

    def movements(self, weights: FloatArray, batch: Any) -> Floats:
        """Return the change of each client's weights in a local step of rate 1, shape (k, m)."""
        ...


@runtime_checkable
class KnowsStarts(Protocol):
    """A model whose result depends on its start, and which finds good starts from examples, such as k-means++."""

    def starts(self, batch: Any, keys: Keys, count: int) -> FloatArray:
        """Return ``count`` starts for each of k clients, drawn by their keys; shape (count, k, m)."""
        ...


@runtime_checkable
class HasPrecision(Protocol):
    """A model that does not work in double precision, or that needs more memory per example than the example itself."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The precision of the clients' own weights."""
        ...

    @property
    def floats_per_example(self) -> int:
        """The number of values in memory per example during a computation, without the example itself."""
        ...


@runtime_checkable
class HasBounds(Protocol):
    """A model whose spec has constraints, which hold for clients' own weights as well."""

    def within(self, weights: Floats, free: NDArray[np.bool_]) -> Floats:
        """Return weights near ``weights`` that the constraints allow, shape (k, m).

        Args:
            weights: the clients' weights.
            free: whether each weight may be moved, shape (m,); the others belong to a version and are unchanged.
        """
        ...


@runtime_checkable
class Mixes(Protocol):
    """A model of :class:`fedping.client_sim.learning.batch.Examples` whose predictions can be mixed with others.

    The loss of a mixture is its prediction's loss, a square or a cross-entropy, so the model only needs to return the
    gradient of its predictions. A model that predicts probabilities has the number of classes as ``classes``.
    """

    @property
    def features(self) -> int:
        """The number of features of an example."""
        ...

    def pulled(self, weights: FloatArray, batch: Any, pulls: FloatArray) -> Floats:
        """Return the weights' gradient of the sum of predictions times ``pulls``, shape (k, m).

        Args:
            weights: see :class:`Model`.
            batch: the examples.
            pulls: a number for each prediction of :meth:`Model.predict`, shape (k, n) or (k, n, c).
        """
        ...

    def penalty(self, weights: FloatArray, batch: Any, l2: float | None = None) -> tuple[FloatArray, Floats]:
        """Return the model's own penalty, shape (k,), and its gradient, shape (k, m); ``l2`` overrides its strength."""
        ...


def losses_and_gradients(model: Model[Any], weights: FloatArray, batch: Any) -> tuple[FloatArray, Floats]:
    """Return each client's loss, shape (k,), and gradient, shape (k, m)."""
    both: Callable[..., tuple[FloatArray, Floats]] | None = getattr(model, "losses_and_gradients", None)
    return both(weights, batch) if both else (model.losses(weights, batch), model.gradients(weights, batch))


def predictions_and_scores(model: Model[Any], weights: FloatArray, batch: Any) -> tuple[FloatArray, FloatArray | None]:
    """Return the results of :meth:`Model.predict`, and the scores of :class:`GivesScores`; None if there are none."""
    both: Callable[..., tuple[FloatArray, FloatArray | None]] | None = getattr(model, "predictions_and_scores", None)
    return both(weights, batch) if both else (model.predict(weights, batch), None)


# isinstance() on such classes takes longer than a small batch.


def has_precision(model: Any) -> TypeGuard[HasPrecision]:
    """Return whether a model implements :class:`HasPrecision`."""
    return hasattr(model, "floats_per_example") and hasattr(model, "dtype")


def moves_itself(model: Model[Any]) -> bool:
    """Return whether a model implements :class:`MovesItself`."""
    return hasattr(model, "movements")


def mixes(model: Any) -> TypeGuard[Mixes]:
    """Return whether a model implements :class:`Mixes`."""
    return hasattr(model, "pulled") and hasattr(model, "penalty")


def has_modes(model: Any) -> bool:
    """Return whether a model behaves differently in training, such as by dropout with its examples' keys."""
    return bool(getattr(model, "has_modes", False))


def has_bounds(model: Any) -> TypeGuard[HasBounds]:
    """Return whether a model implements :class:`HasBounds`."""
    return hasattr(model, "within")


def precision(model: Model[Any]) -> np.dtype[Any]:
    """Return the precision of clients' own weights: double unless the model sets another precision."""
    return model.dtype if has_precision(model) else DOUBLE


@dataclass(frozen=True)
class Around:
    """A base class for model wrappers, which forwards everything that is not overridden."""

    model: Model[Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @property
    def weight_names(self) -> Sequence[str]:
        """See :attr:`Model.weight_names`."""
        return self.model.weight_names

    @property
    def start(self) -> FloatArray:
        """See :attr:`Model.start`."""
        return self.model.start

    def losses(self, weights: FloatArray, batch: Any) -> FloatArray:
        """See :meth:`Model.losses`."""
        return self.model.losses(weights, batch)

    def gradients(self, weights: FloatArray, batch: Any) -> Floats:
        """See :meth:`Model.gradients`."""
        return self.model.gradients(weights, batch)

    def predict(self, weights: FloatArray, batch: Any) -> FloatArray:
        """See :meth:`Model.predict`."""
        return self.model.predict(weights, batch)


@dataclass(frozen=True)
class Projected(Around):
    """The model of clients that send only a part of their movements, chosen at random (thesis 4.3).

    Since a step of plain gradient descent is linear, such clients train by projected gradients.
    """

    projection: Projection

    def gradients(self, weights: FloatArray, batch: Any) -> Floats:
        """See :meth:`Model.gradients`; the gradients are projected."""
        return self.projection(self.model.gradients(weights, batch))

    def losses_and_gradients(self, weights: FloatArray, batch: Any) -> tuple[FloatArray, Floats]:
        """See :meth:`GivesBoth.losses_and_gradients`; the gradients are projected."""
        losses, gradients = losses_and_gradients(self.model, weights, batch)
        return losses, self.projection(gradients)


@dataclass(frozen=True)
class Factored(Around):
    """The model of clients that send factors of a movement: its weights are these factors (thesis 4.3.2).

    Attributes:
        fetched: the weights that are moved, shape (m,) or (k, m).
        factors: the factors of the k clients.
    """

    fetched: FloatArray
    factors: Factors

    @property
    def start(self) -> FloatArray:
        """See :attr:`Model.start`; each client has its own start, shape (k, f)."""
        return self.factors.start

    def losses(self, weights: FloatArray, batch: Any) -> FloatArray:
        """See :meth:`Model.losses`."""
        return self.model.losses(self._whole(weights), batch)

    def gradients(self, weights: FloatArray, batch: Any) -> Floats:
        """See :meth:`Model.gradients`; derivatives are by the factors, shape (k, f)."""
        return self.factors.gradients(weights, self.model.gradients(self._whole(weights), batch))

    def losses_and_gradients(self, weights: FloatArray, batch: Any) -> tuple[FloatArray, Floats]:
        """See :meth:`GivesBoth.losses_and_gradients`; derivatives are by the factors."""
        losses, gradients = losses_and_gradients(self.model, self._whole(weights), batch)
        return losses, self.factors.gradients(weights, gradients)

    def _whole(self, weights: Floats) -> Any:
        return self.fetched.astype(weights.dtype, copy=False) + self.factors.movement(weights)
