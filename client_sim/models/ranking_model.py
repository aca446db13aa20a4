"""The interface of a ranking model to the rest of a client, and a ranking model from a user's package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models.arrays import FloatArray, Rows
from fedping.client_sim.models.pages import NO_CANDIDATE, PageTable, Searches
from fedping.client_sim.models.ranking_loss import analytic_updates, black_box_updates, perturbed
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import Extension, ExtensionFailed, recorded


class RankingModel(Protocol):
    """A model that scores every page and computes updates of its weights.

    All methods use the same ``weights``, shape (m,), in the order of :attr:`weight_names`, for all pages: clients with
    different versions must be grouped by version. Memory is bounded for any number of searches. A wrong number of
    weights raises :class:`fedping.protocol.errors.InvalidSettings`.
    """

    @property
    def name(self) -> str:
        """The name of the model in a model spec."""
        ...

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The weights' names, in wire order."""
        ...

    @property
    def m(self) -> int:
        """The number of weights."""
        ...

    def scores(self, weights: FloatArray, pages: PageTable) -> FloatArray:
        """Return the score of every page, in points, shape (P,)."""
        ...

    def finite_differences(
        self, weights: FloatArray, pages: PageTable, searches: Searches, margin: float, epsilon: float = 1.0
    ) -> FloatArray:
        """Return each search's update by central finite differences of its loss, shape (S, m): descent directions."""
        ...

    def analytic_updates(self, weights: FloatArray, pages: PageTable, searches: Searches, margin: float) -> FloatArray:
        """Return each search's update by the negative gradient of its loss, shape (S, m): descent directions."""
        ...


class WeighsEachSearch(RankingModel, Protocol):
    """A ranking model whose updates also accept weights of shape (S, m): each search's own, from its client."""

    def scores_by_search(self, weights: FloatArray, pages: PageTable, searches: Searches) -> FloatArray:
        """Return the score of every candidate under the weights of its search, shape (S, C).

        It is minus infinity in the padding, and otherwise equals the result of :meth:`RankingModel.scores`, to the bit.
        """
        ...


def weighs_each_search(model: RankingModel) -> TypeGuard[WeighsEachSearch]:
    """Return whether a model implements :class:`WeighsEachSearch`."""
    return hasattr(model, "scores_by_search")


def scores_by_client(
    model: RankingModel, weights: FloatArray, client: NDArray[np.intp], pages: PageTable, searches: Searches
) -> FloatArray:
    """Return the score of every candidate under its client's own weights, shape (S, C); minus infinity in the padding.

    Args:
        model: the ranking model; without :class:`WeighsEachSearch`, it scores one client after another.
        weights: each client's weights, shape (k, m).
        client: the client of each search, shape (S,), ascending positions from 0.
        pages: the pages.
        searches: S searches over them.
    """
    if weighs_each_search(model):
        return model.scores_by_search(weights[client], pages, searches)
    scores = np.full(searches.candidates.shape, -np.inf)
    ends = np.searchsorted(client, np.arange(len(weights) + 1))
    for own, low, high in zip(weights, ends[:-1], ends[1:], strict=True):
        candidates = searches.candidates[low:high]
        rows, places = np.unique(candidates[candidates != NO_CANDIDATE], return_inverse=True)
        scores[low:high][candidates != NO_CANDIDATE] = model.scores(own, pages.rows(rows))[places]
    return scores


def check_weights(model: RankingModel, weights: FloatArray, searches: int | None = None) -> None:
    """Raise unless the weights have shape (m,), or shape (searches, m) if each search may have its own weights."""
    if weights.shape != (model.m,) and (searches is None or weights.shape != (searches, model.m)):
        raise InvalidSettings(
            f"the ranking model '{model.name}' has {model.m} weights, but {weights.size} were given; "
            f"check the weights of the model spec that names it"
        )


CODE = "code"
"""The setting of a model spec that holds the hash of the model's code; it is computed when a file is read."""

_SEARCHES_AT_A_TIME = 128


@dataclass(frozen=True)
class OwnRanking:
    """A ranking model from an extension with ``weight_names``, ``start`` and ``scores(weights, pages)``, shape (P,).

    An extension with ``gradients(weights, pages)``, the scores' gradients, shape (P, m), also has the analytic update.
    One with ``reference``, shape (m,), defines the weights by which simulated users choose.

    Raises:
        ExtensionFailed: the extension raises an error, or returns something else.
    """

    extension: Extension
    given: Any

    def __post_init__(self) -> None:
        with self.extension.guarded():
            names, start = self.weight_names, self.start
        if start.shape != (len(names),) or not np.isfinite(start).all():
            raise ExtensionFailed(
                f"{self.extension}, an extension, starts at {start.shape} numbers for {len(names)} weight names; give "
                "a finite number for each"
            )
        if (reference := self.reference) is not None and (
            reference.shape != start.shape or not np.isfinite(reference).all()
        ):
            raise ExtensionFailed(
                f"{self.extension}, an extension, has as its 'reference' {reference.shape} numbers for {len(names)} "
                "weight names; give a finite number for each"
            )

    @property
    def name(self) -> str:
        """See :attr:`RankingModel.name`."""
        return self.extension.name

    @property
    def weight_names(self) -> tuple[str, ...]:
        """See :attr:`RankingModel.weight_names`."""
        return tuple(self.given.weight_names)

    @property
    def m(self) -> int:
        """See :attr:`RankingModel.m`."""
        return len(self.weight_names)

    @property
    def start(self) -> FloatArray:
        """The initial weights, shape (m,)."""
        return np.asarray(self.given.start, dtype=np.float64)

    @property
    def reference(self) -> FloatArray | None:
        """The default weights by which simulated users choose, shape (m,); None if the extension has none."""
        with self.extension.guarded():
            weights = getattr(self.given, "reference", None)
            return None if weights is None else np.asarray(weights, dtype=np.float64)

    def scores(self, weights: FloatArray, pages: PageTable) -> FloatArray:
        """See :meth:`RankingModel.scores`."""
        check_weights(self, weights)
        with self.extension.guarded():
            scores = np.asarray(self.given.scores(weights, pages), dtype=np.float64)
        return self._checked("scores", scores, (len(pages),))

    def finite_differences(
        self, weights: FloatArray, pages: PageTable, searches: Searches, margin: float, epsilon: float = 1.0
    ) -> FloatArray:
        """See :meth:`RankingModel.finite_differences`."""
        check_weights(self, weights)
        nearby = perturbed(weights, epsilon)

        def scores_under(rows: Rows) -> FloatArray:
            some = pages.rows(rows)
            return np.stack([self.scores(each, some) for each in nearby], axis=1)

        return black_box_updates(scores_under, searches, self.m, margin, epsilon, _SEARCHES_AT_A_TIME)

    def analytic_updates(self, weights: FloatArray, pages: PageTable, searches: Searches, margin: float) -> FloatArray:
        """See :meth:`RankingModel.analytic_updates`."""
        if not hasattr(self.given, "gradients"):
            raise InvalidSettings(
                f'{self.extension} has no gradients(weights, pages), which gradient = "analytic" needs; leave '
                "'gradient' out"
            )

        def evaluate(rows: Rows) -> tuple[FloatArray, FloatArray]:
            some = pages.rows(rows)
            with self.extension.guarded():
                gradients = np.asarray(self.given.gradients(weights, some), dtype=np.float64)
            return self.scores(weights, some), self._checked("gradients", gradients, (len(some), self.m))

        return analytic_updates(evaluate, searches, self.m, margin, _SEARCHES_AT_A_TIME)

    def _checked(self, what: str, values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        if values.shape != shape:
            raise ExtensionFailed(
                f"{self.extension}, an extension, returned {what} of shape {values.shape} where {shape} is wanted"
            )
        if not np.isfinite(values).all():
            raise ExtensionFailed(f"{self.extension}, an extension, returned {what} that are not finite")
        return values


def own_ranking(name: str, settings: Mapping[str, Any]) -> OwnRanking:
    """Return the extension of this name as a ranking model; ``settings`` are its own settings, and its code's hash.

    Raises:
        InvalidSettings: no extension has this name, or its code differs.
        ExtensionFailed: the extension raises an error, or returns something else.
    """
    extension = recorded("ranking_model", name, str(settings.get(CODE, "")))
    own = {key: value for key, value in settings.items() if key not in (CODE, "gradient")}
    return OwnRanking(extension, extension.made(own))
