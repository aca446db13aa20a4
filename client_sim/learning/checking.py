"""Check whether known clients could take part in a study: its models, weights, pings, training, aggregation.

A study file may be valid and still describe what no client can do: 21 weights for a model of 22, or gradients for a
round that clusters centroids. Nobody would notice before the first ping is refused, or before a line learns nonsense. A
model that this installation does not know may be a product's own, which cannot be checked any further.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Any

from fedping.client_sim.learning.algorithm import bare
from fedping.client_sim.learning.algorithms import algorithm_for, algorithm_name, with_more
from fedping.client_sim.learning.model import Model, moves_itself
from fedping.client_sim.learning.models.arrays import OfArrays
from fedping.client_sim.learning.registry import (
    LEARNERS,
    OWN_CODE,
    is_ranking_model,
    learner_for,
    model_names,
    model_of,
)
from fedping.client_sim.models import ranking_models
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import registered
from fedping.protocol.limits import usual_limits
from fedping.protocol.links import Eden, Mask, Sign, Signs, Upload, UploadLink, name_of
from fedping.protocol.local_optimizers import LocalDescent, LocalRProp
from fedping.protocol.personalization import FineTune, Personalization, Vector
from fedping.protocol.ping import FRECENCY_UPDATE
from fedping.protocol.pipeline import (
    CenteredClip,
    GeometricMedian,
    GradientDescent,
    Krum,
    Mean,
    MeanOfSigns,
    Median,
    Pipeline,
    Recluster,
    TrimmedMean,
)
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line, PublicLine, PublicStudy, Study
from fedping.protocol.training import LocalSteps, OneGradient, OwnTraining, Training
from fedping.protocol.upload import receiving

_BY_MAJORITY = MeanOfSigns | Median | TrimmedMean | GeometricMedian | Krum | CenteredClip

_NEAR = 0.8
"""Similarity from which one name counts as a misspelling of another: one or two letters of ten differ."""


def check_clients(study: PublicStudy, *, keeps_state: bool = True) -> dict[str, Model[Any]]:
    """Return the simulated clients' model for each line of a study, by the line's name.

    Args:
        study: the study to take part in.
        keeps_state: whether there is a store for a training's state.

    Raises:
        InvalidSettings: clients cannot do what a line asks for.
    """
    return {line.name: _check_public(line, study.pings, keeps_state) for line in study.lines}


def _check_public(line: PublicLine, pings: str, keeps_state: bool) -> Model[Any]:
    interactions = pings == FRECENCY_UPDATE.name
    name = line.spec.model
    # A server may not choose which code a client runs, except code that is installed there.
    if not is_ranking_model(name) and (interactions or name not in LEARNERS or name in OWN_CODE):
        known = ranking_models() if interactions else [each for each in model_names() if each not in OWN_CODE]
        raise InvalidSettings(
            f"simulated {'browsers' if interactions else 'clients'} do not have the model '{line.spec.model}' of line "
            f"'{line.name}', only {', '.join(known)}"
        )
    try:
        model = learner_for(line.spec, line.training)
        check_training(model, line.training, keeps_state=keeps_state)
    except InvalidSettings as error:
        raise InvalidSettings(f"line '{line.name}' cannot be simulated: {error}") from error
    return model


def check_training(model: Model[Any], training: Training, *, keeps_state: bool = True) -> None:
    """Raise unless clients of a model can train as asked, and can keep the state of the training."""
    if (
        isinstance(training, LocalSteps)
        and not isinstance(training.optimizer, LocalDescent)
        and moves_itself(bare(model))
    ):
        raise InvalidSettings(
            "the training has an 'optimizer', which steps along gradients, but the model moves its weights by a rule "
            "of its own, as k-means does; leave 'optimizer' out"
        )
    if isinstance(training, LocalSteps) and training.structured and moves_itself(bare(model)):
        raise InvalidSettings(
            "the training has structured = true, which leaves out a part of each gradient, but the model moves its "
            "weights by a rule of its own, as k-means does; leave 'structured' out"
        )
    personal = getattr(training, "personal", None)
    if isinstance(personal, FineTune) and personal.frozen and moves_itself(bare(model)):
        raise InvalidSettings(
            "the training keeps weights 'frozen', for which a step leaves out a part of the gradient, but the model "
            "moves its weights by a rule of its own, as k-means does; leave 'frozen' out"
        )
    if algorithm_for(training).init_state(bare(model)) and not keeps_state:
        raise InvalidSettings(
            f"the training '{algorithm_name(training)}' keeps state with its clients between rounds, and users of a "
            "simulated study keep none; run it in the laboratory, or with 'fedping fleet'"
        )


def adds_mean(training: Training) -> bool:
    """Whether clients' algorithm is an own one that relies on the mean of the updates being added as it is."""
    extension = registered(training.kind, training.name) if isinstance(training, OwnTraining) else None
    return extension is not None and bool(getattr(extension.make, "adds_mean", False))


def wrong_participation(training: Training, share: float, clients: int | None = None) -> Iterator[str]:
    """Tell of a training whose ``participation`` is not the share of the clients that take part in a round.

    SCAFFOLD and FedDyn move what the server keeps by this share.

    Args:
        training: what clients do.
        share: of the clients that take part.
        clients: their number, if it is known: a difference of less than one client is none.
    """
    said = training.settings.get("participation") if isinstance(training, OwnTraining) else None
    if not adds_mean(training) or not isinstance(said, int | float):
        return
    if abs(said - share) > max(0.05 * share, 1 / clients if clients else 0.0):
        yield (
            f"'{algorithm_name(training)}' has participation = {said:g}, but {100 * share:.3g} % of the clients take "
            "part in a round, so that what the server adds up no longer fits what clients keep; set participation = "
            f"{share:.3g} in the training"
        )


def check_server(training: Training, pipeline: Pipeline, upload: Upload, *, is_private: bool = False) -> None:
    """Raise unless the server adds the mean of the updates if clients' algorithm relies on that (:func:`adds_mean`).

    An algorithm that is not installed here cannot be asked.

    Raises:
        InvalidSettings: something else is added.
    """
    if not adds_mean(training):
        return
    for wrong, what, remedy in (
        (is_private, "a private line bounds updates and adds noise", "leave the guarantee out, or train otherwise"),
        (
            pipeline.optimizer != GradientDescent(),
            "the server has another optimizer",
            'set optimizer = { optimizer = "gradient_descent", rate = 1.0 }',
        ),
        (not isinstance(pipeline.aggregate, Mean), "the server has another 'aggregate'", "leave it out"),
        (pipeline.clips, "the server clips updates", 'set clip = { by = "none" }'),
        (pipeline.staleness is not None, "with 'staleness' the server adds late updates too", "leave it out"),
        (any(isinstance(link, Sign | Signs) for link in upload), "'upload' sends signs alone", "leave that link out"),
    ):
        if wrong:
            raise InvalidSettings(
                f"the training '{algorithm_name(training)}' needs a server that adds the mean of the updates as it is, "
                f"but {what}; {remedy}"
            )


def check_study(study: Study, own_models: Collection[str] = ()) -> list[str]:
    """Return what to know before the study is created, one sentence each; most studies have none.

    Args:
        study: the study that a file describes.
        own_models: names of models that only a product's own clients evaluate.

    Raises:
        InvalidSettings: the clients of a line could not do what it asks for.
    """
    found: list[str] = []
    for line in study.lines:
        found += _check_line(study, line, own_models)
    decaying = [arm.name for arm in study.arms if arm.decays]
    if decaying and study.document is not FRECENCY_UPDATE and not (study.is_private and _all_rank_pages(study)):
        found.append(
            f"'decays' of arm '{decaying[0]}' is about stored scores of pages, which clients that send {study.pings} "
            "pings do not keep; leave it out"
        )
    return found


def _all_rank_pages(study: Study) -> bool:
    return all(is_ranking_model(line.spec.model) for line in study.lines)


def _check_line(study: Study, line: Line, own_models: Collection[str]) -> Iterator[str]:
    name, spec = line.spec.model, line.spec
    yield from _check_aggregate(line)
    yield from _check_votes(line)
    yield from _check_bound(line)
    yield from _check_examples(study, line)
    yield from _check_upload(line)
    try:
        check_server(line.training, line.pipeline, line.upload, is_private=line.privacy is not None)
    except InvalidSettings as error:
        raise InvalidSettings(f"[lines.training] of line '{line.name}': {error}") from error
    if adds_mean(line.training):
        yield (
            f"[lines.training] of line '{line.name}' is '{algorithm_name(line.training)}', which adds up the means of "
            "all rounds: that ends beside the minimum where a client counts for more in one round than in another, as "
            "in a study, whose rounds differ in how many send"
        )
    if line.participation < 1:
        for sentence in wrong_participation(line.training, line.participation):
            yield f"[lines.training] of line '{line.name}': {sentence}"
    for sentence in shares_nothing(line.training):
        yield f"[lines.training.personal] of line '{line.name}': {sentence}"
    if name in own_models:
        return
    if name in OWN_CODE:  # a study file may come from anybody: checking it must not run the code that it names
        yield (
            f"{_spec_of(line)} has the model '{name}', whose code the clients bring; its number of weights, "
            f"{spec.m:,}, is not checked here"
        )
        return
    if name not in LEARNERS and not is_ranking_model(name):
        near = get_close_matches(name, model_names(), n=1, cutoff=_NEAR)
        if near:
            raise InvalidSettings(
                f"{_spec_of(line)} has the model '{name}', which is none of ours; did you mean '{near[0]}'? For a "
                f"model of your own of that name, give --own-model {name}"
            )
        yield (
            f"{_spec_of(line)} has the model '{name}', which this installation does not know, so neither its weights "
            f"nor its settings are checked; if it is your own, --own-model {name} says so, else choose one of "
            f"{', '.join(model_names())}"
        )
        return
    _check_pings(study, line)
    if study.document is FRECENCY_UPDATE and not isinstance(line.training, OneGradient):
        yield (
            f"[lines.training] of line '{line.name}' is '{algorithm_name(line.training)}': simulated browsers train so "
            "on each interaction, but the browser module refuses to take part; leave it out to send gradients"
        )
    if (
        (study.document is FRECENCY_UPDATE or study.is_private)
        and isinstance(line.training, OneGradient)
        and (trouble := _not_on_devices(line.training.personal))
    ):
        yield (
            f"[lines.training.personal] of line '{line.name}' has {trouble}: simulated browsers do so, but the browser "
            'module refuses to take part; it has by = "fine_tune" and "vector", with the optimizers '
            '"gradient_descent" and "rprop"'
        )
    if study.document is FRECENCY_UPDATE and (link := next(filter(_not_in_browsers, line.upload), None)):
        coins = ' with draw = "independent"' if isinstance(link, Mask) else ""
        yield (
            f"'upload' of line '{line.name}' has the link '{name_of(link)}'{coins}: simulated browsers send so, but "
            "the browser module refuses to take part; 'levels' and 'steps' are small as well, with or without a mask "
            "of blocks"
        )
    try:
        model = with_more(model_of(spec), line.training)
    except InvalidSettings as error:
        raise InvalidSettings(f"{_spec_of(line)}, settings: {error}") from error
    _check_weights(line, model)
    check_training(model, line.training)
    if not is_ranking_model(name) and spec.integer.any():
        yield (
            f"{_spec_of(line)} has integer weights, so what clients get of the model '{name}' is rounded to whole "
            "numbers; leave out 'integer' unless that is meant"
        )


def shares_nothing(training: Training) -> Iterator[str]:
    """Tell of fine-tuning by which a client's own model leaves the shared one before that has learned anything."""
    own = getattr(training, "personal", None)
    if isinstance(own, FineTune) and not own.from_version and not own.proximal:
        yield (
            "clients fine-tune from_version = 0, so a client of the first round goes on from the start model and never "
            "sees what others learned; set from_version to a version at which the shared model is good, or 'proximal'"
        )


def _not_on_devices(personal: Personalization | None) -> str | None:
    """Return what of a personalization the browser module does not do; None if it does all of it."""
    if personal is None:
        return None
    if not isinstance(personal, FineTune | Vector):
        return f'by = "{personal.__struct_config__.tag}"'
    if not isinstance(personal.optimizer, LocalDescent | LocalRProp):
        return f"the optimizer '{personal.optimizer.__struct_config__.tag}'"
    return None


def _not_in_browsers(link: UploadLink) -> bool:
    return isinstance(link, Eden) or (isinstance(link, Mask) and link.draw == "independent")


def _check_pings(study: Study, line: Line) -> None:
    if study.document is not FRECENCY_UPDATE:
        return
    if not is_ranking_model(line.spec.model):
        raise InvalidSettings(
            f"{_spec_of(line)} has the model '{line.spec.model}', which learns from examples, but the study takes "
            f'{study.pings} pings, which tell of a ranked list; set pings = "model-update" at the top of the file'
        )


def _check_bound(line: Line) -> Iterator[str]:
    """Tell of a mean of updates of any length, which a single hostile client decides."""
    bounded = line.limits is not None and (line.limits.norm or line.limits.weight)
    signs = any(isinstance(link, Sign | Signs) for link in line.upload)
    if not line.pipeline.is_linear or bounded or signs or line.privacy is not None:
        return
    remedy = "" if adds_mean(line.training) else "leave 'clip' out for the usual bound, or "
    yield (
        f"[lines.pipeline] of line '{line.name}' takes the mean of updates that may have any length, so a single "
        f"hostile client can ruin the model; {remedy}set a 'norm' in [lines.limits]"
    )


def _check_examples(study: Study, line: Line) -> Iterator[str]:
    """Tell as how many examples a ping counts at most where examples are votes and the file does not say it."""
    if line.pipeline.weighting != "examples" or study.document.ranked:
        return
    where = f"[lines.pipeline] of line '{line.name}' has weighting = \"examples\""
    most = study.limits.examples if study.limits is not None else None
    if most is None and line.pipeline.most_votes is None:
        yield (
            f"{where}, and no limit on the examples that a ping claims, so that a single client can have most of the "
            "votes; set 'examples' in [limits] to the most that an honest client has"
        )
    elif study.limits == usual_limits(study.document):
        yield (
            f"{where}, and a ping counts as {most:,} examples at most: a client with more weighs less than it would "
            "in the laboratory; set 'examples' in [limits] to the most that an honest client has"
        )


def _check_votes(line: Line) -> Iterator[str]:
    """Tell of an aggregation against hostile minorities of votes where a single client can have most of the votes."""
    pipeline = line.pipeline
    if pipeline.weighting == "client" or not isinstance(pipeline.aggregate, _BY_MAJORITY):
        return
    more = "that claims many examples" if pipeline.weighting == "examples" else "that sends many pings"
    yield (
        f"[lines.pipeline] of line '{line.name}' has an 'aggregate' that withstands a minority of the votes, but with "
        f'weighting = "{pipeline.weighting}" a single client {more} can have most of them; set weighting = '
        '"client"'
    )


def _check_aggregate(line: Line) -> Iterator[str]:
    """Refuse what cannot be reclustered; `fedping.protocol.study` checks that the weights may be centroids."""
    if not isinstance(line.pipeline.aggregate, Recluster):
        return
    where = f"[lines.pipeline] of line '{line.name}' reclusters"
    if isinstance(line.training, OneGradient):
        raise InvalidSettings(
            f"{where}, for which an update has to say how far centroids have moved, but its [lines.training] sends a "
            'gradient; set training = { algorithm = "local", epochs = 1, rate = 1.0 }'
        )
    if isinstance(line.training, LocalSteps) and line.training.sign:
        raise InvalidSettings(
            f"{where}, for which an update has to say how far centroids have moved, but its [lines.training] sends "
            "signs alone; leave out 'sign'"
        )
    if signs := next((name_of(link) for link in line.upload if isinstance(link, Sign | Signs)), None):
        raise InvalidSettings(
            f"{where}, for which an update has to say how far centroids have moved, but its 'upload' sends signs "
            f"alone; leave out the link '{signs}'"
        )
    if line.spec.integer.any():
        raise InvalidSettings(
            f"{where}, but its [lines.spec] has integer weights, and centroids are no whole numbers; leave out "
            "'integer'"
        )
    optimizer = line.pipeline.optimizer
    if not (isinstance(optimizer, GradientDescent) and optimizer.rate == 1.0 and optimizer.decay == "none"):
        yield (
            f"{where}, but its optimizer does not go all the way to the new centroids; "
            '{ optimizer = "gradient_descent", rate = 1.0 } does'
        )


def _check_upload(line: Line) -> Iterator[str]:
    """Refuse links of which the server has no end; clients may be others than these here."""
    receiving(line)
    if isinstance(line.training, OneGradient | LocalSteps) and line.training.sign:
        zero = line.pipeline.aggregate.zero if isinstance(line.pipeline.aggregate, MeanOfSigns) else "abstain"
        yield (
            f"[lines.training] of line '{line.name}' has sign = true, which sends each sign as a number of 4 bytes; "
            f'leave it out and set upload = [{{ link = "signs", zero = "{zero}" }}], which sends '
            f"{'eight' if zero == 'up' else 'five'} weights a byte"
        )


def _check_weights(line: Line, model: Model[Any]) -> None:
    """Refuse weights that differ from the model's in number, in shape, or in order as far as names show it."""
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
    """Refuse blocks that are not the model's arrays; single weights may be renamed, but not take another's place."""
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
