"""The items of lists: those of a product's table, or items with random values for every feature."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedping.client_sim.data.files import read_arrow, spellings
from fedping.client_sim.features import numbers, reference
from fedping.client_sim.features.encode import Columns, FloatArray, encode
from fedping.client_sim.rehearsal.settings import Rehearsal
from fedping.protocol.draws import Keys, child_keys, normals, uniforms
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.features import (
    Bucket,
    Category,
    Counts,
    Cross,
    Equal,
    Feature,
    Flag,
    Hashed,
    Product,
    Spline,
    of_query,
    width,
)
from fedping.protocol.spec import ModelSpec

MOST_BYTES = 2**30
"""Maximum size of a table's file."""

MOST_CANDIDATES = 1000
"""Maximum number of items that a query finds."""

Fields: TypeAlias = Mapping[str, Sequence[Feature]]
"""The fields of a table, each with the features that read it."""

_QUERY, _ITEMS = range(2)


class Offered(NamedTuple):
    """Candidates of N lists with their values, of at most c items and S slots each.

    Attributes:
        at: positions of the values, shape (N, c, S).
        value: the values, shape (N, c, S).
        shown: the number of items, shape (N,).
        pinned: whether the product may pin each item, shape (N, c).
    """

    at: NDArray[np.intp]
    value: FloatArray
    shown: NDArray[np.intp]
    pinned: NDArray[np.bool_]


@dataclass(frozen=True)
class Found:
    """The items that queries find, query by query.

    Attributes:
        items: positions of the items, shape (total,).
        first: the position in ``items`` of each query's first item, shape (queries,).
        count: the number of each query's items, shape (queries,).
    """

    items: NDArray[np.int32]
    first: NDArray[np.intp]
    count: NDArray[np.intp]

    def of(self, query: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the items of some queries, shape (N, c); -1 for the padding."""
        count = self.count[query][:, None]
        place = np.arange(int(count.max(initial=0)))
        at = np.minimum(self.first[query][:, None] + place, len(self.items) - 1)
        return np.where(place < count, self.items[at], -1).astype(np.intp)


class Catalogue(Protocol):
    """A source of the candidates of lists."""

    def offered(self, keys: Keys) -> Offered:
        """Return the candidates of the list of each key, shape (N,)."""
        ...


def catalogue_for(spec: ModelSpec, rehearsal: Rehearsal) -> Catalogue:
    """Return the catalogue of a rehearsal.

    Raises:
        InvalidSettings: a table lacks columns that the features read.
        FedpingError: a table can't be read.
    """
    return RandomItems(spec, rehearsal.shown) if rehearsal.items is None else _from_tables(spec, rehearsal)


@dataclass(frozen=True)
class TableItems:
    """Items of a table, with queries of another table.

    Attributes:
        spec: the spec.
        items, queries: the fields of items and of queries.
        count: the number of items.
        asked: the number of queries; 1 without a table of queries.
        found: the items that each query finds; if None, all items may be candidates.
        shown: the number of items in a list, if all items may be candidates.
        flagged: whether the product may pin each item, shape (count,).
    """

    spec: ModelSpec
    items: Columns
    queries: Columns
    count: int
    asked: int
    found: Found | None
    shown: int
    flagged: NDArray[np.bool_]

    def offered(self, keys: Keys) -> Offered:
        """See :meth:`Catalogue.offered`."""
        query = np.floor(uniforms(child_keys(keys, _QUERY), 1)[:, 0] * self.asked).astype(np.intp)
        if self.found is None:
            item = _subsets(child_keys(keys, _ITEMS), self.count, min(self.shown, self.count))
        else:
            item = self.found.of(query)
        there = item >= 0
        pairs, list_of = item[there], np.repeat(np.arange(len(item)), there.sum(axis=1))
        mine, item_of = np.unique(pairs, return_inverse=True)
        theirs, query_of = np.unique(query[list_of], return_inverse=True)
        slots = encode(self.spec, _rows(self.items, mine), _rows(self.queries, theirs), item_of, query_of)
        at = np.zeros((*there.shape, len(slots.at)), np.intp)
        value = np.zeros(at.shape)
        at[there], value[there] = slots.at.T, slots.value.T
        return Offered(at, value, there.sum(axis=1), there & self.flagged[np.maximum(item, 0)])


def _rows(columns: Columns, which: NDArray[np.intp]) -> Columns:
    rows = which.tolist()
    return {
        name: column[which] if isinstance(column, np.ndarray) else [column[row] for row in rows]
        for name, column in columns.items()
    }


def _subsets(keys: Keys, count: int, size: int) -> NDArray[np.intp]:
    """Return a random subset of 0 to ``count`` - 1 for each key, in random order, shape (N, size).

    Source: R. Floyd's algorithm, in Bentley and Floyd 1987.
    """
    drawn = uniforms(keys, size)
    found = np.full((len(keys), size), -1, np.intp)
    for place, largest in enumerate(range(count - size, count)):
        one = np.floor(drawn[:, place] * (largest + 1)).astype(np.intp)
        taken = (found[:, :place] == one[:, None]).any(axis=1)
        found[:, place] = np.where(taken, largest, one)
    order = np.argsort(uniforms(child_keys(keys, 1), size), axis=1)
    return np.take_along_axis(found, order, axis=1)


def _from_tables(spec: ModelSpec, rehearsal: Rehearsal) -> TableItems:
    assert rehearsal.items is not None
    of_items, of_queries = _fields(spec)
    extra = [name for name in (rehearsal.pinned,) if name is not None]
    if rehearsal.candidates is not None:
        extra.append(rehearsal.key)
    items = _read(Path(rehearsal.items), of_items, extra)
    if not any(items.values()):
        raise InvalidSettings(f"{rehearsal.items} has no item in a column that a feature reads. Give another table")
    queries: dict[str, list[Any]] = {}
    found = None
    if rehearsal.queries is not None:
        listed = [] if rehearsal.candidates is None else [rehearsal.candidates]
        queries = _read(Path(rehearsal.queries), of_queries, listed)
        if not any(queries.values()):
            raise InvalidSettings(f"{rehearsal.queries} has no row, or no column that a feature reads. Leave it out")
        if rehearsal.candidates is not None:
            found = _found(rehearsal, items[rehearsal.key], queries[rehearsal.candidates])
    elif of_queries:
        name, (feature, *_) = next(iter(of_queries.items()))
        raise InvalidSettings(
            f"feature '{feature.name}' reads the field '{name}' of the query. Give a table of 'queries' that has it"
        )
    count = len(next(iter(items.values())))
    if found is None and count < 2:
        raise InvalidSettings(f"{rehearsal.items} has {count} items, and a list needs 2. Give a longer table")
    flags = [bool(flag) for flag in items[rehearsal.pinned]] if rehearsal.pinned is not None else [False] * count
    return TableItems(
        spec,
        {name: items[name] for name in of_items if name in items},
        {name: queries[name] for name in of_queries if name in queries},
        count,
        len(next(iter(queries.values()))) if queries else 1,
        found,
        rehearsal.shown,
        np.array(flags, np.bool_),
    )


def _fields(spec: ModelSpec) -> tuple[Fields, Fields]:
    """Return the fields of items and of queries."""
    of_items: dict[str, list[Feature]] = {}
    of_queries: dict[str, list[Feature]] = {}
    for feature in spec.features:
        if isinstance(feature, Equal | Product):
            of_items.setdefault(feature.item, []).append(feature)
            of_queries.setdefault(feature.query, []).append(feature)
        elif not isinstance(feature, Cross):
            (of_queries if of_query(feature) else of_items).setdefault(feature.key, []).append(feature)
    return of_items, of_queries


def _read(path: Path, fields: Fields, others: Sequence[str]) -> dict[str, list[Any]]:
    """Return a table's columns of fields and others, with values in the form that features read.

    Raises:
        InvalidSettings: a column is missing, or a value is of another type than its feature reads.
        FedpingError: the file can't be read.
    """
    if _unpacked(path) > MOST_BYTES:
        raise InvalidSettings(f"{path} has more than {MOST_BYTES:,} bytes unpacked. Give a sample of its rows")
    table = read_arrow(path)
    names, columns = table.column_names, {}
    if twice := next((name for name in (*others, *fields) if names.count(name) > 1), None):
        raise InvalidSettings(f"{path} has the column '{twice}' twice. Rename one of them")
    for name in others:
        if name not in names:
            raise InvalidSettings(f"{path} has no column '{name}'; it has {', '.join(names)}")
        columns[name] = table[name].to_pylist()
    texts = [name for name, of in fields.items() if all(isinstance(each, Category | Hashed | Equal) for each in of)]
    spelled = spellings(path, table, [name for name in texts if name in names])
    for name, of in fields.items():
        if name in names:
            columns[name] = (spelled.get(name, table[name])).to_pylist()
        elif parts := [each for each in names if each.startswith(f"{name}.")]:
            rows = zip(*(table[part].to_pylist() for part in parts), strict=True)
            keys = [part.removeprefix(f"{name}.") for part in parts]
            columns[name] = [dict(zip(keys, row, strict=True)) for row in rows]
        elif needs := next((feature for feature in of if not getattr(feature, "missing", False)), None):
            raise InvalidSettings(
                f"{path} has no column '{name}', which feature '{needs.name}' reads; it has {', '.join(names)}. Add "
                "the column, or set missing = true for the feature"
            )
        else:
            continue
        columns[name] = [_as_map(value) for value in columns[name]]
        for feature in of:
            _check(path, name, feature, columns[name])
    return columns


def _as_map(value: Any) -> Any:
    """Return the pairs of a map as a mapping, and any other value unchanged."""
    is_map = isinstance(value, list) and all(isinstance(each, tuple) and len(each) == 2 for each in value)
    return dict(value) if is_map else value


def _unpacked(path: Path) -> int:
    """Return the uncompressed size of a table's file or folder; counting stops beyond :data:`MOST_BYTES`."""
    if path.is_dir():
        return sum(map(_unpacked, path.glob("*.parquet")))
    if not path.is_file():
        return 0
    size = 0
    with contextlib.suppress(pa.ArrowException, OSError, EOFError, zlib.error):  # reading the file reports the error
        if path.suffix == ".parquet":
            metadata = pq.read_metadata(path)
            return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                while size <= MOST_BYTES and (read := len(file.read(2**20))):
                    size += read
            return size
    return path.stat().st_size


def _check(path: Path, name: str, feature: Feature, column: Sequence[Any]) -> None:
    """Raise :class:`InvalidSettings` for the first present value that the feature treats as missing."""
    takes, what = _taken_by(feature)
    for row, value in enumerate(column, 1):
        is_nothing = value is None or value != value  # NaN
        if not is_nothing and takes(value) is None:
            raise InvalidSettings(
                f"{path} row {row}: '{name}' is {str(value)[:40]!r}, and feature '{feature.name}' reads {what}. "
                "Correct the value, or leave it empty"
            )


def _taken_by(feature: Feature) -> tuple[Any, str]:
    match feature:
        case Flag():
            return reference.flag, "true or false"
        case Category() | Hashed():
            return reference.text, "a text"
        case Counts():
            return (lambda value: value if isinstance(value, Mapping) else None), "numbers by name"
        case Equal():
            return (lambda value: value), "anything"
        case _:
            return reference.number, "a number"


def _found(rehearsal: Rehearsal, ids: Sequence[Any], listed: Sequence[Any]) -> Found:
    """Return the items that each query finds, by their positions."""
    places = {str(one): position for position, one in enumerate(ids)}
    found, counts = array("i"), []
    for row, value in enumerate(listed, 1):
        names = value.split() if isinstance(value, str) else [] if value is None else value
        if not isinstance(names, list) or not 2 <= len(names) <= MOST_CANDIDATES:
            count = len(names) if isinstance(names, list) else 1
            raise InvalidSettings(
                f"{rehearsal.queries} row {row}: '{rehearsal.candidates}' has {count} items. A query finds 2 to "
                f"{MOST_CANDIDATES:,}, as a list or with spaces between"
            )
        if missing := [name for name in names if str(name) not in places]:
            raise InvalidSettings(
                f"{rehearsal.queries} row {row}: '{rehearsal.candidates}' names the item {str(missing[0])[:40]!r}, "
                f"which the column '{rehearsal.key}' of {rehearsal.items} doesn't have. Correct one of them"
            )
        found.extend(places[str(name)] for name in names)
        counts.append(len(names))
    sizes = np.array(counts, np.intp)
    return Found(np.frombuffer(found, np.int32), np.cumsum(sizes) - sizes, sizes)


@dataclass(frozen=True)
class RandomItems:
    """Items with random values of every feature, ``shown`` of them in a list."""

    spec: ModelSpec
    shown: int

    def offered(self, keys: Keys) -> Offered:
        """See :meth:`Catalogue.offered`."""
        by_name = {feature.name: feature for feature in self.spec.features}
        own = {
            feature.name: self._values(feature, child_keys(keys, number))
            for number, feature in enumerate(self.spec.features)
            if not isinstance(feature, Cross)
        }
        ats, values = [], []
        for span in self.spec.layout.spans:
            if isinstance(span.feature, Cross):
                (rows, one), (columns, other) = (own[name] for name in span.feature.of)
                at = rows[..., :, None] * width(by_name[span.feature.of[1]], by_name) + columns[..., None, :]
                value = numbers.single(one[..., :, None] * other[..., None, :])
                at, value = at.reshape(*at.shape[:2], -1), value.reshape(*at.shape[:2], -1)
            else:
                at, value = own[span.feature.name]
            ats.append(span.at + at)
            values.append(value)
        counts = np.full(len(keys), self.shown)
        none = np.zeros((len(keys), self.shown), np.bool_)
        return Offered(np.concatenate(ats, axis=2), np.concatenate(values, axis=2), counts, none)

    def _values(self, feature: Feature, keys: Keys) -> tuple[NDArray[np.intp], FloatArray]:
        """Return random values of a feature, shape (N, shown, S); a query's values are equal for all items."""
        count = len(feature.values) if isinstance(feature, Counts) else 1
        items = 1 if of_query(feature) else self.shown
        shape = (len(keys), items, count)
        match feature:
            case Category() | Hashed() | Bucket() | Spline():
                at = np.floor(uniforms(keys, items * count) * width(feature, {})).astype(np.intp).reshape(shape)
                value = np.ones(shape)
            case Counts():
                at = np.broadcast_to(np.arange(count), shape)
                value = numbers.single(np.abs(normals(keys, items * count)).reshape(shape))
            case Flag() | Equal():
                at = np.zeros(shape, np.intp)
                value = np.floor(2 * uniforms(keys, items)).reshape(shape)
            case _:
                at = np.zeros(shape, np.intp)
                value = numbers.single(normals(keys, items).reshape(shape))
        full = (len(keys), self.shown, count)
        return np.broadcast_to(at, full), np.broadcast_to(value, full)
