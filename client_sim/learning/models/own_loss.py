"""Your own loss in a few lines: a function of one client's examples, in NumPy or anything else.

    import autograd.numpy as np

    def absolute_error(weights, x, y):
        return np.mean(np.abs(x @ weights - y))

    model = own_loss(absolute_error, start=[0.0, 0.0])

A model spec names it as ``model = "own"`` with ``function = "my_module:absolute_error"``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from traceback import extract_tb
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning.batch import BEHIND_ODD_LOSSES, Examples, FloatArray, Floats, TroubleOfClient
from fedping.client_sim.learning.models.classes import log_odds_of
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.errors import FedpingError, InvalidSettings

NAME = "own"

SPREAD = 0.1
"""Scale of the random start weights, if no start is given."""

Loss: TypeAlias = Callable[[Any, Any, Any], Any]
"""Function from weights (m,), a client's features (n, d) and targets (n,), with n at least 1, to its loss."""

Prediction: TypeAlias = Callable[[Any, Any], Any]
"""Function from weights (m,) and features (n, d) to predictions, shape (n,) or (n, c)."""

Predicts: TypeAlias = Literal["values", "log_odds"]
"""Values returned by a prediction of classes: probabilities (``values``), or their log-odds, also called logits."""


@dataclass(frozen=True)
class OwnLoss:
    """A model given only by its loss. Clients are processed one after another.

    Attributes:
        loss: the loss, preferably a mean over the examples, so that the mean over clients is the mean over all
            examples (thesis eq. 2).
        start: the initial weights, shape (m,).
        prediction: see :data:`Prediction`; None for a model that is never asked to predict.
        predicts: the values that the prediction returns.
        epsilon: ε of central finite differences, which use only the values of the loss; None for the gradient by
            ``autograd``, which needs a loss written with ``autograd.numpy``.
    """

    loss: Loss
    start: FloatArray
    prediction: Prediction | None = None
    predicts: Predicts = "values"
    epsilon: float | None = None

    @property
    def black_box(self) -> bool:
        """Whether gradients are finite differences."""
        return self.epsilon is not None

    @cached_property
    def weight_names(self) -> Sequence[str]:
        """The weights are w0, w1, ...: see :attr:`fedping.client_sim.learning.model.Model.weight_names`."""
        return tuple(f"w{i}" for i in range(len(self.start)))

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`.

        Raises:
            FedpingError: the loss fails, is not a finite number, or the examples have weights, which it cannot use.
        """
        losses = np.zeros(len(batch))
        for client, own, x, y in _each(weights, batch):
            losses[client] = self._value(own, x, y, client)
        return losses

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`; raises as :meth:`losses`."""
        return self.losses_and_gradients(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`."""
        losses, gradients = np.zeros(len(batch)), np.zeros((len(batch), len(self.start)))
        both = self._by_differences if self.black_box else self._by_autograd
        for client, own, x, y in _each(weights, batch):
            losses[client], gradients[client] = both(own, x, y, client)
            if not np.isfinite(gradients[client]).all():
                raise TroubleOfClient(
                    f"the gradient of {_name(self.loss)} is not finite, though its loss is,",
                    client,
                    "check it for roots and logarithms of 0",
                )
        return losses, gradients

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """Return the user's predictions, shape (k, n) or (k, n, c); log-odds are turned into probabilities.

        Raises:
            FedpingError: there is no prediction, it fails, or it returns anything but one row of finite numbers per
                example.
        """
        return self.predictions_and_scores(weights, batch)[0]

    def predictions_and_scores(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, FloatArray | None]:
        """See :class:`fedping.client_sim.learning.model.GivesScores`; raises as :meth:`predict`."""
        if self.prediction is None:
            raise FedpingError(
                f"the model of {_name(self.loss)} cannot predict; name a function of (weights, x) as its setting "
                "'predict', or give it to own_loss"
            )
        each = np.broadcast_to(weights, (len(batch), len(self.start)))
        said = [_said_by(self.prediction, own, x) for own, x in zip(each, batch.x, strict=True)]
        for one in said:
            refuse_odd_predictions(self.prediction, np.shape(one), np.shape(batch.x)[1])
        each_said = np.array(said, dtype=np.float64)
        found = predictions_of(self.prediction, each_said, batch.weight > 0, self.predicts)
        return found, scores_of(each_said, self.predicts)

    def _by_differences(self, weights: FloatArray, x: Any, y: Any, client: int) -> tuple[float, FloatArray]:
        assert self.epsilon is not None
        gradient, moved = np.zeros(len(weights)), np.array(weights)
        for i, weight in enumerate(weights):
            moved[i] = weight + self.epsilon
            above = self._value(moved.copy(), x, y, client)
            moved[i] = weight - self.epsilon
            gradient[i] = (above - self._value(moved.copy(), x, y, client)) / (2 * self.epsilon)
            moved[i] = weight
        return self._value(moved, x, y, client), gradient

    def _by_autograd(self, weights: FloatArray, x: Any, y: Any, client: int) -> tuple[float, FloatArray]:
        try:
            value, gradient = self._value_and_gradient(np.array(weights), x, y)
        except Exception as error:
            self._value(weights, x, y, client)  # raises a clearer error if the loss also fails without autograd
            raise InvalidSettings(
                f"autograd cannot differentiate {_name(self.loss)} ({error}); write it with autograd.numpy in place of "
                'numpy and without assignments into arrays, or set gradient = "finite_differences"'
            ) from error
        return self._number(value, client), gradient

    @cached_property
    def _value_and_gradient(self) -> Callable[..., tuple[Any, FloatArray]]:
        try:
            value_and_grad = import_module("autograd").value_and_grad
        except ImportError as error:
            raise InvalidSettings(
                'the gradient of an own loss needs autograd; pip install "fedping[laboratory]", or set gradient = '
                '"finite_differences"'
            ) from error
        both: Callable[..., tuple[Any, FloatArray]] = value_and_grad(self.loss)
        return both

    def _value(self, weights: FloatArray, x: Any, y: Any, client: int) -> float:
        return self._number(_said_by(self.loss, weights, x, y), client)

    def _number(self, value: Any, client: int) -> float:
        if np.ndim(value) != 0:
            raise FedpingError(
                f"{_name(self.loss)} returned an array of shape {np.shape(value)}; a loss is one number for all the "
                "examples of a client, such as their mean"
            )
        if not np.isfinite(float(value)):
            raise TroubleOfClient(
                f"{_name(self.loss)} returned {float(value)}",
                client,
                BEHIND_ODD_LOSSES,
            )
        return float(value)


def own_loss(
    loss: Loss,
    start: ArrayLike,
    *,
    predict: Prediction | None = None,
    predicts: Predicts = "values",
    epsilon: float | None = None,
) -> OwnLoss:
    """Return the model of a loss: its gradient by ``autograd``, or by finite differences if ``epsilon`` is given."""
    weights = np.array(start, dtype=np.float64)
    if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all():
        raise InvalidSettings(f"the start weights of {_name(loss)} must be one row of finite numbers")
    return OwnLoss(loss, weights, predict, predicts, epsilon)


def refuse_odd_predictions(prediction: Prediction, shape: tuple[int, ...], examples: int) -> None:
    """Raise :class:`FedpingError` unless there is one prediction, a number or a row of numbers, per example."""
    if len(shape) not in (1, 2) or shape[0] != examples:
        raise FedpingError(
            f"{_function(prediction)} returned an array of shape {shape} for {examples} examples; return a number for "
            f"each of them, shape ({examples},), or one for each class, shape ({examples}, c)"
        )


def predictions_of(
    prediction: Prediction, said: FloatArray, there: NDArray[np.bool_], predicts: Predicts
) -> FloatArray:
    """Return predictions, shape (k, n) or (k, n, c), from a function's results, with log-odds as probabilities.

    Raises:
        FedpingError: the result for an example that exists (``there``, shape (k, n)) is not finite.
    """
    some = said[there]
    if not np.isfinite(some).all():
        raise FedpingError(
            f"{_function(prediction)} returned {some[~np.isfinite(some)][0]}; check it for logarithms of 0 and "
            "overflows, or take smaller steps"
        )
    if predicts == "values":
        return said
    if said.ndim == 2:
        probabilities: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * said))
        return probabilities
    powers = np.exp(said - said.max(axis=2, keepdims=True))
    rows: FloatArray = powers / powers.sum(axis=2, keepdims=True)
    return rows


def scores_of(said: FloatArray, predicts: Predicts) -> FloatArray | None:
    """Return the log-odds of class 1 from a function's results, shape (k, n); None if the results aren't log-odds."""
    if predicts == "values":
        return None
    return said if said.ndim == 2 else log_odds_of(said)


def _function(function: Callable[..., Any]) -> str:
    return f"your function '{getattr(function, '__name__', type(function).__name__)}'"


def _each(weights: FloatArray, batch: Examples) -> Any:
    """Yield every client that has examples: its position, weights, and x and y without padding."""
    if not np.isin(batch.weight, (0.0, 1.0)).all():
        raise InvalidSettings(
            "an own loss knows nothing of weights of examples, such as class weights; leave them off, or weigh the "
            "examples in the loss"
        )
    each = np.broadcast_to(weights, (len(batch), weights.shape[-1]))
    for client, there in enumerate(batch.weight > 0):
        if there.any():
            yield client, each[client], batch.x[client][there], batch.y[client][there]


def _said_by(function: Callable[..., Any], *given: Any) -> Any:
    """Return the result of a user's function; an error names the place in the code and the input."""
    try:
        return function(*given)
    except (Exception, SystemExit) as error:
        frame = extract_tb(error.__traceback__)[-1]
        shapes = " and ".join(str(np.shape(each)) for each in given)
        raise FedpingError(
            f"{_function(function)} failed, given weights and "
            f"examples of shapes {shapes}, in line {frame.lineno} of {frame.filename} "
            f"({type(error).__name__}: {error}); fix it, or the number of weights"
        ) from error


def _name(loss: Loss) -> str:
    return f"the loss '{getattr(loss, '__name__', type(loss).__name__)}'"


def own(settings: Settings) -> OwnLoss:
    """Return the model of these settings.

    ``function`` names the loss as "module:function". ``weights`` is the number of weights, which start near 0, drawn by
    ``seed``, or at 0 without a seed; alternatively ``start`` names an array or a function that returns an array.
    ``predict`` names the prediction function, and ``predicts`` states whether it returns ``values`` (probabilities for
    classes) or ``log_odds``. ``gradient`` is ``autograd`` or ``finite_differences``, with the spec's ε.
    """
    differences = settings.choice("gradient", ("autograd", "finite_differences")) == "finite_differences"
    return own_loss(
        loss_of(settings),
        start_of(settings),
        predict=prediction_of(settings),
        predicts=predicts_of(settings),
        epsilon=settings.epsilon if differences else None,
    )


def loss_of(settings: Settings) -> Loss:
    """Return the loss that ``function`` names."""
    loss: Loss = named(settings, "function", "my_module:my_loss")
    if not callable(loss):
        raise InvalidSettings(
            f"the setting 'function' of the model '{settings.model}' does not name a function. Name your loss"
        )
    return loss


def start_of(settings: Settings) -> FloatArray:
    """Return the weights that ``start`` names, or ``weights`` numbers: small ones by ``seed``, zeros without a seed.

    Raises:
        InvalidSettings: both are given and disagree.
    """
    seed = settings.whole("seed", 0, least=0)
    if not settings.has("start"):
        count = settings.whole("weights")
        if not settings.has("seed"):
            return np.zeros(count)
        return generator(seed, "start").uniform(-SPREAD, SPREAD, count)
    values = named(settings, "start", "my_module:my_start")
    start = np.asarray(values() if callable(values) else values, dtype=np.float64)
    if settings.has("weights") and settings.whole("weights") != start.size:
        raise InvalidSettings(
            f"the model '{settings.model}' has weights = {settings.whole('weights'):,}, but its start has "
            f"{start.size:,}; remove 'weights', or make them agree"
        )
    return start


def prediction_of(settings: Settings) -> Prediction | None:
    """Return the function that ``predict`` names, if any."""
    return named(settings, "predict", "my_module:my_prediction") if settings.has("predict") else None


def predicts_of(settings: Settings) -> Predicts:
    """Return the setting ``predicts``."""
    return "log_odds" if settings.choice("predicts", ("values", "log_odds")) == "log_odds" else "values"


def named(settings: Settings, setting: str, example: str) -> Any:
    """Import the object that a setting names as "module:object".

    Raises:
        InvalidSettings: the name has another form, the module cannot be imported, or it has no such object.
    """
    text = settings.text(setting, example=example)
    module_name, _, name = text.partition(":")
    whose = f"the setting '{setting}' of the model '{settings.model}'"
    if not module_name or not name:
        raise InvalidSettings(f"{whose} is '{text}'; name a module and its function, as '{example}'")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise InvalidSettings(f"{whose}: '{module_name}' cannot be imported ({error}); fix it first") from error
        raise InvalidSettings(
            f"{whose}: the module '{module_name}' was not found. Put it next to the experiment's file, or its folder "
            "on PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        raise InvalidSettings(
            f"{whose}: '{module_name}' cannot be imported ({type(error).__name__}: {error}); fix it first"
        ) from error
    if not hasattr(module, name):
        raise InvalidSettings(f"{whose}: the module '{module_name}' has no '{name}'; check the spelling")
    return getattr(module, name)
