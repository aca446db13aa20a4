"""Missing values: modules of features that some clients or records lack, and the rules for missing features.

A missing value is NaN in examples with ``gaps``. Clients drop such examples, or fill a gap with the feature's mean
over all clients: the sum of clients' sums divided by the sum of their counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.client_sim.data.example_data import ExampleData
from fedping.client_sim.data.federated import client_value_sums
from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import FedpingError, InvalidSettings

MissingRule: TypeAlias = Literal["refuse", "drop", "mean", "indicator"]
"""The rule for a missing feature: refuse the run; drop the example; fill in the mean over all clients; or fill in the
mean and add a feature that is 1 where the value was missing."""

_LISTED = 4


class Module(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of features that some records or clients lack as a whole, as new customers lack past payments.

    Attributes:
        features: names of features, of columns of texts, or patterns such as ``"worst *"``.
        missing: the share of the records or clients that lack the module, drawn by the seed.
        of: the unit of the draw: ``records``, or ``clients`` with all of their records.
        only: the records that take part: ``with`` the module, or ``without`` it, which leaves its features out; all if
            None. A record without it lacks all of its features, in the file or by ``missing``.

    Source: Fritsch 2018, section 4, which has a model for records with a module, and one for those without.
    """

    features: Annotated[tuple[str, ...], Meta(min_length=1)]
    missing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    of: Literal["records", "clients"] = "records"
    only: Literal["with", "without"] | None = None


def with_modules(data: ExampleData, modules: Sequence[Module], seed: int) -> tuple[ExampleData, list[str]]:
    """Return the examples after some have lost a module's features, and sentences on the losses.

    Raises:
        InvalidSettings: a module names features that do not exist, or no example or feature is left.
    """
    notes = []
    for number, module in enumerate(modules):
        columns = _columns(data, module)
        name = f"the module {', '.join(module.features)}"
        if module.missing:
            data, lacking = _lacking(data, module, columns, generator(seed, "module", number))
            total = len(data) if module.of == "clients" else len(data.y)
            notes.append(f"{lacking:,} of {total:,} {module.of} lack {name}, drawn by the seed")
        if module.only is not None:
            without = np.asarray(np.isnan(data.x[:, columns]).all(axis=1))
            kept = without if module.only == "without" else ~without
            if not kept.any():
                raise InvalidSettings(f'[[data.modules]] only = "{module.only}": no record is {module.only} {name}')
            verb = {"with": "have", "without": "lack"}[module.only]
            notes.append(f"{int(kept.sum()):,} of {len(kept):,} records {verb} {name}, and only they take part")
            data = data.only(kept)
            if module.only == "without":
                data = _without(data, columns)
    return data, notes


def without_gaps(data: ExampleData) -> tuple[ExampleData, list[str]]:
    """Return the examples without missing features, and a sentence on the dropped examples.

    Raises:
        FedpingError: every example misses a feature.
    """
    missing = np.isnan(data.x)
    dropped = np.asarray(missing.any(axis=1))
    if not dropped.any():
        return replace(data, gaps=False), [nothing_missing("drop")]
    if dropped.all():
        raise FedpingError(
            f'[data] missing = "drop" drops every one of {len(dropped):,} examples, because each misses a feature '
            f'({_by_feature(data, missing)}). Set missing = "mean", or leave such features out'
        )
    kept = data.only(~dropped)
    emptied = int(((kept.sizes == 0) & (data.sizes > 0)).sum())
    left = f"; {emptied:,} of {len(data):,} clients have none left" if emptied else ""
    number = f"{int(dropped.sum()):,} of {len(dropped):,}"
    return replace(kept, gaps=False), [
        f"dropped {number} examples with missing values ({_by_feature(data, missing)}){left}"
    ]


def nothing_missing(rule: MissingRule) -> str:
    """Return the sentence for a rule without effect, because no value is missing."""
    return f'missing = "{rule}" in [data] changes nothing, because no value is missing'


@dataclass(frozen=True)
class Filling:
    """Fills missing values with the mean of each feature, shape (d,)."""

    mean: FloatArray

    def of(self, data: ExampleData) -> ExampleData:
        """Return the data with all gaps filled."""
        return replace(data, x=np.where(np.isnan(data.x), self.mean, data.x), gaps=False)


def filling(train: ExampleData) -> Filling:
    """Return the filling of every feature by its mean over the examples of all clients that have it.

    Raises:
        FedpingError: no client has a value of a feature.
    """
    counts, sums = (each.sum(axis=0) for each in client_value_sums(train))
    if not counts.all():
        name = train.features[int(np.argmin(counts))]
        raise FedpingError(
            f"the feature '{name}' is missing in all training examples of all clients, and has no mean. Leave it out "
            "of 'features' in [data], or lower 'missing' of its module"
        )
    return Filling(sums / counts)


@dataclass(frozen=True)
class Indicators:
    """Additional features that are 1 where another feature is missing.

    Attributes:
        names: names of the e columns; a column of texts has one name for all its features.
        columns: positions of the features of each of the e columns.
    """

    names: tuple[str, ...]
    columns: tuple[NDArray[np.intp], ...]

    def of(self, raw: ExampleData) -> FloatArray:
        """Return the indicators of examples that still have their gaps, shape (N, e)."""
        marks = [np.isnan(raw.x[:, columns]).any(axis=1) for columns in self.columns]
        return np.stack(marks, axis=1).astype(np.float64) if marks else np.zeros((len(raw.y), 0))

    def added(self, data: ExampleData, marks: FloatArray) -> ExampleData:
        """Return prepared examples with these indicators appended to their features."""
        names = tuple(f"{name} is missing" for name in self.names)
        return replace(data, x=np.column_stack([data.x, marks]), features=(*data.features, *names))


def indicators(train: ExampleData) -> Indicators:
    """Return an indicator for each column with a missing value in some training example, from clients' counts."""
    counts, _ = client_value_sums(train)
    gaps = counts.sum(axis=0) < train.sizes.sum()
    columns: dict[str, list[int]] = {}
    for position in np.flatnonzero(gaps).tolist():
        columns.setdefault(column_of(train.features[position]), []).append(position)
    return Indicators(tuple(columns), tuple(np.array(each, np.intp) for each in columns.values()))


def filled_note(rule: MissingRule, parts: Sequence[ExampleData], marks: Indicators) -> str:
    """Return the sentence on the values that were filled by means, in all parts, and on the added indicators."""
    missing = np.concatenate([np.isnan(part.x) for part in parts])
    if not missing.any():
        return nothing_missing(rule)
    added = f", and added {', '.join(f'{name} is missing' for name in marks.names[:_LISTED])}" if marks.names else ""
    more = f" and {len(marks.names) - _LISTED} more" if len(marks.names) > _LISTED else ""
    features = parts[0].features
    filled, columns = sum(_gaps(features, missing).values()), len({column_of(name) for name in features})
    return (
        f"filled {filled:,} of {len(missing) * columns:,} values by means over the clients "
        f"({_counts(features, missing)}){added}{more}"
    )


def refused_gaps(x: FloatArray, features: Sequence[str]) -> InvalidSettings:
    """Return the error for data with gaps and no rule for them."""
    missing = np.isnan(x)
    rows = np.asarray(missing.any(axis=1))
    return InvalidSettings(
        f"{int(rows.sum()):,} of {len(rows):,} rows miss values, first row {int(rows.argmax()) + 1} "
        f'({_counts(features, missing)}). Set missing = "drop", "mean" or "indicator" in [data], or fill or drop such '
        "rows"
    )


def column_of(feature: str) -> str:
    """Return the column of a feature: texts' features are named ``column=text``."""
    return feature.partition("=")[0]


def _columns(data: ExampleData, module: Module) -> NDArray[np.intp]:
    found: list[int] = []
    for pattern in module.features:
        matching = [
            position
            for position, name in enumerate(data.features)
            if pattern in (name, column_of(name)) or fnmatchcase(name, pattern)
        ]
        if not matching:
            raise InvalidSettings(
                f"[[data.modules]] features: no feature is '{pattern}'. There are {_listed(data.features)}"
            )
        found += matching
    columns = np.unique(found)
    if len(columns) == len(data.features):
        raise InvalidSettings("[[data.modules]] has every feature, and records without it have none. Name fewer")
    return columns


def _lacking(
    data: ExampleData, module: Module, columns: NDArray[np.intp], random: np.random.Generator
) -> tuple[ExampleData, int]:
    """Return the data with a module's features missing for some records or clients, and the number of these."""
    total = len(data) if module.of == "clients" else len(data.y)
    count = round(module.missing * total)
    chosen = np.zeros(total, np.bool_)
    chosen[random.permutation(total)[:count]] = True
    rows = chosen[data.client_of] if module.of == "clients" else chosen
    x = data.x.copy()
    x[np.ix_(rows, columns)] = np.nan
    return replace(data, x=x, gaps=True), count


def _without(data: ExampleData, columns: NDArray[np.intp]) -> ExampleData:
    kept = np.delete(np.arange(data.x.shape[1]), columns)
    x = np.ascontiguousarray(data.x[:, kept])
    return replace(data, x=x, features=tuple(data.features[at] for at in kept), gaps=bool(np.isnan(x).any()))


def _by_feature(data: ExampleData, missing: NDArray[np.bool_]) -> str:
    return _counts(data.features, missing)


def _gaps(features: Sequence[str], missing: NDArray[np.bool_]) -> dict[str, int]:
    """Return the number of missing values of each column that has any; a column of texts counts once."""
    counts: dict[str, int] = {}
    for name, count in zip(features, missing.sum(axis=0).tolist(), strict=True):
        if count:
            counts[column_of(name)] = max(count, counts.get(column_of(name), 0))
    return counts


def _counts(features: Sequence[str], missing: NDArray[np.bool_]) -> str:
    """Return the columns with the most missing values, with their numbers."""
    counts = _gaps(features, missing)
    most = sorted(counts.items(), key=lambda each: -each[1])
    return _joined([f"{name} {count:,}" for name, count in most[:_LISTED]], len(most))


def _listed(features: Sequence[str]) -> str:
    return _joined(list(features[:_LISTED]), len(features))


def _joined(words: Sequence[str], total: int) -> str:
    def parts() -> Iterator[str]:
        yield from words
        if total > len(words):
            yield f"{total - len(words)} more"

    return ", ".join(parts())
