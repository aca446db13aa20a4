"""Metrics and segments that a study declares, in addition to the metrics of its type of ping."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.ping import DocumentType
from fedping.protocol.spec import Finite, Name

BUILT_IN = ("num_chars_typed", "rank_selected", "loss", "examples", "place")
"""Names of the metrics that need no declaration (`fedping.analysis.study.metrics`); a study can't use these names."""

MOST_GROUPS = 12
"""Maximum groups of a segment: each group gets its own tests, and counting keeps all groups in memory."""

Kind: TypeAlias = Literal["number", "text"]


class StudyMetric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A metric to compare arms: the mean of a column over all pings with an example.

    Attributes:
        name: the metric's name.
        column: field of the payload; by default, the field of the metric's name.
        title: name in tables; by default, derived from ``name``.
        better: direction that is better for users; None if neither is.
        at_most: compare the share of pings in which the column is at most this value.
        equals: compare the share of pings in which the column equals this value.

    Raises:
        InvalidSettings: both ``at_most`` and ``equals`` are set.
    """

    name: Name
    column: str = ""
    title: Annotated[str, Meta(max_length=64)] = ""
    better: Literal["less", "more"] | None = None
    at_most: Finite | None = None
    equals: str | int | None = None

    def __post_init__(self) -> None:
        if self.at_most is not None and self.equals is not None:
            raise InvalidSettings(f"the metric '{self.name}' has both 'at_most' and 'equals'; remove one")

    @property
    def of(self) -> str:
        """Name of the column: ``column``, or else the metric's name."""
        return self.column or self.name

    @property
    def words(self) -> str:
        """The metric's name in tables: ``title``, or a text derived from ``name``."""
        return self.title or self.name.replace("_", " ")


class Segment(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A division of clients into groups by a column in each client's first ping.

    The column must not be affected by the arms; otherwise the groups differ between arms for that reason alone.

    Attributes:
        name: the segment's name.
        column: field of the payload.
        cuts: bounds that divide numbers: (3, 6) makes the groups below 3, from 3 to below 6, and from 6 on.
        values: values that form a group each; all other values form one more group.

    Raises:
        InvalidSettings: both or neither of ``cuts`` and ``values`` are set, or they are too many, repeat, or do not
            ascend.
    """

    name: Name
    column: str
    cuts: tuple[Finite, ...] = ()
    values: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.cuts) == bool(self.values):
            raise InvalidSettings(f"the segment '{self.name}' needs either 'cuts' or 'values'")
        if len(self.groups) > MOST_GROUPS:
            raise InvalidSettings(
                f"the segment '{self.name}' has {len(self.groups)} groups; {MOST_GROUPS} is the most, so join some"
            )
        if any(low >= high for low, high in pairwise(self.cuts)) or len(set(self.values)) < len(self.values):
            raise InvalidSettings(f"the segment '{self.name}' needs cuts that ascend, or values that differ")

    @property
    def groups(self) -> tuple[str, ...]:
        """Readable names of the groups."""
        if self.values:
            return (*(str(value) or "(empty)" for value in self.values), "other")
        between = (f"{low:g} to below {high:g}" for low, high in pairwise(self.cuts))
        return (f"below {self.cuts[0]:g}", *between, f"{self.cuts[-1]:g} or more")


@lru_cache(maxsize=256)
def columns(document: DocumentType) -> dict[str, Kind]:
    """Return the payload's fields that metrics and segments may use, with their kind: number or text."""
    info = msgspec.inspect.type_info(document.payload)
    assert isinstance(info, msgspec.inspect.StructType)
    kinds = {field.name: _kind(field.type) for field in info.fields if field.name != "study_variation"}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def check_analysed(
    study: str, document: DocumentType, metrics: tuple[StudyMetric, ...], segments: tuple[Segment, ...]
) -> None:
    """Raise :class:`InvalidSettings` if a metric or segment cannot be analysed."""
    there = columns(document)
    declared: tuple[StudyMetric | Segment, ...] = (*metrics, *segments)
    for one in declared:
        what = f"the {'metric' if isinstance(one, StudyMetric) else 'segment'} '{one.name}' of study '{study}'"
        column = one.of if isinstance(one, StudyMetric) else one.column
        if column not in there:
            raise InvalidSettings(
                f"{what} is made of '{column}', which {document.name} pings do not have; they have {', '.join(there)}"
            )
        if isinstance(one, StudyMetric):
            _check_metric(one, what, there[column])
        elif any(isinstance(value, str) != (there[column] == "text") for value in one.values or one.cuts):
            raise InvalidSettings(
                f"{what} divides '{column}', which is a {there[column]}; give "
                + ("'values' in quotes" if there[column] == "text" else "'cuts', or 'values' that are whole numbers")
            )


def _check_metric(one: StudyMetric, what: str, kind: Kind) -> None:
    if one.name in BUILT_IN:
        raise InvalidSettings(f"{what} has the name of a built-in one. Choose another name")
    if kind == "text" and not isinstance(one.equals, str):
        raise InvalidSettings(f"{what} is computed from a text, which has no mean. Give 'equals' with a text")
    if kind == "number" and isinstance(one.equals, str):
        raise InvalidSettings(f"{what} is computed from a number. Give 'equals' without quotes")


def _kind(type_: Any) -> Kind | None:
    while isinstance(type_, msgspec.inspect.Metadata):
        type_ = type_.type
    match type_:
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType() | msgspec.inspect.BoolType():
            return "number"
        case msgspec.inspect.LiteralType(values=values) if all(isinstance(value, int) for value in values):
            return "number"
        case msgspec.inspect.StrType():
            return "text"
        case msgspec.inspect.LiteralType(values=values) if all(isinstance(value, str) for value in values):
            return "text"
    return None
