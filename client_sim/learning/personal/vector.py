"""A client's own vector v, which predicts with w + U v (the personal vector of thesis 6.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import Algorithm, State, updated
from fedping.client_sim.learning.batch import Batch, FloatArray, Floats, counts
from fedping.client_sim.learning.descent import LocalAlgorithm
from fedping.client_sim.learning.model import (
    Around,
    Model,
    has_bounds,
    losses_and_gradients,
    moves_itself,
    precision,
    predictions_and_scores,
)
from fedping.client_sim.learning.personal.method import OWN_DRAWS, joined, named, own, shared, unprojected
from fedping.protocol.draws import Keys, bits, child_keys
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.personalization import Vector
from fedping.protocol.training import LocalSteps, OneGradient
from fedping.protocol.weights import Block, Normal, Step, start_values

MOST_NUMBERS = 2**22
"""Maximum number of values of a random U, which every client has to draw; 32 MB."""

_FIRST_TURN = OWN_DRAWS + 1
"""Index of a client's child key that draws the part (w or v) that the client trains first."""

_OF_WEIGHTS, _OF_VECTOR = 1, 2
"""Values of the state ``turn``: the part to train next; 0 before a client's first training."""


@dataclass(frozen=True)
class WithVector:
    """See :class:`fedping.protocol.personalization.Vector`.

    A client keeps v in single precision and one byte for the next turn: a million clients with a vector of 8 take 33
    million bytes. With ``in_step`` the version determines the turn, and only v is kept. A training without examples
    doesn't count as a turn. The kept vector is relative to w, so the client's weights move along with w.

    Attributes:
        settings: the method's settings.
        training: the training of the shared weights.
        algorithm: the algorithm of that training.
        version: the version that clients train on.
    """

    settings: Vector
    training: OneGradient | LocalSteps
    algorithm: Algorithm
    version: int = 0

    def at(self, version: int) -> Self:
        """See :class:`GoesByVersion`."""
        return replace(self, version=version)

    def init_state(self, model: Model[Any]) -> State:
        """See :meth:`Algorithm.init_state`."""
        if moves_itself(model):
            raise InvalidSettings(
                "a personal vector is trained along a gradient, but the model moves its weights by its own rule, like "
                'k-means. Remove [training.personal], or personalize with by = "fine_tune"'
            )
        basis = self._basis(model)
        mine: State = {"vector": np.zeros(basis.size, np.float32)}
        if not self.settings.in_step:
            mine = {**mine, "turn": np.zeros((), np.uint8)}
        memory = self._steps().init_state(_AlongVector(model, model.start, basis))
        return joined(self.algorithm.init_state(model), {**mine, **memory})

    def sends(self, keys: Keys, state: State) -> NDArray[np.bool_]:
        """See :meth:`MaySendNothing.sends`; clients send nothing when they train v."""
        return ~self._of_vector(keys, own(state))

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`Algorithm.update`; w is trained at v = 0, and the update is zero when v is trained."""
        return self._update(model, weights, batch, keys, state, with_losses=False)[:2]

    def update_and_losses(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State, FloatArray]:
        """See :meth:`GivesLosses.update_and_losses`."""
        return self._update(model, weights, batch, keys, state, with_losses=True)

    def personal_model(self, model: Model[Any]) -> Model[Any]:
        """See :meth:`Personalizes.personal_model`."""
        return model

    def personal_weights(self, model: Model[Any], weights: FloatArray, batch: Any, state: State) -> Floats:
        """See :meth:`Personalizes.personal_weights`: w + U v."""
        found: Floats = _AlongVector(model, weights, self._basis(model)).whole(own(state)["vector"])
        return found

    def _update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State, *, with_losses: bool
    ) -> tuple[Floats, State, FloatArray]:
        """Return updates, the new state, and losses, which are NaN unless requested."""
        mine, after, there = own(state), shared(state), counts(batch) > 0
        of_vector = self._of_vector(keys, mine)
        losses: FloatArray = np.full(len(batch), np.nan)
        if of_vector.all():
            updates: Floats = np.zeros((len(batch), weights.shape[-1]), precision(model))
            losses = model.losses(weights, batch) if with_losses else losses
        else:
            updates, trained, losses = updated(self.algorithm, model, weights, batch, keys, after, with_losses)
            updates[of_vector] = 0.0
            after = _where(~of_vector, trained, after)
        if of_vector.any():
            mine = _where(of_vector & there, self._trained(unprojected(model), weights, batch, keys, mine), mine)
        if not self.settings.in_step:
            following = np.where(of_vector, _OF_WEIGHTS, _OF_VECTOR)
            mine = {**mine, "turn": np.where(there, following, mine["turn"]).astype(np.uint8)}
        return updates, joined(after, mine), losses

    def _trained(self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, mine: State) -> State:
        """Return the clients' state after steps of v."""
        basis = self._basis(model)
        along = _AlongVector(model, weights.astype(precision(model), copy=False), basis)
        memory = {name: value for name, value in mine.items() if name not in ("vector", "turn")}
        begin = mine["vector"].astype(precision(model))
        draws = child_keys(keys, OWN_DRAWS)
        vectors, after = self._steps().moved(along, along.start, batch, draws, memory, begin)
        return {**mine, **after, "vector": along.pulled_back(vectors).astype(np.float32)}

    def _of_vector(self, keys: Keys, mine: State) -> NDArray[np.bool_]:
        """Return whether each client trains v this time, rather than w."""
        if self.settings.in_step:
            return np.full(len(keys), (self.version - self.settings.from_version) % 2 == 0)
        first = bits(child_keys(keys, _FIRST_TURN), 1)[:, 0] >> np.uint64(63) == 1
        found: NDArray[np.bool_] = np.where(mine["turn"] == 0, first, mine["turn"] == _OF_VECTOR)
        return found

    def _steps(self) -> LocalAlgorithm:
        asked = self.settings
        return LocalAlgorithm(
            LocalSteps(rate=asked.rate, steps=asked.steps, batch=asked.batch, optimizer=asked.optimizer)
        )

    def _basis(self, model: Model[Any]) -> Basis:
        return basis_of(self.settings, model)


@dataclass(frozen=True)
class Basis:
    """The matrix U, whose rows are zero except those of the named weights.

    Attributes:
        named: whether each weight is named, shape (m,).
        matrix: the named weights' rows of U, shape (named, size); the identity if None.
        size: the number of values of v.
    """

    named: NDArray[np.bool_]
    matrix: FloatArray | None
    size: int

    def applied(self, vectors: Floats) -> Floats:
        """Return the named rows of U v, shape (k, named), for vectors of shape (k, size)."""
        return vectors if self.matrix is None else vectors @ self.matrix.T.astype(vectors.dtype, copy=False)

    def pulled(self, gradients: Floats) -> Floats:
        """Return the gradients by v, shape (k, size): Uᵀ times the gradients by the weights, shape (k, m)."""
        rows = gradients[:, self.named]
        return rows if self.matrix is None else rows @ self.matrix.astype(rows.dtype, copy=False)


def basis_of(settings: Vector, model: Model[Any]) -> Basis:
    """Return the basis that the settings describe.

    Raises:
        InvalidSettings: the model lacks a named weight, or the size doesn't fit the number of named weights, or is too
            large.
    """
    mask = named(model, settings.on, "on") if settings.on else np.ones(len(model.weight_names), np.bool_)
    rows = int(np.count_nonzero(mask))
    size = rows if settings.size is None else settings.size
    whose = f"the {rows:,} weights that 'on' names" if settings.on else f"the {rows:,} weights of the model"
    if settings.basis == "identity" and size != rows:
        raise InvalidSettings(
            f"a personal vector of size = {size:,} is added to {whose}, one number to each; leave 'size' out, name "
            "other weights in 'on', or set basis = \"random\""
        )
    if settings.basis == "identity":
        return Basis(mask, None, size)
    if size > rows:
        raise InvalidSettings(
            f"a personal vector of size = {size:,} has more numbers than {whose}, so some would do nothing; lower "
            "'size'"
        )
    if size * rows > MOST_NUMBERS:
        raise InvalidSettings(
            f"a personal vector of {size:,} numbers for {whose} needs a random basis of {size * rows:,} numbers, and "
            f"may have {MOST_NUMBERS:,}; lower 'size', or name fewer weights in 'on'"
        )
    return Basis(mask, random_basis(rows, size, settings.seed), size)


@lru_cache(maxsize=4)  # a study may have several lines
def random_basis(rows: int, size: int, seed: int) -> FloatArray:
    """Return random numbers of N(0, 1) / √size, shape (rows, size), which are the same on every platform.

    They come from integer arithmetic: the start values of a block named U with a normal start
    (`fedping.protocol.weights`), row by row.
    """
    scale = 1.0 / math.sqrt(size)
    block = Block(name="U", shape=(rows, size), start=Normal(seed=seed, scale=scale), step=Step(scale, scale, scale))
    matrix = start_values(block).reshape(rows, size)
    matrix.flags.writeable = False
    return matrix


@dataclass(frozen=True)
class _AlongVector(Around):
    """A model as a function of v, at fixed weights of shape (m,), or (k, m) for each client's own."""

    weights: Floats
    basis: Basis

    @property
    def weight_names(self) -> Sequence[str]:
        return tuple(f"v[{j}]" for j in range(self.basis.size))

    @property
    def start(self) -> FloatArray:
        return np.zeros(self.basis.size)

    def whole(self, vectors: Floats) -> Any:
        """Return w + U v within the model's bounds, shape (k, m); it equals w to the bit where v is 0."""
        found = self._unbounded(vectors)
        moved = vectors.any(axis=1)
        if has_bounds(self.model) and moved.any():
            found[moved] = self.model.within(found[moved], self.basis.named)
        return found

    def pulled_back(self, vectors: Floats) -> Floats:
        """Return vectors with w + v within the bounds if each number of v belongs to one weight, else the same vectors.

        Without this, v would continue to grow while its weight is at a bound, and would take as many steps to shrink
        again.
        """
        if self.basis.matrix is not None or not has_bounds(self.model):
            return vectors
        named = self.basis.named
        there, bounded = self._unbounded(vectors)[:, named], self.whole(vectors)[:, named]
        weights = np.atleast_2d(self.weights)[:, named]
        return np.where(there == bounded, vectors, bounded - weights)

    def losses(self, weights: FloatArray, batch: Any) -> FloatArray:
        return self.model.losses(self.whole(weights), batch)

    def gradients(self, weights: FloatArray, batch: Any) -> Floats:
        return self.basis.pulled(self.model.gradients(self.whole(weights), batch))

    def losses_and_gradients(self, weights: FloatArray, batch: Any) -> tuple[FloatArray, Floats]:
        losses, gradients = losses_and_gradients(self.model, self.whole(weights), batch)
        return losses, self.basis.pulled(gradients)

    def predict(self, weights: FloatArray, batch: Any) -> FloatArray:
        return self.model.predict(self.whole(weights), batch)

    def predictions_and_scores(self, weights: FloatArray, batch: Any) -> tuple[FloatArray, FloatArray | None]:
        return predictions_and_scores(self.model, self.whole(weights), batch)

    def _unbounded(self, vectors: Floats) -> Floats:
        found: Floats = np.array(np.broadcast_to(self.weights, (len(vectors), self.weights.shape[-1])))
        moved = vectors.any(axis=1)
        found[np.ix_(moved, self.basis.named)] += self.basis.applied(vectors[moved].astype(found.dtype, copy=False))
        return found


def _where(chosen: NDArray[np.bool_], new: State, old: State) -> State:
    """Return the new state of the chosen clients, and the old one of the others."""
    return {
        name: np.where(chosen.reshape(-1, *[1] * (value.ndim - 1)), value, old[name]) for name, value in new.items()
    }
