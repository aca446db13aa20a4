"""A grid of valid and invalid combinations of settings of studies and laboratory files, with a verdict on each.

A base is accepted without changes. Each base is combined with every deviation, and with some pairs and triples of
deviations of different settings. A draw from the deviations' names decides whether a pair or triple is in the grid,
so a new deviation adds combinations and leaves all others unchanged. ``tests/protocol/verdicts.json`` has the verdicts.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedping
from fedping.client_sim.learning.checking import check_study
from fedping.client_sim.learning.registry import model_of
from fedping.experiments.laboratory.settings import experiment_of
from fedping.protocol.errors import FedpingError
from fedping.protocol.extensions import registered
from fedping.protocol.pipeline import ClipByQuantile, RProp
from fedping.protocol.settings_file import converted
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Study, new_study
from fedping.protocol.upload import receiving, sending

PAIRS = 0.15
"""The share of all pairs of deviations in the grid."""

TRIPLES = 0.06
"""The share in the grid of those triples a, b, c whose pairs a, b and b, c are in it."""


class Deviation(NamedTuple):
    """A setting that differs from the base.

    Attributes:
        axis: the setting; a combination has at most one deviation for each.
        changes: the new value by place, such as "lines.0.upload".
    """

    axis: str
    changes: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The unique name of the deviation, in words."""
        return f"{self.axis}: {json.dumps(self.changes, sort_keys=True)}"


def _register() -> None:
    if registered("aggregation", "grid-mean") is not None:
        return

    @fedping.aggregation("grid-mean")
    def grid_mean() -> Any:
        return fedping.of_all(lambda kept, line, weights, state, key: kept.updates.mean(axis=0))

    @fedping.optimizer("grid-steps")
    def grid_steps(spec: ModelSpec, *, rate: float = 1.0) -> Any:
        return fedping.Transformation(lambda spec: {}, lambda step, state, weights: (rate * step, {}))

    @fedping.upload_link("grid-half")
    def grid_half() -> Any:
        return (
            fedping.ClientEnd(transform=lambda updates, keys: updates / 2),
            fedping.ServerEnd(undo_sum=lambda spec, direction: 2 * direction),
        )

    @fedping.upload_link("grid-double")
    def grid_double() -> Any:
        return (
            fedping.ClientEnd(transform=lambda updates, keys: updates * 2),
            fedping.ServerEnd(undo=lambda updates: updates / np.float32(2)),
        )

    @fedping.sampling("grid-first")
    def grid_first(sizes: Any, groups: Any, random: Any) -> Any:
        return np.arange(1)


def _weights(*names: str, integer: bool = False) -> list[dict[str, Any]]:
    step = {"start": 1.0, "min": 0.1, "max": 3.0}
    return [{"name": name, "start": 0.0, "step": step, "integer": integer} for name in names]


@cache
def _names(model: str, **settings: Any) -> tuple[str, ...]:
    names = model_of(ModelSpec(name="any", model=model, settings=settings, weights=_any_weight())).weight_names
    return tuple(names)


@cache
def _any_weight() -> Any:
    from fedping.protocol.spec import Step, Weight

    return (Weight("w", 0.0, Step(start=1.0, min=0.1, max=3.0)),)


def _spec(model: str, integer: bool = False, control: bool = False, **settings: Any) -> dict[str, Any]:
    names = _names(model, **settings)
    told = {"name": "a", "model": model, "settings": settings, "weights": _weights(*names, integer=integer)}
    if control:
        step = {"start": 1.0, "min": 0.1, "max": 3.0}
        told["blocks"] = [{"name": "control", "shape": [len(names)], "step": step}]
    return told


LINEAR = {"model": "linear-regression", "features": 2}
MEANS = {"model": "k-means", "clusters": 2, "features": 2}

GRADIENT: dict[str, Any] = {"algorithm": "gradient"}
LOCAL: dict[str, Any] = {"algorithm": "local", "steps": 2, "rate": 0.1}
SCAFFOLD = {"algorithm": "scaffold", "steps": 2, "rate": 0.1}
CENTRAL = {"epsilon": 2.0, "delta": 1e-6, "rounds": 10, "population": 10_000, "noise_multiplier": 4.0}
HELPER = "00" * 32
FINE_TUNED = {"by": "fine_tune", "rate": 0.1, "from_version": 3}
VECTOR = {"by": "vector", "rate": 0.1, "from_version": 3}

TRAININGS: tuple[dict[str, Any], ...] = (
    GRADIENT,
    {**GRADIENT, "sign": True},
    LOCAL,
    {**LOCAL, "sign": True},
    {**LOCAL, "steps": None},
    {**LOCAL, "epochs": 1},
    {**LOCAL, "optimizer": {"optimizer": "adam"}},
    {**LOCAL, "structured": True},
    {**LOCAL, "structured": True, "sign": True},
    {**LOCAL, "structured": True, "optimizer": {"optimizer": "rprop"}},
    {**LOCAL, "structured": True, "optimizer": {"optimizer": "momentum", "keep": True}},
    {**LOCAL, "optimizer": {"optimizer": "momentum", "keep": True}},
    SCAFFOLD,
    {**SCAFFOLD, "participation": 0.5},
    {"algorithm": "apfl", "steps": 2, "rate": 0.1},
)

CLOCKS: tuple[dict[str, Any], ...] = (
    {},
    {"answers": 2},
    {"answers": 2, "late": "counted"},
    {"asynchronous": {}},
)

PERSONAL: tuple[dict[str, Any], ...] = (
    FINE_TUNED,
    {**FINE_TUNED, "from_version": 0},
    {**FINE_TUNED, "shares": False},
    {**FINE_TUNED, "frozen": ["intercept"]},
    {**FINE_TUNED, "optimizer": {"optimizer": "adam"}},
    VECTOR,
    {**VECTOR, "in_step": True},
    {"by": "partly_local", "local": ["intercept"], "rate": 0.1},
    {"by": "reconstruct", "local": ["intercept"], "rate": 0.1},
    {"by": "expert", "private_rate": 0.1, "gate_rate": 0.1},
)

UPLOADS: tuple[list[dict[str, Any]], ...] = tuple(
    [dict(link) for link in links]
    for links in (
        [{"link": "dense"}],
        [{"link": "float32"}],
        [{"link": "sign"}],
        [{"link": "signs"}],
        [{"link": "signs", "zero": "up"}],
        [{"link": "mask", "keep": 0.5}],
        [{"link": "mask", "keep": 0.5, "draw": "independent"}],
        [{"link": "mask", "keep": 0.5}, {"link": "levels", "bits": 4}],
        [{"link": "mask", "keep": 0.5}, {"link": "levels", "bits": 4, "rotate": True}],
        [{"link": "mask", "keep": 0.5}, {"link": "signs"}],
        [{"link": "mask", "keep": 0.5, "draw": "independent"}, {"link": "float32"}],
        [{"link": "rotation"}],
        [{"link": "rotation"}, {"link": "levels", "bits": 1}],
        [{"link": "levels", "bits": 8}],
        [{"link": "levels", "bits": 8}, {"link": "rotation"}],
        [{"link": "steps", "size": 2.0}],
        [{"link": "steps"}],
        [{"link": "eden", "bits": 2}],
        [{"link": "top-k", "keep": 0.2}],
        [{"link": "error-feedback"}, {"link": "top-k", "keep": 0.2}],
        [{"link": "error-feedback"}, {"link": "scaled-signs"}],
        [{"link": "error-feedback"}, {"link": "signs"}],
        [{"link": "scaled-signs"}, {"link": "error-feedback"}],
        [{"link": "low-rank", "rank": 1}],
        [{"link": "private"}],
        [{"link": "shared"}],
        [{"link": "grid-half"}],
        [{"link": "grid-double"}],
        [{"link": "grid-double"}, {"link": "rotation"}, {"link": "float32"}],
        [{"link": "rotation"}, {"link": "grid-double"}],
        [{"link": "sign"}, {"link": "grid-double"}],
    )
)

PIPELINE: dict[str, tuple[Any, ...]] = {
    "optimizer": (
        {"optimizer": "rprop"},
        {"optimizer": "rprop", "quorum": {}},
        {"optimizer": "rprop", "quorum": {"decides": 0, "hastens": 0}},
        {"optimizer": "gradient_descent"},
        {"optimizer": "gradient_descent", "rate": 0.5},
        {"optimizer": "gradient_descent", "decay": "1/t"},
        {"optimizer": "momentum"},
        {"optimizer": "adam"},
        {"optimizer": "adam", "initial": 1.0},
        {"optimizer": "grid-steps"},
    ),
    "aggregate": (
        {"by": "mean"},
        {"by": "mean_of_signs"},
        {"by": "mean_of_signs", "zero": "up"},
        {"by": "recluster"},
        {"by": "median"},
        {"by": "trimmed_mean"},
        {"by": "geometric_median"},
        {"by": "krum"},
        {"by": "centered_clip", "radius": 1.0},
        {"by": "grid-mean"},
    ),
    "clip": (
        {"by": "none"},
        {"by": "norm", "norm": 1.0},
        {"by": "quantile"},
        {"by": "quantile", "units": "step"},
    ),
    "staleness": ({}, {"on": "step"}),
    "bucketing": (2,),
    "weighting": ("client", "ping", "examples"),
    "most_votes": (3,),
}

PRIVACIES: tuple[dict[str, Any], ...] = (
    {"central": CENTRAL},
    {"central": {**CENTRAL, "sampling": 0.1}},
    {"central": {**CENTRAL, "delta": 0.01}},
    {"local": {"mechanism": "one-sign", "epsilon": 1.0}},
    {"local": {"mechanism": "one-sign", "epsilon": 1.0}, "contribution": {"by": "norm", "norm": 1.0}},
    {"local": {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-6}, "contribution": {"by": "norm", "norm": 1.0}},
    {"central": CENTRAL, "contribution": {"by": "kind", "norms": {"coefficient": 1.0}}},
    {"central": CENTRAL, "contribution": {"by": "kind", "norms": {"bonus": 1.0}}},
    {"central": CENTRAL, "left_out": ["intercept"]},
    {"central": CENTRAL, "left_out": ["nothing"]},
    {"central": CENTRAL, "loss": [1.0, 1.0]},
    {"shared": {"helper": HELPER}},
    {"shared": {"helper": HELPER, "proofs": True}},
    {"shared": {"helper": HELPER, "proofs": True}, "contribution": {"by": "norm", "norm": 1.0}},
    {"shared": {"helper": HELPER}, "central": {**CENTRAL, "sampling": 0.1}},
    {"shared": {"helper": HELPER}, "central": CENTRAL},
    {},
)


def _line(axis: str, *values: Any) -> Iterator[Deviation]:
    name = axis.rpartition(".")[2]
    for value in values:
        yield Deviation(name, {f"lines.0.{axis}": value})


def _study_deviations() -> Iterator[Deviation]:
    yield from _line("training", *TRAININGS)
    yield from _line("training.personal", *PERSONAL)
    for own in PERSONAL[0], PERSONAL[2], PERSONAL[5]:
        yield Deviation("personal", {"lines.0.training.personal": own, "arms.1.personal": True})
    yield from _line("upload", *UPLOADS)
    for setting, values in PIPELINE.items():
        yield from _line(f"pipeline.{setting}", *values)
    yield from _line("privacy", *PRIVACIES)
    stage = {"share": 0.1}
    yield from _line("guard", {}, {"enabled": False}, {"stage": stage}, {"guardrail": {}})
    yield from _line("guard", {"guardrail": {"metric": "rank_selected"}}, {"window": 3, "rounds": 8})
    yield from _line("length", {"by": "time", "minutes": 5}, {"by": "clients", "clients": 5}, {"by": "signs"})
    yield from _line("early_stopping", {"arm": "treatment"}, {"arm": "control"})
    yield from _line("limits", {"norm": 1.0}, {"weight": 1.0})
    yield from _line("participation", 0.5)
    yield from _line(
        "spec",
        _spec(**LINEAR),
        _spec(**LINEAR, control=True),
        _spec(**LINEAR, integer=True),
        _spec(**MEANS),
        _spec(**MEANS, integer=True),
        _spec("frecency-2018"),
        {**_spec(**LINEAR), "weights": _weights("intercept")},
        {**_spec(**LINEAR), "model": "mine"},
        {**_spec(**LINEAR), "model": "own", "settings": {"function": "mine:loss"}},
    )
    for name in ("frecency-update", "model-update", "private-update"):
        yield Deviation("pings", {"pings": name})
    yield Deviation("telemetry", {"telemetry": True})
    yield Deviation("enrolment", {"enrolment": "elsewhere"})
    yield Deviation("metrics", {"metrics": [{"name": "heavy", "column": "loss"}]})
    yield Deviation("segments", {"segments": [{"name": "late", "column": "loss", "cuts": [1.0]}]})
    yield Deviation("study limits", {"limits": {"examples": 10}})
    yield Deviation("study limits", {"limits": {"rank": 10}})
    yield Deviation("study limits", {"limits": {"loss": [-1.0, 1.0]}})
    yield Deviation("tickets", {"tickets": "required"})
    yield Deviation("arms", {"arms.1.personal": True})
    yield Deviation("arms", {"arms.0.decays": True})
    yield Deviation("arms", {"arms.0.applies": True})
    yield Deviation("arms", {"arms.0.line": None})
    yield Deviation("arms", {"arms.1.applies": False})
    yield Deviation("arms", {"arms.1.submits": False})
    second = {"name": "second", "spec": _spec(**LINEAR)}
    third = {"name": "c", "share": 0.2, "line": "second", "submits": True}
    yield Deviation("lines", {"lines.1": second, "arms.2": third})
    private = {**second, "privacy": {"central": CENTRAL}}
    yield Deviation("lines", {"lines.1": private, "arms.2": third})
    yield Deviation("lines", {"lines.1": private, "arms.2": third, "enrolment": "elsewhere"})


def study_bases() -> dict[str, dict[str, Any]]:
    """Return the tables of accepted studies, by name."""
    arms = [
        {"name": "control", "share": 0.4, "line": "main"},
        {"name": "treatment", "share": 0.4, "line": "main", "applies": True, "submits": True},
    ]
    line = {"name": "main", "spec": _spec(**LINEAR), "training": GRADIENT}
    study = {"name": "s", "pings": "model-update", "arms": arms, "lines": [line]}
    means = {
        "name": "main",
        "spec": _spec(**MEANS),
        "training": {**LOCAL, "rate": 1.0},
        "pipeline": {"optimizer": {"optimizer": "gradient_descent"}, "aggregate": {"by": "recluster"}},
    }
    private = {**line, "privacy": {"central": CENTRAL}}
    block = {"name": "w", "shape": [8, 8], "step": {"start": 1.0, "min": 0.1, "max": 3.0}}
    matrix = {"name": "main", "spec": {"name": "a", "model": "mine", "blocks": [block]}}
    within = {**matrix, "training": {**LOCAL, "structured": True}, "upload": [{"link": "low-rank", "rank": 2}]}
    added = {"optimizer": {"optimizer": "gradient_descent"}, "clip": {"by": "none"}}
    stateful = {"name": "main", "spec": _spec(**LINEAR, control=True), "training": SCAFFOLD, "pipeline": added}
    return {
        "plain": study,
        "local": {**study, "lines": [{**line, "training": LOCAL, "pipeline": added}]},
        "clusters": {**study, "lines": [means]},
        "stateful": {**study, "lines": [stateful]},
        "matrix": {**study, "lines": [within]},
        "pages": {**study, "pings": "frecency-update", "lines": [{**line, "spec": _spec("frecency-2018")}]},
        "private": {**study, "pings": "private-update", "lines": [private]},
    }


def _file_deviations() -> Iterator[Deviation]:
    for training in TRAININGS:
        yield Deviation("training", {"training": training})
    for own in PERSONAL:
        yield Deviation("personal", {"training.personal": own})
    for upload in UPLOADS:
        yield Deviation("upload", {"upload": upload})
    for setting, values in PIPELINE.items():
        for value in values:
            yield Deviation(setting, {f"server.{setting}": value})
    for privacy in PRIVACIES:
        yield Deviation("privacy", {"privacy": privacy})
    for sampling in (
        {"sampling": "all"},
        {"sampling": "uniform", "clients": 2},
        {"sampling": "bernoulli", "share": 0.1},
        {"sampling": "bernoulli", "share": 0.5},
        {"sampling": "by_size", "clients": 2},
        {"sampling": "cluster"},
        {"sampling": "power_of_choice", "clients": 1, "candidates": 2},
        {"sampling": "oort", "clients": 1},
        {"sampling": "oort", "clients": 1, "seconds": 10.0},
        {"sampling": "grid-first"},
    ):
        yield Deviation("sampling", {"sampling": sampling})
    yield from (Deviation("clock", {"clock": {"seconds_per_example": 1.0, **more}}) for more in CLOCKS)
    yield Deviation("lateness", {"lateness": {"shares": [0.5, 0.5]}})
    yield Deviation("lateness", {"lateness": {"shares": [0.5, 0.5]}, "server.min_clients": 2})
    yield Deviation("co_op", {"co_op": {}})
    yield Deviation("gossip", {"gossip": {"graph": "ring"}})
    yield Deviation("hierarchy", {"hierarchy": {"edges": 2, "edge_rounds": 2}})
    yield Deviation("clusters", {"clusters": {"by": "ifca", "clusters": 2}})
    yield Deviation("clusters", {"clusters": {"by": "bipartition", "mean_below": 0.1, "norm_above": 0.2}})
    yield Deviation("gossip", {"gossip": {"graph": "ring", "degree": 2}})
    yield Deviation("server", {"server.min_clients": 1})
    yield Deviation("rounds", {"rounds": 2})
    yield Deviation("where", {"where": "files"})
    yield Deviation("where", {"where": "http", "engine": "spark"})
    yield Deviation("where", {"engine": "spark"})
    yield Deviation("where", {"engine": "jax"})
    yield Deviation("where", {"engine": "auto", "where": "files"})
    yield Deviation("where", {"where": "files", "engine": "jax"})
    yield Deviation("evaluation", {"evaluation.trained": True})
    yield Deviation("evaluation", {"evaluation.newcomers": 2})
    yield Deviation("evaluation", {"evaluation.decided_by": "personal"})
    yield Deviation("early_stopping", {"early_stopping": {"patience": 2}})
    yield Deviation("early_stopping", {"early_stopping": {"patience": 2}, "data.validation": 0.1})
    yield Deviation("attack", {"attack": {"attack": "sign_flip"}})
    yield Deviation("attack", {"attack": {"attack": "label_flip", "share": 0.1}})
    yield Deviation("limits", {"limits": {"examples": 10}})
    drift = {"at": 2, "over": 1, "to": {"noise_variance": 1.0}}
    yield Deviation("data", {"data": {"users": 20}, "model": {"name": "frecency-2018"}})
    yield Deviation("data", {"data": {"users": 20, "population": {"drift": drift}}, "model": {"name": "frecency-2018"}})


def file_bases() -> dict[str, dict[str, Any]]:
    """Return the tables of accepted laboratory files, by name."""
    model, data = {"name": "logistic-regression"}, {"name": "breast-cancer"}
    plain = {"rounds": 5, "model": model, "data": data, "training": GRADIENT}
    local = {**plain, "training": LOCAL}
    return {
        "plain": plain,
        "local": local,
        "personal": {**plain, "training": {**LOCAL, "personal": FINE_TUNED}},
        "stateful": {**plain, "training": SCAFFOLD, "server": {"weighting": "client"}},
        "gossip": {**local, "gossip": {"graph": "ring"}},
        "co_op": {**local, "co_op": {}},
        "private": {**plain, "privacy": {"central": CENTRAL}, "server": {"weighting": "client"}},
    }


def _places(changes: Mapping[str, Any]) -> Iterator[tuple[list[str], Any]]:
    for place, value in changes.items():
        yield place.split("."), value


def changed(base: dict[str, Any], deviations: Sequence[Deviation]) -> dict[str, Any]:
    """Return the tables of a base with deviations; deviations of whole tables are applied first."""
    tables = deepcopy(base)
    given = sorted((each for one in deviations for each in _places(one.changes)), key=lambda each: len(each[0]))
    for path, value in given:
        inner: Any = tables
        for step in path[:-1]:
            inner = inner[int(step)] if step.isdigit() else inner.setdefault(step, {})
        last = path[-1]
        if last.isdigit():
            inner.append(deepcopy(value))
        elif value is None:
            inner.pop(last, None)
        else:
            inner[last] = (
                {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value
            )
    return tables


def combinations_of(names: Iterable[str], label: str) -> Iterator[tuple[str, ...]]:
    """Yield the combinations of deviations in the grid of a base, by name: none, single ones, pairs and triples.

    With more names, all combinations of fewer names are still included.

    Args:
        names: the names of the deviations, which begin with their axis.
        label: the base's label.
    """
    ordered = sorted(names)
    yield ()
    yield from ((name,) for name in ordered)
    after: dict[str, list[str]] = {name: [] for name in ordered}
    for place, first in enumerate(ordered):
        for second in ordered[place + 1 :]:
            if _axis(first) != _axis(second) and _draw(label, first, second) < PAIRS:
                after[first].append(second)
                yield first, second
    for first in ordered:
        for second in after[first]:
            for third in after[second]:
                if _axis(first) != _axis(third) and _draw(label, first, second, third) < TRIPLES:
                    yield first, second, third


def _axis(name: str) -> str:
    return name.partition(": ")[0]


def _draw(*words: str) -> float:
    """Return a number in [0, 1) derived from words."""
    return int.from_bytes(hashlib.blake2b("\n".join(words).encode(), digest_size=6).digest()) / 2**48


def deviations_of(kind: str) -> dict[str, Deviation]:
    """Return the deviations of studies or of laboratory files ("study" or "file"), by name."""
    deviations = [*(_study_deviations() if kind == "study" else _file_deviations())]
    by_name = {each.name: each for each in deviations}
    assert len(by_name) == len(deviations), "two deviations are the same"
    return by_name


def bases_of(kind: str) -> dict[str, dict[str, Any]]:
    """Return the tables of the bases of studies or of laboratory files, by label, such as "study plain"."""
    _register()
    return {f"{kind} {name}": base for name, base in (study_bases() if kind == "study" else file_bases()).items()}


def sentences(label: str, tables: dict[str, Any]) -> tuple[str, ...]:
    """Return the sentences of the verdict on tables: "accepted" with the advice, or the reasons of the rejection."""
    return _of_study(tables) if label.startswith("study") else _of_file(tables)


def _of_study(tables: dict[str, Any]) -> tuple[str, ...]:
    stage = "study"
    found: list[str] = []
    try:
        study = converted(tables, Study, "")
        new = new_study(study)
        found += [_protection(line.pipeline) for line in new.lines]
        for line in study.lines:
            stage = "server's end"
            receiving(line)
            stage = "clients' end"
            sending(line)
        stage = "creation"
        found += check_study(new)
    except FedpingError as error:
        return f"refused as {stage}", str(error)
    return "accepted", *found


def _protection(pipeline: Any) -> str:
    """Return a description of a new study's protection of a line."""
    clip, optimizer = pipeline.clip, pipeline.optimizer
    units = f" in {clip.units}s" if isinstance(clip, ClipByQuantile) else ""
    quorum = isinstance(optimizer, RProp) and optimizer.quorum is not None
    return f"clips {type(clip).__name__}{units}{' with a quorum' if quorum else ''}"


def _of_file(tables: dict[str, Any]) -> tuple[str, ...]:
    try:
        experiment_of(tables, name="grid", folder=Path())
    except FedpingError as error:
        return "refused as file", str(error)
    return ("accepted",)


_KEY = re.compile(r"'([a-z_][a-z_0-9-]*)'|(\[[a-z_][a-z_.]*\])")
_NAMES = {"main", "second", "s", "a", "c", "control", "treatment", "mine", "grid"}


def keys_of(sentence: str) -> str:
    """Return the settings and tables that a sentence names, in order, without names chosen by a file."""
    found = {quoted or table for quoted, table in _KEY.findall(sentence)} - _NAMES
    return " ".join(sorted(found)) or sentence.partition(" ")[0]
