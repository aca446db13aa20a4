"""From the types of the settings to the nodes of a form."""

from __future__ import annotations

import inspect as python
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from dashboard.runs.form import words
from dashboard.runs.form.helps import first_paragraph, help_of, plain
from dashboard.runs.form.nodes import Choice, Field, Node, Option, Table, Widget
from dashboard.runs.toml import value_text
from experiments.laboratory.choices import Ask, ModelChoice, data_sets, models
from experiments.laboratory.learning import OfSpec
from experiments.laboratory.settings.data import Data
from experiments.laboratory.settings.experiment import DEFAULTS, Head
from experiments.laboratory.settings.setup import Setup

_USED, _UNUSED = "use", ""
_NO_DEFAULT = (msgspec.NODEFAULT, None)
_HELPLESS = (Data, Setup, Head, OfSpec)
"""The structs whose docstring the form does not show as a whole."""


@cache
def laboratory_form() -> dict[str, tuple[Node, ...]]:
    """Return the form's nodes by the card that they stand on, all but the variants."""
    head = [_node(Head, each, each.encode_name, each.encode_name) for each in _fields(Head) if _is_head(each)]
    nodes = {node.path: node for node in (*head, *(_of_setup(each) for each in _fields(Setup)))}
    placed = {path for paths in words.GROUPS.values() for path in paths}
    cards = {title: [nodes[path] for path in paths if path in nodes] for title, paths in words.GROUPS.items()}
    last = list(cards)[-1]
    cards[last] += [node for path, node in nodes.items() if path not in placed]
    return {title: tuple(found) for title, found in cards.items()}


@cache
def laboratory_nodes() -> tuple[Node, ...]:
    """Return all nodes of the form in one row."""
    return tuple(node for nodes in laboratory_form().values() for node in nodes)


def _is_head(field: inspect.Field) -> bool:
    return field.encode_name != "variants"


def _fields(kind: type) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _of_setup(field: inspect.Field) -> Node:
    path = field.encode_name
    if path == "model":
        return _model()
    if path == "data":
        return _data()
    return _node(Setup, field, path, path)


def _node(owner: type, field: inspect.Field, path: str, name: str) -> Node:
    """Return the node of a struct's field: a choice between structs, a table, or a field."""
    kinds = _kinds(field.type)
    structs = [each for each in kinds if isinstance(each, inspect.StructType)]
    if len(structs) == len(kinds) > 1 or (structs and structs[0].tag_field):
        return _choice(owner, field, path, name, structs)
    if structs and field.default is None:
        return _optional(path, name, structs[0])
    if structs and not isinstance(field.default, msgspec.Struct) and not field.required:
        return _field(owner, field, path, name, kinds)
    if structs and path != "model.step":
        return _table(path, name, structs[0])
    return _field(owner, field, path, name, kinds)


def _kinds(found: inspect.Type) -> list[inspect.Type]:
    """Return the types that a value may have, without what they are wrapped in, and without nothing."""
    types = found.types if isinstance(found, inspect.UnionType) else (found,)
    bare = [each.type if isinstance(each, inspect.Metadata) else each for each in types]
    return [each for each in bare if not isinstance(each, inspect.NoneType)]


def _children(struct: inspect.StructType, path: str, name: str) -> tuple[Node, ...]:
    return tuple(
        _node(struct.cls, each, f"{path}.{each.encode_name}", f"{name}.{each.encode_name}") for each in struct.fields
    )


def _table(path: str, name: str, struct: inspect.StructType) -> Table:
    return Table(
        path=path,
        name=name,
        label=words.label(path),
        help=first_paragraph(python.getdoc(struct.cls) or ""),
        children=_children(struct, path, name),
        rare=path in words.RARE,
    )


def _choice(owner: type, field: inspect.Field, path: str, name: str, structs: list[inspect.StructType]) -> Choice:
    options = [_option(path, name, str(struct.tag), struct) for struct in structs]
    default = _overlaid(path, field.default)
    tag = structs[0].tag_field
    assert tag is not None
    return Choice(
        path=path,
        name=f"{name}.{tag}",
        label=words.label(path),
        tag=tag,
        options=tuple(options),
        default=str(default[tag]) if isinstance(default, Mapping) else options[0].value,
        settled=_settled(default, structs) if isinstance(default, Mapping) else {},
        help=help_of(owner, field.encode_name),
        rare=path in words.RARE,
    )


def _settled(default: Mapping[str, Any], structs: list[inspect.StructType]) -> dict[str, Any]:
    """Return what a default says beyond the defaults of what it chooses."""
    usual = {
        each.encode_name: each.default for struct in structs for each in struct.fields if struct.tag in default.values()
    }
    return {key: value for key, value in default.items() if key in usual and value != usual[key]}


def _option(path: str, name: str, value: str, struct: inspect.StructType) -> Option:
    return Option(
        value=value,
        label=words.option(path, value),
        help=first_paragraph(python.getdoc(struct.cls) or ""),
        children=_children(struct, path, f"{name}@{value}"),
    )


def _optional(path: str, name: str, struct: inspect.StructType) -> Choice:
    used = Option(
        value=_USED,
        label="yes",
        help=first_paragraph(python.getdoc(struct.cls) or ""),
        children=_children(struct, path, f"{name}@{_USED}"),
    )
    return Choice(
        path=path,
        name=f"{name}@",
        label=words.label(path),
        tag=None,
        options=(Option(value=_UNUSED, label="no"), used),
        default=_UNUSED,
        optional=True,
        rare=path in words.RARE,
    )


def _field(owner: type, field: inspect.Field, path: str, name: str, kinds: list[inspect.Type]) -> Field:
    default = _overlaid(path, field.default)
    widget, options = _widget(path, kinds)
    about = words.HELPS.get(path) or help_of(owner, field.encode_name)
    if about and owner not in _HELPLESS and about in first_paragraph(python.getdoc(owner) or ""):
        about = ""  # it is shown for the whole table
    return Field(
        path=path,
        name=name,
        label=words.label(path),
        widget=widget,
        default=_shown(default, widget),
        required=field.required,
        options=tuple(sorted(options, key=lambda each: each[0] != default)),
        help=" ".join(filter(None, (about, _range(kinds)))),
        example=words.EXAMPLES.get(path, ""),
        rare=path in words.RARE,
    )


def _shown(default: Any, widget: Widget) -> str | None:
    """Return a default as the form shows it."""
    if default in _NO_DEFAULT:
        return None
    return str(default) if widget in ("text", "select") else value_text(default)


def _overlaid(path: str, default: Any) -> Any:
    """Return what the laboratory assumes for a setting, which may be another than the type's default."""
    found: Any = DEFAULTS
    for step in path.split("."):
        if not isinstance(found, Mapping) or step not in found:
            return default if isinstance(default, type(msgspec.NODEFAULT)) else msgspec.to_builtins(default)
        found = found[step]
    return found


def _widget(path: str, kinds: list[inspect.Type]) -> tuple[Widget, tuple[tuple[str, str], ...]]:
    only = kinds[0] if len(kinds) == 1 else None
    if isinstance(only, inspect.BoolType):
        return "flag", ()
    if isinstance(only, inspect.LiteralType):
        return "select", tuple((str(value), words.option(path, str(value))) for value in only.values)
    if isinstance(only, inspect.IntType | inspect.FloatType):
        return "number", ()
    return ("text" if isinstance(only, inspect.StrType) else "toml"), ()


def _range(kinds: list[inspect.Type]) -> str:
    """Return in words between what a number has to be."""
    only = kinds[0] if len(kinds) == 1 else None
    if not isinstance(only, inspect.IntType | inspect.FloatType):
        return ""
    ends = [
        f"{word} {end:,g}"
        for word, end in (("at least", only.ge), ("more than", only.gt), ("at most", only.le), ("less than", only.lt))
        if end is not None and abs(end) < 1e6
    ]
    said = ", ".join(ends)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _data() -> Choice:
    """Return [data]: its source is told by which of three settings is there."""
    info = inspect.type_info(Data)
    assert isinstance(info, inspect.StructType)
    sources = {"set": "a data set", "file": "a file of yours", "users": "made users, for models that rank pages"}
    options = []
    for source, words_for_it in sources.items():
        nodes = tuple(_of_data(each, source) for each in info.fields if _is_of(each.encode_name, source))
        options.append(Option(value=source, label=words_for_it, children=nodes))
    return Choice(
        path="data",
        name="data@",
        label=words.label("data"),
        tag=None,
        options=tuple(options),
        default="set",
    )


def _is_of(setting: str, source: str) -> bool:
    if setting in words.OF_USERS:
        return source == "users"
    if setting in words.OF_A_FILE:
        return source == "file"
    return source == "set" if setting == "name" else source != "users"


def _of_data(field: inspect.Field, source: str) -> Node:
    path, name = f"data.{field.encode_name}", f"data@{source}.{field.encode_name}"
    if path == "data.name":
        sets = tuple(
            (each.name, each.name if not each.missing else f"{each.name} (not installed)") for each in data_sets()
        )
        about = {each.name: first_paragraph(each.help) for each in data_sets()}
        return Field(
            path=path, name=name, label=words.label(path), widget="select", required=True, options=sets, about=about
        )
    node = _node(Data, field, path, name)
    if isinstance(node, Field) and field.encode_name in ("file", "target", "users"):
        return replace(node, required=True)
    return node


def _model() -> Choice:
    return Choice(
        path="model",
        name="model.name",
        label=words.label("model"),
        tag="name",
        options=tuple(_of_model(each) for each in models()),
        default=models()[0].name,
    )


def _of_model(model: ModelChoice) -> Option:
    name = f"model@{model.name}"
    of_spec = {
        each.encode_name: _node(OfSpec, each, f"model.{each.encode_name}", f"{name}.{each.encode_name}")
        for each in _fields(OfSpec)
        if each.encode_name != "name"
    }
    own = tuple(_asked(ask, name) for ask in model.settings if ask.name not in of_spec)
    return Option(
        value=model.name,
        label=model.name,
        help=f"{plain(model.line)} {first_paragraph(model.help)}".strip(),
        children=(*own, *of_spec.values()),
    )


def _asked(ask: Ask, name: str) -> Field:
    path = f"model.{ask.name}"
    widgets: dict[str, Widget] = {"whole": "number", "number": "number", "flag": "flag", "choice": "select"}
    widget = widgets.get(ask.kind, "text")
    least = f"At least {ask.least:g}." if ask.least and ask.least >= 1 else ""
    given = "From the data or the seed, if left out." if ask.optional and widget == "number" else ""
    return Field(
        path=path,
        name=f"{name}.{ask.name}",
        label=words.label(path),
        widget=widget,
        default=_shown(ask.default, widget),
        required=ask.default is None and not ask.optional,
        options=tuple((each, words.option(path, each)) for each in ask.choices),
        help=" ".join(filter(None, (words.HELPS.get(path, ""), given, least))),
        example=ask.example or words.EXAMPLES.get(path, ""),
        rare=path in words.RARE,
    )
