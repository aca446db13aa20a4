"""The interface of a client algorithm: the client's computation between fetching a model and sending an update.

An algorithm is a pure function of the fetched weights, the examples, random keys and the client's state, for many
clients at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import FloatArray, Floats
from fedping.client_sim.learning.model import Model, predictions_and_scores
from fedping.protocol.draws import Keys
from fedping.protocol.errors import FedpingError
from fedping.protocol.spec import Block
from fedping.protocol.weights import WeightNames, start_values

State: TypeAlias = Mapping[str, NDArray[Any]]
"""The state of k clients from one training to the next, as arrays of shape (k, ...) by name."""

NO_STATE: State = {}


class Diverged(FedpingError):
    """Local training has produced a number that is not finite."""


class Algorithm(Protocol):
    """A client algorithm, which computes the updates of k clients independently of each other."""

    def init_state(self, model: Model[Any]) -> State:
        """Return the state of a client that has never trained; :data:`NO_STATE` for an algorithm without state."""
        ...

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Any, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """Return the updates of k clients after training.

        Args:
            model: the model to train.
            weights: the fetched weights, shape (m,); or each client's initial weights, shape (k, m).
            batch: all the examples of k clients.
            keys: a random key for each client, shape (k,).
            state: the clients' state, by the names of :meth:`init_state`.

        Returns:
            Updates, directions that the server adds, shape (k, m), zeros for a client without examples; and the
            clients' new state.
        """
        ...


@runtime_checkable
class GivesLosses(Protocol):
    """An algorithm that also computes the losses at the fetched weights."""

    def update_and_losses(
        self, model: Model[Any], weights: FloatArray, batch: Any, keys: Keys, state: State
    ) -> tuple[Floats, State, FloatArray]:
        """Return the result of :meth:`Algorithm.update`, and each client's loss on all its examples, shape (k,)."""
        ...


def updated(
    algorithm: Algorithm,
    model: Model[Any],
    weights: FloatArray,
    batch: Any,
    keys: Keys,
    state: State,
    with_losses: bool,
) -> tuple[Floats, State, FloatArray]:
    """Return the result of :meth:`Algorithm.update`, and each client's loss at the fetched weights, shape (k,).

    The algorithm's own losses are used, if it computes them. Losses are NaN if they are not requested.
    """
    if with_losses and isinstance(algorithm, GivesLosses):
        return algorithm.update_and_losses(model, weights, batch, keys, state)
    updates, after = algorithm.update(model, weights, batch, keys, state)
    return updates, after, model.losses(weights, batch) if with_losses else np.full(len(batch), np.nan)


@runtime_checkable
class Personalizes(Protocol):
    """An algorithm that gives each client its own model to predict with (thesis chapter 6).

    The client's own part is in its state. The predictions of a client that has never trained equal those of the
    fetched weights to the bit.
    """

    def personal_model(self, model: Model[Any]) -> Model[Any]:
        """Return the clients' model for predictions; the model itself if clients differ only in weights."""
        ...

    def personal_weights(self, model: Model[Any], weights: FloatArray, batch: Any, state: State) -> Floats:
        """Return each client's own weights of the personal model, shape (k, its number of weights).

        Args:
            model: the model that the algorithm trains.
            weights: the fetched weights, shape (m,).
            batch: all the examples that the k clients learn from, for parts that are refitted each time.
            state: the clients' state.
        """
        ...


@runtime_checkable
class MaySendNothing(Protocol):
    """An algorithm in which a client's training may end without an update to send."""

    def sends(self, keys: Keys, state: State) -> NDArray[np.bool_]:
        """Return whether each of k clients will send an update, given the arguments of :meth:`Algorithm.update`."""
        ...


@runtime_checkable
class PublishesMore(Protocol):
    """An algorithm whose clients need more arrays from the server than the model's weights, such as a control variate.

    The additional arrays follow the model's weights in the spec, in every version and in every update, and the server
    treats them like weights. So :meth:`Algorithm.update` gets and returns m + more numbers.
    """

    def beside(self, model: Model[Any]) -> tuple[Block, ...]:
        """Return the arrays that follow a model's weights, and their initial values."""
        ...


@dataclass(frozen=True)
class ModelAndMore:
    """A model whose versions carry additional arrays; it uses only its own weights.

    Attributes:
        model: the model, of m weights.
        arrays: the arrays after its weights.
    """

    model: Model[Any]
    arrays: tuple[Block, ...]

    @cached_property
    def weight_names(self) -> Sequence[str]:
        """See :attr:`Model.weight_names`."""
        return (*self.model.weight_names, *WeightNames((), self.arrays))

    @cached_property
    def start(self) -> FloatArray:
        """See :attr:`Model.start`."""
        return np.concatenate([self.model.start, *map(start_values, self.arrays)])

    def losses(self, weights: FloatArray, batch: Any) -> FloatArray:
        """See :meth:`Model.losses`."""
        return self.model.losses(self._own(weights), batch)

    def gradients(self, weights: FloatArray, batch: Any) -> Floats:
        """See :meth:`Model.gradients`; the gradients of the additional arrays are zero."""
        found = self.model.gradients(self._own(weights), batch)
        return np.pad(found, ((0, 0), (0, weights.shape[-1] - found.shape[1])))

    def predict(self, weights: FloatArray, batch: Any) -> FloatArray:
        """See :meth:`Model.predict`."""
        return self.model.predict(self._own(weights), batch)

    def predictions_and_scores(self, weights: FloatArray, batch: Any) -> tuple[FloatArray, FloatArray | None]:
        """See :class:`fedping.client_sim.learning.model.GivesScores`."""
        return predictions_and_scores(self.model, self._own(weights), batch)

    def _own(self, weights: FloatArray) -> FloatArray:
        return weights[..., : len(self.model.weight_names)]


def bare(model: Model[Any]) -> Model[Any]:
    """Return the model without the additional arrays of its versions."""
    return model.model if isinstance(model, ModelAndMore) else model
