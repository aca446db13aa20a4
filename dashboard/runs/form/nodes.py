"""What a form is made of: fields, tables of them, and choices between tables.

``path`` is the setting's dotted name in the file. ``name`` is what the browser sends it as, unique in the form: where
several choices have a setting of the same path, it says of which, as in ``training@local.rate``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Widget: TypeAlias = Literal["number", "text", "flag", "select", "toml"]


@dataclass(frozen=True, kw_only=True)
class Field:
    """One setting.

    Attributes:
        widget: how it is entered; ``toml`` is any value written as in TOML.
        default: what holds if it is left empty, as text; None if nothing does.
        required: whether it has to be given.
        options: of a ``select`` its values with words for people.
        about: of those values that need it, what they are.
        rare: whether it stays folded until asked for.
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
        """The last part of its path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Settings that stand together in a table."""

    path: str
    name: str
    label: str
    help: str = ""
    children: tuple[Node, ...] = ()
    rare: bool = False

    @property
    def key(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One of the tables that a choice is between."""

    value: str
    label: str
    help: str = ""
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A table that has other settings by what is chosen.

    Attributes:
        tag: the key in the table that says what is chosen; None for [data], whose source does.
        default: the option that holds if nothing is chosen.
        settled: the settings that then hold, where they are not the option's own defaults.
        optional: the table may be absent, which is the option "".
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
        """The last part of its path."""
        return self.path.rpartition(".")[2]


Node: TypeAlias = Field | Table | Choice


def fields_of(nodes: tuple[Node, ...]) -> Iterator[Field]:
    """Yield every field, whatever has to be chosen for it."""
    for node in nodes:
        if isinstance(node, Field):
            yield node
        elif isinstance(node, Table):
            yield from fields_of(node.children)
        else:
            for option in node.options:
                yield from fields_of(option.children)


def choices_of(nodes: tuple[Node, ...]) -> Iterator[Choice]:
    """Yield every choice, also those within choices."""
    for node in nodes:
        if isinstance(node, Table):
            yield from choices_of(node.children)
        elif isinstance(node, Choice):
            yield node
            for option in node.options:
                yield from choices_of(option.children)
