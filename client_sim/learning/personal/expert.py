"""A mixture of the shared model and the client's own model, by the client's own gate (FL+DE, Peterson et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedping.client_sim.learning.algorithm import Algorithm, State
from fedping.client_sim.learning.batch import Examples, FloatArray, Floats, counts, shares
from fedping.client_sim.learning.mini_batches import some
from fedping.client_sim.learning.model import Model, has_bounds, precision
from fedping.client_sim.learning.models.mixture import (
    Mixed,
    Mixture,
    Parts,
    mixture_of,
    pulls_on,
    pulls_on_shared,
    shrunk,
    wide,
)
from fedping.client_sim.learning.personal.method import OWN_DRAWS, joined, own
from fedping.protocol.draws import Keys, child_keys, normals
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.personalization import Expert
from fedping.protocol.training import LocalSteps, OneGradient

_NOISE = OWN_DRAWS + 2
"""Index of a client's child key that draws its noise."""

_MOST_NUMBERS = 2**20
"""Maximum number of values in the gradients of single examples at a time; 8 MB."""


@dataclass(frozen=True)
class WithExpert:
    """See :class:`fedping.protocol.personalization.Expert`.

    A client keeps P, its gate, and the number of their trainings. All gradients are computed first, on the same
    examples from the same mixture; then all parts move, and the movement of w is sent. The sum of gradients is divided
    by the number of examples after clipping and noise; the shared model's own penalty, which doesn't depend on
    examples, is neither clipped nor noised.

    Attributes:
        settings: the method's settings.
        training: the training of the shared weights: a step along one gradient.
    """

    settings: Expert
    training: OneGradient

    def init_state(self, model: Model[Any]) -> State:
        """See :meth:`Algorithm.init_state`."""
        gate = np.zeros(mixture_of(model).model.features + 1)
        gate[-1] = self.settings.gate_start
        private = np.zeros(len(model.weight_names), precision(model))
        return joined({}, {"weights": private, "gate": gate, "trained": np.zeros((), np.int64)})

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Examples, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`Algorithm.update`."""
        mixture, settings, size = mixture_of(model), self.settings, self.training.batch
        if size is not None and size < batch.weight.shape[1]:
            batch = batch.only(some(keys, batch.weight, size))
        mine, there = own(state), counts(batch)[:, None] > 0
        now = self._parts(mixture, weights, mine)
        mixed = mixture.mixed(now, batch)
        pulls = pulls_on(mixture.model, mixed.prediction, batch)
        found = mixture.pulled(now, batch, mixed, pulls * wide(shares(batch), pulls))
        shared = found.shared
        if settings.clip is not None:
            shared = self._clipped(mixture, weights, batch, keys, mixed, pulls)
        elif not settings.joint:
            shared = self._of_own_loss(mixture, weights, batch, mixed)
        shared = shared + mixture.model.penalty(weights, batch)[1]
        private = found.private + mixture.model.penalty(now.private, batch, settings.l2)[1]
        gate = found.gate + shrunk(now.gate, batch, settings.l2)
        moved: Floats = now.private - settings.private_rate * private
        if has_bounds(model):
            moved = model.within(moved, np.ones(moved.shape[1], np.bool_))
        after = {
            "weights": np.where(there, moved, mine["weights"]).astype(precision(model), copy=False),
            "gate": np.where(there, now.gate - settings.gate_rate * gate, mine["gate"]),
            "trained": mine["trained"] + there[:, 0],
        }
        return np.negative(shared), joined({}, after)

    def personal_model(self, model: Model[Any]) -> Model[Any]:
        """See :meth:`Personalizes.personal_model`."""
        return mixture_of(model)

    def personal_weights(self, model: Model[Any], weights: FloatArray, batch: Any, state: State) -> Floats:
        """See :meth:`Personalizes.personal_weights`: w, P and the gate, with P = w before the first training."""
        mine = own(state)
        parts = self._parts(mixture_of(model), weights, mine)
        shared = np.broadcast_to(parts.shared, parts.private.shape)
        return np.concatenate([shared, parts.private, parts.gate], axis=1)

    def _parts(self, mixture: Mixture, weights: FloatArray, mine: State) -> Parts:
        private = np.where(mine["trained"][:, None] > 0, mine["weights"], weights)
        return Parts(weights, private, mine["gate"])

    def _of_own_loss(self, mixture: Mixture, weights: FloatArray, batch: Examples, mixed: Mixed) -> Floats:
        """Return the gradients of the shared model's loss alone."""
        pulls = pulls_on(mixture.model, mixed.of_shared, batch)
        found: Floats = mixture.model.pulled(weights, batch, pulls * wide(shares(batch), pulls))
        return found

    def _clipped(
        self, mixture: Mixture, weights: FloatArray, batch: Examples, keys: Keys, mixed: Mixed, pulls: FloatArray
    ) -> Floats:
        """Return the clients' noisy mean gradients by w; each example's gradient is clipped first.

        With a joint loss, an example's gradient is multiplied by a(x) before it is clipped.
        """
        clip = self.settings.clip
        assert clip is not None
        if self.settings.joint:
            on_shared = pulls_on_shared(mixed, pulls)
        else:
            on_shared = pulls_on(mixture.model, mixed.of_shared, batch)
        on_shared = on_shared * wide(batch.weight, on_shared)
        m = weights.shape[-1]
        total = np.zeros((len(batch), m))
        width = batch.weight.shape[1]
        step = max(1, _MOST_NUMBERS // (max(1, len(batch)) * m))
        for low in range(0, width, step):
            each = _gradients_of_examples(mixture, weights, batch, on_shared, slice(low, low + step))
            length = np.sqrt(np.einsum("knm,knm->kn", each, each))
            total += np.einsum("knm,kn->km", each, np.minimum(1.0, clip / np.maximum(length, 1e-300)))
        if self.settings.noise:
            total += self.settings.noise * clip * normals(child_keys(keys, _NOISE), m)
        number = counts(batch)[:, None]
        found: Floats = np.where(number > 0, total / np.maximum(number, 1.0), 0.0).astype(precision(mixture.model))
        return found


def with_expert(settings: Expert, training: OneGradient | LocalSteps, shared: Algorithm) -> WithExpert:
    """Return the method.

    Raises:
        InvalidSettings: the shared weights take local steps, but a mixture needs their gradient.
    """
    if not isinstance(training, OneGradient):
        raise InvalidSettings(
            "an expert moves in the same step as the shared weights, along the gradients of one mixture, so they "
            'cannot take local steps; set algorithm = "gradient", with a batch if wanted'
        )
    return WithExpert(settings, training)


def _gradients_of_examples(
    mixture: Mixture, weights: FloatArray, batch: Examples, pulls: FloatArray, which: slice
) -> FloatArray:
    """Return each selected example's gradient by w, shape (k, n, m), as if each example were a client."""
    weight = batch.weight[:, which]
    x, y, pull = batch.x[:, which], batch.y[:, which], pulls[:, which]
    k, n = weight.shape
    single = Examples(x.reshape(k * n, 1, -1), y.reshape(k * n, 1), weight.reshape(k * n, 1))
    each = weights if weights.ndim == 1 else np.repeat(weights, n, axis=0)
    found: FloatArray = mixture.model.pulled(each, single, pull.reshape(k * n, 1, *pull.shape[2:]))
    return found.reshape(k, n, -1).astype(np.float64, copy=False)
