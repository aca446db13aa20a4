"""Your own loss in JAX, compiled and computed for all clients at once; for large networks.

JAX is an extra: ``pip install "fedping[jax]"``. It works in single precision unless ``jax_enable_x64`` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedping.client_sim.learning.batch import Examples, FloatArray, Floats, finite, padded, shares
from fedping.client_sim.learning.models.own_loss import (
    Loss,
    Prediction,
    Predicts,
    loss_of,
    own_loss,
    prediction_of,
    predictions_of,
    predicts_of,
    refuse_odd_predictions,
    scores_of,
    start_of,
)
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.errors import FedpingError, InvalidSettings

NAME = "jax"

_AT_ONCE = 2**20
"""Maximum number of the examples' values in a prediction; a network computes many more values from them."""


@dataclass(frozen=True)
class JaxLoss:
    """A model given by a loss in jax.numpy, like :class:`client_sim.learning.models.own_loss.OwnLoss` in NumPy.

    The loss must be a mean over the examples, because it is computed for each example alone, with x of shape (1, d) and
    y of shape (1,). The means are taken here, so that clients with different numbers of examples are batched together
    and examples can have weights. Rectangles are padded to powers of two, because JAX compiles again for every shape.
    """

    loss: Loss
    start: FloatArray
    prediction: Prediction | None = None
    predicts: Predicts = "values"

    @cached_property
    def weight_names(self) -> Sequence[str]:
        """The weights are w0, w1, ...: see :attr:`fedping.client_sim.learning.model.Model.weight_names`."""
        return tuple(f"w{i}" for i in range(len(self.start)))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`fedping.client_sim.learning.model.HasPrecision`."""
        found: np.dtype[Any] = np.dtype(_jax().numpy.zeros(0).dtype)
        return found

    @property
    def floats_per_example(self) -> int:
        """See :class:`fedping.client_sim.learning.model.HasPrecision`; a guess, since the loss is a user's function."""
        return 1000

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`.

        Raises:
            FedpingError: a loss is not a finite number.
        """
        return finite(np.array(self._run(weights, batch, slopes=False)[: len(batch)], np.float64), "the loss")

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`; raises as :meth:`losses`."""
        return self.losses_and_gradients(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`."""
        losses, gradients = self._run(weights, batch, slopes=True)
        return finite(np.array(losses[: len(batch)], np.float64), "the loss"), np.array(gradients[: len(batch)])

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """Return the user's predictions, shape (k, n) or (k, n, c); log-odds are turned into probabilities.

        Raises:
            FedpingError: there is no prediction, or it returns anything but one row of finite numbers per example.
        """
        return self.predictions_and_scores(weights, batch)[0]

    def predictions_and_scores(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, FloatArray | None]:
        """See :class:`fedping.client_sim.learning.model.GivesScores`; raises as :meth:`predict`."""
        if self.prediction is None:
            raise FedpingError("this model cannot predict; name a function of (weights, x) as its setting 'predict'")
        own, x = np.ndim(weights) > 1, np.asarray(batch.x)
        function, (k, n) = self._predicting[own], x.shape[:2]
        refuse_odd_predictions(self.prediction, _jax().eval_shape(function, np.asarray(weights), x).shape[1:], n)
        each = padded(np.asarray(weights), _power_of_two(k)) if own else np.asarray(weights)
        some = max(1, min(_power_of_two(n), _AT_ONCE // _power_of_two(k * x.shape[2])))
        parts = (padded(x[:, low : low + some], _power_of_two(k), some) for low in range(0, n, some))
        said = np.concatenate([np.asarray(function(each, part), np.float64)[:k] for part in parts], axis=1)[:, :n]
        return predictions_of(self.prediction, said, batch.weight > 0, self.predicts), scores_of(said, self.predicts)

    @cached_property
    def _predicting(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return two compiled functions from weights and x to predictions: for shared weights, and for clients' own."""
        jax = _jax()
        return tuple(jax.jit(jax.vmap(self.prediction, in_axes=(at, 0))) for at in (None, 0))

    @cached_property
    def _compiled(self) -> Mapping[tuple[bool, bool], Callable[..., Any]]:
        """Return compiled functions from weights to the clients' losses, or to losses and gradients.

        A key states whether gradients are computed, and whether each client has its own weights, (k, m) in place of
        (m,).
        """
        jax = _jax()

        def of_client(weights: Any, x: Any, y: Any, share: Any) -> Any:
            each = jax.vmap(lambda one, target: self.loss(weights, one[None], target[None]))(x, y)
            if each.ndim != 1:
                raise FedpingError(f"the loss returned an array of shape {each.shape[1:]}; a loss is one number")
            # Padding must not make the sum NaN.
            return jax.numpy.sum(jax.numpy.where(share > 0, share * each, 0.0))

        functions = {False: of_client, True: jax.value_and_grad(of_client)}
        return {
            (slopes, own): jax.jit(jax.vmap(function, in_axes=(0 if own else None, 0, 0, 0)))
            for slopes, function in functions.items()
            for own in (False, True)
        }

    def _run(self, weights: FloatArray, batch: Examples, *, slopes: bool) -> Any:
        k, n = (_power_of_two(size) for size in batch.weight.shape)
        own = np.ndim(weights) > 1
        each = padded(np.broadcast_to(weights, (len(batch), len(self.start))), k) if own else np.asarray(weights)
        rows = (padded(batch.x, k, n), padded(batch.y, k, n), padded(shares(batch), k, n))
        return self._compiled[slopes, own](each, *rows)


def jax_loss(
    loss: Loss, start: ArrayLike, *, predict: Prediction | None = None, predicts: Predicts = "values"
) -> JaxLoss:
    """Return the model of a loss written with jax.numpy.

    Raises:
        InvalidSettings: JAX is not installed.
    """
    _jax()
    return JaxLoss(loss, own_loss(loss, start).start, predict, predicts)


def _jax() -> Any:
    try:
        return import_module("jax")
    except ImportError as error:
        raise InvalidSettings("the model 'jax' needs JAX, which is an extra; pip install \"fedping[jax]\"") from error


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def jax_model(settings: Settings) -> JaxLoss:
    """Return the model of these settings: those of :mod:`.own_loss` except ``gradient``."""
    return jax_loss(
        loss_of(settings), start_of(settings), predict=prediction_of(settings), predicts=predicts_of(settings)
    )
