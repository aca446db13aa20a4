"""A layer, x · W + b, computed for all clients at once, and the L2 penalty of models made of layers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from fedping.client_sim.learning.batch import Batch, FloatArray, Floats, counts
from fedping.client_sim.learning.models.arrays import InPrecision
from fedping.protocol.errors import FedpingError


@dataclass(frozen=True)
class Layer:
    """A layer whose W (inputs × outputs, row by row) and then b (outputs) start at ``first`` in a model's weights.

    Weights are shared by all clients, shape (m,), or each client's own, shape (k, m). With shared weights, one matrix
    product covers all clients' examples. In single precision a layer with one output uses the fastest product; in
    double precision it keeps the original product, because any other would change the last bits of results.
    """

    inputs: int
    outputs: int
    first: int = 0
    intercept: bool = True

    @property
    def end(self) -> int:
        """The first weight after this layer."""
        return self.first + self.outputs * (self.inputs + self.intercept)

    def matrix(self, weights: Floats) -> Floats:
        """Return a view of W, shape (inputs, outputs) or (k, inputs, outputs)."""
        part = weights[..., self.first : self.first + self.inputs * self.outputs]
        return part.reshape(*weights.shape[:-1], self.inputs, self.outputs)

    def offsets(self, weights: Floats) -> Floats:
        """Return a view of b, shape (outputs,) or (k, outputs)."""
        return weights[..., self.first + self.inputs * self.outputs : self.end]

    def forward(self, weights: Floats, x: Floats) -> Floats:
        """Return x · W + b, shape (k, n, outputs), for x of shape (k, n, inputs).

        Raises:
            FedpingError: the examples have a different number of features.
        """
        k, n, inputs = x.shape
        if inputs != self.inputs:
            raise FedpingError(
                f"the model has {self.inputs} features, but the examples have {inputs}; set features = {inputs}"
            )
        if weights.ndim == 1:
            out: Floats = (x.reshape(k * n, inputs) @ self.matrix(weights)).reshape(k, n, self.outputs)
        elif self.outputs == 1 and weights.dtype == np.float32:
            out = np.matvec(x, self.matrix(weights)[..., 0])[..., None]
        else:
            out = x @ self.matrix(weights)
        if self.intercept:
            out += self.offsets(weights)[..., None, :]
        return out

    def backward(self, x: Floats, pulls: Floats, gradients: Floats) -> None:
        """Write the gradients of this layer's weights into their place in ``gradients``.

        Args:
            x: the layer's input, shape (k, n, inputs).
            pulls: the gradient of each client's loss with respect to the layer's output, shape (k, n, outputs).
            gradients: the gradients of all the model's weights, shape (k, m).
        """
        if self.outputs == 1 and gradients.dtype == np.float32:
            np.vecmat(pulls[..., 0], x, out=self.matrix(gradients)[..., 0])
        else:
            np.matmul(x.swapaxes(1, 2), pulls, out=self.matrix(gradients))
        if self.intercept:
            np.sum(pulls, axis=1, out=self.offsets(gradients))

    def pulls_on_inputs(self, weights: Floats, pulls: Floats) -> Floats:
        """Return the gradient of each client's loss with respect to the layer's input, shape (k, n, inputs)."""
        if weights.ndim == 1:
            k, n, outputs = pulls.shape
            flat: Floats = pulls.reshape(k * n, outputs) @ self.matrix(weights).T
            return flat.reshape(k, n, self.inputs)
        return pulls @ self.matrix(weights).swapaxes(1, 2)

    def squares(self, weights: Floats) -> Floats:
        """Return the sum of the squares of W, without b, shape () or (k,), for penalties."""
        matrix = self.matrix(weights)
        total: Floats = np.einsum("...io,...io->...", matrix, matrix)
        return total


class Penalised(InPrecision):
    """A model of layers with an L2 penalty; implements the penalty of :class:`client_sim.learning.model.Mixes`."""

    l2: float

    @property
    @abstractmethod
    def penalised_layers(self) -> tuple[Layer, ...]:
        """The layers whose matrices are penalised."""

    def penalty(self, weights: FloatArray, batch: Batch, l2: float | None = None) -> tuple[FloatArray, Floats]:
        """See :meth:`client_sim.learning.model.Mixes.penalty`."""
        strength, own = self.l2 if l2 is None else l2, self.own(weights)
        losses, gradients = np.zeros(len(batch)), np.zeros((len(batch), weights.shape[-1]), self.dtype)
        add_to_losses(losses, strength, own, batch, *self.penalised_layers)
        add_to_gradients(gradients, strength, own, batch, *self.penalised_layers)
        return losses, gradients


def add_to_losses(losses: FloatArray, l2: float, weights: Floats, batch: Batch, *layers: Layer) -> None:
    """Add the penalty to the losses, shape (k,), in place."""
    if l2:
        squares = sum(layer.squares(weights) for layer in layers)
        losses += np.where(counts(batch) > 0, 0.5 * l2 * squares, 0.0)


def add_to_gradients(gradients: Floats, l2: float, weights: Floats, batch: Batch, *layers: Layer) -> None:
    """Add the penalty's gradient to the gradients, shape (k, m), in place."""
    if l2:
        present = (l2 * (counts(batch) > 0)).astype(gradients.dtype)[:, None, None]
        for layer in layers:
            layer.matrix(gradients)[...] += present * layer.matrix(weights)
