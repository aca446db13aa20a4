"""Users' ratings of items as products of factors (Koren, Bell and Volinsky 2009)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Batch, Examples, FloatArray, Floats, counts, shares
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models.arrays import InPrecision, Precision, array, check_width, precision_of
from fedping.client_sim.learning.models.linear_regression import LinearRegression
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.errors import FedpingError
from fedping.protocol.spec import Block, Normal

NAME = "matrix-factorization"

USER = frozenset({"user", "user_bias"})
"""The blocks of the user; each client is one user."""


@dataclass(frozen=True)
class MatrixFactorization(InPrecision):
    """A rating of item i is mean + item_biases_i + user_bias + items_i · user; an example's only feature is i, from 0.

    The loss is the mean of (rating - y)², plus l2 / 2 · |user|², plus the mean over the examples of l2 / 2 ·
    (|items_i|² + item_biases_i²): an item is penalized once per rating.

    Items' factors start at normal numbers of standard deviation ``scale``, all else at 0: for a user without ratings
    the prediction is the mean plus the item's bias. Clients differ only by the blocks :data:`USER`, so these blocks
    have to be local (`fedping.protocol.personalization`), or all clients get the same predictions.

    ``precision`` is the precision of :class:`InPrecision`.
    """

    items: int
    factors: int
    mean: float = 0.0
    l2: float = 0.0
    scale: float = 0.1
    seed: int = 0
    precision: Precision = "float64"

    @property
    def arrays(self) -> tuple[Block, ...]:
        """See :attr:`OfArrays.arrays`."""
        return (
            array("items", (self.items, self.factors), Normal(seed=self.seed, scale=self.scale)),
            array("item_biases", (self.items,)),
            array("user", (self.factors,)),
            array("user_bias", (1,)),
        )

    @property
    def floats_per_example(self) -> int:
        """See :class:`fedping.client_sim.learning.model.HasPrecision`."""
        return 4 * self.factors + 8

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """Return the predicted ratings, shape (k, n)."""
        item = self._items_of(batch)
        return self._predicted(self.own(weights), item)[0].astype(np.float64, copy=False)

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`."""
        own, item = self.own(weights), self._items_of(batch)
        predicted, factors, biases = self._predicted(own, item)
        return self._losses(own, batch, self.own(predicted - batch.y), factors, biases)

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`."""
        return self.losses_and_gradients(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`."""
        own, item, share = self.own(weights), self._items_of(batch), shares(batch, self.dtype)
        predicted, factors, biases = self._predicted(own, item)
        error = self.own(predicted - batch.y)
        pulls = 2 * share * error
        gradients = np.zeros((len(batch), self.m), self.dtype)
        user, held = self._user(own), self.l2 * share
        self._scatter(gradients, item, pulls[..., None] * user[..., None, :] + held[..., None] * factors)
        self._scatter(gradients, item, (pulls + held * biases)[..., None], self._biases)
        present = (self.l2 * (counts(batch) > 0)).astype(self.dtype)
        self._user(gradients)[...] = np.einsum("kn,knf->kf", pulls, factors) + present[:, None] * user
        gradients[:, -1] = pulls.sum(axis=1)
        return self._losses(own, batch, error, factors, biases), gradients

    def reduced(self, names: frozenset[str], others: Floats, batch: Examples) -> tuple[Model[Any], Batch] | None:
        """See :class:`fedping.client_sim.learning.submodel.Reduces`: given the items, a user is a linear regression."""
        if names != USER:
            return None
        item = self._items_of(batch)
        factors, biases = self._of_items(self.own(others), item)
        rest = LinearRegression(self.factors, l2=self.l2, precision=self.precision)
        return rest, Examples(factors, batch.y - self.mean - biases, batch.weight)

    def _items_of(self, batch: Examples) -> NDArray[np.intp]:
        """Return the items of the examples, shape (k, n); 0 for padding."""
        if batch.x.shape[2] != 1:
            raise FedpingError(
                f"an example of the model '{NAME}' has one feature, the number of the item, but these have "
                f"{batch.x.shape[2]}; give the column of the items alone"
            )
        given = np.where(batch.weight > 0, batch.x[..., 0], 0)
        item: NDArray[np.intp] = given.astype(np.intp)
        if (strange := (item != given) | (item < 0) | (item >= self.items)).any():
            odd = given[strange][0]
            raise FedpingError(
                f"an example is of item {odd:g}, and the model '{NAME}' has items 0 to {self.items - 1:,}; number "
                "them from 0, set 'items' to their number, and leave them unscaled"
            )
        return item

    def _predicted(self, weights: Floats, item: NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
        """Return predictions (k, n), and the factors (k, n, f) and biases (k, n) of the examples' items."""
        check_width(weights.shape[-1], self.m, NAME)
        factors, biases = self._of_items(weights, item)
        along: Floats = (factors @ self._user(weights)[..., None])[..., 0]
        return along + biases + weights[..., -1:] + self.dtype.type(self.mean), factors, biases

    def _of_items(self, weights: Floats, item: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return the factors (k, n, f) and biases (k, n) of items, from weights that begin with the items' blocks."""
        factors = weights[..., : self._biases].reshape(*weights.shape[:-1], self.items, self.factors)
        biases = weights[..., self._biases : self._biases + self.items]
        if weights.ndim == 1:
            return factors[item], biases[item]
        client = np.arange(len(item))[:, None]
        return factors[client, item], biases[client, item]

    def _user(self, weights: Floats) -> Floats:
        """Return a view of the user's factors, shape (f,) or (k, f)."""
        return weights[..., -1 - self.factors : -1]

    def _scatter(self, gradients: Floats, item: NDArray[np.intp], values: Floats, first: int = 0) -> None:
        """Add values of the examples' items, shape (k, n, c), to the items' c numbers each, beginning at ``first``."""
        k, _, c = values.shape
        at = np.arange(k)[:, None, None] * self.m + first + item[..., None] * c + np.arange(c)
        np.add.at(gradients.reshape(-1), at.ravel(), values.ravel())

    def _losses(self, weights: Floats, batch: Batch, error: Floats, factors: Floats, biases: Floats) -> FloatArray:
        share = shares(batch, self.dtype)
        found: FloatArray = np.einsum("kn,kn,kn->k", share, error, error).astype(np.float64, copy=False)
        if self.l2:
            held = np.einsum("kn,knf,knf->k", share, factors, factors) + np.einsum("kn,kn,kn->k", share, biases, biases)
            user = (self._user(weights) ** 2).sum(axis=-1)
            found += 0.5 * self.l2 * np.where(counts(batch) > 0, held + user, 0.0)
        return found

    @cached_property
    def _biases(self) -> int:
        """The position of the first item's bias."""
        return self.items * self.factors


def matrix_factorization(settings: Settings) -> MatrixFactorization:
    """Return the model of these settings: ``items``, ``factors``, ``mean`` (0), ``l2`` (0), ``scale`` (0.1).

    Also ``seed`` (0) and ``precision`` (``float64`` or ``float32``). ``mean`` is the prediction if all weights are 0.
    """
    return MatrixFactorization(
        items=settings.whole("items"),
        factors=settings.whole("factors"),
        mean=settings.number("mean", 0.0, least=-1e30),
        l2=settings.number("l2", 0.0),
        scale=settings.number("scale", 0.1, least=1e-30),
        seed=settings.whole("seed", 0, least=0),
        precision=precision_of(settings),
    )
