"""Conversion of an experiment's tables to a filled-in form, and of a posted form to tables.

Empty fields are omitted from the file, so that it has only what a person entered, and defaults remain defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedping.dashboard.runs.form.nodes import Choice, Field, Node, Option, Table, fields_of
from fedping.dashboard.runs.form.schema import KIND, laboratory_nodes, nodes_for
from fedping.dashboard.runs.judging import Problem
from fedping.experiments.laboratory.settings.experiment import DEFAULTS_OF_LINE
from fedping.experiments.laboratory.settings.merging import LINE_TABLE, Raw, merged, nested, toml_value, without_line
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.settings_file import value_text

ON = "on"
_VARIANTS = "variants"


@dataclass(frozen=True)
class Difference:
    """A setting that a variant changes: its dotted name, and the value as TOML."""

    key: str
    value: str


@dataclass(frozen=True)
class Arm:
    """A variant in the form."""

    name: str
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Filled:
    """The contents of a form: the fields' values by name, the variants, and the settings without a field."""

    values: Mapping[str, str]
    arms: Sequence[Arm] = ()
    unplaced: Sequence[str] = field(default_factory=tuple)


def filled_form(tables: Mapping[str, Any]) -> Filled:
    """Return the form filled with an experiment's tables, which need not be valid."""
    if LINE_TABLE in tables:
        with suppress(InvalidSettings):  # then the form lists [line] among the settings without a field
            tables = merged(DEFAULTS_OF_LINE, without_line(tables))
    kind = {KIND: "study"} if "study" in tables else {}
    nodes = nodes_for(kind)
    values = kind | {each.name: ON for each in fields_of(nodes) if each.widget == "flag" and each.default == "true"}
    unplaced = list(_fill({key: value for key, value in tables.items() if key != _VARIANTS}, nodes, values))
    variants = tables.get(_VARIANTS, ())
    arms: list[Arm] = []
    if isinstance(variants, list | tuple) and all(isinstance(each, Mapping) for each in variants):
        arms = [_arm(each) for each in variants]
    elif variants:
        unplaced.append(_VARIANTS)
    return Filled(values, arms, unplaced)


def tables_of(form: Mapping[str, str], arms: Sequence[Arm]) -> Raw:
    """Return the tables that a filled-in form describes, not yet checked.

    Raises:
        InvalidSettings: a variant's dotted name leads into a setting that is not a table.
    """
    tables = _read(nodes_for(form), form)
    if form.get(KIND) == "study":
        return tables
    if "users" in tables.get("data", {}):
        tables.pop("partition", None)  # each synthetic user is a client
    variants = [_variant(arm) for arm in arms]
    name = {"name": tables.pop("name")} if "name" in tables else {}
    return {**name, **tables, **({_VARIANTS: variants} if variants else {})}


def _fill(table: Mapping[str, Any], nodes: Sequence[Node], values: dict[str, str]) -> Iterator[str]:
    """Write a table's settings into ``values``; yield the dotted names of settings without a node."""
    yield from sorted(table.keys() - {node.key for node in nodes})
    for node in nodes:
        value = table.get(node.key)
        if isinstance(node, Field):
            if value is not None:
                values[node.name] = _text(node, value)
        elif value is not None and not isinstance(value, Mapping):
            yield node.key
        else:
            fill = (
                _fill(value or {}, node.children, values)
                if isinstance(node, Table)
                else _fill_choice(value, node, values)
            )
            yield from (f"{node.key}.{inner}" for inner in fill)


def _fill_choice(table: Mapping[str, Any] | None, choice: Choice, values: dict[str, str]) -> Iterator[str]:
    if table is None:
        table = {} if choice.tag is None else {choice.tag: choice.default, **choice.settled}
        option: Option | None = next(each for each in choice.options if each.value == choice.default)
    else:
        option = _chosen(table, choice)
    if option is None:
        yield choice.tag or next(iter(table), "")
        return
    values[choice.name] = option.value
    yield from _fill({key: value for key, value in table.items() if key != choice.tag}, option.children, values)


def _chosen(table: Mapping[str, Any], choice: Choice) -> Option | None:
    """Return the option that a table chooses; None for an unknown one."""
    if choice.tag is not None:
        wanted = table.get(choice.tag, choice.default)
        return next((each for each in choice.options if each.value == wanted), None)
    if choice.optional:
        return choice.options[-1]
    sources = {option.children[0].key: option for option in choice.options}
    return next((option for key, option in sources.items() if key in table), choice.options[0])


def _text(node: Field, value: Any) -> str:
    if node.widget == "flag" and isinstance(value, bool):
        return ON if value else ""
    return value if isinstance(value, str) and node.widget != "toml" else value_text(value)


def _read(nodes: Sequence[Node], form: Mapping[str, str]) -> Raw:
    found: Raw = {}
    for node in nodes:
        value = _value(node, form)
        if value is not None:
            found[node.key] = value
    return found


def _value(node: Node, form: Mapping[str, str]) -> Any:
    """Return the value of a setting or a table in a form; None if it is empty."""
    if isinstance(node, Field):
        return _setting(node, form.get(node.name))
    if isinstance(node, Table):
        return _read(node.children, form) or None
    chosen = form.get(node.name, node.default)
    option = next((each for each in node.options if each.value == chosen), None)
    if option is None:
        return {node.tag: chosen} if node.tag else None
    if node.optional and option is node.options[0]:
        return None
    inside = _read(option.children, form)
    if node.tag is None:
        return inside
    return None if not inside and node.rare and chosen == node.default else {node.tag: chosen, **inside}


def _setting(node: Field, text: str | None) -> Any:
    if node.widget == "flag":
        given = text == ON
        return None if given == (node.default == "true") else given
    if text is None or not text.strip():
        return None
    if node.widget in ("text", "select"):
        return text.strip()
    return toml_value(" ".join(text.split()))


def _arm(variant: Mapping[str, Any]) -> Arm:
    rest = {key: value for key, value in variant.items() if key != "name"}
    return Arm(str(variant.get("name", "")), tuple(Difference(*each) for each in _leaves(rest, "")))


def _leaves(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", _bare(value)


def _bare(value: Any) -> str:
    """Return a value as TOML, without quotes for a text that is read back unchanged without them."""
    return value if isinstance(value, str) and value and toml_value(value.strip()) == value else value_text(value)


def _variant(arm: Arm) -> Raw:
    changes = {each.key: toml_value(each.value.strip()) for each in arm.differences if each.key}
    return {**({"name": arm.name.strip()} if arm.name.strip() else {}), **nested(changes)}


_ARM = re.compile(r"arm\.(\d{1,4})\.(name|key|value)(?:\.(\d{1,4}))?")


def arms_of(form: Mapping[str, str]) -> list[Arm]:
    """Return the variants of a posted form, in order, without those that have neither name nor settings."""
    names: dict[int, str] = {}
    keys: dict[tuple[int, int], dict[str, str]] = {}
    for input_name, value in form.items():
        if match := _ARM.fullmatch(input_name):
            arm, what, number = int(match[1]), match[2], match[3]
            if what == "name":
                names[arm] = value
            elif number is not None:
                keys.setdefault((arm, int(number)), {})[what] = value
    arms = [
        Arm(names.get(arm, ""), tuple(_differences(keys, arm))) for arm in sorted({*names, *(arm for arm, _ in keys)})
    ]
    return [arm for arm in arms if arm.name.strip() or arm.differences]


def _differences(keys: Mapping[tuple[int, int], Mapping[str, str]], arm: int) -> Iterator[Difference]:
    for (whose, _), said in sorted(keys.items()):
        if whose == arm and said.get("key") and said.get("value", "").strip():
            yield Difference(said["key"], said["value"])


def input_of(problem: Problem, form: Mapping[str, str], arms: Sequence[Arm]) -> str | None:
    """Return the name of the visible input that a problem is about; None if there is no such input."""
    if problem.variant is not None:
        return _input_of_variant(problem, arms)
    if problem.path is None:
        return None
    seen = dict(_seen(nodes_for(form), form))
    return seen.get(problem.path)


def _input_of_variant(problem: Problem, arms: Sequence[Arm]) -> str | None:
    for number, arm in enumerate(arms):
        if arm.name.strip() == problem.variant:
            for row, difference in enumerate(arm.differences):
                if difference.key == problem.path:
                    return f"arm.{number}.value.{row}"
            return f"arm.{number}.name"
    return None


def _seen(nodes: Sequence[Node], form: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the paths of the chosen settings, and the names of their inputs."""
    for node in nodes:
        if isinstance(node, Field):
            yield node.path, node.name
        elif isinstance(node, Table):
            yield from _seen(node.children, form)
        else:
            yield node.path, node.name
            if node.tag is not None:
                yield f"{node.path}.{node.tag}", node.name
            yield from _seen(_chosen_nodes(node, form), form)


def _chosen_nodes(node: Choice, form: Mapping[str, str]) -> Sequence[Node]:
    chosen = form.get(node.name, node.default)
    return next((option.children for option in node.options if option.value == chosen), ())


def settings() -> dict[str, Field]:
    """Return the settings that a variant may change, by dotted name; choices count as settings."""
    found: dict[str, Field] = {}
    for node in _all(laboratory_nodes()):
        found.setdefault(node.path, node)
    return {path: field for path, field in found.items() if path not in ("name", "seeds")}


def _all(nodes: Sequence[Node]) -> Iterator[Field]:
    for node in nodes:
        if isinstance(node, Choice):
            if node.tag is not None:
                options = tuple((option.value, option.label) for option in node.options if option.value)
                yield Field(
                    path=f"{node.path}.{node.tag}",
                    name="",
                    label=node.label,
                    widget="select",
                    options=options,
                    help=node.help,
                )
            for option in node.options:
                yield from _all(option.children)
        else:
            yield from (node,) if isinstance(node, Field) else _all(node.children)
