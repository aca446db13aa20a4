"""The models by name: builds the model that clients train from a model spec, and a spec from a model.

To add a model, add a file in `models/` and a line in ``LEARNERS``. The model ``own`` needs no change here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from fedping.client_sim.learning.algorithm import ModelAndMore, bare
from fedping.client_sim.learning.algorithms import with_more
from fedping.client_sim.learning.bounds import bounded
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models import (
    jax_loss,
    k_means,
    linear_regression,
    logistic_regression,
    matrix_factorization,
    network,
    own_loss,
    svm_ranking,
)
from fedping.client_sim.learning.models.arrays import DEFAULT_STEP, OfArrays
from fedping.client_sim.learning.models.feature_ranking import feature_ranking
from fedping.client_sim.learning.models.page_ranking import own_page_ranking, page_ranking
from fedping.client_sim.learning.networks import images, text
from fedping.client_sim.learning.networks.own import own_network, own_networks
from fedping.client_sim.learning.settings import Setting, Settings
from fedping.client_sim.models import MODELS, ranking_models
from fedping.client_sim.models.ranking_model import CODE
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import TO_LOAD, registered
from fedping.protocol.features import FEATURES
from fedping.protocol.spec import Constraint, Kind, ModelSpec, Step, Weight
from fedping.protocol.training import Training

Learner: TypeAlias = Callable[[Settings], Model[Any]]
"""Function from settings, which include the spec's ``margin`` and ``epsilon``, to a model."""

LEARNERS: dict[str, Learner] = {
    linear_regression.NAME: linear_regression.linear_regression,
    logistic_regression.NAME: logistic_regression.logistic_regression,
    matrix_factorization.NAME: matrix_factorization.matrix_factorization,
    network.NAME: network.network,
    k_means.NAME: k_means.k_means,
    svm_ranking.NAME: svm_ranking.svm_ranking,
    **{name: page_ranking(name) for name in MODELS},
    own_loss.NAME: own_loss.own,
    jax_loss.NAME: jax_loss.jax_model,
    images.NAME: images.cnn,
    text.LSTM: text.lstm,
    text.TRANSFORMER: text.transformer,
}

NETWORKS = (images.NAME, text.LSTM, text.TRANSFORMER)
"""The built-in networks, which are written with JAX."""

OWN_CODE = frozenset({own_loss.NAME, jax_loss.NAME})
"""The models that run Python code named in their settings."""


def is_network(name: str) -> bool:
    """Return whether an extension has a network of that name; extensions are not imported for a built-in name."""
    return name not in LEARNERS and registered("model", name) is not None


def is_examples_model(name: str) -> bool:
    """Return whether clients have the model of that name without running code that a file or the server names."""
    return (name in LEARNERS and name not in OWN_CODE) or is_network(name)


def is_ranking_model(name: str) -> bool:
    """Return whether the model of that name ranks pages; extensions are not imported for a built-in name."""
    return name in MODELS or (name not in LEARNERS and registered("ranking_model", name) is not None)


def model_names() -> tuple[str, ...]:
    """Return the names of all models, extensions last."""
    return tuple(dict.fromkeys((*LEARNERS, FEATURES, *ranking_models(), *own_networks())))


def learner_for(spec: ModelSpec, training: Training | None = None) -> Model[Any]:
    """Return the model of a spec's name and settings, in the form that a training's clients share (:func:`with_more`).

    If clients have their own weights, the model knows the spec's constraints, which also hold for these weights.
    Training starts at the spec's weights; the model's own :attr:`Model.start` is only the proposal of
    :func:`model_spec`.

    Raises:
        InvalidSettings: the model is unknown, a setting is missing, unknown or invalid, or the resulting model has
            another number of weights than the spec.
    """
    model = model_of(spec) if training is None else with_more(model_of(spec), training)
    if len(model.weight_names) != spec.m:
        raise InvalidSettings(
            f"the model '{spec.model}' has {len(model.weight_names):,} weights with the settings of the model spec "
            f"'{spec.name}', but the spec has {spec.m:,}; make them agree"
        )
    return bounded(model, spec, training)


def model_of(spec: ModelSpec) -> Model[Any]:
    """Return the model of a spec's name and settings, whatever its weights; raise the errors of :func:`learner_for`."""
    if spec.model == FEATURES:
        return feature_ranking(spec)
    return _built(spec.model, spec.settings, spec.margin, spec.epsilon)


def model_spec(
    model: str,
    settings: Mapping[str, Setting] | None = None,
    *,
    name: str | None = None,
    start: ArrayLike | None = None,
    step: Step | Sequence[Step] = DEFAULT_STEP,
    integer: bool = False,
    constraints: tuple[Constraint, ...] = (),
    margin: float = 10.0,
    epsilon: float = 1.0,
    training: Training | None = None,
) -> ModelSpec:
    """Return the spec of a model: weight names and start come from the model, the rest from the arguments.

    Args:
        model: the model's name in ``LEARNERS``.
        settings: the model's own settings.
        name: the name of the spec; the model's if None.
        start: the weights of version 0, shape (m,), instead of the model's own.
        step: step sizes for RProp, shared by all weights or one for each; by default from 0.1, at least 1e-6, at most
            50.
        integer: whether the weights are published as whole numbers.
        constraints: the constraints on the weights.
        margin: Δ of the ranking loss.
        epsilon: ε of finite differences.
        training: the clients' training, which may need additional arrays after the weights, or leave blocks with them.

    Raises:
        InvalidSettings: the reasons of :func:`learner_for`; or the number of start weights differs from the model's.
    """
    built = _built(model, settings or {}, margin, epsilon)
    whole = built if training is None else with_more(built, training)
    fields = _weights(bare(whole), start, step, integer)
    if isinstance(whole, ModelAndMore):
        fields["blocks"] = (*fields.get("blocks", ()), *whole.arrays)
    return ModelSpec(
        name=name or model,
        model=model,
        settings=dict(settings or {}),
        constraints=constraints,
        margin=margin,
        epsilon=epsilon,
        **fields,
    )


def _built(name: str, settings: Mapping[str, Setting], margin: float, epsilon: float) -> Model[Any]:
    if name == FEATURES:
        raise InvalidSettings(
            f"the model '{FEATURES}' follows from the features of a spec. Make it by "
            f'ModelSpec(model="{FEATURES}", features=...)'
        )
    if name not in LEARNERS:
        if is_network(name):
            return own_network(name, settings)
        if is_ranking_model(name) or CODE in settings:
            return own_page_ranking(name, settings, margin, epsilon)
        known = model_names()
        near = get_close_matches(name, known, n=1)
        raise InvalidSettings(
            f"unknown model '{name}'; "
            + (
                f"did you mean '{near[0]}'?"
                if near
                else f"choose one of {', '.join(known)}, or, if it is an extension, {TO_LOAD}"
            )
        )
    given = Settings(name, settings, margin, epsilon)
    model = LEARNERS[name](given)
    given.refuse_others()
    return model


def _weights(model: Model[Any], start: ArrayLike | None, step: Step | Sequence[Step], integer: bool) -> dict[str, Any]:
    """Return the field ``weights`` or ``blocks`` of a spec: blocks if the model defines the start of its arrays."""
    if start is None and isinstance(model, OfArrays) and isinstance(step, Step):
        return {"blocks": tuple(replace(block, step=step, integer=integer) for block in model.arrays)}
    values = np.asarray(model.start if start is None else start, dtype=np.float64)
    if values.shape != (len(model.weight_names),):
        raise InvalidSettings(
            f"{values.size:,} start weights of shape {values.shape} were given to a model that has "
            f"{len(model.weight_names):,}; give one number for each weight"
        )
    steps = [step] * values.size if isinstance(step, Step) else list(step)
    if len(steps) != values.size:
        raise InvalidSettings(f"{len(steps):,} steps were given to {values.size:,} weights; give one, or one for each")
    each = zip(model.weight_names, values.tolist(), steps, strict=True)
    return {"weights": tuple(Weight(name=n, start=v, step=s, integer=integer, kind=_kind(n)) for n, v, s in each)}


def _kind(name: str) -> Kind:
    """Return the kind of a weight, which frecency's weights have at the end of their names."""
    kinds: dict[str, Kind] = {"Cutoff": "cutoff", "BucketWeight": "bucket_weight", "Bonus": "bonus"}
    return next((kind for end, kind in kinds.items() if name.endswith(end)), "coefficient")
