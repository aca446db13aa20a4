"""Checks whether known clients can take part in a study: its models, weights, pings, training and aggregation.

A study file may be valid and still be impossible for any client: 21 weights for a model of 22, or gradients for a
round that clusters centroids. Without these checks the mistake would show only when the first ping is rejected, or
when a line learns nonsense. A model unknown to this installation may be a product's own; it isn't checked further.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Any

import numpy as np

from fedping.client_sim.learning.algorithm import bare
from fedping.client_sim.learning.algorithms import algorithm_for, algorithm_name, with_more
from fedping.client_sim.learning.model import Model, moves_itself
from fedping.client_sim.learning.models.arrays import OfArrays
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.client_sim.learning.registry import (
    OWN_CODE,
    is_examples_model,
    is_ranking_model,
    learner_for,
    model_names,
    model_of,
)
from fedping.client_sim.learning.submodel import Part
from fedping.client_sim.models import ranking_models
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.features import FEATURES
from fedping.protocol.limits import usual_limits
from fedping.protocol.links import Mask, UploadLink, name_of
from fedping.protocol.local_optimizers import LocalDescent
from fedping.protocol.personalization import FineTune, Personalization, Vector
from fedping.protocol.ping import FRECENCY_UPDATE, LIST_UPDATE
from fedping.protocol.pipeline import GradientDescent, Mean, Pipeline
from fedping.protocol.rules import Parts, Trait, Traits, check, sentences, traits_of, traits_where
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line, PublicLine, PublicStudy, Study
from fedping.protocol.training import LocalSteps, OwnTraining, Training
from fedping.protocol.upload import receiving

_NEAR = 0.8
"""Minimum similarity of a name and its misspelling; at most one or two letters of ten differ."""


def check_clients(study: PublicStudy, *, keeps_state: bool = True) -> dict[str, Model[Any]]:
    """Return the simulated clients' model for each line of a study, by the line's name.

    Args:
        study: the study to take part in.
        keeps_state: whether a training's state can be stored.

    Raises:
        InvalidSettings: clients don't support a line's settings.
    """
    return {line.name: _check_public(line, study.pings, keeps_state) for line in study.lines}


def _check_public(line: PublicLine, pings: str, keeps_state: bool) -> Model[Any]:
    interactions = pings == FRECENCY_UPDATE.name
    name = line.spec.model
    if pings == LIST_UPDATE.name and name != FEATURES:
        raise InvalidSettings(
            f"simulated clients see lists of items with features, and the model '{name}' of line '{line.name}' has "
            "none. Post recorded pings with --replay, or simulate a study with other pings"
        )
    # A server may not choose which code a client runs, except code that is installed there.
    of_lists = name == FEATURES and not interactions
    if not (of_lists or is_ranking_model(name)) and (interactions or not is_examples_model(name)):
        known = ranking_models() if interactions else [each for each in model_names() if each not in OWN_CODE]
        raise InvalidSettings(
            f"simulated {'browsers' if interactions else 'clients'} do not have the model '{line.spec.model}' of line "
            f"'{line.name}', only {', '.join(known)}"
        )
    try:
        model = learner_for(line.spec, line.training)
        check_training(model, line.training, keeps_state=keeps_state and pings != LIST_UPDATE.name)
    except InvalidSettings as error:
        raise InvalidSettings(f"line '{line.name}' cannot be simulated: {error}") from error
    return model


def check_buffers(model: Model[Any], training: Training, pipeline: Pipeline) -> None:
    """Raise if a network's untrained arrays, such as batch norm's statistics, would have no useful values.

    Args:
        model: the model as published for the training.
        training: the clients' training.
        pipeline: the server's aggregation and step.
    """
    inner = bare(model)
    whole = inner.whole if isinstance(inner, Part) else inner
    if not isinstance(whole, TreeModel) or whole.buffers is None:
        return
    what = f"the model '{whole.name}' has buffers, such as '{min(whole.network.buffer_names)}'"
    if not isinstance(training, LocalSteps) or not isinstance(training.optimizer, LocalDescent) or training.sign:
        raise InvalidSettings(
            f"{what}, which move only in local steps of plain descent; set algorithm = \"local\" without 'optimizer' "
            "and 'sign', or use group norm"
        )
    shared = np.asarray(inner.buffers)  # type: ignore[attr-defined]
    if whole.network.keeps == "local" and shared.any():
        raise InvalidSettings(
            f"{what}, which are to be local, and the training shares them; name them or their layers in "
            "[training.personal] local"
        )
    optimizer = pipeline.optimizer
    plain = isinstance(optimizer, GradientDescent) and optimizer == GradientDescent(rate=1.0)
    if shared.any() and not (plain and isinstance(pipeline.aggregate, Mean)):
        raise InvalidSettings(
            f"{what}, whose averages a server takes that adds the mean of the updates; set optimizer = {{ optimizer = "
            '"gradient_descent", rate = 1.0 } and aggregate = { by = "mean" }, or keep them local'
        )


def check_training(model: Model[Any], training: Training, *, keeps_state: bool = True) -> None:
    """Raise unless a model's clients support the training, and can keep its state."""
    traits = traits_of(training) | traits_where({"moves itself": moves_itself(bare(model))})
    check("model", Parts(traits))
    state = algorithm_for(training).init_state(bare(model))
    store: dict[Trait, bool] = {"keeps state": bool(state), "no store": not keeps_state}
    check("state", Parts(traits_where(store), {"training": algorithm_name(training)}))


def declared_traits(training: Training) -> Traits:
    """Return a training's traits, including those that an extension's class declares."""
    return training.declared_traits if isinstance(training, OwnTraining) else traits_of(training)


def wrong_participation(training: Training, share: float, clients: int | None = None) -> Iterator[str]:
    """Yield advice if a training's ``participation`` differs from the share of clients that take part in a round.

    SCAFFOLD and FedDyn change the server's state in proportion to this share.

    Args:
        training: the clients' training.
        share: share of the clients that take part.
        clients: number of clients, if known; a difference of less than one client is ignored.
    """
    said = training.settings.get("participation") if isinstance(training, OwnTraining) else None
    if "adds the mean" not in declared_traits(training) or not isinstance(said, int | float):
        return
    if abs(said - share) > max(0.05 * share, 1 / clients if clients else 0.0):
        yield (
            f"'{algorithm_name(training)}' has participation = {said:g}, but {100 * share:.3g} % of the clients take "
            "part in a round, so that what the server adds up no longer fits what clients keep; set participation = "
            f"{share:.3g} in the training"
        )


def check_mean(training: Training, traits: Traits, where: str = "") -> None:
    """Raise if the training relies on a server that adds the mean of the updates, but the server doesn't.

    An algorithm that is not installed declares no traits.

    Args:
        training: the clients' training.
        traits: traits of the line or of the experiment.
        where: the beginning of the error's sentence.

    Raises:
        InvalidSettings: the server adds something else.
    """
    needs = (
        f"the training '{algorithm_name(training)}' needs a server that adds the mean of the updates unchanged, but "
    )
    check("mean", Parts(traits | declared_traits(training)), where + needs)


def check_study(study: Study, own_models: Collection[str] = ()) -> list[str]:
    """Return notes to read before the study is created, one sentence each; most studies have none.

    Args:
        study: the study that a file describes.
        own_models: names of models that only a product's own clients evaluate.

    Raises:
        InvalidSettings: a line's clients don't support its settings.
    """
    found: list[str] = []
    for line in study.lines:
        found += _check_line(study, line, own_models)
    decaying = [arm.name for arm in study.arms if arm.decays]
    if decaying and study.document is not FRECENCY_UPDATE and not (study.is_private and _all_rank_pages(study)):
        found.append(
            f"'decays' of arm '{decaying[0]}' is about stored scores of pages, which clients that send {study.pings} "
            "pings do not store. Remove it"
        )
    return found


def _all_rank_pages(study: Study) -> bool:
    return all(is_ranking_model(line.spec.model) for line in study.lines)


def _check_line(study: Study, line: Line, own_models: Collection[str]) -> Iterator[str]:
    name, spec = line.spec.model, line.spec
    parts = _parts_of(study, line)
    check("reclustering", parts, f"[lines.pipeline] of line '{line.name}' ")
    receiving(line)
    check_mean(line.training, parts.traits, f"[lines.training] of line '{line.name}': ")
    yield from sentences("advice", parts)
    if line.participation < 1:
        for sentence in wrong_participation(line.training, line.participation):
            yield f"[lines.training] of line '{line.name}': {sentence}"
    for sentence in sentences("advice on training", parts):
        yield f"[lines.training.personal] of line '{line.name}': {sentence}"
    if name in own_models:
        return
    if name in OWN_CODE:  # a study file may come from anyone: checking it must not run the code that it names
        yield (
            f"{_spec_of(line)} has the model '{name}', whose code the clients bring; its number of weights, "
            f"{spec.m:,}, is not checked here"
        )
        return
    if name != FEATURES and not is_ranking_model(name) and not is_examples_model(name):
        near = get_close_matches(name, model_names(), n=1, cutoff=_NEAR)
        if near:
            raise InvalidSettings(
                f"{_spec_of(line)} has the model '{name}', which is none of ours; did you mean '{near[0]}'? For your "
                f"own model of that name, give --own-model {name}"
            )
        yield (
            f"{_spec_of(line)} has the model '{name}', which this installation does not know, so neither its weights "
            f"nor its settings are checked; if it is your own, --own-model {name} says so, else choose one of "
            f"{', '.join(model_names())}"
        )
        return
    _check_pings(study, line)
    yield from sentences("advice on browsers", parts)
    try:
        model = with_more(model_of(spec), line.training)
    except InvalidSettings as error:
        raise InvalidSettings(f"{_spec_of(line)}, settings: {error}") from error
    _check_weights(line, model)
    check_training(model, line.training)
    check_buffers(model, line.training, line.pipeline)
    if not is_ranking_model(name) and spec.integer.any():
        yield (
            f"{_spec_of(line)} has integer weights, so what clients get of the model '{name}' is rounded to whole "
            "numbers; leave out 'integer' unless that is meant"
        )


def _parts_of(study: Study, line: Line) -> Parts:
    """Return the traits of a new study's line, including extensions', and the words for sentences about the line."""
    parts, pipeline, limits = study.parts_of(line), line.pipeline, study.limits
    own: dict[Trait, bool] = {
        "integer weights": bool(line.spec.integer.any()),
        "example votes counted": pipeline.weighting == "examples" and not study.document.ranked,
        "usual limits": limits is not None and limits == usual_limits(study.document),
    }
    words = {
        "training": algorithm_name(line.training),
        "weighting": pipeline.weighting,
        "votes": "claims many examples" if pipeline.weighting == "examples" else "sends many pings",
        "examples": f"{limits.examples:,}" if limits is not None and limits.examples is not None else "",
        "bits": next((name_of(link) for link in line.upload if "sends bits" in traits_of(link)), ""),
        "draws": next(map(_drawn, filter(lambda link: "other draws" in traits_of(link), line.upload)), ""),
        "personalization": _personalized(getattr(line.training, "personal", None)),
    }
    return Parts(parts.traits | declared_traits(line.training) | traits_where(own), {**parts.words, **words})


def _drawn(link: UploadLink) -> str:
    return f"'{name_of(link)}'" + (' with draw = "independent"' if isinstance(link, Mask) else "")


def _personalized(personal: Personalization | None) -> str:
    if isinstance(personal, FineTune | Vector):
        return f"the optimizer '{personal.optimizer.__struct_config__.tag}'"
    return "" if personal is None else f'by = "{personal.__struct_config__.tag}"'


def _check_pings(study: Study, line: Line) -> None:
    if study.document is not FRECENCY_UPDATE:
        return
    if not is_ranking_model(line.spec.model):
        learns = "lists of items" if line.spec.model == FEATURES else "examples"
        raise InvalidSettings(
            f"{_spec_of(line)} has the model '{line.spec.model}', which learns from {learns}, but the study takes "
            f'{study.pings} pings, which describe a ranked list. Set pings = "model-update" at the top of the file'
        )


def _check_weights(line: Line, model: Model[Any]) -> None:
    """Raise if weights differ from the model's in number, in shape or, as far as names show it, in order."""
    spec, names = line.spec, model.weight_names
    if spec.m != len(names):
        raise InvalidSettings(
            f"{_spec_of(line)} has {spec.m:,} weights, but the model '{spec.model}'{_settings_of(spec)} has "
            f"{len(names):,}: {_described(model)}; correct the weights, or the settings"
        )
    if isinstance(model, OfArrays):
        _check_arrays(line, model)
        return
    for place, (given, own) in enumerate(zip(spec.names, names, strict=True)):
        if given != own:
            raise InvalidSettings(
                f"{_spec_of(line)} names weight {place + 1} of {spec.m} '{given}', where the model '{spec.model}' has "
                f"'{own}'; name all of them in its order: {_listed(names)}"
            )


def _check_arrays(line: Line, model: OfArrays) -> None:
    """Raise unless the blocks are the model's arrays; single weights may be renamed, but not reordered."""
    spec = line.spec
    arrays, at = {}, 0
    for array in model.arrays:
        arrays[at] = array
        at += _size(array.shape)
    at = len(spec.weights)
    for block in spec.blocks:
        own = arrays.get(at)
        if own is None or own.shape != block.shape:
            raise InvalidSettings(
                f"{_spec_of(line)} has the block '{block.name}' of shape {_shape(block.shape)} from weight {at + 1:,} "
                f"on, but the model '{spec.model}'{_settings_of(spec)} has {_described(model)}; give these blocks"
            )
        other = next((one.name for one in model.arrays if one.name == block.name), own.name)
        if other != own.name:
            raise InvalidSettings(
                f"{_spec_of(line)} has the block '{block.name}' in the place of '{own.name}'; put the blocks in the "
                f"order of the model '{spec.model}': {_described(model)}"
            )
        at += _size(block.shape)
    names = model.weight_names
    for place, weight in enumerate(spec.weights):
        if weight.name in names and names[place] != weight.name:
            raise InvalidSettings(
                f"{_spec_of(line)} has '{weight.name}' as weight {place + 1} of {spec.m}, where the model "
                f"'{spec.model}' has '{names[place]}'; put the weights in its order: {_described(model)}"
            )


def _described(model: Model[Any] | OfArrays) -> str:
    if not isinstance(model, OfArrays):
        return _listed(model.weight_names)
    return ", ".join(f"{array.name} of shape {_shape(array.shape)}" for array in model.arrays)


def _listed(names: Collection[str]) -> str:
    return ", ".join(islice(names, 25)) + (", ..." if len(names) > 25 else "")


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _settings_of(spec: ModelSpec) -> str:
    given = ", ".join(f"{name} = {value!r}" for name, value in spec.settings.items())
    return f" with {given}" if given else ""


def _spec_of(line: Line) -> str:
    return f"[lines.spec] of line '{line.name}'"
