"""The parts of a form, made from the types of settings: fields, tables of them, and choices between tables.

``path`` is the setting's dotted name in the file. ``name`` is the input's name in the browser, unique in the form: if
several choices have a setting of the same path, it includes the choice, as in ``training@local.rate``. Help comes from
docstrings: for a class its first paragraph, for a setting the sentence that names it.
"""

from __future__ import annotations

import inspect as python
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import inspect

from fedping.dashboard.runs.form import words
from fedping.experiments.laboratory.models import OfSpec
from fedping.experiments.laboratory.settings.data import Data
from fedping.experiments.laboratory.settings.experiment import DEFAULTS, Head
from fedping.experiments.laboratory.settings.setup import Setup
from fedping.experiments.simulate.settings import Experiment
from fedping.protocol.extensions import Extension, all_of, is_own, kind_of
from fedping.protocol.settings_file import value_text

Widget: TypeAlias = Literal["number", "text", "flag", "select", "toml"]


@dataclass(frozen=True, kw_only=True)
class Field:
    """A setting as a field of the form.

    Attributes:
        widget: the kind of input; ``toml`` accepts any value written as in TOML.
        default: the value of an empty input, as text; None without a default.
        required: whether the input must be filled in.
        options: values of a ``select`` with their labels.
        about: descriptions of those values that need one.
        rare: whether the field is folded until requested.
    """

    path: str
    name: str
    label: str
    widget: Widget
    default: str | None = None
    required: bool = False
    options: tuple[tuple[str, str], ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    help: str = ""
    example: str = ""
    rare: bool = False

    @property
    def key(self) -> str:
        """The last part of the dotted name."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Settings that belong together in a table."""

    path: str
    name: str
    label: str
    help: str = ""
    children: tuple[Node, ...] = ()
    rare: bool = False

    @property
    def key(self) -> str:
        """The last part of the dotted name."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One of the tables of a choice."""

    value: str
    label: str
    help: str = ""
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A table whose settings depend on a choice.

    Attributes:
        tag: the key in the table that makes the choice; None for [data], where the source of data does.
        default: the option if nothing is chosen.
        settled: settings of that default option that differ from the option's own defaults.
        optional: whether the table may be absent, which is the option "".
    """

    path: str
    name: str
    label: str
    tag: str | None
    options: tuple[Option, ...]
    default: str
    settled: Mapping[str, Any] = field(default_factory=dict)
    help: str = ""
    optional: bool = False
    rare: bool = False

    @property
    def key(self) -> str:
        """The last part of the dotted name."""
        return self.path.rpartition(".")[2]


Node: TypeAlias = Field | Table | Choice


def fields_of(nodes: tuple[Node, ...]) -> Iterator[Field]:
    """Yield every field, including those of all options of choices."""
    for node in nodes:
        if isinstance(node, Field):
            yield node
        elif isinstance(node, Table):
            yield from fields_of(node.children)
        else:
            for option in node.options:
                yield from fields_of(option.children)


def choices_of(nodes: tuple[Node, ...]) -> Iterator[Choice]:
    """Yield every choice, including those within choices."""
    for node in nodes:
        if isinstance(node, Table):
            yield from choices_of(node.children)
        elif isinstance(node, Choice):
            yield node
            for option in node.options:
                yield from choices_of(option.children)


_USED, _UNUSED = "use", ""
_NO_DEFAULT = (msgspec.NODEFAULT, None)
_HELPLESS = (Data, Setup, Head, OfSpec, Experiment)
"""Structs whose docstring does not appear in the form as a whole."""


def fields_of_struct(kind: type) -> tuple[inspect.Field, ...]:
    """Return the fields of a struct with their types."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def node_of(owner: type, field: inspect.Field, path: str, name: str) -> Node:
    """Return the node of a struct's field: a choice between structs, a table, or a field.

    Args:
        owner: the struct.
        field: its field.
        path: the field's dotted name in the file.
        name: its name in the form, or the prefix of the names of its contents.
    """
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


def type_of(extension: Extension) -> inspect.StructType:
    """Return the settings of an extension as a struct type."""
    found = inspect.type_info(extension.settings)
    assert isinstance(found, inspect.StructType)
    return found


def _kinds(found: inspect.Type) -> list[inspect.Type]:
    """Return the types that a value may have, unwrapped and without None."""
    types = found.types if isinstance(found, inspect.UnionType) else (found,)
    bare = [each.type if isinstance(each, inspect.Metadata) else each for each in types]
    return [each for each in bare if not isinstance(each, inspect.NoneType)]


def _children(struct: inspect.StructType, path: str, name: str) -> tuple[Node, ...]:
    return tuple(
        node_of(struct.cls, each, f"{path}.{each.encode_name}", f"{name}.{each.encode_name}") for each in struct.fields
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
    extensions = [each for struct in structs if is_own(struct) for each in all_of(kind_of(struct))]
    structs = [struct for struct in structs if not is_own(struct)]
    options = [_option(path, name, str(struct.tag), struct) for struct in structs]
    options += [_option(path, name, each.name, type_of(each)) for each in extensions]
    if absent := field.default is None:
        options.insert(0, Option(value=_UNUSED, label=words.option(path, _UNUSED) or "no"))
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
        optional=absent,
        rare=path in words.RARE,
    )


def _settled(default: Mapping[str, Any], structs: list[inspect.StructType]) -> dict[str, Any]:
    """Return the settings of a default that differ from the defaults of its option."""
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
        about = ""  # shown for the whole table
    return Field(
        path=path,
        name=name,
        label=words.label(path),
        widget=widget,
        default=default_text(default, widget),
        required=field.required,
        options=tuple(sorted(options, key=lambda each: each[0] != default)),
        help=" ".join(filter(None, (about, _range(kinds)))),
        example=words.EXAMPLES.get(path, ""),
        rare=path in words.RARE,
    )


def default_text(default: Any, widget: Widget) -> str | None:
    """Return a default as the form shows it."""
    if default in _NO_DEFAULT:
        return None
    return str(default) if widget in ("text", "select") else value_text(default)


def _overlaid(path: str, default: Any) -> Any:
    """Return the laboratory's default of a setting, which may differ from the type's default."""
    found: Any = DEFAULTS
    for step in path.split("."):
        if not isinstance(found, Mapping) or step not in found:
            return (
                default
                if isinstance(default, type(msgspec.NODEFAULT))
                else msgspec.to_builtins(default, builtin_types=(datetime,))
            )
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
    """Return the allowed range of a number in words."""
    only = kinds[0] if len(kinds) == 1 else None
    if not isinstance(only, inspect.IntType | inspect.FloatType):
        return ""
    ends = [
        f"{word} {end:,g}"
        for word, end in (("at least", only.ge), ("more than", only.gt), ("at most", only.le), ("less than", only.lt))
        if end is not None and abs(end) < 1e6
    ]
    text = ", ".join(ends)
    return f"{text[0].upper()}{text[1:]}." if text else ""


_ROLE = re.compile(r":[a-z]+:`~?\.?([^`]*)`")
_SENTENCE = re.compile(r"(?<=[.;])\s+(?=[A-Z`])")
_SECTION = re.compile(r"^(Attributes|Args|Raises|Returns):\s*$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def first_paragraph(text: str) -> str:
    """Return the first paragraph of a docstring on one line."""
    return plain(text.strip().partition("\n\n")[0])


def help_of(kind: type, setting: str) -> str:
    """Return the help of a setting from the docstring of its class or a base class; empty without one."""
    documented = (python.getdoc(each) or "" for each in kind.__mro__ if each.__module__.startswith("fedping."))
    return next(filter(None, (_sentence_about(text, setting) for text in documented)), "")


def _sentence_about(text: str, setting: str) -> str:
    sections = _SECTION.split(text)
    for title, section in zip(sections[1::2], sections[2::2], strict=True):
        if title == "Attributes":
            said = dict(_ATTRIBUTE.findall(section))
            if setting in said and not said[setting].startswith("see :"):
                return _capital(plain(said[setting]))
    named = [each for each in _SENTENCE.split(plain(sections[0])) if f"``{setting}``" in each]
    return " ".join(named[:1])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def plain(text: str) -> str:
    """Return a docstring's words on one line, without roles."""
    return " ".join(_ROLE.sub(r"``\1``", text).split())
