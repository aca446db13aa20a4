"""What is wrong with a table of settings, in a sentence that names the table, the key, and what could stand there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from msgspec import ValidationError, inspect

from fedping.protocol.errors import UnfitTable
from fedping.protocol.extensions import TO_LOAD, all_of, is_own, kind_of, structs_of
from fedping.protocol.weights import NAME_PATTERN

_PLACE = re.compile(r"^(?P<said>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_QUOTED = re.compile(r"[`'](.*)[`']")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_MOST_LISTED = 25
_WORDS = {
    "`int`": "a whole number",
    "`float`": "a number",
    "`str`": "a text",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "a table",
    "`null`": "nothing",
    f"a text matching regex {NAME_PATTERN!r}": "a name of letters, digits, '.', '_' and '-'",
}
"""What the library says of types, in the words of a TOML file."""


def validation_message(error: ValidationError, raw: Any, kind: Any, inside: Sequence[str] = ()) -> str:
    """Return the sentence for an error of :func:`msgspec.convert`.

    Args:
        error: says in the library's words what was expected, and where.
        raw: the tables that were to be converted, or of which one was.
        kind: into what.
        inside: where the table that was to be converted stands among the tables.
    """
    place = _PLACE.match(str(error))
    assert place is not None
    said, own = place["said"], _steps(place["path"] or "")
    path, part = [*inside, *own], _value_at(raw, inside)
    if isinstance(error.__cause__, UnfitTable):
        return f"{_table(path, raw)}: {error.__cause__}" if path else str(error.__cause__)
    quoted = _QUOTED.search(said)
    name = quoted[1] if quoted else ""
    if said.startswith("Object contains unknown field"):
        names = _names(_type_at(kind, part, own), part, own)
        has_none = f"{_table(path, raw)} has no setting" if path else "there is no setting"
        return f"{has_none} '{name}'{_above(name, kind, raw, path) or _instead(name, names)}"
    if said.startswith("Object missing required field"):
        return (
            f"{_table(path, raw)} needs the setting '{name}'; add it"
            if path
            else f"the setting '{name}' is missing; add it"
        )
    if said.startswith("Invalid"):
        choices, more = _values(kind, part, own), _extension_to_name(kind, part, own)
        given = f"'{name}'" if quoted else _short(_value_at(raw, path))
        if more and not choices:
            return f"{_setting(path, raw)} is {given}, and no extension of that name is loaded; {TO_LOAD}"
        return f"{_setting(path, raw)} is {given}{_listed('choose one of', choices)}{more}"
    if not path:
        return said
    for word, plain in _WORDS.items():
        said = said.replace(word, plain)
    return f"{_setting(path, raw)} is {_short(_value_at(raw, path))}: {said[0].lower()}{said[1:]}"


def _steps(path: str) -> list[str]:
    return [name or number for name, number in _STEP.findall(path)]


def _table(path: Sequence[str], raw: Any) -> str:
    """Return a table as the file heads it, and in lists which: "[lines.spec.weights] of weight 3 ('c') of line 1"."""
    places = [_place(path[: depth + 1], raw) for depth, step in enumerate(path) if step.isdigit()]
    return f"[{'.'.join(step for step in path if not step.isdigit())}]" + "".join(reversed(places))


def _place(path: Sequence[str], raw: Any) -> str:
    """Return which of a list's tables a path ends at, with its name if it has one."""
    lists, table = path[-2] if path[:-1] else "", _value_at(raw, path)
    what = lists.removesuffix("s") if lists.endswith("s") else "entry"
    name = table.get("name") if isinstance(table, Mapping) else None
    return f" of {what} {int(path[-1]) + 1}" + (f" ({_short(name)})" if isinstance(name, str) else "")


def _setting(path: Sequence[str], raw: Any) -> str:
    if path[-1].isdigit() and path[:-1]:
        return f"value {int(path[-1]) + 1} of {_setting(path[:-1], raw)}"
    return f"'{path[-1]}' in {_table(path[:-1], raw)}" if path[:-1] else f"'{path[-1]}'"


def _above(name: str, kind: Any, raw: Any, path: Sequence[str]) -> str:
    """Return where a setting belongs that an outer table has, below whose own tables it was written; else nothing."""
    for depth in range(len(path) - 1, -1, -1):
        outer = path[:depth]
        if name in _names(_type_at(kind, raw, outer), raw, outer):
            if outer:
                return f"; it is one of {_table(outer, raw)}: write it above the tables of that"
            return "; it is one of the whole file: write it above the first table"
    return ""


def _instead(name: str, settings: Sequence[str]) -> str:
    """Return what to write instead of a name that is none of the settings."""
    near = get_close_matches(name, settings, n=1)
    return f"; did you mean '{near[0]}'?" if near else _listed("choose one of", settings)


def _listed(before: str, choices: Sequence[str]) -> str:
    return f"; {before} {', '.join(choices)}" if 0 < len(choices) <= _MOST_LISTED else ""


def _value_at(raw: Any, path: Sequence[str]) -> Any:
    for step in path:
        if isinstance(raw, Mapping):
            raw = raw.get(step)
        elif isinstance(raw, Sequence) and step.isdigit() and int(step) < len(raw):
            raw = raw[int(step)]
    return raw


def _type_at(kind: Any, raw: Any, path: Sequence[str]) -> inspect.Type | None:
    """Return what may stand at a place; of several structs the one that the value there chooses."""
    found: inspect.Type | None = inspect.type_info(kind)
    for depth, step in enumerate(path):
        if isinstance(found, inspect.VarTupleType):
            found = found.item_type
            continue
        struct = _struct(found, _value_at(raw, path[:depth]))
        found = next((field.type for field in struct.fields if field.encode_name == step), None) if struct else None
    return found


def _struct(found: inspect.Type | None, value: Any) -> inspect.StructType | None:
    structs = structs_of(found)
    if len(structs) > 1 and isinstance(value, Mapping):
        structs = [each for each in structs if each.tag_field and value.get(each.tag_field) == each.tag]
    return structs[0] if len(structs) == 1 else None


def _names(found: inspect.Type | None, raw: Any, path: Sequence[str]) -> list[str]:
    """Return the settings that a table has."""
    struct = _struct(found, _value_at(raw, path))
    return [field.encode_name for field in struct.fields] if struct else []


def _values(kind: Any, raw: Any, path: Sequence[str]) -> list[str]:
    """Return what a setting may be: the tags of the structs that its table may be, or the words of a literal."""
    structs = [each for each in structs_of(_type_at(kind, raw, path[:-1])) if path and each.tag_field == path[-1]]
    if structs:
        extensions = [each.name for own in structs if is_own(own) for each in all_of(kind_of(own))]
        return [*(str(each.tag) for each in structs if not is_own(each)), *extensions]
    found = _type_at(kind, raw, path)
    types = found.types if isinstance(found, inspect.UnionType) else (found,)
    return [str(value) for each in types if isinstance(each, inspect.LiteralType) for value in each.values]


def _extension_to_name(kind: Any, raw: Any, path: Sequence[str]) -> str:
    """Return what to do about an extension that is not loaded, where one may stand."""
    structs = [each for each in structs_of(_type_at(kind, raw, path[:-1])) if path and each.tag_field == path[-1]]
    return f", or, if it is an extension, {TO_LOAD}" if any(map(is_own, structs)) else ""


def _short(value: Any) -> str:
    text = f"'{value}'" if isinstance(value, str) else f"{value}"
    return text if len(text) <= 60 else f"{text[:57]}..."
