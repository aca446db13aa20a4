"""The models that rank pages, like a browser's address bar: their scores, losses and updates per search.

Pages are in a :class:`PageTable`, searches over them in :class:`Searches`. To add a model of pages, add a file that
satisfies :class:`RankingModel`, and a line in ``MODELS``. All other models, and the adapter with which clients train
these ones (`page_ranking.py`), are in `fedping.client_sim.learning.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedping.client_sim.models.frecency import FRECENCY_NAMES, Frecency2018, FrecencyWeights, decayed, frecency_start
from fedping.client_sim.models.linear import LINEAR_15_NAMES, LinearModel, linear_15_features, linear_15_truth
from fedping.client_sim.models.pages import (
    MAX_SAMPLED,
    NO_CANDIDATE,
    NOTHING_CHOSEN,
    ORIGIN_NOT_KNOWN,
    Onward,
    Page,
    PageTable,
    Searches,
    Visit,
    VisitType,
    page_table,
    searches_from,
)
from fedping.client_sim.models.ranking_loss import losses, selected_ranks
from fedping.client_sim.models.ranking_model import (
    CODE,
    OwnRanking,
    RankingModel,
    own_ranking,
    scores_by_client,
    weighs_each_search,
)
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import all_of, registered

_ALL: tuple[RankingModel, ...] = (
    Frecency2018(),
    LinearModel("linear-15", LINEAR_15_NAMES, linear_15_features),
)
MODELS: dict[str, RankingModel] = {model.name: model for model in _ALL}


def model_for(name: str, settings: Mapping[str, Any] | None = None) -> RankingModel:
    """Return the ranking model of that name, one of :data:`MODELS` or an extension, which may have settings.

    Raises:
        InvalidSettings: the model is unknown, or its code differs from the settings' code.
    """
    if name in MODELS:
        return MODELS[name]
    if registered("ranking_model", name) is None and not (settings or {}).get(CODE):
        raise InvalidSettings(
            f"unknown ranking model '{name}'. Set the model spec's model to {' or '.join(ranking_models())}"
        )
    return own_ranking(name, settings or {})


def ranking_models() -> tuple[str, ...]:
    """Return the names of all models that rank pages, extensions last."""
    return (*MODELS, *(each.name for each in all_of("ranking_model")))


__all__ = [
    "FRECENCY_NAMES",
    "LINEAR_15_NAMES",
    "MAX_SAMPLED",
    "MODELS",
    "NOTHING_CHOSEN",
    "NO_CANDIDATE",
    "ORIGIN_NOT_KNOWN",
    "Frecency2018",
    "FrecencyWeights",
    "LinearModel",
    "Onward",
    "OwnRanking",
    "Page",
    "PageTable",
    "RankingModel",
    "Searches",
    "Visit",
    "VisitType",
    "decayed",
    "frecency_start",
    "linear_15_features",
    "linear_15_truth",
    "losses",
    "model_for",
    "own_ranking",
    "page_table",
    "ranking_models",
    "scores_by_client",
    "searches_from",
    "selected_ranks",
    "weighs_each_search",
]
