"""FPDGD: federated online learning to rank, from choices in lists.

It is an extension like those in :mod:`fedping.algorithms`: an entry point in pyproject.toml names it.
docs/rehearsing.md shows it on a log of real users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import fedping
from fedping.algorithms import LocalTraining

if TYPE_CHECKING:
    from fedping.client_sim.learning.batch import Batch, FloatArray, Floats
    from fedping.client_sim.learning.model import Model
    from fedping.protocol.draws import Keys


@fedping.client_algorithm("fpdgd")
@dataclass(frozen=True, kw_only=True)
class FPDGD(LocalTraining):
    """FPDGD (Wang, Liu, Zhuang and Zuccon 2021): online learning to rank by pairs, weighed against the bias of places.

    For each list, a client draws a ranking R from its scores s, as Plackett and Luce's model does, and takes the choice
    k as a preference over each item l that stands above it in R, and over the one that follows. A pair pulls the two
    scores apart by

        rho e^(s_k) e^(s_l) / (e^(s_k) + e^(s_l))^2,    rho = P(R*) / (P(R) + P(R*)),

    where R* is R with k and l exchanged (Oosterhuis and de Rijke 2018). Only items that were seen and are not pinned
    are in R. A client sends how its weights have moved. A list without a choice teaches nothing.
    """

    def init_state(self, model: Model[Any]) -> Mapping[str, NDArray[Any]]:
        """Return an empty state; raise an error for a model that can't be trained in this way."""
        if not hasattr(model, "descents"):
            raise ValueError("it learns from lists of items; give it the model 'features', or take another algorithm")
        spec: Any = getattr(model, "spec", None)
        if spec.places > 1:
            raise ValueError("it weighs pairs against the bias of places itself; leave 'places' out of the model")
        return {}

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: Mapping[str, NDArray[Any]]
    ) -> tuple[Floats, Mapping[str, NDArray[Any]]]:
        """Return the movements of the weights, shape (k, m)."""
        ranking: Any = model
        moved = np.zeros((len(batch), len(model.weight_names)))
        own = fedping.child_keys(keys, _RANKINGS)
        for step, (part, there) in enumerate(self.parts(batch, keys)):
            local = weights + moved
            pulls = _pulls(ranking.predict(local, part), part, fedping.child_keys(own, step))
            moved += np.where(there, self.rate, 0.0)[:, None] * ranking.descents(local, part, pulls)
        return moved, state


_RANKINGS = 2**32
"""Child of a client's key for drawing rankings; mini-batches use children with small numbers."""


def _pulls(scores: FloatArray, lists: Any, keys: Keys) -> FloatArray:
    """Return the intended increase of each score; scores and increases have the shape (k, n, c)."""
    k, n, c = scores.shape
    chosen = np.maximum(lists.y, 0)[..., None]
    there = np.arange(c) < np.minimum(np.maximum(lists.seen, lists.y + 1), lists.shown)[..., None]
    scores = np.where(there & ~lists.pinned, scores, -np.inf)
    drawn = np.maximum(fedping.uniforms(keys, n * c).reshape(k, n, c), 2.0**-54)
    order = np.argsort(np.log(-np.log(drawn)) - scores, axis=-1, kind="stable")  # the largest of s + Gumbel noise first
    ranked = np.take_along_axis(scores, order, -1)
    place = np.argmax(order == chosen, axis=-1)
    teaches = (lists.weight > 0) & (lists.y >= 0) & np.isfinite(np.take_along_axis(scores, chosen, -1)[..., 0])
    best = np.take_along_axis(ranked, place[..., None], -1)[..., 0]
    pulled = np.zeros_like(scores)
    for other in range(c):
        pair = teaches & (other <= place + 1) & (other != place) & np.isfinite(ranked[..., other])
        power = np.exp(-np.abs(np.where(pair, best, 0.0) - np.where(pair, ranked[..., other], 0.0)))
        pull = np.where(pair, _share_of_exchanged(ranked, place, other) * power / (1 + power) ** 2, 0.0)
        pulled[..., other] -= pull
        pulled += np.where(np.arange(c) == place[..., None], pull[..., None], 0.0)
    pulls = np.zeros_like(scores)
    np.put_along_axis(pulls, order, pulled, -1)
    return pulls


def _share_of_exchanged(ranked: FloatArray, place: NDArray[np.intp], other: int) -> FloatArray:
    """Return P(R*) / (P(R) + P(R*)), where R* has the items at two places of R exchanged, shape (k, n).

    A ranking's probability is the product, over its places, of the item's e^s divided by the sum of e^s over the
    remaining items. The remaining items in R and R* differ only after the upper of the two places, up to the lower one.

    Args:
        ranked: the scores in the order of R, shape (k, n, c), padded with minus infinity.
        place: one of the places, shape (k, n).
        other: the other place.
    """
    upper, lower = np.minimum(place, other)[..., None], np.maximum(place, other)[..., None]
    largest = ranked.max(axis=-1, keepdims=True)
    powers = np.exp(ranked - np.where(np.isfinite(largest), largest, 0.0))
    left = np.cumsum(powers[..., ::-1], axis=-1)[..., ::-1]
    first, second = (np.take_along_axis(powers, at, -1) for at in (upper, lower))
    places = np.arange(ranked.shape[-1])
    differs = (places > upper) & (places <= lower)
    exchanged = np.maximum(left - second, 0.0) + first
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        more = np.where(differs, np.log(left) - np.log(exchanged), 0.0).sum(axis=-1)
        found: FloatArray = 1.0 / (1.0 + np.exp(-np.nan_to_num(more)))
    return found
