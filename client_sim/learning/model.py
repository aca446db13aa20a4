"""What a model is to everything else that learns."""

from __future__ import annotations

from typing import Protocol, TypeVar

from client_sim.learning.batch import Batch, FloatArray

B_contra = TypeVar("B_contra", bound=Batch, contravariant=True)


class Model(Protocol[B_contra]):
    """A model that many clients can train at once.

    ``weights`` are either those of all clients, shape (m,), or each client's own, shape (k, m). The loss of a client is
    the mean over its examples, weighted by :attr:`Batch.weight`, plus the model's own penalty; a client without
    examples has loss 0 and gradient 0. So the loss of the whole fleet is the mean of the clients' losses, weighted by
    their numbers of examples (thesis eq. 2).
    """

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The weights' names in the order of the wire, m of them."""
        ...

    @property
    def start(self) -> FloatArray:
        """The weights to begin with, shape (m,)."""
        ...

    def losses(self, weights: FloatArray, batch: B_contra) -> FloatArray:
        """Return each client's loss, shape (k,)."""
        ...

    def gradients(self, weights: FloatArray, batch: B_contra) -> FloatArray:
        """Return the gradient of each client's loss at its weights, shape (k, m): a direction of **ascent**."""
        ...

    def predict(self, weights: FloatArray, batch: B_contra) -> FloatArray:
        """Return the prediction of each example: a number (k, n), or one for each of c classes (k, n, c)."""
        ...
