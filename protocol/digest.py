"""Digests: one canonical byte form of a value and its SHA-256, by which equal values are recognized later.

A digest outlives the code behind it: a new struct field changes no digest while the field has its default. Fields that
equal their default are left out, except those of :data:`WRITTEN_OUT`, which existed before this rule. So the default of
a released field never changes; a different default needs a new field (``tests/protocol/digested.json`` checks this).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import NODEFAULT, Struct, inspect

_canonical = msgspec.json.Encoder(order="sorted")

WRITTEN_OUT: Mapping[str, str] = {
    # a study
    "Study": "pings lines",
    "Arm": "line applies submits decays",
    "Line": "training pipeline",
    "ModelSpec": "settings weights blocks constraints margin epsilon",
    "Weight": "kind integer",
    "Block": "start kind integer",
    "NonNegative": "mode",
    "OrderedCutoffs": "gap first",
    "OneGradient": "batch sign",
    "LocalSteps": "epochs steps batch proximal sign",
    "Pipeline": "optimizer weighting aggregate staleness min_clients",
    "RProp": "alpha beta rate_rounding",
    "GradientDescent": "rate decay",
    "Momentum": "rate decay beta nesterov",
    "Adam": "rate decay beta1 beta2 epsilon bias_correction initial",
    "Yogi": "rate decay beta1 beta2 epsilon bias_correction initial",
    "Adagrad": "rate decay beta1 epsilon initial",
    "MeanOfSigns": "zero",
    "Recluster": "iterations",
    "Staleness": "most weight",
    # a version
    "Lineage": "inputs counts arms ages aggregate window_end_ms restored",
    # an experiment of the laboratory
    "Setup": "partition training sampling lateness where engine evaluation early_stopping",
    "EarlyStopping": "metric patience rise",
    "Data": "name file users population groups judges target features client choice kind test validation folds "
    "stratified most clip clip_beyond drop_constant standardise class_weights",
    "UserGroup": "population",
    "PopulationSettings": "days recency_skew kinds mean_visits searches candidates_mean candidates_variance "
    "most_candidates noise_variance true_weights nothing_selected other_visits redirect_sources bookmarked unvisited",
    "Iid": "least",
    "Shards": "shards least",
    "Labels": "labels least",
    "Dirichlet": "alpha least",
    "ByKey": "pieces least",
    "PowerLaw": "exponent least",
    "RandomSizes": "alpha least",
    "FixedSize": "clients least",
    "Bernoulli": "share",
    "Stratified": "by",
    "Cluster": "clusters",
    # a simulated study; two names are also the laboratory's
    "Experiment": "seed start tick_minutes gradient users activity evaluation",
    "Evaluation": "every local task metric baselines baseline_iterations searches_per_day activity_shape",
    "EarlyStop": "patience smooth",
    "Optimization": "searches_per_day activity_shape length early_stopping",
    "FixedLength": "ticks",
    "LengthByClients": "most",
    "LengthBySigns": "z share most",
    "UserSettings": "vocabulary zipf pages hosts days mean_visits kinds habit other_visits redirect_sources bookmarked "
    "unvisited considered true_weights sharpness drift_at drifted_weights first_look rows take fade patience "
    "nothing_selected milliseconds enter",
    "ActivitySettings": "swing peak_hour away rollout_days fetch_late",
    # a question to a study
    "Asked": "metrics guardrails pairs alpha correction from_iteration to_iteration since until interim "
    "planned_clients enrolled",
}
"""Fields that are written even at their default, by the struct's ``digest_name``: those older than the rule that leaves
defaults out. No field is ever added here. A struct keeps its ``digest_name`` when its class is renamed; a struct
without a ``digest_name`` has no such fields."""

ADDED_WITHIN: Mapping[str, str] = {"ArmSummary": "clipped outcomes"}
"""Fields, by ``digest_name``, that are left out at their default within a struct with ``omit_defaults``.

All other fields are written there, because the first digests left out nothing within such a struct. A new field of a
struct within one has to be listed here, so that it changes no digest."""


def canonical_json(value: Struct) -> bytes:
    """Return the JSON of a document with sorted keys and no white space: equal documents have equal bytes.

    The document is encoded, decoded and encoded again. Otherwise a float field with a whole number would be ``1`` in
    the program that made the document, and ``1.0`` in a program that read it.
    """
    return _canonical.encode(_shortened(msgspec.json.decode(_canonical.encode(value), type=type(value))))


def digest_of(value: Struct) -> str:
    """Return the SHA-256 (hexadecimal) of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


class _Field(NamedTuple):
    """A struct's field: whether it is left out if its JSON is ``default``, and whether its structs have such fields."""

    name: str
    written: str
    default: bytes | None
    inside: bool


def _shortened(value: Any, within: bool = False) -> Any:
    """Return a value without the fields that are left out; it is copied only if there are any, since vectors are long.

    ``within`` says whether it is in a struct that omits its own defaults.
    """
    if isinstance(value, Struct):
        if (plan := _plan(type(value), within)) is None:
            return value
        config = type(value).__struct_config__
        found: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field else {}
        if config.omit_defaults:
            within = True
            written = msgspec.json.decode(_canonical.encode(value))
            plan = tuple(field for field in plan if field.written in written)
        for field in plan:
            item = getattr(value, field.name)
            shortened = _shortened(item, within) if field.inside else item
            if field.default is None or _canonical.encode(shortened) != field.default:
                found[field.written] = shortened
        return found
    if isinstance(value, dict):
        return {key: _shortened(item, within) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_shortened(item, within) for item in value]
    return value


@lru_cache(maxsize=1024)
def _plan(kind: type[Struct], within: bool = False) -> tuple[_Field, ...] | None:
    """Return the fields of a struct; None if neither the struct nor a struct within it leaves out fields."""
    omits = kind.__struct_config__.omit_defaults
    names = [vars(each).get("digest_name", "") for each in kind.__mro__]
    kept, added = (
        {field for name in names for field in fields.get(name, "").split()} for fields in (WRITTEN_OUT, ADDED_WITHIN)
    )
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)

    def default(field: inspect.Field) -> bytes | None:
        is_left_out = field.name in added if within else field.name not in kept
        if omits or field.required or not is_left_out:
            return None
        return _canonical.encode(_shortened(_default(field), within))

    plan = tuple(
        _Field(
            field.name,
            field.encode_name,
            default(field),
            any(_plan(each, within or omits) is not None for each in _structs(field.type)),
        )
        for field in info.fields
    )
    return plan if any(field.default is not None or field.inside for field in plan) else None


def _default(field: inspect.Field) -> Any:
    return field.default_factory() if field.default_factory is not NODEFAULT else field.default


def _structs(kind: inspect.Type) -> Iterator[type[Struct]]:
    """Yield the structs that a value of a type may be, or hold in lists and tables."""
    if isinstance(kind, inspect.StructType):
        yield kind.cls
        return
    for name in kind.__struct_fields__:
        part = getattr(kind, name)
        for each in part if isinstance(part, tuple) else (part,):
            if isinstance(each, inspect.Type):
                yield from _structs(each)
