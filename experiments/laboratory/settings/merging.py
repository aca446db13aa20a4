"""Merges the changes of a variant, a grid or the command line into an experiment's settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias

from msgspec.structs import fields

from fedping.experiments.laboratory.settings.setup import Setup
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.study import Line, LineSettings

Raw: TypeAlias = dict[str, Any]

CHOICES = {
    "model": "name",
    "spec": "model",
    "training": "algorithm",
    "optimizer": "optimizer",
    "aggregate": "by",
    "clip": "by",
    "partition": "partition",
    "sampling": "sampling",
    "attack": "attack",
    "available": "by",
    "local": "mechanism",
    "personal": "by",
    "contribution": "by",
    "gossip": "graph",
    "clusters": "by",
}
"""The key in each table whose value determines the table's other settings, such as ``algorithm`` in [training]."""

OPTIONAL = frozenset(
    {
        "attack",
        "available",
        "clock",
        "clusters",
        "early_stopping",
        "gossip",
        "hierarchy",
        "lateness",
        "limits",
        "personal",
        "privacy",
        "randomised_response",
    }
)
"""The tables that may be absent. An empty one in a variant removes the table that it would change."""

MOST_POINTS = 10_000
"""Maximum points of a sweep; before the first is trained, all are checked and listed on one page."""

LONGEST_NAME = 64
"""Maximum characters in a variant's name, which is also the name of a folder."""

SOURCES = ("name", "file", "users")
"""The sources of [data]; each has its own settings."""

LINE_TABLE = "line"
"""The table where a file may write the settings of a line in a study's form."""

SETTINGS_OF_LINE = {"spec": "spec"} | {
    field.name: field.encode_name for field in fields(Setup) if field.name in LineSettings.__struct_fields__
}
"""Maps the names of settings in a study's line to their names in a file without a [line]."""

_INSTEAD = {
    "length": ", and set 'rounds' of the experiment",
    "early_stopping": ", or set [early_stopping] of the experiment",
    "participation": ", or set [sampling] of the experiment",
}
"""Maps settings of a study's line that a [line] lacks to the experiment's settings to use instead."""


def of_file(raw: Mapping[str, Any]) -> Raw:
    """Return a file's tables in the form without a [line]; if the file has a [line], an empty one stays."""
    return {**without_line(raw), LINE_TABLE: {}} if LINE_TABLE in raw else dict(raw)


def without_line(tables: Mapping[str, Any]) -> Raw:
    """Return tables with the settings of their [line] moved to where a file without a [line] has them.

    Raises:
        InvalidSettings: [line] has an unknown setting, or a setting that also occurs outside of it.
    """
    if LINE_TABLE not in tables:
        return dict(tables)
    line = tables[LINE_TABLE]
    if not isinstance(line, Mapping):
        raise InvalidSettings("'line' is not a table. Write the settings of a study's line in [line]")
    result = {key: value for key, value in tables.items() if key != LINE_TABLE}
    for key, value in line.items():
        if key == "name":  # the line of a run has its own name
            continue
        name = SETTINGS_OF_LINE.get(key)
        if name is None and key in Line.__struct_fields__:
            raise InvalidSettings(
                f"[line] has '{key}', which only the lines of studies have. Remove it{_INSTEAD.get(key, '')}"
            )
        if name is None:
            raise InvalidSettings(f"[line] has no setting '{key}'. Choose one of name, {', '.join(SETTINGS_OF_LINE)}")
        if name in result:
            raise InvalidSettings(f"'{name}' and '{key}' in [line] are the same setting. Remove one of them")
        result[name] = value
    return result


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Raw:
    """Return ``below`` changed by ``above``: tables are merged, other values are replaced.

    A table that makes another choice, such as another optimizer, replaces the whole table, because its other settings
    belonged to the previous choice. If ``below`` makes no choice, its settings belong to the choice in ``above``. An
    empty optional table replaces the table in ``below`` and stays in the result, so that it also removes the table at
    the next merge (:func:`laid_over`).
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _replaces(key, old, value):
            value = merged(old, value)
        result[key] = value
    return result


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> Raw:
    """Return ``below`` changed by ``above``, without the optional tables that are empty in ``above``."""
    return _without_empty(merged(below, above), above)


def _without_empty(tables: Mapping[str, Any], above: Mapping[str, Any]) -> Raw:
    return {
        key: _without_empty(value, above[key]) if isinstance(above.get(key), Mapping) else value
        for key, value in tables.items()
        if not (key in OPTIONAL and above.get(key) == {})
    }


def _replaces(table: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return (table in OPTIONAL and not new) or _chooses_another(table, old, new)


def _chooses_another(table: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    if table == "data":
        return any(source in new and source not in old for source in SOURCES)
    choice = CHOICES.get(table)
    return choice is not None and choice in new and choice in old and new[choice] != old[choice]


def nested(dotted: Mapping[str, Any]) -> Raw:
    """Return settings with dotted keys such as "training.rate" as nested tables without a [line].

    Raises:
        InvalidSettings: a key has an empty part, a setting is inside another that is not a table, or for the reasons of
            :func:`without_line`.
    """
    return without_line(_nested(dotted))


def _nested(dotted: Mapping[str, Any]) -> Raw:
    result: Raw = {}
    for key, value in sorted(dotted.items(), key=lambda each: not _makes_a_choice(each[0])):
        parts = key.split(".")
        if not all(parts):
            raise InvalidSettings(f"'{key}' is not the name of a setting; write it as in 'training.rate'")
        inner: Any = _nested(value) if isinstance(value, Mapping) else value
        for part in reversed(parts):
            inner = {part: inner}
        result = merged(result, inner)
    return result


def _makes_a_choice(key: str) -> bool:
    """Return whether a key such as "data.name" determines the other settings of its table."""
    *_, table, last = ("", *key.split("."))
    return (table == "data" and last in SOURCES) or CHOICES.get(table) == last


def variants_of(raw: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Return the variants in an experiment's tables, or one without settings if there are none.

    Return None if they are not a list of tables; the error is raised when the tables are read later.
    """
    variants = raw.get("variants") or [{}]
    is_list_of_tables = isinstance(variants, list) and all(isinstance(variant, Mapping) for variant in variants)
    return variants if is_list_of_tables else None


def assignments(texts: Iterable[str]) -> Raw:
    """Return the settings in texts such as "training.rate=0.1". Values are as in TOML, but bare words are strings.

    Raises:
        InvalidSettings: a text has no '=' or no key.
    """
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidSettings(f"'{text}' does not set anything; write it as in training.rate=0.1")
        settings[key.strip()] = toml_value(value.strip())
    return nested(settings)


def toml_value(text: str) -> Any:
    """Return the value of a text in TOML's notation; any other text is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or thousands of digits or brackets
        return text


def with_grid(raw: Mapping[str, Any], over: Sequence[str]) -> Raw:
    """Return an experiment's tables with each of its variants, if any, at each point of a grid.

    Args:
        raw: the tables, as TOML gives them.
        over: texts such as "training.rate=0.1,0.3", one per axis of the grid; values are written as in TOML.

    Raises:
        InvalidSettings: a text has no setting or no value, two texts have the same setting, or the points are too many.
    """
    axes = [axis(text) for text in over]
    keys = [key for key, _ in axes]
    repeated = [key for key in keys if keys.count(key) > 1]
    if repeated:
        raise InvalidSettings(f"the setting '{repeated[0]}' is swept twice. Give all of its values at once")
    variants = variants_of(raw)
    if variants is None:
        return dict(raw)  # rejected later, with a message
    number = len(variants) * prod(len(values) for _, values in axes)
    if number > MOST_POINTS:
        raise InvalidSettings(
            f"the sweep has {number:,} points, and at most {MOST_POINTS:,} are trained in one; sweep over fewer values"
        )
    points = [dict(zip(keys, values, strict=True)) for values in product(*(values for _, values in axes))]
    swept = [_at(variant, point) for variant in variants for point in points]
    return {
        **raw,
        "variants": [{**each, "name": _fitting(each["name"], number)} for number, each in enumerate(swept, 1)],
    }


def axis(text: str) -> tuple[str, list[Any]]:
    """Return the setting and the values of a text such as "training.rate=0.1,0.3"."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise InvalidSettings(f"'{text}' is not an axis to sweep over. Write it as in training.rate=0.1,0.3")
    try:
        points: list[Any] = tomllib.loads(f"values = [{values}]")["values"]
    except (ValueError, RecursionError):  # not TOML, or thousands of digits or brackets
        points = [toml_value(value.strip()) for value in values.split(",")]
    return key.strip(), points


def _at(variant: Mapping[str, Any], point: Mapping[str, Any]) -> Raw:
    """Return a variant changed by a point of the grid, with a name that contains the point."""
    where = ", ".join(f"{key.rpartition('.')[2]}={_short(value)}" for key, value in point.items())
    own = {key: value for key, value in variant.items() if key != "name"}
    return {**merged(nested(own), nested(point)), "name": f"{variant['name']}, {where}" if "name" in variant else where}


def _short(value: Any) -> str:
    if isinstance(value, Mapping):  # as "adam rate=0.1", with the choice first
        return " ".join(
            _short(each) if key in CHOICES.values() else f"{key}={_short(each)}" for key, each in value.items()
        )
    if isinstance(value, list | tuple):
        return f"({' '.join(map(_short, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value).replace("/", "|")


def _fitting(name: str, number: int) -> str:
    """Return a point's name; if too long for a folder, shortened and made unique by the point's number."""
    if len(name) <= LONGEST_NAME:
        return name
    end = f"... {number}"
    return name[: LONGEST_NAME - len(end)].rstrip() + end
