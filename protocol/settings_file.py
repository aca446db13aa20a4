"""Settings in TOML: reading, conversion and writing. Errors are sentences that name the table and the key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import ValidationError, inspect

from fedping.protocol.errors import InvalidSettings, UnfitTable, did_you_mean
from fedping.protocol.extensions import TO_LOAD, OddSettings, all_of, is_own, kind_of, structs_of, with_own
from fedping.protocol.weights import NAME_PATTERN

T = TypeVar("T")


class NotToml(InvalidSettings):
    """A text is not TOML."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the unchecked tables of a file; ``what`` describes it in errors, as in "the study file".

    Raises:
        InvalidSettings: the file does not exist, or is not UTF-8 text or not TOML (:class:`NotToml`).
    """
    try:
        return tables_in(path.read_text(encoding="utf-8"), f"the {what} {path}")
    except IsADirectoryError as error:
        files = [each.name for each in sorted(path.glob("*.toml"))]
        inside = f": {path / files[0]}" if len(files) == 1 else ""
        raise InvalidSettings(f"cannot read the {what} {path}: it is a folder; give a file in it{inside}") from error
    except OSError as error:
        raise InvalidSettings(f"cannot read the {what} {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"the {what} {path} is not UTF-8 text; save it as UTF-8") from error


def tables_in(text: str, what: str) -> dict[str, Any]:
    """Return the unchecked tables of a text; errors begin with ``what``.

    Raises:
        NotToml: the text is not TOML, is nested too deeply, or has too long a number.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why = str(error)
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError:  # Python reads no number of more than 4,300 digits
        why = "it has a number of thousands of digits"
    raise NotToml(f"{what} is not valid TOML: {why}")


def read_settings(path: Path, kind: type[T], name: str) -> T:
    """Read a file with the settings of a single table, with or without its heading ``[name]``.

    Raises:
        InvalidSettings: the file does not exist, or a setting is invalid.
    """
    raw = read_toml(path, f"{name} file")
    table = raw[name] if isinstance(raw.get(name), dict) else raw
    return converted(table, kind, f"the {name} file {path}: ")


def converted(raw: Any, kind: type[T], where: str) -> T:
    """Return tables converted to ``kind``; errors begin with ``where``.

    Raises:
        InvalidSettings: the tables don't fit.
    """
    try:
        return msgspec.convert(with_own(raw, kind), kind)
    except OddSettings as odd:
        raise InvalidSettings(f"{where}{validation_message(odd.error, raw, odd.kind, odd.place)}") from odd
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{where}{validation_message(error, raw, kind)}") from error


_PLACE = re.compile(r"^(?P<said>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_QUOTED = re.compile(r"[`'](.*)[`']")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_ANY_NAME = "..."
"""The library's placeholder for a name that the user chooses."""
_MOST_LISTED = 25
_MOST_PLACES = 3
_DEEPEST = 4
"""Maximum depth of nested tables in which a misplaced setting is sought."""
_WORDS = {
    "`int`": "a whole number",
    "`float`": "a number",
    "`str`": "a text",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "a table",
    "`null`": "nothing",
    "`object | null`": "a table",
    "`int | null`": "a whole number",
    "`float | null`": "a number",
    "`str | null`": "a text",
    "`bool | null`": "true or false",
    "`array | null`": "a list",
    f"a text matching regex {NAME_PATTERN!r}": "a name of letters, digits, '.', '_' and '-'",
}
"""The library's names of types, with the words for them in messages."""


def validation_message(error: ValidationError, raw: Any, kind: Any, inside: Sequence[str] = ()) -> str:
    """Return the sentence for an error of :func:`msgspec.convert`.

    Args:
        error: the library's error, with the expected type and the place.
        raw: the tables.
        kind: the type that they, or the table at ``inside``, were converted to.
        inside: the place of the converted table among the tables.
    """
    place = _PLACE.match(str(error))
    assert place is not None
    part = _value_at(raw, inside)
    said, own = place["said"], _named(_steps(place["path"] or ""), str(error), part, kind)
    path = [*inside, *own]
    if isinstance(error.__cause__, UnfitTable):
        return f"{_table(path, raw)}: {error.__cause__}" if path else str(error.__cause__)
    quoted = _QUOTED.search(said)
    name = quoted[1] if quoted else ""
    if said.startswith("Object contains unknown field"):
        table = _type_at(kind, part, own)
        names = _names(table, part, own)
        has_none = f"{_table(path, raw)} has no setting" if path else "there is no setting"
        elsewhere = _above(name, kind, raw, path) or _below(name, _value_at(raw, [*path, name]), table)
        return f"{has_none} '{name}'{elsewhere or _instead(name, names)}"
    if said.startswith("Object missing required field"):
        for found, mended in _misspelt(name, _value_at(raw, path), structs_of(_type_at(kind, part, own))):
            return f"{f'{_table(path, raw)} has no setting' if path else 'there is no setting'} '{found}'{mended}"
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
    value = _value_at(raw, path)
    return f"{_setting(path, raw)} is {_short(value)}: {said[0].lower()}{said[1:]}{_as_table(value, kind, part, own)}"


def _misspelt(needed: str, table: Any, structs: Sequence[inspect.StructType]) -> Iterator[tuple[str, str]]:
    """Yield each unknown setting of a table that resembles a needed setting, with the suggestion."""
    known = {field.encode_name for struct in structs for field in struct.fields}
    for name in table if isinstance(table, Mapping) else ():
        if name not in known and (mended := did_you_mean(name, [needed])):
            yield name, mended


def _steps(path: str) -> list[str]:
    return [name or number for name, number in _STEP.findall(path)]


def _named(steps: Sequence[str], message: str, raw: Any, kind: Any) -> list[str]:
    """Return steps with the name that the library omits filled in: the name whose table alone causes the same error."""
    if _ANY_NAME not in steps:
        return list(steps)
    at = steps.index(_ANY_NAME)
    for name, value in _value_at(raw, steps[:at]).items():
        try:
            msgspec.convert(_replaced(raw, steps[:at], {name: value}), kind)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return _named([*steps[:at], name, *steps[at + 1 :]], message, raw, kind)
    return list(steps)


def _replaced(raw: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(raw, Mapping):
        return {key: _replaced(each, rest, value) if key == first else each for key, each in raw.items()}
    return [_replaced(each, rest, value) if str(i) == first else each for i, each in enumerate(raw)]


def _table(path: Sequence[str], raw: Any) -> str:
    """Return a table's heading, with its place in lists: "[lines.spec.weights] of weight 3 ('c') of line 1"."""
    places = [_place(path[: depth + 1], raw) for depth, step in enumerate(path) if step.isdigit()]
    return f"[{'.'.join(step for step in path if not step.isdigit())}]" + "".join(reversed(places))


def _place(path: Sequence[str], raw: Any) -> str:
    """Return a table's place in its list, such as " of weight 3", with the table's name if it has one."""
    lists, table = path[-2] if path[:-1] else "", _value_at(raw, path)
    what = lists.removesuffix("s") if lists.endswith("s") else "entry"
    name = table.get("name") if isinstance(table, Mapping) else None
    return f" of {what} {int(path[-1]) + 1}" + (f" ({_short(name)})" if isinstance(name, str) else "")


def _setting(path: Sequence[str], raw: Any) -> str:
    if path[-1].isdigit() and path[:-1]:
        return f"value {int(path[-1]) + 1} of {_setting(path[:-1], raw)}"
    return f"'{path[-1]}' in {_table(path[:-1], raw)}" if path[:-1] else f"'{path[-1]}'"


def _above(name: str, kind: Any, raw: Any, path: Sequence[str]) -> str:
    """Return the right place of a setting of an outer table that was written below its inner tables; else ""."""
    for depth in range(len(path) - 1, -1, -1):
        outer = path[:depth]
        if name in _names(_type_at(kind, raw, outer), raw, outer):
            if outer:
                return f"; it is one of {_table(outer, raw)}: write it above the tables of that"
            return "; it is one of the whole file: write it above the first table"
    return ""


def _below(name: str, value: Any, table: inspect.Type | None) -> str:
    """Return possible places of a setting in inner tables of the table, as for 'rate' of an optimizer; else "".

    Args:
        name: the setting.
        value: the value in the file; if it is a table with a single setting, that setting is part of the places.
        table: the type of the table.
    """
    inner = f".{next(iter(value))[:40]}" if isinstance(value, Mapping) and len(value) == 1 else ""
    found = {f"{'.'.join(place)}{inner}" for place in _places_of(name, table, ()) if place[1:]}
    if not 0 < len(found) <= _MOST_PLACES:
        return ""
    ordered = sorted(found, key=lambda place: (place.count("."), place))
    return f"; did you mean {' or '.join(map(repr, ordered))}?"


def _places_of(name: str, table: inspect.Type | None, inside: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for struct in structs_of(table):
        for field in struct.fields:
            place = (*inside, field.encode_name)
            if field.encode_name == name:
                yield place
            elif len(place) < _DEEPEST:
                yield from _places_of(name, field.type, place)


def _as_table(value: Any, kind: Any, raw: Any, path: Sequence[str]) -> str:
    """Return how to write a table for a word in its place, such as "adam" for an optimizer; else ""."""
    structs = [each for each in structs_of(_type_at(kind, raw, path)) if each.tag_field]
    if not isinstance(value, str) or not structs:
        return ""
    setting = f"{path[-1]}.{structs[0].tag_field}"
    if not any(step.isdigit() for step in path):
        setting = f"{'.'.join(path)}.{structs[0].tag_field}"
    tags = [str(each.tag) for each in structs if not is_own(each)]
    if value not in tags:
        return f"; {setting} makes the choice{did_you_mean(value, tags) or _listed('choose one of', tags)}"
    return f"; write {setting} = {json.dumps(value)}"


def _instead(name: str, settings: Sequence[str]) -> str:
    """Return a suggestion for a name that isn't one of the settings."""
    return did_you_mean(name, settings) or _listed("choose one of", settings)


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
    """Return the type at a place; if several structs are possible, the struct that the value selects."""
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


_NUMBERS = (inspect.FloatType, inspect.IntType)


def _values(kind: Any, raw: Any, path: Sequence[str]) -> list[str]:
    """Return the possible values of a setting: its structs' tags, or the words of a literal."""
    structs = [each for each in structs_of(_type_at(kind, raw, path[:-1])) if path and each.tag_field == path[-1]]
    if structs:
        extensions = [each.name for own in structs if is_own(own) for each in all_of(kind_of(own))]
        return [*(str(each.tag) for each in structs if not is_own(each)), *extensions]
    found = _type_at(kind, raw, path)
    types = found.types if isinstance(found, inspect.UnionType) else (found,)
    words = [str(value) for each in types if isinstance(each, inspect.LiteralType) for value in each.values]
    return [*words, "a number"] if words and any(isinstance(each, _NUMBERS) for each in types) else words


def _extension_to_name(kind: Any, raw: Any, path: Sequence[str]) -> str:
    """Return the remedy for an extension that is not loaded, if the setting allows extensions; else ""."""
    structs = [each for each in structs_of(_type_at(kind, raw, path[:-1])) if path and each.tag_field == path[-1]]
    return f", or, if it is an extension, {TO_LOAD}" if any(map(is_own, structs)) else ""


def _short(value: Any) -> str:
    text = f"'{value}'" if isinstance(value, str) else f"{value}"
    return text if len(text) <= 60 else f"{text[:57]}..."


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(tables: Mapping[str, Any]) -> str:
    """Return tables as TOML, in the style of the shipped files: small tables in one line, arrays of tables last."""
    return "\n".join(_lines(tables)).strip("\n") + "\n"


def _lines(tables: Mapping[str, Any]) -> Iterator[str]:
    sections = {key: value for key, value in tables.items() if isinstance(value, Mapping)}
    lists = {key: value for key, value in tables.items() if _is_list_of_tables(value)}
    for key, value in tables.items():
        if key not in sections and key not in lists:
            yield f"{_key(key)} = {value_text(value)}"
    for key, section in sections.items():
        yield from ("", f"[{_key(key)}]", *_assignments(_keyed(section)))
    for key, rows in lists.items():
        for row in rows:
            yield from ("", f"[[{_key(key)}]]", *_assignments(dict(_dotted(row))))


def _assignments(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        yield f"{key} = {value_text(value)}"


def _keyed(table: Mapping[str, Any]) -> dict[str, Any]:
    return {_key(key): value for key, value in table.items()}


def _dotted(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys and values, with tables of a single setting as ``table.setting``."""
    for key, value in table.items():
        if isinstance(value, Mapping) and len(value) == 1:
            yield from _dotted(value, f"{path}{_key(key)}.")
        else:
            yield f"{path}{_key(key)}", value


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, Mapping) for each in value)


def value_text(value: Any) -> str:
    """Return a value in TOML syntax, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {value_text(each)}" for key, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(value_text(each) for each in value)}]"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return _number(value)


def _number(value: Any) -> str:
    if isinstance(value, float):
        text = repr(value)
        return text if any(mark in text for mark in ".en") else f"{text}.0"
    return str(value)


def _string(text: str) -> str:
    """Return a basic string: JSON strings are valid TOML, except for one control character that TOML also escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)
