"""Reads an institution's table by the agreed columns, as the examples of one client, and checks it against the spec."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.columns import (
    as_numbers,
    check_none_missing,
    first_no_number,
    is_text,
    number_in,
    reads_as_number,
    values_of,
    written,
)
from fedping.client_sim.data.example_data import of_one
from fedping.client_sim.data.files import read_arrow, spellings
from fedping.client_sim.data.table import Table, Target
from fedping.client_sim.joining.columns import AgreedColumns, Feature
from fedping.client_sim.learning.algorithm import ModelAndMore, bare
from fedping.client_sim.learning.batch import ClientData, FloatArray
from fedping.client_sim.learning.bounds import Bounded, unbounded
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models.k_means import KMeans
from fedping.client_sim.learning.models.linear_regression import LinearRegression
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.client_sim.learning.models.network import Network
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.client_sim.learning.submodel import Part
from fedping.protocol import log
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.notation import format_count

FEWEST_ROWS = 2
"""Minimum rows of a table, a batch and a cluster, because the update of a single row is a multiple of this row."""

MOST_OF_ONE_ROW = 0.9
"""Maximum share of a row in the weight of all rows; above it, the update is approximately that row's."""

_TRUTH = ("false", "true")
_SAVED_TRUTH = ("False", "True", "FALSE", "TRUE")
_WHOLE = re.compile("0|-?[1-9][0-9]*")


@dataclass(frozen=True)
class Wanted:
    """The examples that a model needs.

    Attributes:
        model: description of the model, for sentences.
        features: number of features of an example.
        predicts: whether the examples have a label.
        classes: number of classes of the label; None if the label is a number.
    """

    model: str
    features: int
    predicts: bool
    classes: int | None = None


@dataclass(frozen=True)
class OwnTable:
    """The rows of a table, the same in every round: a :class:`fedping.client_sim.fleet.examples.Source`.

    Attributes:
        rows: the table.
        class_weights: weight of an example of each class; equal weights if None.
        held_out: whether the rows are held out, so that pings have the confusion counts of a version on them.
    """

    rows: Table
    class_weights: tuple[float, ...] | None = None
    held_out: bool = False
    always_new: ClassVar[bool] = False

    def of(self, clients: NDArray[np.int64], iteration: int, applied: FloatArray) -> ClientData[Any]:
        """See :meth:`Source.of`; there is one client."""
        return replace(of_one(self.rows), weight=self.weight)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of the training data: features, targets and weights."""
        found = hashlib.sha256()
        for values in (self.rows.x, self.rows.y, self.weight):
            found.update(np.ascontiguousarray(values).tobytes())
        return found.hexdigest()

    @property
    def weight(self) -> NDArray[np.float64]:
        """Weight of each row, shape (N,)."""
        if self.class_weights is None or not self.rows.target.is_class:
            return np.ones(len(self.rows))
        weights: NDArray[np.float64] = np.array(self.class_weights)[self.rows.y]
        return weights


def whole_model(model: Model[Any]) -> Model[Any]:
    """Return a model without the wrappers that bound, extend or divide it."""
    inner = unbounded(bare(model))
    return inner.whole if isinstance(inner, Part) else inner


def guarding_rows(model: Model[Any]) -> Model[Any]:
    """Return a model of tables whose training rejects a step that would reveal a single row."""
    match model:
        case Bounded() | ModelAndMore():
            return replace(model, model=guarding_rows(model.model))
        case Part(whole=KMeans() as whole):
            return replace(model, whole=replace(whole, fewest=FEWEST_ROWS))
        case KMeans():
            return replace(model, fewest=FEWEST_ROWS)
        case _:
            return model


def numbers_a_row(model: Model[Any]) -> int:
    """Return the approximate number of values that a model of tables computes for each row."""
    match whole_model(model):
        case LogisticRegression(classes=c):
            return c
        case Network(classes=c, hidden=units):
            return c + sum(units)
        case KMeans(clusters=k):
            return k
        case _:
            return 1


def wanted_by(model: Model[Any], words: str) -> Wanted:
    """Return the examples that a model of tables needs; ``words`` describe it in sentences."""
    match whole_model(model):
        case LinearRegression(features=d):
            return Wanted(words, d, predicts=True)
        case LogisticRegression(features=d, classes=c) | Network(features=d, classes=c):
            return Wanted(words, d, predicts=True, classes=c)
        case KMeans(features=d):
            return Wanted(words, d, predicts=False)
        case TreeModel() as network:
            return Wanted(words, network.features, predicts=True, classes=network.classes)
        case _:
            raise InvalidSettings(f"{words} doesn't learn from a table. Write your own client")


def read_examples(path: Path, label: str | None, agreed: AgreedColumns | None, wanted: Wanted) -> Table:
    """Return a file's rows as examples of a model.

    Args:
        path: a CSV, Parquet or Arrow file, or a folder of Parquet files.
        label: the column to predict; None for the label in ``agreed``.
        agreed: the agreed columns; if None, all columns but the label are features, in the file's order and without
            scales, and classes are numbers from 0, or all values in alphabetical order.
        wanted: the examples that the model needs.

    Raises:
        InvalidSettings: the agreed columns don't fit the model, or the label is missing.
        FedpingError: the file can't be read, has no rows, or doesn't fit the model. The message has row numbers but no
            values, because values may be patients' and end up in a log.
    """
    label = label if label is not None else agreed.label if agreed is not None else None
    if wanted.predicts and label is None:
        raise InvalidSettings(f"{wanted.model} predicts a column; name it with --label, or as 'label' in --columns")
    if agreed is not None:
        _check_agreed(agreed, wanted)
    read = read_arrow(path)
    if not read.num_rows:
        raise FedpingError(f"the file {path} has no rows; there is nothing to learn from")
    features = agreed.features if agreed is not None else _all_but(label, read.column_names, path)
    if agreed is not None and agreed.for_scales:
        features = agreed.numbers if agreed.moments else ()
    counts = agreed is not None and agreed.counts
    named = [label] if label is not None and (wanted.predicts or agreed is None or counts) else []
    _check_there([*(each.name for each in features), *named], read.column_names, path)
    try:
        spelled = spellings(path, read, [each.name for each in features if each.categories is not None])
        if named and (wanted.classes is not None or counts):
            spelled |= spellings(path, read, named)
        parts = [_feature(read[each.name], each, agreed is not None, spelled.get(each.name)) for each in features]
        names = tuple(name for each in features for name in _names(each))
        if agreed is not None and agreed.moments:
            parts, names = [*parts, *(part**2 for part in parts)], (*names, *(f"{name}²" for name in names))
        if agreed is not None and agreed.counts and agreed.classes is not None and label is not None:
            classes_column = Feature(name=label, categories=agreed.classes)
            parts.append(_feature(read[label], classes_column, True, spelled.get(label)))
            names = (*names, *_names(classes_column))
        x = np.column_stack(parts)
        if x.shape[1] != wanted.features:
            raise FedpingError(
                f"it has {x.shape[1]} columns{f' beside {label!r}' if label else ''}, and {wanted.model} has "
                f"{wanted.features} features; name those that were agreed on, in their order, with --columns"
            )
        y, target = np.zeros(len(x)), Target()
        if wanted.predicts and label is not None:
            classes = agreed.classes if agreed is not None else None
            y, target = _label(read[label], label, classes, wanted, spelled.get(label))
        return Table(x, y, names, target)
    except FedpingError as error:
        raise FedpingError(f"the file {path}: {error}") from error


def _check_agreed(agreed: AgreedColumns, wanted: Wanted) -> None:
    if agreed.width != wanted.features:
        raise InvalidSettings(
            f"--columns names {format_count(agreed.width, 'feature')}, and {wanted.model} has {wanted.features}; ask "
            "the study's operator for the right file"
        )
    if wanted.predicts and agreed.classes is not None and len(agreed.classes) != wanted.classes:
        predicts = f"predicts {wanted.classes} classes" if wanted.classes else "predicts no classes"
        raise InvalidSettings(
            f"--columns names {len(agreed.classes)} classes, and {wanted.model} {predicts}; ask the study's "
            "operator for the right file"
        )


def _all_but(label: str | None, names: list[str], path: Path) -> tuple[Feature, ...]:
    if any(not name for name in names):
        raise FedpingError(f"the file {path} has a column without a name; name it, or say with --columns which to read")
    return tuple(Feature(name=name) for name in names if name != label)


def _check_there(wanted: list[str], names: list[str], path: Path) -> None:
    missing = [name for name in wanted if name not in names]
    twice = [name for name in wanted if names.count(name) > 1]
    if missing or twice:
        raise FedpingError(f"the file {path} {_names_trouble(wanted, names, missing, twice)}")
    if len(set(wanted)) < len(wanted):
        raise InvalidSettings("the label is among the features of --columns; name another with --label")


def _names_trouble(wanted: list[str], names: list[str], missing: list[str], twice: list[str]) -> str:
    """Return the problem of a file's column names, which in a file without names are a row of values."""
    if any(reads_as_number(part) for name in names for part in re.split(r"[;\t|]", name)):
        lacks = f"no column '{missing[0]}', and " if missing else ""
        return f"has {lacks}numbers in its first row; the row of names seems to be missing, so put the names first"
    if twice:
        return f"has {names.count(twice[0])} columns of the name '{twice[0]}'; rename or remove all but one"
    stripped = {name.strip() for name in names}
    if missing[0].strip() in stripped:
        return f"has the column '{missing[0]}' with blanks around its name; remove these in the row of names"
    if len(missing) == len(set(wanted)):
        return (
            f"has none of the columns that are wanted, such as '{missing[0]}'; its first row has to be the names of "
            "the agreed columns"
        )
    return f"has no column '{missing[0]}'; it has {', '.join(names[:30])}{', …' if len(names) > 30 else ''}"


def _feature(column: Any, feature: Feature, agreed: bool, spelled: Any = None) -> FloatArray:
    """Return the features of a column, shape (N, width); ``agreed`` is whether its kind was agreed on.

    ``spelled`` is a column of categories in a CSV file's spelling, if it was not read as texts.
    """
    if feature.categories is not None:
        names, each = _names_in(column, feature.name, spelled)
        typed = spelled is None and not is_text(column)
        return np.eye(len(feature.categories))[_places(names, each, feature.categories, feature.name, typed)]
    scaled: FloatArray = (_numbers(column, feature.name, agreed) - feature.mean) / feature.deviation
    return scaled[:, None]


def _numbers(column: Any, name: str, meant: bool) -> FloatArray:
    """Return a column of numbers, shape (N,); ``meant`` is whether numbers were agreed on, so categories are excluded.

    Raises:
        FedpingError: the column has other values; a single value that isn't a number makes all of them texts.
    """
    if not is_text(column):
        return as_numbers(column, name)
    check_none_missing(column, name)
    row, others = first_no_number(column)
    if not others:
        raise FedpingError(f"the column '{name}' has numbers that are saved as texts; save them as numbers")
    if others < len(column) / 2 or (meant and others < len(column)):
        among = f", one of {others:,} such rows" if others > 1 else ""
        raise FedpingError(
            f"row {row} of the column '{name}' is not a number{among}. Correct it, with a decimal point and without a "
            "unit, or remove the row"
        )
    if meant:
        raise FedpingError(
            f"the column '{name}' has texts where numbers are wanted; write them with a decimal point and no unit"
        )
    raise FedpingError(
        f"the column '{name}' has texts, which every institution would number in its own way; give its categories in "
        "--columns, or turn it into numbers"
    )


def _names_in(column: Any, name: str, spelled: Any) -> tuple[list[str], NDArray[np.intp]]:
    """Return the sorted texts of a column, and the position of each row's text."""
    if spelled is None:
        return values_of(column, name)
    texts, each = np.unique(written(spelled), return_inverse=True)
    return texts.tolist(), each


def _names(feature: Feature) -> tuple[str, ...]:
    if feature.categories is None:
        return (feature.name,)
    return tuple(f"{feature.name}={category}" for category in feature.categories)


def _label(
    column: Any, name: str, classes: tuple[str, ...] | None, wanted: Wanted, spelled: Any = None
) -> tuple[NDArray[Any], Target]:
    if wanted.classes is None:
        return _numbers(column, name, True), Target(name)
    values, each = _names_in(column, name, spelled)
    numbered = tuple(map(str, range(wanted.classes)))
    if classes is None:
        if _rewritten(values, numbered) is not None:
            classes = numbered
        elif wanted.classes == len(_TRUTH) and _rewritten(values, _TRUTH) is not None:
            classes = _TRUTH
        elif is_text(column) and len(values) == wanted.classes:
            classes = tuple(map(str, values))  # every institution with all classes numbers them in this way
        else:
            raise FedpingError(
                f"the column '{name}' has {len(values)} class{'' if len(values) == 1 else 'es'}, and {wanted.model} "
                f"predicts {wanted.classes}; name all of them in --columns, or number them from 0 to "
                f"{wanted.classes - 1}"
            )
    typed = spelled is None and not is_text(column)
    return _places(values, each, classes, name, typed).astype(np.int64), Target(name, classes)


def _places(
    values: list[str], each: NDArray[np.intp], agreed_values: tuple[str, ...], name: str, typed: bool
) -> NDArray[np.intp]:
    """Return the position of each row's value, ``values[each]``, among the agreed ones, shape (N,).

    Texts are compared literally. With ``typed``, the file has numbers or booleans, whose values are compared.

    Raises:
        FedpingError: a value is not among the agreed ones, or could be two of them.
    """
    if typed:
        values = [_of_value(value, agreed_values, name) for value in values]
    elif (rewritten := _rewritten(values, agreed_values)) is not None:
        if rewritten != values:
            spelling, agreed = next((one, other) for one, other in zip(values, rewritten, strict=True) if one != other)
            log.tell(
                f"warning: the column '{name}' has '{spelling}' instead of the agreed '{agreed}', and is read as the "
                "latter. Save it with the agreed spelling",
                "warning",
            )
        values = rewritten
    other = np.array([value not in agreed_values for value in values])[each]
    if other.any():
        row, rows = int(other.argmax()) + 1, int(other.sum())
        among = f", one of {rows:,} such rows" if rows > 1 else ""
        value = values[each[row - 1]]
        if (same := _same_value(value, agreed_values)) and not typed:
            texts = [f"'{text}'" for text in same]
            raise FedpingError(
                f"row {row} of the column '{name}' has another spelling of {' and '.join(texts)}, which "
                f"{'was' if len(same) == 1 else 'were'} agreed on{among}; names are compared as texts, so write "
                f"{' or '.join(texts)} if it is that"
            )
        agreed = f"{', '.join(agreed_values[:10])}{', …' if len(agreed_values) > 10 else ''}"
        raise FedpingError(
            f"row {row} of the column '{name}' has none of the agreed values ({agreed}){among}. Correct it, or remove "
            "the row"
        )
    return np.array([agreed_values.index(value) for value in values], np.intp)[each]


def _rewritten(values: list[str], agreed_values: tuple[str, ...]) -> list[str] | None:
    """Return the agreed texts that values stand for, also if a program has rewritten numbers or booleans; else None.

    A program saves whole numbers with a missing one among them as 1.0, and booleans as True or TRUE. All agreed texts
    have to be whole numbers, or booleans: next to 250.1 or 007, 250.0 and 7.0 may be other codes than 250 and 7.
    """
    rewritten = values
    if not set(values) <= set(agreed_values):
        if all(map(_WHOLE.fullmatch, agreed_values)):
            rewritten = [text.removesuffix(".0") for text in values if text.endswith(".0")]
        elif set(agreed_values) <= set(_TRUTH):
            rewritten = [text.lower() for text in values if text in _SAVED_TRUTH]
    is_each = len(set(rewritten)) == len(values) and set(rewritten) <= set(agreed_values)
    return rewritten if is_each else None


def _of_value(value: str, agreed_values: tuple[str, ...], name: str) -> str:
    """Return the agreed text of a number or boolean, or the value itself without one."""
    same = _same_value(value, agreed_values)
    if len(same) > 1:
        raise FedpingError(
            f"the column '{name}' has no texts, and '{same[0]}' and '{same[1]}' were agreed on, which are the same "
            "value; save the column as texts"
        )
    return value if value in agreed_values or not same else same[0]


def _same_value(value: str, agreed_values: tuple[str, ...]) -> list[str]:
    """Return the agreed texts that are the same number or truth value as a text."""
    meant = _value(value)
    return [] if meant is None else [text for text in agreed_values if _value(text) == meant]


def _value(text: str) -> Decimal | str | None:
    return text.lower() if text.lower() in _TRUTH else number_in(text)
