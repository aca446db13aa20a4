"""Columns of an Arrow table as features, a target and keys."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.table import Target
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import FedpingError

MOST_CATEGORIES = 1000
"""A text column with more distinct values than this is taken for identifiers or prose."""

Kind = Literal["class", "number"]


def feature(column: Any, name: str) -> tuple[FloatArray, tuple[str, ...]]:
    """Return a column as features, shape (N, 1), or (N, categories) for texts, and their names.

    Texts become one feature per category, which is 1 in the rows of that category; features are in alphabetical order,
    named ``column=text``. Booleans are 0 and 1.

    Raises:
        FedpingError: a value is missing or not finite, the type is neither a number nor a text, there are more than
            :data:`MOST_CATEGORIES` distinct texts, or most of them are numbers but not all.
    """
    if not is_text(column):
        return as_numbers(column, name)[:, None], (name,)
    _refuse_numbers_with_a_slip(column, name)
    names, category = values_of(column, name)
    if len(names) > MOST_CATEGORIES:
        raise FedpingError(
            f"the column '{name}' has {len(names)} different texts, too many to be categories; leave it out of the "
            "features, or name it as the client"
        )
    return np.eye(len(names))[category], tuple(f"{name}={text}" for text in names)


def target(column: Any, name: str, kind: Kind | None) -> tuple[NDArray[Any], Target]:
    """Return a column as targets, and what it is: by default a class for texts or booleans, else a number.

    Classes are numbered in the order of their names; numeric names are ordered by size.

    Raises:
        FedpingError: as :func:`feature`; the column should be numbers but has texts; or there is only one class.
    """
    if kind is None:
        kind = "class" if is_text(column) or _is_truth(column) else "number"
    if kind == "number":
        return as_numbers(column, name), Target(name)
    names, numbers = values_of(column, name)
    if len(names) < 2:
        raise FedpingError(f"the target '{name}' is '{names[0]}' in every row, so there is nothing to predict")
    return numbers.astype(np.int64), Target(name, tuple(map(str, names)))


def chosen(column: Any, name: str) -> tuple[NDArray[np.int64], Target]:
    """Return which candidates were chosen; raise :class:`FedpingError` for a value other than 1 or 0."""
    numbers = as_numbers(column, name)
    odd = np.flatnonzero((numbers != 0) & (numbers != 1))
    if len(odd):
        raise FedpingError(
            f"row {odd[0] + 1} of the column '{name}' is {numbers[odd[0]]:g}; where rows are the candidates of "
            "choices, the target is 1 for who was chosen and 0 for the others"
        )
    return numbers.astype(np.int64), Target(name, ("no", "yes"))


def keys(column: Any, name: str) -> NDArray[Any]:
    """Return the owner of each row; raise :class:`FedpingError` where it is missing."""
    check_none_missing(column, name)
    return _plain(column)


def values_of(column: Any, name: str) -> tuple[list[Any], NDArray[np.intp]]:
    """Return the sorted values of a column of any type, as texts or numbers, and the position of each row's value."""
    if is_text(column):
        check_none_missing(column, name)
        values, category = np.unique(_plain(column).astype(str), return_inverse=True)
        return values.tolist(), category
    values, category = np.unique(as_numbers(column, name), return_inverse=True)
    if _is_truth(column):
        return [("false", "true")[int(value)] for value in values], category
    return [f"{value:.15g}" for value in values], category


def _refuse_numbers_with_a_slip(column: Any, name: str) -> None:
    """Raise if nearly all texts are numbers: one stray text would turn every number of a column into a category."""
    from pyarrow import types

    if types.is_dictionary(column.type):  # declared as categories
        return
    check_none_missing(column, name)
    row, count = first_no_number(column)
    if 0 < count < len(column) / 2:
        raise FedpingError(
            f"row {row} of the column '{name}' is '{column[row - 1].as_py()}', but most of its rows are numbers; "
            "correct it or leave the column out; if these are categories, save them as a dictionary in Parquet"
        )


def reads_as_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_numbers(column: Any, name: str) -> FloatArray:
    """Return a column of numbers or booleans, shape (N,); raise :class:`FedpingError` for a value that is none."""
    from pyarrow import types

    check_none_missing(column, name)
    kind = column.type
    _refuse_bytes(column, name)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)):
        raise FedpingError(
            f"the column '{name}' is of type {kind}, which is not a number; turn it into numbers, or leave it out"
        )
    numbers: FloatArray = _plain(column).astype(np.float64)
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise FedpingError(f"row {row + 1} of the column '{name}' is {numbers[row]}; fill such rows or drop them")
    return numbers


def _refuse_bytes(column: Any, name: str) -> None:
    """Raise for a column of bytes, which is what texts in another encoding than UTF-8 are read as."""
    from pyarrow import types

    if types.is_binary(column.type) or types.is_large_binary(column.type):
        row = next((at for at, value in enumerate(column.to_pylist(), 1) if not _is_utf_8(value)), None)
        where = "has bytes instead of texts" if row is None else f"is not in UTF-8, first in row {row}"
        raise FedpingError(f"the column '{name}' {where}; save the table as UTF-8")


def _is_utf_8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def first_no_number(column: Any) -> tuple[int, int]:
    """Return which row, from 1, of a column of texts is the first that is no number, and how many there are."""
    other = np.array([not reads_as_number(text) for text in _plain(column)])
    return int(other.argmax()) + 1, int(other.sum())


def check_none_missing(column: Any, name: str) -> None:
    """Raise :class:`FedpingError` if a value of a column is missing."""
    if column.null_count:
        row = column.is_null().to_numpy().argmax()
        raise FedpingError(
            f"row {row + 1} of the column '{name}' is missing, one of {column.null_count}; fill such rows or drop them"
        )


def _plain(column: Any) -> NDArray[Any]:
    """Return an Arrow column, chunked or not, as a NumPy array."""
    from pyarrow import types

    plain: NDArray[Any] = (
        column.cast(column.type.value_type) if types.is_dictionary(column.type) else column
    ).to_numpy()
    return plain


def is_text(column: Any) -> bool:
    """Return whether a column is of texts, also where they are kept as a dictionary."""
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_truth(column: Any) -> bool:
    from pyarrow import types

    return bool(types.is_boolean(column.type))
